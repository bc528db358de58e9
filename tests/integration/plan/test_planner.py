"""Plans written by a model on loopback: only where that is on, sent back while wrong, never looser than allowed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.model.client import ModelService
from activities.plan.plan_writer import PlannerOptions, PlanWriter
from activities.plan.requests import OpenedPlan, OpenPlanRequest, PlanScope, RevisedPlan, RevisePlanRequest
from tests.support.git_sample import make_repository
from tests.support.model_server import ModelServer, Reply, fails, says
from tests.support.plan.stage import PLAN_ID, Stage, activities_for, stage
from tightloop.errors import InvalidRequestError, PlannerUnavailableError
from tightloop.plan.document import Plan, Policy, StoredPlan
from tightloop.plan.guard import UNREVIEWED, StepEffects, judge
from tightloop.plan.request import PlanRequest
from tightloop.plan.text.writing import write_plan
from tightloop.safety.drift import PromptPrivacy
from tightloop.safety.rubric import Verdict
from tightloop.settings import PlanSettings

GOOD = """
id: fix
title: Fix the greeting
steps:
  - {id: look, search: {query: hello}}
  - id: fix
    needs: [look]
    edit: {files: [{path: a.txt, search: one, replace: hello}]}
  - {id: show, needs: [fix], run: "grep hello a.txt", expect: ["${exit_code} == 0"]}
  - {id: test, needs: [fix], run: "python -m pytest -q"}
"""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"a.txt": "one\n", "src/secret_name.py": "x = 1\n"})


def writer(
    server: ModelServer,
    *,
    enabled: bool = True,
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL,
    key: str = "sk-key-of-a-test",
    **settings: Any,
) -> PlanWriter:
    service = ModelService(api_key=key, base_url=server.url if key else "", models=("m-1",), corrections=2)
    caution = PlanSettings(**settings).caution(("ruff",))
    return PlanWriter(
        PlannerOptions(
            service=service, caution=caution, enabled=enabled, prompt_privacy_of=lambda _workspace: prompt_privacy
        )
    )


def plans(text: str, why: str = "because", keep: tuple[str, ...] = ()) -> Reply:
    return says({"rationale": why, "keep": keep, "plan": text})


def opened(root: Path, made: PlanWriter, **fields: Any) -> tuple[OpenedPlan, Stage]:
    """Open a plan for a goal, and return it with a stage on which its steps can run."""
    scope = PlanScope(episode_id=PLAN_ID, workspace=str(root))
    work = Stage.__new__(Stage)
    work.root, work.activities, work.plan_id, work.run_id, work.inputs = (
        root,
        activities_for(plan_writer=made),
        PLAN_ID,
        "run-1",
        {},
    )
    request = PlanRequest(workspace=str(root), goal="say hello in a.txt", **fields)
    found: OpenedPlan = work.call("open_plan", OpenPlanRequest(scope=scope, request=request, opening="run-1"))
    work.tree = found.tree
    work.scope = scope.evolve(plan=found.plan, base_tree=found.tree)
    work.plan = kept(work, found).plan
    return found, work


def kept(work: Stage, found: OpenedPlan | RevisedPlan) -> StoredPlan:
    assert found.plan is not None
    return StoredPlan.model_validate_json(work.artifact(found.plan))


class TestGoal:
    def test_plan_for_a_goal_runs_and_a_person_approves_what_is_not_allowed(
        self, root: Path, server: ModelServer
    ) -> None:
        server.queue(plans(GOOD, "first look"))
        found, work = opened(root, writer(server))
        work.check_done("look")
        work.check_done("fix")
        assert (root / "a.txt").read_text() == "hello\n"
        work.check_done("show")
        waiting = work.run("test")
        assert waiting.question is not None
        assert "python -m pytest -q" in waiting.question.title
        assert found.planner
        assert found.usage is not None
        assert found.usage.known
        assert found.api_calls == 1
        stored = kept(work, found)
        assert (stored.rationale, stored.by) == ("first look", "planner (m-1)")
        assert stored.exchange is not None
        assert b"say hello in a.txt" in work.artifact(stored.exchange)

    def test_prompt_has_goal_files_bounds_and_inputs(self, root: Path, server: ModelServer) -> None:
        server.queue(plans("inputs: {x: ''}" + GOOD))
        opened(root, writer(server, network=("docs.example.org",)), inputs={"x": "the value"})
        text = server.requests[0].text
        for part in ("say hello in a.txt", "src/secret_name.py", "docs.example.org", "ruff **", "x: the value"):
            assert part in text

    def test_summary_withholds_the_names_of_files(self, root: Path, server: ModelServer) -> None:
        server.queue(plans(GOOD))
        opened(root, writer(server, prompt_privacy=PromptPrivacy.SUMMARY))
        assert "secret_name" not in server.requests[0].text
        assert "2 files" in server.requests[0].text

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ("id: x\nsteps:\n  - {id: a, needs: [b]}\n", "plan:3:"),
            ("id: x\nsteps: [}", "plan:2:"),
            ("id: x\nsteps: [{id: a, nonsense: 1}]\n", "nonsense"),
            ("id: x\nsteps: [{id: a, run: 'rm -rf ~'}]\n", "destructive_command"),
            ("id: x\nsteps: [{id: a, http: {url: 'https://evil.org/'}}]\n", "evil.org"),
            (
                "id: x\nsteps: [{id: a, edit: {files: [{path: .env, content: x}]}}]\n",
                "policy.protect forbids changes to .env",
            ),
            ("id: x\nsteps: [{id: a, subplan: {file: p.yaml}}]\n", "loads a plan from a file"),
            ("id: x\ndefinition_of_done: [pytest]\nsteps: [{id: a}]\n", "move it to a gate check"),
            ("id: x\nsteps: [{id: a, run: 'ls', compensate: {run: './undo'}}]\n", "but nobody can approve it"),
            ("id: x\nsteps: [" + ", ".join(f"{{id: s{n}}}" for n in range(201)) + "]\n", "the maximum is 200"),
        ],
    )
    def test_wrong_plan_is_sent_back_with_what_is_wrong(
        self, root: Path, server: ModelServer, wrong: str, said: str
    ) -> None:
        server.queue(plans(wrong), plans(GOOD))
        found, work = opened(root, writer(server))
        assert len(server.requests) == found.api_calls == 2
        assert said in server.requests[1].text
        assert work.plan.title == "Fix the greeting"

    def test_plan_that_stays_wrong_is_refused_after_the_corrections_and_gives_the_workspace_back(
        self, root: Path, server: ModelServer
    ) -> None:
        server.queue(plans("id: x\nsteps: []\n"))
        with pytest.raises(InvalidRequestError, match="returned no usable answer in 3 attempts"):
            opened(root, writer(server))
        assert len(server.requests) == 3
        stage(root, {"id": "m"}, plan_id="plan-another")

    def test_nothing_is_asked_while_the_setting_is_off(self, root: Path, server: ModelServer) -> None:
        with pytest.raises(InvalidRequestError, match=r"plans\.agent_planning is off"):
            opened(root, writer(server, enabled=False))
        assert server.requests == []
        assert not writer(server, enabled=False).available

    def test_without_a_key_it_is_said_what_to_set(self, root: Path, server: ModelServer) -> None:
        with pytest.raises(InvalidRequestError, match="Set OPENAI_API_KEY"):
            opened(root, writer(server, key=""))

    def test_hand_written_plans_run_while_the_setting_is_off(self, root: Path, server: ModelServer) -> None:
        activities = activities_for(plan_writer=writer(server, enabled=False))
        plan = stage(root, {"id": "m", "shell": {"run": "true"}}, activities=activities)
        assert plan.check_done("m").failure is None
        assert server.requests == []

    def test_busy_service_is_tried_again_and_a_refusing_one_is_told(self, root: Path, server: ModelServer) -> None:
        server.queue(fails(503), says("", refusal="I may not"))
        with pytest.raises(PlannerUnavailableError):
            opened(root, writer(server))
        with pytest.raises(InvalidRequestError, match="refused to plan: I may not"):
            opened(root, writer(server))

    def test_model_cannot_loosen_policy_or_budget(self, root: Path, server: ModelServer) -> None:
        loose = """
policy:
  write: ["**"]
  protect: []
  network: [evil.org]
  shell_network: true
  approve: []
  commands: [{match: "**", verdict: allow}]
budget: {max_cost_usd: 1000, max_attempts: 15000, max_wall_s: 60}
"""
        server.queue(plans(GOOD + loose))
        _, work = opened(root, writer(server, write=("a.txt",), max_cost_usd=2.0))
        plan = work.plan
        step = plan.steps[-1]
        assert judge(plan.policy, step, StepEffects(commands=("python x.py",))).verdict is Verdict.ASK
        assert judge(plan.policy, step, StepEffects(commands=("cat ~/.ssh/id_rsa",))).verdict is Verdict.ASK
        assert judge(plan.policy, step, StepEffects(commands=("git push --force",))).verdict is Verdict.DENY
        assert judge(plan.policy, step, StepEffects(paths=("b.txt",))).verdict is Verdict.DENY
        assert judge(plan.policy, step, StepEffects(paths=(".env",))).verdict is Verdict.DENY
        assert plan.policy.network == ()
        assert not plan.policy.shell_network
        assert (plan.budget.max_cost_usd, plan.budget.max_attempts, plan.budget.max_wall_s) == (2.0, 1_000, 60)

    def test_prompt_begins_with_its_stable_part(self, root: Path, server: ModelServer) -> None:
        server.queue(plans(GOOD))
        opened(root, writer(server))
        found, _ = opened(make_repository(root.parent / "other", {"b.txt": "x\n"}), writer(server))
        assert found.api_calls == 1
        first, second = (request.body["messages"][0]["content"] for request in server.requests)
        assert first == second


HAND = {
    "policy": {"network": ["127.0.0.1:1"], "commands": [{"match": "make **", "verdict": "allow"}]},
    "budget": {"max_cost_usd": 7.0},
    "definition_of_done": [{"run": "true"}],
}


class TestRevision:
    def staged(self, root: Path, server: ModelServer, *steps: dict[str, Any], **options: Any) -> Stage:
        return stage(root, *steps, plan=HAND, activities=activities_for(plan_writer=writer(server, **options)))

    def revised(self, plan: Stage, **fields: Any) -> RevisedPlan:
        found: RevisedPlan = plan.call(
            "revise_plan", RevisePlanRequest(scope=plan.scope, **{"trouble": "step 'b' failed: exit code 2", **fields})
        )
        return found

    def test_new_steps_that_run_or_reach_out_are_marked_for_a_person_and_others_are_not(
        self, root: Path, server: ModelServer
    ) -> None:
        old = [{"id": "a", "shell": {"run": "true"}}, {"id": "b", "shell": {"run": "make x"}, "needs": ["a"]}]
        plan = self.staged(root, server, *old)
        new = [
            {"id": "a", "shell": {"run": "true"}},
            {"id": "edit", "needs": ["a"], "edit": {"files": [{"path": "a.txt", "content": "x"}]}},
            {"id": "ask", "needs": ["edit"], "shell": {"run": "python fix.py"}},
            {"id": "list", "needs": ["edit"], "shell": {"run": "ls -l"}},
            {"id": "b", "needs": ["ask", "list"], "shell": {"run": "make x"}},
        ]
        server.queue(plans(json.dumps({"id": "other", "policy": {"approve": []}, "steps": new}), "another way"))
        found = self.revised(plan, fixed=("a",), statuses={"a": "completed", "b": "failed"})
        assert found.problem == ""
        assert found.usage is not None
        stored = kept(plan, found)
        labels = {step.id: step.labels for step in stored.plan.steps}
        assert labels["ask"] == (UNREVIEWED,)
        assert (labels["a"], labels["edit"], labels["list"]) == ((), (), ())
        assert stored.rationale == "another way"
        assert stored.plan.budget == plan.plan.budget
        assert stored.plan.definition_of_done == plan.plan.definition_of_done
        assert stored.plan.policy.commands == plan.plan.policy.commands
        assert set(stored.plan.policy.approve) == {"deploy", UNREVIEWED}
        assert "exit code 2" in server.requests[0].text

    @pytest.mark.parametrize(
        ("steps", "said"),
        [
            (
                [
                    {"id": "a", "shell": {"run": "false"}},
                    {"id": "ok", "needs": ["a"], "gate": {"approval": {}}},
                    {"id": "b", "needs": ["ok"]},
                ],
                "cannot be changed",
            ),
            (
                [{"id": "a", "shell": {"run": "true"}}, {"id": "b", "shell": {"run": "ls"}}],
                "'ok' is a gate that a person defined",
            ),
            (
                [
                    {"id": "a", "shell": {"run": "true"}},
                    {"id": "ok", "needs": ["a"], "gate": {"approval": {}}},
                    {"id": "b", "shell": {"run": "ls"}},
                ],
                "no longer waits for gate 'ok'",
            ),
        ],
    )
    def test_planner_changes_neither_what_is_done_nor_a_persons_gates(
        self, root: Path, server: ModelServer, steps: list[dict[str, Any]], said: str
    ) -> None:
        old = [
            {"id": "a", "shell": {"run": "true"}},
            {"id": "ok", "needs": ["a"], "gate": {"approval": {}}},
            {"id": "b", "needs": ["ok"], "shell": {"run": "make x"}},
        ]
        plan = self.staged(root, server, *old)
        server.queue(plans(json.dumps({"id": "p", "steps": steps})))
        found = self.revised(plan, fixed=("a",), statuses={"a": "completed"})
        assert found.plan is None
        assert said in found.problem
        assert found.api_calls == 3
        assert found.usage is not None

    def test_revision_that_changes_nothing_is_sent_back(self, root: Path, server: ModelServer) -> None:
        plan = self.staged(root, server, {"id": "a", "shell": {"run": "true"}})
        same = write_plan(Plan.model_validate({"id": "p", "steps": [{"id": "a", "shell": {"run": "true"}}]}))
        server.queue(plans(same), plans(same + "  - {id: more, run: ls}\n"))
        found = self.revised(plan)
        assert found.changed == ("more",)
        assert "is identical to" in server.requests[1].text

    def test_only_what_is_different_is_written_and_what_is_done_stays_in_any_case(
        self, root: Path, server: ModelServer
    ) -> None:
        old = [{"id": name, "shell": {"run": f"echo {name}"}} for name in ("a", "b", "c", "d")]
        plan = self.staged(root, server, *old)
        only = "id: p\nsteps:\n  - {id: e, needs: [a, c], run: ls}\n  - {id: d, run: ls -l}\n"
        server.queue(plans(only, keep=("c", "nowhere")), plans(only, keep=("c",)))
        found = self.revised(plan, fixed=("a",), statuses={"a": "completed", "b": "failed"})
        assert found.problem == ""
        assert "`keep` contains 'nowhere'" in server.requests[1].text
        steps = {step.id: step for step in kept(plan, found).plan.steps}
        assert set(steps) == {"a", "c", "d", "e"}
        assert steps["c"] == plan.plan.steps[2]
        assert set(found.changed) == {"d", "e"}

    def test_long_plan_is_shown_as_an_outline_with_what_failed(self, root: Path, server: ModelServer) -> None:
        steps = [
            {"id": f"s{n}", "title": f"title {n}", "shell": {"run": f"echo content-{n}-{'x' * 200}"}}
            for n in range(150)
        ]
        plan = self.staged(root, server, *steps)
        server.queue(plans("id: p\nsteps: [{id: new, run: ls}]\n", keep=("s1",)))
        assert self.revised(plan, statuses={"s7": "failed"}).problem == ""
        text = server.requests[0].text
        assert "content-7-" in text
        assert "content-8-" not in text
        assert "- s8 (shell): title 8" in text

    def test_summary_withholds_what_failed(self, root: Path, server: ModelServer) -> None:
        code = {"id": "e", "edit": {"files": [{"path": "a.txt", "content": "def secret(): pass"}]}}
        plan = self.staged(
            root, server, {"id": "a", "shell": {"run": "true"}}, code, prompt_privacy=PromptPrivacy.SUMMARY
        )
        server.queue(plans("id: p\nsteps: [{id: a, run: 'true'}, {id: c, run: ls}]\n"))
        assert self.revised(plan, trouble="the text of a file").problem == ""
        assert "the text of a file" not in server.requests[0].text
        assert "def secret" not in server.requests[0].text
        assert "- e (edit)" in server.requests[0].text

    def test_setting_off_is_a_problem_and_a_persons_text_is_taken(self, root: Path, server: ModelServer) -> None:
        plan = self.staged(root, server, {"id": "a", "shell": {"run": "true"}}, enabled=False)
        assert "plans.agent_planning is off" in self.revised(plan).problem
        by_hand = "id: p\npolicy: {network: [example.org]}\nsteps: [{id: a, run: 'true'}, {id: c, run: ls}]\n"
        found = self.revised(plan, source=by_hand, by="ada")
        assert kept(plan, found).by == "ada"
        assert kept(plan, found).plan.policy == Policy(network=("example.org",))
        assert server.requests == []
