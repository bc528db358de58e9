"""Steps of plans: one way for all capabilities, real commands behind the sandbox, work that is done once."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.plan.attempts.runner import make_failure
from activities.plan.port import RunnerResult, Work
from activities.plan.requests import (
    ClosePlanRequest,
    OpenPlanRequest,
    PlanScope,
    RunStepRequest,
    SettleRequest,
    StepRun,
)
from activities.sandbox.choose import choose_sandbox
from activities.workspace.ownership import tree_key
from activities.workspace.working_tree import Workspaces
from tests.support.git_sample import make_repository, on_disk, write
from tests.support.plan.stage import PLAN_ID, SANDBOX, Stage, activities_for, stage
from tightloop.errors import InvalidRequestError, PlanError, WorkspaceBusyError
from tightloop.host import state_folder
from tightloop.plan.child import StepStatus
from tightloop.plan.document import StoredPlan
from tightloop.plan.failing import FailureClass, Recovery
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.run.question import Answer
from tightloop.safety.drift import DriftError
from tightloop.settings import WorkspaceSettings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"a.txt": "one\n", "notes/b.txt": "two\n"})


def mark_cut_off(root: Path) -> None:
    """Leave the mark of a holder of the tree that died."""
    (state_folder(root) / "locks" / f"{tree_key(root)}.held").touch()


def shell(step: str, run: str, **fields: object) -> dict[str, object]:
    return {"id": step, "shell": {"run": run}, **fields}


class TestShell:
    def test_command_leaves_its_files_output_and_exit_code(self, root: Path) -> None:
        plan = stage(root, shell("make", "echo built > out.txt; echo said; echo aside >&2"))
        before = plan.tree
        plan.check_done("make")
        assert (root / "out.txt").read_text() == "built\n"
        assert plan.tree != before
        record = plan.record("make")
        assert record.outputs["stdout"] == "said"
        assert record.outputs["exit_code"] == 0
        assert (record.tree_before, record.tree_after) == (before, plan.tree)
        assert plan.artifact(record.artifacts["log"]) == b"said\naside\n"
        assert b"+built" in plan.artifact(record.artifacts["patch"])

    def test_what_is_in_the_json_of_its_output_can_be_given_a_name(self, root: Path) -> None:
        plan = stage(root, shell("count", 'echo \'{"n": {"m": 3}}\'', outputs={"number": "json.n.m"}))
        plan.check_done("count")
        assert plan.record("count").outputs["number"] == 3

    def test_output_of_one_line_has_no_line_break(self, root: Path) -> None:
        plan = stage(
            root,
            shell("one", "echo 5", expect=["${outputs.stdout} == '5'"]),
            shell("two", "echo 5; echo 6", expect=["${outputs.stdout} == '5\n6\n'"]),
        )
        plan.check_done("one")
        plan.check_done("two")

    def test_criterion_that_does_not_hold_shows_what_the_command_said(self, root: Path) -> None:
        plan = stage(root, shell("test", "echo no such module >&2; exit 3", expect=["${exit_code} == 0"]))
        assert plan.failed("test") == (
            "criterion is not met: ${exit_code} == 0 (exit_code = 3); output: no such module"
        )

    def test_person_who_is_asked_sees_the_command_as_it_will_run(self, root: Path) -> None:
        step = shell("ship", "cp ${plan.place} there", labels=["deploy"])
        fields = {"inputs": {"place": "my file"}, "policy": {"approve": ["deploy"]}}
        question = stage(root, step, plan=fields).run("ship").question
        assert question is not None
        assert question.evidence == ("cp 'my file' there",)

    def test_failing_command_leaves_nothing_behind(self, root: Path) -> None:
        plan = stage(root, shell("break", "echo half > half.txt; rm a.txt; echo no such thing >&2; exit 3"))
        before, files = plan.tree, on_disk(root)
        assert plan.failed("break") == "exit code 3: no such thing"
        assert on_disk(root) == files
        assert plan.tree == before
        assert b"half.txt" in plan.artifact(plan.record("break").artifacts["patch"])

    def test_command_over_its_time_is_a_transient_failure(self, root: Path) -> None:
        plan = stage(root, shell("hang", "sleep 60", timeout_s=0.5))
        result = plan.run("hang")
        assert result.failure is not None
        assert result.failure.failure_class is FailureClass.TRANSIENT
        assert "longer than 0.5 s" in result.failure.reason

    @pytest.mark.parametrize("quoted", ["${plan.x}", '"${plan.x}"', "'${plan.x}'", 'a"b"${plan.x}', '"a\\"${plan.x}"'])
    def test_no_value_of_a_reference_is_ever_executed(self, root: Path, quoted: str) -> None:
        evil = "$(touch pwned) `touch pwned` '; touch pwned; ' \" ; touch pwned ; \" | touch pwned"
        plan = stage(root, shell("say", f"printf %s {quoted}"), plan={"inputs": {"x": evil}})
        plan.check_done("say")
        assert not (root / "pwned").exists()
        assert str(plan.record("say").outputs["stdout"]).endswith(evil)

    def test_list_becomes_several_words(self, root: Path) -> None:
        plan = stage(root, shell("say", "printf '[%s]' ${plan.words}"), plan={"inputs": {"words": ["a b", "c;d", 3]}})
        plan.check_done("say")
        assert plan.record("say").outputs["stdout"] == "[a b][c;d][3]"

    def test_command_knows_seed_step_and_its_environment(self, root: Path) -> None:
        step = {
            "id": "say",
            "shell": {"run": 'echo "$TIGHTLOOP_SEED $TIGHTLOOP_STEP $COLOUR"', "environment": {"COLOUR": "red"}},
        }
        plan = stage(root, step, plan={"seed": 42})
        plan.check_done("say")
        assert plan.record("say").outputs["stdout"] == "42 say red"

    def test_command_runs_in_its_folder(self, root: Path) -> None:
        here = {"id": "here", "shell": {"run": "cat b.txt", "folder": "notes"}}
        plan = stage(root, here)
        plan.check_done("here")
        assert plan.record("here").outputs["stdout"] == "two"

    def test_command_runs_nowhere_outside(self, root: Path) -> None:
        with pytest.raises(PlanError, match=r"'../..' is outside the tree"):
            stage(root, {"id": "outside", "shell": {"run": "ls", "folder": "../.."}})

    def test_exit_code_that_the_criteria_ask_for_is_no_failure(self, root: Path) -> None:
        plan = stage(root, shell("repro", "exit 7", expect=["${exit_code} == 7"]))
        plan.check_done("repro")

    def test_large_output_is_kept_as_an_artifact_and_read_whole(self, root: Path) -> None:
        plan = stage(
            root,
            shell("many", "seq 1 30000 | sed 's/.*/\"&\"/' | paste -sd, | sed 's/.*/[&]/'", outputs={"all": "json"}),
            shell(
                "count", "true", needs=["many"], inputs={"all": "${many.all}"}, expect=["len(${inputs.all}) == 30000"]
            ),
        )
        assert plan.check_done("many").counts["all"] == 30_000
        assert set(plan.record("many").outputs["all"]) == {"artifact"}
        plan.check_done("count")


class TestContract:
    def test_outputs_come_from_stdout_json_and_files(self, root: Path) -> None:
        command = """echo '{"n": [1, 2]}'; echo text > t.txt; echo '{"k": 5}' > d.json"""
        outputs = {"all": "stdout", "data": "json", "text": "file:t.txt", "k": "json:d.json"}
        plan = stage(
            root,
            shell("one", command, outputs=outputs),
            shell("two", "printf %s ${one.data.n} ${one.k.k}", needs=["one"]),
        )
        plan.check_done("one")
        plan.check_done("two")
        assert plan.record("one").outputs["text"] == "text\n"
        assert plan.record("two").outputs["stdout"] == "125"

    def test_missing_output_fails_the_step_and_names_it(self, root: Path) -> None:
        plan = stage(root, shell("one", "true", outputs={"x": "file:none.txt"}))
        assert plan.failed("one") == "output 'x': the step did not produce the file 'none.txt'"

    def test_output_file_behind_a_link_is_refused(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("secret")
        plan = stage(root, shell("one", f"ln -s {tmp_path}/secret x.txt", outputs={"x": "file:x.txt"}))
        assert "cannot open the file" in plan.failed("one")

    def test_criterion_that_does_not_hold_fails_the_step_with_the_values(self, root: Path) -> None:
        plan = stage(root, shell("one", "echo '[1]'", outputs={"n": "json"}, expect=["len(${outputs.n}) >= 2"]))
        reason = plan.failed("one")
        assert "criterion is not met: len(${outputs.n}) >= 2" in reason
        assert "[1]" in reason

    def test_prose_criteria_are_shown_as_unchecked(self, root: Path) -> None:
        plan = stage(root, shell("one", "true", expect=[{"prose": "the code is easier to read"}]))
        assert "1 condition in prose not checked" in plan.check_done("one").summary

    def test_condition_that_is_false_skips_the_step(self, root: Path) -> None:
        plan = stage(root, shell("one", "touch x", when="${plan.go} == 'yes'"), plan={"inputs": {"go": "no"}})
        assert plan.run("one").status is StepStatus.SKIPPED
        assert not (root / "x").exists()

    def test_precondition_stops_the_step_before_it_acts(self, root: Path) -> None:
        plan = stage(root, shell("one", "touch x", preconditions=["${plan.n} > 3"]), plan={"inputs": {"n": 1}})
        assert plan.failed("one").startswith("precondition is not met")
        assert not (root / "x").exists()

    def test_failure_mode_is_recognised_by_the_exit_code(self, root: Path) -> None:
        modes = [
            {"name": "locked", "detect": "${exit_code} == 5", "failure_class": "transient", "recover": "retry"},
            {"name": "other", "recover": "abort", "advice": "look at the log"},
        ]
        plan = stage(root, shell("one", "exit 5", failure_modes=modes), shell("two", "exit 6", failure_modes=modes))
        first, second = plan.run("one").failure, plan.run("two").failure
        assert first is not None
        assert second is not None
        assert (first.mode, first.failure_class, first.recover) == ("locked", FailureClass.TRANSIENT, Recovery.RETRY)
        assert (second.mode, second.failure_class, second.recover) == ("other", FailureClass.LOGIC, Recovery.ABORT)
        assert "look at the log" in second.reason

    def test_evidence_follows_from_the_results(self, root: Path) -> None:
        rule = {"hypothesis": "H1", "when": "${exit_code} == 0", "verdict": "refutes", "strength": "strong"}
        plan = stage(
            root, shell("one", "true", evidence=[rule]), plan={"hypotheses": [{"id": "H1", "statement": "it leaks"}]}
        )
        (note,) = plan.check_done("one").evidence
        assert (note.hypothesis, note.verdict, note.strength, note.step) == ("H1", "refutes", "strong", "one")

    def test_steps_of_a_template_have_their_item_and_are_read_as_a_list(self, root: Path) -> None:
        steps = (
            {
                "id": "look-*",
                "for_each": ["x", "y"],
                "shell": {"run": "printf %s ${item}"},
                "outputs": {"seen": "stdout"},
            },
            shell("join", "printf %s, ${look-*.seen}", needs=["look-*"]),
            shell("first", "printf %s ${look-1.seen}", needs=["look-*"]),
        )
        plan = stage(root, *steps)
        plan.check_done("look-1", template="look-*", item=0)
        plan.check_done("look-2", template="look-*", item=1)
        plan.check_done("join")
        plan.check_done("first")
        assert plan.record("join").outputs["stdout"] == "x,y,"
        assert plan.record("first").outputs["stdout"] == "x"

    def test_reference_to_a_step_that_did_not_run_says_so(self, root: Path) -> None:
        plan = stage(root, shell("one", "true", outputs={"x": "stdout"}), shell("two", "echo ${one.x}", needs=["one"]))
        assert "step 'one' has not run, was skipped, or was undone" in plan.failed("two")

    def test_milestone_judges_its_conditions(self, root: Path) -> None:
        plan = stage(root, {"id": "plain"}, {"id": "strict", "expect": ["${plan.n} == 2"]}, plan={"inputs": {"n": 1}})
        plan.check_done("plain")
        assert plan.records.find_attempt(PLAN_ID, "plain", 1) is None
        assert "is not met" in plan.failed("strict")


class TestPolicy:
    def test_change_of_a_protected_path_is_undone(self, root: Path) -> None:
        plan = stage(root, shell("leak", "echo KEY=1 > .env; echo x > a.txt"))
        result = plan.run("leak")
        assert result.failure is not None
        assert result.failure.failure_class is FailureClass.POLICY
        assert "policy.protect forbids changes to .env" in result.failure.reason
        assert not (root / ".env").exists()
        assert (root / "a.txt").read_text() == "one\n"

    def test_change_outside_of_the_scope_is_undone(self, root: Path) -> None:
        plan = stage(root, shell("wide", "touch notes/c.txt other.txt"), plan={"policy": {"write": ["notes/**"]}})
        assert "does not cover other.txt" in plan.failed("wide")
        assert not (root / "notes" / "c.txt").exists()

    def test_deployment_waits_for_a_person_and_then_acts(self, root: Path) -> None:
        plan = stage(root, shell("ship", "touch shipped", kind="deploy"))
        waiting = plan.run("ship")
        assert waiting.status is StepStatus.WAITING
        assert waiting.question is not None
        assert not (root / "shipped").exists()
        yes = Answer(question="q1", by="sam", text="go", option="approve")
        plan.check_done("ship", answers=(yes,))
        assert (root / "shipped").exists()
        assert plan.record("ship").answers == (yes,)

    def test_refused_deployment_fails_with_the_rationale(self, root: Path) -> None:
        plan = stage(root, shell("ship", "touch shipped", kind="deploy"))
        no = Answer(question="q1", by="sam", option="reject", text="it is Friday")
        assert plan.failed("ship", answers=(no,)) == "sam rejected the step: it is Friday"
        assert not (root / "shipped").exists()

    def test_command_cannot_write_outside_of_the_tree(self, root: Path, tmp_path: Path) -> None:
        if choose_sandbox(SANDBOX).name == "unsafe-local":
            pytest.skip("no sandbox works on this host")
        plan = stage(root, shell("evil", f"echo x > {tmp_path}/out.txt || true; echo x > ../out.txt || true"))
        plan.run("evil")
        assert not (tmp_path / "out.txt").exists()

    def test_git_folder_cannot_be_written_by_a_command(self, root: Path) -> None:
        head = (root / ".git" / "HEAD").read_bytes()
        plan = stage(root, shell("evil", "echo broken > .git/HEAD"))
        plan.failed("evil")
        assert (root / ".git" / "HEAD").read_bytes() == head


class TestOnce:
    def test_activity_that_is_tried_again_does_the_work_once(self, root: Path, tmp_path: Path) -> None:
        plan = stage(root, shell("count", "echo run >> count.txt"))
        base = plan.tree
        first = plan.check_done("count")
        second = plan.run("count", expected_tree=base)
        assert second == first
        assert (root / "count.txt").read_text() == "run\n"

    def test_attempt_whose_worker_died_before_the_record_begins_from_the_same_files(self, root: Path) -> None:
        plan = stage(root, shell("count", "echo run >> count.txt"))
        base = plan.tree
        first = plan.check_done("count")
        for record in (state_folder(root) / "plans" / PLAN_ID / "steps" / "count").iterdir():
            record.unlink()
        mark_cut_off(root)
        second = plan.check_done("count", expected_tree=base)
        assert second.tree == first.tree
        assert (root / "count.txt").read_text() == "run\n"

    def test_second_run_of_a_plan_takes_over_what_is_the_same(self, root: Path) -> None:
        steps = (shell("one", "date +%N > stamp.txt; date +%N"), shell("two", "cat stamp.txt", access="reads"))
        plan = stage(root, *steps)
        base = plan.tree
        plan.check_done("one")
        plan.check_done("two")
        stamp, after = (root / "stamp.txt").read_text(), plan.tree
        plan.close()
        (root / "stamp.txt").unlink()
        again = Stage(root, plan.plan, run_id="run-2")
        assert again.tree == base
        one, two = again.check_done("one"), again.check_done("two")
        assert (one.reused, two.reused) == (True, True)
        assert again.tree == after
        assert (root / "stamp.txt").read_text() == stamp

    def test_run_after_a_failure_goes_on_with_what_was_done_before_it(self, root: Path) -> None:
        steps = (shell("one", "echo x >> log.txt"), shell("two", "test -f ${plan.file} && echo y >> log.txt"))
        plan = stage(root, *steps, plan={"inputs": {"file": "not-there"}})
        plan.check_done("one")
        plan.failed("two")
        plan.close(PlanOutcome.FAILED)
        again = Stage(root, plan.plan, run_id="run-2", inputs={"file": "a.txt"})
        assert any("reset to the initial tree" in note for note in again.opened.notes)
        assert again.check_done("one").reused
        assert not again.check_done("two").reused
        assert (root / "log.txt").read_text() == "x\ny\n"

    def test_run_on_files_that_somebody_changed_since_begins_with_them(self, root: Path) -> None:
        plan = stage(root, shell("one", "echo x >> log.txt"))
        plan.check_done("one")
        plan.close()
        (root / "mine.txt").write_text("mine\n")
        again = Stage(root, plan.plan, run_id="run-2")
        assert (root / "mine.txt").read_text() == "mine\n"
        assert (root / "log.txt").read_text() == "x\n"
        assert not again.check_done("one").reused

    def test_run_after_one_in_which_a_person_edited_keeps_these_edits(self, root: Path) -> None:
        first = stage(root, {"id": "one", "shell": {"run": "echo 1 > one.txt"}})
        first.check_done("one")
        (root / "mine.txt").write_text("by a person\n")
        with Workspaces().hold(first.scope) as tree:
            first.tree = tree.snapshot()  # what a resume adopts
        first.close()
        second = stage(root, {"id": "one", "shell": {"run": "echo 1 > one.txt"}}, run_id="run-2")
        assert second.tree == first.tree
        assert (root / "mine.txt").read_text() == "by a person\n"

    def test_second_run_does_again_what_depends_on_something_else(self, root: Path) -> None:
        step = shell("one", "echo ${plan.x} >> log.txt")
        stage(root, step, plan={"inputs": {"x": "a"}}).check_done("one")
        (root / "log.txt").unlink()
        again = stage(root, step, plan={"inputs": {"x": "b"}}, run_id="run-2")
        assert not again.check_done("one").reused
        assert (root / "log.txt").read_text() == "b\n"

    def test_step_without_cache_is_done_in_every_run(self, root: Path) -> None:
        step = shell("one", "echo x >> log.txt", cache=False)
        stage(root, step).check_done("one")
        (root / "log.txt").unlink()
        assert not stage(root, step, run_id="run-2").check_done("one").reused

    def test_step_that_writes_does_not_start_over_an_edit_of_a_stranger(self, root: Path) -> None:
        plan = stage(root, shell("one", "cat a.txt"))
        write(root, {"a.txt": "tampered\n"})
        with pytest.raises(DriftError, match=r"1 file: a\.txt"):
            plan.run("one")
        assert (root / "a.txt").read_text() == "tampered\n"

    def test_edit_of_a_stranger_is_saved_and_undone_where_settings_say_so(self, root: Path) -> None:
        plan = stage(
            root,
            shell("one", "cat a.txt"),
            activities=activities_for(workspaces=Workspaces(settings=WorkspaceSettings(drift="undo"))),
        )
        write(root, {"a.txt": "tampered\n", "new file": "mine\n"})
        result = plan.check_done("one")
        assert plan.record("one").outputs["stdout"] == "one"
        assert result.drift is not None
        assert result.drift.paths == ("a.txt", "new file")
        subprocess.run(result.drift.bring_back, shell=True, check=True, timeout=60)
        assert ((root / "a.txt").read_text(), (root / "new file").read_text()) == ("tampered\n", "mine\n")

    def test_caches_that_a_reader_left_are_nobody_s_edits(self, root: Path) -> None:
        plan = stage(
            root,
            shell("look", "mkdir -p __pycache__ && echo x > __pycache__/a.pyc", access="reads"),
            shell("one", "ls"),
        )
        plan.check_done("look")
        assert plan.check_done("one").drift is None
        assert not (root / "__pycache__").exists()

    def test_step_that_was_taken_back_is_done_again_in_the_next_run(self, root: Path) -> None:
        step = shell("one", "echo x > x.txt")
        plan = stage(root, step)
        plan.check_done("one")
        assert plan.undo("one").failure == ""
        assert not (root / "x.txt").exists()
        again = Stage(root, plan.plan, run_id="run-2")
        assert not again.check_done("one").reused


class TestDryRun:
    def test_dry_run_shows_the_command_and_changes_nothing(self, root: Path) -> None:
        plan = stage(root, shell("one", "rm -rf ${plan.what}"), plan={"inputs": {"what": "a b"}})
        files = on_disk(root)
        result = plan.check_done("one", dry_run=True)
        assert result.summary == "rm -rf 'a b'"
        assert on_disk(root) == files
        assert plan.record("one").outputs["preview"] == "rm -rf 'a b'"
        assert not plan.check_done("one").reused

    def test_dry_run_shows_all_paths_of_a_gate(self, root: Path) -> None:
        options = [{"name": "left", "to": ["a"]}, {"name": "right", "to": ["b"]}]
        gate = {"id": "gate", "kind": "gate", "gate": {"approval": {"role": "lead", "options": options}}}
        plan = stage(root, gate, {"id": "a"}, {"id": "b"})
        assert plan.check_done("gate", dry_run=True).chosen == ("a", "b")


class TestOpening:
    def test_wrong_plan_is_refused_with_the_place_and_the_claim_is_given_back(self, root: Path) -> None:
        with pytest.raises(PlanError, match="nowhere"):
            stage(root, shell("one", "true", needs=["nowhere"]))
        stage(root, shell("one", "true"), plan_id="plan-other")

    def test_second_plan_cannot_work_in_the_same_tree(self, root: Path) -> None:
        stage(root, shell("one", "true"))
        with pytest.raises(WorkspaceBusyError):
            stage(root, shell("one", "true"), plan_id="plan-other")

    def test_plan_that_is_opened_again_by_a_reset_begins_with_the_same_tree(self, root: Path) -> None:
        plan = stage(root, shell("one", "touch x"))
        plan.check_done("one")
        again = Stage(root, plan.plan, run_id="run-1")
        assert again.opened == plan.opened

    def test_plan_comes_from_a_file_with_inputs_of_the_request(self, root: Path) -> None:
        write(
            root, {"plans/p.yaml": "id: p\ninputs: {x: 1, y: 2}\nsteps:\n- id: one\n  shell: {run: 'echo ${plan.x}'}\n"}
        )
        scope = PlanScope(episode_id=PLAN_ID, workspace=str(root), worktree=True)
        request = PlanRequest(workspace=str(root), file="plans/p.yaml", inputs={"x": 9}, worktree=True)
        plan = stage(root, {"id": "other"}, plan_id="plan-other")
        found = plan.call("open_plan", OpenPlanRequest(scope=scope, request=request, opening="r"))
        stored = StoredPlan.model_validate_json(plan.artifact(found.plan))
        assert (stored.inputs, stored.file) == ({"x": 9, "y": 2}, "plans/p.yaml")

    @pytest.mark.parametrize(
        ("fields", "why"),
        [({"file": "none.yaml"}, "plan file 'none.yaml' not found"), ({"goal": "do it"}, "agent_planning")],
    )
    def test_request_without_a_plan_is_refused(self, root: Path, fields: dict[str, Any], why: str) -> None:
        scope = PlanScope(episode_id="plan-x", workspace=str(root))
        opening = OpenPlanRequest(scope=scope, request=PlanRequest(workspace=str(root), **fields), opening="r")
        with pytest.raises(InvalidRequestError, match=why):
            ActivityEnvironment().run(activities_for().open_plan, opening)

    def test_plan_that_was_never_opened_can_be_closed(self, tmp_path: Path) -> None:
        scope = PlanScope(episode_id="plan-x", workspace=str(tmp_path / "nowhere"))
        closing = ClosePlanRequest(scope=scope, outcome=PlanOutcome.FAILED)
        assert ActivityEnvironment().run(activities_for().close_plan, closing).archive is None
        assert not (tmp_path / "nowhere").exists()

    def test_unknown_step_is_told(self, root: Path) -> None:
        plan = stage(root, shell("one", "true"))
        with pytest.raises(InvalidRequestError, match="no step 'two'"):
            plan.call("run_shell", RunStepRequest(scope=plan.scope, step="two"))

    def test_worker_parses_a_large_plan_once(self, root: Path) -> None:
        activities = activities_for()
        plan = stage(root, *({"id": f"m{number}"} for number in range(2_000)), activities=activities)
        for number in range(500):
            plan.check_done(f"m{number}")
        memory = activities._ports.plans
        assert len(memory._kept) == 1


class ScriptedChildren:
    """Child workflows as a test tells them."""

    def prepare(self, work: Work) -> StepRun:
        return StepRun(episode={"goal": work.resolve(work.step.episode.goal if work.step.episode else "")})

    def preview(self, work: Work) -> str:
        return "start an episode"

    def settle(self, work: Work, request: SettleRequest) -> RunnerResult:
        if request.outcomes != ("SUCCEEDED",):
            return RunnerResult(failure=make_failure("the episode did not succeed"))
        return RunnerResult(outputs={"lines": (work.root / "child.txt").read_text().splitlines()})

    def remove_leftovers(self, scope: PlanScope) -> None:
        """Nothing was started."""


class TestChildren:
    def prepared(self, root: Path) -> tuple[Stage, RunStepRequest, str]:
        """Return a plan whose child episode has written a file, and the tree it left."""
        step = {"id": "agent", "episode": {"goal": "write ${plan.what}"}, "outputs": {"got": "lines"}}
        activities = activities_for(plan_children=ScriptedChildren())
        plan = stage(root, step, plan={"inputs": {"what": "a file"}}, activities=activities)
        request = RunStepRequest(scope=plan.scope, step="agent", expected_tree=plan.tree)
        run = plan.call("prepare_children", request)
        assert run.episode == {"goal": "write a file"}
        with Workspaces().hold(plan.scope) as tree:
            write(root, {"child.txt": "one\ntwo\n"})
            left = tree.snapshot()
        return plan, request, left

    def test_tree_and_outputs_of_the_child_are_taken_over_once(self, root: Path) -> None:
        plan, request, left = self.prepared(root)
        settle = SettleRequest(run=request, children=("c",), outcomes=("SUCCEEDED",), trees=(left,))
        result = plan.call("settle_children", settle)
        assert (result.status, result.tree, result.counts["got"]) == (StepStatus.COMPLETED, left, 2)
        assert plan.call("settle_children", settle) == result
        assert plan.call("prepare_children", request).result == result

    def test_child_that_fails_leaves_nothing_behind(self, root: Path) -> None:
        plan, request, left = self.prepared(root)
        settle = SettleRequest(run=request, children=("c",), outcomes=("FAILED",), trees=(left,))
        result = plan.call("settle_children", settle)
        assert (result.status, result.tree) == (StepStatus.FAILED, plan.tree)
        assert not (root / "child.txt").exists()
