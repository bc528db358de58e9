"""What an iteration left in the tree that had not been there before, whatever the checks say about it.

Work goes on where lines appear or vanish that the episode has not touched before. Comments and space are not work, nor
are a number that was changed before, the same text again in a log or another file, or another try of what the episode
itself wrote.
"""

import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence

from tightloop.episode.failure import short_mark, without_frames, without_noise
from tightloop.episode.progress.tracking import Work
from tightloop.safety.change.patch import FilePatch

SAMPLE = 60
"""Lines of one change that are remembered; of a larger one always the same ones."""
TOUCHED = 6 * SAMPLE
"""Marks that are remembered in all: of four changes, as many as the longest circle has, with what they look like."""
REWORK_SHARE = 0.5
"""Share of the lines that are new, above which lines of the episode's own were replaced."""
COPY_LINES = 2
"""From so many lines on a new file with the text of an earlier one is a copy of it."""
NOTE_LINES = 1
"""So many lines that are put below a text which no check names are a note, not work."""
FEW_LINES = 2
"""So few lines are the same again where they differ in their words only."""
FORMS = 20
"""Lines of one change whose form is remembered."""
SAID = 80
"""Words of what the checks say that are compared; of more always the same ones."""
HEARD = 4 * SAID
"""Words that are remembered in all."""
_MARK = 4

_COMMENT = re.compile(
    r"^(?:#(?!\s*(?:include|define|undef|if|ifdef|ifndef|else|elif|endif|pragma|error)\b)|//|--\s|/\*|\*(?:\s|/|$)|<!--)"
)
_REMARK = re.compile(r"\s(?:#|//)\s.*$")
# Also names without an ending, but not those of files that build something.
_PROSE = re.compile(
    r"(?:^|/)(?!\w*(?:file|BUILD|WORKSPACE)$)[^./]+$|\.(?:txt|md|rst|adoc|log|out|jsonl)$", re.IGNORECASE
)
_TEST = re.compile(r"(?:^|[/_.-])(?:tests?|specs?)(?:[/_.-]|$)|Test\w*\.\w+$")
# A command that does not tell what it looks at.
_HIDDEN = re.compile(r"(?:[\w./-]+ )?[\w./-]+\.(?:sh|py|js|rb|pl)|make(?: [\w-]+)?|(?:npm|yarn) (?:run )?[\w-]+")
_LOG = re.compile(r"\.(?:log|out|jsonl)$")
_SPACE = re.compile(r"(?<=\W) | (?=\W)")
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"\w+(?:[./-]\w+)*")
# `x7k2q` is the id of a run, `F401` a name.
_ID = re.compile(r"\d[A-Za-z]+\d")
_DIGITS = re.compile(r"\d+(?:\.\d+)?")


def weigh_work(
    files: Iterable[FilePatch], touched: str, said: Iterable[str], *, same_error: bool = False
) -> tuple[Work, str]:
    """Return what a change amounts to, and what is to be remembered.

    Args:
        files: the change.
        touched: marks of the lines that earlier changes touched, as returned before; oldest first.
        said: what the checks run and print: a text that they name is work, not only a log.
        same_error: the checks print the error that they printed before: what looks like an earlier change is then
            another try.
    """
    known = {touched[at : at + _MARK] for at in range(0, len(touched), _MARK)}
    names = _DIGITS.sub("#", "\n".join(said))
    sides = [_Sides(file, is_log=_is_log(file.path, names)) for file in files]
    moved = {line for side in sides for line in side.added if line} & {line for side in sides for line in side.removed}
    fresh = [side for side in sides if side.text not in known]
    added = _sample(mark for side in fresh for mark in side.marks(side.path, side.added))
    removed = _sample(mark for side in sides for mark in side.marks(side.was, side.removed))
    replaced = _sample(mark for side in sides for mark in side.marks(side.was, side.replaced(moved)))
    shapes = _sample(mark for side in sides for mark in side.shapes(side.added))
    # A number in another place is work; the same one once more is another try.
    tuned = _sample(mark for side in sides for mark in side.shapes(side.numbers))
    new = (added | removed | tuned) - known
    forms = _forms(sides)
    seen = shapes | forms | {side.text for side in sides if side.text}
    memory = (touched + "".join(sorted(new | (seen - known))))[-TOUCHED * _MARK :]
    tried = same_error and not removed
    if not new or (tried and shapes and shapes <= known):
        changed = any(side.numbers or ((side.added or side.removed) and not side.is_log) for side in sides)
        return (Work.AGAIN if changed else Work.NOTHING), memory
    texts = _sample(mark for side in sides if side.is_log for mark in side.marks(side.path, side.added))
    if new <= texts or (tried and forms and forms <= known):
        return Work.DOUBTFUL, memory
    return (Work.REWORK if len(replaced & known) > REWORK_SHARE * len(new) else Work.NEW), memory


def hear(files: Iterable[FilePatch], said: str, heard: str) -> tuple[bool, bool, str]:
    """Return whether failing checks use a word, and print a text, that they never did, and what is to be remembered.

    Numbers and what else changes from run to run are not words; those that the change itself brought are no news.

    Args:
        files: the change.
        said: what the checks print.
        heard: marks of the words of earlier runs, as returned before; oldest first.
    """
    said = without_frames(said)
    known = {heard[at : at + _MARK] for at in range(0, len(heard), _MARK)}
    text = short_mark(f"=\n{without_noise(said, numbers=False)}")
    words = {word for word in _NAME.findall(without_noise(said)) if not _ID.search(word)}
    marks = dict(sorted((short_mark(word), word) for word in words)[:SAID])
    brought = Counter[str]()
    lines = set(map(str.strip, said.split("\n")))
    for file in files:
        # A file that is printed as it is, such as a report, is what the checks say.
        if file.new or file.was:
            brought.update(_WORD.findall(file.path))
        if lines.isdisjoint(file.added.stripped):
            brought.update(_WORD.findall(file.added.whole))
            brought.subtract(_WORD.findall(file.removed.whole))
    new = (word for mark, word in marks.items() if mark not in known)
    news = any(any(brought[part] <= 0 for part in _WORD.findall(word)) for word in new)
    memory = heard + "".join(mark for mark in (*marks, text) if mark not in known)
    return news, text not in known, memory[-HEARD * _MARK :]


def is_test(path: str) -> bool:
    """Return whether a file belongs to the tests."""
    return bool(_TEST.search(path))


def only_tests(files: Iterable[FilePatch]) -> bool:
    """Return whether a change adds tests and takes nothing away: they may fail, and nothing else can."""
    changed = tuple(files)
    return bool(changed) and all(is_test(file.path) and not (file.removed or file.deleted) for file in changed)


class _Sides:
    """The lines of one file that appeared and that vanished, without comments and space."""

    def __init__(self, file: FilePatch, *, is_log: bool) -> None:
        self.path, self.was, self.is_log = file.path, file.was or file.path, is_log
        self.new = file.new
        is_whole = file.new and len(file.added) >= COPY_LINES
        self.text = short_mark(f"=\n{file.added.whole}") if is_whole else ""
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

    def shapes(self, lines: Iterable[str]) -> Iterable[str]:
        """Return the marks of lines without their numbers."""
        return (short_mark(f"#{self.path}\n{_DIGITS.sub('#', line)}") for line in lines)

    def marks(self, path: str, lines: Iterable[str]) -> Iterable[str]:
        """Return the marks of lines of this file under one of its names."""
        # A note with another number and the same text is a copy.
        place = _DIGITS.sub("#", path) if self.is_log else path
        return (short_mark(f"{place}\n{line}") for line in lines)

    def replaced(self, moved: Container[str]) -> Iterable[str]:
        """Return the lines that went, but for those that moved or that another one extends."""
        longer = [(line, _words(line)) for line in self.added]
        for old in self.removed:
            if old not in moved and not any(_words(old) < words or (old and old in line) for line, words in longer):
                yield old

    def _bare(self, line: str) -> str:
        text = line.strip()
        if self.is_log:
            return without_noise(text)
        if not _PROSE.search(self.path):
            text = "" if _COMMENT.match(text) else _REMARK.sub("", text)
        return _SPACE.sub("", " ".join(text.split()))

    def _cancel_numbers(self) -> set[str]:
        """Take out the lines that differ from one that went in their numbers only; return them without numbers."""
        gone = Counter[str]()
        for line, times in self.removed.items():
            gone[_DIGITS.sub("#", line)] += times
        pairs = [line for line in self.added if line and gone[_DIGITS.sub("#", line)]]
        shapes = {_DIGITS.sub("#", line) for line in pairs}
        for side in (self.added, self.removed):
            for line in [line for line in side if line and _DIGITS.sub("#", line) in shapes]:
                del side[line]
        return shapes


def _words(line: str) -> set[str]:
    return set(_WORD.findall(line))


def _forms(sides: Sequence[_Sides]) -> set[str]:
    """Return the marks of the lines that appeared, wherever; of a few lines without their words."""
    lines = {line for side in sides for line in side.added if line}
    few = len(lines) <= FEW_LINES and not any(side.new for side in sides)
    return set(sorted({short_mark(f"+\n{_WORD.sub('w', line) if few else line}") for line in lines})[:FORMS])


def _sample(marks: Iterable[str]) -> set[str]:
    return set(sorted(set(marks))[:SAMPLE])


def _is_log(path: str, names: str) -> bool:
    """Return whether a file is only written for somebody to read, as far as the checks say."""
    if not _PROSE.search(path):
        return False
    folder, _, name = _DIGITS.sub("#", path).rpartition("/")
    ending = name[name.rfind(".") :]
    if "." in name and not _LOG.search(name) and _HIDDEN.fullmatch(names.strip()):
        return False
    # `ls docs` looks at each file in it.
    is_named = folder and re.search(rf"(?<![\w./-]){re.escape(folder)}(?![\w.-])", names)
    return not (name in names or f"*{ending}" in names or is_named or (folder and f"{folder}/" in names))
