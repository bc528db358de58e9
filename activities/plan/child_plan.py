"""Plans that are made of a step: what they inherit, and how their results are read."""

import re
from collections.abc import Mapping
from typing import Any

from activities.plan.files import READ_BYTES, read_file
from activities.plan.port import Records, Work
from activities.plan.references import unpacked
from tightloop.errors import InvalidRequestError, PlanError
from tightloop.plan.model import OnPlanFailure, Plan, Step
from tightloop.plan.request import INPUT_CHARACTERS, SOURCE_CHARACTERS, PlanRequest
from tightloop.plan.result import EvidenceNote, StepRecord
from tightloop.plan.rules.bounds import bounded, narrowest
from tightloop.plan.rules.guard import tightened
from tightloop.plan.text.reading import read_plan
from tightloop.plan.text.writing import write_plan
from tightloop.plan.validation.validate import validate

ID_CHARACTERS = 60


def inner_plan(work: Work, steps: tuple[Step, ...], *, name: str, inputs: Mapping[str, Any]) -> Plan:
    """Return a plan of the steps within a step: policy, budget, seed and beliefs are those of the plan around it."""
    believed = {belief.hypothesis: min(max(belief.confidence, 0.01), 0.99) for belief in work.beliefs}
    return Plan(
        id=re.sub(r"[^A-Za-z0-9._-]", "-", name)[:ID_CHARACTERS],
        title=work.step.title or name,
        # The names only: values travel beside the text, where nothing in them is read as a reference.
        inputs=dict.fromkeys(inputs),
        steps=steps,
        hypotheses=tuple(
            one.model_copy(update={"prior": believed.get(one.id, one.prior)}) for one in work.plan.hypotheses
        ),
        on_failure=OnPlanFailure.FAIL,
        max_parallel=work.plan.max_parallel,
        budget=bounded(work.plan.budget, work.step.budget.max_cost_usd, work.step.budget.max_tokens),
        policy=work.plan.policy,
        seed=work.plan.seed,
    )


def plan_from_file(work: Work, file: str, inputs: Mapping[str, Any]) -> Plan:
    """Return the plan in a file of the tree, within the policy and the budget of the plan around it.

    Raises:
        InvalidRequestError: there is no such file, or it holds no right plan; the message has line and column.
    """
    content = read_file(work.root, file, READ_BYTES)
    if content is None:
        raise InvalidRequestError(f"there is no plan file {file!r} in the tree. Name one that is there")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the plan file {file!r} is no UTF-8 text (byte {error.start})") from error
    read = read_plan(text, name=file)
    if wrong := tuple(problem for problem in validate(read) if problem.is_error):
        raise PlanError(wrong)
    plan = read.plan
    if unknown := sorted(set(inputs) - set(plan.inputs)):
        raise InvalidRequestError(f"{file} has no input {unknown[0]!r}. It has: {', '.join(plan.inputs) or 'none'}")
    own = narrowest(plan.budget, work.plan.budget)
    return plan.model_copy(
        update={
            "policy": tightened(plan.policy, work.plan.policy),
            "budget": bounded(own, work.step.budget.max_cost_usd, work.step.budget.max_tokens),
        }
    )


def request_for(work: Work, plan: Plan, inputs: Mapping[str, Any], *, worktree: bool) -> PlanRequest:
    """Return what starts a child plan.

    Raises:
        InvalidRequestError: the plan or its inputs are too large for a message.
    """
    source = write_plan(plan, "json")
    if len(source) > SOURCE_CHARACTERS:
        raise InvalidRequestError(
            f"the steps within {work.step.id!r} have {len(source)} characters, at most {SOURCE_CHARACTERS} can be one "
            "plan. Split them into several subplans"
        )
    if len(str(dict(inputs))) > INPUT_CHARACTERS:
        raise InvalidRequestError(
            f"the inputs of {work.step.id!r} have more than {INPUT_CHARACTERS} characters. Put large values into files"
        )
    return PlanRequest(
        workspace=work.scope.workspace,
        source=source,
        inputs=dict(inputs),
        worktree=worktree,
        base_tree=work.expected_tree,
    )


def plan_inputs(work: Work) -> dict[str, Any]:
    """Return the inputs of the plan around a step, as they were asked for."""
    return {name: work.lookup(f"plan.{name}") for name in work.plan.inputs}


def newest(records: Records, child: str) -> dict[str, StepRecord]:
    """Return the completed record of each step of a child plan that counts."""
    steps = dict.fromkeys(record.step for record in records.all(child))
    return {step: record for step in steps if (record := records.latest(child, step)) is not None}


def outputs_of_child(work: Work, found: Mapping[str, StepRecord]) -> dict[str, Any]:
    """Return the outputs of each step of a child plan."""
    return {
        step: {name: unpacked(value, work.store) for name, value in record.outputs.items()}
        for step, record in found.items()
    }


def evidence_of_child(found: Mapping[str, StepRecord]) -> tuple[EvidenceNote, ...]:
    """Return what the steps of a child plan found out about hypotheses."""
    return tuple(note for record in found.values() for note in record.result.evidence)
