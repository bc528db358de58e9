"""Compares texts: small ones here, big ones in a process of their own; the time is bounded for any input."""

from datetime import timedelta

from activities.tracking.delta import DeltaError, applied, common_ends, digest, one_block
from activities.tracking.port import TextDelta
from activities.tracking.similarity import LENGTH_LIMIT, similarity
from activities.tracking.text_process import compare_apart
from activities.tracking.text_steps import Compared, delta_of
from tightloop.errors import ArtifactCorruptError, InvalidRequestError

TEXT_BOUND = timedelta(milliseconds=400)
SMALL_LIMIT = 50_000
"""Characters of both texts together that are compared in this process; rapidfuzz holds the GIL 50 ms at most."""

SMALL_SEARCH_S = 0.15
ALL_LIMIT = 2 * LENGTH_LIMIT


def text_delta(old: str, new: str, *, bound: timedelta = TEXT_BOUND) -> TextDelta:
    """Return the difference of two texts, verified by applying it; in full where that is not larger.

    What is stored is never larger than the UTF-8 of the new text, but for a text that has none (with a surrogate
    without a partner): that is always a delta.
    """
    found = _compared(old, new, bound)
    delta = found.delta if found.delta is not None else _block(old, new)
    size = _size(new)
    smaller = delta is not None and (size is None or len(delta) < size)
    return TextDelta(
        base_sha256=digest(old),
        result_sha256=digest(new),
        kind="delta" if smaller else "full",
        body=delta if delta is not None and smaller else new,
        ratio=found.ratio,
        approximate=found.approximate,
    )


def apply_delta(old: str, delta: TextDelta) -> str:
    """Return the text that a recorded delta makes of `old`.

    Raises:
        InvalidRequestError: it was made for another text.
        ArtifactCorruptError: it does not lead to the text that it names.
    """
    if digest(old) != delta.base_sha256:
        raise InvalidRequestError(
            f"the delta was made for the text with SHA-256 {delta.base_sha256}, this one has {digest(old)}. "
            "Take the text of the checkpoint before it"
        )
    try:
        new = applied(old, delta.body) if delta.kind == "delta" else delta.body
    except DeltaError as error:
        raise ArtifactCorruptError(f"the delta to the text {delta.result_sha256} is damaged: {error}") from None
    if digest(new) != delta.result_sha256:
        raise ArtifactCorruptError(
            f"the delta leads to a text with SHA-256 {digest(new)}, not {delta.result_sha256}: it is damaged. "
            "Restore it from a backup of the artifacts"
        )
    return new


def _compared(old: str, new: str, bound: timedelta) -> Compared:
    if len(old) + len(new) <= SMALL_LIMIT:
        measured = similarity(old, new)
        return Compared(measured.ratio, measured.approximate, delta_of(old, new, search_s=SMALL_SEARCH_S))
    found = compare_apart(old, new, bound) if len(old) + len(new) <= ALL_LIMIT else None
    return found or _coarse(old, new)


def _coarse(old: str, new: str) -> Compared:
    """Take the common beginning and end only: the ratio is a lower bound, so the class is rather too low."""
    total = len(old) + len(new)
    equal = sum(common_ends(old, new))
    return Compared(2 * equal / total if total else 1.0, old != new, None)


def _block(old: str, new: str) -> str | None:
    """Return a delta of one block where it may be smaller than the text."""
    if _size(new) is not None and 2 * sum(common_ends(old, new)) < len(new):
        return None
    return one_block(old, new)


def _size(text: str) -> int | None:
    """Return the bytes of UTF-8, or None if the text has none."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None
