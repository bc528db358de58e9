"""Ignore rules as in git (gitignore(5)), matched in time linear in the lengths of the rule and the path.

The repository's text never becomes a backtracking expression. Parts between asterisks are matched once, from the left.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

RULES_BYTES = 1_000_000
"""Maximum size of one rules file. Git's own limit is 100 MB."""

_CLASSES = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f", "digit": "0-9",
    "graph": "!-~", "lower": "a-z", "print": " -~", "punct": "!-/:-@\\[-`{-~", "space": "\\t-\\r ", "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_SPECIAL = re.compile(r"[*?\[\\]")
_DEEP = None
"""Marker for `**`, which matches any number of folders, in a rule that is split at its slashes."""

Test = Callable[[str], bool]


class _Rule(NamedTuple):
    ignores: bool
    """True if the rule ignores files. False for `!` rules, which cover files again."""
    folders_only: bool
    name: Test | None
    """Matches the last path component. If None, the rule matches the whole path."""
    parts: tuple[Test | None, ...] = ()


class RuleList:
    """The rules in one file."""

    def __init__(self, base: str, content: bytes, *, folded: bool = False) -> None:
        """Parse rules for paths below `base`. With `folded`, case is ignored.

        `base` is empty or ends with `/`.
        """
        self.base = base
        # Latin-1: one character per byte, as in `as_bytes_text`.
        text = content.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
        rules = (_rule(line, folded) for line in text.split("\n"))
        # The last matching rule wins.
        self._rules = tuple(rule for rule in rules if rule is not None)[::-1]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def verdict(self, path: str, name: str, *, folder: bool) -> bool | None:
        """Return True if a rule ignores a path, False if a rule includes it, and None if no rule matches.

        The path includes `base` and has the format of `as_bytes_text`.
        """
        parts: list[str] | None = None
        for rule in self._rules:
            if rule.folders_only and not folder:
                continue
            if rule.name is not None:
                if rule.name(name):
                    return rule.ignores
                continue
            if parts is None:
                parts = path[len(self.base) :].split("/")
            if _fits(rule.parts, parts):
                return rule.ignores
        return None


class Rules:
    """All rule lists that apply to a folder."""

    def __init__(self, lists: Iterable[RuleList] = ()) -> None:
        self._lists = tuple(rule_list for rule_list in lists if rule_list)[::-1]

    def within(self, rule_list: RuleList) -> "Rules":
        """Combine these rules with the rules from a file deeper in the tree."""
        return Rules((*self._lists[::-1], rule_list)) if rule_list else self

    def ignores(self, path: str, name: str, *, folder: bool) -> bool:
        """Return whether a path is ignored. The caller must ensure that its parent folders are not ignored."""
        if not self._lists:
            return False
        path, name = as_bytes_text(path), as_bytes_text(name)
        for rule_list in self._lists:
            verdict = rule_list.verdict(path, name, folder=folder)
            if verdict is not None:
                return verdict
        return False


def as_bytes_text(name: str) -> str:
    """Convert a name to text with one character per byte, because `?` matches one byte in git."""
    return name if name.isascii() else name.encode("utf-8", "surrogateescape").decode("latin-1")


def _rule(line: str, folded: bool) -> _Rule | None:
    line = _trim_line(line.removesuffix("\r"))
    if not line or line.startswith("#"):
        return None
    ignores = not line.startswith("!")
    line = line if ignores else line[1:]
    folders_only = line.endswith("/")
    line = line[:-1] if folders_only else line
    if not line:
        return None
    if "/" not in line:
        return _Rule(ignores, folders_only, _test(line, folded))
    cut = _cut(line.removeprefix("/"))
    parts: list[Test | None] = [_DEEP if len(part) > 1 and not part.strip("*") else _test(part, folded) for part in cut]
    if parts[-1] is _DEEP:
        # `a/**` matches the contents of `a`, not `a`.
        parts.append(lambda _name: True)
    return _Rule(ignores, folders_only, None, tuple(parts))


def _cut(line: str) -> list[str]:
    """Split a rule at its slashes. Slashes in bracket classes are kept, because a class never matches a slash."""
    parts, begin, position = [], 0, 0
    while position < len(line):
        if line[position] == "/":
            parts.append(line[begin:position])
            begin = position + 1
        elif line[position] == "[":
            _, end = _class(line, position + 1)
            position = max(position, end - 1)
        position += 1 + (line[position : position + 1] == "\\")
    return [*parts, line[begin:]]


def _trim_line(line: str) -> str:
    """Strip trailing spaces that are not escaped by a backslash."""
    end = len(line)
    while end and line[end - 1] == " ":
        slashes = len(line[: end - 1]) - len(line[: end - 1].rstrip("\\"))
        if slashes % 2:
            break
        end -= 1
    return line[:end]


def _test(glob: str, folded: bool) -> Test:
    # Nearly all rules are plain names or `*.suffix`, and each is tried on every file.
    if not _SPECIAL.search(glob):
        folded_glob = glob.casefold()
        return (lambda name: name.casefold() == folded_glob) if folded else glob.__eq__
    rest = glob[1:]
    if glob.startswith("*") and not _SPECIAL.search(rest) and not folded:
        return lambda name: name.endswith(rest)
    written = _expression(glob)
    if written is None:
        return lambda _name: False
    fits = re.compile(written, re.DOTALL | (re.IGNORECASE if folded else 0)).fullmatch
    return lambda name: fits(name) is not None


def _expression(glob: str) -> str | None:
    """Translate a glob without slashes to a regular expression.

    Return None if git never matches anything with the glob.
    """
    chunks, chunk, position = [], "", 0
    while position < len(glob):
        character = glob[position]
        position += 1
        if character == "*":
            chunks.append(chunk)
            chunk = ""
        elif character == "?":
            chunk += "."
        elif character == "[":
            written, position = _class(glob, position)
            if written is None:
                return None
            chunk += written
        elif character == "\\":
            if position == len(glob):
                return None
            chunk += re.escape(glob[position])
            position += 1
        else:
            chunk += re.escape(character)
    if not chunks:
        return chunk
    # Atomic: the leftmost match of a part between asterisks is as good as any, so none is retried.
    middle = "".join(f"(?>.*?{part})" for part in chunks[1:] if part)
    return f"{chunks[0]}{middle}.*{chunk}"


def _class(glob: str, position: int) -> tuple[str | None, int]:
    """Translate the bracket class after `[`. Return the expression and the position after the class."""
    negated = glob[position : position + 1] in ("!", "^")
    position += negated
    begin, items = position, ""
    while position < len(glob):
        if glob[position] == "]" and position > begin:
            return (f"[{'^' if negated else ''}{items}]" if items else ("." if negated else "(?!)")), position + 1
        if glob.startswith("[:", position) and (end := glob.find(":]", position + 2)) > 0:
            name = glob[position + 2 : end]
            if name not in _CLASSES:
                return None, position
            items += _CLASSES[name]
            position = end + 2
            continue
        first, position = _member(glob, position)
        last = first
        if glob.startswith("-", position) and glob[position + 1 : position + 2] not in ("", "]"):
            last, position = _member(glob, position + 1)
        if first <= last:
            items += f"{re.escape(first)}-{re.escape(last)}"
    return None, position


def _member(glob: str, position: int) -> tuple[str, int]:
    """Read one character of a bracket class. Return the character and the next position.

    After a trailing backslash, the position is past the end.
    """
    position += glob[position] == "\\"
    return glob[position : position + 1], position + 1


def _fits(tests: tuple[Test | None, ...], names: list[str]) -> bool:
    """Match path components against a rule, tracking all alternatives at the same time."""
    reached = _with_deep({0}, tests)
    for name in names:
        following = set()
        for position in reached:
            if position == len(tests):
                continue
            test = tests[position]
            if test is _DEEP:
                following.add(position)
            elif test is not None and test(name):
                following.add(position + 1)
        reached = _with_deep(following, tests)
        if not reached:
            return False
    return len(tests) in reached


def _with_deep(places: set[int], tests: tuple[Test | None, ...]) -> set[int]:
    """Add the positions that are reached if `**` matches no folders."""
    for position in sorted(places):
        while position < len(tests) and tests[position] is _DEEP:
            position += 1
            places.add(position)
    return places
