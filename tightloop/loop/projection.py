"""A project plan's status, events and updates, expressed in the project loop's state model."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tightloop.episode.scenarios import and_scenarios
from tightloop.errors import InvalidRequestError
from tightloop.loop.model import (
    MESSAGE_CHARACTERS,
    PARALLEL_LIMIT,
    PLAN_GENERATION,
    GateCheck,
    GateResult,
    LoopRequest,
    LoopState,
    LoopStatus,
    LoopTask,
    TaskState,
    failing_gates,
)
from tightloop.loop.plan import COMMANDS, DECOMPOSE, DISPATCH, GATE_STEP, INSPECT, VERIFY, ProjectFacts
from tightloop.plan.child import StepStatus, child_id
from tightloop.plan.request import PlanStatus, StepLine
from tightloop.run.commands import read_argument
from tightloop.value import Document, abridge, format_count, shorten

NO_GATES = "no gates found for this project. Add gates in the settings under gates.checks"
NAMES_SHOWN = 5
_CLOSED = {
    "completed": LoopState.VERIFIED,
    "failed": LoopState.FAILED,
    "compensated": LoopState.FAILED,
    "cancelled": LoopState.CANCELLED,
}
_TASK_STATES = {
    StepStatus.RUNNING: TaskState.RUNNING,
    StepStatus.COMPLETED: TaskState.COMPLETE,
    StepStatus.RECOVERED: TaskState.COMPLETE,
    StepStatus.FAILED: TaskState.ERROR,
    StepStatus.BLOCKED: TaskState.ERROR,
    StepStatus.SKIPPED: TaskState.CANCELLED,
    StepStatus.ABANDONED: TaskState.CANCELLED,
}
"""Task state for each step status. For all other statuses, the task is queued."""
Lines = Mapping[str, StepLine]


def loop_status(plan: PlanStatus, request: LoopRequest, facts: ProjectFacts, lines: Lines) -> LoopStatus:
    """Derive the status of a project plan from the state of its steps.

    Args:
        plan: status of the underlying plan workflow.
        request: the original request.
        facts: additional state of the project plan's workflow.
        lines: steps by ID, including steps that were expanded from templates.
    """
    state = _CLOSED.get(plan.status) or _state(facts, lines)
    tasks: tuple[LoopTask, ...] = ()
    # Not earlier: as soon as tasks are shown, `dispatch` is offered.
    if facts.planned_at is not None:
        waiting = frozenset(wait.step for wait in plan.children)
        tasks = tuple(_task(task, plan.plan_id, facts, lines, waiting) for task in facts.tasks)
    gates = _gate_result(plan, state, facts, lines)
    return LoopStatus(
        plan_id=plan.plan_id,
        project=facts.project,
        workspace=request.workspace,
        delivered=plan.delivered,
        unattended=request.unattended,
        until=plan.until,
        goal=facts.goal or request.goal,
        run_id=request.episode,
        packet_id=facts.packet_id,
        packet=facts.packet,
        chosen_checks=facts.chosen_checks,
        status=state,
        tasks=tasks,
        parallel=facts.parallel or request.parallel,
        executor=request.executor.name,
        budget=request.budget,
        verify_run_id=f"verify_{plan.plan_id}_1" if facts.verify_asked_at is not None else "",
        gates=facts.gate_names or (),
        gate_result=gates,
        # Those answered by `dispatch` and `verify` are the states DRAFT and RUNNING here, not pauses.
        questions=tuple(question for question in plan.questions if not question.command),
        children=plan.children,
        waits_for=plan.waits_for,
        as_of=plan.as_of,
        qualifier=plan.qualifier,
        files_changed=plan.files_changed,
        reason=_reason(plan, state, tasks, gates),
        tree=plan.tree,
        created_at=facts.created_at,
        updated_at=facts.updated_at,
        executed_at=facts.executed_at,
        completed_at=facts.completed_at,
        verified_at=facts.verified_at,
    )


def _state(facts: ProjectFacts, lines: Lines) -> LoopState:
    # Derived from the recorded updates, not from the steps that wait for them: those steps run again after their
    # answer.
    if facts.executed_at is None:
        return LoopState.DRAFT
    if facts.verify_asked_at is not None:
        return LoopState.VERIFYING
    is_begun = any(lines[task.task_id].attempt for task in facts.tasks if task.task_id in lines)
    return LoopState.RUNNING if is_begun or facts.completed_at is not None else LoopState.DISPATCHING


def _task(task: LoopTask, plan_id: str, facts: ProjectFacts, lines: Lines, waiting: frozenset[str]) -> LoopTask:
    line = lines.get(task.task_id)
    # Before dispatch, only the end of the plan ends a task.
    if line is None or (facts.executed_at is None and line.status is not StepStatus.ABANDONED):
        return task
    state = _TASK_STATES.get(line.status, TaskState.QUEUED)
    if state is TaskState.RUNNING and task.task_id in waiting:
        state = TaskState.AWAITING_RESPONSE
    run_id = child_id(plan_id, task.task_id, line.attempt) if line.attempt else ""
    message = abridge(_message(task, line, facts, lines), MESSAGE_CHARACTERS)
    return task.evolve(state=state, run_id=run_id, message=message)


def _message(task: LoopTask, line: StepLine, facts: ProjectFacts, lines: Lines) -> str:
    why = line.failure.reason if line.failure is not None else ""
    if line.status is StepStatus.BLOCKED:
        lost = (StepStatus.FAILED, StepStatus.BLOCKED)
        cause = next(
            (
                dependency
                for dependency in task.dependencies
                if dependency in lines and lines[dependency].status in lost
            ),
            "",
        )
        return f"the task depends on {cause}, which did not complete" if cause else why
    resolver = next((other.task_id for other in facts.tasks if other.conflict_of == task.task_id), "")
    if not resolver:
        return why
    if line.status is StepStatus.RECOVERED:
        return f"{resolver} resolved its conflict"
    return f"{resolver} will resolve the conflict: {why}"


def _gate_result(plan: PlanStatus, state: LoopState, facts: ProjectFacts, lines: Lines) -> GateResult | None:
    if state is LoopState.FAILED and facts.planned_at is None:
        # The step's failure mode has put its name in front (`CatchAll.applied_to`); here it is the name of the check.
        reason = plan.reason.partition(f"{PLAN_GENERATION}: ")[2] or plan.reason
        return GateResult(checks=(GateCheck(name=PLAN_GENERATION, passed=False, message=reason),))
    if facts.verify_asked_at is None:
        return None
    names = facts.gate_names
    if names is None:
        return GateResult()
    if not names:
        return GateResult(checks=(GateCheck(name="gate:all", passed=False, message=NO_GATES),))
    checks: list[GateCheck] = []
    for number, name in enumerate(names, start=1):
        step = f"{GATE_STEP}{number}"
        if step in facts.gates:
            checks += facts.gates[step]
        elif step in lines and lines[step].status is StepStatus.RUNNING:
            checks.append(GateCheck(name=name, passed=False, running=True))
    # Compared with the names, because gates that have not reported yet are missing from `facts.gates`.
    passed = len(facts.gates) == len(names) and all(gate_checks[0].passed for gate_checks in facts.gates.values())
    return GateResult(passed=passed, checks=tuple(checks))


def _reason(plan: PlanStatus, state: LoopState, tasks: tuple[LoopTask, ...], gates: GateResult | None) -> str:
    if state is LoopState.VERIFIED and gates is not None:
        count = format_count(sum(not check.within for check in gates.checks), "gate")
        return f"{count} passed{and_scenarios(plan.scenarios)}"
    if state is not LoopState.FAILED or gates is None or not gates.checks:
        return plan.reason
    if gates.checks[0].name == PLAN_GENERATION:
        return gates.checks[0].message
    return explain_unverified(tasks, gates) or plan.reason


def explain_unverified(tasks: tuple[LoopTask, ...], gates: GateResult | None) -> str:
    """Explain why a project plan has not been verified, or return "".

    The text lists the gates that did not pass and the tasks that are not complete.
    """
    left = [task.task_id for task in tasks if task.state is not TaskState.COMPLETE]
    more = f" and {len(left) - NAMES_SHOWN} more" if len(left) > NAMES_SHOWN else ""
    problems = [] if gates is not None and gates.passed else [failing_gates(gates or GateResult())]
    return "; ".join([*problems, f"not complete: {', '.join(left[:NAMES_SHOWN])}{more}"] if left else problems)


_EVENTS = {
    ("completed", INSPECT): "project_inspected",
    ("completed", DECOMPOSE): "plan_created",
    ("answered", DISPATCH): "dispatch_asked",
    ("completed", DISPATCH): "plan_dispatched",
    ("waits", VERIFY): "plan_completed",
    ("answered", VERIFY): "verify_asked",
    ("cancelled", ""): "cancel_asked",
}
_OF_TASKS = {
    "started": "task_running",
    "waits": "task_awaiting_response",
    "continues": "task_running",
    "completed": "task_complete",
    "failed": "task_error",
}
_OF_GATES = {"started": "gate_running", "completed": "gate_passed", "failed": "gate_failed"}
_OF_ENDS = {"COMPLETED": "plan_verified", "CANCELLED": "plan_cancelled"}
_SILENT = frozenset({("waits", DISPATCH), ("completed", VERIFY)})
"""Kinds of plan events that other lines of the timeline already report."""


def event_name(event: str, step: str, detail: str, facts: ProjectFacts) -> str:
    """Return the timeline name of a plan event, or "" if the event is not shown."""
    if (event, step) in _SILENT or (event == "started" and step in COMMANDS):
        return ""
    if event == "answered" and not step and detail.startswith("resume"):
        return "resumed"
    if event == "closed":
        return _OF_ENDS.get(detail.partition(":")[0], "plan_failed")
    if step.startswith(GATE_STEP):
        return _OF_GATES.get(event, event)
    if any(task.task_id == step for task in facts.tasks):
        return _OF_TASKS.get(event, event)
    return _EVENTS.get((event, step), "" if event == "started" else event)


NAME_CHARACTERS = 80


class DispatchCommand(Document):
    """Arguments of the update `dispatch`."""

    # pydantic's union keeps True as a bool; a field of type int would read it as 1.
    parallel: int | bool | None = None
    """Maximum number of concurrent tasks. True or None uses the value from the request, and false means 1."""
    by: str = "operator"


class VerifyCommand(Document):
    """Arguments of the update `verify`."""

    by: str = "operator"


class CancelCommand(Document):
    """Arguments of the `cancel` update."""

    reason: str = ""
    by: str = "operator"


def read_dispatch(value: Any) -> DispatchCommand:
    """Parse the argument of `dispatch`, which is an object or None.

    Raises:
        InvalidRequestError: a field is unknown or out of range.
    """
    command = read_argument(value or {}, DispatchCommand, what="dispatch", example='{"parallel": 4, "by": "ada"}')
    parallel = command.parallel
    if parallel is not None and not isinstance(parallel, bool) and not 1 <= parallel <= PARALLEL_LIMIT:
        raise InvalidRequestError(f"dispatch: parallel must be between 1 and {PARALLEL_LIMIT}, got {parallel}")
    return command.evolve(by=_name(command.by))


def read_verify(value: Any) -> VerifyCommand:
    """Parse the argument of `verify`, which is an object or None.

    Raises:
        InvalidRequestError: a field is unknown or invalid.
    """
    command = read_argument(value or {}, VerifyCommand, what="verify", example='{"by": "ada"}')
    return command.evolve(by=_name(command.by))


def read_cancel(value: Any) -> CancelCommand:
    """Parse the argument of the update `cancel`, which is the reason, an object, or None.

    Raises:
        InvalidRequestError: a field is unknown or invalid.
    """
    value = {"reason": value} if isinstance(value, str) else value or {}
    command = read_argument(value, CancelCommand, what="cancel", example='{"reason": "not needed", "by": "ada"}')
    return command.evolve(by=_name(command.by), reason=shorten(command.reason, 500))


def resolve_parallel(command: DispatchCommand, default: int) -> int:
    """Return the maximum number of tasks to run at the same time."""
    # `is`, because 1 == True: `{"parallel": 1}` is a number of tasks.
    if command.parallel is None or command.parallel is True:
        return default
    return 1 if command.parallel is False else command.parallel


def _name(by: str) -> str:
    return shorten(by.strip() or "operator", NAME_CHARACTERS)


LINES_SHOWN = 40
TEXT_SHOWN = 120


def loop_details(status: LoopStatus) -> str:
    """Return the current details of a project plan as Markdown."""
    lines = [f"**{status.list_status}** · {shorten(' '.join(status.goal.split()), TEXT_SHOWN) or 'open problems'}", ""]
    for question in status.questions:
        lines += [f"**{question.id} waits for an answer** ({question.kind.value}): {question.title}", ""]
    lines += [f"- tasks: {counts_of(status)}"]
    lines += [task_line(task) for task in status.tasks[:LINES_SHOWN]]
    lines += [
        f"- waits in `{wait.step}`: `{wait.where}`: {wait.what} (to answer, see `{wait.command}`)"
        for wait in status.children[:LINES_SHOWN]
    ]
    for check in status.gate_result.checks[:LINES_SHOWN] if status.gate_result else ():
        state = "running" if check.running else "passed" if check.passed else "failed"
        lines.append(f"- {check.name}: {state}" + (f": {check.message}" if check.message else ""))
    if status.reason:
        lines.append(f"- {status.reason}")
    rows = _actions(status)
    if rows:
        lines += ["", "Next actions:", "", "| to | send | JSON |", "|---|---|---|"]
        lines += [f"| {what} | {send} | `{argument}` |" for what, send, argument in rows]
    return "\n".join(lines)


def counts_of(status: LoopStatus) -> str:
    """Return the number of tasks by state, such as `COMPLETE 3, RUNNING 1`."""
    counts = Counter(task.state.value for task in status.tasks)
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def task_line(task: LoopTask) -> str:
    """Return a Markdown list item that describes a task."""
    needs = f" after {', '.join(task.dependencies)}" if task.dependencies else ""
    run = f" `{task.run_id}`" if task.run_id else ""
    why = f": {task.message}" if task.message else ""
    what = shorten(" ".join(task.description.split()), TEXT_SHOWN)
    return f"- `{task.task_id}` {task.state.value}{needs}{run}: {what}{why}"


def _actions(status: LoopStatus) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for question in status.questions:
        for option in question.options:
            argument = json.dumps({"question": question.id, "option": option.name})
            rows.append((f"{question.id} {option.name}: {option.effect}", "update `answer`", argument))
    if status.questions:
        rows.append(("continue", "signal `resume`", "no input"))
    possible = status.possible
    if "dispatch" in possible:
        rows.append(("start the tasks", "update `dispatch`", json.dumps({"by": "your name"})))
    if "verify" in possible:
        rows.append(("run the gates", "update `verify`", json.dumps({"by": "your name"})))
    if possible and not status.questions:
        rows.append(("pause", "signal `pause`", '"why"'))
    if "cancel" in possible:
        rows.append(("stop for good", "update `cancel`", json.dumps({"reason": "why", "by": "your name"})))
    return rows
