"""Plans that are made of a step: what they inherit, and how their results are read."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from activities.plan.attempts.references import unpack
from activities.plan.files import read_text
from activities.plan.port import Work
from activities.plan.records.file_records import open_file_records
from tightloop.errors import InvalidRequestError, PlanError
from tightloop.plan.document.plan import OnPlanFailure, Plan
from tightloop.plan.document.step import Step
from tightloop.plan.request import INPUT_CHARACTERS, SOURCE_BYTES, PlanRequest
from tightloop.plan.result import EvidenceNote
from tightloop.plan.rules.budgeting import bounded, narrowest
from tightloop.plan.rules.guard import tightened
from tightloop.plan.text.writing import write_plan
from tightloop.plan.validation.validate import check_text

ID_CHARACTERS = 60


def build_inner_plan(work: Work, steps: tuple[Step, ...], *, name: str, inputs: Mapping[str, Any]) -> Plan:
    """Return a plan of the steps within a step: policy, budget, seed and beliefs are those of the plan around it."""
    # No evidence changes a prior of 0 or 1 (Bayes' rule).
    believed = {belief.hypothesis: min(max(belief.confidence, 0.01), 0.99) for belief in work.beliefs}
    return Plan(
        id=re.sub(r"[^A-Za-z0-9._-]", "-", name)[:ID_CHARACTERS],
        title=work.step.title or name,
        # The names only: values travel beside the text, where nothing in them is read as a reference.
        inputs=dict.fromkeys(inputs),
        steps=steps,
        hypotheses=tuple(one.evolve(prior=believed.get(one.id, one.prior)) for one in work.plan.hypotheses),
        # What follows a failure is decided where the step stands, by the plan around it.
        on_failure=OnPlanFailure.FAIL,
        max_parallel=work.plan.max_parallel,
        budget=bounded(work.plan.budget, work.step.budget.max_cost_usd, work.step.budget.max_tokens),
        policy=work.plan.policy,
        seed=work.plan.seed,
    )


def read_plan_file(work: Work, file: str, inputs: Mapping[str, Any]) -> Plan:
    """Return the plan in a file of the tree, within the policy and the budget of the plan around it.

    Raises:
        InvalidRequestError: the file is missing, or its plan is wrong; the message has line and column.
    """
    text = read_text(work.root, file)
    if text is None:
        raise InvalidRequestError(f"the tree has no plan file {file!r}. Check its name")
    read, problems = check_text(text, name=file)
    wrong = tuple(problem for problem in problems if problem.is_error)
    if read is None or wrong:
        raise PlanError(wrong)
    plan = read.plan
    if unknown := sorted(set(inputs) - set(plan.inputs)):
        raise InvalidRequestError(f"{file} has no input {unknown[0]!r}. It has: {', '.join(plan.inputs) or 'none'}")
    own = narrowest(plan.budget, work.plan.budget)
    return plan.evolve(
        policy=tightened(plan.policy, work.plan.policy),
        budget=bounded(own, work.step.budget.max_cost_usd, work.step.budget.max_tokens),
    )


def build_request(work: Work, plan: Plan, inputs: Mapping[str, Any], *, worktree: bool) -> PlanRequest:
    """Return what starts a child plan.

    Raises:
        InvalidRequestError: the plan or its inputs are too large for a message.
    """
    source = write_plan(plan, "json")
    if (size := len(source.encode())) > SOURCE_BYTES:
        raise InvalidRequestError(
            f"the steps within {work.step.id!r} have {size} bytes, more than the {SOURCE_BYTES} of "
            "one plan. Split them into several subplans"
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


def read_plan_inputs(work: Work) -> dict[str, Any]:
    """Return the inputs of the plan around a step, as they were asked for."""
    return {name: work.lookup(f"plan.{name}") for name in work.plan.inputs}


def read_child_results(work: Work, child: str) -> tuple[dict[str, Any], tuple[EvidenceNote, ...]]:
    """Return the outputs of each completed step of a child plan, and what its steps found out about hypotheses."""
    records = open_file_records(Path(work.scope.workspace))
    steps = dict.fromkeys(record.step for record in records.all(child))
    found = {step: record for step in steps if (record := records.latest(child, step)) is not None}
    outputs = {
        step: {name: unpack(value, work.store) for name, value in record.outputs.items()}
        for step, record in found.items()
    }
    return outputs, tuple(note for record in found.values() for note in record.result.evidence)
