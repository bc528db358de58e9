"""The scope of a plan: which files it said it would change, and which changed files lie outside of it."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

LOCK_FILES = {
    "poetry.lock": "pyproject.toml",
    "uv.lock": "pyproject.toml",
    "pdm.lock": "pyproject.toml",
    "Pipfile.lock": "Pipfile",
    "package-lock.json": "package.json",
    "yarn.lock": "package.json",
    "pnpm-lock.yaml": "package.json",
    "Cargo.lock": "Cargo.toml",
    "go.sum": "go.mod",
    "Gemfile.lock": "Gemfile",
    "composer.lock": "composer.json",
}
"""Files that a tool writes when their manifest changes; who announced the manifest announced them."""

_BARE_FILES = frozenset(
    {"Makefile", "Dockerfile", "LICENSE", "Justfile", "Procfile", "CODEOWNERS", *LOCK_FILES.values()}
)
_NOT_A_PATH = frozenset({"e.g", "i.e", "and/or", "n/a", "read/write", "input/output"})
_NOT_A_FILE = frozenset({"node.js", "vue.js", "next.js", "express.js", "react.js"})
_ENDINGS = frozenset(
    {
        *("bash", "c", "cc", "cfg", "cjs", "conf", "cpp", "cs", "css", "csv", "cxx", "env", "ex", "go", "gradle"),
        *("graphql", "h", "hpp", "html", "ini", "ipynb", "java", "js", "json", "jsx", "kt", "lock", "lua", "md", "mjs"),
        *("php", "pl", "proto", "ps1", "py", "pyi", "pyx", "r", "rb", "rs", "rst", "scala", "scss", "sh", "sql"),
        *("svelte", "swift", "tex", "tf", "toml", "ts", "tsx", "txt", "vue", "xml", "yaml", "yml", "zig"),
    }
)
"""Endings by which a file is told from other words of a sentence, such as `self.close`."""

_PATH_CHARACTERS = r"[^\s:;()<>|\"'`]"
_PATH = re.compile(rf"{_PATH_CHARACTERS}*(?:[/*]{_PATH_CHARACTERS}*|[\w\]-]\.[A-Za-z]\w{{0,9}})")
_QUOTED = re.compile(r"`([^`\s]+)`|'([^'\s]+)'|\"([^\"\s]+)\"")
_BRACES = re.compile(r"\{([^{}]*)\}")
_WILD = re.compile(r"[*?\[]")
PATH_CHARACTERS = 400
ALTERNATIVES = 64


def announced(items: Iterable[str], roots: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the paths and globs in the scope of a plan, in order, relative to the first of `roots` that fits.

    An item is a path, several with commas, or a path with a remark: `src/parser.py - the parser`. What has no
    path in it ("the parser module") says nothing that could be compared with files, and is left out.
    """
    tops = tuple(roots)
    return tuple(dict.fromkeys(_relative(path, tops) for item in items for path in _paths_of_item(item)))


def files_in(text: str) -> tuple[str, ...]:
    """Return what looks like a file or a folder in a sentence, in order: a known ending, or a slash at the end."""
    words = (word.strip(".,;:!?()[]'\"`") for word in text.split())
    return tuple(dict.fromkeys(_relative(word, ()) for word in words if _is_file(word)))


def outside(patterns: Iterable[str], changed: Iterable[str]) -> tuple[str, ...]:
    """Return which of the changed files no pattern covers; nothing where there is no pattern, or too many.

    A folder covers what is below it, `**` any folders; a pattern without a slash fits files of that name in any
    folder; a lock file goes with its manifest. Takes time in proportion to the lengths, whatever the pattern.
    """
    wanted = {_segments(single) for pattern in patterns for single in _alternatives(pattern)}
    wild = {parts for parts in wanted if _is_wild(parts)}
    plain = wanted - wild

    def covered(path: str) -> bool:
        parts = tuple(path.split("/"))
        above = {parts[:length] for length in range(1, len(parts) + 1)} | {("**", part) for part in parts}
        return not plain.isdisjoint(above) or any(_covers(segments, parts) for segments in wild)

    def covered_by_manifest(path: str) -> bool:
        folder, slash, name = path.rpartition("/")
        return name in LOCK_FILES and covered(f"{folder}{slash}{LOCK_FILES[name]}")

    if not wanted or len(wild) > ALTERNATIVES:
        return ()
    return tuple(path for path in changed if not (covered(path) or covered_by_manifest(path)))


def _paths_of_item(item: str) -> list[str]:
    quoted = ["".join(found) for found in _QUOTED.findall(item)]
    if any(map(_is_path, quoted)):
        return [path for path in quoted if _is_path(path)]
    listed = [part.strip() for part in re.split(r",\s+|\s+and\s+", item.strip()) if part.strip()]
    if listed and all(map(_is_path, listed)):
        return listed
    first = item.split()[0].rstrip(",:;") if item.split() else ""
    return [first] if _is_path(first) else []


def _is_path(word: str) -> bool:
    if word in _BARE_FILES or word == ".":
        return True
    return (
        len(word) <= PATH_CHARACTERS and word not in _NOT_A_PATH and "://" not in word and bool(_PATH.fullmatch(word))
    )


def _is_file(word: str) -> bool:
    if word.lower() in _NOT_A_FILE or not _is_path(word):
        return False
    return word.endswith("/") or word in _BARE_FILES or word.rpartition(".")[2] in _ENDINGS


def _relative(path: str, roots: tuple[str, ...]) -> str:
    for root in roots:
        if f"{path}/".startswith(f"{root.rstrip('/')}/"):
            path = path[len(root.rstrip("/")) :].lstrip("/")
            break
    bare = re.sub(r"^(?:\./)+", "", path)
    return bare if bare.strip("/.") else "**"


def _alternatives(pattern: str) -> list[str]:
    """Return the patterns that `{a,b}` stands for; braces that stand for too many are left as they are."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        one = waiting.pop()
        braces = _BRACES.search(one)
        choices = braces[1].split(",") if braces else []
        if braces is None or len(done) + len(waiting) + len(choices) > ALTERNATIVES:
            done.append(one)
        else:
            waiting += [f"{one[: braces.start()]}{choice}{one[braces.end() :]}" for choice in choices]
    return done


def _segments(pattern: str) -> tuple[str, ...]:
    """Return the parts of a pattern, in the language of `fnmatch`, where `[` begins no class here."""
    spread = re.sub(r"\*\*(?=[^/*])", "**/*", pattern.rstrip("/"))
    parts = tuple(part.replace("[", "[[]") for part in spread.split("/") if part)
    return parts if "/" in pattern else ("**", *parts)


def _is_wild(parts: tuple[str, ...]) -> bool:
    """Return whether a pattern needs more than to be looked up, as whole paths and bare names do not."""
    named = parts[1:] if len(parts) == 2 and parts[0] == "**" else parts
    return any(_WILD.search(part) for part in named)


def _covers(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Return whether the pattern fits the path or a folder above it."""
    reached = _with_skipped({0}, pattern)
    for name in path:
        if len(pattern) in reached:
            return True
        further = {at for at in reached if pattern[at] == "**"}
        further |= {at + 1 for at in reached if pattern[at] != "**" and fnmatchcase(name, pattern[at])}
        reached = _with_skipped(further, pattern)
    return len(pattern) in reached


def _with_skipped(reached: set[int], pattern: tuple[str, ...]) -> set[int]:
    """Add the places behind each `**`, which may stand for no folder at all."""
    for at in range(len(pattern)):
        if at in reached and pattern[at] == "**":
            reached = reached | {at + 1}
    return reached
