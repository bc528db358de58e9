"""The one place that runs child processes for executors and checks, and ends all that they started."""

import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from activities.process.child import Child, ProcessSession, open_process
from activities.process.output import Growth
from activities.process.start import (
    GRACE_S,
    INHERITED,
    Callbacks,
    NotStartedError,
    ProcessRequest,
    ProcessResult,
    ProjectProgram,
    Reason,
    raw,
    start,
)

__all__ = [
    "GRACE_S",
    "INHERITED",
    "Callbacks",
    "Growth",
    "ProcessRequest",
    "ProcessResult",
    "ProcessSession",
    "ProjectProgram",
    "Reason",
    "open_process",
    "run_process",
    "search_path",
]


def run_process(
    request: ProcessRequest,
    *,
    cancelled: Callable[[], bool],
    started: Callable[[int], None],
    on_output: Callable[[bytes], None] | None = None,
) -> ProcessResult:
    """Run a program until it exits, is silent or busy for too long, is out of bounds, or is cancelled.

    Its whole process tree is gone on return, also when a callback raises; when this process dies, the tree is
    gone within a second or two. Takes at most the wall limit, two graces and a few seconds.

    Args:
        request: the program and its bounds.
        cancelled: asked every 0.1 s; when True the tree gets SIGINT, SIGTERM and SIGKILL in turn.
        started: told the pid, which is also the id of the process group and of the session.
        on_output: given the output as it comes, in chunks of at most 64 KiB, unbounded in total; without
            standard error where that is kept apart.

    Raises:
        UntrustedProgramError: the program lies where the project can write; nothing was started.
    """
    if cancelled():
        return ProcessResult(reason=Reason.CANCELLED)
    mark = uuid.uuid4().hex
    try:
        with (request.stdin or Path(os.devnull)).open("rb") as stdin:
            shim = start(request, mark, stdin=stdin)
    except (NotStartedError, OSError) as refusal:
        return ProcessResult(reason=Reason.NOT_STARTED, message=str(refusal))
    child = Child(shim, mark, request, on_output)
    child.read_from(raw(shim.popen.stdout), child.output)
    if shim.popen.stderr is not None:
        child.read_from(raw(shim.popen.stderr), child.errors)
    try:
        started(shim.pid)
        reason = child.watch(cancelled)
    except BaseException:
        child.end(None)
        raise
    child.end(reason)
    return child.result(reason)


def search_path(root: Path) -> dict[str, str]:
    """Return `PATH` (and `VIRTUAL_ENV`) for work in a tree: its own .venv first, then ours, then the host's.

    Executors and checks use the same, so that a check sees the formatter that the executor ran. Only for what is looked
    up inside of a sandbox: nothing else may be found in a tree.
    """
    own = root / ".venv" / "bin"
    folders = [str(own), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    if not own.is_dir():
        return {"PATH": os.pathsep.join(folders[1:])}
    return {"PATH": os.pathsep.join(folders), "VIRTUAL_ENV": str(own.parent)}
