"""Measures and compares two texts; the part of the text diff that takes time."""

from typing import NamedTuple

from diff_match_patch import diff_match_patch

from activities.tracking.delta import DeltaError, applied, written


class Compared(NamedTuple):
    """What is known of two texts."""

    ratio: float
    approximate: bool
    delta: str | None
    """Leads from the old text to the new one (tried); None: not known."""


def delta_of(old: str, new: str, *, search_s: float) -> str | None:
    """Return the delta of diff-match-patch, or None where it does not lead back to `new`.

    After `search_s` of search the rest of the text is one block; splitting and joining are outside of that bound.
    """
    engine = diff_match_patch()
    engine.Diff_Timeout = search_s
    try:
        delta = written(engine.diff_main(old, new, checklines=True))
        return delta if applied(old, delta) == new else None
    except (DeltaError, RecursionError):
        return None
