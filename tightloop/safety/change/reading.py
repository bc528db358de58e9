"""Reads changes within a time limit."""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from tightloop.safety.change.patch import Change, FilePatch, Line, Lines
from tightloop.safety.commands.rules import check_script, may_violate
from tightloop.safety.commands.shell import plain
from tightloop.safety.rubric import Finding, Verdict, Violation, make_finding
from tightloop.safety.scope import read_tables
from tightloop.value.scrub import find_secrets
from tightloop.value.toml import read_toml

PATTERNS, WORDS, VIOLATIONS = read_tables(read_toml("tightloop.safety.change", "rules.toml"))
TEST = PATTERNS["test"]
EXAMPLE = PATTERNS["example"]
GENERATED = PATTERNS["generated"]
"""Files that were not written by hand.

They may be deleted, but they are executed and imported like any other file.
"""


def is_data(path: str) -> bool:
    """Return whether a generated file contains only data. Code rules skip such files."""
    return bool(GENERATED.search(path) and PATTERNS["generated_data"].search(path))


BETWEEN_FILES = "\n" * 8
"""Separator that is longer than anything a scrubber rule can match, placed between files."""
PART_CHARACTERS = 16_000
"""Length of text that is scrubbed before the time limit is checked again."""
LINES_PER_CHECK = 16
POSITIONS_PER_CHECK = 1_000
LONG_CHARACTERS = 300
"""Minimum length of lines before which the time limit is always checked."""

T = TypeVar("T")


class OutOfTimeError(Exception):
    """Raised when the time for reading has run out. Caught by the reader of the change."""


class Deadline:
    """A time limit for reading. Unlimited by default."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0, bound_s: float = math.inf) -> None:
        """Start measuring the time.

        The clock measures CPU time in seconds, so that a busy machine reads as much as an idle one.
        """
        self._clock = clock
        self._begun = clock()
        self._bound_s = bound_s
        self._share = 1.0

    def allow(self, share: float) -> None:
        """Allow only the given share (from 0 to 1) of the time limit to be used.

        After that, `check_time` raises an error.
        """
        self._share = share

    @property
    def is_over(self) -> bool:
        return self._clock() - self._begun > self._bound_s * self._share

    def check_time(self) -> None:
        """Raise an error if there is no time left.

        Raises:
            OutOfTimeError: the time limit has been reached.
        """
        if self.is_over:
            raise OutOfTimeError

    def find_lines(self, lines: Lines, terms: tuple[str, ...]) -> list[int]:
        """Return the positions of the lines that contain any of the words, in order.

        Raises the same errors as `check_time`.
        """
        places: set[int] = set()
        for count, position in enumerate(lines.find_lines(terms)):
            if count % POSITIONS_PER_CHECK == 0:
                self.check_time()
            places.add(position)
        return sorted(places)

    def iterate_lines(self, lines: Lines, places: list[int] | range) -> Iterator[Line]:
        """Yield the lines at the given positions. Raises the same errors as `check_time`."""
        for count, at in enumerate(places):
            if count % LINES_PER_CHECK == 0 or len(lines.texts[at]) > LONG_CHARACTERS:
                self.check_time()
            yield Line(lines.numbers[at], lines.texts[at])


class MarkedLine(NamedTuple):
    """A line in which the scrubber found secrets or personal data."""

    position: int
    kinds: frozenset[str]


class ScanContext:
    """The change under review, with a cache for derived data."""

    def __init__(self, change: Change, watch: Deadline) -> None:
        self.change = change
        self.deadline = watch
        self._cache: dict[Hashable, Any] = {}

    def compute_once(self, make: Callable[["ScanContext"], T]) -> T:
        """Return the result of calling a function with this context. The result is cached."""
        if make not in self._cache:
            self._cache[make] = make(self)
        result: T = self._cache[make]
        return result

    def find_present_terms(self, terms: tuple[str, ...]) -> tuple[str, ...]:
        """Return the words that occur in any added line."""
        if terms not in self._cache:
            # Most words of most rules occur nowhere in a change, so they are not searched in each file.
            text = self.compute_once(_join_added_lines)
            self._cache[terms] = tuple(term for term in terms if term in text)
        live: tuple[str, ...] = self._cache[terms]
        return live

    def view_file(self, file: FilePatch) -> "FileView":
        """Prepare one file of the change for the rules."""
        removed_lines = self.compute_once(_find_removed_lines)
        stripped = file.added.stripped
        places = [at for at, text in enumerate(stripped) if text and text not in removed_lines]
        return FileView(self, file, file.added if len(places) == len(stripped) else file.added.select(places))


def _find_removed_lines(reading: ScanContext) -> frozenset[str]:
    """Return all lines that the change removes. A moved line does not count as new."""
    return frozenset(text for file in reading.change.files for text in file.removed.stripped)


def _join_added_lines(reading: ScanContext) -> str:
    return "\n".join(file.added.folded for file in reading.change.files if file.added)


class FileView(NamedTuple):
    """One file of a change, prepared for the rules."""

    reading: ScanContext
    file: FilePatch
    new_lines: Lines
    """Added lines that did not exist anywhere before."""

    @property
    def change(self) -> Change:
        return self.reading.change

    def find_lines(self, terms: tuple[str, ...]) -> Iterator[Line]:
        """Yield the new lines that contain any of the words.

        The words must be in lower case. Raises the same errors as `Deadline.check_time`.
        """
        return self.search_lines(self.new_lines, self.reading.find_present_terms(terms))

    def search_lines(self, lines: Lines, terms: tuple[str, ...]) -> Iterator[Line]:
        """Yield the given lines that contain any of the words.

        Raises the same errors as `Deadline.check_time`.
        """
        watch = self.reading.deadline
        return watch.iterate_lines(lines, watch.find_lines(lines, terms)) if terms and lines else iter(())

    def find_positions(self, terms: tuple[str, ...]) -> list[int]:
        """Return the positions of the new lines that contain any of the words."""
        return self.reading.deadline.find_lines(self.new_lines, self.reading.find_present_terms(terms))

    def all_fresh(self) -> Iterator[Line]:
        """Yield all new lines. Raises the same errors as `Deadline.check_time`."""
        return self.reading.deadline.iterate_lines(self.new_lines, range(len(self.new_lines)))

    def make_finding(self, violation: str, line: Line | None, evidence: str = "") -> Finding:
        """Return a finding for a violation in `rules.toml`, about a line or the whole file."""
        return make_file_finding(self.file, VIOLATIONS[violation], line, evidence)


def make_file_finding(file: FilePatch, rule: Violation, line: Line | None, evidence: str = "") -> Finding:
    """Return a finding for a rule, about a line or the whole file."""
    text = evidence or (line.text if line else file.path)
    where = f"{file.path}:{line.number}" if line else file.path
    # A finding about a whole file is about this content of it: a later change is another one.
    raw = line.text.strip() if line else f"{text}\0{file.after}"
    return make_finding(rule, at=(file.path, raw), evidence=text, where=where)


def find_matched_lines(
    views: Sequence[FileView | None], watch: Deadline
) -> tuple[dict[int, list[MarkedLine]], list[int]]:
    """Find the lines that the scrubber matches.

    Return the matched lines by file index, and the indexes of the files that were not read. The files are
    joined before scrubbing, because a scrubber call costs more than a small file.
    """
    files = [(at, view.new_lines) for at, view in enumerate(views) if view is not None and view.new_lines]
    begins = list(accumulate((len(new_lines.whole) + len(BETWEEN_FILES) for _, new_lines in files[:-1]), initial=0))
    whole = BETWEEN_FILES.join(new_lines.whole for _, new_lines in files)
    kinds: dict[tuple[int, int], set[str]] = {}
    left: list[int] = []
    for begin, end in _parts(whole):
        try:
            watch.check_time()
        except OutOfTimeError:
            left = [at for at, _ in files[bisect_right(begins, begin) - 1 :]]
            break
        for span in find_secrets(whole[begin:end]):
            for number, position in _places(files, begins, begin + span.start, begin + span.end):
                kinds.setdefault((files[number][0], position), set()).add(span.name)
    lines_by_file: dict[int, list[MarkedLine]] = {}
    for (at, position), names in sorted(kinds.items()):
        lines_by_file.setdefault(at, []).append(MarkedLine(position, frozenset(names)))
    return lines_by_file, left


def _parts(whole: str) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin < len(whole):
        # A part ends with a line, so that no secret within a line is cut.
        end = whole.find("\n", begin + PART_CHARACTERS)
        end = len(whole) if end < 0 else end
        yield begin, end
        begin = end + 1


def _places(files: list[tuple[int, Lines]], begins: list[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the file number and the line position of each line in a range of the joined text."""
    number = bisect_right(begins, start) - 1
    while number < len(files) and begins[number] < end:
        starts = files[number][1].starts
        first = max(bisect_right(starts, start - begins[number]) - 1, 0)
        for position in range(first, max(bisect_left(starts, end - begins[number]), first + 1)):
            yield number, position
        number += 1


COMMAND_CHARACTERS = 400
"""Maximum length of a code line that is searched for commands. Script lines are always read completely."""
SHOWN = 2
"""Number of findings in generated code that a joined finding quotes."""
COMMANDS_LIMIT = 2_000
"""Maximum number of distinct commands to parse per file. The rest is left to a person."""


def scripts(view: FileView) -> Iterator[Finding]:
    """Yield findings for the dangerous commands in a file."""
    path = view.file.path
    if is_data(path) or EXAMPLE.search(path) or (TEST.search(path) and not path.endswith((".sh", ".bash"))):
        return
    if path.endswith(".sql"):
        yield from _sql(view)
        return
    first = view.file.added.texts[0] if view.file.new and view.file.added else ""
    is_script = PATTERNS["script"].search(path) or PATTERNS["shebang"].match(first)
    yield from _commands(view, script=is_script is not None)
    for line in view.find_lines(WORDS["weak_hooks"]):
        if PATTERNS["weak_hooks"].search(line.text):
            yield view.make_finding("checks_weakened", line)


def join_generated_code(findings: Iterable[Finding], rules: Container[str] | None = None) -> list[Finding]:
    """Combine the findings in generated and vendored files into one finding.

    Libraries do many things that the model's own code must not do. A person can then allow or reject the
    whole library at once.

    Args:
        findings: all findings in the change.
        rules: the rules whose findings are combined. The default is all rules.
    """
    handwritten: list[Finding] = []
    joined: list[Finding] = []
    for finding in findings:
        is_joined = GENERATED.search(finding.path) and (rules is None or finding.rule in rules)
        (joined if is_joined else handwritten).append(finding)
    if not joined:
        return handwritten
    examples = "; ".join(f"{finding.where}: {finding.rule}: {finding.evidence}" for finding in joined[:SHOWN])
    more = f"; and {len(joined) - SHOWN} more" if len(joined) > SHOWN else ""
    prints = "\0".join(sorted({finding.fingerprint for finding in joined}))
    where = joined[0].path
    summary = make_finding(VIOLATIONS["generated_code"], at=("", prints), where=where, evidence=examples + more)
    return [*handwritten, summary.evolve(layer=joined[0].layer)]


def _commands(view: FileView, *, script: bool) -> Iterator[Finding]:
    path = view.file.path
    all_commands: set[str] = set()
    for line in _lines_with_commands(view, script=script):
        candidates = map(plain, _commands_in(line.text, path, script=script))
        # Generated scripts repeat lines thousands of times, so each text is parsed once.
        commands = [command for command in candidates if command not in all_commands and may_violate(command)]
        all_commands.update(commands)
        if len(all_commands) > COMMANDS_LIMIT:
            yield view.make_finding(
                "script_too_long", line, f"more than {COMMANDS_LIMIT} commands, so the rest were not read"
            )
            return
        for command in commands:
            for violation in check_script(command):
                # A file is not run at once: an ASK violation counts only if it is likely to do harm.
                may_harm = violation.rule == "sends_data" or (violation.rule == "risky_command" and "$" in command)
                if violation.verdict is Verdict.DENY or may_harm:
                    yield make_file_finding(view.file, violation, line)


def _lines_with_commands(view: FileView, *, script: bool) -> Iterator[Line]:
    if not script and not view.file.path.endswith((".yml", ".yaml", "package.json")):
        return view.find_lines(WORDS["code"])
    # Disguises are removed per line, not from the whole text: non-ASCII text may contain one.
    whole = view.new_lines.whole
    return view.all_fresh() if not whole.isascii() or may_violate(whole) else iter(())


def _commands_in(line: str, path: str, *, script: bool) -> Iterator[str]:
    stripped = line.strip()
    if stripped.startswith(("#", "//", "--", "*", "rem ")):
        return
    if path.endswith("package.json"):
        value = re.match(r"\"[\w:.-]+\"\s*:\s*\"((?:[^\"\\]|\\.)*)\"", stripped)
        # Values such as `^1.2` are versions of dependencies.
        if value and not re.fullmatch(r"[\^~<>=*\d].*", value[1]):
            yield value[1].replace('\\"', '"')
    elif re.search(r"\.ya?ml$", path):
        yield re.sub(r"^-?\s*(?:run|script|command)?:?\s*\|?-?\s*", "", stripped)
    elif script:
        # `echo` only prints, unless an operator passes its output on.
        if not re.match(r"(?:echo|printf)\b[^|;&>]*$", stripped):
            yield stripped.lstrip("@-")
    else:
        line = line[:COMMAND_CHARACTERS]
        for match in PATTERNS["in_code"].finditer(line):
            yield match[2]
        for match in PATTERNS["list_call"].finditer(line):
            yield " ".join(part.strip().strip("\"'") for part in match[1].split(","))
        if PATTERNS["whole_line"].search(line):
            yield line.strip()


def _sql(view: FileView) -> Iterator[Finding]:
    path, added = view.file.path, view.file.added
    # Down migrations and seeds drop tables on purpose.
    if re.search(r"down|rollback|revert|undo|seed|teardown|cleanup", path, re.IGNORECASE) or TEST.search(path):
        return
    dropping = view.reading.find_present_terms(WORDS["drop"])
    if not view.reading.deadline.find_lines(added, dropping):
        return
    created_by = (PATTERNS["created"].search(line.text) for line in view.search_lines(added, ("create",)))
    created = {match[1].lower() for match in created_by if match}
    back = next((line for line in view.search_lines(added, ("--",)) if PATTERNS["back"].search(line.text)), None)
    for line in view.search_lines(added, dropping):
        if back is not None and line.number >= back.number:
            return
        name = PATTERNS["dropped_table"].search(line.text)
        if PATTERNS["drop"].match(line.text) and not (name and name[1].lower() in created):
            yield view.make_finding("drops_data", line)
