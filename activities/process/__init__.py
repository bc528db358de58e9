"""Child processes for executors and checks. The termination of the whole process tree is guaranteed."""

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
    """Run a program until it exits, exceeds a limit or is cancelled.

    When this returns, no process of the tree is running, even if a callback raises an error. If this process dies, the
    tree ends within a second or two. The call takes at most the wall-time limit plus two grace periods and a few
    seconds.

    Args:
        request: the program and its limits.
        cancelled: polled every 0.1 s. If it returns True, SIGINT, SIGTERM and SIGKILL are sent to the
            tree in turn.
        started: receives the pid, which is also the process group and session id.
        on_output: receives the output in chunks of at most 64 KiB. The total is unlimited. If standard
            error is separate, it is not included.

    Raises:
        UntrustedProgramError: the project can write to the program. Nothing was started.
    """
    if cancelled():
        return ProcessResult(reason=Reason.CANCELLED)
    marker = uuid.uuid4().hex
    try:
        # Not the standard input of the worker, for which its programs would compete.
        with (request.stdin or Path(os.devnull)).open("rb") as stdin:
            shim = start(request, marker, stdin=stdin)
    except (NotStartedError, OSError) as refusal:
        return ProcessResult(reason=Reason.NOT_STARTED, message=str(refusal))
    child = Child(shim, marker, request, on_output)
    child.read_from(raw(shim.popen.stdout), child.output)
    if shim.popen.stderr is not None:
        child.read_from(raw(shim.popen.stderr), child.errors)
    try:
        started(shim.pid)
        reason = child.watch(cancelled)
    except BaseException:
        # A callback failed: kill the tree at once, without the grace period.
        child.end(None)
        raise
    child.end(reason)
    return child.result(reason)


def search_path(root: Path) -> dict[str, str]:
    """Return `PATH`, `VIRTUAL_ENV` and `RUSTUP_HOME` for commands that run in a tree.

    The tree's own .venv comes first, then the worker's Python, then the host's `PATH`. Executors and checks share this
    path so that both use the same formatter. Use it only for look-ups inside a sandbox. Outside a sandbox, programs in
    a tree must not be picked up.
    """
    bin_folder = root / ".venv" / "bin"
    folders = [str(bin_folder), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    # A sandbox has another home, where `cargo` of rustup would look for its toolchains.
    rust = {"RUSTUP_HOME": str(home)} if (home := rustup_home()) else {}
    if not bin_folder.is_dir():
        return {"PATH": os.pathsep.join(folders[1:]), **rust}
    return {"PATH": os.pathsep.join(folders), "VIRTUAL_ENV": str(bin_folder.parent), **rust}


def rustup_home() -> Path | None:
    """Return the folder with the Rust toolchains that rustup installed for this user, or None."""
    home = Path(os.environ.get("RUSTUP_HOME") or Path.home() / ".rustup")
    try:
        return home if (home / "toolchains").is_dir() else None
    except PermissionError:
        # A worker that another user started may have inherited that user's HOME.
        return None
