"""A schedule: a request, the scripted results of all activities, and the messages and restarts with their moments.

A schedule is plain JSON. It names calls, messages and results in words of its own, which `product` translates.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Kind = Literal["episode", "plan", "project", "coder"]


class Data(BaseModel):
    """An immutable value without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Act(Data):
    """Something that happens at a moment."""

    do: Literal["send", "restart", "edit"]
    """A message, a restart of the worker of the workflows, or a person's edit of a file."""
    name: str = ""
    """Of the message, or of the file."""
    value: Any = None
    """Argument of the message; where a choice is drawn, a number from 0 to 1."""
    to: Literal["self", "root"] = "self"
    """The workflow that makes the call, or the one that was started."""


class Moment(Data):
    """Acts during one call of an activity; each is processed by the workflow before the call goes on."""

    at: str
    """The call and its number, from 1: `work#2`."""
    after: bool = False
    """After the effect of the call."""
    acts: tuple[Act, ...]


class Reply(Data):
    """A person's reaction to a question, once nothing else can happen."""

    do: Literal["answer", "silence", "act"]
    """`silence` lets the question time out, `act` only carries the acts out."""
    pick: float = 0.0
    """Which option, from 0 to 1."""
    before: tuple[Act, ...] = ()
    text: str = ""


class Schedule(Data):
    """Everything that decides a run."""

    kind: Kind
    seed: int
    request: dict[str, Any]
    script: dict[str, tuple[dict[str, Any], ...]] = {}
    """Results by the name of the call; a call beyond the last one succeeds."""
    moments: tuple[Moment, ...] = ()
    replies: tuple[Reply, ...] = ()
    """To the questions in their order; a question beyond the last one is answered with `cancel`."""
    at_start: tuple[Act, ...] = ()
    """Signals that are there before the first task."""
    at_continue: tuple[Act, ...] = ()
    """Signals that arrive while a run is being followed by another one, one for each time."""
    cached: bool = True
    """False: the worker replays the history in every task."""
    reopen: str = ""
    """Checkpoint from which a closed episode is opened again."""


class Asked(Data):
    """A question, and what became of it."""

    of: str = ""
    """Place of the workflow that asked; empty: the one that was started."""
    kind: str
    options: tuple[str, ...]
    blocks: bool
    replied: str
    """Name of an option, `silence` or `act`."""


class Sent(Data):
    """A message, and whether it was taken."""

    name: str
    taken: str


class Observation(Data):
    """What a run led to, in the vocabulary of the schedules."""

    outcome: str
    code: str = ""
    questions: tuple[Asked, ...] = ()
    sent: tuple[Sent, ...] = ()
    spent: dict[str, float] = {}
    timeline: tuple[str, ...] = ()
    parts: dict[str, str] = {}
    """Outcome by step, task or gate."""
    tree: dict[str, str] = {}
    """Final content by path."""
    deliveries: tuple[str, ...] = ()
    """Orders that had an effect, in their order; where several run at the same time, sorted."""
    undone: tuple[str, ...] = ()
    """Steps that were undone, in their order."""
    proven: bool = False
    """A proof, or a person's acceptance, belongs to the final tree."""
    broken: tuple[str, ...] = ()
    """Invariants that did not hold while it ran."""


class Recording(Data):
    """A schedule with what it led to on the commit that recorded it."""

    schedule: Schedule
    observation: Observation
