"""Glob patterns over the paths of a tree, matched in linear time whatever the pattern.

pathspec and `re` match by backtracking: seven `*a` against 60 letters take seconds, forty never end. Pydantic's engine
does not.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from pydantic_core import SchemaValidator, core_schema

from tightloop.errors import InvalidRequestError

PATTERN_CHARACTERS = 1_000
PATTERNS_LIMIT = 200
"""Patterns of one list: their number times that of the changed files is what judging a change takes."""

_PARTS = re.compile(r"(\*\*/|\*\*+|\*|\?)")
_AS_REGEX = {"?": "[^/]", "*": "[^/]*", "**/": "(?:.*/)?"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_WILD = re.compile(r"[*?]")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def fits(patterns: Iterable[str], path: str, *, folded: bool = False) -> bool:
    """Return whether one of the patterns covers a path below the root; raises as `covers` does.

    `*` and `?` stay within a folder, `**` crosses folders; a pattern whose last part has neither covers what is below.

    Args:
        patterns: such as `src/**/*.py`.
        path: with `/`, relative to the root.
        folded: without regard to case: on some file systems `.ENV` is `.env`.
    """
    if folded:
        patterns, path = map(str.casefold, patterns), path.casefold()
    bare = (pattern.removeprefix("./").rstrip("/") for pattern in patterns)
    return _matches(tuple((pattern, not _WILD.search(pattern.rpartition("/")[2])) for pattern in bare), path)


def covers(patterns: Iterable[str], path: str) -> bool:
    """Return whether one of the patterns fits a path or a folder above it.

    Raises:
        InvalidRequestError: a pattern has more than `PATTERN_CHARACTERS`.
    """
    return _matches(tuple((pattern, True) for pattern in patterns), path)


def find_excess(patterns: Sequence[str]) -> str:
    """Return why a list of patterns is too large to be matched, or ""."""
    if len(patterns) > PATTERNS_LIMIT:
        return f"{len(patterns)} patterns in one list; the maximum is {PATTERNS_LIMIT}"
    longest = max(patterns, key=len, default="")
    if len(longest) <= PATTERN_CHARACTERS:
        return ""
    return (
        f"the pattern {longest[:40]!r}... has {len(longest)} characters; the maximum is {PATTERN_CHARACTERS}. "
        "Shorten it, or write several"
    )


def find_pattern_fault(pattern: str) -> tuple[str, str] | None:
    """Return why a pattern does not cover paths of a tree as it seems to, and what to write; None if it is right."""
    bare = pattern.removeprefix("./").rstrip("/")
    parts = bare.split("/")
    from_root = "Write it from the root of the tree, such as `src/**`"
    if pattern.strip() in ("", ".", "./"):
        return f"the pattern '{pattern}' covers no path", "Write `**` for all files"
    if pattern != pattern.strip():
        return f"the pattern '{pattern}' has blanks around it", f"Write `{pattern.strip()}`"
    if pattern.startswith("!"):
        return f"the pattern '{pattern}' excludes nothing", "List what is meant; `policy.protect` excludes paths"
    if bare.startswith(("/", "~")) or re.match(r"[A-Za-z]:", bare) or ".." in parts:
        return f"the pattern '{pattern}' lies outside of the tree", from_root
    if "\\" in pattern:
        return f"the pattern '{pattern}' has a backslash", f"Write `{pattern.replace(chr(92), '/')}`"
    if "" in parts or "." in parts:
        return f"the pattern '{pattern}' covers no path", f"Write `{'/'.join(one for one in parts if one not in '.')}`"
    if found := _BRACES.search(bare):
        each = ", ".join(f"`{bare[: found.start()]}{one}{bare[found.end() :]}`" for one in found[1].split(","))
        return f"the pattern '{pattern}' has braces, which are not read", f"Write {each}"
    return None


def match_words(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether words fit a pattern of words: `*` is any text within a word, `**` alone any number of words."""
    return _match(pattern, words, "**", _match_word)


def _match_word(pattern: str, word: str) -> bool:
    return pattern == word if "*" not in pattern else _match(pattern, word, "*", str.__eq__)


def _match(pattern: Sequence[str], items: Sequence[str], star: str, fits_one: Callable[[str, str], bool]) -> bool:
    """Match items one by one, where `star` takes any number; time is at most the product of the lengths."""
    at, place, last, tried = 0, 0, -1, 0
    while place < len(items):
        # Of several stars only the last one ever needs to take more: what stands before it has been matched.
        if at < len(pattern) and pattern[at] == star:
            last, tried, at = at, place, at + 1
        elif at < len(pattern) and fits_one(pattern[at], items[place]):
            at, place = at + 1, place + 1
        elif last >= 0:
            tried += 1
            at, place = last + 1, tried
        else:
            return False
    return all(one == star for one in pattern[at:])


def _matches(patterns: tuple[tuple[str, bool], ...], path: str) -> bool:
    # Names of files that are not UTF-8 have half surrogates, which the engine cannot read.
    return bool(patterns) and _compiled(patterns).isinstance_python(_SURROGATE.sub("\ufffd", path))


# One expression for a list: a path costs half a microsecond, however many patterns there are.
@lru_cache(maxsize=256)
def _compiled(patterns: tuple[tuple[str, bool], ...]) -> SchemaValidator:
    """Compile patterns, each with whether it also covers what is below."""
    if excess := find_excess([max((pattern for pattern, _ in patterns), key=len)]):
        raise InvalidRequestError(excess)
    regex = "|".join(_as_regex(pattern) + (r"(?:/|\z)" if below else r"\z") for pattern, below in patterns)
    return SchemaValidator(core_schema.str_schema(pattern=rf"\A(?s:{regex})", regex_engine="rust-regex"))


def _as_regex(pattern: str) -> str:
    return "".join(
        _AS_REGEX.get(part) or (".*" if part.startswith("**") else re.escape(part))
        for part in _PARTS.split(_SURROGATE.sub("\ufffd", pattern))
    )
