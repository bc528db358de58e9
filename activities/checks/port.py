"""The port of the check runner."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, kw_only=True)
class CheckView:
    """What a check finds that is not as usual: another tree at the same place, and who watches it."""

    content: Path | None = None
    """The folder that lies at the working folder's path; None: that folder itself."""
    mounts: tuple[tuple[Path, Path], ...] = ()
    """Read-only: where it lies, and where the check finds it."""
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class CheckRunner(Protocol):
    """Runs one command of the definition of done."""

    def run(
        self,
        check: Check,
        root: Path,
        *,
        cancelled: Callable[[], bool],
        started: Callable[[int], None],
        view: CheckView = CheckView(),
    ) -> CommandResult:
        """Run the command in `root`; its whole process tree is gone on return.

        Args:
            check: the command and its time limit.
            root: working folder.
            cancelled: asked at least once a second; when True the process tree is ended.
            started: told the pid of the command.
            view: what the command finds that is not as usual.
        """
        ...
