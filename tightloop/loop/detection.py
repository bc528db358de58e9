"""Finds the gates of a project from its files, where no settings name them."""

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping

from tightloop.episode.check import Check

READ_FILES = ("package.json", "pyproject.toml", "setup.cfg", "mypy.ini", ".mypy.ini")
"""Files of the top folder whose text decides."""
NODE_TIER0 = ("gate:ui", "gate:task")
"""What `gate:tier0` runs; each by itself where there is no such script."""
NODE_GATES = ("gate:web", "gate:agent", "gate:spec")
NODE_PLAIN = ("lint", "test")
GATE_TIMEOUT_S = 1_800.0
_TESTS = re.compile(r"(?:^|/)(?:test_[^/]*|[^/]*_test)\.py$")


def detect_gates(paths: Collection[str], texts: Mapping[str, str]) -> tuple[Check, ...]:
    """Return the gates of a project in their order; none where its kind is not known.

    Args:
        paths: all files of the tree.
        texts: of those among `READ_FILES` that exist, by name.
    """
    return (*_node(texts.get("package.json", "")), *_python(paths, texts))


def _node(text: str) -> Iterator[Check]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return
    scripts = found.get("scripts") if isinstance(found, dict) else None
    names = scripts if isinstance(scripts, dict) else {}
    wanted = (*(("gate:tier0",) if "gate:tier0" in names else NODE_TIER0), *NODE_GATES)
    chosen = [name for name in wanted if name in names] or [name for name in NODE_PLAIN if name in names]
    for name in chosen:
        yield Check(run=f"npm run --silent {name}", name=name, timeout_s=GATE_TIMEOUT_S)


def _python(paths: Collection[str], texts: Mapping[str, str]) -> Iterator[Check]:
    if "pyproject.toml" not in texts and not any(path.endswith(".py") for path in paths):
        return
    yield Check(run="ruff check .", name="ruff", timeout_s=GATE_TIMEOUT_S)
    yield Check(run="ruff format --check .", name="format", timeout_s=GATE_TIMEOUT_S)
    if _has_mypy(texts):
        yield Check(run="mypy .", name="mypy", timeout_s=GATE_TIMEOUT_S)
    # Without tests pytest fails: exit code 5.
    if any(_TESTS.search(path) for path in paths):
        yield Check(run="pytest -q", name="pytest", timeout_s=GATE_TIMEOUT_S)


def _has_mypy(texts: Mapping[str, str]) -> bool:
    if "mypy.ini" in texts or ".mypy.ini" in texts or re.search(r"^\[mypy\]", texts.get("setup.cfg", ""), re.MULTILINE):
        return True
    try:
        project = tomllib.loads(texts.get("pyproject.toml", ""))
    except (tomllib.TOMLDecodeError, RecursionError):
        return False
    tools = project.get("tool")
    return isinstance(tools, dict) and "mypy" in tools
