"""Tool calls in a process that kills itself with SIGKILL at a chosen step.

A step is an event of the interpreter's audit (PEP 578) that comes before something is done to a file or a process:
opening, renaming, removing, making, starting. The n-th step is thus the moment after the (n-1)-th was done.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

STEPS = frozenset({
    "open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.truncate", "sqlite3.connect",
    "subprocess.Popen", "os.posix_spawn", "os.fork",
})  # fmt: skip
LASTING = STEPS - {"open"}
"""Steps that leave something behind."""


def die_at(step: int, act: Callable[[], Any], steps: frozenset[str] = STEPS) -> bool:
    """Act in a child that dies at the given step; return whether the act has fewer steps, and so came to its end.

    In that case it died after its last step, before anybody was told.
    """
    child = os.fork()
    if child == 0:
        _act_and_die(step, act, steps)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the child ended with {status}"
    assert os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGTERM), f"signal {os.WTERMSIG(status)}"
    return os.WTERMSIG(status) == signal.SIGTERM


def _act_and_die(step: int, act: Callable[[], Any], steps: frozenset[str]) -> None:
    left = step

    def watch(event: str, _arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in steps:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.addaudithook(watch)
    with contextlib.suppress(BaseException):
        act()
        os.kill(os.getpid(), signal.SIGTERM)
    os._exit(1)
