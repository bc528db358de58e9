"""The change between two plans: stored as a delta of diff-match-patch, shown as a word diff."""

import hashlib
import re
from collections.abc import Iterable

from diff_match_patch import diff_match_patch

from tightloop.value import Value
from tightloop.value.artifact import ArtifactRef

SEARCH_S = 0.15
"""After this time the rest counts as replaced; plans are small, a usual search takes a few milliseconds."""
DELTA_CHARACTERS = 500_000
"""Longer texts get no delta: splitting them is not bounded by `SEARCH_S`."""

_WORD = re.compile(r"\w+|\W")
_Step = tuple[int, str]
_MARKS = {-1: ("[-", "-]"), 0: ("", ""), 1: ("{+", "+}")}
"""As `git diff --word-diff` marks what was removed and added."""


class PlanDelta(Value):
    """How to turn the text of one plan into that of the next one."""

    base: ArtifactRef | None = None
    """The stored record of the plan before."""
    base_sha256: str = ""
    result_sha256: str = ""
    delta: str
    """Notation of diff-match-patch: `=n` keeps n characters, `-n` drops them, `+text` adds text, tabs between."""


def make_delta(old: str, new: str, base: ArtifactRef | None = None) -> PlanDelta | None:
    """Return the delta from one plan text to the next; None where they are too long."""
    if len(old) + len(new) > DELTA_CHARACTERS:
        return None
    delta: str = diff_match_patch().diff_toDelta(_steps(old, new))
    return PlanDelta(base=base, base_sha256=_digest(old), result_sha256=_digest(new), delta=delta)


def show_delta(old: str, delta: PlanDelta) -> str:
    """Return a stored change as `show_change` shows it.

    Raises:
        ValueError: the delta was made for another text, or is damaged.
    """
    if _digest(old) != delta.base_sha256:
        raise ValueError(f"the delta was made for the plan {delta.base_sha256[:12]}, not for {_digest(old)[:12]}")
    steps: list[_Step] = diff_match_patch().diff_fromDelta(old, delta.delta)
    if _digest("".join(text for kind, text in steps if kind >= 0)) != delta.result_sha256:
        raise ValueError(f"the delta does not lead to the plan {delta.result_sha256[:12]}: it is damaged")
    return _mark_changes(steps)


def show_change(old: str, new: str) -> str:
    """Return the changed lines with what was `[-removed-]` and `{+added+}`; empty where nothing changed."""
    return _mark_changes(_steps(old, new))


def _steps(old: str, new: str) -> list[_Step]:
    # Each word stands as one character for the search: whole words are replaced, not parts of them. The characters
    # begin after the surrogates, which are not allowed alone.
    words: dict[str, str] = {}
    coded = [
        "".join(words.setdefault(word, chr(0xE000 + len(words))) for word in _WORD.findall(it)) for it in (old, new)
    ]
    decoded = {code: word for word, code in words.items()}
    engine = diff_match_patch()
    engine.Diff_Timeout = SEARCH_S
    steps: list[_Step] = engine.diff_main(*coded, checklines=False)
    engine.diff_cleanupSemantic(steps)
    return [(kind, "".join(map(decoded.__getitem__, codes))) for kind, codes in steps]


def _mark_changes(steps: Iterable[_Step]) -> str:
    lines: list[str] = []
    line, changed = "", False
    for kind, text in steps:
        before, after = _MARKS[kind]
        for number, piece in enumerate(text.split("\n")):
            if number:
                lines += [line] if changed else []
                line, changed = "", False
            line += f"{before}{piece}{after}" if piece else ""
            changed = changed or (kind != 0 and bool(piece))
    return "\n".join([*lines, line] if changed else lines)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
