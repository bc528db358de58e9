"""The plan commands without a server: what they say of files, and how a plan's state is shown."""

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console, RenderableType

from tightloop.cli.main import app
from tightloop.cli.plan_file import in_order, read_inputs
from tightloop.cli.views import end_lines, event_line, record_lines, status_panel, todo_lines
from tightloop.client import Event
from tightloop.client.store import Store
from tightloop.errors import ArtifactCorruptError, InvalidRequestError, WorkspaceError
from tightloop.host import state_folder
from tightloop.plan.action import Option
from tightloop.plan.child import StepFailure, StepRecord, StepResult, StepStatus
from tightloop.plan.engine.state import choices
from tightloop.plan.failing import FailureClass
from tightloop.plan.request import PlanOutcome, PlanStatus, StepLine
from tightloop.plan.step import Step
from tightloop.plan.text.reading import read_plan
from tightloop.run.question import Answer, Question, QuestionKind
from tightloop.run.question import Option as Choice
from tightloop.value import reference

COMMANDS = ("validate", "graph", "show", "run", "replan", "run-step")
PLAN = """\
id: repair
title: Repair and release
inputs: {version: "1"}
steps:
  - {id: note, needs: [release], shell: {run: "echo ${plan.version}"}, access: none}
  - id: release
    needs: [fix]
    gate: {approval: {role: maintainer, question: "Release?"}}
  - {id: fix, title: Fix it, kind: implement, edit: {files: [{path: a.txt, content: new}]}, timeout_s: 30}
definition_of_done: ["true"]
"""
WRONG = """\
id: wrong
steps:
  - {id: build, shell: {run: make}}
  - {id: test, needs: [biuld], shell: {run: make test}}
  - {id: other, needs: [other], shell: {run: make}}
"""
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def run(*arguments: str, text: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ("plan", *arguments), input=text)
    return result.exit_code, result.stdout, result.stderr


def shown(renderable: RenderableType) -> str:
    out = StringIO()
    Console(file=out, width=200).print(renderable)
    return out.getvalue()


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return str(path)


def test_help_names_every_plan_command() -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert [name for name in COMMANDS if f" {name} " not in out] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_plan_command_explains_itself(command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "Usage" in out


def test_a_right_plan_is_called_ok(plan_file: str) -> None:
    assert run("validate", plan_file) == (0, f"{plan_file}: ok, 3 steps\n", "")


def test_all_problems_are_told_with_place_and_closest_word(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(WRONG)
    code, out, _ = run("validate", str(path))
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith(f"{path}:4:24: error: ")
    assert "'biuld'" in lines[0]
    assert "Did you mean 'build'?" in lines[0]
    assert lines[1].startswith(f"{path}:5:")
    assert lines[-1] == f"{path}: 2 errors"


def test_warnings_alone_do_not_fail(tmp_path: Path) -> None:
    path = tmp_path / "prose.yaml"
    path.write_text("id: prose\nsteps:\n  - {id: a, status: pending, shell: {run: make}}\n")
    code, out, _ = run("validate", str(path))
    assert code == 0
    assert f"{path}:3:13: warning: 'status' is ignored" in out
    assert out.endswith(f"{path}: ok, 1 step, 1 warning\n")


def test_one_bad_file_of_several_fails_all_and_hides_none(plan_file: str, tmp_path: Path) -> None:
    code, out, _ = run("validate", str(tmp_path / "none.yaml"), plan_file)
    assert code == 1
    assert "none.yaml: error: cannot read the plan file" in out
    assert f"{plan_file}: ok" in out


def test_validate_reads_standard_input() -> None:
    assert run("validate", "-", text=PLAN)[:2] == (0, "stdin: ok, 3 steps\n")


def test_problems_as_json_have_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(WRONG)
    code, out, _ = run("validate", str(path), "--json")
    (found,) = json.loads(out)
    assert code == 1
    assert found["ok"] is False
    first = found["problems"][0]
    assert (first["line"], first["column"], first["code"]) == (4, 24, "unknown-step")


def test_graph_of_a_file_is_mermaid(plan_file: str) -> None:
    code, out, _ = run("graph", plan_file)
    assert code == 0
    assert out.startswith("flowchart TD\n")
    assert "Fix it<br/>fix" in out


def test_show_lists_steps_in_the_order_in_which_they_can_run(plan_file: str) -> None:
    code, out, _ = run("show", plan_file)
    assert code == 0
    places = [out.index(line) for line in ("1. fix", "2. release", "3. note")]
    assert places == sorted(places)
    assert "done when: `true` passes" in out
    assert "timeout_s: 30" in out
    assert "role: maintainer" in out


def test_a_cycle_is_still_shown_and_told(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(WRONG)
    code, out, err = run("show", str(path))
    assert code == 0
    assert "other" in out
    assert "cycle" in err or "needs itself" in err


def test_show_of_one_step_and_of_an_unknown_one(plan_file: str) -> None:
    code, out, _ = run("show", plan_file, "--step", "fix")
    assert code == 0
    assert out.startswith('fix  "Fix it"  implement by edit, writes the tree')
    assert "release" not in out
    code, _, err = run("show", plan_file, "--step", "fxi")
    assert code == 2
    assert "Did you mean 'fix'?" in err
    code, out, err = run("show", plan_file, "--step", "fix", "--as", "json")
    assert (code, out) == (2, "")
    assert "Use --json for one step with its attempts" in err


@pytest.mark.parametrize("form", ["yaml", "json", "dsl"])
def test_show_writes_every_form_so_that_it_reads_back(plan_file: str, form: str) -> None:
    code, out, _ = run("show", plan_file, "--as", form)
    assert code == 0
    assert read_plan(out).plan == read_plan(PLAN).plan


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no plan was specified"),
        (("p.yaml", "--goal", "x"), "FILE and --goal cannot be used together"),
        (("--again", "a", "--id", "b"), "cannot be used with --id"),
        (("--again", "a", "--dry-run"), "would not see the plan's completed work"),
        (("none.yaml",), "cannot read the plan file"),
    ],
)
def test_run_refuses_what_cannot_work_before_it_connects(arguments: tuple[str, ...], said: str) -> None:
    code, _, err = run("run", *arguments)
    assert code == 2
    assert said in err


def test_run_of_a_wrong_plan_starts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(WRONG)
    code, _, err = run("run", str(path))
    assert code == 2
    assert f"{path}:4:24: error: 'test' needs 'biuld'" in err


@pytest.mark.parametrize("command", ["run", "graph", "show"])
@pytest.mark.parametrize("text", ["steps: [\n", "green\n", "", "id: x\nstepz: []\n"])
def test_every_command_spells_a_problem_as_validate_does(command: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    *problems, verdict = run("validate", str(path))[1].splitlines()
    code, _, err = run(command, str(path))
    assert code == 2
    assert err.splitlines() == problems
    assert verdict == f"{path}: {len(problems)} error{'' if len(problems) == 1 else 's'}"


def test_inputs_are_json_or_text_and_misspelt_ones_are_refused() -> None:
    given = ["count=3", "name=ada", 'list=["a"]', "empty="]
    known: dict[str, object] = {"count": 0, "name": None, "list": [], "empty": None}
    assert read_inputs(given, known) == {"count": 3, "name": "ada", "list": ["a"], "empty": ""}
    with pytest.raises(InvalidRequestError, match="Did you mean 'count'"):
        read_inputs(["cuont=3"], known)
    with pytest.raises(InvalidRequestError, match="does not have the form name=value"):
        read_inputs(["count"], known)
    with pytest.raises(InvalidRequestError, match="declares no inputs"):
        read_inputs(["count=3"], {})
    assert read_inputs(["any=1"], None) == {"any": 1}
    assert read_inputs(["version=1.10"], {"version": "1.9"}) == {"version": "1.10"}


def gate(**fields: Any) -> Question:
    known: dict[str, Any] = {"title": "Release 2.0?", "role": "ops", "evidence": ("passed: tests",), "step": "release"}
    return Question(**{"id": "q1", "kind": QuestionKind.GATE, "options": choices(), **known, **fields})


def test_a_waiting_gate_is_shown_with_the_commands_that_answer_it() -> None:
    todo = todo_lines(PlanStatus(plan_id="p1", questions=(gate(),)))
    assert "release is waiting for a person with role ops: Release 2.0? (gate)" in todo
    assert "  passed: tests" in todo
    assert "  tightloop answer p1 approve   # the step continues" in todo
    assert any(line.startswith("  tightloop answer p1 reject WHY") for line in todo)


def test_each_option_has_its_pros_and_its_command() -> None:
    options = (Option(name="canary", pros=("safe",), cons=("slow",), cost="low"), Option(name="all at once"))
    answers = (Answer(question="q1", option="canary", by="ada"),)
    asked = gate(options=choices(options), count=2, answers=answers)
    todo = todo_lines(PlanStatus(plan_id="p1", questions=(asked,)))
    assert "release is waiting for 2 different people with role ops (ada: canary): Release 2.0? (gate)" in todo
    assert (
        "  tightloop answer p1 canary --by NAME   # the plan continues with canary; for: safe; against: slow; cost: low"
        in todo
    )
    assert "  tightloop answer p1 'all at once' --by NAME   # the plan continues with all at once" in todo


def test_a_failure_is_shown_with_its_answers() -> None:
    failure = StepFailure(failure_class=FailureClass.LOGIC, reason="exit code 3")
    failed = StepLine(id="build", status=StepStatus.FAILED, failure=failure)
    options = (Choice(name="retry"), Choice(name="skip"), Choice(name="fail"))
    asked = Question(
        id="q1",
        kind=QuestionKind.FAILED_STEP,
        title="build failed: exit code 3",
        options=options,
        step="build",
        default="retry",
    )
    status = PlanStatus(plan_id="p1", status="paused", failed=(failed,), questions=(asked,))
    todo = todo_lines(status)
    assert any("build failed: exit code 3" in line for line in todo)
    assert [f"  tightloop answer p1 {word}" in todo for word in ("retry", "skip", "fail")] == [True] * 3
    assert "  tightloop plan replan p1 FILE   # replace the plan with the one in FILE" in todo
    panel = shown(status_panel(status))
    assert "exit code 3" in panel
    assert "paused" in panel


def test_a_reached_bound_is_shown_with_what_raises_it() -> None:
    title = "the plan has started 5 step attempts, and max_attempts is 5"
    asked = Question(id="q1", kind=QuestionKind.BUDGET, title=title, options=(Choice(name="extend"),))
    todo = todo_lines(PlanStatus(plan_id="p1", status="paused", questions=(asked,)))
    assert "  tightloop top-up p1 --attempts 100   # raise the limit by this amount and continue" in todo
    assert "  tightloop answer p1 extend" in todo


def test_control_characters_of_a_plan_never_reach_the_terminal() -> None:
    status = PlanStatus(plan_id="p1", title="evil\x1b[2J", questions=(gate(title="yes\x1b]0;x\x07?"),))
    event = Event(at=NOW, kind="waits", text="a: b\x1b[31m")
    assert "\x1b" not in shown(status_panel(status)) + event_line(event).plain


def test_the_end_says_where_to_look() -> None:
    done = PlanStatus(plan_id="p1", status="completed", outcome=PlanOutcome.COMPLETED, reason="all steps are done")
    assert end_lines(done)[0] == "COMPLETED: all steps are done"
    failed = PlanStatus(plan_id="p1", status="failed", outcome=PlanOutcome.FAILED, reason="build failed")
    assert any("--again p1" in line for line in end_lines(failed))


def test_order_follows_every_kind_of_edge() -> None:
    steps = [
        Step.model_validate({"id": "last", "needs": ["yes", "no"], "join": "any"}),
        Step.model_validate({"id": "no"}),
        Step.model_validate({"id": "yes"}),
        Step.model_validate(
            {"id": "pick", "decision": {"rules": [{"when": "1 == 1", "to": ["yes"]}], "otherwise": ["no"]}}
        ),
        Step.model_validate({"id": "rescue"}),
        Step.model_validate({"id": "risky", "on_failure": {"to": "rescue"}, "on_success": ["pick"]}),
    ]
    assert [step.id for step in in_order(steps)] == ["risky", "pick", "no", "yes", "last", "rescue"]


def test_a_store_of_another_host_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="Run this command on the workspace's host"):
        Store(tmp_path / "gone", "p1").require()


def test_a_damaged_artifact_is_not_believed(tmp_path: Path) -> None:
    ref = reference(b"content", name="patch")
    place = state_folder(tmp_path) / "artifacts" / ref.sha256[:2]
    place.mkdir(parents=True)
    (place / ref.sha256[2:]).write_bytes(b"content")
    assert Store(tmp_path, "p1").artifact(ref) == b"content"
    (place / ref.sha256[2:]).write_bytes(b"other")
    with pytest.raises(ArtifactCorruptError, match="damaged"):
        Store(tmp_path, "p1").artifact(ref)


def test_an_attempt_is_shown_with_what_it_left() -> None:
    failure = StepFailure(failure_class=FailureClass.TRANSIENT, reason="no answer")
    record = StepRecord(
        plan_id="p1",
        revision=2,
        step="ask",
        attempt=3,
        inputs_sha256="0",
        command="GET http://127.0.0.1/",
        result=StepResult(status=StepStatus.FAILED, failure=failure),
        outputs={"status": 503},
        artifacts={"body": reference(b"busy", name="body")},
        started=NOW,
        ended=NOW + timedelta(seconds=2),
        undone=True,
    )
    lines = "\n".join(record_lines(record, Path()))
    assert "attempt 3: failed (undone)" in lines
    assert "2.0 s, revision 2" in lines
    assert "failure: transient: no answer" in lines
    assert "output status: 503" in lines
    assert "artifact body: 4 bytes" in lines
