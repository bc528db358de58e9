"""Execution of checks in a sandbox."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Unpack

from activities.checks.activity import CheckView, CommandResult
from activities.process import GRACE_S, Callbacks, Reason, search_path
from activities.sandbox.control_group import FLOOD
from activities.sandbox.port import Enforcement, Limit, Sandbox, SandboxResult, SandboxSpec, build_spec
from activities.sandbox.visible import project_python
from tightloop.checks.commands import folder_of
from tightloop.episode.check import Check
from tightloop.episode.exit_status import check_argv
from tightloop.host.worktree import MOUNTING, mounted_environments, path_inside
from tightloop.settings import SandboxSettings
from tightloop.value import LruCache

# POSIX shell: exit status if the command is not found.
NOT_FOUND = 127
_READ_ONLY = b"ead-only file system"
REMEMBERED = 1_000
LEAST_SECONDS = 1.0
"""Minimum time limit in seconds for a second run, in case the first one has used up the check's limit."""
# Messages of ENETUNREACH, of EAI_AGAIN in glibc, and of curl.
_NO_NETWORK = (b"Network is unreachable", b"Temporary failure in name resolution", b"Could not resolve host")


class NestedEnvironment(NamedTuple):
    """The environment of a project in a subfolder of the working tree."""

    variables: Mapping[str, str] = MappingProxyType({})
    readable: tuple[Path, ...] = ()


def nested_environment(root: Path, command: str) -> NestedEnvironment:
    """Return the environment for a command's working folder, such as `services/api/.venv`."""
    folder = root / folder_of(command)
    bin_folder = folder / ".venv" / "bin"
    if folder == root or not folder.resolve().is_relative_to(root.resolve()) or not bin_folder.is_dir():
        return NestedEnvironment()
    path = os.pathsep.join((str(bin_folder), search_path(root)["PATH"]))
    return NestedEnvironment({"PATH": path, "VIRTUAL_ENV": str(bin_folder.parent)}, project_python(folder))


class CheckRunner:
    """Runs each check with a shell in the sandbox. If a program is missing, the exit code is 127."""

    def __init__(self, sandbox: Sandbox, settings: SandboxSettings, *, grace_s: float = GRACE_S) -> None:
        self._sandbox = sandbox
        self._settings = settings
        self._grace_s = grace_s
        self._writing: LruCache[tuple[str, tuple[str, ...]], bool] = LruCache(REMEMBERED)
        """Checks that are known to write to installed packages."""

    def run(
        self,
        check: Check,
        root: Path,
        *,
        cancelled: Callable[[], bool],
        started: Callable[[int], None],
        view: CheckView = CheckView(),
    ) -> CommandResult:
        """Run the command in `root`. Background processes are killed before this method returns.

        Args:
            check: the command and its time limit.
            root: working folder.
            cancelled: polled at least once a second. If it returns True, the process tree is killed.
            started: called with the command's pid.
            view: changes to the environment.

        Raises:
            SandboxUnavailableError: no sandbox works on this host. Not retryable, because a person has to
                install one.
            SettingsError: the sandbox settings refer to a missing path. Not retryable.
        """
        argv = check_argv(check.run)
        spec = build_spec(self._settings, argv, root, wall_limit_s=check.timeout_s, grace_s=self._grace_s)
        project = nested_environment(self.path_inside(root), check.run)
        spec = replace(
            spec,
            content=view.content,
            mounts=view.mounts,
            readable=(*spec.readable, *view.readable, *project.readable),
            writable=(*(spec.writable if view.shared_folders else ()), *view.writable),
            environment={**spec.environment, **project.variables, **view.environment},
            network=spec.network if view.network else (),
            # The exit status decides. Output that nobody needs is dropped while it is read.
            may_flood=True,
        )
        result = self._run(spec, cancelled=cancelled, started=started)
        output = result.output
        if result.written_bytes > FLOOD * spec.output_bytes:
            # Without the exact size, which varies and would make equal failures look different.
            note = (
                f"printed more than {FLOOD * spec.output_bytes // 1_000_000} MB, so only the start and the end of the "
                "output were kept"
            )
            output = f"[tightloop: the check {note}]\n".encode() + output
        if cause := _find_cause(result, root) or (result.scratch and f"wrote to installed packages: {result.scratch}"):
            # At the end, because clipped outputs keep their tail.
            gap = b"" if not output or output.endswith(b"\n") else b"\n"
            output += gap + f"[tightloop: {cause}]\n".encode()
        return CommandResult(
            exit_code=result.exit_code if result.reason is Reason.EXITED else None,
            timed_out=result.reason is Reason.WALL_LIMIT,
            duration_s=result.duration_s,
            cpu_s=result.cpu_s,
            output=output,
            sandbox=result.backend,
            not_enforced=tuple(limit.value for limit, how in result.limits.items() if how is Enforcement.MISSING),
        )

    def _run(self, spec: SandboxSpec, **callbacks: Unpack[Callbacks]) -> SandboxResult:
        """Run a check.

        If the check fails because it writes to the installed packages, it is run again with its own copy of
        the packages.
        """
        key, left_s = (str(self.path_inside(spec.root)), spec.argv), spec.wall_limit_s
        again = self._sandbox.run(replace(spec, scratch=True), **callbacks) if self._writing.get(key) else None
        if again is not None:
            left_s -= again.duration_s
            # A check may also require that nothing can be written, so that it only passes without a copy.
            if again.reason is Reason.EXITED and again.exit_code == 0 and not again.changed_package:
                return again
        result = self._sandbox.run(replace(spec, wall_limit_s=max(left_s, LEAST_SECONDS)), **callbacks)
        left_s -= result.duration_s
        if not _writes_to_packages(result, spec) or left_s <= 0 or self._sandbox.name not in MOUNTING:
            return result
        again = again or self._sandbox.run(replace(spec, scratch=True, wall_limit_s=left_s), **callbacks)
        if again.changed_package:
            return replace(result, scratch=f"the check changes {again.changed_package}")
        if _READ_ONLY in again.output:
            return replace(result, scratch=again.scratch)
        self._writing.put(key, True)
        return replace(again, duration_s=result.duration_s + again.duration_s)

    def path_inside(self, root: Path) -> Path:
        """Return the path at which checks see the tree at `root`.

        Raises:
            SandboxUnavailableError: no sandbox works on this host. Not retryable.
        """
        return path_inside(self._sandbox.name, root)


def _writes_to_packages(result: SandboxResult, spec: SandboxSpec) -> bool:
    """Return whether a command failed because it tried to write to installed packages."""
    if result.reason is not Reason.EXITED or not result.exit_code or _READ_ONLY not in result.output:
        return False
    paths = (*mounted_environments(spec.root), *(str(path) for _, path in spec.mounts))
    return any(os.fsencode(Path(path).name) in result.output for path in paths)


def _find_cause(result: SandboxResult, root: Path) -> str:
    """Return the sandbox's explanation of a failure, or "" if the sandbox is not the cause."""
    if result.reason is not Reason.EXITED:
        return result.message
    if not result.exit_code:
        return ""
    where = f"the command ran in the sandbox {result.backend}"
    hard = {limit for limit, how in result.limits.items() if how is Enforcement.HARD}
    if result.exit_code == NOT_FOUND and Limit.READS in hard:
        return (
            f"{where}. To run a program outside the system folders and PATH, add the path of the program to "
            "sandbox.read"
        )
    if _READ_ONLY in result.output and (folders := mounted_environments(root)):
        why = f" ({result.scratch})" if result.scratch else ""
        return (
            f"{where}, where {', '.join(folders)} of the workspace cannot be changed{why}. If the check has to change "
            "packages, set workspace.environments to copy"
        )
    if any(message in result.output for message in _NO_NETWORK) and Limit.NETWORK in hard:
        return (
            f"{where}, which can only reach the hosts in sandbox.network. Add the hosts that the check needs to "
            "this setting"
        )
    # The sandbox drops all capabilities, without which file modes apply to root as well.
    if (
        b"Permission denied" in result.output
        and Limit.WRITES in hard
        and os.geteuid() == 0
        and (owner := root.stat().st_uid) != 0
    ):
        return f"{where}, where root cannot access the files of user {owner}. Run the worker as user {owner}"
    return ""
