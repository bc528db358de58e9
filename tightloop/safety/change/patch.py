"""What a change is to the rules: the patch of git, file by file, and where a file belongs."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, overload

LINE_CHARACTERS = 2_000
"""A longer line is read in pieces that overlap by `OVERLAP_CHARACTERS`, or half of it."""
OVERLAP_CHARACTERS = 200
CUT = "[...] "


class Line(NamedTuple):
    """A line of a file, or a piece of a long one: its number, and its text."""

    number: int
    text: str


class Lines(Sequence[Line]):
    """One side of the patch of a file. Lines are numbered, and looked through, only when a rule asks for it."""

    def __init__(
        self, texts: Sequence[str] = (), numbers: Callable[[], Sequence[int]] = tuple, *, lines: int | None = None
    ) -> None:
        """Take the lines, what numbers them, and how many they are where some are in pieces."""
        self.texts = texts
        self.lines = len(texts) if lines is None else lines
        self._numbers = numbers

    @cached_property
    def numbers(self) -> Sequence[int]:
        return self._numbers()

    @cached_property
    def stripped(self) -> list[str]:
        """The lines without the space around them."""
        return [text.strip() for text in self.texts]

    @cached_property
    def whole(self) -> str:
        return "\n".join(self.texts)

    @cached_property
    def folded(self) -> str:
        """All lines as one text, in lower case; as long as the text itself."""
        return fold(self.whole)

    @cached_property
    def starts(self) -> list[int]:
        """Where each line begins in the whole text."""
        return list(accumulate((len(text) + 1 for text in self.texts[:-1]), initial=0))

    @cached_property
    def by_number(self) -> dict[int, str]:
        """Each line by its number; of equal numbers the first."""
        return dict(zip(reversed(self.numbers), reversed(self.texts), strict=True))

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, at: int) -> Line: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Line]: ...
    def __getitem__(self, at: int | slice) -> Line | Sequence[Line]:
        if isinstance(at, slice):
            return self.picked(range(len(self.texts))[at])
        return Line(self.numbers[at], self.texts[at])

    def __iter__(self) -> Iterator[Line]:
        return map(Line, self.numbers, self.texts)

    def picked(self, places: Sequence[int]) -> "Lines":
        return Lines([self.texts[at] for at in places], lambda: [self.numbers[at] for at in places])

    def near(self, words: Iterable[str]) -> Iterator[int]:
        """Return the places of the lines that contain one of some words, in any case, word by word.

        The words are in lower case. A line with two of them comes twice.
        """
        for word in words:
            at = self.folded.find(word)
            while at >= 0:
                place = bisect_right(self.starts, at)
                yield place - 1
                at = self.folded.find(word, self.starts[place]) if place < len(self.texts) else -1


NOTHING = Lines()


def fold(text: str) -> str:
    """Return a text in lower case, of the same length."""
    return text.replace("\u0130", "I").lower()  # the one letter that becomes two in lower case


class FilePatch(NamedTuple):
    """What a patch does to one file."""

    path: str
    was: str = ""
    """Its path before, if it was renamed."""
    added: Lines = NOTHING
    removed: Lines = NOTHING
    new: bool = False
    deleted: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Unread(NamedTuple):
    """What of a change is not in its patch."""

    paths: tuple[str, ...] = ()
    """Files of text that rules would have looked at."""
    files: int = 0
    """How many these are; not all may be in `paths`."""
    lines: int = 0
    """Their changed lines, which may be an estimate."""
    why: str = ""
    mark: str = ""
    """What tells this content from any other, such as the id of the tree."""


class Change(NamedTuple):
    """What is known of the work of an iteration."""

    files: tuple[FilePatch, ...] = ()
    goal: str = ""
    """What was asked for, with the titles of the plan's steps."""
    scope: tuple[str, ...] = ()
    """What the plan said it would change."""
    lines_before: int = 0
    cpu_s: float | None = None
    wall_s: float = 0.0
    unread: Unread = Unread()


def read_patch(patch: str) -> tuple[FilePatch, ...]:
    """Return what a unified diff of git does to each file; a patch that was cut gives the files in it."""
    return tuple(map(_file, re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]))


class _Hunk(NamedTuple):
    old: int
    new: int
    body: list[str]


_NAMED = re.compile(r"^(new file mode|deleted file mode|rename from|rename to|---|\+\+\+) ?(.*)", re.MULTILINE)
_COUNTS = re.compile(r"(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_MARK = "\n@@ -"
"""No line of a file looks like that: each has a sign in front."""


def _file(part: str) -> FilePatch:
    first, *parts = part.split(_MARK)
    head = {name: _path(value) for name, value in _NAMED.findall(first)}
    counted = [(counts, text) for text in parts if (counts := _COUNTS.match(text))]
    hunks = [_Hunk(int(counts[1]), int(counts[2]), text.split("\n")[1:]) for counts, text in counted]
    path = head.get("rename to") or _named(head, "+++") or _named(head, "---")
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
    )


def _side(hunks: list[_Hunk], sign: str) -> Lines:
    texts = [line[1:] for hunk in hunks for line in hunk.body if line[:1] == sign]
    if not texts:
        return NOTHING
    # Files from Windows; patterns anchor at the end of a line.
    if any(text.endswith("\r") for text in texts):
        texts = [text.removesuffix("\r") for text in texts]

    def numbers() -> list[int]:
        return [number for hunk in hunks for number in _numbers(hunk, sign)]

    if max(map(len, texts)) <= LINE_CHARACTERS:
        return Lines(texts, numbers)
    pieces = [Line(number, piece) for number, text in zip(numbers(), texts, strict=True) for piece in _pieces(text)]
    known = [piece.number for piece in pieces]
    return Lines([piece.text for piece in pieces], lambda: known, lines=len(texts))


def _numbers(hunk: _Hunk, sign: str) -> Iterator[int]:
    number = hunk.new if sign == "+" else hunk.old
    for line in hunk.body:
        kind = line[:1]
        if kind == sign:
            yield number
        # An empty line of context may have lost the space in front; `\ No newline` is not a line.
        number += kind in (sign, " ", "")


def _pieces(text: str) -> Iterator[str]:
    """Cut a line; each piece but the first has the mark of `clip`, by which the scrubber knows the rest of a key."""
    end = min(LINE_CHARACTERS, len(text))
    yield text[:end]
    while end < len(text):
        begin = end - OVERLAP_CHARACTERS
        word = _SPACE.search(text, begin, begin + OVERLAP_CHARACTERS // 2)
        end = min(begin + LINE_CHARACTERS, len(text))
        yield CUT + text[word.end() if word else begin : end]


_SPACE = re.compile(r"\s")
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2}|.)")
_CONTROLS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def _path(text: str) -> str:
    text = text.strip()
    if not text.startswith('"'):
        return text.strip('"').split("\t")[0]
    raw = text.strip('"').encode("utf-8", "replace")
    plain = _ESCAPED.sub(
        lambda found: bytes([int(found[1], 8)]) if len(found[1]) == 3 else _CONTROLS.get(found[1], found[1]), raw
    )
    return plain.decode("utf-8", "backslashreplace")


def _named(head: dict[str, str], key: str) -> str:
    path = head.get(key, "")
    return "" if path == "/dev/null" else re.sub(r"^[ab]/", "", path)
