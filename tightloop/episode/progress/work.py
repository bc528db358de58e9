"""Detection of new work in a change, based on the changed files."""

import re
from collections import Counter
from collections.abc import Iterable

from tightloop.episode.failure import short_mark
from tightloop.safety.change.patch import FilePatch
from tightloop.value import Value

SAMPLE = 60
"""Maximum number of lines to remember per change. Larger changes are represented by a stable sample."""
LINES_REMEMBERED = 6 * SAMPLE
FILES_REMEMBERED = 400
_MARK = 4

_COMMENT = re.compile(
    r"^(?:#(?!\s*(?:include|define|undef|if|ifdef|ifndef|else|elif|endif|pragma|error)\b)|//|--\s|/\*|\*(?:\s|/|$)|<!--)"
)
_REMARK = re.compile(r"\s(?:#|//)\s.*$")
_PROSE = re.compile(r"\.(?:txt|md|rst|adoc)$", re.IGNORECASE)
_TEST = re.compile(r"(?:^|[/_.-])(?:tests?|specs?)(?:[/_.-]|$)|Test\w*\.\w+$")
_SPACE = re.compile(r"(?<=\W) | (?=\W)")
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+(?:\.\d+)?")


class Touched(Value):
    """Marks of the files and lines that an episode has changed, oldest first. The oldest ones are dropped."""

    files: str = ""
    lines: str = ""


def find_new_work(files: Iterable[FilePatch], touched: Touched) -> tuple[bool, Touched]:
    """Return whether a change contains new work, and the updated marks.

    A change is new work if it touches a file for the first time, or if it adds more new lines than it removes of the
    episode's own earlier lines. Removing a line of the original project counts like adding a line. Comments, white
    space and moved lines do not count, and repeated changes to the numbers in a line count once.
    """
    known_files, known_lines = _split(touched.files), _split(touched.lines)
    changed, new, undone = set[str](), set[str](), set[str]()
    for file in files:
        added, removed = _changed_lines(file)
        if not (added or removed):
            continue
        changed.add(short_mark(file.path))
        new |= _marks(file, added | removed) - known_lines
        undone |= _marks(file, (line for line in removed if not _is_extended(line, added))) & known_lines
    is_new = bool(changed - known_files) or len(new) > len(undone)
    # Sorted, because the order of a set of strings differs between processes, and a retry must give the same.
    return is_new, Touched(
        files=_join(touched.files, changed - known_files, FILES_REMEMBERED),
        lines=_join(touched.lines, new, LINES_REMEMBERED),
    )


def is_test(path: str) -> bool:
    """Return whether a file is part of the tests."""
    return bool(_TEST.search(path))


def _changed_lines(file: FilePatch) -> tuple[set[str], set[str]]:
    """Return the added and removed lines without comments, white space and lines that only moved."""
    added, removed = (
        Counter(filter(None, (_bare(file.path, line) for line in lines.texts))) for lines in (file.added, file.removed)
    )
    added, removed = added - removed, removed - added
    # Creating, deleting or renaming a file is a change even without lines.
    whole = {""} if file.was or file.new or file.deleted or not (file.added or file.removed) else set[str]()
    # Lines that differ only in their numbers are the same line.
    shapes = {_DIGITS.sub("#", line) for line in added} & {_DIGITS.sub("#", line) for line in removed}
    kept = {line for line in added if _DIGITS.sub("#", line) not in shapes}
    return kept | shapes | whole, {line for line in removed if _DIGITS.sub("#", line) not in shapes}


def _bare(path: str, line: str) -> str:
    text = line.strip()
    if not _PROSE.search(path):
        text = "" if _COMMENT.match(text) else _REMARK.sub("", text)
    return _SPACE.sub("", " ".join(text.split()))


def _is_extended(line: str, added: Iterable[str]) -> bool:
    words = set(_WORD.findall(line))
    return any(words < set(_WORD.findall(longer)) for longer in added)


def _marks(file: FilePatch, lines: Iterable[str]) -> set[str]:
    # Sorted, so that the sample of a large change is the same every time.
    return set(sorted({short_mark(f"{file.path}\n{line}") for line in lines})[:SAMPLE])


def _split(marks: str) -> set[str]:
    return {marks[at : at + _MARK] for at in range(0, len(marks), _MARK)}


def _join(marks: str, more: set[str], most: int) -> str:
    return (marks + "".join(sorted(more)))[-most * _MARK :]
