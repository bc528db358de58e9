"""The gate on real projects: tests run in the sandbox, with the Python of the project."""

import json
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from temporalio.exceptions import CancelledError

from activities.sandbox.bubblewrap import BubblewrapSandbox
from activities.sandbox.choose import UnsafeLocal
from tests.support.gating import Judged, changed, make_lean_environment
from tests.support.git_sample import on_disk, user_state

OLD = "def grade(points):\n    return 'failed'\n"
NEW = """\
LIMIT = 50


def grade(points):
    if points > 100:
        raise ValueError(f"{points} points are too many")
    if points >= LIMIT:
        return "passed"
    return "failed"
"""
REAL = "from grades import grade\n\n\ndef test_limit():\n    assert grade(50) == 'passed'\n"
Making = Callable[..., AbstractContextManager[Judged]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `.venv` with pytest and hypothesis."""
    if problem := BubblewrapSandbox().probe():
        pytest.skip(f"bubblewrap does not work here: {problem}")
    return make_lean_environment(tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture
def making(tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch) -> Making:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    return partial(changed, tmp_path / "project", environment=environment)


@pytest.fixture
def judging(making: Making) -> Iterator[Callable[..., Judged]]:
    """Yield what makes a project with one changed module and one test file."""
    with ExitStack() as stack:

        def make(test: str, files: dict[str, str] | None = None, *, old: str = OLD, new: str = NEW) -> Judged:
            before = {"grades.py": old, "README.md": "grades\n"}
            return stack.enter_context(making(before, {"grades.py": new, "tests/test_it.py": test, **(files or {})}))

        yield make


Judging = Callable[..., Judged]


def test_a_test_that_can_fail_is_accepted_and_told_what_it_does_not_notice(judging: Judging) -> None:
    project = judging(REAL)
    disk, user = on_disk(project.tree.root), user_state(project.tree.root)
    report = project.judge("tests/test_it.py")
    [accepted] = report.accepted
    assert accepted.test == "tests/test_it.py::test_limit"
    assert accepted.fails_before
    assert accepted.killed >= 2
    assert report.refused == ()
    assert 'grades.py:6: `raise ValueError(f"{points} points are too many")` was removed' in report.survived
    assert not any("points >= LIMIT` became `points > LIMIT" in line for line in report.survived)
    assert (report.coverage.covered, report.coverage.total) == (4, 6)
    assert set(report.coverage.missing) == {"grades.py:6", "grades.py:9"}
    assert project.pids
    assert (on_disk(project.tree.root), user_state(project.tree.root)) == (disk, user)


def test_it_works_where_a_checkout_cannot_lie_at_the_path_of_the_workspace(judging: Judging) -> None:
    project = judging(REAL)
    report = replace(project, gate=replace(project.gate, sandbox=UnsafeLocal())).judge("tests/test_it.py")
    assert [one.fails_before for one in report.accepted] == [True]
    assert report.accepted[0].killed >= 2


def test_constants_of_a_module_have_mutants_although_they_are_read_once(judging: Judging) -> None:
    report = judging("import grades\n\ndef test_it():\n    assert grades.LIMIT == 50\n").judge("tests/test_it.py")
    [accepted] = report.accepted
    assert not accepted.fails_before
    assert accepted.killed == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("grade(70)", "asserts nothing"),
        ("assert grade(70) is not None", "only asserts that there is a result"),
        ("assert 'failed' in ('passed', 'failed')", "only asserts constants"),
        ("try:\n        assert grade(70) == 'x'\n    except AssertionError:\n        pass", "only with an error"),
        ("try:\n        grade(70)\n    except Exception:\n        assert False", "only with an error"),
        ("import os\n    os._exit(0)", "can see how it is run"),
        ("assert grade(70) == 'wrong'", "fails on the tree with the change"),
        ("assert Path(__file__).name == 'test_it.py'", "executes none of the changed lines"),
        ("while True: pass", "longer than 2 s"),
        ("open('/tmp/once', 'x')\n    assert grade(70) == 'passed'", "varies between runs"),
        ("pytest.skip('later')\n    assert grade(70) == 'passed'", "is skipped"),
        ("import ctypes\n    ctypes.string_at(0)", "ends Python"),
    ],
)
def test_a_test_that_proves_nothing_is_refused_with_the_reason(body: str, said: str, judging: Judging) -> None:
    start = "from pathlib import Path\nimport pytest\nfrom grades import grade\n\ndef test_it():\n    "
    project = judging(start + body + "\n")
    report = replace(project, gate=replace(project.gate, test_limit_s=2.0)).judge("tests/test_it.py")
    assert report.accepted == ()
    assert said in report.refused[0].reason


def test_decorated_nested_and_async_functions_are_mutated_where_they_are(judging: Judging) -> None:
    new = """\
import asyncio
import functools


def twice(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args) + function(*args)
    return inner


@twice
def one(x):
    return x + 1


class Thing:
    @property
    def size(self):
        return max(len(part) for part in self.parts)

    @classmethod
    async def made(cls, *parts):
        await asyncio.sleep(0)
        self = cls()
        self.parts = [part for part in parts if part]
        return self
"""
    test = """\
import asyncio
from grades import Thing, one

def test_one():
    assert one(2) == 6

def test_size():
    assert asyncio.run(Thing.made("ab", "", "a")).size == 2
"""
    report = judging(test, new=new, old="").judge("tests/test_it.py")
    assert {one.test: one.killed > 0 for one in report.accepted} == {
        "tests/test_it.py::test_one": True,
        "tests/test_it.py::test_size": True,
    }
    assert not any("x + 1" in line or "function(*args) +" in line or "max(" in line for line in report.survived)


def test_a_mutant_that_never_ends_takes_bounded_time_and_has_not_survived(judging: Judging) -> None:
    new = "def count(n):\n    i = 0\n    while i < n:\n        i += 1\n    return i\n"
    test = "from grades import count\n\ndef test_it():\n    assert count(3) == 3\n"
    report = judging(test, new=new, old="").judge("tests/test_it.py")
    assert report.accepted
    assert not any("i += 1` became" in line for line in report.survived)
    assert report.duration_s < 60


def test_a_change_without_python_counts_by_failing_before(making: Making) -> None:
    test = "from pathlib import Path\n\ndef test_it():\n    assert Path('greeting.txt').read_text() == 'hello\\n'\n"
    with making({"greeting.txt": "hullo\n"}, {"greeting.txt": "hello\n", "tests/test_it.py": test}) as project:
        [accepted] = project.judge("tests/test_it.py").accepted
    assert accepted.fails_before


def test_what_tests_need_comes_with_them_to_the_tree_before(judging: Judging) -> None:
    start = "from tests.numbers_of import MANY\nfrom grades import grade\n\n"
    test = f"{start}def test_it(enough):\n    assert [grade(n) for n in MANY] == [enough]\n"
    files = {
        "tests/__init__.py": "",
        "tests/numbers_of.py": "MANY = [60]\n",
        "tests/conftest.py": "import pytest\n\n@pytest.fixture\ndef enough():\n    return 'passed'\n",
    }
    [accepted] = judging(test, files).judge("tests/test_it.py").accepted
    assert accepted.fails_before


def test_files_that_cannot_be_collected_are_refused_and_the_others_judged(judging: Judging) -> None:
    project = judging(REAL, {"tests/test_broken.py": "import nothing_of_the_kind\n", "tests/test_none.py": "x = 1\n"})
    report = project.judge("tests/test_it.py", "tests/test_broken.py", "tests/test_none.py")
    assert len(report.accepted) == 1
    reasons = {one.test: one.reason for one in report.refused}
    assert "No module named 'nothing_of_the_kind'" in reasons["tests/test_broken.py"]
    assert "No tests were collected" in reasons["tests/test_none.py"]


def test_a_python_without_pytest_is_named_with_what_to_do(making: Making, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True, with_pip=False)
    with making({"grades.py": OLD}, {"grades.py": NEW, "tests/test_it.py": REAL}, environment=bare) as project:
        report = project.judge("tests/test_it.py")
    [refused] = report.refused
    assert refused.test == "tests/test_it.py"
    assert ".venv/bin/python3" in refused.reason
    assert "Install pytest in the project's .venv" in refused.reason


@pytest.mark.parametrize(
    "hook",
    [
        "def pytest_runtest_makereport(item, call):\n    done = yield\n    done.get_result().outcome = 'passed'\n",
        "def pytest_runtest_call(item):\n    done = yield\n    done.force_exception(AssertionError('forged'))\n",
    ],
    ids=["all pass", "all fail"],
)
def test_hooks_that_rewrite_results_make_no_test_count(hook: str, judging: Judging) -> None:
    conftest = f"import pytest\n\n@pytest.hookimpl(hookwrapper=True)\n{hook}"
    report = judging(REAL, {"conftest.py": conftest}).judge("tests/test_it.py")
    assert report.accepted == ()
    assert "Hooks" in report.refused[0].reason or "fails on the tree" in report.refused[0].reason


def test_a_test_that_writes_a_report_of_its_own_does_not_count(judging: Judging) -> None:
    forged = json.dumps({"outcome": "failed", "assertion": True, "place": "test", "honest": True})
    test = f"""\
import os
from grades import grade

def test_it():
    grade(70)
    for descriptor in range(3, 60):
        try:
            os.write(descriptor, {forged!r}.encode() + b"\\n")
        except OSError:
            pass
"""
    report = judging(test).judge("tests/test_it.py")
    assert report.accepted == ()


def test_a_slow_suite_ends_in_time_and_says_what_is_missing(judging: Judging) -> None:
    test = (
        "import time\nfrom grades import grade\n\ndef test_it():\n    time.sleep(1)\n    assert grade(50) == 'passed'\n"
    )
    report = judging(test).judge("tests/test_it.py", time_limit_s=8)
    assert any("There was only time to test" in note for note in report.notes)
    assert report.accepted
    assert report.duration_s < 40


def test_cancelling_ends_it_at_once(judging: Judging) -> None:
    asked = iter(range(5))
    project = judging("def test_it():\n    while True: pass\n")
    with pytest.raises(CancelledError, match="the test gate was stopped"):
        project.judge("tests/test_it.py", cancelled=lambda: next(asked, None) is None)
