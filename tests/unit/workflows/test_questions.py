"""What waits for a person: ids, answers, agreement of several people, defaults."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.runs import BareRun
from tightloop.errors import InvalidRequestError
from tightloop.run.core import RunInput
from tightloop.run.question import Option, Question, QuestionKind

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GATE = (Option(name="approve"), Option(name="reject", at_once=True))
RETRY = (Option(name="retry"), Option(name="skip"))


@pytest.fixture
def run() -> BareRun:
    return BareRun(now=lambda: NOW)


def gate(step: str, **fields: object) -> Question:
    return Question.model_validate(
        {
            "id": "",
            "kind": "gate",
            "title": f"may {step} go on?",
            "options": GATE,
            "step": step,
            "blocks": step,
            **fields,
        }
    )


def failed(step: str) -> Question:
    title = f"{step} failed"
    return Question(id="", kind=QuestionKind.FAILED_STEP, title=title, options=RETRY, step=step, default="retry")


def test_ids_are_never_used_again(run: BareRun) -> None:
    first = run.ask(gate("a"))
    run.close_questions(first.id)
    second = run.ask(gate("a"))
    next_run = BareRun(now=lambda: NOW, given=RunInput(core=run.core))
    third = next_run.ask(gate("b"))
    assert [each.id for each in (first, second, third)] == ["q1", "q2", "q3"]
    assert [each.id for each in next_run.waiting] == ["q2", "q3"]
    assert second.since == NOW
    assert run.kept.counted == [("tightloop_pauses", {"kind": "gate"})] * 2
    assert next_run.kept.counted == [("tightloop_pauses", {"kind": "gate"})]


def test_an_answer_names_the_question_by_id_by_step_or_by_its_option(run: BareRun) -> None:
    run.ask(gate("release"))
    run.ask(gate("deploy"))
    run.ask(failed("build"))
    with pytest.raises(InvalidRequestError, match="several questions are open"):
        run.take("approve")
    assert [question.step for question, _ in run.take("retry: it was the network")] == ["build"]
    assert [question.step for question, _ in run.take({"question": "q1", "option": "Approve"})] == ["release"]
    [(question, answer)] = run.take({"question": "deploy", "option": "reject", "text": "too early", "by": "ada"})
    assert (question.chosen, answer.text, answer.by, answer.at) == ("reject", "too early", "ada", NOW)
    assert run.waiting == ()
    with pytest.raises(InvalidRequestError, match="there is no question to answer"):
        run.take("approve")


def test_an_answer_to_one_of_several_gates_is_shown_how_to_name_one(run: BareRun) -> None:
    for each in (failed("build"), gate("release"), gate("deploy")):
        run.ask(each)
    example = r'Open questions: q2 \(release\), q3 \(deploy\). Example: {"question": "q2", "option": "approve"}'
    with pytest.raises(InvalidRequestError, match=example):
        run.take("approve")


def test_the_json_that_is_shown_is_an_answer(run: BareRun) -> None:
    opened = run.ask(gate("release"))
    assert opened.json_for("reject") == '{"question": "q1", "option": "reject"}'
    assert run.take({"question": "q1", "option": "reject"})[0][0].chosen == "reject"


@pytest.mark.parametrize("value", [None, 3, {}, {"option": "approve", "word": "x"}, {"question": "q9", "option": "x"}])
def test_what_answers_nothing_is_refused_with_an_example(run: BareRun, value: object) -> None:
    run.ask(gate("release"))
    with pytest.raises(InvalidRequestError, match=r'Example: \{"question": "q1", "option": "approve"\}'):
        run.take(value)


def test_several_people_have_to_agree_and_one_can_refuse(run: BareRun) -> None:
    run.ask(gate("release", count=2))
    [(question, _)] = run.take({"option": "approve", "by": "ada"})
    assert question.chosen == ""
    assert run.core.questions.is_open("q1")
    with pytest.raises(
        InvalidRequestError, match="ada has already answered q1, which needs answers from 2 different people"
    ):
        run.take({"option": "approve", "by": "ada"})
    assert run.take({"option": "approve", "by": "bob"})[0][0].chosen == "approve"
    run.ask(gate("release", count=2))
    run.take({"option": "approve", "by": "ada"})
    assert run.take({"option": "reject", "by": "ada"})[0][0].chosen == "reject"


def test_people_who_have_to_agree_choose_the_same_option(run: BareRun) -> None:
    options = (Option(name="blue"), Option(name="green"), Option(name="reject", at_once=True))
    run.ask(gate("colour", count=2, options=options))
    run.take({"option": "blue", "by": "ada"})
    with pytest.raises(
        InvalidRequestError,
        match=r"ada has already answered q1 with 'blue', not 'green'\. Choose the same option, or one of: reject",
    ):
        run.take({"option": "green", "by": "bob"})


def test_a_window_is_answered_together(run: BareRun) -> None:
    for step in ("a", "b"):
        run.ask(gate(step, window="review"))
    assert [question.step for question, _ in run.take("approve")] == ["a", "b"]
    for step in ("a", "b", "c"):
        run.ask(gate(step, window="review"))
    assert [question.step for question, _ in run.take({"question": "b", "option": "approve"})] == ["b"]
    assert [question.step for question, _ in run.take({"question": "review", "option": "reject"})] == ["a", "c"]


def test_a_bare_resume_chooses_defaults_only(run: BareRun) -> None:
    run.ask(gate("release"))
    run.ask(failed("build"))
    [(question, answer)] = run.answer(run.core.questions.defaults(by="ada"))
    assert (question.step, question.chosen, answer.by) == ("build", "retry", "ada")
    assert [each.step for each in run.waiting] == ["release"]


def test_texts_of_a_question_are_bounded(run: BareRun) -> None:
    opened = run.ask(gate("a", title="x" * 2_000, evidence=("y" * 1_000,) * 50))
    assert len(opened.title) == 600
    assert (len(opened.evidence), len(opened.evidence[0])) == (20, 300)


def test_only_what_a_person_decided_has_a_time_to_answer() -> None:
    clock = iter(NOW + timedelta(minutes=minute) for minute in range(100))
    run = BareRun(now=lambda: next(clock))
    first, own, ended = (
        run.ask(failed(step).evolve(kind=kind))
        for step, kind in (("a", QuestionKind.FAILED_STEP), ("b", QuestionKind.OPERATOR), ("c", QuestionKind.GATE))
    )
    run.close_questions(ended.id)
    for question in (own, first):
        run.take({"question": question.id, "option": "retry"})
    [(name, seconds, labels)] = run.kept.recorded
    assert (name, labels) == ("tightloop_answer_seconds", {"kind": "failed_step"})
    assert seconds > 0
