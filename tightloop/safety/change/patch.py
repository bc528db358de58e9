"""The git patch of a change, parsed file by file."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, overload

from tightloop.safety.announcement import RequestedChanges
from tightloop.safety.approval import DIFF_CHARACTERS, DIFF_LINES, FILES_LIMIT, FileVersion, ShownChange
from tightloop.value import shorten
from tightloop.value.scrub import scrub

LINE_CHARACTERS = 2_000
"""Maximum length of a line. Longer lines are split into pieces that overlap by `OVERLAP_CHARACTERS` or half of it."""
OVERLAP_CHARACTERS = 200
CUT = "[...] "


class Line(NamedTuple):
    """The number and text of a line, or of a part of a long line."""

    number: int
    text: str


class Lines(Sequence[Line]):
    """The lines on one side of a file's patch. Line numbers and search results are computed lazily."""

    def __init__(
        self, texts: Sequence[str] = (), numbers: Callable[[], Sequence[int]] = tuple, *, lines: int | None = None
    ) -> None:
        self.texts = texts
        self.lines = len(texts) if lines is None else lines
        self._numbers = numbers

    @cached_property
    def numbers(self) -> Sequence[int]:
        return self._numbers()

    @cached_property
    def stripped(self) -> list[str]:
        """The lines without surrounding white space."""
        return [text.strip() for text in self.texts]

    @cached_property
    def whole(self) -> str:
        return "\n".join(self.texts)

    @cached_property
    def folded(self) -> str:
        """All lines as one lowercase string. The length does not change."""
        return fold(self.whole)

    @cached_property
    def starts(self) -> list[int]:
        """Offset of each line in the joined text."""
        return list(accumulate((len(text) + 1 for text in self.texts[:-1]), initial=0))

    @cached_property
    def by_number(self) -> dict[int, str]:
        """Lines by number. If a number occurs twice, the first line is used."""
        return dict(zip(reversed(self.numbers), reversed(self.texts), strict=True))

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, at: int) -> Line: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Line]: ...
    def __getitem__(self, at: int | slice) -> Line | Sequence[Line]:
        if isinstance(at, slice):
            return self.select(range(len(self.texts))[at])
        return Line(self.numbers[at], self.texts[at])

    def __iter__(self) -> Iterator[Line]:
        return map(Line, self.numbers, self.texts)

    def select(self, places: Sequence[int]) -> "Lines":
        return Lines([self.texts[at] for at in places], lambda: [self.numbers[at] for at in places])

    def find_lines(self, terms: Iterable[str]) -> Iterator[int]:
        """Yield the positions of the lines that contain any of the words, ignoring case.

        The words must be in lower case. The results are grouped by word, so the same line may occur more than
        once.
        """
        for term in terms:
            at = self.folded.find(term)
            while at >= 0:
                position = bisect_right(self.starts, at)
                yield position - 1
                at = self.folded.find(term, self.starts[position]) if position < len(self.texts) else -1


NOTHING = Lines()


def fold(text: str) -> str:
    """Convert a string to lower case without changing its length."""
    return text.replace("\u0130", "I").lower()  # the one letter that becomes two in lower case


class FilePatch(NamedTuple):
    """Changes to a single file."""

    path: str
    was: str = ""
    """Path before the file was renamed."""
    added: Lines = NOTHING
    removed: Lines = NOTHING
    new: bool = False
    deleted: bool = False
    before: str = ""
    """Git id of the content before the change. Empty if the file did not exist or the patch does not contain the id."""
    after: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def versions(self) -> tuple[FileVersion, ...]:
        """Content of the file before and after the change. A rename counts as a deleted file and a new file."""
        if not (self.before or self.after):
            return ()
        if self.was:
            return FileVersion(path=self.was, before=self.before), FileVersion(path=self.path, after=self.after)
        return (FileVersion(path=self.path, before=self.before, after=self.after),)


class Unread(NamedTuple):
    """The parts of a change that are missing from its patch."""

    paths: tuple[str, ...] = ()
    """Text files that the rules would have read."""
    files: int = 0
    """Number of these files. The list in `paths` may be incomplete."""
    lines: int = 0
    """Number of changed lines in these files. It may be an estimate."""
    why: str = ""
    mark: str = ""
    """Id of the content, such as the tree id."""


class Change(NamedTuple):
    """The changes made by an iteration, in the form that the rules use."""

    files: tuple[FilePatch, ...] = ()
    goal: str = ""
    """The goal, combined with the titles of the plan's steps."""
    requested: RequestedChanges = RequestedChanges()
    """Changes to tests and configuration that a person asked for."""
    scope: tuple[str, ...] = ()
    """Scope that the plan announced."""
    lines_before: int = 0
    cpu_s: float | None = None
    wall_s: float = 0.0
    unread: Unread = Unread()


def read_patch(patch: str) -> tuple[FilePatch, ...]:
    """Parse a unified git diff. If the diff is truncated, return only the files before the cut."""
    return tuple(map(_file, _sections(patch)))


def _sections(patch: str) -> list[str]:
    # At line starts only: each line of a file has a sign in front, so its text cannot start another file.
    return re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]


def show_change(patch: str, paths: Iterable[str], command: str) -> ShownChange:
    """Return the part of a patch that a question shows.

    Args:
        patch: the complete patch.
        paths: files to show. If empty, all files are shown.
        command: shell command that prints the complete diff.
    """
    wanted = frozenset(paths)
    pages = [(_file(text), text) for text in _sections(patch)]
    about = [page for page in pages if not wanted.isdisjoint((page[0].path, page[0].was))]
    lines = [line for _, text in (about if wanted else pages) for line in _readable(text)]
    # Scrubbed together: a key may span several lines.
    shown = scrub("\n".join(line[:LINE_CHARACTERS] for line in lines[:DIFF_LINES])).split("\n")
    versions = [version for file, _ in about for version in file.versions]
    return ShownChange(
        files=tuple(versions[:FILES_LIMIT]),
        lines=tuple(shorten(line, DIFF_CHARACTERS) for line in shown if line),
        more=max(len(lines) - DIFF_LINES, 0),
        command=command,
    )


def limit_patch(patch: str, characters: int) -> tuple[str, int]:
    """Shorten a patch. Also return the number of files that were cut or dropped.

    Binary content is removed. The smallest files come first, so that a large generated file does not
    displace the others.
    """
    sections = sorted((text.partition("GIT binary patch\n")[0] for text in _sections(patch)), key=len)
    shown, left, incomplete = list[str](), characters, 0
    for text in sections:
        if len(text) > left:
            incomplete += 1
            # Whole lines only, because part of a line could be misread.
            text = text[: text.rfind("\n", 0, left) + 1] if left > 0 else ""
        shown.append(text)
        left -= len(text)
    return "".join(shown), incomplete


def find_quoted_line(files: Iterable[FilePatch], path: str, quote: str) -> tuple[str, str] | None:
    """Find the added or removed line that matches a quotation.

    Return the file and the line, formatted as `path:number: text`. White space may differ, and the
    quotation may start with the line's `+` or `-`.
    """
    plain = " ".join(quote.split())
    wanted = {plain, plain[1:].strip()} if plain.startswith(("+", "-")) else {plain}
    # A lone bracket or an empty line says nothing.
    if not re.search(r"\w", plain):
        return None
    for file in files:
        if file.path in (path, path.removeprefix("b/")):
            for lines, sign in ((file.added, ""), (file.removed, "removed: ")):
                for line in lines:
                    if " ".join(line.text.split()) in wanted:
                        return file.path, f"{file.path}:{line.number}: {sign}{line.text.strip()}"
    return None


def _readable(section: str) -> list[str]:
    """Return the lines of a file's patch without IDs and binary content."""
    head, binary, _ = section.partition("GIT binary patch\n")
    lines = [line for line in head.splitlines() if not line.startswith(("index ", "similarity index "))]
    # The first line only repeats the paths of `---` and `+++`.
    lines = lines[1:] if any(line.startswith("--- ") for line in lines) else lines
    return [*lines, "binary content"] if binary else lines


class _Hunk(NamedTuple):
    old: int
    new: int
    body: list[str]


_NAMED = re.compile(r"^(new file mode|deleted file mode|rename from|rename to|---|\+\+\+) ?(.*)", re.MULTILINE)
_INDEX = re.compile(r"^index ([0-9a-f]+)\.\.([0-9a-f]+)", re.MULTILINE)
_COUNTS = re.compile(r"(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_MARK = "\n@@ -"
"""Text that cannot occur in a line of a file, because every line starts with a sign."""


def _file(part: str) -> FilePatch:
    first, *parts = part.split(_MARK)
    head = {name: _path(value) for name, value in _NAMED.findall(first)}
    ids = _INDEX.search(first)
    counted = [(counts, text) for text in parts if (counts := _COUNTS.match(text))]
    hunks = [_Hunk(int(counts[1]), int(counts[2]), text.split("\n")[1:]) for counts, text in counted]
    # The new side of a deleted file is /dev/null.
    path = head.get("rename to") or _read_path(head, "+++") or _read_path(head, "---")
    if not path:
        # Without lines (binary, empty) only the first line has the path, with a prefix on both sides.
        both = re.match(r'diff --git ("?)a/(.*?)"? (?P<new>"?b/(.*?)"?)$', first.partition("\n")[0])
        path = _path(both["new"]).removeprefix("b/") if both else ""
    return FilePatch(
        path,
        head.get("rename from", ""),
        _side(hunks, "+"),
        _side(hunks, "-"),
        "new file mode" in head,
        "deleted file mode" in head,
        *(("" if not name.strip("0") else name for name in ids.groups()) if ids else ()),
    )


def _side(hunks: list[_Hunk], sign: str) -> Lines:
    texts = [line[1:] for hunk in hunks for line in hunk.body if line[:1] == sign]
    if not texts:
        return NOTHING
    # Files from Windows: patterns anchor at the end of a line.
    if any(text.endswith("\r") for text in texts):
        texts = [text.removesuffix("\r") for text in texts]

    def numbers() -> list[int]:
        return [number for hunk in hunks for number in _numbers(hunk, sign)]

    if max(map(len, texts)) <= LINE_CHARACTERS:
        return Lines(texts, numbers)
    pieces = [Line(number, piece) for number, text in zip(numbers(), texts, strict=True) for piece in _pieces(text)]
    line_numbers = [piece.number for piece in pieces]
    return Lines([piece.text for piece in pieces], lambda: line_numbers, lines=len(texts))


def _numbers(hunk: _Hunk, sign: str) -> Iterator[int]:
    number = hunk.new if sign == "+" else hunk.old
    for line in hunk.body:
        kind = line[:1]
        if kind == sign:
            yield number
        # An empty context line may have lost its leading space; `\ No newline` is not a line.
        number += kind in (sign, " ", "")


def _pieces(text: str) -> Iterator[str]:
    """Split a line that is too long into overlapping pieces.

    Every piece after the first starts with the mark of `clip`. The mark lets the scrubber recognise the
    rest of a key.
    """
    end = min(LINE_CHARACTERS, len(text))
    yield text[:end]
    while end < len(text):
        begin = end - OVERLAP_CHARACTERS
        space = _SPACE.search(text, begin, begin + OVERLAP_CHARACTERS // 2)
        end = min(begin + LINE_CHARACTERS, len(text))
        yield CUT + text[space.end() if space else begin : end]


_SPACE = re.compile(r"\s")
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2}|.)")
_CONTROLS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def _path(text: str) -> str:
    text = text.strip()
    if not text.startswith('"'):
        # git appends a tab to a name with spaces in the lines `---` and `+++`.
        return text.strip('"').split("\t")[0]
    raw = text.strip('"').encode("utf-8", "replace")
    plain = _ESCAPED.sub(
        lambda found: bytes([int(found[1], 8)]) if len(found[1]) == 3 else _CONTROLS.get(found[1], found[1]), raw
    )
    return plain.decode("utf-8", "backslashreplace")


def _read_path(head: dict[str, str], key: str) -> str:
    path = head.get(key, "")
    return "" if path == "/dev/null" else re.sub(r"^[ab]/", "", path)
