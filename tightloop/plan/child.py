"""The names of the workflows that a step starts."""

import hashlib
import re

NAME_CHARACTERS = 180
"""Bound of a child's id: it becomes part of a git ref, of which a file name bears 255 bytes."""
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
"""What may not stand in a part of an id: git does not allow it in a ref, or it parts the parts."""
_MARKED = re.compile(r"-[0-9a-f]{12}\Z")
"""The end of a name that `_part` changed."""


def child_id(plan_id: str, step: str, attempt: int, alternative: str = "") -> str:
    """Return the workflow id of what an attempt starts: `<plan>.<step>.<attempt>`, and `.<alternative>` of a branch.

    It is different for different steps, attempts and alternatives of a plan. Names of letters, digits, `-` and `_`
    stand in it as they are; in others what git does not allow in a ref is replaced, and a hash of the name follows.
    Ids that are too long end with a hash of all of it.
    """
    return _bounded([plan_id, _part(step), str(attempt), *([_part(alternative)] if alternative else [])])


def ambiguous_child_id(plan_id: str, step: str, attempt: int, alternative: str = "") -> str:
    """Return the id without hashes of names, as histories have it: `a.b` and `a_b` share one."""
    step, alternative = _OTHER.sub("_", step), _OTHER.sub("_", alternative)
    return _bounded([plan_id, step, str(attempt), *([alternative] if alternative else [])])


def _bounded(parts: list[str]) -> str:
    whole = ".".join(parts)
    if len(whole) <= NAME_CHARACTERS:
        return whole
    return f"{whole[: NAME_CHARACTERS - 13].rstrip('.')}-{_digest(whole)}"


def _part(name: str) -> str:
    readable = _OTHER.sub("_", name)
    # A name that looks like a changed one could be the same as it.
    return name if readable == name and not _MARKED.search(name) else f"{readable}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
