"""What a passing check is worth: proofs of real projects whose work suppresses, asserts nothing, is flaky or copied."""

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.artifacts.stores import open_local_store
from activities.checks.activity import CommandResult
from activities.checks.runner import CheckRunner
from activities.proof.checkouts import LocalCheckouts
from activities.proof.copies import list_later_commits
from activities.proof.proving import Subject, prove_tree
from activities.proof.runs import Runs
from activities.sandbox.choose import choose_sandbox
from activities.sandbox.port import Sandbox
from activities.workspace.working_tree import Workspaces
from tests.data.proof import CALC, FIXED
from tests.support.git_sample import git, make_repository, scope_of, write
from tightloop.episode.check import Check, ProofRule
from tightloop.episode.proof import Proof
from tightloop.episode.proof.report import CheckBaseline, InitialState
from tightloop.run.core import Evidence
from tightloop.settings import SandboxSettings

PYTEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q -p no:cacheprovider"
LINT = "! grep -n 'str(a)' calc.py | grep -v 'type: ignore'"
TYPED = "def add(a, b):\n    return str(a) + b\n"
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(2, 2) == 4\n"
COUNTING = """_calls = 0


def add(a, b):
    global _calls
    _calls += 1
    return a + b if _calls == 1 else a - b
"""
LEAVING = """from pathlib import Path

from calc import add


def test_add():
    assert add(2, 2) == 4
    assert not Path("left").exists()
    Path("left").touch()
"""
REGISTERING = """from calc import add

_seen = []


def test_once():
    assert not _seen
    _seen.append(add)


def test_add():
    assert add(2, 2) == 4
"""
SPOKEN = """import words


def add(a, b):
    return words.spell(a - b)
"""
WORDS = """point = "."


def spell(number):
    return f"{number:.1f}".replace(".", point)
"""
SWITCHING = """import calc
import words


def test_zero():
    assert calc.add(0, 0) == "0.0"


def test_add():
    assert calc.add(2, 2) == "4.0"


def test_comma():
    words.point = ","
    assert calc.add(0, 0) == "0,0"
"""
Prove = Callable[..., Proof]


class FailingOnce(CheckRunner):
    """Runs checks, except that one run fails."""

    def __init__(self, sandbox: Sandbox, settings: SandboxSettings, fails_at: int) -> None:
        super().__init__(sandbox, settings)
        self._runs, self._fails_at = 0, fails_at

    def run(self, check: Check, *rest: Any, **named: Any) -> CommandResult:
        """Run the check, or `false` if it is its turn to fail."""
        self._runs += 1
        return super().run(check.evolve(run="false") if self._runs == self._fails_at else check, *rest, **named)


@pytest.fixture
def prove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prove:
    """Prove work in a repository, from the baseline on."""
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))

    def run(
        base: dict[str, str],
        work: dict[str, str],
        command: str,
        later: dict[str, str] | None = None,
        fails_at: int = 0,
        twice_limit_s: float = 60.0,
    ) -> Proof:
        root = make_repository(tmp_path / "project", {".gitignore": "__pycache__/\n", **base})
        if later:
            git(root, "checkout", "-q", "-b", "later")
            write(root, later)
            git(root, "commit", "-qam", "Fix add")
            git(root, "checkout", "-q", "main")
        settings = SandboxSettings(read=(sys.prefix, sys.base_prefix))
        workspaces, scope = Workspaces(lock_wait=timedelta(seconds=10)), scope_of(root)
        workspaces.prepare(scope, take_over=lambda _: True)
        with workspaces.hold(scope) as tree:
            runner = FailingOnce(choose_sandbox(settings), settings, fails_at)
            use = Runs(
                tree,
                open_local_store(root),
                runner,
                LocalCheckouts(),
                lambda: False,
                lambda _: None,
                twice_limit_s=twice_limit_s,
            )
            begun, checks = tree.snapshot(), (Check(run=command),)
            baselines = tuple(
                CheckBaseline(run=command, passed=outcome.result.passed, observation=outcome.observation)
                for outcome in use.run_in_place(checks, begun)
            )
            commits = list_later_commits(root)
            beginning = InitialState(tree=begun, root=str(root), checks=baselines, later_commits=commits)
            write(root, work)
            return prove_tree(
                use,
                Subject("Fix add()", "Fix add()", checks),
                workflow_id="ep-1",
                delivered=tree.snapshot(),
                beginning=beginning,
                evidence=Evidence(seen_to_fail=True, worked=True),
            )

    return run


def rules(proof: Proof) -> list[ProofRule]:
    return [finding.rule for finding in proof.open_findings]


def test_a_check_that_needs_a_new_suppression_is_doubted(prove: Prove) -> None:
    proof = prove({"calc.py": TYPED}, {"calc.py": TYPED.replace("+ b", "+ b  # type: ignore")}, LINT)
    assert rules(proof) == [ProofRule.CHECKS_SUPPRESSED]
    assert proof.open_findings[0].evidence == ("calc.py:2: return str(a) + b  # type: ignore",)


def test_a_suppression_that_no_check_needs_is_not(prove: Prove) -> None:
    work = {"calc.py": FIXED.replace("a + b", "a + b  # type: ignore"), "tests/test_calc.py": TEST}
    assert rules(prove({"calc.py": CALC, "tests/test_calc.py": TEST}, work, f"{PYTEST} && grep -q '+ b' calc.py")) == []


def test_new_tests_that_pass_without_the_product_are_doubted(prove: Prove) -> None:
    base = {"calc.py": CALC, "tests/test_calc.py": TEST, "pytest.ini": "[pytest]\npythonpath = .\n"}
    empty = "from calc import add, mul\n\n\ndef test_more():\n    add(1, 2)\n    assert mul\n"
    assert rules(prove(base, {"calc.py": FIXED, "tests/test_more.py": empty}, PYTEST)) == [ProofRule.EMPTY_TESTS]


def test_new_tests_that_need_the_product_are_not(prove: Prove) -> None:
    base = {"calc.py": CALC, "tests/test_calc.py": TEST, "pytest.ini": "[pytest]\npythonpath = .\n"}
    more = "from calc import add, mul\n\n\ndef test_more():\n    assert add(1, 2) == 3\n"
    assert rules(prove(base, {"calc.py": FIXED, "tests/test_more.py": more}, PYTEST)) == []


def test_a_file_of_a_later_commit_is_named(prove: Prove) -> None:
    proof = prove({"calc.py": CALC}, {"calc.py": FIXED}, "grep -q 'a + b' calc.py", later={"calc.py": FIXED})
    assert rules(proof) == [ProofRule.COPIED]
    assert "Fix add" in proof.open_findings[0].evidence[0]


def test_a_flaky_check_is_repeated_and_named(prove: Prove) -> None:
    # The baseline fails twice, so the third run is the first one of the proof.
    proof = prove({"calc.py": CALC}, {"calc.py": FIXED}, "grep -q 'a + b' calc.py", fails_at=3)
    assert rules(proof) == []
    assert any("flaky" in line for line in proof.not_held)


def test_a_product_that_counts_its_calls_is_doubted(prove: Prove) -> None:
    base = {"calc.py": CALC, "tests/test_calc.py": TEST, "pytest.ini": "[pytest]\npythonpath = .\n"}
    proof = prove(base, {"calc.py": COUNTING}, PYTEST)
    assert rules(proof) == [ProofRule.SUSPICIOUS]
    assert proof.open_findings[0].evidence == ("tests/test_calc.py::test_add",)


def test_a_product_that_counts_its_calls_is_not_seen_where_the_second_run_is_off(prove: Prove) -> None:
    base = {"calc.py": CALC, "tests/test_calc.py": TEST, "pytest.ini": "[pytest]\npythonpath = .\n"}
    assert rules(prove(base, {"calc.py": COUNTING}, PYTEST, twice_limit_s=0)) == []


@pytest.mark.parametrize("test", [LEAVING, REGISTERING], ids=["leaves a file", "never ran twice"])
def test_a_test_that_cannot_run_twice_is_not_doubted(prove: Prove, test: str) -> None:
    base = {"calc.py": CALC, "tests/test_calc.py": test, "pytest.ini": "[pytest]\npythonpath = .\n"}
    assert rules(prove(base, {"calc.py": FIXED}, PYTEST)) == []


def test_a_repaired_test_of_a_file_that_leaves_something_behind_is_not_doubted(prove: Prove) -> None:
    base = {"calc.py": SPOKEN, "words.py": WORDS, "tests/test_calc.py": SWITCHING}
    base |= {"pytest.ini": "[pytest]\npythonpath = .\n"}
    assert rules(prove(base, {"calc.py": SPOKEN.replace("a - b", "a + b")}, PYTEST)) == []


def test_results_of_earlier_runs_are_no_later_commits(workspace: Path) -> None:
    git(workspace, "switch", "--quiet", "-c", "tightloop/one")
    (workspace / "app.py").write_text("print('done')\n")
    git(workspace, "commit", "--quiet", "-am", "Fix it\n\nTightloop-Run: one")
    git(workspace, "switch", "--quiet", "-c", "later", "main")
    (workspace / "app.py").write_text("print('later')\n")
    git(workspace, "commit", "--quiet", "-am", "Do more")
    later = subprocess.check_output(("git", "rev-parse", "HEAD"), cwd=workspace, text=True).strip()
    git(workspace, "switch", "--quiet", "main")
    assert list_later_commits(workspace) == (later,)
