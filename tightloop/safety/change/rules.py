"""Review of a change."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tightloop.safety.change.checks import ci_kept, configs_kept, suppressions, tests_kept
from tightloop.safety.change.patch import Change, FilePatch, Line
from tightloop.safety.change.reading import (
    EXAMPLE,
    GENERATED,
    PATTERNS,
    TEST,
    VIOLATIONS,
    WORDS,
    Deadline,
    FileView,
    MarkedLine,
    OutOfTimeError,
    ScanContext,
    find_matched_lines,
    join_generated_code,
    make_file_finding,
    scripts,
)
from tightloop.safety.commands.rules import VIOLATIONS as COMMANDS
from tightloop.safety.rubric import Finding, Rubric, Verdict, cost, fingerprint_of, limit_findings, make_finding
from tightloop.safety.scope import LOCK_FILES, outside
from tightloop.value import format_count
from tightloop.value.scrub import scrub
from tightloop.value.toml import read_toml


class Dependency(NamedTuple):
    """Package named in a manifest."""

    ecosystem: str
    name: str


_DATA = read_toml("tightloop.safety.change", "licences.toml")
_PACKAGES = {ecosystem: re.compile(pattern, re.VERBOSE) for ecosystem, pattern in _DATA["packages"].items()}
_LICENCES: dict[str, dict[str, str]] = _DATA["licences"]


def ecosystem_of(path: str) -> str:
    """Return the package ecosystem of a manifest, or "" for any other file."""
    name = path.rpartition("/")[2]
    if re.search(r"(?:^|/)(?:(?:requirements|constraints)[\w.-]*|requirements/[\w./-]+)\.(?:txt|in)$", path):
        return "pypi"
    return str(_DATA["manifests"].get(name, ""))


def find_packages(ecosystem: str, line: str) -> Iterator[Dependency]:
    """Yield the packages named in a line of a manifest."""
    if line.lstrip().startswith(("#", "//", "-r", "--")):
        return
    parts = line.split(",") if ecosystem == "pypi" else [line]
    for name in (name for part in parts for name in _PACKAGES[ecosystem].findall(part)):
        yield Dependency(ecosystem, re.sub(r"[._-]+", "-", name).lower() if ecosystem == "pypi" else name)


def licence_of(dependency: Dependency) -> str:
    """Return a package's strong copyleft or non-free licence, or "" if none is known."""
    table = _LICENCES[dependency.ecosystem]
    if dependency.ecosystem == "npm" and dependency.name.startswith("@ckeditor/"):
        return "GPL-2.0"
    # The path of a Go package starts with that of its module; `/v2` is its major version.
    name = re.sub(r"/v\d+$", "", dependency.name)
    of_module = next((key for key in table if dependency.ecosystem == "go" and name.startswith(key + "/")), name)
    return table.get(of_module, "")


def licence_mark(line: str) -> str:
    """Return the strong copyleft or non-free licence that a line declares for its file."""
    match = PATTERNS["licence_mark"].search(line)
    return (match["id"] or match["text"]) if match else ""


PERSONS = 5
"""Number of distinct addresses at which a data file counts as personal data.

A single address may be the author's.
"""
SAMPLE = 50
"""Maximum number of lines with personal data to read after the time has run out."""
_NUMBERS = frozenset(["pii:card", "pii:iban", "pii:ssn"])


def secret_files(view: FileView) -> Iterator[Finding]:
    """Yield a finding if a new file has a name typical of a key file."""
    if view.file.new and PATTERNS["secret_file_name"].search(view.file.path) and not TEST.search(view.file.path):
        yield view.make_finding("secret_file_added", None)


def may_be_private(view: FileView) -> bool:
    """Return whether to search the file for secrets and personal data."""
    return not GENERATED.search(view.file.path)


def secrets(view: FileView, marked: Iterable[MarkedLine]) -> Iterator[Finding]:
    """Yield findings for secrets in lines with scrubber matches."""
    tame = bool(TEST.search(view.file.path) or EXAMPLE.search(view.file.path))
    places = [entry.position for entry in marked if any(kind.startswith("secret:") for kind in entry.kinds)]
    for line in view.reading.deadline.iterate_lines(view.new_lines, places):
        scrubbed = scrub(line.text)
        # A placeholder that was in the line before is no secret, for example in test data of a scrubber.
        if scrubbed == line.text or scrubbed.count("[secret:") <= line.text.count("[secret:"):
            continue
        # The value of a variable named like `token` is only a guess, unlike a provider's key.
        guessed = set(re.findall(r"\[secret:([\w-]+)\]", scrubbed)) == {"assigned"}
        if PATTERNS["made_up"].search(line.text) or (guessed and PATTERNS["path_assigned"].search(line.text)):
            continue
        if "[secret:" not in scrub(PATTERNS["no_password"].sub("://", line.text)):
            continue
        if tame and re.search(r"\[secret:(?:assigned|url-password|bearer-token)\]", scrubbed):
            continue
        yield view.make_finding("maybe_secret" if tame or guessed else "secret_added", line, scrubbed)


def personal(view: FileView, marked: Iterable[MarkedLine]) -> Iterator[Finding]:
    """Yield findings for numbers that identify a person, and for large collections of addresses."""
    kinds = {entry.position: entry.kinds for entry in marked}
    people: dict[str, Line] = {}
    try:
        yield from _numbers_of_persons(view, kinds, people)
    except OutOfTimeError:
        # Out of time, a sample still decides whether the file holds data of people.
        for position in itertools.islice(kinds, SAMPLE):
            _note_people(
                Line(view.new_lines.numbers[position], view.new_lines.texts[position]), kinds[position], people
            )
        yield from _many(view, people)
        raise
    yield from _many(view, people)


def _numbers_of_persons(view: FileView, kinds: dict[int, frozenset[str]], people: dict[str, Line]) -> Iterator[Finding]:
    """Yield findings for personal numbers. Add addresses and phone numbers to `people`."""
    places = sorted({*kinds, *view.find_positions(("@",))})
    for position, line in zip(places, view.reading.deadline.iterate_lines(view.new_lines, places), strict=False):
        if not PATTERNS["may_be_personal"].search(line.text):
            continue
        of_line = kinds.get(position, frozenset())
        is_made_up = PATTERNS["test_cards"].search(line.text) or PATTERNS["made_up"].search(line.text)
        if not of_line.isdisjoint(_NUMBERS) and not is_made_up and not TEST.search(view.file.path):
            yield view.make_finding("personal_data_added", line, scrub(line.text))
        _note_people(line, of_line, people)


def _note_people(line: Line, kinds: frozenset[str], people: dict[str, Line]) -> None:
    for match in PATTERNS["address"].finditer(line.text) if "@" in line.text else ():
        if not PATTERNS["made_up_host"].search(match[1]):
            people.setdefault(match[0].lower(), line)
    if "pii:phone" in kinds and "@" not in line.text:
        people.setdefault(line.text, line)


def _many(view: FileView, people: dict[str, Line]) -> Iterator[Finding]:
    if len(people) >= PERSONS and PATTERNS["data_file"].search(view.file.path):
        line = next(iter(people.values()))
        text = f"{len(people)} personal addresses or numbers, for example {scrub(line.text)}"
        yield view.make_finding("personal_data_added", line, text)


# The tracker stops the rules after 0.4 s of CPU time; 2 MB of ordinary code take 0.13 s (see figures.md).
SCRUBBING_SHARE, PRIVACY_SHARE = 0.6, 0.75
"""Shares of the reading time for the scrubber search and, cumulatively, for the privacy rules."""
PATHS_SHOWN = 4
WHOLE_CHANGE = "the change"
"""Location of findings that do not refer to a particular file."""
_COMMANDS = frozenset({*COMMANDS, "script_too_long", "drops_data"})
"""Rules about the effects of running a file."""
DENIED_SHARE = 0.8
"""Share of all lines whose deletion is denied without asking."""


def review_change(change: Change, rubric: Rubric = Rubric(), *, watch: Deadline | None = None) -> tuple[Finding, ...]:
    """Review a change and return its findings, up to a limit.

    If parts of the change could not be read, the result includes a finding that says so.
    """
    findings: list[Finding] = [*cost(rubric, cpu_s=change.cpu_s, wall_s=change.wall_s), *_deletions(change, rubric)]
    if rubric.enabled:
        pages = _FileReview(change, watch or Deadline())
        entries = pages.read(rubric)
        # First, so that other findings cannot push it out of the bounded list.
        findings = [*_not_read(change, pages.unread), *findings, *join_generated_code(entries, _COMMANDS)]
    return limit_findings(findings, rubric)


class _FileReview:
    """Review of all files in a change.

    The smallest files are read first. A file that is designed to be slow therefore only prevents its own
    review.
    """

    def __init__(self, change: Change, watch: Deadline) -> None:
        reading = ScanContext(change, watch)
        by_size = sorted(enumerate(change.files), key=lambda page: len(page[1].added) + len(page[1].removed))
        self._places = [position for position, _ in by_size]
        self._seen = tuple(reading.view_file(file) for _, file in by_size)
        self._deadline = watch
        self._findings: list[tuple[int, int, Finding]] = []
        self.unread: dict[str, FilePatch] = {}
        """Files that were not read completely, by path."""

    def read(self, rubric: Rubric) -> list[Finding]:
        """Apply the rules to the lines of all files. Return the findings in file order."""
        self._deadline.allow(SCRUBBING_SHARE)
        marks, unmarked = find_matched_lines(
            [view if may_be_private(view) else None for view in self._seen], self._deadline
        )
        self._mark_unread(unmarked)
        self._deadline.allow(PRIVACY_SHARE)
        for at, view in enumerate(self._seen):
            self._collect_findings(at, 0, secret_files(view))
            if may_be_private(view):
                self._collect_findings(at, 1, secrets(view, marks.get(at, ())))
                self._collect_findings(at, 2, personal(view, marks.get(at, ())))
        self._deadline.allow(1.0)
        for at, view in enumerate(self._seen):
            if self._deadline.is_over:
                self._mark_unread(range(at, len(self._seen)))
                break
            for number, rule in enumerate(_RULES, start=3):
                self._collect_findings(at, number, rule(view))
        entries = sorted(self._findings, key=lambda item: item[:2])
        self._findings = []
        if self._seen:
            in_order = sorted(zip(self._places, self._seen, strict=True), key=lambda page: page[0])
            self._collect_findings(-1, 0, suppressions([view for _, view in in_order], rubric))
        return [finding for _, _, finding in (*entries, *self._findings)]

    def _collect_findings(self, at: int, number: int, findings: Iterator[Finding]) -> None:
        try:
            for finding in findings:
                self._findings.append((self._places[at], number, finding))
        except OutOfTimeError:
            self._mark_unread((at,))

    def _mark_unread(self, places: Iterable[int]) -> None:
        self.unread.update({self._seen[at].file.path: self._seen[at].file for at in places})


def _not_read(change: Change, unread: dict[str, FilePatch]) -> Iterator[Finding]:
    """Yield a finding if parts of the change could not be read."""
    missing = change.unread
    if not unread and not missing.files:
        return
    everything = missing.lines + sum(map(_lines_of, change.files))
    lines = missing.lines + sum(map(_lines_of, unread.values()))
    paths = (*missing.paths, *unread)
    files = missing.files + len(unread)
    more = f" and {format_count(files - PATHS_SHOWN, 'more file')}" if files > PATHS_SHOWN else ""
    why = [missing.why] * bool(missing.files) + ["reading the rest would take too long"] * bool(unread)
    yield make_finding(
        VIOLATIONS["change_not_read"],
        at=("", "\0".join((missing.mark, *paths, *(file.added.whole for file in unread.values())))),
        where=paths[0] if paths else WHOLE_CHANGE,
        evidence=f"{everything - lines} of {everything} changed lines were checked: {'; '.join(why)}. "
        f"Incomplete: {', '.join(paths[:PATHS_SHOWN])}{more}",
    )


def _lines_of(file: FilePatch) -> int:
    return file.added.lines + file.removed.lines


def still_stands(finding: Finding, change: Change) -> bool:
    """Return whether the cause of an earlier refusal still exists.

    The cause is the line of the finding, or the file if the finding has no line.
    """
    if finding.rule == "change_not_read" and finding.where in change.unread.paths:
        return False  # What it is now has a finding of its own.
    for file in change.files:
        path, _, number = finding.where.rpartition(":")
        if file.path == finding.where or (number.isdigit() and path in (file.path, file.was) and file.deleted):
            return False
        lines = file.removed if path in (file.path, file.was) else ()
        at = ((path, line.text.strip()) for line in lines)
        if any(fingerprint_of(finding.rule, location) == finding.fingerprint for location in at):
            return False
    return finding.where != WHOLE_CHANGE or not change.files


def _licences(view: FileView) -> Iterator[Finding]:
    ecosystem = ecosystem_of(view.file.path)
    if ecosystem:
        before = {package for line in view.file.removed for package in find_packages(ecosystem, line.text)}
        for line in view.all_fresh():
            for package in find_packages(ecosystem, line.text):
                if package not in before and (licence := licence_of(package)):
                    yield view.make_finding("copyleft_dependency", line, f"{package.name} is {licence}")
    if re.match(r"(?:LICEN[CS]E|COPYING|NOTICE)(?:[.-]|$)", view.file.name.upper()):
        yield from _licence_file(view)
    elif not EXAMPLE.search(view.file.path):
        for line in view.find_lines(WORDS["licence"]):
            if licence_mark(line.text) and PATTERNS["own_words"].match(line.text):
                yield view.make_finding("licence_of_added_code", line)
                break
        yield from _notices(view)


def _notices(view: FileView) -> Iterator[Finding]:
    if view.file.deleted:
        return
    before = view.search_lines(view.file.removed, WORDS["notice"])
    removed = [line for line in before if PATTERNS["notice"].search(line.text)]
    # A changed notice, such as one with another year, is removed and added.
    if not removed or len(view.reading.deadline.find_lines(view.file.added, WORDS["notice"])) >= len(removed):
        return
    # A notice that moved to another file still exists.
    if removed[0].text.strip() not in view.reading.compute_once(_all_lines):
        yield view.make_finding("notice_removed", removed[0])


def _all_lines(reading: ScanContext) -> frozenset[str]:
    return frozenset(text for file in reading.change.files for text in file.added.stripped)


def _licence_file(view: FileView) -> Iterator[Finding]:
    # A new year or different line wrapping does not change a licence.
    def bare(lines: Iterable[Line]) -> list[str]:
        return [re.sub(r"\d{4}(?:\s*[-–]\s*\d{4})?|\s+", "", line.text) for line in lines]

    if view.file.deleted:
        yield view.make_finding("licence_removed", None, "the licence was deleted")
    elif view.file.new and not view.file.was:
        # The licence of a library that the goal vendors is not the project's.
        is_announced = view.change.requested.covers(view.file.path, is_test=False, is_new=True)
        if is_announced or re.search(r"\blicen[cs]e\b", view.change.goal, re.IGNORECASE):
            return
        first = view.file.added.texts[0] if view.file.added else ""
        yield view.make_finding("licence_changed", None, f"a licence was added: {first}")
    elif bare(view.file.added) != bare(view.file.removed):
        line = next(iter((*view.file.added, *view.file.removed)), None)
        yield view.make_finding("licence_changed", line)


def _deletions(change: Change, rubric: Rubric) -> Iterator[Finding]:
    handwritten = [file for file in change.files if not GENERATED.search(file.path)]
    deleted = [file for file in handwritten if file.deleted]
    paths = [file.path for file in deleted]
    if change.scope:
        paths = list(outside(change.scope, paths))
    unannounced = frozenset(paths)
    lost = sum(len(file.removed) for file in deleted if file.path in unannounced)
    lost += sum(max(len(file.removed) - len(file.added), 0) for file in handwritten if not file.deleted)
    # Text that moved into new files is not lost.
    net_loss = lost - sum(len(file.added) for file in change.files if file.new)
    share = max(net_loss, 0) / change.lines_before if change.lines_before > 0 else 0.0
    is_much = net_loss >= rubric.deleted_lines and share >= rubric.deleted_share
    if len(paths) >= rubric.deleted_files or is_much:
        verdict = Verdict.DENY if share >= DENIED_SHARE else Verdict.ASK
        yield make_finding(
            VIOLATIONS["mass_deletion"]._replace(verdict=verdict),
            at=("", "\n".join(paths)),
            where=WHOLE_CHANGE,
            evidence=f"deleted {format_count(len(paths), 'file')} that the plan did not mention, losing "
            f"{format_count(lost, 'line')} ({share:.0%} of all lines): {', '.join(paths[:PATHS_SHOWN])}",
        )
    paths_gone = {file.path for file in change.files if file.deleted}
    # A different lock file instead: the project changed its tool.
    is_replaced = any(file.new and file.name in LOCK_FILES for file in change.files)
    for file in deleted or [file for file in change.files if file.deleted]:
        manifest = file.path.removesuffix(file.name) + LOCK_FILES.get(file.name, "")
        if file.name in LOCK_FILES and manifest not in paths_gone and not is_replaced:
            text = "the lock file was deleted, but not its manifest"
            yield make_file_finding(file, VIOLATIONS["lock_file_removed"], None, text)


_RULES: tuple[Callable[[FileView], Iterator[Finding]], ...] = (_licences, tests_kept, ci_kept, configs_kept, scripts)
