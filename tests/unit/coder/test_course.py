"""How a coder goes on: bounds, circles, silence, and what a person's answer changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.coder import course
from tightloop.coder.model import (
    Bounds,
    CallHead,
    CallResult,
    CoderProgress,
    CoderState,
    ConversationState,
    Turn,
    path_line,
)
from tightloop.executor.asking import clarifying_question
from tightloop.executor.model import Usage
from tightloop.value import reference

NODE = reference(b"{}", name="conversation")


def turn(number: int = 1, *, calls: int = 1, problem: str = "") -> Turn:
    return Turn(number=number, node=NODE, calls=(CallHead(tool="search", reads=True),) * calls, problem=problem)


def result(mark: str = "", **more: object) -> CallResult:
    return CallResult.model_validate({"result": NODE, "mark": mark, **more})


@pytest.mark.parametrize(
    ("role", "progress", "said"),
    [
        ("coder", CoderProgress(turns=9), ""),
        ("coder", CoderProgress(turns=10), "10 turns were used, but coder.max_turns is 10"),
        (
            "coder",
            CoderProgress(usage=Usage(input_tokens=900, output_tokens=100)),
            "1000 tokens were used, but coder.max_tokens is 1000",
        ),
        ("coder", CoderProgress(usage=Usage()), ""),
        (
            "planner",
            CoderProgress(talks={"planner": ConversationState(turns=3)}),
            "3 turns were used, but coder.roles.planner.max_turns is 3",
        ),
        ("coder", CoderProgress(talks={"planner": ConversationState(turns=3)}), ""),
    ],
)
def test_bound_is_named_once_it_is_reached(role: str, progress: CoderProgress, said: str) -> None:
    bounds = Bounds(max_turns=10, max_tokens=1000, turns_of={"planner": 3})
    reached = course.find_reached_bound(role, progress, bounds)
    assert reached.startswith(said)
    assert bool(reached) == bool(said)


def test_same_call_with_the_same_result_is_told_at_the_third_time_and_stopped_at_the_fourth() -> None:
    talk = ConversationState()
    told = []
    for number in range(1, 5):
        talk = course.after_results(course.after_turn(talk, turn(number)), [result("same")])
        told.append((bool(talk.correction), bool(course.why_stuck(talk))))
    assert told == [(False, False), (False, False), (True, False), (False, True)]


@given(st.lists(st.integers(0, 50), unique=True, max_size=40))
def test_work_that_brings_something_new_each_time_is_never_stuck(marks: list[int]) -> None:
    talk = ConversationState()
    for mark in marks:
        talk = course.after_results(course.after_turn(talk, turn()), [result(str(mark))])
        assert course.why_stuck(talk) == ""
        assert talk.correction == ""


def test_answers_without_a_call_are_corrected_and_end_at_the_third() -> None:
    talk = course.after_turn(ConversationState(), turn(calls=0))
    assert talk.correction == course.PROPOSE
    talk = course.after_turn(talk, turn(problem="the answer was cut off"))
    assert (talk.correction, course.why_stuck(talk)) == ("the answer was cut off", "")
    assert "3 replies in a row" in course.why_stuck(course.after_turn(talk, turn(calls=0)))
    assert course.after_turn(talk, turn()).silent == 0


def test_news_for_the_model_ends_what_it_was_stuck_in() -> None:
    stuck = ConversationState(marks=("same",) * 4, silent=3, turns=9)
    assert course.why_stuck(stuck)
    fresh = course.add_message(stuck, NODE)
    assert (course.why_stuck(fresh), fresh.turns, fresh.said) == ("", 0, (NODE,))


def test_call_that_waited_for_a_person_is_made_again_and_those_before_it_are_not() -> None:
    question = clarifying_question("Which one?", "", "f")
    talk = ConversationState(turn=turn(calls=3), results=(result("a"), result(question=question), result("c")))
    resumed = course.resume_progress(CoderProgress(talks={"coder": talk}))
    assert resumed.talks["coder"].results == (result("a"),)


def test_rounds_and_tests_are_bounded() -> None:
    bounds = Bounds(rounds=2, testing=True)
    assert [course.may_reflect(CoderProgress(round=number), bounds) for number in (1, 2, 3)] == [True, True, False]
    assert course.wants_tests(CoderProgress(), bounds)
    assert not course.wants_tests(CoderProgress(tested=True), bounds)
    assert not course.wants_tests(CoderProgress(), Bounds())


def test_path_shows_the_turns_of_each_state() -> None:
    progress = CoderProgress().entering(CoderState.CODING).evolve(turns=2).entering(CoderState.TESTING)
    assert path_line(progress.entering(CoderState.SUCCESS)) == "CODING (2 turns) > TESTING > SUCCESS"
