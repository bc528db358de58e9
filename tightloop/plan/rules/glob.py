"""Glob patterns over the paths of a tree, as the policy of a plan has them."""

import re
from collections.abc import Iterable
from functools import lru_cache

_PARTS = re.compile(r"((?:\*\*/)+|\*\*+|\*|\?)")
_WILD = re.compile(r"[*?]")


def fits(patterns: Iterable[str], path: str, *, folded: bool = False) -> bool:
    """Return whether one of the patterns covers a path below the root.

    `*` and `?` stay within a folder, `**` crosses folders; a pattern whose last part has neither covers what is below.

    Args:
        patterns: such as `src/**/*.py`.
        path: with `/`, relative to the root.
        folded: without regard to case: on some file systems `.ENV` is `.env`.
    """
    return any(_expression(pattern, folded).fullmatch(path) for pattern in patterns)


@lru_cache(maxsize=1_024)
def _expression(pattern: str, folded: bool) -> re.Pattern[str]:
    bare = pattern.removeprefix("./").rstrip("/")
    text = "".join(map(_meaning, _PARTS.split(bare)))
    below = "" if _WILD.search(bare.rpartition("/")[2]) else "(?:/.*)?"
    return re.compile(text + below, re.DOTALL | (re.IGNORECASE if folded else 0))


def _meaning(part: str) -> str:
    if part.startswith("**"):
        return "(?:.*/)?" if part.endswith("/") else ".*"
    return {"*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part))
