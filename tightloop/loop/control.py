"""Updates of a project plan, and the details that Temporal's UI shows."""

import json
from collections import Counter
from typing import Any

from tightloop.errors import InvalidRequestError
from tightloop.loop.model import PARALLEL_LIMIT, LoopStatus, LoopTask
from tightloop.run.commands import read_argument
from tightloop.value import Document, shorten

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
    """Arguments of the update `cancel`."""

    reason: str = ""
    by: str = "operator"


def read_dispatch(value: Any) -> DispatchCommand:
    """Parse the argument of `dispatch`: an object or nothing.

    Raises:
        InvalidRequestError: a field is unknown or out of range.
    """
    command = read_argument(value or {}, DispatchCommand, what="dispatch", example='{"parallel": 4, "by": "ada"}')
    parallel = command.parallel
    if parallel is not None and not isinstance(parallel, bool) and not 1 <= parallel <= PARALLEL_LIMIT:
        raise InvalidRequestError(f"dispatch: parallel must be between 1 and {PARALLEL_LIMIT}, got {parallel}")
    return command.evolve(by=_name(command.by))


def read_verify(value: Any) -> VerifyCommand:
    """Parse the argument of `verify`: an object or nothing.

    Raises:
        InvalidRequestError: a field is unknown or invalid.
    """
    command = read_argument(value or {}, VerifyCommand, what="verify", example='{"by": "ada"}')
    return command.evolve(by=_name(command.by))


def read_cancel(value: Any) -> CancelCommand:
    """Parse the argument of the update `cancel`: the reason, an object, or nothing.

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
