"""Rules about what was changed, after the work."""

import re
from collections.abc import Callable, Iterable, Iterator

from tightloop.alignment import Finding, Rubric, Stand, Topic, bounded, cost, found, mark_of
from tightloop.alignment_checks import ci_kept, configs_kept, suppressions, tests_kept
from tightloop.alignment_licences import LICENCE_WORDS, ecosystem_of, licence_mark, licence_of, named
from tightloop.alignment_patch import EXAMPLE, GENERATED, Change, FilePatch, Line
from tightloop.alignment_privacy import may_be_private, personal, secret_files, secrets
from tightloop.alignment_reading import OutOfTimeError, Reading, Seen, Watch, marked, tell
from tightloop.alignment_scripts import scripts
from tightloop.scope import LOCK_FILES, outside

SCRUBBING_SHARE, PRIVACY_SHARE = 0.6, 0.75
"""Of the time for reading: that of the search for secrets and personal data, and with that of the rules about them."""
NOT_READ = "change_not_read"
PATHS_SHOWN = 4


def of_change(change: Change, rubric: Rubric = Rubric(), *, watch: Watch | None = None) -> tuple[Finding, ...]:
    """Return what the rules find in a change, bounded; that not all of it was read is a finding, too."""
    findings: list[Finding] = [*cost(rubric, cpu_s=change.cpu_s, wall_s=change.wall_s), *_deletions(change, rubric)]
    if rubric.enabled:
        pages = _Pages(change, watch or Watch())
        told = pages.read(rubric)
        # First, so that no flood of other questions pushes it out of the bounded list.
        findings = [*_not_read(change, pages.unread), *findings, *told]
    return bounded(findings, rubric)


class _Pages:
    """The files of a change, the small ones first: one that is made to take long hides nothing but itself."""

    def __init__(self, change: Change, watch: Watch) -> None:
        reading = Reading(change, watch)
        by_size = sorted(enumerate(change.files), key=lambda page: len(page[1].added) + len(page[1].removed))
        self._places = [place for place, _ in by_size]
        self._seen = tuple(reading.seen(file) for _, file in by_size)
        self._watch = watch
        self._told: list[tuple[int, int, Finding]] = []
        self.unread: dict[str, FilePatch] = {}
        """Files that there was no time to read whole, by path."""

    def read(self, rubric: Rubric) -> list[Finding]:
        """Return what the rules about lines find, in the order of the files."""
        self._watch.allow(SCRUBBING_SHARE)
        marks, unmarked = marked([one if may_be_private(one) else None for one in self._seen], self._watch)
        self._leave(unmarked)
        self._watch.allow(PRIVACY_SHARE)
        for at, seen in enumerate(self._seen):
            self._tell(at, 0, secret_files(seen))
            if may_be_private(seen):
                self._tell(at, 1, secrets(seen, marks.get(at, ())))
                self._tell(at, 2, personal(seen, marks.get(at, ())))
        self._watch.allow(1.0)
        for at, seen in enumerate(self._seen):
            if self._watch.over:
                self._leave(range(at, len(self._seen)))
                break
            for number, rule in enumerate(_RULES, start=3):
                self._tell(at, number, rule(seen))
        told = sorted(self._told, key=lambda item: item[:2])
        self._told = []
        if self._seen:
            in_order = sorted(zip(self._places, self._seen, strict=True), key=lambda page: page[0])
            self._tell(-1, 0, suppressions([seen for _, seen in in_order], rubric))
        return [finding for _, _, finding in (*told, *self._told)]

    def _tell(self, at: int, number: int, findings: Iterator[Finding]) -> None:
        try:
            for finding in findings:
                self._told.append((self._places[at], number, finding))
        except OutOfTimeError:
            self._leave((at,))

    def _leave(self, places: Iterable[int]) -> None:
        self.unread.update({self._seen[at].file.path: self._seen[at].file for at in places})


def _not_read(change: Change, unread: dict[str, FilePatch]) -> Iterator[Finding]:
    """Say what no rule has seen, where one could have found something."""
    missing = change.unread
    if not unread and not missing.files:
        return
    everything = missing.lines + sum(map(_lines_of, change.files))
    lines = missing.lines + sum(map(_lines_of, unread.values()))
    paths = (*missing.paths, *unread)
    files = missing.files + len(unread)
    more = f" and {files - PATHS_SHOWN} more files" if files > PATHS_SHOWN else ""
    why = "; ".join(
        (*((missing.why,) if missing.files else ()), *(("reading the rest takes too long",) if unread else ()))
    )
    yield found(
        NOT_READ,
        Topic.CHECKS,
        Stand.ASK,
        at=("", "\0".join((missing.mark, *paths, *(file.added.whole for file in unread.values())))),
        where=paths[0] if paths else "the change",
        evidence=f"{everything - lines} of {everything} changed lines were read by the rules: {why}. Not read whole: "
        f"{', '.join(paths[:PATHS_SHOWN])}{more}",
        mend="a smaller change, or large data outside of the tree or in files that git ignores",
    )


def _lines_of(file: FilePatch) -> int:
    return file.added.lines + file.removed.lines


def still_stands(finding: Finding, change: Change) -> bool:
    """Return whether a change leaves what an earlier one was refused for: its line, or its file where it has none."""
    if finding.rule == NOT_READ and finding.where in change.unread.paths:
        return False  # What it is now has a finding of its own.
    for file in change.files:
        path, _, number = finding.where.rpartition(":")
        if file.path == finding.where or (number.isdigit() and path in (file.path, file.was) and file.deleted):
            return False
        lines = file.removed if path in (file.path, file.was) else ()
        at = ((path, line.text.strip()) for line in lines)
        if any(mark_of(finding.rule, place) == finding.fingerprint for place in at):
            return False
    return finding.where != "the change" or not change.files


_COPYLEFT = (
    "copyleft_dependency",
    Topic.LICENCE,
    Stand.NO,
    "a package with a licence that this project can keep, or a person's word that it can",
)
_MARKED = (
    "licence_of_added_code",
    Topic.LICENCE,
    Stand.NO,
    "own code, or code whose licence fits that of this project",
)
_LICENCE = ("licence_changed", Topic.LICENCE, Stand.ASK, "leave the licence as it is: its owner decides about it")
_NO_LICENCE = ("licence_removed", Topic.LICENCE, Stand.NO, _LICENCE[3])
_NOTICES = ("notice_removed", Topic.LICENCE, Stand.ASK, "keep copyright notices and licence headers")
_LOCK = (
    "lock_file_removed",
    Topic.DAMAGE,
    Stand.ASK,
    "keep the lock file, or write it anew with the tool that owns it",
)
_MASS = (
    "mass_deletion",
    Topic.DAMAGE,
    Stand.ASK,
    "announce what is to be deleted in the plan's scope, in smaller steps",
)


_OWN_WORDS = re.compile(r"\s*(?:#|//|/?\*|--|<!--|;|%|\"\"\"|[A-Z])")
_NOTICE = re.compile(r"SPDX-License-Identifier|copyright (?:\(c\)|©|\d{4})", re.IGNORECASE)
_NOTICE_WORDS = ("spdx-license-identifier", "copyright")


def _licences(seen: Seen) -> Iterator[Finding]:
    ecosystem = ecosystem_of(seen.file.path)
    if ecosystem:
        before = {package for line in seen.file.removed for package in named(ecosystem, line.text)}
        for line in seen.all_fresh():
            for package in named(ecosystem, line.text):
                if package not in before and (licence := licence_of(package)):
                    yield seen.tell(_COPYLEFT, line, f"{package.name} is {licence}")
    if re.match(r"(?:LICEN[CS]E|COPYING|NOTICE)(?:[.-]|$)", seen.file.name.upper()):
        yield from _licence_file(seen)
    elif not EXAMPLE.search(seen.file.path):
        for line in seen.near(LICENCE_WORDS):
            if licence_mark(line.text) and _OWN_WORDS.match(line.text):
                yield seen.tell(_MARKED, line)
                break
        yield from _notices(seen)


def _notices(seen: Seen) -> Iterator[Finding]:
    file = seen.file
    gone = (
        [] if file.deleted else [line for line in seen.among(file.removed, _NOTICE_WORDS) if _NOTICE.search(line.text)]
    )
    if not gone or len(seen.reading.watch.near(file.added, _NOTICE_WORDS)) >= len(gone):
        return
    if gone[0].text.strip() not in seen.reading.once(_all_lines):
        yield seen.tell(_NOTICES, gone[0])


def _all_lines(reading: Reading) -> frozenset[str]:
    return frozenset(text for file in reading.change.files for text in file.added.stripped)


def _licence_file(seen: Seen) -> Iterator[Finding]:
    def bare(lines: Iterable[Line]) -> list[str]:
        return [re.sub(r"\d{4}(?:\s*[-–]\s*\d{4})?|\s+", "", line.text) for line in lines]

    if seen.file.deleted:
        yield seen.tell(_NO_LICENCE, None, "the licence was deleted")
    elif seen.file.new and not seen.file.was:
        if re.search(r"\blicen[cs]e\b", seen.change.goal, re.IGNORECASE):
            return
        yield seen.tell(_LICENCE, None, "a licence was added: " + (seen.file.added[0].text if seen.file.added else ""))
    elif bare(seen.file.added) != bare(seen.file.removed):
        line = next(iter((*seen.file.added, *seen.file.removed)), None)
        yield seen.tell(_LICENCE, line)


def _deletions(change: Change, rubric: Rubric) -> Iterator[Finding]:
    deleted = [file for file in change.files if file.deleted and not GENERATED.search(file.path)]
    unannounced = deleted
    if change.scope:
        left = set(outside(change.scope, [file.path for file in deleted]))
        unannounced = [file for file in deleted if file.path in left]
    lost = sum(len(file.removed) for file in unannounced) + sum(
        max(len(file.removed) - len(file.added), 0)
        for file in change.files
        if not file.deleted and not GENERATED.search(file.path)
    )
    gained = sum(len(file.added) for file in change.files if file.new)
    share = max(lost - gained, 0) / change.lines_before if change.lines_before > 0 else 0.0
    if len(unannounced) >= rubric.deleted_files or (
        lost - gained >= rubric.deleted_lines and share >= rubric.deleted_share
    ):
        names = ", ".join(file.path for file in unannounced[:4])
        stand = Stand.NO if share >= 0.8 else Stand.ASK
        text = (
            f"{len(unannounced)} files deleted that the plan did not announce, {lost} lines lost ({share:.0%} of all): "
            f"{names}"
        )
        yield found(
            _MASS[0],
            _MASS[1],
            stand,
            at=("", "\n".join(file.path for file in unannounced)),
            where="the change",
            evidence=text,
            mend=_MASS[3],
        )
    names_now = {file.name for file in change.files if file.new}
    gone = {file.path for file in change.files if file.deleted}
    for file in deleted or [file for file in change.files if file.deleted]:
        if file.name in LOCK_FILES:
            manifest = file.path.removesuffix(file.name) + LOCK_FILES[file.name]
            if manifest not in gone and not names_now & LOCK_FILES.keys():
                text = "the lock file was deleted, its manifest was not"
                yield tell(file, _LOCK, None, text)


_RULES: tuple[Callable[[Seen], Iterator[Finding]], ...] = (_licences, tests_kept, ci_kept, configs_kept, scripts)
