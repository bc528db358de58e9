"""The names of the workflows that a step starts."""

import hashlib
import re

NAME_CHARACTERS = 180
"""Bound of a child's id: it becomes part of a git ref, of which a file name bears 255 bytes."""


def child_id(plan_id: str, step: str, attempt: int, alternative: str = "") -> str:
    """Return the workflow id of what an attempt starts: `<plan>.<step>.<attempt>`, and `.<alternative>` of a branch.

    What git does not allow in a ref is replaced; names that are too long end with a hash of all of it.
    """
    parts = [_safe(step), str(attempt), *([_safe(alternative)] if alternative else [])]
    whole = ".".join([plan_id, *parts])
    if len(whole) <= NAME_CHARACTERS:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
    return f"{whole[: NAME_CHARACTERS - 13].rstrip('.')}-{digest}"


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)
