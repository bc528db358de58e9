"""The page's patch parser: files, hunks, numbered lines and syntax highlighting."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup, escape
from pygments import lex
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_for_filename
from pygments.token import STANDARD_TYPES
from pygments.util import ClassNotFound
from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, Line, PatchedFile, PatchSet

COLLAPSED_LINES = 400
"""Number of changed lines in a file above which its diff is collapsed."""
PLAIN_LINES = 5_000
"""Number of changed lines in a file above which it is not highlighted, because 10 000 lines take 0.8 s."""
NOTHING = Markup()
SHOWN_LINES = 20_000
"""Maximum total number of lines, which a browser can still render. Further files are replaced with a note."""


@dataclass(frozen=True)
class CodeLine:
    """A line on one side of a diff."""

    number: int | None = None
    """Line number. None if this side has no such line."""
    html: Markup = NOTHING


@dataclass(frozen=True)
class Row:
    """Row of a side-by-side diff."""

    old: CodeLine
    new: CodeLine
    kind: str
    """`same`, `removed`, `added` or `changed`."""


@dataclass(frozen=True)
class FileView:
    """Diff of one file."""

    path: str
    was: str
    """Previous path of a renamed file. Empty otherwise."""
    added: int
    removed: int
    hunks: tuple[tuple[str, tuple[Row, ...]], ...]
    """Each hunk's heading and rows, with removed and added lines side by side."""
    note: str = ""

    @property
    def folded(self) -> bool:
        """True if the page initially collapses the diff."""
        return self.added + self.removed > COLLAPSED_LINES


def read_files(patch: str) -> tuple[FileView, ...]:
    """Parse a unified diff into files. If it cannot be parsed, return a single file that contains the text."""
    try:
        patch_set = PatchSet(_from_first_file(patch))
    except (UnidiffParseError, ValueError):
        rows = tuple(Row(CodeLine(), CodeLine(None, escape(line)), "same") for line in patch.splitlines())
        return (FileView("unparsed patch", "", 0, 0, (("", rows[:SHOWN_LINES]),)),)
    views, left = [], SHOWN_LINES
    for file in patch_set:
        size = sum(len(hunk) for hunk in file)
        views.append(_view(file) if size <= left else _view(file, note="too long to show here. Run: tightloop diff"))
        left -= min(size, left)
    return tuple(views)


def _from_first_file(patch: str) -> str:
    start = 0 if patch.startswith("diff --git ") else patch.find("\ndiff --git ") + 1
    return patch[start:]


def _view(file: PatchedFile, *, note: str = "") -> FileView:
    lexer = None if file.added + file.removed > PLAIN_LINES else _lexer(file.path)
    was = file.source_file.removeprefix("a/") if file.is_rename else ""
    if file.is_binary_file:
        note = "a binary file"
    hunks = () if note else tuple((_heading(hunk), tuple(_rows(hunk, lexer))) for hunk in file)
    return FileView(file.path, was, file.added, file.removed, hunks, note)


def _heading(hunk: Hunk) -> str:
    return f"@@ -{hunk.source_start},{hunk.source_length} +{hunk.target_start},{hunk.target_length} @@"


def _rows(hunk: Hunk, lexer: Lexer | None) -> Iterator[Row]:
    old = _highlight([line.value for line in hunk.source_lines()], lexer)
    new = _highlight([line.value for line in hunk.target_lines()], lexer)
    removed: list[CodeLine] = []
    added: list[CodeLine] = []
    for line in hunk:
        if line.is_removed:
            removed.append(CodeLine(line.source_line_no, next(old)))
        elif line.is_added:
            added.append(CodeLine(line.target_line_no, next(new)))
        elif line.is_context:
            yield from _pair_rows(removed, added)
            removed, added = [], []
            yield _unchanged_row(line, next(old), next(new))
    yield from _pair_rows(removed, added)


def _unchanged_row(line: Line, old: Markup, new: Markup) -> Row:
    return Row(CodeLine(line.source_line_no, old), CodeLine(line.target_line_no, new), "same")


def _pair_rows(removed: Sequence[CodeLine], added: Sequence[CodeLine]) -> Iterator[Row]:
    for at in range(max(len(removed), len(added))):
        old = removed[at] if at < len(removed) else CodeLine()
        new = added[at] if at < len(added) else CodeLine()
        kind = "changed" if old.number and new.number else "removed" if old.number else "added"
        yield Row(old, new, kind)


# Pygments tries the patterns of all its lexers for every name.
@lru_cache(maxsize=64)
def _lexer(path: str) -> Lexer | None:
    try:
        # By default lexers strip and add line ends, which would shift the line numbers.
        return get_lexer_for_filename(path, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


def _highlight(lines: Sequence[str], lexer: Lexer | None) -> Iterator[Markup]:
    """Yield each line as highlighted HTML. Tokens that span several lines are split."""
    texts = [line.rstrip("\r\n") for line in lines]
    if lexer is None:
        yield from map(escape, texts)
        return
    finished_lines = 0
    parts: list[Markup] = []
    for token, text in lex("\n".join(texts), lexer):
        name = STANDARD_TYPES.get(token, "")
        # A token of several lines must close its tag at every line, each of which is a table cell.
        for number, piece in enumerate(text.split("\n")):
            if number:
                yield Markup().join(parts)
                parts, finished_lines = [], finished_lines + 1
            if piece:
                parts.append(Markup('<i class="{}">{}</i>').format(name, piece) if name else escape(piece))
    yield Markup().join(parts)
    # If the lexer dropped lines, show the rest without highlighting instead of shifting it.
    yield from map(escape, texts[finished_lines + 1 :])
