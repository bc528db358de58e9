"""Scope of a run: paths as glob patterns, and network addresses."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, NamedTuple

from pydantic_core import SchemaValidator, core_schema

from tightloop.errors import InvalidRequestError
from tightloop.safety.rubric import Topic, Verdict, Violation
from tightloop.value.toml import read_toml

PATTERN_CHARACTERS = 1_000
PATTERNS_LIMIT = 200
"""Maximum number of patterns in a list.

The time to check a change is proportional to the number of patterns times the number of changed files.
"""

_PARTS = re.compile(r"(\*\*/|\*\*+|\*|\?)")
_AS_REGEX = {"?": "[^/]", "*": "[^/]*", "**/": "(?:.*/)?"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_WILD = re.compile(r"[*?]")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def fits(patterns: Iterable[str], path: str, *, folded: bool = False) -> bool:
    """Return whether any pattern matches a path below the root. Raises the same errors as `covers`.

    `*` and `?` match within a folder, and `**` matches across folders. A pattern whose last part has no
    wildcard also matches everything below it.

    Args:
        patterns: patterns such as `src/**/*.py`.
        path: path relative to the root, with `/` as the separator.
        folded: whether to ignore case. On some file systems, `.ENV` and `.env` are the same file.
    """
    if folded:
        patterns, path = map(str.casefold, patterns), path.casefold()
    bare = (pattern.removeprefix("./").rstrip("/") for pattern in patterns)
    return _matches(tuple((pattern, not _WILD.search(pattern.rpartition("/")[2])) for pattern in bare), path)


def covers(patterns: Iterable[str], path: str) -> bool:
    """Return whether any pattern matches a path or one of its parent folders.

    Raises:
        InvalidRequestError: a pattern has more than `PATTERN_CHARACTERS` characters.
    """
    return _matches(tuple((pattern, True) for pattern in patterns), path)


def find_excess(patterns: Sequence[str]) -> str:
    """Return the reason why a list of patterns is too large, or "" if it is not."""
    if len(patterns) > PATTERNS_LIMIT:
        return f"a list must have at most {PATTERNS_LIMIT} patterns, got {len(patterns)}"
    longest = max(patterns, key=len, default="")
    if len(longest) <= PATTERN_CHARACTERS:
        return ""
    return (
        f"the pattern {longest[:40]!r}... has {len(longest)} characters, but the maximum is {PATTERN_CHARACTERS}. "
        "Shorten the pattern, or write several patterns"
    )


def find_pattern_fault(pattern: str) -> tuple[str, str] | None:
    """Return the error in a pattern and its correction, or None if the pattern is valid."""
    bare = pattern.removeprefix("./").rstrip("/")
    parts = bare.split("/")
    from_root = "Write the pattern relative to the root of the tree, for example `src/**`"
    if pattern.strip() in ("", ".", "./"):
        return f"the pattern '{pattern}' matches no path", "Write `**` for all files"
    if pattern != pattern.strip():
        return f"the pattern '{pattern}' has leading or trailing spaces", f"Write `{pattern.strip()}`"
    if pattern.startswith("!"):
        return (
            f"the pattern '{pattern}' excludes nothing",
            "List the paths to include, or exclude paths with `policy.protect`",
        )
    if bare.startswith(("/", "~")) or re.match(r"[A-Za-z]:", bare) or ".." in parts:
        return f"the pattern '{pattern}' points outside the tree", from_root
    if "\\" in pattern:
        return f"the pattern '{pattern}' contains a backslash", f"Write `{pattern.replace(chr(92), '/')}`"
    if "" in parts or "." in parts:
        return (
            f"the pattern '{pattern}' matches no path",
            f"Write `{'/'.join(part for part in parts if part not in '.')}`",
        )
    if braces := _BRACES.search(bare):
        alternatives = ", ".join(
            f"`{bare[: braces.start()]}{choice}{bare[braces.end() :]}`" for choice in braces[1].split(",")
        )
        return f"the pattern '{pattern}' contains braces, which are not supported", f"Write {alternatives}"
    return None


def match_words(pattern: Sequence[str], items: Sequence[str]) -> bool:
    """Return whether a list of words matches a word pattern.

    `*` matches any text within a word. `**` as a whole word matches any number of words.
    """
    return _match(pattern, items, "**", _match_word)


def _match_word(pattern: str, text: str) -> bool:
    return pattern == text if "*" not in pattern else _match(pattern, text, "*", str.__eq__)


def _match(pattern: Sequence[str], items: Sequence[str], star: str, fits_one: Callable[[str, str], bool]) -> bool:
    """Match a list of items against a pattern. `star` matches any number of items.

    The running time is at most proportional to the product of the lengths.
    """
    at, position, last, tried = 0, 0, -1, 0
    while position < len(items):
        # Only the last star ever needs to backtrack: everything before it has been matched.
        if at < len(pattern) and pattern[at] == star:
            last, tried, at = at, position, at + 1
        elif at < len(pattern) and fits_one(pattern[at], items[position]):
            at, position = at + 1, position + 1
        elif last >= 0:
            tried += 1
            at, position = last + 1, tried
        else:
            return False
    return all(part == star for part in pattern[at:])


def _matches(patterns: tuple[tuple[str, bool], ...], path: str) -> bool:
    # Non-UTF-8 file names have lone surrogates, which the engine rejects.
    return bool(patterns) and _compile_patterns(patterns).isinstance_python(_SURROGATE.sub("\ufffd", path))


# One expression per list: a path takes half a microsecond, regardless of the number of patterns.
@lru_cache(maxsize=256)
def _compile_patterns(patterns: tuple[tuple[str, bool], ...]) -> SchemaValidator:
    """Compile patterns. A pattern with a True flag also matches everything below it."""
    if excess := find_excess([max((pattern for pattern, _ in patterns), key=len)]):
        raise InvalidRequestError(excess)
    # pydantic's engine takes linear time; one that backtracks could be made to hang by a pattern of a plan.
    regex = "|".join(_as_regex(pattern) + (r"(?:/|\z)" if below else r"\z") for pattern, below in patterns)
    return SchemaValidator(core_schema.str_schema(pattern=rf"\A(?s:{regex})", regex_engine="rust-regex"))


def _as_regex(pattern: str) -> str:
    return "".join(
        _AS_REGEX.get(part) or (".*" if part.startswith("**") else re.escape(part))
        for part in _PARTS.split(_SURROGATE.sub("\ufffd", pattern))
    )


_DATA = read_toml("tightloop.safety", "scope.toml")
LOCK_FILES: dict[str, str] = _DATA["lock_files"]
"""Lock files that a tool writes when their manifest changes. Announcing the manifest announces them too."""
_BARE_FILES = frozenset((*_DATA["bare_files"], *LOCK_FILES.values()))
_NOT_A_PATH, _NOT_A_FILE, _ENDINGS = (frozenset(_DATA[name]) for name in ("not_a_path", "not_a_file", "endings"))
_PATH_CHARACTERS = r"[^\s:;()<>|\"'`]"
_PATH = re.compile(rf"{_PATH_CHARACTERS}*(?:[/*]{_PATH_CHARACTERS}*|[\w\]-]\.[A-Za-z]\w{{0,9}})")
_QUOTED = re.compile(r"`([^`\s]+)`|'([^'\s]+)'|\"([^\"\s]+)\"")
_IN_BRACES = re.compile(r"\{([^{}]*)\}")
PATH_CHARACTERS = 400
ALTERNATIVES = 64


def list_scope_paths(items: Iterable[str], roots: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the paths and globs in a plan's scope, in order, relative to the first matching root.

    An item is a path, several paths separated by commas, or a path with a remark, such as `src/parser.py - the parser`.
    Items without a path, such as "the parser module", cannot be compared with files and are skipped.
    """
    tops = tuple(roots)
    return tuple(dict.fromkeys(_relative(path, tops) for item in items for path in _paths_of_item(item)))


def files_in(text: str) -> tuple[str, ...]:
    """Return the words in a sentence that look like files or folders, in order.

    Such words have a known extension or a trailing slash.
    """
    # A dot at the start belongs to the name.
    tokens = (token.strip(",;:!?()[]'\"`").rstrip(".,;:!?()[]'\"`") for token in text.split())
    return tuple(dict.fromkeys(_relative(token, ()) for token in tokens if _is_file(token)))


def outside(patterns: Iterable[str], changed: Iterable[str]) -> tuple[str, ...]:
    """Return the changed files that no pattern covers.

    The result is empty if there are no patterns or too many patterns. A folder covers everything below it, and `**`
    matches any folders. A pattern without a slash matches files with that name in any folder. A manifest also covers
    its lock file. The running time is always linear in the lengths of the patterns and paths.
    """
    globs = {_anchor_pattern(single) for pattern in patterns for single in _alternatives(pattern)} - {""}
    # Whole paths and bare names only need a lookup.
    plain = {pattern for pattern in globs if not _WILD.search(pattern) or re.fullmatch(r"\*\*/[^*?/]+", pattern)}
    wild = globs - plain

    def is_covered(path: str) -> bool:
        parts = path.split("/")
        above = {"/".join(parts[:length]) for length in range(1, len(parts) + 1)} | {f"**/{part}" for part in parts}
        return not plain.isdisjoint(above) or covers(wild, path)

    def is_covered_by_manifest(path: str) -> bool:
        folder, slash, name = path.rpartition("/")
        return name in LOCK_FILES and is_covered(f"{folder}{slash}{LOCK_FILES[name]}")

    # Too many patterns count as no scope: nothing is reported rather than everything.
    if not globs or len(wild) > ALTERNATIVES:
        return ()
    return tuple(path for path in changed if not (is_covered(path) or is_covered_by_manifest(path)))


def _paths_of_item(item: str) -> list[str]:
    # If anything is quoted, the words around it are remarks.
    quoted = ["".join(groups) for groups in _QUOTED.findall(item)]
    if any(map(_is_path, quoted)):
        return [path for path in quoted if _is_path(path)]
    listed = [part.strip() for part in re.split(r",\s+|\s+and\s+", item.strip()) if part.strip()]
    if listed and all(map(_is_path, listed)):
        return listed
    first = item.split()[0].rstrip(",:;") if item.split() else ""
    return [first] if _is_path(first) else []


def _is_path(text: str) -> bool:
    if text in _BARE_FILES or text == ".":
        return True
    return (
        len(text) <= PATH_CHARACTERS and text not in _NOT_A_PATH and "://" not in text and bool(_PATH.fullmatch(text))
    )


def _is_file(token: str) -> bool:
    if token.lower() in _NOT_A_FILE or not _is_path(token):
        return False
    is_hidden = re.fullmatch(r"\.[a-z][\w-]*(?:/[\w./-]+)?", token) is not None
    return token.endswith("/") or is_hidden or token in _BARE_FILES or token.rpartition(".")[2] in _ENDINGS


def _relative(path: str, roots: tuple[str, ...]) -> str:
    for root in roots:
        if f"{path}/".startswith(f"{root.rstrip('/')}/"):
            path = path[len(root.rstrip("/")) :].lstrip("/")
            break
    # A dot or a slash alone means the whole tree.
    bare = re.sub(r"^(?:\./)+", "", path)
    return bare if bare.strip("/.") else "**"


def _alternatives(pattern: str) -> list[str]:
    """Expand `{a,b}` in a pattern. Braces with too many alternatives are not expanded."""
    expanded: list[str] = []
    waiting = [pattern]
    while waiting:
        alternative = waiting.pop()
        braces = _IN_BRACES.search(alternative)
        choices = braces[1].split(",") if braces else []
        # Bounded, because twenty braces with two choices have a million expansions.
        if braces is None or len(expanded) + len(waiting) + len(choices) > ALTERNATIVES:
            expanded.append(alternative)
        else:
            waiting += [f"{alternative[: braces.start()]}{choice}{alternative[braces.end() :]}" for choice in choices]
    return expanded


def _anchor_pattern(pattern: str) -> str:
    bare = "/".join(part for part in pattern.split("/") if part)
    return bare if "/" in pattern or not bare else f"**/{bare}"


# RFC 4291, section 2.4: all address space assigned to registries. Everything else is private, reserved or a notation
# of an IPv4 address.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
# Not global by the IANA registries of special-purpose addresses; not every Python 3.11 knows them all.
_SPECIAL = (
    # As numbers, because addresses in dotted form count as personal data. First the 6to4 relays (RFC 7526), then
    # Azure's host agent, which is reachable only from a virtual machine itself.
    IPv4Network((0xC058_6300, 24)),
    IPv4Network((0xA83F_8110, 32)),
    # Protocol assignments, including Teredo, and documentation (RFC 9637).
    IPv6Network("2001::/23"),
    IPv6Network("2001:db8::/32"),
    IPv6Network("3fff::/20"),
)
# Prefixes whose last 32 bits are an IPv4 address: compatible and mapped (RFC 4291, section 2.5.5), translated
# (RFC 2765), and the well-known prefix of NAT64 (RFC 6052). The local one of RFC 8215, 64:ff9b:1::/48, is private.
_IN_THE_END = tuple(IPv6Network(block) for block in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96"))
_SIX_TO_FOUR = IPv6Network("2002::/16")
# RFC 5214, section 6.1: an ISATAP interface identifier, with and without the bit of a global IPv4 address.
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})


def is_private(address: str) -> bool:
    """Return whether an IP address may lead to this host or to a private network.

    A host name is never private. An IPv6 address that represents an IPv4 address (mapped, compatible,
    translated, NAT64, 6to4, ISATAP) is public only if the IPv4 address is public. NAT64 addresses that
    use a prefix of the local network cannot be recognised.
    """
    try:
        # A zone, as in `fe80::1%eth0`, only selects the interface.
        ip = ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return not _is_public(ip)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address refers to this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if any(address in block for block in _SPECIAL if block.version == address.version):
        return False
    if isinstance(address, IPv4Address):
        # `is_global` is true for many multicast addresses.
        return address.is_global and not address.is_multicast
    if not any(address in block for block in (_GLOBAL_UNICAST, *_IN_THE_END)):
        return False
    return all(_is_public(inner) for inner in _embedded_addresses(address))


def _embedded_addresses(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses to which packets for an IPv6 address may be forwarded."""
    number = int(address)
    if any(address in block for block in _IN_THE_END) or (number >> 32) & 0xFFFF_FFFF in _ISATAP:
        yield IPv4Address(number & 0xFFFF_FFFF)
    if address in _SIX_TO_FOUR:
        yield IPv4Address((number >> 80) & 0xFFFF_FFFF)


class Tables(NamedTuple):
    """Patterns, terms and violations from a file, by name."""

    patterns: dict[str, re.Pattern[str]]
    terms: dict[str, tuple[str, ...]]
    violations: dict[str, Violation]


def read_tables(data: Mapping[str, Any]) -> Tables:
    """Parse the tables in a file. A violation's key is its rule name unless the row sets another name."""
    violations = {
        name: Violation(**{"rule": name, **row, "topic": Topic(row["topic"]), "verdict": Verdict(row["verdict"])})
        for name, row in data["violations"].items()
    }
    # Verbose, so that a long pattern can span lines: white space counts only if it is escaped.
    patterns = {name: re.compile(text, re.VERBOSE) for name, text in data["patterns"].items()}
    return Tables(patterns, {name: tuple(row) for name, row in data["words"].items()}, violations)
