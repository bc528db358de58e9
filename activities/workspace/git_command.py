"""Runs git: bounded in time and output, without prompts, hooks, transports or settings of the user and the system.

The configuration beside the objects that it works on is obeyed: it must be ours (see `plain_git`).
"""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from tightloop.errors import GitError, StorageFullError, WorkspaceError
from tightloop.host.programs import find_trusted, trusted_path

COMMAND_TIMEOUT = timedelta(seconds=120)
CLEANUP_TIMEOUT = timedelta(seconds=5)
STDERR_LIMIT = 1_000
KEPT_ENVIRONMENT = ("TMPDIR",)
"""Nothing else is inherited: neither the worker's secrets, nor a home with settings, nor a `GIT_DIR` of a hook."""

# LC_ALL: error texts are compared in English. Optional locks would make the user wait for us. Without literal
# pathspecs a file named `*.py` would stand for others. No object is ever fetched, by whatever transport.
CLOSED = {
    "LC_ALL": "C",
    "HOME": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_EDITOR": "false",
    "GIT_SSH_COMMAND": "false",
}
# Hooks and fsmonitor are programs that the repository names; a gc in the background would outlive its command.
FIXED_SETTINGS = (
    "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false", "-c", "gc.auto=0",
    "-c", "maintenance.auto=false",
    "-c", f"core.attributesFile={os.devnull}", "-c", f"core.excludesFile={os.devnull}", "-c", "core.quotePath=false",
    "-c", "submodule.recurse=false", "-c", "diff.ignoreSubmodules=all", "-c", "apply.whitespace=nowarn",
)  # fmt: skip
_NO_ROOM = ("No space left on device", "Disk quota exceeded")


class GitTimeoutError(GitError):
    """A git command ran out of time and was killed."""


class Outcome(NamedTuple):
    """Result of a git command."""

    code: int
    out: bytes
    error: str


@dataclass(frozen=True)
class Git:
    """Git in one folder, with a closed environment."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    """In addition to the allow-listed ones."""
    timeout: timedelta = COMMAND_TIMEOUT
    """Wall time after which a command and its children are killed."""
    inherit: tuple[int, ...] = ()
    """File descriptors that its processes keep open (the lock of the tree)."""

    def run(self, *arguments: str, stdin: bytes = b"", timeout: timedelta | None = None) -> bytes:
        """Return the output of a command.

        Raises:
            GitError: it failed or ran out of time. Retryable.
            StorageFullError: the disk is full.
        """
        outcome = self.attempt(*arguments, stdin=stdin, timeout=timeout)
        if outcome.code != 0:
            if any(words in outcome.error for words in _NO_ROOM):
                raise StorageFullError(
                    f"git {arguments[0]} found no room in {self.folder}: free some space, then resume"
                )
            raise GitError(f"git {arguments[0]} failed in {self.folder} (exit code {outcome.code}): {outcome.error}")
        return outcome.out

    def attempt(self, *arguments: str, stdin: bytes = b"", timeout: timedelta | None = None) -> Outcome:
        """Return what a command answered, whether it failed or not."""
        limit = timeout or self.timeout
        process = self._start(arguments, stderr=subprocess.PIPE)
        try:
            out, error = process.communicate(stdin, timeout=limit.total_seconds())
        except subprocess.TimeoutExpired:
            raise GitTimeoutError(
                f"git {arguments[0]} in {self.folder} took longer than {limit.total_seconds():g} s and was ended. "
                "Ignore big generated folders in .gitignore, or raise the time limit for git"
            ) from None
        finally:
            _end(process)
        return Outcome(process.returncode, out, error.decode("utf-8", "replace").strip()[-STDERR_LIMIT:])

    def head(self, *arguments: str, limit_bytes: int, timeout: timedelta) -> tuple[bytes, bool]:
        """Return the beginning of the output, and whether that is all of it (in time, and without failing)."""
        deadline = time.monotonic() + timeout.total_seconds()
        process = self._start(arguments, stderr=subprocess.DEVNULL)
        out, ended = b"", False
        try:
            out, ended = _read(process, limit_bytes, deadline)
            if ended:
                process.wait(max(0.01, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            _end(process)
        return out, ended and process.returncode == 0

    def within(self, variables: Mapping[str, str]) -> "Git":
        """Return the same git with more environment variables."""
        return replace(self, variables={**self.variables, **variables})

    def _start(self, arguments: tuple[str, ...], *, stderr: int) -> "subprocess.Popen[bytes]":
        """Start git.

        Raises:
            WorkspaceError: git is not installed, or the folder is not there.
            UntrustedProgramError: git lies in the working tree, or where another run can write.
        """
        kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
        program = find_trusted("git")
        if program is None:
            raise WorkspaceError("git is not installed on this host. Install git 2.30 or newer")
        tree = Path(self.variables.get("GIT_WORK_TREE", self.folder))
        program.refuse_within((tree,))
        try:
            return subprocess.Popen(
                program.command(*FIXED_SETTINGS, *arguments),
                cwd=self.folder,
                env={**kept, "PATH": trusted_path(tree), **CLOSED, **self.variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                # A group of its own: git starts helpers, and all of them are ended with it.
                start_new_session=True,
                pass_fds=self.inherit,
            )
        except FileNotFoundError:
            if self.folder.is_dir():
                raise
            raise WorkspaceError(f"the folder {self.folder} does not exist") from None


def split_z(output: bytes) -> list[bytes]:
    """Split the output of a command run with `-z`."""
    return [part for part in output.split(b"\0") if part]


def shown_paths(paths: Sequence[bytes], most: int) -> str:
    """Return the first paths for a sentence, and how many more there are."""
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(path.decode("utf-8", "backslashreplace") for path in paths[:most]) + more


def _read(process: "subprocess.Popen[bytes]", limit_bytes: int, deadline: float) -> tuple[bytes, bool]:
    """Read until the end (True), the limit or the deadline (False)."""
    stream = process.stdout
    assert stream is not None
    collected = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while len(collected) <= limit_bytes:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return bytes(collected), False
            chunk = os.read(stream.fileno(), 1 << 16)
            if not chunk:
                return bytes(collected), True
            collected += chunk
    return bytes(collected[:limit_bytes]), False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Leave neither the process, nor a child of it, nor an open pipe."""
    if process.poll() is None:
        # The group, not the process: a helper of git may hold the pipes open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(CLEANUP_TIMEOUT.total_seconds())
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
