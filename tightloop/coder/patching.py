"""Search and replace for exactly one place in a file, without fuzzy matching.

Three strategies are tried in order, and the first one that matches is used: exact characters, whole lines without
trailing blanks, and whole lines with a constant indentation shift. Line endings are normalised for the comparison, but
the file keeps its own.
"""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import islice
from typing import NamedTuple

from tightloop.coder.model import number_lines
from tightloop.value import format_count

NEAR_LINES = 2
"""Number of context lines to show around the closest match."""
SHOWN_LINES = 30
PLACES_SHOWN = 10
PLACES_LIMIT = 1_000
"""Maximum number of matches to examine, because a file may consist of one letter repeated eight million times."""
COMPARED_LINES, COMPARED_CHARACTERS = 2_000, 200
"""Limits of the similarity search for the closest lines, which takes quadratic time."""
BYTE_ORDER_MARK = "\ufeff"


class PatchedText(NamedTuple):
    """The text of a file after a replacement, with the location of the change."""

    text: str
    line: int
    """Number of the first replaced line, starting at 1."""
    lines: int
    """Number of lines in the replacement."""
    how: str = ""
    """Strategy that found the match. Empty if the characters matched exactly."""


class PatchFailure(NamedTuple):
    """A replacement that failed. The file is unchanged."""

    reason: str
    """Reason for the failure and advice, addressed to the model."""


class _Replacement(NamedTuple):
    start: int
    end: int
    new: str


def patch(text: str, old: str, new: str) -> PatchedText | PatchFailure:
    """Replace the only match of `old` in `text`."""
    byte_order_mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
    file = _File(text[len(byte_order_mark) :])
    # A model may copy the mark from what it read, or leave it out; the file keeps its own either way.
    old, new = (_plain(part.removeprefix(BYTE_ORDER_MARK)) for part in (old, new))
    if not old:
        return PatchFailure("old is empty. Quote the lines to replace, or create a new file with create_file")
    if old == new:
        return PatchFailure("`old` and `new` are identical, so there is nothing to change")
    applied_starts: list[int] = []
    for how, places in _ways(file.plain, old, new):
        # If the new text contains the old one, an edit that is already applied would match again.
        starts_by_match = {match: _around(file.plain, match) for match in places}
        matches = [match for match, begin in starts_by_match.items() if begin is None]
        applied_starts += [begin for begin in starts_by_match.values() if begin is not None]
        if len(matches) == 1:
            match = matches[0]
            line = file.plain.count("\n", 0, match.start) + 1
            return PatchedText(byte_order_mark + file.replace(match), line, match.new.count("\n") + 1, how)
        # An ambiguous match is not left to a looser strategy, which could pick another place.
        if matches:
            lines = ", ".join(str(file.plain.count("\n", 0, match.start) + 1) for match in matches[:PLACES_SHOWN])
            more = f" and {len(matches) - PLACES_SHOWN} more" if len(matches) > PLACES_SHOWN else ""
            at = f"at lines {lines}{more}"
            return PatchFailure(f"`old` occurs {len(matches)} times, {at}. Include more of the surrounding lines")
    return _missing(file.plain, old, new, applied_starts)


class _File:
    """Text with normalized line endings. The original line endings are remembered."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.plain = _plain(text)
        self._returns = [match.start() for match in re.finditer("\r\n", text)]

    def replace(self, match: _Replacement) -> str:
        """Return the text with a match replaced.

        The new text uses the line endings of the replaced part. If there are none, it uses those of the file.
        """
        start, end = self._original(match.start), self._original(match.end)
        old = self._text[start:end]
        like = old if "\n" in old else self._text
        # By majority, because a file may have mixed line ends.
        is_dos = like.count("\r\n") * 2 > like.count("\n")
        return self._text[:start] + (match.new.replace("\n", "\r\n") if is_dos else match.new) + self._text[end:]

    def _original(self, at: int) -> int:
        # Each earlier CRLF is one character shorter in the normalised text.
        before = 0
        for number, position in enumerate(self._returns):
            if position - number >= at:
                break
            before = number + 1
        return at + before


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def _ways(text: str, old: str, new: str) -> Iterator[tuple[str, list[_Replacement]]]:
    exact = [_Replacement(at, at + len(old), new) for at in islice(_find_all(text, old), PLACES_LIMIT)]
    # A match that starts inside an indentation has a different one, so the remaining lines need shifting too.
    is_cut = old[0] in " \t" and "\n" in new.removesuffix("\n")
    yield "", [match for match in exact if not (is_cut and _cuts_indentation(text, match.start))]
    if old.strip():
        yield "without trailing whitespace", _find_lines(text, old, new, shifted=False)
        yield "with other indentation", _find_lines(text, old, new, shifted=True)


def _cuts_indentation(text: str, at: int) -> bool:
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return bool(before) and not before.strip()


def _find_all(text: str, part: str) -> Iterator[int]:
    """Yield the positions of all occurrences of a text, including overlapping ones."""
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _find_lines(text: str, old: str, new: str, *, shifted: bool) -> list[_Replacement]:
    """Return the replacements for lines that equal `old`, ignoring trailing blanks.

    If `shifted` is set, the indentation is ignored too.
    """
    # `_place` deals with the final newline: here it would hide a match in the last line of a file without one.
    old_lines = old.removesuffix("\n").split("\n")
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    # A blank line would match almost everywhere.
    anchor = next(number for number, line in enumerate(old_lines) if line.strip())
    matches: list[_Replacement] = []
    for first in range(len(lines) - len(old_lines) + 1):
        # Compare one line first: most candidates fail here.
        if lines[first + anchor].strip() != old_lines[anchor].strip():
            continue
        moved = _adapt_text(lines[first : first + len(old_lines)], old_lines, new, shifted=shifted)
        if moved is not None and len(matches) < PLACES_LIMIT:
            end = starts[first + len(old_lines)]
            matches.append(_place(text, starts[first], end, moved, old_ends=old.endswith("\n")))
    return matches


def _place(text: str, start: int, end: int, new: str, *, old_ends: bool) -> _Replacement:
    if end > len(text):
        # The last line of a file without a final newline, which it must not gain.
        new = new.removesuffix("\n") if old_ends else new
        # Deleting the last line takes the newline before it along: the file had none at its end before.
        if old_ends and not new:
            start = max(start - 1, 0)
        return _Replacement(start, len(text), new)
    return _Replacement(start, end if old_ends else end - 1, new)


def _adapt_text(lines: list[str], old_lines: list[str], new: str, *, shifted: bool) -> str | None:
    """Return the new text with the indentation of these lines, or None if the lines do not match."""
    if not shifted:
        return new if [line.rstrip() for line in lines] == [line.rstrip() for line in old_lines] else None
    shifts = set()
    for line, want in zip(lines, old_lines, strict=True):
        if line.strip() != want.strip():
            return None
        if want.strip():
            shifts.add(_shift(_indentation(line), _indentation(want)))
    # Different shifts mean another nesting, so this is another place.
    return _shift_text(new, *shifts.pop()) if len(shifts) == 1 else None


def _shift(has: str, old_indent: str) -> tuple[str, str]:
    """Return the indentation to add to each line, and the indentation to remove."""
    if has.endswith(old_indent):
        return has[: len(has) - len(old_indent)], ""
    if old_indent.endswith(has):
        return "", old_indent[: len(old_indent) - len(has)]
    # Neither extends the other, such as tabs and spaces. No source contains NUL, so `_shift_text` recognises the mark.
    return "\0", "\0"


def _shift_text(text: str, add: str, remove: str) -> str | None:
    """Shift the indentation of all lines. Return None if a line has too little indentation."""
    lines = text.split("\n")
    if "\0" in add or any(line.strip() and not line.startswith(remove) for line in lines):
        return None
    return "\n".join(add + line.removeprefix(remove) if line.strip() else line for line in lines)


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _around(text: str, match: _Replacement) -> int | None:
    """Return the position of the new text if it already surrounds the match, otherwise None."""
    old = text[match.start : match.end]
    for inside in islice(_find_all(match.new, old), PLACES_LIMIT):
        begin = match.start - inside
        if begin >= 0 and text.startswith(match.new, begin):
            return begin
    return None


def _missing(text: str, old: str, new: str, applied_starts: list[int]) -> PatchFailure:
    # White space alone occurs in every file, and would always look applied.
    starts = applied_starts or (list(islice(_find_all(text, new), 1)) if new.strip() else [])
    if starts:
        line = text.count("\n", 0, starts[0]) + 1
        excerpt = _around_line(text, line, new.count("\n") + 1)
        return PatchFailure(
            f"already applied: `new` is at line {line}, and `old` does not occur anywhere else\n{excerpt}"
        )
    nearest_line = _nearest(text.split("\n"), old.removesuffix("\n").split("\n"))
    if nearest_line is None:
        return PatchFailure("cannot find `old` in the file, or any similar line. Read the file and copy from it")
    excerpt = _around_line(text, nearest_line, old.count("\n") + 1)
    return PatchFailure(
        f"cannot find `old` in the file. Copy the text exactly, including whitespace. The closest lines are:\n{excerpt}"
    )


def _around_line(text: str, line: int, count: int) -> str:
    lines = text.split("\n")
    first = max(line - NEAR_LINES, 1)
    last = min(line + count - 1 + NEAR_LINES, first + SHOWN_LINES - 1)
    more = format_count(line + count - 1 - last, "line")
    return number_lines(lines[first - 1 : last], first) + (f"\n[... {more} more]" if last < line + count - 1 else "")


def _nearest(lines: list[str], old_lines: list[str]) -> int | None:
    """Return the number of the line at which most of `old_lines` match.

    If none match, return the number of the most similar line. Leading and trailing white space is ignored.
    """
    votes: dict[int, int] = {}
    at: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        at.setdefault(line.strip(), []).append(number)
    for number, want in enumerate(old_lines[:COMPARED_LINES]):
        # Frequent lines, such as a bracket, are no evidence.
        places = at.get(want.strip(), ()) if want.strip() else ()
        for position in places if len(places) <= PLACES_SHOWN else ():
            # Each matching line votes for the start that would put it into its place.
            votes[position - number] = votes.get(position - number, 0) + 1
    if votes:
        best = min(votes, key=lambda start: (-votes[start], start))
        return min(max(best, 0), len(lines) - 1) + 1
    return _most_alike(lines, old_lines)


def _most_alike(lines: list[str], old_lines: list[str]) -> int | None:
    first = next((want.strip() for want in old_lines if want.strip()), "")[:COMPARED_CHARACTERS]
    # It caches what it knows of its second sequence, so the constant one is the second.
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(first)
    # By difflib's documentation, a ratio above 0.6 is a close match.
    best, least = None, 0.6
    for number, line in enumerate(lines[:COMPARED_LINES], start=1):
        matcher.set_seq1(line.strip()[:COMPARED_CHARACTERS])
        # The upper bound first: it is much cheaper than the ratio.
        if matcher.quick_ratio() > least and (ratio := matcher.ratio()) > least:
            best, least = number, ratio
    return best
