"""What waits for a person in the workflows that the steps of a plan started, as these tell it."""

from typing import Any

from pydantic import ValidationError

from tightloop.errors import InvalidRequestError
from tightloop.value import Value, first_problem, shorten

WAITS_LIMIT = 20
"""Waits that one workflow tells of, its own and those further within."""
REASON_CHARACTERS = 300
CHILD_WAITS = "child_waits"
"""The signal that a workflow sends to the plan around it."""


class ChildWait(Value):
    """One wait for a person in a workflow that a step started, or in one further within."""

    workflow_id: str
    """Where the answer goes to."""
    kind: str
    """A `PauseKind`; `approval` where steps wait for a yes."""
    reason: str = ""
    """At most `REASON_CHARACTERS`."""
    gate: str = ""
    """In a plan: the step that waits there."""
    is_plan: bool = False
    """It is a plan, not an episode."""
    step: str = ""
    """The step of the plan that shows it."""

    @property
    def where(self) -> str:
        """Who waits, such as `nightly.build.1 at release`."""
        return f"{self.workflow_id} at {self.gate}" if self.gate else self.workflow_id

    @property
    def what(self) -> str:
        """What it waits for, such as `approval: may it go on?`."""
        reason = " ".join(self.reason.split())
        return f"{self.kind}: {reason}" if reason else self.kind

    @property
    def command(self) -> str:
        """The command that shows how to answer."""
        return f"tightloop plan status {self.workflow_id}" if self.is_plan else f"tightloop status {self.workflow_id}"


class ChildNote(Value):
    """What a workflow tells the plan around it."""

    workflow_id: str
    """The workflow that the step started."""
    waits: tuple[ChildWait, ...] = ()
    """All that waits there; empty: nothing does any more."""


def read_child_note(value: Any) -> ChildNote:
    """Read the argument of `child_waits`, bounded.

    Raises:
        InvalidRequestError: it is none.
    """
    try:
        note = ChildNote.model_validate(value)
    except ValidationError as error:
        raise InvalidRequestError(f"{CHILD_WAITS}: {shorten(first_problem(error), 200)}") from None
    return note.model_copy(update={"waits": tuple(map(_bounded, note.waits[:WAITS_LIMIT]))})


def _bounded(wait: ChildWait) -> ChildWait:
    return wait.model_copy(update={"reason": shorten(wait.reason, REASON_CHARACTERS)})
