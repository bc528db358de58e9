"""Runs checks in a sandbox."""

import os
from collections.abc import Callable
from pathlib import Path

from activities.process import GRACE_S
from activities.sandbox.allowance import allowed
from activities.sandbox.port import Enforcement, ExitReason, Limit, Sandbox, SandboxResult
from activities.verification.port import CommandResult
from tightloop.check import Check
from tightloop.settings import SandboxSettings

NOT_FOUND = 127
_NO_NETWORK = (b"Network is unreachable", b"Temporary failure in name resolution", b"Could not resolve host")


class ProcessCheckRunner:
    """Gives each check to `/bin/sh` in the sandbox; the shell exits with 127 where the program is missing."""

    def __init__(self, sandbox: Sandbox, settings: SandboxSettings, *, grace_s: float = GRACE_S) -> None:
        """Take the walls, their bounds, and the time that a check may need to follow a polite signal."""
        self._sandbox = sandbox
        self._settings = settings
        self._grace_s = grace_s

    def run(
        self, check: Check, root: Path, *, cancelled: Callable[[], bool], started: Callable[[int], None]
    ) -> CommandResult:
        """Run the command in `root`; see the port. What it leaves in the background is ended, too.

        Raises:
            SandboxUnavailableError: no sandbox works on this host. Not retryable: a person has to install one.
            SettingsError: the settings of the sandbox name a path that is not there. Not retryable.
        """
        argv = ("/bin/sh", "-c", check.run)
        spec = allowed(self._settings, argv, root, wall_limit_s=check.timeout_s, grace_s=self._grace_s)
        result = self._sandbox.run(spec, cancelled=cancelled, started=started)
        return CommandResult(
            exit_code=result.exit_code if result.reason is ExitReason.EXITED else None,
            timed_out=result.reason is ExitReason.WALL_LIMIT,
            duration_s=result.duration_s,
            cpu_s=result.cpu_s,
            output=_told(result, root),
            sandbox=result.backend,
            not_enforced=tuple(limit.value for limit, how in result.limits.items() if how is Enforcement.MISSING),
        )


def _told(result: SandboxResult, root: Path) -> bytes:
    """Return the output, with a line at its end where the walls are why it is not another one."""
    line = _line(result, root)
    if not line:
        return result.output
    gap = b"" if not result.output or result.output.endswith(b"\n") else b"\n"
    return result.output + gap + f"[tightloop: {line}]\n".encode()


def _line(result: SandboxResult, root: Path) -> str:
    if result.reason is not ExitReason.EXITED:
        return result.message
    if not result.exit_code:
        return ""
    walls = f"it ran in the sandbox {result.backend}"
    if result.exit_code == NOT_FOUND and _held(result, Limit.READS):
        return f"{walls}, where a program outside of the system's folders and of PATH needs sandbox.read"
    if any(words in result.output for words in _NO_NETWORK) and _held(result, Limit.NETWORK):
        return f"{walls}, which has no network. Set sandbox.network if the check needs it"
    if b"Permission denied" in result.output and _held(result, Limit.WRITES) and (owner := _stranger(root)):
        return f"{walls}, where root has no rights on a tree of user {owner}. Run the worker as that user"
    return ""


def _stranger(root: Path) -> int | None:
    """Return the owner of a tree that a worker of root works in and that is not root's."""
    owner = root.stat().st_uid
    return owner if os.geteuid() == 0 and owner != 0 else None


def _held(result: SandboxResult, limit: Limit) -> bool:
    return result.limits.get(limit) is Enforcement.HARD
