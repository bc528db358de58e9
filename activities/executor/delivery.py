"""Options, private files and outcome of a delivery."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar, assert_never

from pydantic import ValidationError

from activities.process import ProcessResult, Reason
from activities.workspace.ownership import write_atomically
from tightloop.errors import ExecutorError
from tightloop.executor.limit import LimitAction, LimitKind, choose_action, explain
from tightloop.executor.model import AgentMode, ErrorKind, ExecutorChoice, ExecutorOutcome, ExecutorStatus, LimitHit
from tightloop.executor.options import option_problem
from tightloop.safety.rubric import Verdict
from tightloop.value import Document

Options = TypeVar("Options", bound=Document)


def read_options(model: type[Options], choice: ExecutorChoice, name: str) -> Options:
    """Return the options of a choice.

    Raises:
        ExecutorError: one is unknown or wrong; the message names those that `name` knows.
    """
    try:
        return model.model_validate(choice.options)
    except ValidationError as error:
        raise ExecutorError(option_problem(error, model, name)) from None


def refuse_questions(choice: ExecutorChoice, name: str) -> None:
    """Refuse the permission rule `ask` for an agent that cannot ask; one that only reads need not.

    Raises:
        ExecutorError: a person has to be asked.
    """
    if choice.permissions is Verdict.ASK and choice.mode is not AgentMode.READ_ONLY:
        raise ExecutorError(
            f"{name} cannot ask a person before it acts. Use an executor that can, such as claude or opencode, or "
            "permissions allow or deny"
        )


def remove_old(folder: Path, lasts: Callable[[int], timedelta]) -> int:
    """Remove the folders in a folder that were not changed for too long; return how many.

    Args:
        folder: may be missing; links in it stay.
        lasts: how long a folder is kept, by the number of folders that are newer.
    """
    now, found = time.time(), []
    for entry in folder.iterdir() if folder.is_dir() else ():
        # Another worker of this host may remove the same folder.
        with suppress(OSError):
            if not entry.is_symlink() and entry.is_dir():
                found.append((now - entry.stat().st_mtime, entry))
    removed = 0
    for newer, (age_s, entry) in enumerate(sorted(found)):
        if age_s > lasts(newer).total_seconds():
            with suppress(OSError):
                shutil.rmtree(entry)
                removed += 1
    return removed


@contextmanager
def held_file(path: Path, text: str) -> Iterator[Path]:
    """Hold text in a private file as long as a program may read it."""
    write_atomically(path, text.encode("utf-8", "replace"), durable=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


_KINDS: Mapping[str, ErrorKind] = {
    LimitKind.RATE_LIMITED: ErrorKind.RATE,
    LimitKind.OVERLOADED: ErrorKind.OVERLOADED,
    LimitKind.AUTH: ErrorKind.AUTH,
    LimitKind.CONTEXT_FULL: ErrorKind.CONTEXT_FULL,
    LimitKind.OFFLINE: ErrorKind.OFFLINE,
    LimitKind.TOOL_CALL_LIMIT: ErrorKind.BUDGET,
}


def early_outcome(result: ProcessResult, choice: ExecutorChoice) -> ExecutorOutcome | None:
    """Return the outcome of a process that did not exit by itself; None for one that did."""
    match result.reason:
        case Reason.EXITED:
            return None
        case Reason.CANCELLED:
            return cancelled_outcome()
        case Reason.NOT_STARTED:
            return fatal_outcome(result.message, ErrorKind.MISSING_PROGRAM)
        case Reason.WALL_LIMIT:
            return timeout_outcome(choice)
        case Reason.IDLE_LIMIT:
            return idle_outcome(choice, "output")
        case Reason.MEMORY_LIMIT | Reason.PROCESS_LIMIT | Reason.OUTPUT_LIMIT | Reason.DISK_LIMIT:
            return failed_outcome(result.message or f"ended: {result.reason.value}", ErrorKind.SANDBOX)
        case _:
            assert_never(result.reason)


def failed_outcome(error: str, kind: ErrorKind | None = None) -> ExecutorOutcome:
    """Return the outcome of a delivery that failed; another try may do better."""
    return ExecutorOutcome(status=ExecutorStatus.FAILED, error=error, error_kind=kind)


def fatal_outcome(error: str, kind: ErrorKind | None = None) -> ExecutorOutcome:
    """Return the outcome of a delivery that cannot work until somebody changes the setup."""
    return ExecutorOutcome(status=ExecutorStatus.FATAL, error=error, error_kind=kind)


def cancelled_outcome() -> ExecutorOutcome:
    """Return the outcome of a delivery that was ended because its activity was cancelled."""
    return ExecutorOutcome(status=ExecutorStatus.CANCELLED, error="stopped on request")


def timeout_outcome(choice: ExecutorChoice) -> ExecutorOutcome:
    """Return the outcome of a delivery that used up its time."""
    return ExecutorOutcome(
        status=ExecutorStatus.TIMED_OUT,
        error=f"still at work after {choice.wall_limit_s:g} s: ended. Raise executor.wall_limit_s or plan less.",
        error_kind=ErrorKind.TIMEOUT,
    )


def idle_outcome(choice: ExecutorChoice, missing: str) -> ExecutorOutcome:
    """Return the outcome of a delivery that was silent for too long."""
    return ExecutorOutcome(
        status=ExecutorStatus.TIMED_OUT,
        error=f"no {missing} for {choice.idle_limit_s:g} s: ended. If it was at work, raise idle_limit_s.",
        error_kind=ErrorKind.TIMEOUT,
    )


def limited_outcome(limit: LimitHit, error: str) -> ExecutorOutcome:
    """Return the outcome of a delivery that a limit stopped; `error` is what the agent said."""
    kind = _KINDS.get(limit.kind)
    if limit.kind == LimitKind.USAGE_EXHAUSTED:
        kind = ErrorKind.QUOTA if limit.retry_after is None else ErrorKind.USAGE_WINDOW
    match choose_action(limit):
        case LimitAction.WAIT:
            return ExecutorOutcome(status=ExecutorStatus.LIMIT_HIT, limit=limit, error=error, error_kind=kind)
        case LimitAction.PERSON:
            return ExecutorOutcome(status=ExecutorStatus.FATAL, limit=limit, error=explain(limit), error_kind=kind)
        case LimitAction.REPLAN:
            return ExecutorOutcome(status=ExecutorStatus.FAILED, limit=limit, error=explain(limit), error_kind=kind)
        case unknown:
            assert_never(unknown)
