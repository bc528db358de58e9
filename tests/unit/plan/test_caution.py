"""Plans that a model wrote stay within the bounds of the settings."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.executor.model import Usage
from tightloop.plan.document import Plan, PlanBudget
from tightloop.plan.engine.recovery import find_breach
from tightloop.plan.guard import (
    UNREVIEWED,
    Caution,
    StepEffects,
    confine_plan,
    confine_revision,
    find_gate_bypasses,
    find_objections,
    judge,
    label_risky_step,
)
from tightloop.plan.request import PlanSpent
from tightloop.plan.step import Step
from tightloop.safety.rubric import Verdict
from tightloop.settings import PlanSettings

CAUTION: Caution = PlanSettings().caution(("ruff",))


def plan(*steps: dict[str, Any], **fields: Any) -> Plan:
    return Plan.model_validate({"id": "p", "steps": steps, **fields})


def shell(step: str, run: str, **fields: Any) -> dict[str, Any]:
    return {"id": step, "shell": {"run": run}, **fields}


bounds = st.one_of(st.none(), st.floats(0.1, 1_000))
budgets = st.builds(
    PlanBudget,
    max_wall_s=bounds,
    max_cost_usd=bounds,
    max_tokens=st.one_of(st.none(), st.integers(0, 10**6)),
    max_attempts=st.integers(1, 20_000),
    max_depth=st.integers(1, 16),
    max_fan_out=st.integers(1, 2_500),
    max_revisions=st.integers(1, 100),
)


def test_planning_that_used_far_too_much_lets_nothing_start() -> None:
    spent = PlanSpent().with_usage(Usage(input_tokens=1_800_000, output_tokens=10), 1)
    breach = find_breach(confine_plan(Plan(id="p"), CAUTION).budget, spent)
    assert breach is not None
    assert breach.startswith("the plan has used 1800010 tokens, and max_tokens is 1000000")


@given(budgets, budgets)
def test_budget_of_a_models_plan_is_within_both(own: PlanBudget, ours: PlanBudget) -> None:
    caution = Caution(policy=CAUTION.policy, budget=ours)
    found = confine_plan(Plan(id="p", budget=own), caution).budget
    for name in PlanBudget.model_fields:
        for bound in (getattr(own, name), getattr(ours, name)):
            assert bound is None or getattr(found, name) <= bound


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("ruff check .", Verdict.ALLOW),
        ("grep -rn x . | head -3", Verdict.ALLOW),
        ("git log --oneline", Verdict.ALLOW),
        ("pytest -q", Verdict.ASK),
        ("ls; pytest", Verdict.ASK),
        ("ls $(pytest)", Verdict.ASK),
        ("git commit -m x", Verdict.ASK),
        ("cat ~/.ssh/id_rsa", Verdict.ASK),
        ("rm -rf /", Verdict.DENY),
        ("git -c core.pager=x log", Verdict.ASK),
    ],
)
def test_command_of_a_model_runs_only_where_it_is_listed(command: str, verdict: Verdict) -> None:
    policy = confine_plan(plan(shell("a", command)), CAUTION).policy
    assert judge(policy, Step(id="a"), StepEffects(commands=(command,))).verdict is verdict


def test_steps_within_steps_are_marked_too() -> None:
    inner = [shell("x", "make x"), shell("y", "ls")]
    ways = [{"name": "a", "steps": inner}, {"name": "b", "steps": [{"id": "f", "http": {"urls": ["https://a.org"]}}]}]
    sub = label_risky_step(Step.model_validate({"id": "s", "subplan": {"steps": inner}}), CAUTION)
    split = label_risky_step(Step.model_validate({"id": "b", "branch": {"alternatives": ways}}), CAUTION)
    assert sub.subplan is not None
    assert split.branch is not None
    assert [step.labels for step in sub.subplan.steps] == [(UNREVIEWED,), ()]
    assert [way.steps[0].labels for way in split.branch.alternatives] == [(UNREVIEWED,), (UNREVIEWED,)]


def test_revision_of_a_models_own_plan_keeps_its_bounds_and_needs_no_marks() -> None:
    old = confine_plan(plan(shell("a", "ls")), CAUTION)
    new = confine_revision(plan(shell("a", "ls"), shell("b", "make b"), policy={"approve": []}), old, CAUTION)
    assert new.policy == old.policy
    assert new.steps[1].labels == ()
    assert judge(new.policy, new.steps[1], StepEffects(commands=("make b",))).verdict is Verdict.ASK


def test_forbidden_acts_are_found_in_steps_within_steps() -> None:
    sub = {"id": "s", "subplan": {"steps": [shell("x", "git push --force")]}}
    assert "rewrites_history" in find_objections(plan(sub), CAUTION, None)[0]
    assert find_objections(plan(sub), CAUTION, plan(sub)) == ()


def test_gate_may_neither_go_nor_be_gone_round() -> None:
    gate = {"id": "ok", "gate": {"approval": {"role": "lead"}}}
    old = plan(gate, {"id": "mid", "needs": ["ok"]}, shell("ship", "make ship", needs=["mid"]))
    direct = plan(gate, {"id": "mid", "needs": ["ok"]}, shell("ship", "make ship", needs=["ok"]))
    assert find_gate_bypasses(direct, old) == ()
    assert (
        "'ship' no longer waits"
        in find_gate_bypasses(plan(gate, {"id": "mid", "needs": ["ok"]}, shell("ship", "make ship")), old)[0]
    )
    weaker = plan({"id": "ok", "gate": {}}, *({"id": "mid", "needs": ["ok"]}, shell("ship", "x", needs=["mid"])))
    assert find_gate_bypasses(weaker, old) == ("step 'ok' is a gate that a person defined: leave the gate unchanged",)


def test_revision_of_a_persons_plan_by_a_model_is_bounded_in_what_it_deletes() -> None:
    old = plan(shell("one", "true"))
    new = confine_revision(
        plan(shell("one", "true"), {"id": "two", "edit": {"files": [{"path": "a", "delete": True}]}}), old, CAUTION
    )
    assert old.policy.deletions is None
    assert new.policy.deletions == CAUTION.policy.deletions is not None
