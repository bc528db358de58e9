"""Reads which packages a manifest names: requirement files, pyproject.toml, setup.py and those of other ecosystems."""

import ast
import configparser
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tightloop.safety.change.licences import ecosystem_of
from tightloop.safety.code.rules import normal_name
from tightloop.safety.code.syntax import parse_tree

_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*(@)?")
_OPTION = re.compile(r"--?(?:index-url|extra-index-url|find-links|i|f)\b[\s=]*(.*)")
_EDITABLE = re.compile(r"(?:-e|--editable)[\s=]+")
_ADDRESS = re.compile(r"(?:[a-z]+\+)?(?:https?|ssh|git|file|ftp)://|^git@")
_AT_ADDRESS = ("git", "url", "hg", "svn")
_SETUP = ("install_requires", "setup_requires", "tests_require", "extras_require", "requires")


class Requirement(NamedTuple):
    """A package that a manifest names."""

    name: str
    """As package indexes compare it; empty for an index or a bare address."""
    line: int
    text: str
    """As the manifest says it."""
    source: str = ""
    """Where it comes from, if not from the package index."""


def is_manifest(path: str, manifests: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a file names packages."""
    name = path.rpartition("/")[2]
    return name in manifests or name in ("setup.py", "setup.cfg") or _is_list(path)


def own_name(path: str, text: str) -> str:
    """Return the name of the distribution that a pyproject.toml describes, or ""."""
    if path.rpartition("/")[2] != "pyproject.toml":
        return ""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError):
        return ""
    return normal_name(str(_first(content, "project.name") or _first(content, "tool.poetry.name") or ""))


def requirements_in(path: str, text: str, manifests: Mapping[str, Sequence[str]]) -> tuple[Requirement, ...]:
    """Return the packages that a manifest names; none where it cannot be read."""
    name = path.rpartition("/")[2]
    try:
        found = tuple(_read(name, path, text, manifests.get(name, ())))
    except (ValueError, configparser.Error, RecursionError):
        return ()
    lines = text.splitlines()
    return tuple(one._replace(line=one.line or _line_of(one, lines)) for one in found)


def _read(name: str, path: str, text: str, places: Iterable[str]) -> Iterator[Requirement]:
    if _is_list(path):
        yield from _listed(text)
    elif name == "setup.py":
        yield from _in_setup(text)
    elif name == "setup.cfg":
        parser = configparser.RawConfigParser()
        parser.read_string(text)
        parts = [parser["options"].get(key, "") for key in _SETUP] if parser.has_section("options") else []
        extras = "options.extras_require"
        parts += list(parser[extras].values()) if parser.has_section(extras) else []
        yield from (one for part in parts for line in part.splitlines() if (one := _requirement(line, 0)))
    else:
        content = json.loads(text) if name.endswith(".json") else tomllib.loads(text)
        python = not name.endswith(".json") and name != "Cargo.toml"
        for place in places:
            for value in _at(content, place.split(".")):
                yield from _in_table(value, python=python)


def _is_list(path: str) -> bool:
    # Constraints install nothing by themselves.
    is_pins = path.rpartition("/")[2].startswith("constraints")
    return path.endswith((".txt", ".in")) and not is_pins and ecosystem_of(path) == "pypi"


def _listed(text: str) -> Iterator[Requirement]:
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.split(" #")[0].strip().rstrip("\\").strip()
        bare = "" if bare.startswith("#") else bare
        option = _OPTION.match(bare)
        if option:
            yield Requirement("", number, bare, option[1] or bare)
        editable = _EDITABLE.match(bare)
        bare = bare[editable.end() :] if editable else bare
        if bare and not bare.startswith(("-", ".", "/")) and (one := _requirement(bare, number)):
            yield one


def _requirement(text: str, line: int) -> Requirement | None:
    if _ADDRESS.match(text.strip()):
        return Requirement("", line, text.strip(), text.strip())
    found = _NAME.match(text)
    if found is None:
        return None
    source = text[found.end() :].strip() if found[2] else ""
    return Requirement(normal_name(found[1]), line, text.strip(), source)


def _in_table(value: Any, *, python: bool) -> Iterator[Requirement]:
    if isinstance(value, list):
        yield from (one for text in value if isinstance(text, str) and (one := _requirement(text, 0)))
    elif isinstance(value, dict):
        for name, wanted in value.items():
            if python and name == "python":
                continue
            at = wanted if isinstance(wanted, dict) else {}
            source = next((str(at[key]) for key in _AT_ADDRESS if key in at), "")
            source = wanted if isinstance(wanted, str) and _ADDRESS.match(wanted) else source
            yield Requirement(normal_name(name) if python else name, 0, str(name), source)


def _at(content: Any, keys: Sequence[str]) -> Iterator[Any]:
    """Return the values at a place, of which `*` is any key."""
    if not keys:
        yield content
    elif isinstance(content, dict):
        for key in content if keys[0] == "*" else keys[:1]:
            if key in content:
                yield from _at(content[key], keys[1:])


def _first(content: Any, place: str) -> Any:
    return next(_at(content, place.split(".")), None)


def _in_setup(text: str) -> Iterator[Requirement]:
    tree = parse_tree(text)
    for node in ast.walk(tree) if isinstance(tree, ast.Module) else ():
        if isinstance(node, ast.keyword) and node.arg in _SETUP:
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and not _is_key(part, node.value):
                    one = _requirement(part.value, part.lineno)
                    if one:
                        yield one


def _is_key(part: ast.Constant, value: ast.expr) -> bool:
    return isinstance(value, ast.Dict) and part in value.keys


def _line_of(one: Requirement, lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines, start=1) if one.text in line), 0)
