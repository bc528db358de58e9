"""The port of the check runner."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pydantic import Field

from tightloop.episode.check import Check
from tightloop.value import Value


class CommandResult(Value):
    """Result of a finished command."""

    exit_code: int | None
    """None when it was killed for its time limit or could not start."""
    timed_out: bool = False
    duration_s: float = 0.0
    cpu_s: float | None = None
    output: bytes = Field(default=b"", repr=False)
    """Both streams as they came, bounded; the end is kept."""
    sandbox: str = ""
    """The sandbox, such as `bubblewrap`."""
    not_enforced: tuple[str, ...] = ()
    """Limits that nothing held in this run."""


class CheckRunner(Protocol):
    """Runs one command of the definition of done."""

    def run(
        self, check: Check, root: Path, *, cancelled: Callable[[], bool], started: Callable[[int], None]
    ) -> CommandResult:
        """Run the command in `root`; its whole process tree is gone on return.

        Args:
            check: the command and its time limit.
            root: working folder.
            cancelled: asked at least once a second; when True the process tree is ended.
            started: told the pid of the command.
        """
        ...
