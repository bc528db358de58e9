"""Detection of new work in a change, independent of the checks.

New work means that lines appear or disappear that the episode has not touched before. Comments and white space do not
count. Neither do changes to a number that was already changed, text repeated in a log or another file, or another
attempt at text that the episode itself wrote.
"""

import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence

from tightloop.episode.failure import short_mark, without_frames, without_noise
from tightloop.episode.progress.tracking import Work
from tightloop.safety.change.patch import FilePatch

SAMPLE = 60
"""Maximum number of lines to remember per change. Larger changes are represented by a stable sample."""
TOUCHED = 6 * SAMPLE
"""Maximum number of marks: four changes (the length of the longest cycle), and their shapes."""
REWORK_SHARE = 0.5
"""Share of new lines above which the episode is considered to have replaced its own lines."""
COPY_LINES = 2
"""Minimum length of a new file that counts as a copy if its text occurred before."""
NOTE_LINES = 1
"""Maximum number of lines added to a text that no check names that count as a note rather than as work."""
FEW_LINES = 2
"""Maximum number of lines that count as repeated if only their words differ."""
FORMS = 20
"""Number of lines per change whose form is remembered."""
OUTPUT_WORDS = 80
"""Maximum number of words in the output of the checks to compare. Longer outputs use a stable sample."""
REMEMBERED_WORDS = 4 * OUTPUT_WORDS
"""Maximum number of words to remember."""
_MARK = 4

_COMMENT = re.compile(
    r"^(?:#(?!\s*(?:include|define|undef|if|ifdef|ifndef|else|elif|endif|pragma|error)\b)|//|--\s|/\*|\*(?:\s|/|$)|<!--)"
)
_REMARK = re.compile(r"\s(?:#|//)\s.*$")
# Includes names without extension, except those of build files.
_PROSE = re.compile(
    r"(?:^|/)(?!\w*(?:file|BUILD|WORKSPACE)$)[^./]+$|\.(?:txt|md|rst|adoc|log|out|jsonl)$", re.IGNORECASE
)
_TEST = re.compile(r"(?:^|[/_.-])(?:tests?|specs?)(?:[/_.-]|$)|Test\w*\.\w+$")
# A command that does not reveal its inputs.
_HIDDEN = re.compile(r"(?:[\w./-]+ )?[\w./-]+\.(?:sh|py|js|rb|pl)|make(?: [\w-]+)?|(?:npm|yarn) (?:run )?[\w-]+")
_LOG = re.compile(r"\.(?:log|out|jsonl)$")
_SPACE = re.compile(r"(?<=\W) | (?=\W)")
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"\w+(?:[./-]\w+)*")
# `x7k2q` is the id of a run, `F401` a name.
_ID = re.compile(r"\d[A-Za-z]+\d")
_DIGITS = re.compile(r"\d+(?:\.\d+)?")


def weigh_work(
    files: Iterable[FilePatch], touched: str, outputs: Iterable[str], *, same_error: bool = False
) -> tuple[Work, str]:
    """Return the type of a change, and the updated marks to remember.

    Args:
        files: the change.
        touched: marks of the lines touched by earlier changes, as returned by the previous call, oldest first.
        outputs: commands and output of the checks. A text that they name counts as work and not just as a log.
        same_error: whether the checks print the same error as before, in which case a change similar to an earlier one
            is another attempt.
    """
    known_marks = {touched[at : at + _MARK] for at in range(0, len(touched), _MARK)}
    # Without digits, because a log such as run-3.log has another name every time.
    names = _DIGITS.sub("#", "\n".join(outputs))
    sides = [_Sides(file, is_log=_is_log(file.path, names)) for file in files]
    moved = {line for side in sides for line in side.added if line} & {line for side in sides for line in side.removed}
    new_sides = [side for side in sides if side.text not in known_marks]
    added = _sample(line_mark for side in new_sides for line_mark in side.marks(side.path, side.added))
    removed = _sample(line_mark for side in sides for line_mark in side.marks(side.was, side.removed))
    replaced = _sample(
        line_mark for side in sides for line_mark in side.marks(side.was, side.list_replaced_lines(moved))
    )
    shapes = _sample(shape for side in sides for shape in side.shapes(side.added))
    # A number in a new position is work; the same position again is another attempt.
    tuned = _sample(shape for side in sides for shape in side.shapes(side.numbers))
    new = (added | removed | tuned) - known_marks
    forms = _forms(sides)
    seen_marks = shapes | forms | {side.text for side in sides if side.text}
    # Sorted, because the order of a set of strings differs between processes, and a retry must give the same.
    memory = (touched + "".join(sorted(new | (seen_marks - known_marks))))[-TOUCHED * _MARK :]
    # Removed lines undo something, so the change is not the same attempt again.
    tried = same_error and not removed
    if not new or (tried and shapes and shapes <= known_marks):
        changed = any(side.numbers or ((side.added or side.removed) and not side.is_log) for side in sides)
        return (Work.AGAIN if changed else Work.NOTHING), memory
    texts = _sample(line_mark for side in sides if side.is_log for line_mark in side.marks(side.path, side.added))
    if new <= texts or (tried and forms and forms <= known_marks):
        return Work.DOUBTFUL, memory
    return (Work.REWORK if len(replaced & known_marks) > REWORK_SHARE * len(new) else Work.NEW), memory


def compare_words(files: Iterable[FilePatch], output: str, earlier_marks: str) -> tuple[bool, bool, str]:
    """Return whether failing checks use a new word and print a new text, and the updated marks to remember.

    Numbers and other noise are not words. Words that the change itself introduced do not count as new.

    Args:
        files: the change.
        output: output of the checks.
        earlier_marks: marks of the words in earlier runs, as returned by the previous call, oldest first.
    """
    output = without_frames(output)
    known_marks = {earlier_marks[at : at + _MARK] for at in range(0, len(earlier_marks), _MARK)}
    text = short_mark(f"=\n{without_noise(output, numbers=False)}")
    names = {name for name in _NAME.findall(without_noise(output)) if not _ID.search(name)}
    # Sorted by mark, so that the sample does not depend on the order of the output.
    marks = dict(sorted((short_mark(name), name) for name in names)[:OUTPUT_WORDS])
    brought = Counter[str]()
    lines = set(map(str.strip, output.split("\n")))
    for file in files:
        # A file that is printed verbatim, such as a report, is output of the checks.
        if file.new or file.was:
            brought.update(_WORD.findall(file.path))
        if lines.isdisjoint(file.added.stripped):
            brought.update(_WORD.findall(file.added.whole))
            # Words that only moved were not introduced by the change.
            brought.subtract(_WORD.findall(file.removed.whole))
    new = (name for name_mark, name in marks.items() if name_mark not in known_marks)
    news = any(any(brought[part] <= 0 for part in _WORD.findall(name)) for name in new)
    memory = earlier_marks + "".join(name_mark for name_mark in (*marks, text) if name_mark not in known_marks)
    return news, text not in known_marks, memory[-REMEMBERED_WORDS * _MARK :]


def is_test(path: str) -> bool:
    """Return whether a file is part of the tests."""
    return bool(_TEST.search(path))


def only_tests(files: Iterable[FilePatch]) -> bool:
    """Return whether a change only adds tests, which may fail without breaking anything."""
    changed = tuple(files)
    return bool(changed) and all(is_test(file.path) and not (file.removed or file.deleted) for file in changed)


class _Sides:
    """The added and removed lines of a file, without comments and white space."""

    def __init__(self, file: FilePatch, *, is_log: bool) -> None:
        self.path, self.was, self.is_log = file.path, file.was or file.path, is_log
        self.new = file.new
        is_whole = file.new and len(file.added) >= COPY_LINES
        self.text = short_mark(f"=\n{file.added.whole}") if is_whole else ""
        added, removed = (Counter(filter(None, map(self._bare, lines.texts))) for lines in (file.added, file.removed))
        # Lines on both sides only moved within the file.
        self.added, self.removed = added - removed, removed - added
        if file.was or file.new or file.deleted:
            # Creating, deleting or renaming a file is a change even without lines.
            self.added += Counter() if file.deleted else Counter([""])
            self.removed += Counter() if file.new else Counter([""])
        elif not file.added and not file.removed:
            self.added = Counter(["binary"])
        if is_log and not file.new and not self.removed and len(self.added) <= NOTE_LINES:
            self.added = Counter()
        self.numbers = self._cancel_numbers()

    def shapes(self, lines: Iterable[str]) -> Iterable[str]:
        """Return the marks of the lines without their numbers."""
        return (short_mark(f"#{self.path}\n{_DIGITS.sub('#', line)}") for line in lines)

    def marks(self, path: str, lines: Iterable[str]) -> Iterable[str]:
        """Return the marks of lines in this file under one of its names."""
        # A note with the same text and another number is a copy.
        location = _DIGITS.sub("#", path) if self.is_log else path
        return (short_mark(f"{location}\n{line}") for line in lines)

    def list_replaced_lines(self, moved: Container[str]) -> Iterable[str]:
        """Yield the removed lines that were neither moved nor extended."""
        longer = [(line, _words(line)) for line in self.added]
        for old in self.removed:
            if old not in moved and not any(
                _words(old) < line_words or (old and old in line) for line, line_words in longer
            ):
                yield old

    def _bare(self, line: str) -> str:
        text = line.strip()
        if self.is_log:
            return without_noise(text)
        if not _PROSE.search(self.path):
            text = "" if _COMMENT.match(text) else _REMARK.sub("", text)
        return _SPACE.sub("", " ".join(text.split()))

    def _cancel_numbers(self) -> set[str]:
        """Remove pairs of lines that differ only in their numbers, and return their shapes."""
        removed_shapes = Counter[str]()
        for line, times in self.removed.items():
            removed_shapes[_DIGITS.sub("#", line)] += times
        pairs = [line for line in self.added if line and removed_shapes[_DIGITS.sub("#", line)]]
        shapes = {_DIGITS.sub("#", line) for line in pairs}
        for side in (self.added, self.removed):
            for line in [line for line in side if line and _DIGITS.sub("#", line) in shapes]:
                del side[line]
        return shapes


def _words(line: str) -> set[str]:
    return set(_WORD.findall(line))


def _forms(sides: Sequence[_Sides]) -> set[str]:
    """Return the marks of the added lines regardless of the file. Words are omitted for small changes."""
    lines = {line for side in sides for line in side.added if line}
    few = len(lines) <= FEW_LINES and not any(side.new for side in sides)
    return set(sorted({short_mark(f"+\n{_WORD.sub('w', line) if few else line}") for line in lines})[:FORMS])


def _sample(marks: Iterable[str]) -> set[str]:
    # Sorted, so that the sample of a large change is the same every time.
    return set(sorted(set(marks))[:SAMPLE])


def _is_log(path: str, names: str) -> bool:
    """Return whether a file is only meant to be read by people, as far as the checks show."""
    if not _PROSE.search(path):
        return False
    folder, _, name = _DIGITS.sub("#", path).rpartition("/")
    ending = name[name.rfind(".") :]
    # A script may read any file, so nothing but a log counts as unread.
    if "." in name and not _LOG.search(name) and _HIDDEN.fullmatch(names.strip()):
        return False
    # `ls docs` reads every file in the folder.
    is_named = folder and re.search(rf"(?<![\w./-]){re.escape(folder)}(?![\w.-])", names)
    return not (name in names or f"*{ending}" in names or is_named or (folder and f"{folder}/" in names))
