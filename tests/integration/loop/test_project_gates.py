"""The gates of real Node and Python projects: found, run in a sandbox by the real activities, and read."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.artifacts.stores import open_local_store
from activities.checks.runner import ProcessCheckRunner
from activities.loop.inspection import choose_gates, run_gate
from activities.workspace.working_tree import GitWorkspaces
from tests.support.git_sample import git, make_repository, scope_of, write
from tests.support.sandboxes import sandbox_named
from tightloop.episode.check import Check
from tightloop.loop.model import GateCheck
from tightloop.settings import SandboxSettings

# What `tsc --noEmit` 5.9 printed about `const a: number = "x"`.
TSC = "src/a.ts(1,7): error TS2322: Type 'string' is not assignable to type 'number'.\n"
NODE = {
    "package.json": json.dumps(
        {
            "scripts": {
                "gate:ui": "node --test --test-reporter=tap ui.test.js",
                "gate:task": "node --test --test-reporter=junit task.test.js && echo done",
                "gate:tier0": "npm run --silent gate:ui && npm run --silent gate:task",
                "gate:web": "node --test --test-reporter=junit web.test.js",
                "gate:agent": "node tsc.js",
                "gate:spec": "node -e 'process.exit(3)'",
                "build": "exit 1",
            }
        }
    ),
    "ui.test.js": 'require("node:test")("adds", () => require("node:assert").equal(1 + 1, 2));\n',
    "task.test.js": 'require("node:test")("counts", () => {});\n',
    "web.test.js": "const test = require('node:test'); const assert = require('node:assert');\n"
    "test('shows', () => {}); test('page', async t => { await t.test('title', () => assert.equal(1, 2)); });\n",
    "tsc.js": f"process.stdout.write({json.dumps(TSC)}); process.exit(2);\n",
}
PYTHON = {
    "pyproject.toml": "[project]\nname = 'shop'\nversion = '1'\n[tool.mypy]\nstrict = true\n",
    "shop.py": "import os\n\n\ndef price(n: int) -> int:\n    return str(n)\n",
    "tests/test_shop.py": "def test_price() -> None:\n    assert 1 + 1 == 3\n\n\ndef test_other() -> None:\n    pass\n",
}


@pytest.fixture
def run_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], Any]:
    sandbox = sandbox_named("bubblewrap")
    if problem := sandbox.probe():
        pytest.skip(f"bubblewrap does not work here: {problem}")
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    runner = ProcessCheckRunner(sandbox, SandboxSettings(), grace_s=0.5)
    workspaces, environment, root = GitWorkspaces(), ActivityEnvironment(), tmp_path / "repo"

    def run(files: dict[str, str]) -> dict[str, tuple[GateCheck, ...]]:
        make_repository(root, files)
        scope = scope_of(root, "plan_1")
        workspaces.prepare(scope, take_over=lambda _id: False)
        with workspaces.hold(scope) as tree:
            found, store = tree.snapshot(), open_local_store(root)
            run_one = partial(run_gate, runner, tree=tree, store=store, expected_tree=found, cancelled=lambda: False)
            ran = {gate.title: environment.run(run_one, gate) for gate in choose_gates(tree, found)}
        workspaces.release(scope)
        return ran

    return run


def outcome(checks: tuple[GateCheck, ...]) -> dict[str, bool]:
    return {check.name: check.passed for check in checks}


@pytest.mark.skipif(shutil.which("npm") is None, reason="node and npm are not here: apt-get install nodejs npm")
def test_node_project_runs_the_gates_of_the_specification_in_their_order(
    run_gates: Callable[[dict[str, str]], Any],
) -> None:
    ran = run_gates(NODE)
    assert list(ran) == ["gate:tier0", "gate:web", "gate:agent", "gate:spec"]
    assert outcome(ran["gate:tier0"]) == {
        "gate:tier0": True,
        "gate:tier0/adds": True,
        "gate:tier0/test::counts": True,
    }, "both reports, one in TAP and one in JUnit XML with text behind it"
    assert outcome(ran["gate:web"]) == {
        "gate:web": False,
        "gate:web/test::title": False,
        "gate:web/test::shows": True,
    }
    assert "1 == 2" in ran["gate:web"][1].message
    assert outcome(ran["gate:agent"]) == {"gate:agent": False, "gate:agent/src/a.ts:1:7 TS2322": False}
    assert outcome(ran["gate:spec"]) == {"gate:spec": False}
    assert "exit code 3" in ran["gate:spec"][0].message


def test_python_project_runs_ruff_format_mypy_and_pytest(
    run_gates: Callable[[dict[str, str]], Any], tmp_path: Path
) -> None:
    ran = run_gates(PYTHON)
    assert list(ran) == ["ruff", "format", "mypy", "pytest"]
    assert {name: checks[0].passed for name, checks in ran.items()} == {
        "ruff": False, "format": True, "mypy": False, "pytest": False,
    }  # fmt: skip
    assert outcome(ran["ruff"])["gate:ruff/shop.py:1:8 F401"] is False
    assert outcome(ran["mypy"])["gate:mypy/shop.py:5 return-value"] is False
    assert outcome(ran["pytest"])["gate:pytest/tests/test_shop.py::test_price"] is False
    assert "1 failed, 1 passed" in ran["pytest"][0].message
    assert git(tmp_path / "repo", "status", "--porcelain") == b"", "what the tools cache is undone"


def test_gate_stays_where_a_task_removed_what_it_was_found_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    root = make_repository(tmp_path / "repo", PYTHON)
    workspaces, scope = GitWorkspaces(), scope_of(root, "plan_1")
    workspaces.prepare(scope, take_over=lambda _id: False)
    with workspaces.hold(scope) as tree:
        before = choose_gates(tree, tree.snapshot())
        (root / "tests" / "test_shop.py").unlink()
        write(root, {"pyproject.toml": "", "package.json": '{"scripts": {"test": "exit 0"}}'})
        found = tree.snapshot()
        after = choose_gates(tree, found, before=before)
        named = choose_gates(tree, found, (Check(run="make"),), before=before)
    assert [gate.title for gate in after] == ["ruff", "format", "mypy", "pytest", "test"]
    assert [gate.run for gate in named] == ["make"], "what people name is all"
