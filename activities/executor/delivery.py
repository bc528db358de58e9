"""Options, private files and outcomes of a delivery."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar, assert_never

from pydantic import ValidationError

from activities.process import ProcessResult, Reason
from activities.workspace.ownership import write_atomically
from tightloop.errors import ExecutorError
from tightloop.executor.model import AgentMode, ErrorKind, ExecutorChoice, ExecutorOutcome, ExecutorStatus
from tightloop.executor.options import option_problem
from tightloop.safety.rubric import Verdict
from tightloop.value import Document

Options = TypeVar("Options", bound=Document)


def read_options(model: type[Options], choice: ExecutorChoice, name: str) -> Options:
    """Parse the options of an executor.

    Raises:
        ExecutorError: an option is unknown or invalid. The message lists the valid options of `name`.
    """
    try:
        return model.model_validate(choice.options)
    except ValidationError as error:
        # Without the cause: pydantic's text repeats the values, which may be secrets.
        raise ExecutorError(option_problem(error, model, name)) from None


def refuse_questions(choice: ExecutorChoice, name: str) -> None:
    """Reject the permission rule `ask` for an agent that cannot ask. It is allowed for read-only agents.

    Raises:
        ExecutorError: the permission rule is `ask`.
    """
    if choice.permissions is Verdict.ASK and choice.mode is not AgentMode.READ_ONLY:
        raise ExecutorError(
            f"{name} cannot ask a person before it acts. Use an executor that can, for example claude or opencode, or "
            "set permissions to allow or deny"
        )


def remove_old(folder: Path, lasts: Callable[[int], timedelta]) -> int:
    """Remove subfolders that have not changed for too long. Return the number of folders removed.

    Args:
        folder: the parent folder. It may be missing. Symlinks in it are kept.
        lasts: returns how long to keep a folder, given the number of newer folders.
    """
    now, aged_folders = time.time(), []
    for entry in folder.iterdir() if folder.is_dir() else ():
        # Another worker on this host may remove the same folder.
        with suppress(OSError):
            if not entry.is_symlink() and entry.is_dir():
                aged_folders.append((now - entry.stat().st_mtime, entry))
    removed = 0
    # Sorted by age, so the position is the number of newer folders.
    for newer, (age_s, entry) in enumerate(sorted(aged_folders)):
        if age_s > lasts(newer).total_seconds():
            with suppress(OSError):
                shutil.rmtree(entry)
                removed += 1
    return removed


@contextmanager
def write_temporary_file(path: Path, text: str) -> Iterator[Path]:
    """Write text to a private temporary file. The file is deleted when the context exits."""
    # A lone surrogate in a model's text must not make the delivery fail.
    write_atomically(path, text.encode("utf-8", "replace"), durable=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def early_outcome(result: ProcessResult, choice: ExecutorChoice) -> ExecutorOutcome | None:
    """Return the outcome of a process that was stopped, or None if it exited on its own."""
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
    """Create the outcome of a failed delivery. A retry may succeed."""
    return ExecutorOutcome(status=ExecutorStatus.FAILED, error=error, error_kind=kind)


def fatal_outcome(error: str, kind: ErrorKind | None = None) -> ExecutorOutcome:
    """Create the outcome of a delivery that cannot succeed until somebody changes the setup."""
    return ExecutorOutcome(status=ExecutorStatus.FATAL, error=error, error_kind=kind)


def cancelled_outcome() -> ExecutorOutcome:
    """Create the outcome of a delivery whose activity was cancelled."""
    return ExecutorOutcome(status=ExecutorStatus.CANCELLED, error="stopped on request")


def timeout_outcome(choice: ExecutorChoice) -> ExecutorOutcome:
    """Create the outcome of a delivery that exceeded its wall limit."""
    return ExecutorOutcome(
        status=ExecutorStatus.TIMED_OUT,
        error=f"stopped after {choice.wall_limit_s:g} s of work. Raise executor.wall_limit_s or plan smaller steps.",
        error_kind=ErrorKind.TIMEOUT,
    )


def idle_outcome(choice: ExecutorChoice, missing: str) -> ExecutorOutcome:
    """Create the outcome of a delivery that was silent for too long."""
    return ExecutorOutcome(
        status=ExecutorStatus.TIMED_OUT,
        error=f"stopped after {choice.idle_limit_s:g} s without {missing}. If the executor was "
        "busy, raise executor.idle_limit_s.",
        error_kind=ErrorKind.TIMEOUT,
    )
