"""Validation of a plan. The result is a list of problems with their positions and suggestions."""

from collections.abc import Collection
from dataclasses import replace

from tightloop.episode.exit_status import masked_problem
from tightloop.errors import InvalidRequestError, PlanError, Problem, Severity, did_you_mean
from tightloop.plan.document import ArtifactDeclaration, Plan
from tightloop.plan.step import StepKind
from tightloop.plan.text.reading import ReadPlan, read_parts
from tightloop.plan.validation.edges import Report, Scope, check_edges, find_repeats, longest
from tightloop.plan.validation.references import check_policy, check_references, outputs_of, results_of
from tightloop.plan.validation.step import check_commands, check_step
from tightloop.value import format_count

# Measured with 10 000 steps (docs/reference/figures.md, Plans).
STEPS_LIMIT = 20_000
"""Maximum number of steps in a list. Larger work should be split into subplans."""
PROBLEMS_LIMIT = 100
UNDO = "undo-"
"""Prefix of the records of compensated steps."""


def check_text(
    text: str, *, name: str = "", capabilities: frozenset[str] | None = None
) -> tuple[ReadPlan | None, tuple[Problem, ...]]:
    """Parse and validate a plan text. Return the plan and its problems, ordered by position.

    A plan with errors must not be run.
    """
    read, problems = read_parts(text, name=name)
    if read is not None:
        problems = (*problems, *validate(read, capabilities=capabilities))
    return read, tuple(sorted(problems, key=lambda one: one.position))


def validate(read: ReadPlan, *, capabilities: frozenset[str] | None = None) -> tuple[Problem, ...]:
    """Validate a plan and return up to `PROBLEMS_LIMIT` problems, ordered by position.

    A plan without errors may be run.

    Args:
        read: the plan, with the source position of each part.
        capabilities: names of this worker's capabilities. None means all capabilities.
    """
    plan, report = read.plan, Report(read)
    names = frozenset(plan.inputs)
    scope = Scope(plan=plan, steps=plan.steps, inputs=names, report=report, capabilities=capabilities)
    _check_plan(scope)
    _check_scope(scope)
    unique = {(problem.code, problem.position, problem.message): problem for problem in report.problems}
    # Errors first, so that the limit drops warnings; then by position.
    worst = sorted(unique.values(), key=lambda one: (one.severity is Severity.WARNING, one.position))
    reported = sorted(worst[:PROBLEMS_LIMIT], key=lambda one: (one.position, one.severity is Severity.WARNING))
    if left := worst[PROBLEMS_LIMIT:]:
        reported.append(Problem(message=f"{len(left)} more", severity=left[0].severity, code="more", file=read.name))
    return tuple(reported)


def _check_scope(scope: Scope) -> None:
    if len(scope.steps) > STEPS_LIMIT:
        message = f"a list must have at most {STEPS_LIMIT} steps, got {len(scope.steps)}"
        scope.report.error("too-many-steps", scope.path, message, "Move some of the steps into subplans")
        # The other rules would take long on such a list, and splitting it changes their results.
        return
    most = scope.plan.budget.max_depth
    if scope.depth > most:
        message = f"plans are nested {scope.depth} levels deep, but budget.max_depth is {most}"
        scope.report.error("depth", scope.path, message, "Raise budget.max_depth, or flatten the subplans")
        return
    scope = replace(scope, index=_index(scope))
    for index in range(len(scope.steps)):
        check_step(scope, index)
        check_commands(scope, index)
    edges = check_edges(scope)
    check_references(scope, edges)
    most_s = scope.plan.budget.max_wall_s
    seconds, path = longest(edges)
    if most_s is not None and seconds > most_s:
        path_text = " -> ".join(path if len(path) <= 8 else [*path[:4], "...", *path[-3:]])
        message = f"the critical path {path_text} is estimated at {seconds:g} s, but budget.max_wall_s is {most_s:g} s"
        scope.report.warning(
            "estimate", ("budget", "max_wall_s"), message, "Raise budget.max_wall_s, or make steps independent"
        )
    for index, step in enumerate(scope.steps):
        inputs = scope.inputs | frozenset(step.subplan.inputs if step.subplan else ())
        for fields, _, steps in step.inner():
            _check_scope(
                replace(scope, steps=steps, path=scope.at(index, *fields), depth=scope.depth + 1, inputs=inputs)
            )


def _index(scope: Scope) -> dict[str, int]:
    """Return the position of each ID, and report duplicate IDs.

    IDs that conflict with an instance of a template are reported too.
    """
    index: dict[str, int] = {}
    for number, step in enumerate(scope.steps):
        if step.id in index:
            first = scope.report.read.where(scope.at(index[step.id], "id")).line
            message = f"duplicate id '{step.id}'" + (f" (first on line {first})" if first else "")
            scope.report.error("double-id", scope.at(number, "id"), message, "Rename one")
        index.setdefault(step.id, number)
    # In a second pass: the template may come later in the list than the step it clashes with.
    for number, step in enumerate(scope.steps):
        stem = step.id.rstrip("0123456789")
        if stem != step.id and f"{stem}*" in index:
            message = f"'{step.id}' conflicts with an instance of template '{stem}*'"
            scope.report.error("double-id", scope.at(number, "id"), message, "Rename one")
        taken_back = step.id.removeprefix(UNDO)
        if taken_back != step.id and taken_back in index and step.kind is not StepKind.COMPENSATION:
            message = f"'{step.id}' conflicts with the id reserved for undoing '{taken_back}'"
            scope.report.error(
                "double-id", scope.at(number, "id"), message, "Rename the step, or set `kind: compensation`"
            )
    return index


def _check_definition_of_done(scope: Scope) -> None:
    plan, report = scope.plan, scope.report
    for number, check in enumerate(plan.definition_of_done):
        if not check.run.strip():
            message = f"check {number + 1} of the definition of done has no command"
            report.error("empty-check", ("definition_of_done", number), message, "Add `run:`")
        elif problem := masked_problem(check.run):
            report.error("masked-check", ("definition_of_done", number), problem, "")


def _check_plan(scope: Scope) -> None:
    plan, report = scope.plan, scope.report
    if plan.id.endswith("*"):
        report.error("template", ("id",), f"'{plan.id}' is not a valid plan id", "Remove the '*'")
    if not plan.steps:
        report.error("no-steps", (), f"plan '{plan.id}' has no steps", "Add `steps:`")
    if len(plan.steps) > plan.budget.max_attempts:
        message = (
            f"the plan has {format_count(len(plan.steps), 'step')}, but budget.max_attempts is "
            f"{plan.budget.max_attempts}"
        )
        report.error("max-attempts", ("budget", "max_attempts"), message, "Raise budget.max_attempts")
    _check_definition_of_done(scope)
    for number, name in find_repeats(hypothesis.id for hypothesis in plan.hypotheses):
        report.error("double-id", ("hypotheses", number), f"duplicate hypothesis '{name}'", "Rename one")
    for number, name in find_repeats(declaration.name for declaration in plan.artifacts):
        report.error("double-id", ("artifacts", number, "name"), f"duplicate artifact '{name}'", "Rename one")
    ids = {step.id for step in plan.steps}
    for number, artifact in enumerate(plan.artifacts):
        if artifact.from_step not in ids:
            message = f"artifact '{artifact.name}' comes from '{artifact.from_step}', which is not a step"
            hint = report.closest(artifact.from_step, ids)
            report.error("unknown-step", ("artifacts", number, "from_step"), message, hint)
        else:
            _check_artifact(scope, number, artifact)
    check_policy(plan.policy, plan.steps, report)
    _check_budget_sums(plan, report)
    _check_deploys(plan, report)


def _check_artifact(scope: Scope, number: int, artifact: ArtifactDeclaration) -> None:
    source = next(step for step in scope.plan.steps if step.id == artifact.from_step)
    name, outputs = artifact.output or artifact.name, outputs_of(source)
    if results_of(source) is None or name in outputs:
        return
    message = f"artifact '{artifact.name}' is output '{name}' of '{source.id}', which has no such output"
    hint = scope.report.closest(name, outputs) or f"Declare it in `outputs` of '{source.id}'"
    scope.report.error("unknown-output", ("artifacts", number), message, hint)


def _check_budget_sums(plan: Plan, report: Report) -> None:
    # A template whose items are known only at run time counts once, so the sum is a lower bound.
    copies = [len(step.for_each) if isinstance(step.for_each, tuple) else 1 for step in plan.steps]
    for name in ("max_cost_usd", "max_tokens"):
        most = getattr(plan.budget, name)
        total = sum((getattr(step.budget, name) or 0) * count for step, count in zip(plan.steps, copies, strict=True))
        if most is not None and total > most:
            message = (
                f"the steps' budgets add up to {name} {total:g}, but the plan's budget is {most:g}, so the plan may "
                "stop early"
            )
            report.warning(
                "budget-sum", ("budget", name), message, "Lower the steps' budgets, or raise the plan's budget"
            )


def _check_deploys(plan: Plan, report: Report) -> None:
    """Warn about deployments that do not need an approval."""
    if "deploy" in plan.policy.approve:
        return
    roles = any(step.gate and step.gate.approval and step.gate.approval.role for step in plan.steps)
    for index, step in enumerate(plan.steps):
        if step.kind is StepKind.DEPLOY and not roles:
            message = f"'{step.id}' deploys, but no gate names a role to approve it"
            hint = "Add a gate with `approval: {role: ...}`, or `policy: {approve: [deploy]}`"
            report.warning("no-approver", ("steps", index, "kind"), message, hint)


def check_inputs(names: Collection[str], declared: Collection[str]) -> None:
    """Reject values for undeclared inputs.

    Raises:
        InvalidRequestError: an input is not declared. The message suggests the closest name.
    """
    for name in names:
        if name not in declared:
            hint = did_you_mean(name, declared) or "The plan declares no inputs: add them under `inputs:`"
            raise InvalidRequestError(f"the plan has no input {name!r}. {hint}")


def check_source(source: str, inputs: Collection[str]) -> ReadPlan:
    """Check that a text can be run as a plan with these inputs.

    A worker may still reject the plan.

    Raises:
        PlanError: the text is invalid. The error contains all problems with their positions.
        InvalidRequestError: the plan does not declare one of the inputs.
    """
    # Without capabilities: the machine that submits a plan need not be able to run it.
    read, problems = check_text(source)
    wrong = tuple(problem for problem in problems if problem.is_error)
    if read is None or wrong:
        raise PlanError(wrong)
    check_inputs(inputs, read.plan.inputs)
    return read
