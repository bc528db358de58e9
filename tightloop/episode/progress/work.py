"""What an iteration left in the tree that had not been there before, whatever the checks say about it.

Work goes on where lines appear or vanish that the episode has not touched before. Comments and space are not work, nor
are a line that differs from an old one in its numbers only, the same text again in a log, or another try of what the
episode itself wrote.
"""

import re
from collections import Counter
from collections.abc import Container, Iterable
from enum import StrEnum

from tightloop.episode.failure import short_mark, without_noise
from tightloop.safety.change.patch import FilePatch

SAMPLE = 60
"""Lines of one change that are remembered; of a larger one always the same ones."""
TOUCHED = 4 * SAMPLE
"""Lines that are remembered in all: of four changes, as many as the longest circle has."""
REWORK_SHARE = 0.5
"""Share of the lines that are new, above which lines of the episode's own were replaced."""
COPY_LINES = 3
"""From so many lines on a new file that is like an earlier one but for the number in its name is a copy of it."""
NOTE_LINES = 1
"""So many lines that are put below a text which no check names are a note, not work."""
_MARK = 4

_COMMENT = re.compile(
    r"^(?:#(?!\s*(?:include|define|undef|if|ifdef|ifndef|else|elif|endif|pragma|error)\b)|//|--\s|/\*|\*(?:\s|/|$)|<!--)"
)
_REMARK = re.compile(r"\s(?:#|//)\s.*$")
# Also names without an ending, but not those of files that build something.
_PROSE = re.compile(
    r"(?:^|/)(?!\w*(?:file|BUILD|WORKSPACE)$)[^./]+$|\.(?:txt|md|rst|adoc|log|out|jsonl)$", re.IGNORECASE
)
_SPACE = re.compile(r"(?<=\W) | (?=\W)")
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+(?:\.\d+)?")


class Work(StrEnum):
    """What a change amounts to."""

    NOTHING = "nothing"
    """No change, or only of comments and space, or the same text again in a log."""
    AGAIN = "again"
    """Only lines that were changed before, or only numbers in them."""
    REWORK = "rework"
    """New lines, in place of those that the episode itself wrote."""
    NEW = "new"
    """Lines that are new, or that went for the first time."""


def weigh_work(
    files: Iterable[FilePatch], touched: str, said: Iterable[str], *, same_error: bool = False
) -> tuple[Work, str]:
    """Return what a change amounts to, and what is to be remembered.

    Args:
        files: the change.
        touched: marks of the lines that earlier changes touched, as returned before; oldest first.
        said: what the checks run and print: a text that they name is work, not only a log.
        same_error: the checks print the error that they printed before: a line that differs from an earlier one in
            its numbers only is then another try.
    """
    known = {touched[at : at + _MARK] for at in range(0, len(touched), _MARK)}
    names = _DIGITS.sub("#", "\n".join(said))
    sides = [_Sides(file, is_log=_is_log(file.path, names)) for file in files]
    moved = {line for side in sides for line in side.added if line} & {line for side in sides for line in side.removed}
    added = _sample(mark for side in sides for mark in side.marks(side.path, side.added))
    removed = _sample(mark for side in sides for mark in side.marks(side.was, side.removed))
    replaced = _sample(mark for side in sides for mark in side.marks(side.was, side.replaced(moved)))
    shapes = _sample(mark for side in sides for mark in side.shapes())
    new = (added | removed) - known
    memory = (touched + "".join(sorted(new | (shapes - known))))[-TOUCHED * _MARK :]
    if not new or (same_error and shapes and not removed and shapes <= known):
        changed = any(side.numbers or ((side.added or side.removed) and not side.is_log) for side in sides)
        return (Work.AGAIN if changed else Work.NOTHING), memory
    return (Work.REWORK if len(replaced & known) > REWORK_SHARE * len(new) else Work.NEW), memory


class _Sides:
    """The lines of one file that appeared and that vanished, without comments and space."""

    def __init__(self, file: FilePatch, *, is_log: bool) -> None:
        self.path, self.was, self.is_log = file.path, file.was or file.path, is_log
        self.is_copy = file.new and len(file.added.texts) >= COPY_LINES
        added, removed = (Counter(filter(None, map(self._bare, lines.texts))) for lines in (file.added, file.removed))
        self.added, self.removed = added - removed, removed - added
        if file.was or file.new or file.deleted:
            # A file that appears, goes or gets another name is a change without a line, too.
            self.added += Counter() if file.deleted else Counter([""])
            self.removed += Counter() if file.new else Counter([""])
        elif not file.added and not file.removed:
            self.added = Counter(["binary"])
        if is_log and not file.new and not self.removed and len(self.added) <= NOTE_LINES:
            self.added = Counter()
        self.numbers = self._cancel_numbers()

    def shapes(self) -> Iterable[str]:
        """Return the marks of the lines that appeared, without their numbers."""
        return (short_mark(f"#{self.path}\n{_DIGITS.sub('#', line)}") for line in self.added)

    def marks(self, path: str, lines: Iterable[str]) -> Iterable[str]:
        """Return the marks of lines of this file under one of its names."""
        # A file with another number and the same text is a copy.
        place = _DIGITS.sub("#", path) if self.is_log or self.is_copy else path
        return (short_mark(f"{place}\n{line}") for line in lines)

    def replaced(self, moved: Container[str]) -> Iterable[str]:
        """Return the lines that went, but for those that moved or that another one extends."""
        longer = [_words(line) for line in self.added]
        return (line for line in self.removed if line not in moved and not any(_words(line) < more for more in longer))

    def _bare(self, line: str) -> str:
        text = line.strip()
        if self.is_log:
            return without_noise(text)
        if not _PROSE.search(self.path):
            text = "" if _COMMENT.match(text) else _REMARK.sub("", text)
        return _SPACE.sub("", " ".join(text.split()))

    def _cancel_numbers(self) -> bool:
        """Take out the lines that differ from one that went in their numbers only; return whether there were some."""
        gone = Counter[str]()
        for line, times in self.removed.items():
            gone[_DIGITS.sub("#", line)] += times
        pairs = [line for line in self.added if line and gone[_DIGITS.sub("#", line)]]
        shapes = {_DIGITS.sub("#", line) for line in pairs}
        for side in (self.added, self.removed):
            for line in [line for line in side if line and _DIGITS.sub("#", line) in shapes]:
                del side[line]
        return bool(shapes)


def _words(line: str) -> set[str]:
    return set(_WORD.findall(line))


def _sample(marks: Iterable[str]) -> set[str]:
    return set(sorted(set(marks))[:SAMPLE])


def _is_log(path: str, names: str) -> bool:
    """Return whether a file is only written for somebody to read, as far as the checks say."""
    name = _DIGITS.sub("#", path.rpartition("/")[2])
    return bool(_PROSE.search(path)) and name not in names
