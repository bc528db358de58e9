"""Authentication of messages, and who sent them."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tightloop.errors import InvalidRequestError
from tightloop.value import Value

START_SECONDS = 600
"""A start is taken within this time after it was signed, so that a copy does not start a closed workflow again."""
CHILD_START_SECONDS = 3_600
"""The same for a start by a workflow, which a restart of the server may delay."""
OPERATOR_SECONDS = 600
"""A message that Temporal's UI or CLI sends is taken within this time; the server may wait for a worker."""
SKEW_SECONDS = 5
"""Clocks of hosts differ."""
REMEMBERED = 200
"""Messages of one workflow that are told from copies one by one; what is older than these is refused."""
_ANEW = "Send it again with tightloop, or with the codec endpoint that `tightloop up` prints"


class SealKind(StrEnum):
    """Who sealed a payload, and what for."""

    START = "start"
    """A client, to start a workflow; also its memo and summary."""
    MESSAGE = "message"
    """A client, in a signal or an update."""
    OPERATOR = "operator"
    """The codec server, for Temporal's UI or CLI: a start, a signal or an update of any workflow."""
    WORKFLOW = "workflow"
    """A workflow: results, starts of children, the run that follows, signals to other workflows."""
    INPUT = "input"
    """A workflow, for an activity."""
    RESULT = "result"
    """An activity, for its workflow."""
    HEARTBEAT = "heartbeat"
    """An activity, for its next attempt."""


_KINDS = {kind.value: kind for kind in SealKind}


class Seal(NamedTuple):
    """What a checked seal says."""

    kind: SealKind
    nonce: str
    """Unique."""
    issued: int
    """When, in milliseconds since 1970, by the clock of the sender."""

    @property
    def text(self) -> str:
        return f"{self.kind.value} {self.issued} {self.nonce}"


def read_seal(text: str) -> Seal | None:
    """Return the seal of its text; None where it is none."""
    parts = text.split(" ")
    if len(parts) != 3 or parts[0] not in _KINDS or not parts[1].isdecimal():
        return None
    return Seal(_KINDS[parts[0]], parts[2], int(parts[1][:16]))


@dataclass(frozen=True)
class SealedMessage:
    """The argument of a signal or an update, with its seal."""

    content: Any
    seal: Seal


@dataclass(frozen=True)
class RefusedPayload:
    """Stands for a result that is not authentic."""

    reason: str


class Heard(Value):
    """Which messages a workflow has taken, so that a copy of one is refused. The runs that follow need it."""

    since: int = 0
    """Messages issued before are refused, in milliseconds since 1970."""
    nonces: tuple[tuple[int, str], ...] = ()
    """When the last ones were issued, and their nonces."""

    def refusal(self, seal: Seal, now: int) -> str:
        """Return why a message is refused; empty where it is taken.

        Args:
            seal: that of the message.
            now: the workflow's time, in milliseconds since 1970.
        """
        if seal.kind not in (SealKind.MESSAGE, SealKind.OPERATOR):
            return f"it was sealed as {seal.kind.value}, not as a message"
        if any(seal.nonce == nonce for _, nonce in self.nonces):
            return f"it is a copy of one that was taken before. {_ANEW}"
        if seal.issued < self.since:
            return f"it is older than what was taken since. {_ANEW}"
        if seal.kind is SealKind.OPERATOR and abs(now - seal.issued) > OPERATOR_SECONDS * 1000:
            return f"it was sealed {abs(now - seal.issued) // 1000} s ago; {OPERATOR_SECONDS} are allowed. {_ANEW}"
        return ""

    def with_message(self, seal: Seal) -> "Heard":
        """Return what is known after a message was taken."""
        nonces = sorted((*self.nonces, (seal.issued, seal.nonce)))
        if len(nonces) <= REMEMBERED:
            return self.evolve(nonces=tuple(nonces))
        return self.evolve(nonces=tuple(nonces[-REMEMBERED:]), since=nonces[-REMEMBERED][0])


def check_start(seal: Seal, *, started: int, is_child: bool, is_continued: bool) -> None:
    """Refuse a start whose seal was made for something else, or long ago.

    Args:
        seal: that of the start's payload.
        started: when Temporal took the start, in milliseconds since 1970.
        is_child: another workflow started it.
        is_continued: it follows another run; only Temporal itself can say so.

    Raises:
        InvalidRequestError: the start is refused.
    """
    life = START_SECONDS
    if seal.kind is SealKind.WORKFLOW:
        if is_continued:
            return
        life = CHILD_START_SECONDS
    if seal.kind not in (SealKind.START, SealKind.OPERATOR) and not (seal.kind is SealKind.WORKFLOW and is_child):
        raise InvalidRequestError(f"the input is refused: it was sealed as {seal.kind.value}, not as a start. {_ANEW}")
    if abs(started - seal.issued) > life * 1000:
        raise InvalidRequestError(
            f"the input is refused: it was sealed {abs(started - seal.issued) // 1000} s before or after the start; "
            f"{life} are allowed. Compare the clocks of the hosts, or start it again"
        )


CHOSEN_CHARACTERS = 100
"""Bound of an id that a person chooses."""
LONGEST = 200
"""Ids of what the steps of plans start are longer."""
# An id becomes part of a git ref (refs/tightloop/<id>/<n>), whose rules are stricter than Temporal's.
_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-]))*")


def is_id(text: str, longest: int = LONGEST) -> bool:
    """Return whether a text is the id of an episode or a plan."""
    return len(text) <= longest and _ID.fullmatch(text) is not None and not text.endswith(".lock")


def check_id(text: str) -> None:
    """Refuse what is not the id of an episode or a plan.

    Raises:
        InvalidRequestError: it could be taken for a path, or git would misread it.
    """
    if not is_id(text):
        raise InvalidRequestError(
            f"{text[:LONGEST]!r} cannot be the id of an episode or a plan: it needs a-z, A-Z, 0-9, '-', '_' or "
            "single '.', starting with a letter or digit. Start it under another id"
        )


APPROVALS = frozenset({"gate", "policy"})
"""Kinds of questions that ask for an approval."""


class Role(StrEnum):
    """What a person may do; each role includes those before it."""

    VIEWER = "viewer"
    """Reads."""
    AGENT = "agent"
    """Works for an episode: also reports to the planner and asks for a pause, by MCP alone; decides nothing."""
    OPERATOR = "operator"
    """Starts and steers, and answers questions that keep an episode or plan from going on."""
    APPROVER = "approver"
    """Also answers what asks for an approval: gates, policies, and questions that name who may answer."""
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(other)


class Person(Value):
    """A person or a service that proved who it is."""

    name: str
    """Stands as `by` in answers, approvals and the timeline."""
    role: Role = Role.VIEWER
    projects: tuple[str, ...] = ()
    """The projects that exist for this person; empty: all."""
    episode: str = ""
    """Of an agent: the episode that it works for; empty: the only open one in its projects."""

    def sees(self, project: str) -> bool:
        return not self.projects or project in self.projects


def role_for(kind: str, role: str) -> Role:
    """Return the role that an answer needs: an approval is not given by who asked for the work.

    Args:
        kind: of the question.
        role: who may answer it, in the words of the plan; empty: anybody.
    """
    return Role.APPROVER if role or kind in APPROVALS else Role.OPERATOR
