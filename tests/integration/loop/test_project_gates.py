"""The gates of real Node and Python projects: found, run in a sandbox by the real activities, and read."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.artifacts.stores import open_local_store
from activities.checks.runner import CheckRunner
from activities.loop.inspection import InspectionActivities, InspectRequest, run_gate
from activities.loop.project import last_commits, open_packets
from activities.proof.checkouts import LocalCheckouts
from activities.proof.finding import TRIAL_S, CheckFinder
from activities.workspace.differ import Differ
from activities.workspace.working_tree import WorkingTree, Workspaces
from tests.support.git_sample import git, make_repository, scope_of, write
from tests.support.sandboxes import sandbox_named
from tightloop.checks.choice import ChosenChecks, TriedCheck, choose_checks
from tightloop.database.ledger import open_project
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
    "pyproject.toml": "[project]\nname = 'shop'\nversion = '1'\n[tool.ruff.format]\n[tool.mypy]\nstrict = true\n",
    "shop.py": "import os\n\n\ndef price(n: int) -> int:\n    return str(n)\n",
    "tests/test_shop.py": "def test_price() -> None:\n    assert 1 + 1 == 3\n\n\ndef test_other() -> None:\n    pass\n",
}


@dataclass(frozen=True)
class Inspected:
    """A project, what was found in it and how its gates ran."""

    root: Path
    inspection: InspectionActivities

    def trials(self, goal: str = "", limit_s: float = TRIAL_S) -> tuple[ChosenChecks, tuple[TriedCheck, ...]]:
        """Return the checks that decide, and the first runs of all."""
        with self.holding() as tree:
            use = self.inspection
            finder = CheckFinder(use.runner, use.checkouts, open_local_store(self.root), limit_s=limit_s)
            tried = ActivityEnvironment().run(finder.try_checks, tree, tree.snapshot(), goal)
        return choose_checks(tried, goal), tried

    def run(self) -> dict[str, tuple[GateCheck, ...]]:
        """Return the results of all gates."""
        gates, environment = self.trials()[0].checks, ActivityEnvironment()
        with self.holding() as tree:
            found, store = tree.snapshot(), open_local_store(self.root)
            runner = self.inspection.runner
            run_one = partial(run_gate, runner, tree=tree, store=store, expected_tree=found, cancelled=lambda: False)
            return {gate.title: environment.run(run_one, gate) for gate in gates}

    def states(self, goal: str) -> dict[str, bool]:
        """Return, as the packet says it, if each gate passed before the work."""
        scope = scope_of(self.root, "plan_1")
        self.inspection.workspaces.prepare(scope, take_over=lambda _id: False)
        request = InspectRequest(scope=scope, goal=goal)
        packet, _ = ActivityEnvironment().run(self.inspection.inspect, request, open_local_store(self.root))
        self.inspection.workspaces.release(scope)
        return {state.run: state.passed for state in packet.checks}

    @contextmanager
    def holding(self) -> Iterator[WorkingTree]:
        scope = scope_of(self.root, "plan_1")
        self.inspection.workspaces.prepare(scope, take_over=lambda _id: False)
        with self.inspection.workspaces.hold(scope) as tree:
            yield tree
        self.inspection.workspaces.release(scope)


@pytest.fixture
def inspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], Inspected]:
    sandbox = sandbox_named("bubblewrap")
    if problem := sandbox.probe():
        pytest.skip(f"bubblewrap does not work here: {problem}")
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    inspection = InspectionActivities(
        workspaces=Workspaces(),
        stores=open_local_store,
        ledgers=open_project,
        differ=Differ(),
        runner=CheckRunner(sandbox, SandboxSettings(), grace_s=0.5),
        checkouts=LocalCheckouts(),
        history=last_commits,
        packets=open_packets,
    )

    def make(files: dict[str, str]) -> Inspected:
        return Inspected(make_repository(tmp_path / "repo", files), inspection)

    return make


@pytest.fixture
def run_gates(inspect: Callable[[dict[str, str]], Inspected]) -> Callable[[dict[str, str]], Any]:
    return lambda files: inspect(files).run()


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
    assert list(ran) == ["ruff check .", "ruff format --check .", "mypy .", "pytest -q"]
    assert {name: checks[0].passed for name, checks in ran.items()} == {
        "ruff check .": False, "ruff format --check .": True, "mypy .": False, "pytest -q": False,
    }  # fmt: skip
    assert outcome(ran["ruff check ."])["gate:ruff check ./shop.py:1:8 F401"] is False
    assert outcome(ran["mypy ."])["gate:mypy ./shop.py:5 return-value"] is False
    assert outcome(ran["pytest -q"])["gate:pytest -q/tests/test_shop.py::test_price"] is False
    assert "1 failed, 1 passed" in ran["pytest -q"][0].message
    assert git(tmp_path / "repo", "status", "--porcelain") == b"", "what the tools cache is undone"


def test_gate_stays_where_a_task_removed_what_it_was_found_by(inspect: Callable[[dict[str, str]], Inspected]) -> None:
    project = inspect(PYTHON)
    before = project.trials()[0].checks
    (project.root / "tests" / "test_shop.py").unlink()
    write(project.root, {"pyproject.toml": "", "package.json": '{"scripts": {"test": "exit 0"}}'})
    with project.holding() as tree:
        find = partial(project.inspection.find_gates, tree, tree.snapshot(), open_local_store(project.root))
        find = partial(find, before=before, folder="", base="")
        after = ActivityEnvironment().run(find)
        named = ActivityEnvironment().run(partial(find, (Check(run="make"),)))
    assert [gate.run for gate in after] == [*(gate.run for gate in before), "npm test"]
    assert [gate.run for gate in named] == ["make"], "what people name is all"


EQUAL = "assert chunk([1, 2, 3]) == [[1, 2], [3]]\n"


@pytest.mark.parametrize(
    ("script", "text", "used"),
    [
        ("checks_chunks.py", EQUAL, "make test"),
        ("tests/run_checks.py", EQUAL, "make test"),
        ("test_chunks.py", EQUAL, "make test"),
        ("test_chunks.py", f"if __name__ == '__main__':\n    {EQUAL}", "make test"),
        ("test_chunks.py", f"def test_all():\n    {EQUAL}\n\ntest_all()\n", "pytest -q"),
    ],
)
def test_red_target_decides_unless_the_project_has_tests_by_name(
    inspect: Callable[[dict[str, str]], Inspected], script: str, text: str, used: str
) -> None:
    start = "import sys\n\nsys.path.insert(0, '.')\nfrom chunks import chunk\n\n"
    project = inspect(
        {
            "Makefile": f"test:\n\tpython3 {script}\n",
            "chunks.py": "def chunk(items):\n    return [items[:2]]\n",
            script: start + text,
        }
    )
    chosen, _ = project.trials("Fix chunk: it loses parts")
    assert [(check.run, check.known_failures) for check in chosen.checks] == [(used, ())], chosen.sentences


HOSTILE = {
    ".github/workflows/ci.yml": """
on: push
jobs:
  all:
    runs-on: ubuntu-latest
    steps:
      - run: pytest -q tests/test_good.py
      - run: make test
      - run: npm publish
      - run: python check_network.py
      - run: python check_home.py
      - run: pytest --token ${{ secrets.TOKEN }}
""",
    "Makefile": "test:\n\tpytest -q tests/test_good.py\n\trm -rf app.py tests\n",
    "app.py": "x = 1\n",
    "check_network.py": "import urllib.request\nurllib.request.urlopen('https://pypi.org', timeout=5)\n",
    "check_home.py": "import os, pathlib\npathlib.Path(os.environ['PROBE']).read_text()\n",
    "tests/test_good.py": "def test_good() -> None:\n    pass\n",
}


def test_hostile_ci_file_does_no_harm_and_each_of_its_commands_has_a_reason(
    inspect: Callable[[dict[str, str]], Inspected],
) -> None:
    project = inspect(HOSTILE)
    before = {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}
    chosen, tried = project.trials("add a feature")
    assert [check.run for check in chosen.checks] == ["pytest -q tests/test_good.py"]
    reasons = {trial.check.run: trial.not_used for trial in tried}
    assert reasons["make test"] == "it changes tracked files: app.py, tests/test_good.py"
    assert reasons["npm publish"] == "it publishes"
    assert reasons["python check_network.py"] == "it needs the network"
    assert reasons["pytest --token @@secrets.TOKEN@@"] == "it needs the secret TOKEN"
    assert "python check_home.py" not in [check.run for check in chosen.checks]
    now = {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}
    assert {path: now.get(path) for path in before} == before


def test_check_that_never_ends_is_stopped_and_said(inspect: Callable[[dict[str, str]], Inspected]) -> None:
    files = {"Makefile": "test:\n\tsleep 1000\n", "tests/test_a.py": "def test_a():\n    pass\n"}
    chosen, tried = inspect(files).trials(limit_s=15.0)
    assert [check.run for check in chosen.checks] == ["pytest -q"], "the next source takes its place"
    assert tried[0].not_used == "the check did not finish within 15 s"


def test_red_tests_are_known_by_name_and_decide_by_the_goal(inspect: Callable[[dict[str, str]], Inspected]) -> None:
    project = inspect(PYTHON)
    other = next(check for check in project.trials("add colours")[0].checks if check.run == "pytest -q")
    price = next(check for check in project.trials("fix price")[0].checks if check.run == "pytest -q")
    assert other.known_failures == ("tests/test_shop.py::test_price",)
    assert price.known_failures == ()


def test_gate_counts_as_red_until_the_failures_of_the_goal_are_gone(
    inspect: Callable[[dict[str, str]], Inspected],
) -> None:
    test = "def test_{0}() -> None:\n    assert 1 + 1 == 3\n"
    project = inspect({f"tests/test_{name}.py": test.format(name) for name in ("price", "stock")})
    assert project.states("fix price") == {"pytest -q": False}
    assert project.states("add colours") == {"pytest -q": True}


def test_check_that_keeps_a_cache_in_node_modules_decides(inspect: Callable[[dict[str, str]], Inspected]) -> None:
    script = "mkdir -p node_modules/.cache/nyc && echo 1 > node_modules/.cache/nyc/a"
    project = inspect({"package.json": json.dumps({"scripts": {"test": script}}), ".gitignore": "node_modules/\n"})
    (project.root / "node_modules/x").mkdir(parents=True)
    (project.root / "node_modules/x/index.js").write_text("")
    chosen, _ = project.trials()
    assert [check.run for check in chosen.checks] == ["npm test"], chosen.sentences
