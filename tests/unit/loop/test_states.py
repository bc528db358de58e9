"""Which states of a project's plan allow what."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.cli.views import todo_lines
from tightloop.client.execution import CLOSED_STATUSES, OPEN_STATUSES
from tightloop.errors import InvalidRequestError
from tightloop.loop import projection
from tightloop.loop.model import (
    CLOSED,
    GateResult,
    LoopRequest,
    LoopState,
    LoopStatus,
    LoopTask,
    Packet,
    TaskState,
    check_possible,
    packet_id_of,
    sealed_packet,
)
from tightloop.loop.projection import explain_unverified, loop_details
from tightloop.run.question import Option, Question, QuestionKind

PAUSE = Question(id="q1", kind=QuestionKind.OPERATOR, title="lunch", options=(Option(name="resume", effect="go on"),))

statuses = st.builds(
    LoopStatus,
    status=st.sampled_from(LoopState),
    tasks=st.lists(
        st.builds(LoopTask, task_id=st.just("ptask_1"), description=st.just("x"), state=st.sampled_from(TaskState)),
        max_size=3,
    ).map(tuple),
    completed_at=st.none() | st.just(datetime(2026, 1, 1, tzinfo=UTC)),
    questions=st.just(()) | st.just((PAUSE,)),
)


@given(statuses, st.sampled_from(["dispatch", "verify", "cancel"]))
def test_refusal_names_the_state_and_what_is_possible(status: LoopStatus, wanted: str) -> None:
    if wanted in status.possible and (wanted == "cancel" or not status.questions):
        check_possible(status, wanted)
        return
    with pytest.raises(InvalidRequestError) as refusal:
        check_possible(status, wanted)
    said = refusal.value.message
    assert said.startswith(f"{wanted}: ")
    assert "paused" in said or all(each in said for each in (status.status.value, *status.possible))


@given(
    st.lists(st.sampled_from(TaskState), min_size=1, max_size=8),
    st.none() | st.builds(GateResult, passed=st.booleans()),
)
def test_only_complete_tasks_and_passed_gates_are_verified(states: list[TaskState], gates: GateResult | None) -> None:
    tasks = tuple(LoopTask(task_id=f"ptask_{n}", description="x", state=state) for n, state in enumerate(states, 1))
    why = explain_unverified(tasks, gates)
    left = [task.task_id for task in tasks if task.state is not TaskState.COMPLETE]
    has_passed = gates is not None and gates.passed
    assert (why == "") == (has_passed and not left)
    assert all(name in why for name in left[:5])


def test_questions_of_a_plan_show_all_of_their_options() -> None:
    options = (Option(name="work", effect="go on"), Option(name="accept", effect="accept the files"))
    question = Question(id="q1", kind=QuestionKind.PROOF, title="a doubt", options=options, blocks="the plan")
    lines = todo_lines(LoopStatus(plan_id="plan_1", status=LoopState.VERIFYING, questions=(question,)))
    assert lines == [
        "The run is waiting for a person: a doubt (proof)",
        "  tightloop answer plan_1 work   # go on",
        "  tightloop answer plan_1 accept   # accept the files",
    ]


@given(statuses)
def test_details_show_each_action_that_is_possible(status: LoopStatus) -> None:
    shown = loop_details(status)
    assert status.list_status in OPEN_STATUSES + CLOSED_STATUSES
    assert all(f"`{each}`" in shown for each in status.possible)
    assert ("Next actions" in shown) == bool(status.possible or status.questions)


@given(statuses)
def test_nothing_is_possible_where_it_is_over(status: LoopStatus) -> None:
    assert not (status.status in CLOSED and status.possible)


@pytest.mark.parametrize(
    ("given_", "asked", "expected"),
    [(None, 4, 4), ({}, 4, 4), ({"parallel": True}, 3, 3), ({"parallel": False}, 4, 1), ({"parallel": 7}, 4, 7)],
)
def test_number_of_tasks_at_once_is_as_wanted(given_: object, asked: int, expected: int) -> None:
    assert projection.resolve_parallel(projection.read_dispatch(given_), asked) == expected


@pytest.mark.parametrize("wrong", [{"parallel": 0}, {"parallel": 51}, {"paralel": 2}, "now", 3])
def test_wrong_argument_of_dispatch_is_refused_with_a_right_one(wrong: object) -> None:
    with pytest.raises(InvalidRequestError, match="dispatch"):
        projection.read_dispatch(wrong)


def test_cancel_takes_a_plain_reason() -> None:
    assert projection.read_cancel("not needed").reason == "not needed"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"workspace": "project"}, "absolute path"),
        ({"parallel": 0}, "at least 1"),
        ({"parallel": 51}, "between 1 and 50"),
        ({"packet_id": "../x"}, "not a valid packet id"),
        ({"packet_id": "pkt_0123456789abcdef", "episode": "ep-1"}, "not both"),
        ({"planner": "guess"}, "unknown"),
        ({"gates": [" "]}, "no command"),
        ({"goal": "x" * 20_001}, "limit"),
    ],
)
def test_request_that_cannot_work_is_refused(fields: dict[str, object], said: str) -> None:
    request = LoopRequest.model_validate({"workspace": "/home/me/project", **fields})
    with pytest.raises(InvalidRequestError, match=said):
        request.check()


def test_packet_has_the_same_id_whenever_it_was_made_and_holds_no_secret() -> None:
    first = sealed_packet(Packet(project="p", history=("a1 key sk-proj-abcdefghijklmnopqrstuvwx0123456789ABCDEF",)))
    again = first.evolve(at=datetime(2026, 1, 1, tzinfo=UTC))
    assert packet_id_of(again) == first.packet_id
    assert packet_id_of(first.evolve(goal="another")) != first.packet_id
    assert "abcdefghijklmnop" not in first.history[0]
