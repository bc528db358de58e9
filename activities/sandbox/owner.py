"""Marks groups and containers with their worker, so that only those of dead workers are removed."""

import os
import platform

import psutil

_CLOCK_SLACK_S = 3
"""Start times are derived from the boot time, which moves with corrections of the clock."""


def this_process() -> str:
    """Return `<pid>-<start time>`: the pid may be another's later, its start time may not."""
    return f"{os.getpid()}-{int(psutil.Process().create_time())}"


def lives(owner: str) -> bool:
    """Return whether a process of this host is still there; True also for a name of another form."""
    pid, _, started = owner.partition("-")
    if not (pid.isdigit() and started.isdigit()):
        return True
    try:
        return abs(psutil.Process(int(pid)).create_time() - int(started)) <= _CLOCK_SLACK_S
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def this_host() -> str:
    """Return where pids mean what they mean here: another container has the same pids for other processes."""
    try:
        return f"{platform.node()}-{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116
    except OSError:
        return platform.node()
