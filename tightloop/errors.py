"""Errors of the library and of its activities.

    TightloopError
    ├── InvalidRequestError      the caller's input is invalid
    │   ├── MessageError         a plan message or request lacks a section
    │   ├── PlanError            a plan's text is invalid; lists all problems with positions
    │   ├── ExpressionError      an expression or a reference of a plan is invalid
    │   ├── ReferenceMissingError a reference in a plan has no value
    │   ├── WrongStateError      the run's state does not allow the operation
    │   ├── IdTakenError         the id is or was used by another run
    │   └── SettingsError        a setting is unknown or invalid
    ├── WorkspaceError           the workspace cannot be used in its current state
    │   ├── WorkspaceElsewhereError  it is on another host, or in another state home
    │   ├── FencedError          another host has taken the episode over
    │   ├── NotARepositoryError
    │   ├── UntrustedProgramError  the run could modify a program that we start
    │   └── WorkspaceBusyError   another open episode uses it
    ├── WorkspaceLockedError     retryable: an earlier attempt still holds the workspace
    ├── GitError                 retryable: a git command failed
    ├── ArtifactError
    │   ├── ArtifactMissingError
    │   └── ArtifactCorruptError
    ├── StorageFullError         the disk is full; a person has to free space
    ├── PlannerError             the model service rejects the request
    ├── PlannerUnavailableError  retryable: the model service is busy or down
    ├── ExecutorError            the executor cannot be started as configured
    ├── ProofError               a proof is damaged, or does not prove the claim
    ├── EpisodeNotFoundError
    ├── ProjectNotFoundError
    └── ServiceUnavailableError  retryable: Temporal, a worker or the database does not respond

Each message describes the failure with the value that caused it, and then the next step. Each class defines whether
the error is retryable, and its HTTP status.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Self

CANDIDATES_SHOWN = 8
PROBLEMS_SHOWN = 20


class Position(NamedTuple):
    """Position in text, starting at 1. Line 0 means that the problem has no position."""

    line: int = 0
    column: int = 0


NOWHERE = Position()


class Severity(StrEnum):
    """Severity of a problem. A plan with errors cannot run."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Error or warning about a text, with its position."""

    message: str
    """Description that includes the value, without a final period."""
    suggestion: str = ""
    """Suggested fix, as a sentence without a final period."""
    severity: Severity = Severity.ERROR
    position: Position = NOWHERE
    code: str = ""
    """Stable name of the rule, such as `cycle`."""
    file: str = ""
    """Name of the text, as passed by the caller."""

    @property
    def is_error(self) -> bool:
        """True if this problem prevents the plan from running."""
        return self.severity is Severity.ERROR

    def __str__(self) -> str:
        """Format the problem as `file:line:column: message. suggestion`.

        Unknown parts are omitted.
        """
        location = [self.file] if self.file else []
        location += [str(number) for number in self.position] if self.position.line else []
        prefix = "warning: " if self.severity is Severity.WARNING else ""
        parts = [part.rstrip(".") for part in (self.message, self.suggestion) if part]
        # A suggestion such as `Did you mean 'x'?` already ends its sentence.
        sentences = " ".join(part if part.endswith("?") else f"{part}." for part in parts)
        return f"{':'.join(location)}{': ' if location else ''}{prefix}{sentences}"


def followed_by(sentence: str, more: str) -> str:
    """Join two sentences. The first sentence may end with a question mark."""
    return f"{sentence}{'' if sentence.endswith('?') else '.'} {more}"


def did_you_mean(misspelt: str, candidates: Iterable[str]) -> str:
    """Suggest a correction for a misspelled word.

    The suggestion is the closest known word, or up to `CANDIDATES_SHOWN` candidates.
    """
    # Most importers of this module never misspell a word, so difflib is imported on first use.
    from difflib import get_close_matches

    names = sorted(set(candidates))
    # `get_close_matches` compares with every name: 20 000 take 0.1 s.
    close = get_close_matches(misspelt, names, n=1, cutoff=0.6) if len(names) <= 20_000 else []
    if close:
        return f"Did you mean '{close[0]}'?"
    if not names:
        return ""
    more = f" and {len(names) - CANDIDATES_SHOWN} more" if len(names) > CANDIDATES_SHOWN else ""
    # The nearest first, because only the start of a long list is shown.
    nearest = (
        get_close_matches(misspelt, names, n=CANDIDATES_SHOWN, cutoff=0.0)
        if len(more) > 0 and len(names) <= 1_000
        else []
    )
    suggestions = [*nearest, *(name for name in names if name not in nearest)][:CANDIDATES_SHOWN]
    return f"Known: {', '.join(suggestions)}{more}"


class TightloopError(Exception):
    """Base class of all errors that tightloop raises."""

    retryable: ClassVar[bool] = False
    status: ClassVar[int] = 500
    """HTTP status."""
    code: ClassVar[str] = "failed"
    """Stable name of the error kind in HTTP API responses."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def details(self) -> dict[str, Any]:
        """Additional JSON fields for programs."""
        return {}


class InvalidRequestError(TightloopError):
    """The caller's input is invalid. The message names the field and shows a valid value."""

    status, code = 422, "invalid-request"


class MessageError(InvalidRequestError):
    """A plan message or plan request does not follow the template."""


class PlanError(InvalidRequestError):
    """A plan's text cannot be parsed or is not valid.

    Attributes:
        problems: all problems, ordered by position.
    """

    code = "invalid-plan"

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems

    @property
    def details(self) -> dict[str, Any]:
        """Return the first `PROBLEMS_SHOWN` problems with their positions."""
        return {
            "errors": [
                {
                    "message": problem.message,
                    "suggestion": problem.suggestion,
                    "code": problem.code,
                    "line": problem.position.line,
                    "column": problem.position.column,
                }
                for problem in self.problems[:PROBLEMS_SHOWN]
            ]
        }


class ExpressionError(InvalidRequestError):
    """An expression or reference in a plan is invalid or cannot be evaluated.

    Attributes:
        problem: description of the problem.
        column: position in the text, counted from 1.
        suggestion: suggested replacement, or "" if there is none.
    """

    def __init__(self, problem: str, column: int = 1, suggestion: str = "") -> None:
        advice = f". {suggestion[0].upper()}{suggestion[1:]}" if suggestion else ""
        super().__init__(f"column {column}: {problem}{advice}")
        self.problem = problem
        self.column = column
        self.suggestion = suggestion


class ReferenceMissingError(InvalidRequestError):
    """A reference in a plan has no value.

    The step was skipped, does not exist, or does not have this output.
    """


class WrongStateError(InvalidRequestError):
    """The run's current state does not allow the operation.

    Attributes:
        state: current state.
        possible: operations that the state allows. Empty if there are none, or if they are unknown.
    """

    status, code = 409, "wrong-state"

    def __init__(self, message: str, state: str, possible: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.state = state
        self.possible = possible

    @property
    def details(self) -> dict[str, Any]:
        """Return the current state and the operations that are possible in that state."""
        return {"state": self.state, "possible": list(self.possible)}


class IdTakenError(InvalidRequestError):
    """The ID is already in use, or was used before, by another episode or plan."""

    status, code = 409, "id-taken"


class SettingsError(InvalidRequestError):
    """A setting is unknown or invalid."""

    # Over HTTP the settings are the server's own, so the caller is not to blame.
    status, code = 503, "misconfigured"


class WorkspaceError(TightloopError):
    """The workspace cannot be used in its current state."""

    status, code = 409, "workspace"


class WorkspaceElsewhereError(WorkspaceError):
    """The workspace belongs to another host or another state home.

    Attributes:
        homes: task queues of the hosts that may own the workspace. Empty if the owner is known.
    """

    def __init__(self, message: str, homes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.homes = homes


class FencedError(WorkspaceError):
    """Another host has taken over the episode. This host must not deliver any more changes or copy data."""


class NotARepositoryError(WorkspaceError):
    """The workspace is not the root of a git working tree."""


class UntrustedProgramError(WorkspaceError):
    """A program that runs outside the sandbox is in a location that sandboxed commands can write to."""


class WorkspaceBusyError(WorkspaceError):
    """Another open episode uses the same working tree."""


class WorkspaceLockedError(TightloopError):
    """The workspace is still locked by an earlier attempt on this host."""

    retryable, status, code = True, 409, "workspace"


class GitError(TightloopError):
    """A git command failed or timed out."""

    # Often another process holds a lock file, which is gone at the next attempt.
    retryable = True


class ArtifactError(TightloopError):
    """An artifact cannot be read."""


class ArtifactMissingError(ArtifactError):
    """The store does not contain the artifact."""

    status, code = 404, "not-here"


class ArtifactCorruptError(ArtifactError):
    """The stored bytes do not match their hash."""


class StorageFullError(TightloopError):
    """The disk is full, so the artifact was not written.

    The error is not retryable. A person is asked immediately.
    """

    status, code = 507, "storage-full"

    @classmethod
    def of(cls, path: object, cause: object, writing: str = "") -> Self:
        """Return the error for a full disk or an exhausted quota.

        Args:
            path: file or folder on the full disk.
            cause: operating system error, or its text.
            writing: phrase that follows "while" in the message, such as `storing 210 bytes`.
        """
        activity = f" while {writing}" if writing else ""
        return cls(f"the disk that contains {path} is full{activity}. Free up space on it, then resume. Cause: {cause}")


class PlannerError(TightloopError):
    """The model service rejected the request because of the API key, quota, model name or content."""


class PlannerUnavailableError(TightloopError):
    """The model service is busy or down.

    Attributes:
        retry_after: delay requested by the service, if any.
    """

    retryable, status, code = True, 503, "unavailable"

    def __init__(self, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ExecutorError(TightloopError):
    """The executor cannot be started as configured."""


class ProofError(TightloopError):
    """A proof cannot be read or does not prove the claim."""

    status, code = 409, "no-proof"


class EpisodeNotFoundError(TightloopError):
    """There is no episode with this id."""

    status, code = 404, "not-found"


class ProjectNotFoundError(TightloopError):
    """There is no project with this id."""

    status, code = 404, "not-found"


class ServiceUnavailableError(TightloopError):
    """Temporal, the database or the workers on the task queue are not responding."""

    retryable, status, code = True, 503, "unavailable"
