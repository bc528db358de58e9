"""Commands and tests that a model runs: judged first, in the sandbox, and told in bounds."""

from pathlib import Path

import pytest

from activities.coder.port import ToolContext, ToolResult
from activities.sandbox.choose import choose_sandbox
from activities.workspace.working_tree import Workspaces
from tests.support.coder_tools import SETTINGS, Bench, Notebook, bench
from tests.support.git_sample import on_disk, scope_of
from tightloop.executor.model import Grant
from tightloop.run.question import QuestionKind

FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\ndef test_add():\n    assert add(1, 2) == 3\n\ndef test_zero():\n"
    "    open('left.txt', 'w').close()\n    assert add(0, 0) == 0\n",
    ".gitignore": "__pycache__/\n.env\n",
    ".env": "PASSWORD=no\n",
}
PYTEST = "python3 -m pytest -q -p no:cacheprovider"


@pytest.fixture
def made(tmp_path: Path) -> Bench:
    return bench(tmp_path, FILES, checks=(PYTEST, "test -f calc.py"))


def test_a_command_tells_exit_code_and_both_streams(made: Bench) -> None:
    said = made.failed("run_command", command="echo out; echo err >&2; exit 3")
    assert said.startswith("exit code 3 after 0.")
    assert said.endswith("out\nerr")
    assert "exit code 0" in made.done("run_command", command="true")


def test_long_output_keeps_its_ends_and_the_rest_is_read_by_its_name(made: Bench) -> None:
    said = made.done("run_command", command="seq 1 9000")
    assert len(said) < 10_200
    assert said.endswith("9000")
    name = said.partition("read_file ")[2].partition(" ")[0]
    assert "4500\t4499" in made.done("read_file", path=name, start=4_500, end=4_500)


def test_secrets_are_taken_out_of_output_before_it_is_stored(made: Bench) -> None:
    key = "ghp_" + "aB3dE5gH7j" * 3 + "kL9mN1"
    (made.root / "k.txt").write_text(key)
    said = made.done("run_command", command="cat k.txt")
    assert key not in said
    assert "[secret:" in said
    for path in made.state.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes()


def test_what_takes_too_long_is_ended(made: Bench) -> None:
    assert "timed out after 1 s" in made.failed("run_command", command="sleep 30", timeout_s=1)


def test_what_is_cancelled_is_ended(made: Bench) -> None:
    result = made.use("run_command", {"command": "sleep 30"}, cancelled=lambda: True)
    assert "stopped before it finished" in made.text(result)


def test_git_and_protected_files_cannot_be_written_by_a_command(made: Bench) -> None:
    if "bubblewrap" not in choose_sandbox(SETTINGS).name:
        pytest.skip("no sandbox with walls works here")
    config = (made.root / ".git/config").read_bytes()
    assert made.use("run_command", {"command": "echo bad >> .git/config"}).failed
    assert made.use("run_command", {"command": "echo bad > .env"}).failed
    said = made.done("run_command", command="mkdir sub; echo bad > sub/.env; echo fine > sub/b.txt")
    assert "removed sub/.env" in said
    assert (made.root / ".git/config").read_bytes() == config
    assert (made.root / ".env").read_text() == FILES[".env"]
    assert sorted(path.name for path in (made.root / "sub").iterdir()) == ["b.txt"]


class TestRules:
    def test_what_destroys_is_refused_and_not_asked_for(self, made: Bench) -> None:
        files = on_disk(made.root)
        assert "rule destructive_command" in made.failed("run_command", command="echo hi; rm -rf ~/")
        assert on_disk(made.root) == files

    def test_what_publishes_asks_a_person_and_goes_on_after_the_answer(self, made: Bench) -> None:
        command = {"command": "git push origin main || echo tried > tried.txt"}
        result = made.use("run_command", command, turn=1)
        question = result.question
        assert question is not None
        assert question.kind is QuestionKind.PERMISSION
        assert "git push origin main" in question.title
        assert any("publishes" in line for line in question.evidence)
        assert not (made.root / "tried.txt").exists()

        made.grants = (Grant(fingerprint=question.fingerprint, allowed=True),)
        assert not made.use("run_command", command, turn=1).failed
        assert (made.root / "tried.txt").exists()

    def test_what_a_person_refused_is_told_with_the_reason(self, made: Bench) -> None:
        command = {"command": "git push origin main"}
        question = made.use("run_command", command, turn=1).question
        assert question is not None
        made.grants = (Grant(fingerprint=question.fingerprint, allowed=False, text="not today"),)
        result = made.use("run_command", command, turn=1)
        assert result.failed
        assert made.text(result) == "a person rejected the command, so it was not run: not today"

    @pytest.mark.parametrize(("tool", "arguments"), [("run_command", {"command": "touch ran"}), ("run_tests", {})])
    def test_nothing_runs_before_the_review_has_passed(self, made: Bench, tool: str, arguments: dict[str, str]) -> None:
        seen: list[ToolContext] = []

        def refuse(context: ToolContext) -> ToolResult:
            seen.append(context)
            return ToolResult("calc.py line 1 calls eval", failed=True)

        made.review = refuse
        result = made.use(tool, arguments)
        assert (result.failed, made.text(result)) == (True, "calc.py line 1 calls eval")
        assert not (made.root / "ran").exists()
        assert not (made.root / "left.txt").exists()
        assert [context.root for context in seen] == [made.root]
        made.done("read_file", path="calc.py")
        assert len(seen) == 1


class TestRunTests:
    def test_the_whole_definition_of_done_is_run(self, made: Bench) -> None:
        said = made.failed("run_tests")
        assert said.startswith("1 of 2 failed\n\nFAILED: " + PYTEST)
        assert "test_calc.py::test_add" in said
        assert "passed: test -f calc.py" in said
        made.done("edit_file", path="calc.py", old="a - b", new="a + b")
        assert made.done("run_tests").startswith("all passed")

    def test_single_tests_are_run_by_the_pytest_of_a_check(self, made: Bench) -> None:
        said = made.done("run_tests", tests=["test_calc.py::test_zero"])
        assert "1 passed" in said
        assert "python3 -m pytest -q test_calc.py::test_zero" in said
        assert "is not a test name" in made.failed("run_tests", tests=["--collect-only"])
        made.checks = ("make check",)
        assert "no check runs pytest (make check)" in made.failed("run_tests", tests=["test_calc.py"])
        made.checks = ()
        assert "has no checks" in made.failed("run_tests")

    def test_what_tests_write_is_undone_where_the_tree_is_held(self, made: Bench) -> None:
        (made.root / "mine.txt").write_text("not committed\n")
        files = on_disk(made.root)
        with Workspaces().hold(scope_of(made.root)) as tree:
            result = made.use("run_tests", {"tests": ["test_calc.py::test_zero"]}, tree=tree)
        assert not result.failed
        # Caches ignore themselves.
        left = {name: entry for name, entry in on_disk(made.root).items() if "cache" not in name}
        assert left == files


class TestPeopleAndMemory:
    def test_a_question_is_asked_once_and_its_answer_is_the_result(self, made: Bench) -> None:
        arguments = {"question": "Which rounding\n is meant?", "detail": "half up or half even"}
        first = made.use("ask_person", arguments, turn=1)
        assert first.question is not None
        assert (first.question.kind, first.question.title) == (QuestionKind.CLARIFICATION, "Which rounding is meant?")
        assert first.question.names == ("answer", "skip")
        assert first.question.evidence == ("half up or half even",)
        made.grants = (Grant(fingerprint=first.question.fingerprint, allowed=True, text="half even"),)
        answered = made.use("ask_person", arguments, turn=1)
        assert made.text(answered) == "the person answered: half even"
        made.grants = ()
        assert made.use("ask_person", arguments, turn=1) == answered

    def test_a_question_that_was_skipped_is_left_to_the_model(self, made: Bench) -> None:
        question = made.use("ask_person", {"question": "why?"}).question
        assert question is not None
        made.grants = (Grant(fingerprint=question.fingerprint, allowed=False),)
        assert made.done("ask_person", question="why?") == "the person left the decision to you"

    def test_facts_are_kept_and_found(self, made: Bench) -> None:
        assert "no memory" in made.done("memory_search", query="tests")
        assert "no memory" in made.done("remember", key="tests", text="run pytest")
        made.memory = Notebook()
        made.done("remember", key="tests", text="run pytest")
        assert made.done("memory_search", query="pytest") == "run pytest"
        assert made.done("memory_search", query="nothing") == "the memory contains nothing relevant"

    def test_finish_ends_with_what_the_model_says(self, made: Bench) -> None:
        result = made.use("finish", {"summary": "add adds now"})
        assert (result.finished, made.text(result)) == (True, "add adds now")
