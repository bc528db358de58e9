"""Which states of a project's plan allow what, in words."""

from tightloop.errors import InvalidRequestError
from tightloop.loop.model import GateResult, LoopState, LoopStatus
from tightloop.value import counted

CLOSED = frozenset({LoopState.VERIFIED, LoopState.FAILED, LoopState.CANCELLED})


def check_possible(status: LoopStatus, wanted: str) -> None:
    """Refuse an update that the state does not allow.

    Raises:
        InvalidRequestError: it names the state, and what is possible.
    """
    possible = status.possible
    if wanted in possible and (wanted == "cancel" or not status.questions):
        return
    if wanted in possible:
        raise InvalidRequestError(f"{wanted}: the plan is paused. Send the signal resume first, or cancel")
    can = f"Possible now: {', '.join(possible)}" if possible else "Nothing is possible any more; make another plan"
    raise InvalidRequestError(f"{wanted}: the plan is {status.status.value}{_why(status)}. {can}")


def _why(status: LoopStatus) -> str:
    match status.status:
        case LoopState.DRAFT if not status.tasks:
            return ", and its tasks are not known yet"
        case LoopState.RUNNING if status.completed_at is None:
            left = sum(not task.state.has_ended for task in status.tasks)
            return f", and {counted(left, 'task')} have not ended" if left != 1 else ", and 1 task has not ended"
        case LoopState.RUNNING:
            return ", and all tasks have ended"
        case LoopState.FAILED:
            return f" ({status.reason})" if status.reason else ""
        case _:
            return ""


def failing_gates(result: GateResult) -> str:
    """Return which gates did not pass, in a sentence."""
    failed = [check.name for check in result.checks if not check.passed and not check.running and "/" not in check.name]
    return f"{', '.join(failed)} did not pass" if failed else "no gate has run"


def word_of(status: LoopStatus) -> str:
    """Return the status as lists show it."""
    if status.status in CLOSED or not status.questions:
        return status.status.value.lower()
    return "paused"
