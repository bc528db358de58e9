"""What a workflow tells the plan around it, and how that plan shows it."""

from typing import Any

import pytest

from tightloop.errors import InvalidRequestError
from tightloop.plan.control import plan_details
from tightloop.plan.document import PlanBudget
from tightloop.plan.engine.state import choices
from tightloop.plan.request import PlanStatus
from tightloop.run.question import (
    NOTE_CHARACTERS,
    NOTE_EVIDENCE_LINES,
    WAITS_LIMIT,
    ChildWait,
    Question,
    QuestionKind,
    read_child_note,
    waits_of,
)

GATE = Question(id="q1", kind=QuestionKind.GATE, title="Release?", options=choices(), step="release")


def wait(**fields: Any) -> ChildWait:
    return ChildWait(**{"workflow_id": "p.sub.1", "question": GATE, **fields})


def test_plan_tells_its_questions_within_bounds() -> None:
    long = GATE.evolve(title="x" * 600, evidence=("y" * 300,) * 20)
    found = waits_of("p.sub.1", (GATE, *[long] * 500))
    assert len(found) == WAITS_LIMIT
    assert found[0] == wait()
    assert len(found[1].question.title) == NOTE_CHARACTERS
    assert len(found[1].question.evidence) == NOTE_EVIDENCE_LINES


def test_note_is_read_within_bounds() -> None:
    sent = {"workflow_id": "p.sub.1", "waits": [wait(question=GATE.evolve(title="x" * 9_000)).model_dump()] * 500}
    note = read_child_note(sent)
    assert len(note.waits) == WAITS_LIMIT
    assert len(note.waits[0].question.title) == NOTE_CHARACTERS
    assert read_child_note({"workflow_id": "p.sub.1"}).waits == ()


@pytest.mark.parametrize("sent", [None, "nonsense", {}, {"workflow_id": "w", "waits": [{"workflow_id": "x"}]}, [1]])
def test_what_is_no_note_is_refused(sent: object) -> None:
    with pytest.raises(InvalidRequestError, match="child_waits: "):
        read_child_note(sent)


def test_details_name_the_workflow_that_waits_and_where_to_answer() -> None:
    work = Question(id="q2", kind=QuestionKind.WORK, title="Work in\n/tmp", options=())
    agent = ChildWait(workflow_id="p.make.2", question=work, step="make")
    shown = plan_details(PlanStatus(children=(wait(step="sub"), agent)), PlanBudget())
    assert (
        "- waits in step `sub`: `p.sub.1 at release`: gate: Release? "
        "(to answer, see `tightloop status p.sub.1`)" in shown
    )
    assert "`p.make.2`: work: Work in /tmp (to answer, see `tightloop status p.make.2`)" in shown
    assert "waits in step" not in plan_details(PlanStatus(), PlanBudget())
