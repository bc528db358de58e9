"""Whether a plan makes sense as a whole, before anything of it is done."""

from collections.abc import Iterator
from dataclasses import replace

from tightloop.plan.model import Plan, Step, StepKind
from tightloop.plan.problem import Problem, Severity
from tightloop.plan.text.marked import Path
from tightloop.plan.text.reading import ReadPlan
from tightloop.plan.validation.edges import check_edges, longest
from tightloop.plan.validation.references import check_references
from tightloop.plan.validation.scope import Report, Scope
from tightloop.plan.validation.step import check_step

STEPS_LIMIT = 20_000
"""Of one list of steps: larger work is split into subplans."""
PROBLEMS_LIMIT = 100
UNDO = "undo-"
"""What the record of a step that was taken back begins with."""


def validate(read: ReadPlan, *, capabilities: frozenset[str] | None = None) -> tuple[Problem, ...]:
    """Return what is wrong or odd, at most `PROBLEMS_LIMIT`, in the order of places; a plan without errors may run.

    Args:
        read: the plan; problems have the places of its text.
        capabilities: names of the capabilities that this worker has; None: all.
    """
    plan, report = read.plan, Report(read)
    scope = _scope(plan, report, capabilities)
    _check_plan(scope)
    _check_scope(scope)
    found = {(one.code, one.position, one.message): one for one in report.problems}
    worst = sorted(found.values(), key=lambda one: (one.severity is Severity.WARNING, one.position))
    told = sorted(worst[:PROBLEMS_LIMIT], key=lambda one: (one.position, one.severity is Severity.WARNING))
    if left := worst[PROBLEMS_LIMIT:]:
        told.append(Problem(message=f"{len(left)} more", severity=left[0].severity, code="more", file=read.name))
    return tuple(told)


def _scope(plan: Plan, report: Report, capabilities: frozenset[str] | None) -> Scope:
    return Scope(
        plan=plan,
        steps=plan.steps,
        path=("steps",),
        depth=1,
        inputs=frozenset(plan.inputs),
        report=report,
        capabilities=capabilities,
    )


def _check_scope(scope: Scope) -> None:
    if len(scope.steps) > STEPS_LIMIT:
        said = f"{len(scope.steps)} steps in one list, at most {STEPS_LIMIT} can be"
        scope.report.error("too-many-steps", scope.path, said, "Move parts into subplans")
        return
    most = scope.plan.budget.max_depth
    if scope.depth > most:
        said = f"plans within plans are {scope.depth} deep, but budget.max_depth is {most}"
        scope.report.error("depth", scope.path, said, "Raise it, or flatten the subplans")
        return
    scope = replace(scope, index=_index(scope))
    for place in range(len(scope.steps)):
        check_step(scope, place)
    edges = check_edges(scope)
    check_references(scope, edges)
    most_s = scope.plan.budget.max_wall_s
    seconds, path = longest(edges)
    if most_s is not None and seconds > most_s:
        shown = " -> ".join(path if len(path) <= 8 else [*path[:4], "...", *path[-3:]])
        said = f"the critical path {shown} is estimated at {seconds:g} s, but budget.max_wall_s is {most_s:g} s"
        scope.report.warning("estimate", ("budget", "max_wall_s"), said, "Raise it, or make steps independent")
    for inner in _inner(scope):
        _check_scope(inner)


def _inner(scope: Scope) -> Iterator[Scope]:
    """Yield the lists of steps within the steps."""
    for place, step in enumerate(scope.steps):
        below = replace(scope, depth=scope.depth + 1, index={})
        if step.subplan and step.subplan.steps:
            inputs = scope.inputs | frozenset(step.subplan.inputs)
            path = scope.at(place, "subplan", "steps")
            yield replace(below, steps=step.subplan.steps, path=path, inputs=inputs)
        for number, alternative in enumerate(step.branch.alternatives if step.branch else ()):
            path = scope.at(place, "branch", "alternatives", number, "steps")
            if alternative.steps:
                yield replace(below, steps=alternative.steps, path=path)


def _index(scope: Scope) -> dict[str, int]:
    """Return the places of the ids; tell of those that occur twice, also by what a template will become."""
    index: dict[str, int] = {}
    for place, step in enumerate(scope.steps):
        if step.id in index:
            first = scope.report.read.where(scope.at(index[step.id], "id")).line
            said = f"id '{step.id}' occurs twice" + (f" (first in line {first})" if first else "")
            scope.report.error("double-id", scope.at(place, "id"), said, "Rename one")
        index.setdefault(step.id, place)
    for place, step in enumerate(scope.steps):
        stem = step.id.rstrip("0123456789")
        if stem != step.id and f"{stem}*" in index:
            said = f"'{step.id}' is also what template '{stem}*' becomes"
            scope.report.error("double-id", scope.at(place, "id"), said, "Rename one")
        taken_back = step.id.removeprefix(UNDO)
        if taken_back != step.id and taken_back in index and step.kind is not StepKind.COMPENSATION:
            said = f"'{step.id}' is also where it is recorded that '{taken_back}' was taken back"
            scope.report.error("double-id", scope.at(place, "id"), said, "Rename it, or make it `kind: compensation`")
    return index


def _check_plan(scope: Scope) -> None:
    plan, report = scope.plan, scope.report
    if plan.id.endswith("*"):
        report.error("template", ("id",), f"'{plan.id}' is no id for a plan", "Remove the '*'")
    if not plan.steps:
        report.error("no-steps", (), f"plan '{plan.id}' has no steps", "Add `steps:`")
    if len(plan.steps) > plan.budget.max_steps:
        said = f"the plan has {len(plan.steps)} steps, but budget.max_steps is {plan.budget.max_steps}"
        report.error("max-steps", ("budget", "max_steps"), said, "Raise it")
    for number, check in enumerate(plan.definition_of_done):
        if not check.run.strip():
            said = f"check {number + 1} of the definition of done has no command"
            report.error("empty-check", ("definition_of_done", number), said, "Write `run:`")
    _check_hypotheses(plan, report)
    _check_artifacts(plan, report)
    _check_sums(plan, report)
    _check_deploys(plan, report)


def _check_hypotheses(plan: Plan, report: Report) -> None:
    seen: set[str] = set()
    for number, one in enumerate(plan.hypotheses):
        if one.id in seen:
            said = f"hypothesis '{one.id}' occurs twice"
            report.error("double-id", ("hypotheses", number), said, "Rename one")
        seen.add(one.id)


def _check_artifacts(plan: Plan, report: Report) -> None:
    ids = {step.id for step in plan.steps}
    names: set[str] = set()
    for number, artifact in enumerate(plan.artifacts):
        path: Path = ("artifacts", number)
        if artifact.from_step not in ids:
            said = f"artifact '{artifact.name}' is from '{artifact.from_step}', which is no step"
            report.error("unknown-step", (*path, "from_step"), said, report.closest(artifact.from_step, ids))
        if artifact.name in names:
            said = f"artifact '{artifact.name}' occurs twice"
            report.error("double-id", (*path, "name"), said, "Rename one")
        names.add(artifact.name)


def _check_sums(plan: Plan, report: Report) -> None:
    """Warn where the steps together may spend more than the plan."""
    costs = [(step.budget.max_cost_usd or 0.0) * _copies(step) for step in plan.steps]
    tokens = [(step.budget.max_tokens or 0) * _copies(step) for step in plan.steps]
    for name, total, most in (
        ("max_cost_usd", sum(costs), plan.budget.max_cost_usd),
        ("max_tokens", sum(tokens), plan.budget.max_tokens),
    ):
        if most is not None and total > most:
            said = f"the steps' budgets add up to {name} {total:g}, the plan's is {most:g}: it may stop before its end"
            report.warning("budget-sum", ("budget", name), said, "Lower the steps' budgets, or raise the plan's")


def _copies(step: Step) -> int:
    return len(step.for_each) if isinstance(step.for_each, tuple) else 1


def _check_deploys(plan: Plan, report: Report) -> None:
    """Warn of a deployment that nobody is asked about."""
    if "deploy" in plan.policy.approve:
        return
    roles = any(step.gate and step.gate.approval and step.gate.approval.role for step in plan.steps)
    for place, step in enumerate(plan.steps):
        if step.kind is StepKind.DEPLOY and not roles:
            said = f"'{step.id}' deploys, but no gate names a role that approves it"
            hint = "Add a gate with `approval: {role: ...}`, or `policy: {approve: [deploy]}`"
            report.warning("no-approver", ("steps", place, "kind"), said, hint)
