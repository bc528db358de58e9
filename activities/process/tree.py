"""The descendants of a child process: found wherever they went, measured and signalled."""

import os
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass
from signal import SIGCONT, SIGSTOP, Signals
from typing import TypeVar

import psutil

Seen = TypeVar("Seen")
MARK = "CHILD_OF_TIGHTLOOP"
"""Environment variable with the ids, joined by `:`, of the runs that a process belongs to."""


@dataclass(frozen=True)
class Footprint:
    """Resources of a process tree at one moment."""

    processes: int
    resident_bytes: int
    cpu_s: float
    """Of the processes that live, and of those that they waited for."""


class ProcessTree:
    """A child process that leads its own session, and its descendants.

    While its shim lives and is their subreaper, they are the descendants of the shim, whatever they shed. Else
    (macOS, or somebody killed the shim) one is recognised by its parent, seen while that lived; by its session; or
    by the mark in its environment, which outlives a double fork and `setsid`. One that sheds all three at once
    (`env -i setsid ... &`) is then missed.
    """

    def __init__(self, leader: int, mark: str, *, adopter: int | None) -> None:
        """Take the pid of the leader, the id in its environment, and the pid of the subreaper if there is one."""
        self._pid = leader
        self._mark = mark
        self._leader = _process(leader)
        self._adopter = None if adopter is None else _process(adopter)
        self._known: set[psutil.Process] = {self._leader} if self._leader else set()

    def observe(self) -> Set[psutil.Process]:
        """Remember and return the descendants by parent; once the parent is gone they are not found that way."""
        if self._adopter is not None and _lives(self._adopter):
            covered = _children(self._adopter)
        else:
            covered = set()
            for process in self._known:
                if process not in covered:
                    covered |= _children(process)
        self._known = {process for process in self._known | covered if _lives(process)}
        return self._known

    def members(self) -> Set[psutil.Process]:
        """Return all members that live, the leader included; without a subreaper looks at the whole host."""
        if self._adopter is not None and _lives(self._adopter):
            return self.observe()
        known = {process.pid for process in self._known} | {os.getpid()}
        # None once the pid of a dead leader was given to another process.
        runs = self._leader is not None and self._leader.is_running()
        session = self._pid if runs or not psutil.pid_exists(self._pid) else None
        for pid in psutil.pids():
            # The environment of other users cannot be read: `_belongs` says no for them.
            if pid not in known and self._belongs(pid, session) and (process := _process(pid)):
                self._known.add(process)
        return self.observe()

    def signal(self, number: Signals) -> Set[psutil.Process]:
        """Send a signal to all members and return them.

        They are frozen until all have it: else a shell goes on to its next command when its child dies first.
        """
        members = self.members()
        for each in (SIGSTOP, number, SIGCONT):
            for process in members:
                with suppress(psutil.Error):
                    process.send_signal(each)
        return members

    def footprint(self) -> Footprint:
        """Measure what lives of the tree; a process that ends meanwhile counts for nothing."""
        sizes = [size for process in self.observe() if (size := _size(process))]
        return Footprint(len(sizes), sum(size[0] for size in sizes), sum(size[1] for size in sizes))

    def _belongs(self, pid: int, session: int | None) -> bool:
        try:
            if os.getsid(pid) == session:
                return True
            return self._mark in psutil.Process(pid).environ().get(MARK, "").split(":")
        except (psutil.Error, OSError):
            return False


def _look(look: Callable[[], Seen], otherwise: Seen) -> Seen:
    """Return what a look at a process gives; `otherwise` where it has gone or belongs to another user."""
    try:
        return look()
    except psutil.Error:
        return otherwise


def _process(pid: int) -> psutil.Process | None:
    return _look(lambda: psutil.Process(pid), None)


def _children(process: psutil.Process) -> set[psutil.Process]:
    return _look(lambda: set(process.children(recursive=True)), set())


def _size(process: psutil.Process) -> tuple[int, float] | None:
    # User and system time, then those of children that were waited for; on Linux iowait follows.
    return _look(lambda: (process.memory_info().rss, sum(process.cpu_times()[:4])), None)


def _lives(process: psutil.Process) -> bool:
    # A zombie has ended, and only its parent has not asked yet.
    return _look(lambda: process.is_running() and process.status() != psutil.STATUS_ZOMBIE, otherwise=False)
