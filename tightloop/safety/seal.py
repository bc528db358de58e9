"""Authentication of messages and their senders."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tightloop.errors import InvalidRequestError
from tightloop.value import Value

START_SECONDS = 600
"""Number of seconds for which a signed start is valid, so that a copy of it cannot restart a closed workflow."""
CHILD_START_SECONDS = 3_600
"""Number of seconds for which a start by a workflow is valid. A server restart may delay it."""
OPERATOR_SECONDS = 600
"""Number of seconds for which a message from Temporal's UI or CLI is valid.

The server may have to wait for a worker.
"""
SKEW_SECONDS = 5
"""Tolerance for clock differences between hosts, in seconds."""
REMEMBERED = 200
"""Number of messages that each workflow remembers, so that it can detect copies. Older messages are refused."""
_RESEND_HINT = "Send the request again with tightloop, or through the codec endpoint that `tightloop up` prints"


class SealKind(StrEnum):
    """The issuer and purpose of a seal."""

    START = "start"
    """Issued by a client to start a workflow. It is also used for the workflow's memo and summary."""
    MESSAGE = "message"
    """Issued by a client for a signal or an update."""
    OPERATOR = "operator"
    """Issued by the codec server for Temporal's UI or CLI, to start, signal or update any workflow."""
    WORKFLOW = "workflow"
    """Issued by a workflow for results, child workflow starts, continued runs and signals to other workflows."""
    INPUT = "input"
    """Issued by a workflow for the input of an activity."""
    RESULT = "result"
    """Issued by an activity for its workflow."""
    HEARTBEAT = "heartbeat"
    """Issued by an activity for its next attempt."""


_KINDS = {kind.value: kind for kind in SealKind}


class Seal(NamedTuple):
    """Contents of a verified seal."""

    kind: SealKind
    nonce: str
    """Unique id of the seal."""
    issued: int
    """Time at which the seal was issued according to the sender's clock, in Unix milliseconds."""

    @property
    def text(self) -> str:
        return f"{self.kind.value} {self.issued} {self.nonce}"


def read_seal(text: str) -> Seal | None:
    """Parse a seal. Return None if the text is not a valid seal."""
    parts = text.split(" ")
    if len(parts) != 3 or parts[0] not in _KINDS or not parts[1].isdecimal():
        return None
    # Cut, because int() raises for numbers of more than 4300 digits.
    return Seal(_KINDS[parts[0]], parts[2], int(parts[1][:16]))


@dataclass(frozen=True)
class SealedMessage:
    """The argument of a signal or an update, with its seal."""

    content: Any
    seal: Seal


@dataclass(frozen=True)
class RefusedPayload:
    """A placeholder for a result that is not authentic."""

    reason: str


class MessageLog(Value):
    """A log of the messages that a workflow has accepted.

    The log is used to detect replayed messages. Later runs inherit the log.
    """

    since: int = 0
    """Time in Unix milliseconds. Messages that were issued before it are refused."""
    nonces: tuple[tuple[int, str], ...] = ()
    """Issue times and nonces of the last messages."""

    def refusal(self, seal: Seal, now: int) -> str:
        """Return the reason for refusing a message, or "" if the message is accepted.

        Args:
            seal: the message's seal.
            now: the workflow's time, in Unix milliseconds.
        """
        if seal.kind not in (SealKind.MESSAGE, SealKind.OPERATOR):
            return f"its seal has the kind {seal.kind.value}, but a message requires the kind message"
        if any(seal.nonce == nonce for _, nonce in self.nonces):
            return f"it is a copy of a message that was already accepted. {_RESEND_HINT}"
        if seal.issued < self.since:
            return f"it is older than messages that were accepted later. {_RESEND_HINT}"
        # An operator's seal is valid for every workflow, and others do not remember its nonce: only time stops a copy.
        if seal.kind is SealKind.OPERATOR and abs(now - seal.issued) > OPERATOR_SECONDS * 1000:
            return (
                f"it was sealed {abs(now - seal.issued) // 1000} s ago, but the limit is {OPERATOR_SECONDS} s. "
                f"{_RESEND_HINT}"
            )
        return ""

    def with_message(self, seal: Seal) -> "MessageLog":
        """Return a copy of the log that includes another accepted message."""
        # By time of issue, not of arrival, because `since` is compared with the time of issue.
        nonces = sorted((*self.nonces, (seal.issued, seal.nonce)))
        if len(nonces) <= REMEMBERED:
            return self.evolve(nonces=tuple(nonces))
        # Copies of dropped messages cannot be recognised any more, so everything older than the rest is refused.
        return self.evolve(nonces=tuple(nonces[-REMEMBERED:]), since=nonces[-REMEMBERED][0])


def check_start(seal: Seal, *, started: int, is_child: bool, is_continued: bool) -> None:
    """Raise an error if a start has expired or if its seal was made for another purpose.

    Args:
        seal: the seal of the start's payload.
        started: time at which Temporal accepted the start, in Unix milliseconds.
        is_child: whether another workflow started the workflow.
        is_continued: whether the workflow continues another run. Only Temporal can set this.

    Raises:
        InvalidRequestError: the start is refused.
    """
    life = START_SECONDS
    if seal.kind is SealKind.WORKFLOW:
        if is_continued:
            return
        life = CHILD_START_SECONDS
    if seal.kind not in (SealKind.START, SealKind.OPERATOR) and not (seal.kind is SealKind.WORKFLOW and is_child):
        raise InvalidRequestError(
            f"the input was rejected: its seal is of kind {seal.kind.value}, but starting a workflow requires a "
            f"seal of kind 'start'. {_RESEND_HINT}"
        )
    if abs(started - seal.issued) > life * 1000:
        raise InvalidRequestError(
            "the input was rejected because its seal and the start of the workflow are "
            f"{abs(started - seal.issued) // 1000} s apart. The limit is {life} s. Check that the clocks on the "
            "hosts agree, or start the run again"
        )


CHOSEN_CHARACTERS = 100
"""Maximum length of an id that a person chooses."""
LONGEST = 200
"""Maximum length of any id. The ids of child workflows of plan steps are longer than those chosen by people."""
# An id becomes part of a git ref (refs/tightloop/<id>/<n>), whose rules are stricter than Temporal's.
_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-]))*")


def is_id(text: str, longest: int = LONGEST) -> bool:
    """Return whether a text is a valid ID for an episode or a plan."""
    # git refuses refs that end with .lock.
    return len(text) <= longest and _ID.fullmatch(text) is not None and not text.endswith(".lock")


def check_id(text: str) -> None:
    """Raise an error if the ID of an episode or a plan is invalid.

    Raises:
        InvalidRequestError: the ID looks like a path, or git would misinterpret it.
    """
    if not is_id(text):
        raise InvalidRequestError(
            f"{text[:LONGEST]!r} is not a valid episode or plan id: use only a-z, A-Z, 0-9, '-', '_' and '.' "
            "(not two in a row), and start with a letter or digit. Choose another id"
        )


class Role(StrEnum):
    """The role of a person. Each role includes the permissions of the roles before it."""

    VIEWER = "viewer"
    """May read everything."""
    AGENT = "agent"
    """Works for an episode through MCP.

    It may also send reports to the planner and request a pause, but it cannot make decisions.
    """
    OPERATOR = "operator"
    """May also start and control runs, and answer questions that block them."""
    APPROVER = "approver"
    """May also give approvals: gates, policies, and questions that require a role."""
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(other)


class Person(Value):
    """An authenticated person or service."""

    name: str
    """Name that is recorded as `by` in answers, approvals and the timeline."""
    role: Role = Role.VIEWER
    projects: tuple[str, ...] = ()
    """Visible projects. Empty means all projects."""
    episode: str = ""
    """An agent's episode. If empty, it is the only open episode in the agent's projects."""

    def sees(self, project: str) -> bool:
        return not self.projects or project in self.projects
