"""The script of the executor `scripted`: what happens in each iteration."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from tightloop.executor.model import ExecutorStatus
from tightloop.executor.usage import Usage
from tightloop.value import Document


class FileText(Document):
    """A file and what to put into it."""

    path: str
    text: str = ""


class FilePath(Document):
    """A file or a folder."""

    path: str


class Orphan(Document):
    """A process that leaves session, parent and environment behind, and edits the tree later."""

    path: str
    text: str = "late"
    after_s: float = Field(default=5.0, ge=0)


class ScriptedUsage(Usage):
    """What the step pretends to have cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


Texts = Annotated[tuple[FileText, ...], BeforeValidator(_as_list)]
Paths = Annotated[tuple[FilePath, ...], BeforeValidator(_as_list)]


class ScriptStep(Document):
    """What happens in one iteration: the actions in the order of the fields, then the ending."""

    write: Texts = ()
    append: Texts = ()
    delete: Paths = ()
    """Files or folders; one that does not exist is ignored."""
    run: tuple[str, ...] = ()
    """Program and arguments. Its exit code is noted and does not change the ending."""
    orphan: Orphan | None = None
    stall: str | None = None
    """A program prints this text, which may be empty, and then waits until it is ended."""
    sleep: float = Field(default=0.0, ge=0)
    """Seconds."""
    crash: bool | Literal["before"] = False
    """After the actions, or before them, the worker's process kills itself, once for each delivery."""
    hang: bool = False
    """After the actions nothing happens until cancel or wall limit."""
    status: ExecutorStatus = ExecutorStatus.COMPLETED
    summary: str = ""
    error: str = ""
    limit_tries: int = Field(default=0, ge=0)
    """Number of tries of the iteration that end with `limit_hit` first, before any action."""
    retry_after_s: float | None = Field(default=None, ge=0)
    evidence: str = ""
    usage: ScriptedUsage | None = None


class Script(Document):
    """A whole script."""

    steps: tuple[ScriptStep, ...] = Field(min_length=1)
    repeat: bool = False
    effects_outside: str = ""
    """What it pretends to change outside the working tree."""
