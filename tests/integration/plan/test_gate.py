"""The capability `gate`: real commands, real trees, schemas, confirmations and people."""

from pathlib import Path
from typing import Any

import pytest

from activities.artifacts.stores import open_local_store
from activities.checks.runner import CheckRunner
from activities.plan.port import RunnerResult
from activities.plan.records import open_file_records
from activities.plan.runners.gate import GateRunner
from activities.sandbox.choose import choose_sandbox
from activities.workspace.differ import Differ
from activities.workspace.working_tree import Workspaces
from tests.support.git_sample import scope_of
from tests.support.plan.work import work_for
from tightloop.plan.child import StepRecord, StepResult, StepStatus
from tightloop.plan.engine.state import count_votes
from tightloop.plan.failing import FailureClass
from tightloop.run.question import Answer
from tightloop.settings import SandboxSettings

SANDBOX = SandboxSettings(unsafe_local=True)
RUNNER = GateRunner(CheckRunner(choose_sandbox(SANDBOX), SANDBOX, grace_s=0.5), Differ())
PLAN_ID = "plan-0123456789ab"
OPTIONS = [{"name": "A", "pros": ["quick"], "cost": "1 h", "to": ["do-a"]}, {"name": "B", "to": ["do-b"]}]


def judge(folder: Path, gate: dict[str, Any], *, base_tree: str = "", **changes: Any) -> RunnerResult:
    step = {"title": "Review", "gate": gate, **changes.pop("step", {})}
    return RUNNER.run(work_for(folder, step, base_tree=base_tree, **changes))


def check(folder: Path, one: dict[str, Any], **changes: Any) -> tuple[bool, str]:
    """Return whether one check passes, and what is said of it."""
    done = judge(folder, {"checks": [one]}, **changes)
    (outcome,) = done.outputs["checks"]
    assert (done.failure is None) is outcome["passed"]
    assert done.failure is None or done.failure.failure_class is FailureClass.POLICY
    return outcome["passed"], outcome["detail"]


def record(folder: Path, step: str, tree: str = "", status: StepStatus = StepStatus.COMPLETED) -> None:
    open_file_records(folder).put(
        StepRecord(
            plan_id=PLAN_ID,
            revision=1,
            step=step,
            attempt=1,
            inputs_sha256="0" * 64,
            result=StepResult(status=status),
            tree_after=tree,
        )
    )


def said(by: str, *, approved: bool = True, option: str = "", rationale: str = "") -> Answer:
    return Answer(question="q1", by=by, option=(option or "approve") if approved else "reject", text=rationale)


def test_command_opens_the_gate_with_exit_code_0_only(workspace: Path) -> None:
    assert check(workspace, {"command": "test -f app.py"})[0]
    passed, detail = check(workspace, {"command": "echo 3 tests failed; exit 4"})
    assert (passed, detail) == (False, "exit code 4: 3 tests failed")


def test_person_at_a_gate_sees_the_commands_as_they_were_run(workspace: Path) -> None:
    gate = {
        "checks": [{"command": "test -f ${read.name}"}, {"name": "here", "command": "ls ${read.name}"}],
        "approval": {},
    }
    question = judge(workspace, gate, values={"read.name": "app.py"}).question
    assert question is not None
    assert "passed: test -f app.py" in question.evidence
    assert "passed: here (ls app.py)" in question.evidence


def test_values_in_a_command_are_words_and_never_code(workspace: Path) -> None:
    values = {"read.name": "app.py'; touch hacked; '$(touch hacked2)"}
    for command in ("test -n ${read.name}", 'test -n "${read.name}"', "test -n '${read.name}'"):
        assert check(workspace, {"command": command}, values=values)[0]
    assert not list(workspace.glob("hacked*"))


RULES = {"policy": {"commands": [{"match": "rm **", "verdict": "deny"}, {"match": "deploy **", "verdict": "ask"}]}}


def test_policy_judges_a_command_before_it_runs(workspace: Path) -> None:
    def judged(command: str, **changes: Any) -> RunnerResult:
        return RUNNER.run(work_for(workspace, {"gate": {"checks": [{"command": command}]}}, plan=RULES, **changes))

    denied = judged("rm app.py")
    assert denied.failure is not None
    assert "policy.commands forbids 'rm app.py' (rule 'rm **')" in denied.failure.reason
    assert (workspace / "app.py").exists()
    asked = judged("deploy || touch deployed")
    assert asked.question is not None
    (open_check,) = asked.question.evidence
    assert open_check.startswith(
        "open: deploy || touch deployed - policy.commands requires a person's approval for 'deploy'"
    )
    assert not (workspace / "deployed").exists()
    approved = judged("deploy || touch deployed", answers=(said("ada"),))
    assert (approved.failure, approved.question) == (None, None)
    assert (workspace / "deployed").exists()


def test_command_that_needs_a_person_waits_for_all_of_them_and_for_nobodys_no(workspace: Path) -> None:
    gate = {"checks": [{"command": "deploy || touch deployed"}], "approval": {"count": 2}}
    yes = said("ada")
    for decisions in (
        (yes,),
        (yes, said("Ada ")),
        (yes, said("sam", approved=False)),
        (yes, said("sam"), said("sam", approved=False)),
    ):
        RUNNER.run(work_for(workspace, {"gate": gate}, plan=RULES, answers=decisions))
        assert not (workspace / "deployed").exists()
    done = RUNNER.run(work_for(workspace, {"gate": gate}, plan=RULES, answers=(yes, said("sam"))))
    assert done.outputs["approved_by"] == ["ada", "sam"]
    assert (workspace / "deployed").exists()


def test_check_that_checks_nothing_does_not_pass(workspace: Path) -> None:
    assert check(workspace, {"name": "looks fine"}) == (False, "the check is empty")


def test_command_that_takes_too_long_may_be_tried_again(workspace: Path) -> None:
    done = judge(workspace, {"checks": [{"command": "sleep 20"}]}, step={"timeout_s": 0.3})
    assert done.failure is not None
    assert done.failure.failure_class is FailureClass.TRANSIENT


def test_output_of_a_check_is_evidence_without_secrets(workspace: Path) -> None:
    done = judge(workspace, {"checks": [{"command": "echo ghp_0123456789abcdefABCDEF0123456789abcd"}]})
    assert open_local_store(workspace).get(done.artifacts["check-1"]) == b"[secret:github-token]\n"


def test_invariant_that_fails_shows_the_values(workspace: Path) -> None:
    values = {"load.errors": 7}
    assert check(workspace, {"invariant": "${load.errors} < 10"}, values=values)[0]
    assert check(workspace, {"invariant": "${load.errors} == 0"}, values=values) == (False, "load.errors is 7")
    passed, detail = check(workspace, {"invariant": "${gone.x} == 0"}, values=values)
    assert not passed
    assert "gone.x" in detail


def test_artifact_must_fit_its_schema(workspace: Path) -> None:
    schema = {"type": "array", "items": {"type": "object", "required": ["url"]}, "minItems": 2}
    values: dict[str, Any] = {"a.good": [{"url": 1}, {"url": 2}], "a.bad": [{"url": 1}, {}], "a.empty": []}
    assert check(workspace, {"artifact": "${a.good}", "schema": schema}, values=values)[0]
    passed, detail = check(workspace, {"artifact": "${a.bad}", "schema": schema}, values=values)
    assert (passed, detail) == (False, "`1`: 'url' is a required property")
    assert check(workspace, {"artifact": "${a.empty}"}, values=values) == (False, "the value is empty")


def test_claim_needs_sources_of_different_hosts(workspace: Path) -> None:
    one_host = {"claim": "QUIC is fast", "sources": ["https://www.a.org/1", "https://a.org/2", "no url"]}
    two_hosts = {"claim": "UDP", "sources": ["https://a.org/1", {"url": "https://b.org/x"}]}
    gate = {"artifact": "${a.claims}", "confirmations": 2}
    assert check(workspace, gate, values={"a.claims": [two_hosts]})[0]
    passed, detail = check(workspace, gate, values={"a.claims": {"claims": [two_hosts, one_host]}})
    assert (passed, detail) == (
        False,
        "1 of 2 claims are not confirmed: 'QUIC is fast' has 1 of 2 confirmations (a.org)",
    )
    assert "no claims" in check(workspace, gate, values={"a.claims": []})[1]


def test_step_that_completed_confirms_a_claim_and_one_that_failed_does_not(workspace: Path) -> None:
    record(workspace, "load-test")
    record(workspace, "flaky-test", status=StepStatus.FAILED)
    gate = {"artifact": "${a.claims}", "confirmations": 2}
    claim = {"claim": "it holds", "sources": ["https://a.org/1"], "tests": ["load-test"]}
    assert check(workspace, gate, values={"a.claims": [claim]})[0]
    assert not check(workspace, gate, values={"a.claims": [{**claim, "tests": ["flaky-test", "invented"]}]})[0]


@pytest.fixture
def trees(workspace: Path) -> tuple[str, str, str]:
    """Trees of the start, after a change of app.py, and after two more files."""

    def tree() -> str:
        with Workspaces().hold(scope_of(workspace)) as held:
            return held.snapshot()

    first = tree()
    (workspace / "app.py").write_text("print('hello')\nprint('more')\n")
    second = tree()
    (workspace / "docs").mkdir()
    (workspace / "docs" / "a.md").write_text("one\ntwo\n")
    (workspace / "keys.pem").write_text("x\n")
    return first, second, tree()


def test_size_and_place_of_the_change_are_bounded(workspace: Path, trees: tuple[str, str, str]) -> None:
    first, _, third = trees

    def review(**bounds: Any) -> tuple[bool, str]:
        return check(workspace, {"diff": bounds}, base_tree=first, expected_tree=third)

    assert review(max_files=3, max_lines=4) == (True, "3 files, 4 lines")
    assert review(max_files=2) == (False, "3 files changed, but at most 2 may change")
    assert review(max_lines=3) == (False, "4 lines changed, but at most 3 may change")
    assert review(only=["docs/**", "*.py"]) == (False, "changes outside docs/**, *.py: keys.pem")
    assert review(never=["**/*.pem"]) == (False, "these files must not be changed: keys.pem")
    assert review(only=["**"], never=["src/**"])[0]


def test_change_is_counted_since_the_end_of_a_step(workspace: Path, trees: tuple[str, str, str]) -> None:
    first, second, third = trees
    record(workspace, "edit", second)
    assert check(workspace, {"diff": {"since": "edit", "max_files": 2}}, base_tree=first, expected_tree=third) == (
        True,
        "2 files, 3 lines",
    )
    passed, detail = check(workspace, {"diff": {"since": "nobody"}}, base_tree=first, expected_tree=third)
    assert not passed
    assert "'nobody'" in detail


def test_diff_is_evidence(workspace: Path, trees: tuple[str, str, str]) -> None:
    done = judge(workspace, {"checks": [{"diff": {}}]}, base_tree=trees[0], expected_tree=trees[1])
    assert b"+print('more')" in open_local_store(workspace).get(done.artifacts["check-1"])


def test_failed_check_shuts_the_gate_before_anybody_is_asked(workspace: Path) -> None:
    done = judge(workspace, {"checks": [{"name": "tests", "command": "false"}], "approval": {}})
    assert done.question is None
    assert done.failure is not None
    assert done.failure.reason.startswith("the gate did not pass: FAILED: tests (false) - exit code 1")


def test_prose_is_put_to_a_person_with_checks_and_evidence(workspace: Path) -> None:
    gate = {
        "checks": [{"command": "true"}, {"prose": "backwards compatible"}],
        "window": "evening",
        "evidence": ["${plan.note}"],
    }
    done = judge(workspace, gate, values={"plan.note": {"a": 1}})
    assert done.failure is None
    assert done.question is not None
    shown = done.question.evidence
    assert shown[:3] == (
        "- backwards compatible",
        "passed: true",
        "open: backwards compatible - a person must judge this check",
    )
    assert done.question.window == "evening"
    name, place = shown[3].split(": ")
    assert name == "${plan.note}"
    assert (workspace / place).read_bytes() == b'{\n "a": 1\n}'


def test_so_many_different_people_have_to_agree(workspace: Path) -> None:
    gate = {"approval": {"count": 2, "role": "lead", "question": "Ship ${plan.v}?"}}
    values = {"plan.v": "1.0"}
    once = judge(workspace, gate, values=values, answers=(said("ada"), said("Ada ")))
    assert once.question is not None
    assert (once.question.title, once.question.evidence) == ("Ship 1.0?", ("(1 of 2 people have answered)",))
    assert (once.question.role, once.question.count) == ("lead", 2)
    twice = judge(workspace, gate, values=values, answers=(said("ada", rationale="fine"), said("bob")))
    assert twice.question is None
    assert twice.outputs["approved_by"] == ["ada", "bob"]
    assert twice.outputs["rationale"] == "fine"
    assert twice.chosen is None


def test_rejection_is_a_failure_that_names_who_and_why(workspace: Path) -> None:
    done = judge(
        workspace,
        {"approval": {"count": 2}},
        answers=(said("ada"), said("bob", approved=False, rationale="no canary")),
    )
    assert done.failure is not None
    assert done.failure.failure_class is FailureClass.POLICY
    assert done.failure.reason == "rejected by bob: no canary"
    assert done.outputs["rejected_by"] == "bob"


def test_chosen_option_starts_its_steps(workspace: Path) -> None:
    done = judge(workspace, {"approval": {"options": OPTIONS}}, answers=(said("ada", option="B"),))
    assert done.chosen == ("do-b",)
    assert done.outputs["option"] == "B"
    for decisions in ((), (said("ada"),), (said("ada", option="C"),)):
        asked = judge(workspace, {"approval": {"options": OPTIONS}}, answers=decisions)
        assert asked.question is not None
        assert [option.name for option in asked.question.options] == ["A", "B", "reject"]
    assert "Choose one of: A, B" in "\n".join((asked.question.title, *asked.question.evidence))


def test_person_who_thinks_again_counts_with_the_last_word() -> None:
    first, again = said("ada", approved=False, rationale="wait"), said("ada", rationale="now")
    assert count_votes((first, again), 1, ()).approved
    assert count_votes((again, first), 1, ()).rejection == first


def test_gate_without_checks_is_open(workspace: Path) -> None:
    done = judge(workspace, {})
    assert (done.failure, done.question, done.chosen) == (None, None, None)


def test_preview_runs_nothing(workspace: Path) -> None:
    work = work_for(workspace, {"gate": {"checks": [{"command": "touch ran"}], "approval": {"role": "lead"}}})
    assert (
        RUNNER.preview(work) == "check touch ran\nask lead for approval (1 needed): May the plan continue after 'one'?"
    )
    assert not (workspace / "ran").exists()
