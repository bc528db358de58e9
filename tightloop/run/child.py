"""Questions of a run, for the run that started it."""

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from tightloop.errors import InvalidRequestError
from tightloop.run.question import Question
from tightloop.value import Value, first_problem, shorten

# These travel as a signal into the history of the outer plan each time that they change.
WAITS_LIMIT = 20
"""Questions that one workflow passes on, its own and those further within."""


NOTE_CHARACTERS = 300


EVIDENCE_LINES = 3
"""The rest is in the details of the workflow that asks."""


OPTIONS_LIMIT = 12


CHILD_WAITS = "child_waits"
"""The signal that a workflow sends to the plan around it."""


class ChildWait(Value):
    """One question in a workflow that a step started, or in one further within."""

    workflow_id: str
    """The workflow that takes the answer."""
    question: Question
    """Bounded: its evidence may be cut."""
    step: str = ""
    """The step of the plan that shows it."""

    @property
    def where(self) -> str:
        """The asking workflow and step, such as `nightly.build.1 at release`."""
        return f"{self.workflow_id} at {self.question.step}" if self.question.step else self.workflow_id

    @property
    def what(self) -> str:
        """Kind and title of the question, such as `gate: may it go on?`."""
        return f"{self.question.kind.value}: {' '.join(self.question.title.split())}"

    @property
    def command(self) -> str:
        """The command that shows how to answer."""
        return f"tightloop status {self.workflow_id}"


class ChildNote(Value):
    """Open questions of a child workflow, for its parent plan."""

    workflow_id: str
    """The workflow that the step started."""
    waits: tuple[ChildWait, ...] = ()
    """All that waits there; empty: nothing waits any more."""


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


def _shortened(wait: ChildWait) -> ChildWait:
    question = wait.question
    return wait.evolve(
        question=question.evolve(
            title=shorten(question.title, NOTE_CHARACTERS),
            evidence=tuple(shorten(line, NOTE_CHARACTERS) for line in question.evidence[:EVIDENCE_LINES]),
            options=question.options[:OPTIONS_LIMIT],
        )
    )
