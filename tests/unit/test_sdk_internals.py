"""Private parts of the SDK of Temporal that the product uses. Look at each of them before another version is pinned."""

import ast
import re
import tomllib
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from temporalio.worker import WorkflowInstanceDetails

PROJECT = Path(__file__).parents[2]
PACKAGES = ("tightloop", "activities", "workflows", "worker", "gateway")

USED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "temporalio.worker._workflow_instance._WorkflowInstanceImpl": (
        "worker/hosting/startup.py: a waiting workflow would keep the message that started it, 19 kB",
        lambda found: (
            list(signature(found).parameters) == ["det"]
            and list(signature(found._make_workflow_input).parameters) == ["self", "init_job"]
            and {"info", "last_completion_result"} <= {field.name for field in fields(WorkflowInstanceDetails)}
        ),
    ),
    "temporalio.worker._interceptor.ExecuteWorkflowInput": (
        "worker/hosting/startup.py: the headers of the start would stay in the input of the workflow",
        lambda found: "headers" in {field.name for field in fields(found)},
    ),
    "temporalio.worker._command_aware_visitor": (
        "tightloop/client/sealing.py: what a workflow sends would be sealed as a client's message, and refused",
        lambda found: found.current_command_info.get() is None,
    ),
    "temporalio.workflow._Runtime": (
        "worker/replay.py: a replay that fails would not say at which event",
        lambda found: callable(found.current) and callable(found.workflow_get_current_history_length),
    ),
    "temporalio.bridge.temporal_sdk_bridge.envconfig": (
        "tightloop/host/profile.py: a mistake in temporal.toml would be a traceback, not a sentence",
        lambda found: issubclass(found.ConfigError, Exception),
    ),
}
"""What breaks without each, and what has to be true of it."""


def _find(path: str) -> Any:
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for name in parts[end:]:
            found = getattr(found, name)
        return found
    raise ImportError(path)


def _private_parts(source: str) -> set[str]:
    """Return the names of the SDK in a module's imports, attributes and texts that begin with an underscore."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str() as module, names=names) if module.startswith("temporalio"):
                found |= {f"{module}.{alias.name}" for alias in names}
            case ast.Constant(value=str() as text) if re.fullmatch(r"temporalio[\w.]+", text):
                found.add(text)
            case ast.Attribute(value=ast.Name(id="workflow"), attr=name):
                found.add(f"temporalio.workflow.{name}")
    return {name for name in found if re.search(r"\._|\.temporal_sdk_bridge", name)}


@pytest.mark.parametrize(("name", "why"), [(name, why) for name, (why, _) in USED.items()])
def test_private_part_of_the_sdk_is_as_the_product_needs_it(name: str, why: str) -> None:
    assert USED[name][1](_find(name)), why


def test_no_other_private_part_is_used() -> None:
    files = (path for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))
    assert set().union(*(_private_parts(path.read_text()) for path in files)) == USED.keys()


def test_the_version_whose_private_parts_were_looked_at_is_required_exactly() -> None:
    required = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"temporalio=={version('temporalio')}" in required
