"""The planner without a model, on real projects: real checks, real fixes, until all is green."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from activities.planner.activity import enforced_plan
from activities.planner.planners import HeuristicPlanner, ProjectRuff
from activities.sandbox.choose import UnsafeLocal
from tightloop.episode.check import Check, CheckReport, judge
from tightloop.episode.planning import Briefing, PlannerAnswer, PlanVerdict
from tightloop.episode.progress.course import history_line
from tightloop.executor.message import PlanMessage, PlanRequestMessage, parse_plan, render_plan
from tightloop.settings import SandboxSettings

BIN = Path(sys.executable).parent
TOOLS = pytest.mark.skipif(not (BIN / "ruff").exists(), reason="ruff is not installed next to this Python")
LIMIT = 15
RUFF = ProjectRuff(UnsafeLocal(), SandboxSettings())

MODULE = """\
import sys
import os
from collections import Mapping, OrderedDict

def kind(x, seen=[]):
    seen.append(x)
    if x is "map":
        return isinstance({}, Mapping), len(seen)
    unused = 1
    return f"other", len(seen)
class Todo:
    def run(self): raise NotImplemented("later")
"""
TESTS = """\
import pytest

from demo import Todo, kind


def test_each_call_starts_anew():
    assert kind("".join(["m", "ap"])) == (True, 1)
    assert kind("".join(["m", "ap"])) == (True, 1)


def test_todo_is_not_implemented():
    with pytest.raises(NotImplementedError):
        Todo().run()
"""
CONFIG = """\
[tool.ruff]
target-version = "py311"
[tool.ruff.lint]
select = ["F", "I", "UP"]
[tool.pytest.ini_options]
pythonpath = ["."]
addopts = "-p no:cacheprovider"
"""


def project(folder: Path, **files: str) -> Path:
    for name, content in {"pyproject.toml": CONFIG, **files}.items():
        (folder / name.replace("__", ".")).write_text(content, encoding="utf-8")
    return folder


@dataclass
class Loop:
    """A whole episode in miniature: check, plan, run, record."""

    root: Path
    commands: tuple[str, ...]
    programs: tuple[str, ...] = ("ruff", "pytest")
    history: list[str] = field(default_factory=list)
    plans: list[PlanMessage] = field(default_factory=list)

    def run(self, command: list[str] | str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command,
            cwd=self.root,
            shell=isinstance(command, str),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )

    def report(self) -> CheckReport:
        results = []
        for command in self.commands:
            done = self.run(command)
            results.append(
                judge(
                    Check(run=command),
                    tree="t",
                    exit_code=done.returncode,
                    timed_out=False,
                    duration_s=0.1,
                    output=done.stdout,
                )
            )
        return CheckReport(tree="t", results=tuple(results))

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text(encoding="utf-8") for path in sorted(self.root.glob("*.py"))}

    async def pursue(self) -> PlannerAnswer:
        """Iterate until the planner claims done or gives up."""
        planner = HeuristicPlanner(RUFF)
        report = self.report()
        for iteration in range(1, LIMIT):
            request = PlanRequestMessage(outcome="completed", history=tuple(self.history))
            briefing = Briefing(
                project="sample",
                goal="all green",
                definition_of_done=self.commands,
                iteration=iteration,
                plan_request=request,
                checks=report,
                programs=self.programs,
                root=str(self.root),
            )
            answer = await enforced_plan(planner, briefing)
            if answer.verdict is not PlanVerdict.PLANNED or answer.message is None:
                return answer
            report = self.deliver(answer.message, report)
        raise AssertionError(f"no end after {LIMIT} iterations: {self.history}")

    def deliver(self, plan: PlanMessage, before: CheckReport) -> CheckReport:
        assert parse_plan(render_plan(plan)) == plan
        assert len(plan.steps) == 1
        self.plans.append(plan)
        files = self.files()
        done = self.run(list(plan.steps[0].run))
        assert done.returncode == 0, done.stdout
        after = self.report()
        passed = [f"{len(r.results) - len(r.failed)}/{len(r.results)}" for r in (before, after)]
        changed = files != self.files()
        line = history_line(
            plan.iteration,
            plan.steps[0].title,
            command=plan.steps[0].run,
            before=passed[0],
            after=passed[1],
            changed=changed,
        )
        self.history.append(line)
        return after


def codes(loop: Loop) -> list[str]:
    runs = [plan.steps[0].run for plan in loop.plans]
    return [run[run.index("--select") + 1] if "--select" in run else run[1] for run in runs]


@TOOLS
async def test_broken_project_gets_green_one_cause_a_plan(tmp_path: Path) -> None:
    root = project(tmp_path, demo__py=MODULE, test_demo__py=TESTS)
    loop = Loop(root, ("pytest -q", "ruff check .", "ruff format --check ."))
    answer = await loop.pursue()
    assert answer.verdict is PlanVerdict.CLAIMS_DONE, (answer.reason, loop.history)
    assert loop.report().green
    assert all(not line.endswith("(no change)") for line in loop.history), "\n".join(loop.history)
    assert codes(loop)[0] == "UP035"
    assert {"UP035", "F632", "F901", "B006", "F401", "F541", "format"} <= set(",".join(codes(loop)).split(","))
    assert len(loop.plans) == len(set(codes(loop)))
    assert all(plan.reflection.diagnosis and plan.alignment.rationale for plan in loop.plans)


@TOOLS
async def test_bug_without_a_trace_is_found_by_probing(tmp_path: Path) -> None:
    module = 'def total(x, sums={"n": 0}):\n    sums["n"] += x\n    return sums["n"]\n'
    tests = "from demo import total\n\n\ndef test_total():\n    total(1)\n    assert total(2) == 2\n"
    loop = Loop(project(tmp_path, demo__py=module, test_demo__py=tests), ("pytest -q",))
    answer = await loop.pursue()
    assert answer.verdict is PlanVerdict.CLAIMS_DONE, (answer.reason, loop.history)
    assert "B006" in codes(loop)[-1].split(",")


@TOOLS
async def test_real_bug_is_given_up_with_the_error_and_a_way_on(tmp_path: Path) -> None:
    module, tests = "def two():\n    return 3\n", "from demo import two\n\n\ndef test_two():\n    assert two() == 2\n"
    loop = Loop(project(tmp_path, demo__py=module, test_demo__py=tests), ("pytest -q", "ruff check ."))
    before = loop.files()
    answer = await loop.pursue()
    assert answer.verdict is PlanVerdict.GAVE_UP
    assert "'pytest -q'" in answer.reason
    assert "assert 3 == 2" in answer.reason
    assert "OPENAI_API_KEY" in answer.reason
    assert loop.files() == before


@TOOLS
async def test_only_programs_of_the_executor_are_used(tmp_path: Path) -> None:
    loop = Loop(project(tmp_path, demo__py="import os\n"), ("ruff check .",), programs=("git",))
    answer = await loop.pursue()
    assert answer.verdict is PlanVerdict.GAVE_UP
    assert "needs ruff, which the executor is not allowed to run (allowed: git)" in answer.reason


@pytest.mark.parametrize("checks", [None, CheckReport()])
async def test_nothing_to_read_is_given_up_at_once(checks: CheckReport | None) -> None:
    answer = await HeuristicPlanner(RUFF).plan(Briefing(goal="x", checks=checks))
    assert answer.verdict is PlanVerdict.GAVE_UP
    assert "definition of done" in answer.reason
    assert answer.usage is None


@TOOLS
def test_the_project_s_ruff_says_what_it_can_fix(tmp_path: Path) -> None:
    rules = RUFF.rules((str(BIN / "ruff"),), tmp_path)
    assert not rules.problem
    assert "E722" in rules.without_fix
    assert "F401" not in rules.without_fix
    assert RUFF.rules((str(BIN / "ruff"),), tmp_path) is rules, "each version is asked once"


def test_a_ruff_that_is_missing_is_named(tmp_path: Path) -> None:
    rules = RUFF.rules(("no-such-ruff",), tmp_path)
    assert "no-such-ruff" in rules.problem
    assert not rules.without_fix
