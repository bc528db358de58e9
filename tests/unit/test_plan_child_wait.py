"""What a workflow tells the plan around it, and how that plan shows it."""

from typing import Any

import pytest

from tightloop.errors import InvalidRequestError
from tightloop.plan.book import Book
from tightloop.plan.child_wait import REASON_CHARACTERS, WAITS_LIMIT, ChildWait, read_child_note
from tightloop.plan.display import plan_details
from tightloop.plan.model import FailureClass, PlanBudget
from tightloop.plan.request import PlanStatus, WaitingGate
from tightloop.plan.result import GateQuestion, StepFailure
from tightloop.plan.state import PlanPause, PlanState

GATE = WaitingGate(step="release", question=GateQuestion(text="Release?"))
FAILURE = StepFailure(failure_class=FailureClass.LOGIC, reason="no disk")
OPERATOR = PlanPause(kind="operator", reason="lunch")


def wait(**fields: Any) -> ChildWait:
    return ChildWait(**{"workflow_id": "p.sub.1", "kind": "approval", "reason": "Release?", "is_plan": True, **fields})


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (PlanState(), []),
        (PlanState(waiting=(GATE,)), [("approval", "Release?", "release")]),
        (PlanState(pause=OPERATOR), [("operator", "lunch", "")]),
        (PlanState(asked=("b",), failures={"b": FAILURE}), [("needs_response", "no disk", "b")]),
        (
            PlanState(
                asked=("b",),
                failures={"b": FAILURE},
                pause=PlanPause(kind="needs_response", reason="failed: b (no disk)", step="b", also=OPERATOR),
            ),
            [("needs_response", "no disk", "b"), ("operator", "lunch", "")],
        ),
        (
            PlanState(waiting=(GATE,), pause=PlanPause(kind="fatal", reason="r" * 600, step="c")),
            [("approval", "Release?", "release"), ("fatal", "r" * (REASON_CHARACTERS - 6) + " [...]", "c")],
        ),
    ],
)
def test_plan_tells_each_wait_once(state: PlanState, expected: list[tuple[str, str, str]]) -> None:
    found = Book(state).waits("p.sub.1")
    assert [(one.kind, one.reason, one.gate) for one in found] == expected
    assert {(one.workflow_id, one.is_plan) for one in found} <= {("p.sub.1", True)}


def test_note_is_read_within_bounds() -> None:
    sent = {"workflow_id": "p.sub.1", "waits": [wait(reason="x" * 9_000).model_dump()] * 500}
    note = read_child_note(sent)
    assert len(note.waits) == WAITS_LIMIT
    assert len(note.waits[0].reason) == REASON_CHARACTERS
    assert read_child_note({"workflow_id": "p.sub.1"}).waits == ()


@pytest.mark.parametrize("sent", [None, "nonsense", {}, {"workflow_id": "w", "waits": [{"kind": "budget"}]}, [1]])
def test_what_is_no_note_is_refused(sent: object) -> None:
    with pytest.raises(InvalidRequestError, match="child_waits: "):
        read_child_note(sent)


def test_details_name_the_workflow_that_waits_and_where_to_answer() -> None:
    agent = ChildWait(workflow_id="p.make.2", kind="needs_response", reason="Work in\n/tmp", step="make")
    shown = plan_details(PlanStatus(), PlanBudget(), children=(wait(step="sub", gate="release"), agent))
    assert (
        "- waits in step `sub`: `p.sub.1 at release`: approval: Release? "
        "(how to answer: its details, `tightloop plan status p.sub.1`)" in shown
    )
    assert "`p.make.2`: needs_response: Work in /tmp (how to answer: its details, `tightloop status p.make.2`)" in shown
    assert "waits in step" not in plan_details(PlanStatus(), PlanBudget())
