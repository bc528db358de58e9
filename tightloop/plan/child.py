"""The workflows that the steps of a plan start: their ids, and what waits for a person there."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from tightloop.errors import InvalidRequestError
from tightloop.plan.result import StepStatus
from tightloop.question import Question
from tightloop.value import Value, first_problem, shorten

NAME_CHARACTERS = 180
"""Bound of a child's id: it becomes part of a git ref, of which a file name bears 255 bytes."""
# Dots part the parts of an id, so none may stand in one.
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
"""What may not stand in a part of an id: git does not allow it in a ref, or it parts the parts."""
_MARKED = re.compile(r"-[0-9a-f]{12}\Z")
"""The end of a name that `_part` changed."""
# These travel as a signal into the history of the outer plan each time that they change.
WAITS_LIMIT = 20
"""Questions that one workflow passes on, its own and those further within."""
TEXT_CHARACTERS = 300
EVIDENCE_LINES = 3
"""The rest is in the details of the workflow that asks."""
OPTIONS_LIMIT = 12
CHILD_STEPS = "child_steps"
"""The signal by which a plan tells the loop around it where its steps stand."""
CHILD_WAITS = "child_waits"
"""The signal that a workflow sends to the plan around it."""


def child_id(plan_id: str, step: str, attempt: int, alternative: str = "") -> str:
    """Return the workflow id of what an attempt starts: `<plan>.<step>.<attempt>`, and `.<alternative>` of a branch.

    It is different for different steps, attempts and alternatives of a plan. Names of letters, digits, `-` and `_`
    stand in it as they are; in others what git does not allow in a ref is replaced, and a hash of the name follows.
    Ids that are too long end with a hash of all of it.
    """
    parts = [plan_id, _part(step), str(attempt), *([_part(alternative)] if alternative else [])]
    whole = ".".join(parts)
    if len(whole) <= NAME_CHARACTERS:
        return whole
    return f"{whole[: NAME_CHARACTERS - 13].rstrip('.')}-{_digest(whole)}"


def _part(name: str) -> str:
    readable = _OTHER.sub("_", name)
    # A name that looks like a changed one could be the same as it.
    return name if readable == name and not _MARKED.search(name) else f"{readable}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


class ChildWait(Value):
    """One question in a workflow that a step started, or in one further within."""

    workflow_id: str
    """Where the answer is sent to."""
    question: Question
    """Bounded: its evidence may be cut."""
    step: str = ""
    """The step of the plan that shows it."""

    @property
    def where(self) -> str:
        """Who waits, such as `nightly.build.1 at release`."""
        return f"{self.workflow_id} at {self.question.step}" if self.question.step else self.workflow_id

    @property
    def what(self) -> str:
        """What is asked, such as `gate: may it go on?`."""
        return f"{self.question.kind.value}: {' '.join(self.question.title.split())}"

    @property
    def command(self) -> str:
        """The command that shows how to answer."""
        return f"tightloop status {self.workflow_id}"


class ChildNote(Value):
    """What a workflow tells the plan around it."""

    workflow_id: str
    """The workflow that the step started."""
    waits: tuple[ChildWait, ...] = ()
    """All that waits there; empty: nothing waits any more."""


class StepNote(Value):
    """Where a step of a plan stands, for the loop around it."""

    step: str
    status: StepStatus
    attempt: int = 0
    """Of which the id of what it starts is made."""
    reason: str = ""
    """Why it failed."""


class StepsNote(Value):
    """What a plan tells the loop around it: the steps that stand elsewhere than it told before."""

    workflow_id: str
    steps: tuple[StepNote, ...] = ()


def waits_of(workflow_id: str, questions: Iterable[Question]) -> tuple[ChildWait, ...]:
    """Return the questions of a workflow for the plan around it."""
    return tuple(_shortened(ChildWait(workflow_id=workflow_id, question=question)) for question in questions)[
        :WAITS_LIMIT
    ]


def read_child_note(value: Any) -> ChildNote:
    """Read the argument of `child_waits`, bounded.

    Raises:
        InvalidRequestError: it is not a note.
    """
    try:
        note = ChildNote.model_validate(value)
    except ValidationError as error:
        raise InvalidRequestError(f"{CHILD_WAITS}: {shorten(first_problem(error), 200)}") from None
    return note.evolve(waits=tuple(map(_shortened, note.waits[:WAITS_LIMIT])))


def read_steps_note(value: Any) -> StepsNote:
    """Read the argument of `child_steps`.

    Raises:
        InvalidRequestError: it is not a note.
    """
    try:
        return StepsNote.model_validate(value)
    except ValidationError as error:
        raise InvalidRequestError(f"{CHILD_STEPS}: {shorten(first_problem(error), 200)}") from None


def _shortened(wait: ChildWait) -> ChildWait:
    question = wait.question
    return wait.evolve(
        question=question.evolve(
            title=shorten(question.title, TEXT_CHARACTERS),
            evidence=tuple(shorten(line, TEXT_CHARACTERS) for line in question.evidence[:EVIDENCE_LINES]),
            options=question.options[:OPTIONS_LIMIT],
        )
    )
