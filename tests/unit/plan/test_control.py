"""What people say to plans, read leniently and refused with a sentence; and what they are shown."""

import pytest

from tightloop.errors import InvalidRequestError
from tightloop.plan.child import CHILD_NAME_CHARACTERS, EvidenceNote, StepFailure, StepResult, StepStatus, child_id
from tightloop.plan.control import (
    plan_details,
    raise_exhausted_bounds,
    read_plan_top_up,
    read_replan,
    read_step_word,
    spent_line,
)
from tightloop.plan.document import Hypothesis, PlanBudget
from tightloop.plan.engine.state import UndoEntry, choices
from tightloop.plan.progress import PlanInput, PlanProgress
from tightloop.plan.request import PlanSpent, PlanStatus
from tightloop.run.question import Answer, Question, QuestionKind
from tightloop.run.question import Option as Choice
from tightloop.wording import counts_line


@pytest.mark.parametrize(
    ("read", "value", "sentence"),
    [
        (read_replan, {"source": "x" * 1_000_001}, "replan: the plan must be at most 1000000 bytes, got 1000001"),
        (read_step_word, " ", "run_step: the step is missing"),
        (read_step_word, None, "run_step: step is missing"),
        (read_plan_top_up, None, "top_up: expected an object, got None"),
        (read_plan_top_up, {}, "at least one amount must be greater than 0"),
        (read_plan_top_up, {"cost_usd": -1}, "at least one amount must be greater than 0"),
        (read_plan_top_up, {"cost_usd": float("inf")}, "at least one amount must be greater than 0"),
    ],
)
def test_wrong_word_is_refused_with_a_sentence(read, value, sentence):
    with pytest.raises(InvalidRequestError) as refused:
        read(value)
    assert sentence in refused.value.message


def test_top_up_raises_bounds_and_leaves_unbounded_what_is_unbounded():
    budget = PlanBudget(max_cost_usd=1.0, max_wall_s=60)
    raised = read_plan_top_up({"cost_usd": 2, "wall_minutes": 1, "tokens": 5, "attempts": 10}).apply_to(budget)
    assert (raised.max_cost_usd, raised.max_wall_s, raised.max_tokens) == (3.0, 120.0, None)
    assert raised.max_attempts == budget.max_attempts + 10


def test_progress_of_a_plan_goes_round_as_json():
    progress = PlanProgress(
        tree="t",
        undo=(UndoEntry(step="a"), UndoEntry(step="b", template="b-*", item=1, attempt=2)),
        failures={"c": StepFailure(failure_class="logic", reason="no")},
        answers={"g": (Answer(question="q1", option="approve", by="ada"),)},
        wanted=("d",),
        budget=PlanBudget(max_attempts=7),
        spent=PlanSpent(attempts=3),
    )
    assert PlanProgress.model_validate_json(progress.model_dump_json()) == progress


def test_an_attempt_that_waits_for_an_answer_counts_once() -> None:
    progress = PlanProgress().count_attempt(StepResult(status=StepStatus.WAITING))
    assert progress.spent.attempts == 0
    assert progress.count_attempt(StepResult(status=StepStatus.COMPLETED)).spent.attempts == 1


def test_evidence_for_a_hypothesis_starts_from_its_prior():
    progress = PlanProgress().begin(PlanBudget(), (Hypothesis(id="H1", prior=0.2),))
    note = EvidenceNote(hypothesis="H1", verdict="supports", strength="moderate")
    progress = progress.count_attempt(StepResult(status="completed", evidence=(note,)))
    progress = progress.add_hypotheses((Hypothesis(id="H1", prior=0.9), Hypothesis(id="H2", prior=0.9)))
    assert [round(belief.confidence, 3) for belief in progress.beliefs] == [0.429, 0.9]


def test_child_has_an_id_that_git_takes_as_a_name():
    assert child_id("plan-1", "build", 2) == "plan-1.build.2"
    assert child_id("plan-1", "a..b.lock", 1, "fast way") == "plan-1.a__b_lock-86ceb9a78c2f.1.fast_way-1f2160b99ba6"
    long = [child_id("plan-1." + "x" * 200, f"s{n}", 1) for n in range(2)]
    assert len(set(long)) == 2
    assert all(len(name) <= CHILD_NAME_CHARACTERS for name in long)


def test_unreadable_input_becomes_a_problem_in_place_of_an_error():
    read = PlanInput.model_validate({"workspace": "/x", "source": "x", "max_parallel": "many"})
    assert read.problem.startswith("max_parallel: must be a whole number")
    assert "Valid input" in read.problem


def test_bounds_that_are_reached_are_extended_by_what_the_plan_states():
    stated = PlanBudget(max_attempts=10, max_cost_usd=0.5, max_tokens=100)
    spent = PlanSpent(attempts=12, cost_usd=0.5, tokens=99)
    raised = raise_exhausted_bounds(stated, stated, spent, depth=6, fan_out=300)
    assert (raised.max_attempts, raised.max_cost_usd, raised.max_tokens) == (22, 1.0, 100)
    assert (raised.max_depth, raised.max_fan_out) == (6, 300)
    assert raise_exhausted_bounds(raised, stated, spent) == raised


def test_details_show_what_waits_and_the_json_that_answers():
    answers = (Answer(question="q1", option="approve", by="ada"),)
    gate = Question(
        id="q1",
        kind=QuestionKind.GATE,
        title="Go?",
        options=choices(),
        step="go",
        count=2,
        role="owner",
        answers=answers,
    )
    failed = Question(
        id="q2", kind=QuestionKind.FAILED_STEP, title="build failed", options=(Choice(name="retry"),), default="retry"
    )
    status = PlanStatus(
        title="Release",
        counts={"completed": 2, "waiting": 1, "failed": 0},
        questions=(gate, failed),
        status="paused",
    )
    shown = plan_details(status, PlanBudget(max_cost_usd=2))
    assert "**paused**" in shown
    assert "**q1 waits for an answer from 2 different people (owner), 1 so far** (gate): `go`: Go?" in shown
    assert '{"question": "q1", "option": "reject", "by": "your name"}' in shown
    assert '{"question": "q2", "option": "retry"}' in shown
    assert "signal `resume`" in shown
    assert counts_line(status.counts) == "completed 2, waiting 1"
    assert (
        spent_line(PlanSpent(cost_usd=0.5, unpriced_calls=1), PlanBudget(max_cost_usd=2)).count("at least 0.5/2") == 1
    )


def test_what_was_taken_back_is_forgotten_wherever_it_stands() -> None:
    first, second, third = (UndoEntry(step=name) for name in "abc")
    progress = PlanProgress(undo=(first, second, third))
    assert progress.remove_undo(third).undo == (first, second)
    assert progress.remove_undo(first).undo == (second, third)
    assert progress.remove_undo(UndoEntry(step="d")).undo == progress.undo
