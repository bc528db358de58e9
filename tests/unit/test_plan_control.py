"""What people say to plans, read leniently and refused with a sentence; and what they are shown."""

import pytest

from tightloop.errors import InvalidRequestError
from tightloop.plan.action import Option
from tightloop.plan.book import Book, is_decided
from tightloop.plan.child import NAME_CHARACTERS, child_id
from tightloop.plan.control import (
    FailureAnswer,
    check_approval,
    gates_meant,
    read_failure_word,
    read_gate_word,
    read_plan_top_up,
    read_replan,
    read_step_word,
)
from tightloop.plan.display import counts_line, plan_details, spent_line
from tightloop.plan.input import PlanInput
from tightloop.plan.model import Hypothesis, PlanBudget
from tightloop.plan.request import PlanSpent, PlanStatus, WaitingGate
from tightloop.plan.result import EvidenceNote, GateQuestion, PersonDecision, StepFailure
from tightloop.plan.state import PlanState, UndoEntry


def gate(step: str, *said: PersonDecision, **question: object) -> WaitingGate:
    return WaitingGate(step=step, question=GateQuestion.model_validate({"text": "?", **question}), decisions=said)


def yes(by: str, **more: str) -> PersonDecision:
    return PersonDecision(step="g", by=by, **more)


@pytest.mark.parametrize("value", ["release", {"gate": "release"}, {"step": "release"}, {"window": " release "}])
def test_gate_is_named_in_any_of_these_ways(value):
    assert read_gate_word(value, what="approve_gate").gate == "release"


def test_word_about_a_gate_may_be_nothing_and_has_a_reason_by_many_names():
    assert read_gate_word(None, what="approve_gate").by == "operator"
    assert read_gate_word({"gate": "x", "reason": "r", "by": "ada"}, what="reject_gate").rationale == "r"
    with pytest.raises(InvalidRequestError, match="reject_gate: why: Extra inputs are not permitted"):
        read_gate_word({"why": 1}, what="reject_gate")


@pytest.mark.parametrize(("name", "meant"), [("a", ("a",)), ("evening", ("a", "b")), ("c", ("c",))])
def test_gates_are_meant_by_step_or_by_window(name, meant):
    waiting = {"a": gate("a", window="evening"), "b": gate("b", window="evening"), "c": gate("c")}
    assert gates_meant(read_gate_word(name, what="approve_gate"), waiting, what="approve_gate") == meant


def test_nothing_said_means_the_only_gate_or_the_only_window():
    bare = read_gate_word(None, what="approve_gate")
    both = {"a": gate("a", window="w"), "b": gate("b", window="w")}
    assert gates_meant(bare, {"a": gate("a")}, what="approve_gate") == ("a",)
    assert gates_meant(bare, both, what="approve_gate") == ("a", "b")
    with pytest.raises(InvalidRequestError, match="2 steps wait: a, b"):
        gates_meant(bare, {"a": gate("a"), "b": gate("b")}, what="approve_gate")
    with pytest.raises(InvalidRequestError, match="no step waits for an approval now"):
        gates_meant(bare, {}, what="approve_gate")


def test_people_have_to_agree_on_the_option():
    options = (Option(name="fast"), Option(name="safe"))
    asked = gate("g", yes("ada", option="fast"), count=2, options=options)
    with pytest.raises(InvalidRequestError, match="ada chose 'fast' for g, not 'safe'"):
        check_approval(read_gate_word({"gate": "g", "by": "bob", "option": "safe"}, what=""), "g", asked)
    check_approval(read_gate_word({"gate": "g", "by": "bob", "option": "fast"}, what=""), "g", asked)


@pytest.mark.parametrize(
    ("said", "decided"),
    [
        ((), False),
        ((yes("ada"),), False),
        ((yes("ada"), yes("ada")), False),
        ((yes("ada"), yes("bob")), True),
        ((PersonDecision(step="g", by="bob", approved=False),), True),
    ],
)
def test_gate_is_decided_by_different_people_or_by_one_refusal(said, decided):
    assert is_decided(gate("g", *said, count=2)) is decided


@pytest.mark.parametrize("value", ["skip", "SKIP: not needed", {"answer": "skip", "reason": "not needed"}])
def test_answer_about_a_failure_is_read(value):
    assert read_failure_word(value).answer is FailureAnswer.SKIP


@pytest.mark.parametrize(
    ("read", "value", "sentence"),
    [
        (read_failure_word, "again", "answer: answer: Input should be"),
        (read_failure_word, {"answer": "replan", "text": "ä" * 600_000}, "1200000 bytes"),
        (read_replan, {"source": "x" * 1_000_001}, "replan: the text has 1000001 bytes"),
        (read_step_word, " ", "run_step: no step is named"),
        (read_step_word, None, "run_step: step: Field required"),
        (read_plan_top_up, None, "top_up: it needs an object, not None"),
        (read_plan_top_up, {}, "the amounts must be positive"),
        (read_plan_top_up, {"cost_usd": -1}, "the amounts must be positive"),
        (read_plan_top_up, {"cost_usd": float("inf")}, "the amounts must be positive"),
    ],
)
def test_wrong_word_is_refused_with_a_sentence(read, value, sentence):
    with pytest.raises(InvalidRequestError) as refused:
        read(value)
    assert sentence in refused.value.message


def test_top_up_raises_bounds_and_leaves_unbounded_what_is_unbounded():
    budget = PlanBudget(max_cost_usd=1.0, max_wall_s=60)
    raised = read_plan_top_up({"cost_usd": 2, "wall_minutes": 1, "tokens": 5, "steps": 10}).applied(budget)
    assert (raised.max_cost_usd, raised.max_wall_s, raised.max_tokens) == (3.0, 120.0, None)
    assert raised.max_steps == budget.max_steps + 10


def test_state_of_a_plan_goes_round_through_the_book():
    state = PlanState(
        tree="t",
        undo=(UndoEntry(step="a"), UndoEntry(step="b", template="b-*", item=1, attempt=2)),
        failures={"c": StepFailure(failure_class="logic", reason="no")},
        waiting=(gate("g", yes("ada")),),
        asked=("c",),
        wanted=("d",),
        budget=PlanBudget(max_steps=7),
        spent=PlanSpent(attempts=3),
        cancel="enough",
    )
    assert Book(state).save(None) == state


def test_evidence_for_a_hypothesis_starts_from_its_prior():
    book = Book(PlanState())
    book.begin(PlanBudget(), (Hypothesis(id="H1", prior=0.2),))
    book.learn((EvidenceNote(hypothesis="H1", verdict="supports", strength="moderate"),))
    book.suppose((Hypothesis(id="H1", prior=0.9), Hypothesis(id="H2", prior=0.9)))
    assert [round(belief.confidence, 3) for belief in book.beliefs] == [0.429, 0.9]


def test_child_has_an_id_that_git_takes_as_a_name():
    assert child_id("plan-1", "build", 2) == "plan-1.build.2"
    assert child_id("plan-1", "a..b.lock", 1, "fast way") == "plan-1.a__b_lock-86ceb9a78c2f.1.fast_way-1f2160b99ba6"
    long = [child_id("plan-1." + "x" * 200, f"s{n}", 1) for n in range(2)]
    assert len(set(long)) == 2
    assert all(len(name) <= NAME_CHARACTERS for name in long)


def test_unreadable_input_becomes_a_problem_in_place_of_an_error():
    read = PlanInput.model_validate({"workspace": "/x", "source": "x", "max_parallel": "many"})
    assert read.problem.startswith("max_parallel: Input should be a valid integer")
    assert "A right input" in read.problem


def test_details_show_what_waits_and_the_json_that_answers():
    status = PlanStatus(
        title="Release",
        counts={"completed": 2, "waiting": 1, "failed": 0},
        waiting=(gate("go", yes("ada"), count=2, role="owner"),),
        asked=("build",),
        pause_reason="failed: build (no disk)",
        pause_advice="answer",
        status="paused",
    )
    shown = plan_details(status, PlanBudget(max_cost_usd=2))
    assert "**paused**" in shown
    assert "- waits (owner): `go`: ?, 1 of 2 approvals" in shown
    assert '{"gate": "go", "by": "your name"}' in shown
    assert '{"step": "build", "answer": "retry"}' in shown
    assert "signal `resume`" in shown
    assert counts_line(status.counts) == "completed 2, waiting 1"
    assert (
        spent_line(PlanSpent(cost_usd=0.5, unpriced_calls=1), PlanBudget(max_cost_usd=2)).count("at least 0.5/2") == 1
    )
