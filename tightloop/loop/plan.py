"""Plan of a project: its tasks and steps, automatic revisions, and the state that its workflow carries over."""

import contextlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from tightloop.episode.budget import Budget
from tightloop.episode.check import Check, start_in
from tightloop.errors import InvalidRequestError
from tightloop.loop.model import (
    DESCRIPTION_CHARACTERS,
    PLAN_GENERATION,
    TASKS_LIMIT,
    CheckState,
    Conflict,
    GateCheck,
    LoopInput,
    LoopRequest,
    LoopTask,
    Packet,
)
from tightloop.plan.action import EpisodeAction, MergeStart
from tightloop.plan.document import OnPlanFailure, Plan, PlanBudget
from tightloop.plan.failing import FailureMode, OnFailure, Recovery, Retry
from tightloop.plan.progress import PlanInput, PlanProgress
from tightloop.plan.step import Access, Join, ProjectAction, Step, StepKind
from tightloop.run.core import RunInput
from tightloop.value import ArtifactRef, Value, shorten

_FORMATS = re.compile(r"\b(?:format|fmt|black|isort|prettier)\b|gofmt|rustfmt|clang-format")
_LINTS = re.compile(r"\b(?:lint|ruff|eslint|flake8|pylint|stylelint|clippy)\b")


def task_id(number: int) -> str:
    """Return the ID of a task. Tasks are numbered from 1."""
    return f"ptask_{number}"


def stage_of(command: str) -> int:
    """Return the stage at which a failing check is fixed.

    The stage is 2 for formatters, 1 for linters, and 0 for everything else.
    """
    # Formatters come last, because a later fix may undo an earlier one. They are tested first, because `ruff format`
    # also matches the linters.
    if _FORMATS.search(command):
        return 2
    return 1 if _LINTS.search(command) else 0


def tasks_by_rules(packet: Packet, checks: Iterable[Check]) -> tuple[LoopTask, ...]:
    """Derive tasks from a packet without a model. The result is empty if there is nothing to do.

    A goal becomes a single task with all checks as its definition of done. If there is no goal, each
    failed check becomes a task. The tasks for linters and formatters depend on the tasks of earlier
    stages.
    """
    checks_by_command = {check.run: check for check in checks}
    if packet.goal:
        return (
            LoopTask(
                task_id=task_id(1),
                description=shorten(packet.goal, DESCRIPTION_CHARACTERS),
                definition_of_done=tuple(checks_by_command.values()),
            ),
        )
    # Sorted before it is cut and numbered, so that dependencies only name tasks of the plan.
    failing = sorted((state for state in packet.checks if state.passed is False), key=lambda one: stage_of(one.run))
    failing = failing[:TASKS_LIMIT]
    ids = {state.run: task_id(number) for number, state in enumerate(failing, start=1)}
    return tuple(
        _fix(state, checks_by_command.get(state.run) or Check(run=state.run), failing, ids) for state in failing
    )


def _fix(state: CheckState, check: Check, failing: list[CheckState], ids: Mapping[str, str]) -> LoopTask:
    stage = stage_of(state.run)
    summary = f": {state.summary}" if state.summary else ""
    return LoopTask(
        task_id=ids[state.run],
        description=shorten(f"Make `{state.run}` pass{summary}", DESCRIPTION_CHARACTERS),
        priority=stage + 1,
        dependencies=tuple(ids[other.run] for other in failing if stage_of(other.run) < stage),
        definition_of_done=(check,),
    )


def find_task_problem(tasks: tuple[LoopTask, ...]) -> str:
    """Return the first problem with the tasks from a planner, or "" if the tasks are valid."""
    ids = [task.task_id for task in tasks]
    if not tasks:
        return "the planner returned no tasks"
    if len(tasks) > TASKS_LIMIT:
        return f"the plan has {len(tasks)} tasks, but the limit is {TASKS_LIMIT}"
    if len(set(ids)) < len(ids):
        return "two tasks have the same id"
    for task in tasks:
        if not task.description.strip():
            return f"{task.task_id} has no description"
        if unknown := [dependency for dependency in task.dependencies if dependency not in ids]:
            return f"{task.task_id} depends on {unknown[0]}, which is not a task of the plan"
    # Remove tasks whose dependencies are gone, level by level; what remains is in a cycle or depends on one.
    left = {task.task_id: set(task.dependencies) for task in tasks}
    while free := [name for name, needs in left.items() if not needs]:
        left = {name: needs - set(free) for name, needs in left.items() if name not in free}
    if len(left) == 1:
        return f"{next(iter(left))} depends on itself"
    return f"the tasks {', '.join(sorted(left))} depend on each other in a cycle" if left else ""


INSPECT, DECOMPOSE, DISPATCH, VERIFY, FIND_GATES, GATES = (
    "inspect", "decompose", "dispatch", "verify", "find-gates", "gate-*",
)  # fmt: skip
GATE_STEP = GATES.removesuffix("*")
"""Prefix of the IDs of steps that run a gate."""
COMMANDS = frozenset({DISPATCH, VERIFY})
"""Steps that wait for a person. Each is released by the update with the same name."""
TITLE_CHARACTERS = 120
CONFLICTS_LIMIT = 20
"""Maximum length of a chain of conflicts that arise while resolving a conflict."""
CHECKS_LIMIT = 300
"""Maximum number of gates and checks in the status."""
INSPECT_S = 2_400.0
DECOMPOSE_S = 7_200.0
_ONCE = Retry(attempts=1)
_ENDS_PLAN = (FailureMode(name=PLAN_GENERATION, recover=Recovery.ABORT),)
"""Failure mode of all steps, including those that wait for a person, which ends the plan.

Without it, `verify` could start after one of these steps failed.
"""
_LAST = (VERIFY, FIND_GATES, GATES)


def project_plan(request: LoopRequest) -> Plan:
    """Return the initial plan of a project, before its tasks are known."""
    return Plan(
        id="project",
        title=shorten(_literal(request.goal) or "open problems", TITLE_CHARACTERS),
        on_failure=OnPlanFailure.FAIL,
        # Only with hidden scenarios the plan as a whole has a proof; its tasks have their own.
        definition_of_done=request.gates if request.scenarios is not None else (),
        max_parallel=request.parallel,
        # One revision for the tasks, and one per conflict.
        budget=PlanBudget(max_revisions=2 * TASKS_LIMIT),
        steps=(
            Step(
                id=INSPECT,
                access=Access.READS,
                timeout_s=INSPECT_S,
                failure_modes=_ENDS_PLAN,
                project=_stage(
                    "inspect",
                    goal=request.goal,
                    folder=request.folder,
                    episode=request.episode,
                    packet_id=request.packet_id,
                    gates=_written(request.gates),
                ),
            ),
            Step(
                id=DECOMPOSE,
                needs=(INSPECT,),
                # A second model call would be paid again.
                retry=_ONCE,
                timeout_s=DECOMPOSE_S,
                failure_modes=_ENDS_PLAN,
                project=ProjectAction(
                    stage="decompose",
                    given={
                        "packet": "${inspect.packet}",
                        "checks": "${inspect.checks}",
                        "planner": request.planner,
                        "model": _literal(request.model),
                        "folder": _literal(request.folder),
                        "budget": request.budget.model_dump(mode="json", exclude_defaults=True),
                    },
                ),
            ),
            Step(id=DISPATCH, needs=(DECOMPOSE,), failure_modes=_ENDS_PLAN, project=_stage("dispatch")),
            Step(
                id=VERIFY,
                needs=(DISPATCH,),
                # A failed task must not block `verify`: a person may want the gates for the tasks that completed.
                join=Join.ENDED,
                failure_modes=_ENDS_PLAN,
                project=_stage("verify"),
            ),
            Step(
                id=FIND_GATES,
                needs=(VERIFY,),
                access=Access.READS,
                project=ProjectAction(
                    stage="find_gates",
                    given={
                        "asked": _literal(_written(request.gates)),
                        "folder": _literal(request.folder),
                        # The checks of an episode are not the project's checks.
                        "planned": [] if request.episode else "${inspect.checks}",
                    },
                ),
            ),
            Step(
                id=GATES,
                needs=(FIND_GATES,),
                for_each=f"${{{FIND_GATES}.gates}}",
                # Gates run one at a time on exactly the tree that was found.
                access=Access.WRITES,
                retry=_ONCE,
                cache=False,
                # Only a backstop: the gate's own time limit ends its command and keeps the output.
                timeout_s=86_400.0,
                project=ProjectAction(stage="gate", given={"gate": "${item}"}),
            ),
        ),
    )


def with_resolution(plan: Plan, task: LoopTask) -> Plan:
    """Add a task that resolves the conflict of another task.

    When the new task completes, the other task is considered recovered.
    """
    # `recovers` is on by default, so the dependents of the conflicting task wait for this one.
    alternate = OnFailure(to=task.task_id)
    steps = tuple(step.evolve(on_failure=alternate) if step.id == task.conflict_of else step for step in plan.steps)
    return with_tasks(plan.evolve(steps=steps), (task,))


def resolving(tasks: tuple[LoopTask, ...], failed: str, conflict: Conflict) -> LoopTask:
    """Create a task that resolves the conflict of another task.

    Raises:
        InvalidRequestError: `CONFLICTS_LIMIT` has been reached.
    """
    tasks_by_id = {task.task_id: task for task in tasks}
    task = tasks_by_id[failed]
    before, origin = 0, task
    while origin.conflict_of:
        before, origin = before + 1, tasks_by_id[origin.conflict_of]
    if before >= CONFLICTS_LIMIT:
        raise InvalidRequestError(f"conflicts remain after {CONFLICTS_LIMIT} conflict-resolution tasks")
    description = (
        f"Resolve the conflict between {failed} and the changes merged while it ran, in {', '.join(conflict.paths)}: "
        "the files contain both sides between conflict markers. Keep the intent of both sides. "
        f"{failed} was: {task.description}"
    )
    return LoopTask(
        task_id=task_id(len(tasks) + 1),
        description=shorten(description, DESCRIPTION_CHARACTERS),
        priority=task.priority,
        # First, because the other checks fail in confusing ways while conflict markers are in the files.
        definition_of_done=(conflict.check, *task.definition_of_done),
        conflict_of=failed,
        conflict=conflict,
    )


def with_tasks(plan: Plan, tasks: Iterable[LoopTask]) -> Plan:
    """Insert the tasks into a project plan, between `dispatch` and `verify`."""
    # Read back from the plan, so that a revision in a later run needs no copy of the request.
    arguments = next(step.project.given for step in plan.steps if step.id == DECOMPOSE and step.project is not None)
    budget = Budget.model_validate(arguments["budget"])
    new = tuple(_task_step(task, arguments["planner"], budget, arguments["folder"]) for task in tasks)
    names = tuple(step.id for step in new)
    first = tuple(step for step in plan.steps if step.id not in _LAST)
    last = tuple(
        step.evolve(needs=(*step.needs, *names)) if step.id == VERIFY else step
        for step in plan.steps
        if step.id in _LAST
    )
    # New tasks after the existing ones: worktrees are merged in plan order.
    return plan.evolve(steps=(*first, *new, *last))


def _task_step(task: LoopTask, planner: str, budget: Budget, folder: str) -> Step:
    start = None if task.conflict is None else MergeStart(base=task.conflict.base, tree=task.conflict.tree)
    return Step(
        id=task.task_id,
        title=shorten(_literal(" ".join(task.description.split())), TITLE_CHARACTERS),
        kind=StepKind.EPISODE,
        # Task priorities start at 1 as the most urgent; steps run the highest number first.
        priority=-task.priority,
        # A resolving task has no dependencies: the failure of the conflicting task starts it.
        needs=() if start is not None else (DISPATCH, *task.dependencies),
        episode=EpisodeAction(
            goal=_literal(task.description),
            folder=folder,
            definition_of_done=tuple(check.evolve(run=_literal(check.run)) for check in task.definition_of_done),
            planner="" if planner == "auto" else planner,
            budget=budget,
            worktree=True,
            merge=start,
        ),
        # An episode retries by itself.
        retry=_ONCE,
        cache=False,
    )


def _stage(name: str, **given: Any) -> ProjectAction:
    return ProjectAction(stage=name, given=_literal(given))


def _written(checks: Iterable[Check]) -> list[dict[str, Any]]:
    return [check.model_dump(mode="json", exclude_defaults=True) for check in checks]


def _literal(value: Any) -> Any:
    """Escape all texts in a value, so that none of them is parsed as a reference."""
    if isinstance(value, dict):
        return {name: _literal(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_literal(entry) for entry in value]
    return value.replace("${", "$${") if isinstance(value, str) else value


class ProjectNote(Value):
    """Findings of a step of a project plan. Each step sets only its own fields."""

    project: str = ""
    goal: str = ""
    packet_id: str = ""
    packet: ArtifactRef | None = None
    chosen_checks: tuple[str, ...] = ()
    """Explanation of gates that were found in the project's files, one sentence each."""
    gate_names: tuple[str, ...] | None = None
    """Names of the gates, in order."""
    checks: tuple[GateCheck, ...] = ()
    """Result of a gate, followed by the results of the checks within it."""


class ProjectFacts(Value):
    """State of a project plan, excluding the graph and the step statuses."""

    project: str = ""
    goal: str = ""
    packet_id: str = ""
    packet: ArtifactRef | None = None
    chosen_checks: tuple[str, ...] = ()
    """Explanation of gates that were found in the project's files, one sentence each."""
    tasks: tuple[LoopTask, ...] = ()
    """Tasks as planned. Their current state is derived from the statuses of the steps."""
    parallel: int = 0
    """Maximum number of concurrent tasks."""
    gate_names: tuple[str, ...] | None = None
    """Names of the gates, or None until some are known. They are determined again before the gates run."""
    gates: dict[str, tuple[GateCheck, ...]] = Field(default_factory=dict)
    """Gate results by step."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    planned_at: datetime | None = None
    """Time from which `dispatch` is possible."""
    executed_at: datetime | None = None
    completed_at: datetime | None = None
    verify_asked_at: datetime | None = None
    verified_at: datetime | None = None
    has_left: bool = False
    """True while the plan has released the workspace because it is waiting for a person."""

    def with_note(self, step: str, note: ProjectNote) -> "ProjectFacts":
        """Update the facts with the findings of a step."""
        count = sum(map(len, self.gates.values()))
        # Every gate keeps at least its own result.
        checks = note.checks[: max(CHECKS_LIMIT - count, 1)]
        return self.evolve(
            project=note.project or self.project,
            goal=note.goal or self.goal,
            packet_id=note.packet_id or self.packet_id,
            packet=note.packet or self.packet,
            chosen_checks=note.chosen_checks or self.chosen_checks,
            gate_names=self.gate_names if note.gate_names is None else note.gate_names,
            gates={**self.gates, step: checks} if checks else self.gates,
        )


class ProjectInput(LoopInput):
    """Input of the workflow. It is also used when the workflow continues as new."""

    progress: PlanProgress | None = None
    """Progress of the plan in the previous run."""
    facts: ProjectFacts | None = None
    """Facts from the previous run."""

    @property
    def plan(self) -> PlanInput:
        """Input for the plan workflow. The text of the plan is empty if the request is invalid."""
        text = ""
        # Once opened, the plan is stored and its text is not needed again.
        if self.progress is None and not self.problem:
            with contextlib.suppress(InvalidRequestError):
                self.check()
                text = project_plan(self.starting_in_folder()).model_dump_json(by_alias=True, exclude_defaults=True)
        kernel = {name: getattr(self, name) for name in RunInput.model_fields}
        if self.problem:
            # `kernel` holds the problem, with which the plan workflow fails at its start.
            return PlanInput(**kernel)
        return PlanInput(
            workspace=self.workspace,
            source=text,
            max_parallel=(self.facts.parallel if self.facts is not None else 0) or self.parallel,
            pause_timeout=self.pause_timeout,
            queues=self.queues,
            executor=self.executor,
            unattended=self.unattended,
            until=self.budget.until,
            result=self.result,
            setup=start_in(self.folder, self.setup),
            scenarios=self.scenarios,
            progress=self.progress,
            **kernel,
        )
