"""Steps that start workflows: episodes, plans within plans, and branches in real git worktrees."""

import json
from pathlib import Path
from typing import Any

import pytest

from activities.checks.runner import CheckRunner
from activities.plan.children import StepChildren
from activities.plan.requests import (
    ClosePlanRequest,
    OpenPlanRequest,
    PlanScope,
    RunStepRequest,
    SettleRequest,
    StepRun,
)
from activities.sandbox.choose import choose_sandbox
from activities.workspace.working_tree import Workspaces
from tests.support.git_sample import git, make_repository, on_disk, write
from tests.support.plan.stage import SANDBOX, Stage, activities_for, stage
from tightloop.episode.budget import Budget
from tightloop.episode.control import EpisodeInput
from tightloop.executor.model import ExecutorChoice, OnCrash
from tightloop.host import state_folder
from tightloop.plan.child import Belief, StepResult, StepStatus, child_id
from tightloop.plan.document import Plan
from tightloop.plan.failing import FailureClass
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.plan.text.reading import read_plan
from tightloop.safety.drift import DriftError
from tightloop.settings import Settings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"a.txt": "one\n", "b.txt": "two\n"})


def opened(root: Path, *steps: dict[str, Any], **fields: Any) -> Stage:
    checks = CheckRunner(choose_sandbox(SANDBOX), SANDBOX)
    own = {
        "executor": {"default": "scripted", "fallback": ["person"], "on_crash": "ask"},
        "tracking": {"pause_after": 8},
    }
    children = StepChildren(Workspaces(), checks, Settings.model_validate(own))
    return stage(root, *steps, activities=activities_for(plan_children=children), **fields)


def prepared(plan: Stage, step: str, **changes: Any) -> tuple[RunStepRequest, StepRun]:
    request = RunStepRequest(scope=plan.scope, step=step, expected_tree=plan.tree, **changes)
    run: StepRun = plan.call("prepare_children", request)
    return request, run


def carried_out(plan: Stage, request: PlanRequest, identity: str) -> tuple[str, str, str]:
    """Carry a child plan out as its workflow would, one step after the other; return outcome, reason and tree."""
    scope = PlanScope(
        episode_id=identity, workspace=request.workspace, worktree=request.worktree, within=request.within
    )
    opened = plan.call("open_plan", OpenPlanRequest(scope=scope, request=request, opening="run-1"))
    scope = scope.evolve(plan=opened.plan, base_tree=opened.tree)
    tree, outcome, reason = opened.tree, PlanOutcome.COMPLETED, ""
    for step in read_plan(request.source).plan.steps:
        method = "pass_milestone" if step.capability.value == "none" else f"run_{step.capability.value}"
        done: StepResult = plan.call(method, RunStepRequest(scope=scope, step=step.id, expected_tree=tree))
        tree = done.tree or tree
        if done.status is not StepStatus.COMPLETED:
            outcome, reason = PlanOutcome.FAILED, done.failure.reason if done.failure else done.status.value
            break
    plan.call("close_plan", ClosePlanRequest(scope=scope, outcome=outcome, reason=reason, expected_tree=tree))
    return outcome.value, reason, tree


def played(plan: Stage, step: str, attempt: int = 1, **costs: Any) -> StepResult:
    """Prepare, carry out and settle, as the workflow of the plan does."""
    request, run = prepared(plan, step, attempt=attempt)
    if run.result is not None:
        return run.result
    names = run.names or ("",)
    children = [child_id(plan.plan_id, step, attempt, name) for name in names]
    ended = [carried_out(plan, child, identity) for child, identity in zip(run.plans, children, strict=True)]
    settle = SettleRequest(
        run=request,
        children=tuple(children),
        outcomes=tuple(outcome for outcome, _, _ in ended),
        reasons=tuple(reason for _, reason, _ in ended),
        trees=tuple(tree for _, _, tree in ended),
        **costs,
    )
    result: StepResult = plan.call("settle_children", settle)
    plan.tree = result.tree or plan.tree
    return result


def shell(step: str, run: str, **fields: Any) -> dict[str, Any]:
    return {"id": step, "shell": {"run": run}, **fields}


def branch(*alternatives: tuple[str, str], **fields: Any) -> dict[str, Any]:
    ways = [{"name": name, "steps": [shell("do", run)]} for name, run in alternatives]
    return {"id": "try", "branch": {"alternatives": ways, **fields}}


def worktrees(root: Path) -> list[str]:
    listed = git(root, "worktree", "list", "--porcelain").decode()
    return [line for line in listed.splitlines() if line.startswith("worktree ")][1:]


class TestBranch:
    def test_alternatives_start_from_the_tree_of_now_and_the_best_one_is_taken_over(self, root: Path) -> None:
        low, high = "echo low > a.txt; echo 1 > score", "echo high > a.txt; echo 7.5 > score"
        plan = opened(root, shell("first", "echo new > c.txt"), branch(("low", low), ("high", high), score="cat score"))
        plan.check_done("first")
        result = played(plan, "try", cost_usd=0.25, tokens=1_200)
        assert result.status is StepStatus.COMPLETED, result.failure
        assert {path.name: path.read_text() for path in root.glob("*") if path.is_file()} == {
            "a.txt": "high\n",
            "b.txt": "two\n",
            "c.txt": "new\n",
            "score": "7.5\n",
        }
        record = plan.record("try")
        assert record.outputs["winner"] == "high"
        assert [one["score"] for one in record.outputs["alternatives"]] == [1.0, 7.5]
        assert b"+low" in plan.artifact(record.artifacts["patch-low"])
        assert result.usage is not None
        assert (result.usage.cost_usd, result.usage.input_tokens) == (0.25, 1_200)
        assert "high won" in result.summary

    def test_no_worktree_is_left_and_neither_branch_nor_head_move(self, root: Path) -> None:
        before = git(root, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
        plan = opened(root, branch(("x", "echo x > a.txt"), ("y", "echo y > a.txt")))
        played(plan, "try")
        assert worktrees(root) == []
        assert list((state_folder(root) / "worktrees").iterdir()) == []
        assert git(root, "rev-parse", "HEAD", "--abbrev-ref", "HEAD") == before
        assert git(root, "branch", "--list").decode().split() == ["*", "main"]

    def test_without_a_score_the_smaller_change_wins_and_then_the_order(self, root: Path) -> None:
        plan = opened(root, branch(("much", "seq 9 > n.txt"), ("little", "seq 2 > n.txt"), ("same", "seq 2 > m.txt")))
        assert played(plan, "try").status is StepStatus.COMPLETED
        assert plan.record("try").outputs["winner"] == "little"
        assert (root / "n.txt").read_text() == "1\n2\n"
        assert not (root / "m.txt").exists()

    def test_alternative_that_fails_a_check_is_out_even_with_the_best_score(self, root: Path) -> None:
        ways = (("wrong", "echo bad > a.txt; echo 9 > s"), ("right", "echo good > a.txt; echo 1 > s"))
        checks = [{"name": "is good", "run": "touch litter; grep good a.txt"}]
        plan = opened(root, branch(*ways, checks=checks, score="cat s"))
        assert played(plan, "try").status is StepStatus.COMPLETED
        assert (root / "a.txt").read_text() == "good\n"
        assert not (root / "litter").exists()
        listed = json.loads(plan.artifact(plan.record("try").artifacts["alternatives"]))
        assert "check 'is good' failed" in listed[0]["why"]

    def test_where_none_passes_the_step_fails_with_each_reason_and_the_tree_stays(self, root: Path) -> None:
        plan = opened(root, branch(("a", "exit 3"), ("b", "echo x > a.txt"), checks=[{"run": "false"}]))
        files = on_disk(root)
        result = played(plan, "try")
        assert result.status is StepStatus.FAILED
        assert result.failure is not None
        assert result.failure.failure_class is FailureClass.LOGIC
        assert "a: exit code 3" in result.failure.reason
        assert "b: check 'false' failed" in result.failure.reason
        assert on_disk(root) == files
        assert worktrees(root) == []
        assert b"+x" in plan.artifact(plan.record("try").artifacts["patch-b"])

    def test_score_that_is_no_number_puts_an_alternative_out(self, root: Path) -> None:
        plan = opened(root, branch(("x", "echo x > a.txt"), ("y", "echo y > b.txt"), score="grep -c x a.txt"))
        assert played(plan, "try").status is StepStatus.COMPLETED
        assert plan.record("try").outputs["winner"] == "x"

    def test_judging_that_was_interrupted_is_done_again(self, root: Path) -> None:
        plan = opened(root, branch(("x", "echo x > a.txt"), ("y", "seq 3 > b.txt")))
        request, run = prepared(plan, "try")
        children = [child_id(plan.plan_id, "try", 1, name) for name in run.names]
        ended = [carried_out(plan, child, identity) for child, identity in zip(run.plans, children, strict=True)]
        git(root, "worktree", "remove", "--force", str(state_folder(root) / "worktrees" / children[0]))
        settle = SettleRequest(
            run=request,
            children=tuple(children),
            outcomes=("COMPLETED", "COMPLETED"),
            reasons=("", ""),
            trees=tuple(tree for _, _, tree in ended),
        )
        result = plan.call("settle_children", settle)
        assert result.status is StepStatus.COMPLETED
        assert (root / "a.txt").read_text() == "x\n"
        assert plan.call("settle_children", settle) == result
        assert worktrees(root) == []

    def test_closing_a_plan_removes_worktrees_that_were_never_judged(self, root: Path) -> None:
        plan = opened(root, branch(("x", "true"), ("y", "true")))
        _, run = prepared(plan, "try")
        for name, child in zip(run.names, run.plans, strict=True):
            carried_out(plan, child, child_id(plan.plan_id, "try", 1, name))
        assert len(worktrees(root)) == 2
        plan.close(PlanOutcome.CANCELLED)
        assert worktrees(root) == []

    def test_worktree_that_a_step_has_broken_is_removed_too(self, root: Path) -> None:
        plan = opened(root, branch(("x", "true"), ("y", "true")))
        _, run = prepared(plan, "try")
        child = child_id(plan.plan_id, "try", 1, "x")
        carried_out(plan, run.plans[0], child)
        place = state_folder(root) / "worktrees" / child
        (place / ".git").unlink()
        plan.close(PlanOutcome.FAILED)
        assert not place.exists()
        assert len(list((state_folder(root) / "trees/states").iterdir())) == 1

    def test_cost_bound_is_shared_out_and_policy_is_inherited(self, root: Path) -> None:
        policy = {"write": ["a.txt"], "network": ["example.org"]}
        step = branch(("x", "true"), ("y", "true"), max_cost_usd=3.0)
        plan = opened(root, step, plan={"policy": policy, "budget": {"max_cost_usd": 8.0}, "seed": 7})
        _, run = prepared(plan, "try")
        for request in run.plans:
            child = read_plan(request.source).plan
            assert child.budget.max_cost_usd == 1.5
            assert child.policy == plan.plan.policy
            assert child.seed == 7
            assert request.worktree
            assert not request.within

    def test_alternative_that_leaves_its_write_scope_is_out(self, root: Path) -> None:
        plan = opened(
            root, branch(("x", "echo x > b.txt"), ("y", "seq 3 > a.txt")), plan={"policy": {"write": ["a.txt"]}}
        )
        assert played(plan, "try").status is StepStatus.COMPLETED
        assert plan.record("try").outputs["winner"] == "y"
        assert (root / "b.txt").read_text() == "two\n"

    def test_destructive_check_is_refused_before_anything_starts(self, root: Path) -> None:
        plan = opened(root, branch(("x", "true"), ("y", "true"), checks=[{"run": "rm -rf ~"}]))
        _, run = prepared(plan, "try")
        assert run.result is not None
        assert run.result.failure is not None
        assert run.result.failure.failure_class is FailureClass.POLICY
        assert worktrees(root) == []


class TestSubplan:
    def test_steps_run_in_the_same_tree_and_their_outputs_are_read_by_their_ids(self, root: Path) -> None:
        inner = [
            shell("count", "wc -l < ${plan.file} | tr -d ' '; echo ${plan.word} >> ${plan.file}"),
            {"id": "list", "shell": {"run": "echo '[1, 2]'"}, "outputs": {"items": "json"}},
        ]
        step = {"id": "sub", "subplan": {"steps": inner, "inputs": {"word": "$${not a reference}"}}}
        after = shell("after", "echo ${sub.count.stdout} ${sub.list.items}", needs=["sub"])
        plan = opened(root, step, after, plan={"inputs": {"file": "a.txt"}})
        result = played(plan, "sub")
        assert result.status is StepStatus.COMPLETED, result.failure
        assert (root / "a.txt").read_text() == "one\n${not a reference}\n"
        plan.check_done("after")
        assert plan.record("after").outputs["stdout"].split() == ["1", "1", "2"]

    def test_subplan_is_within_the_plan_and_one_that_fails_leaves_nothing(self, root: Path) -> None:
        plan = opened(root, {"id": "sub", "subplan": {"steps": [shell("x", "echo x > a.txt"), shell("y", "exit 1")]}})
        _, run = prepared(plan, "sub")
        assert run.plans[0].within == plan.plan_id
        result = played(plan, "sub")
        assert result.failure is not None
        assert result.failure.reason.endswith("ended with status FAILED: exit code 1")
        assert (root / "a.txt").read_text() == "one\n"

    def test_plan_file_is_held_within_the_policy_and_budget_around_it(self, root: Path) -> None:
        text = """
id: inner
inputs: {who: nobody}
policy: {write: ["**"], network: [evil.org, good.org], shell_network: true}
budget: {max_cost_usd: 100}
steps:
  - {id: x, run: "echo ${plan.who} > b.txt"}
"""
        write(root, {"plans/inner.yaml": text})
        policy = {"write": ["a.txt"], "network": ["good.org"]}
        step = {"id": "sub", "subplan": {"file": "plans/inner.yaml", "inputs": {"who": "sam"}}}
        plan = opened(root, step, plan={"policy": policy, "budget": {"max_cost_usd": 2.0}})
        _, run = prepared(plan, "sub")
        child = read_plan(run.plans[0].source).plan
        assert child.policy.network == ("good.org",)
        assert not child.policy.shell_network
        assert child.budget.max_cost_usd == 2.0
        result = played(plan, "sub")
        assert result.failure is not None
        assert "policy.write (a.txt) does not cover b.txt" in result.failure.reason
        assert (root / "b.txt").read_text() == "two\n"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (None, "not found in the tree"),
            ("id: x\nsteps:\n  - {id: a, needs: [b]}\n", "plans/inner.yaml:3:"),
            ("id: x\nsteps: [{id: a}]\n", "has no input 'who'"),
        ],
    )
    def test_plan_file_that_cannot_run_is_refused_with_its_place(self, root: Path, text: str | None, said: str) -> None:
        if text is not None:
            write(root, {"plans/inner.yaml": text})
        plan = opened(root, {"id": "sub", "subplan": {"file": "plans/inner.yaml", "inputs": {"who": "sam"}}})
        _, run = prepared(plan, "sub")
        assert run.result is not None
        assert run.result.failure is not None
        assert said in run.result.failure.reason

    def test_evidence_of_inner_steps_reaches_the_plan_around_them(self, root: Path) -> None:
        found = shell("look", "true", evidence=[{"hypothesis": "H1", "verdict": "supports", "strength": "strong"}])
        plan = opened(root, {"id": "sub", "subplan": {"steps": [found]}}, plan={"hypotheses": [{"id": "H1"}]})
        _, run = prepared(plan, "sub", beliefs=(Belief(hypothesis="H1", confidence=0.8),))
        assert read_plan(run.plans[0].source).plan.hypotheses[0].prior == 0.8
        assert played(plan, "sub").evidence[0].hypothesis == "H1"

    def test_subplan_that_only_reads_is_played_without_a_change_of_the_tree(self, root: Path) -> None:
        inner = shell("look", "wc -l < a.txt", access="reads")
        plan = opened(root, {"id": "look", "access": "reads", "subplan": {"steps": [inner]}})
        result = played(plan, "look")
        assert (result.status, result.tree) == (StepStatus.COMPLETED, "")
        assert plan.record("look").outputs["look"]["stdout"].strip() == "1"

    def test_writer_within_a_subplan_that_only_reads_is_refused(self, root: Path) -> None:
        inner = (shell("look", "true", access="reads"), shell("touch", "echo x > a.txt"))
        plan = opened(root, {"id": "look", "access": "reads", "subplan": {"steps": inner}})
        _, run = prepared(plan, "look")
        assert run.result is not None
        assert run.result.failure is not None
        assert "inner step 'touch' writes" in run.result.failure.reason


class TestEpisode:
    def goal(self, **fields: Any) -> dict[str, Any]:
        return {
            "id": "agent",
            "episode": {"goal": "fix ${plan.what}", "definition_of_done": [{"run": "true"}], **fields},
        }

    def test_episode_has_the_goal_the_defaults_and_the_budget_of_its_step(self, root: Path) -> None:
        step = {**self.goal(), "budget": {"max_cost_usd": 0.5}, "timeout_s": 1_800}
        plan = opened(root, step, plan={"inputs": {"what": "a.txt"}})
        _, run = prepared(plan, "agent")
        episode = EpisodeInput.model_validate(run.episode)
        episode.check()
        assert episode.goal == "fix a.txt"
        assert episode.within == plan.plan_id
        assert episode.executor == ExecutorChoice(name="scripted", fallback=("person",), on_crash=OnCrash.ASK)
        assert episode.pause_after == 8
        assert episode.budget.max_cost_usd == 0.5
        assert episode.budget.max_wall_time is not None
        assert episode.budget.max_wall_time.total_seconds() == 1_800
        assert episode.budget.max_iterations == Budget().max_iterations

    def test_episode_of_a_plan_without_any_check_is_refused(self, root: Path) -> None:
        plan = opened(root, self.goal(definition_of_done=[]), plan={"inputs": {"what": "it"}})
        _, run = prepared(plan, "agent")
        assert run.result is not None
        assert run.result.failure is not None
        assert "definition of done is empty" in run.result.failure.reason

    def test_step_that_claims_not_to_touch_the_tree_is_refused(self, root: Path) -> None:
        plan = opened(root, {**self.goal(), "access": "none"}, plan={"inputs": {"what": "it"}})
        _, run = prepared(plan, "agent")
        assert run.result is not None
        assert run.result.failure is not None
        assert "Remove 'access'" in run.result.failure.reason

    def test_child_does_not_start_over_an_edit_of_a_stranger(self, root: Path) -> None:
        plan = opened(root, self.goal(), plan={"inputs": {"what": "it"}})
        write(root, {"a.txt": "somebody was here\n"})
        with pytest.raises(DriftError):
            prepared(plan, "agent")
        assert (root / "a.txt").read_text() == "somebody was here\n"

    @pytest.mark.parametrize("outcome", ["SUCCEEDED", "FAILED"])
    def test_edit_of_a_stranger_stays_while_the_result_of_a_child_is_taken_in(self, root: Path, outcome: str) -> None:
        plan = opened(root, self.goal(), plan={"inputs": {"what": "it"}})
        request, _ = prepared(plan, "agent")
        write(root, {"made.txt": "by the agent\n"})
        with Workspaces().hold(plan.scope) as tree:
            left = tree.snapshot()
        write(root, {"mine.txt": "by a person\n"})
        settle = SettleRequest(
            run=request, children=("plan.agent.1",), outcomes=(outcome,), reasons=("",), trees=(left,)
        )
        result = plan.call("settle_children", settle)
        assert result.tree == (left if outcome == "SUCCEEDED" else request.expected_tree)
        assert (root / "mine.txt").read_text() == "by a person\n"
        assert (root / "made.txt").exists() is (outcome == "SUCCEEDED")

    @pytest.mark.parametrize(("outcome", "kind"), [("FAILED", FailureClass.LOGIC), ("CANCELLED", FailureClass.POLICY)])
    def test_episode_that_does_not_succeed_is_a_failure_with_its_reason(
        self, root: Path, outcome: str, kind: FailureClass
    ) -> None:
        plan = opened(root, self.goal(), plan={"inputs": {"what": "it"}})
        request, _ = prepared(plan, "agent")
        settle = SettleRequest(
            run=request, children=("plan.agent.1",), outcomes=(outcome,), reasons=("why not",), trees=(plan.tree,)
        )
        result = plan.call("settle_children", settle)
        assert result.failure is not None
        assert result.failure.failure_class is kind
        assert result.failure.reason == f"plan.agent.1 ended with status {outcome}: why not"


def test_preview_says_what_would_be_started(root: Path) -> None:
    plan = opened(
        root,
        branch(("x", "true"), ("y", "true")),
        {"id": "agent", "episode": {"goal": "fix it"}},
        {"id": "sub", "subplan": {"steps": [{"id": "m"}]}},
    )
    said = [prepared(plan, step, dry_run=True)[1].result for step in ("try", "agent", "sub")]
    assert [one.summary for one in said if one] == [
        "try x, y in separate worktrees, and apply the best one that passes",
        "ask scripted to work on: fix it",
        "run 1 step as a separate plan: m",
    ]
    assert worktrees(root) == []


def test_plan_is_a_document_that_reads_back(root: Path) -> None:
    inner = [shell("x", "echo ${plan.y}")]
    plan = opened(root, {"id": "sub", "subplan": {"steps": inner}}, plan={"inputs": {"y": "${sub.z}"}})
    _, run = prepared(plan, "sub")
    child: Plan = read_plan(run.plans[0].source).plan
    assert child.inputs == {"y": None}
    assert run.plans[0].inputs == {"y": "${sub.z}"}
