"""Keeps one supervisor waiting in a control group of its own, so that the next command need not wait for either.

Its start takes 8 ms, and joining a group 15 to 25: longer than a short check. It is made once a short command has
ended, is used by one command only, and is given up when none comes for a while.
"""

import atexit
import os
import subprocess
import threading
from contextlib import suppress

from activities.process.start import Shim, prepare
from activities.sandbox.control_group import ControlGroup, Hierarchy

WORTH_S = 5.0
"""After a command that took longer nobody would notice what is saved."""
IDLE_S = 20.0


class Ahead:
    """At most one group with a waiting supervisor."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._lock = threading.Lock()
        self.ready: tuple[ControlGroup, Shim] | None = None
        """What waits now."""
        self._timer: threading.Timer | None = None
        self._making = False

    def take(self, hierarchy: Hierarchy) -> tuple[ControlGroup, Shim | None]:
        """Return a group, and its supervisor where one waits: both are the caller's now."""
        with self._lock:
            ready, self.ready = self.ready, None
        if ready is None:
            return ControlGroup(hierarchy), None
        group, shim = ready
        if shim.popen.poll() is not None:
            # Somebody killed it while it waited: no command may fail for that.
            shim.abandon()
            return group, None
        return group, shim

    def make(self, hierarchy: Hierarchy) -> None:
        """Have one made, unless one waits."""
        with self._lock:
            if self._making or self.ready is not None:
                return
            self._making = True
        thread = threading.Thread(target=self._make, args=(hierarchy,), name="sandbox-ahead", daemon=True)
        # Not while the interpreter shuts down.
        with suppress(RuntimeError):
            thread.start()

    def give_up(self) -> None:
        """End the one that waits."""
        with self._lock:
            ready, self.ready = self.ready, None
        if ready is not None:
            group, shim = ready
            shim.abandon()
            group.close()

    def forget(self) -> None:
        """Let go of it in a forked process: it belongs to the one that forked."""
        ready, self.ready, self._making, self._lock = self.ready, None, False, threading.Lock()
        if ready is not None:
            ready[1].let_go()

    def _make(self, hierarchy: Hierarchy) -> None:
        group = ControlGroup(hierarchy)
        shim = None
        # Whoever needs one makes it otherwise, and says what is wrong.
        with suppress(OSError):
            shim = prepare(cgroups=group.folders, stdin=subprocess.DEVNULL)
        with self._lock:
            self._making = False
            if shim is not None:
                self.ready = group, shim
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = threading.Timer(IDLE_S, self.give_up)
                self._timer.daemon = True
                self._timer.start()
        if shim is None:
            group.close()


AHEAD = Ahead()
atexit.register(AHEAD.give_up)
os.register_at_fork(after_in_child=AHEAD.forget)
