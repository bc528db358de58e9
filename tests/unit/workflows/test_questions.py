"""What waits for a person: ids, answers, agreement of several people, defaults."""

from datetime import UTC, datetime, timedelta

import pytest

from tightloop.errors import InvalidRequestError
from tightloop.question import Option, Question, QuestionKind
from workflows.shared.questions import Questions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GATE = (Option(name="approve"), Option(name="reject", at_once=True))
RETRY = (Option(name="retry"), Option(name="skip"))


@pytest.fixture
def counted() -> list[QuestionKind]:
    return []


@pytest.fixture
def waited() -> list[tuple[QuestionKind, timedelta]]:
    return []


@pytest.fixture
def questions(counted: list[QuestionKind], waited: list[tuple[QuestionKind, timedelta]]) -> Questions:
    return Questions(now=lambda: NOW, count=counted.append, count_wait=lambda *one: waited.append(one))


def ignore(*_: object) -> None:
    """Count nothing."""


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


def test_ids_are_never_used_again(questions: Questions, counted: list[QuestionKind]) -> None:
    first = questions.ask(gate("a"))
    questions.close(first.id)
    second = questions.ask(gate("a"))
    next_run = Questions(questions.waiting, questions.asked, now=lambda: NOW, count=counted.append, count_wait=ignore)
    third = next_run.ask(gate("b"))
    assert [each.id for each in (first, second, third)] == ["q1", "q2", "q3"]
    assert [each.id for each in next_run.waiting] == ["q2", "q3"]
    assert second.since == NOW
    assert counted == [QuestionKind.GATE] * 3


def test_an_answer_names_the_question_by_id_by_step_or_by_its_option(questions: Questions) -> None:
    questions.ask(gate("release"))
    questions.ask(gate("deploy"))
    questions.ask(failed("build"))
    with pytest.raises(InvalidRequestError, match="more than one question waits"):
        questions.read("approve")
    assert [question.step for question, _ in questions.answer("retry: it was the network")] == ["build"]
    assert [question.step for question, _ in questions.answer({"question": "q1", "option": "Approve"})] == ["release"]
    [(question, answer)] = questions.answer(
        {"question": "deploy", "option": "reject", "text": "too early", "by": "ada"}
    )
    assert (question.chosen, answer.text, answer.by, answer.at) == ("reject", "too early", "ada", NOW)
    assert questions.waiting == ()
    with pytest.raises(InvalidRequestError, match="nothing waits for an answer now"):
        questions.answer("approve")


def test_an_answer_to_one_of_several_gates_is_shown_how_to_name_one(questions: Questions) -> None:
    for each in (failed("build"), gate("release"), gate("deploy")):
        questions.ask(each)
    example = r'Waiting: q2 \(release\), q3 \(deploy\). Send for example: {"question": "q2", "option": "approve"}'
    with pytest.raises(InvalidRequestError, match=example):
        questions.read("approve")


def test_the_json_that_is_shown_is_an_answer(questions: Questions) -> None:
    opened = questions.ask(gate("release"))
    assert opened.json_for("reject") == '{"question": "q1", "option": "reject"}'
    assert questions.answer({"question": "q1", "option": "reject"})[0][0].chosen == "reject"


@pytest.mark.parametrize("value", [None, 3, {}, {"option": "approve", "word": "x"}, {"question": "q9", "option": "x"}])
def test_what_answers_nothing_is_refused_with_an_example(questions: Questions, value: object) -> None:
    questions.ask(gate("release"))
    with pytest.raises(InvalidRequestError, match=r'Send for example: \{"question": "q1", "option": "approve"\}'):
        questions.read(value)


def test_several_people_have_to_agree_and_one_can_refuse(questions: Questions) -> None:
    questions.ask(gate("release", count=2))
    [(question, _)] = questions.answer({"option": "approve", "by": "ada"})
    assert question.chosen == ""
    assert questions.is_open("q1")
    with pytest.raises(InvalidRequestError, match="ada has answered q1 already; it needs 2 different people"):
        questions.answer({"option": "approve", "by": "ada"})
    assert questions.answer({"option": "approve", "by": "bob"})[0][0].chosen == "approve"
    questions.ask(gate("release", count=2))
    questions.answer({"option": "approve", "by": "ada"})
    assert questions.answer({"option": "reject", "by": "ada"})[0][0].chosen == "reject"


def test_people_who_have_to_agree_choose_the_same_option(questions: Questions) -> None:
    options = (Option(name="blue"), Option(name="green"), Option(name="reject", at_once=True))
    questions.ask(gate("colour", count=2, options=options))
    questions.answer({"option": "blue", "by": "ada"})
    with pytest.raises(
        InvalidRequestError, match=r"ada chose 'blue' for q1, not 'green'\. Agree, or choose one of: reject"
    ):
        questions.answer({"option": "green", "by": "bob"})


def test_a_window_is_answered_together(questions: Questions) -> None:
    for step in ("a", "b"):
        questions.ask(gate(step, window="review"))
    assert [question.step for question, _ in questions.answer("approve")] == ["a", "b"]
    for step in ("a", "b", "c"):
        questions.ask(gate(step, window="review"))
    assert [question.step for question, _ in questions.answer({"question": "b", "option": "approve"})] == ["b"]
    assert [question.step for question, _ in questions.answer({"question": "review", "option": "reject"})] == ["a", "c"]


def test_a_bare_resume_chooses_defaults_only(questions: Questions) -> None:
    questions.ask(gate("release"))
    questions.ask(failed("build"))
    [(question, answer)] = questions.answer_by_default(by="ada")
    assert (question.step, question.chosen, answer.by) == ("build", "retry", "ada")
    assert [each.step for each in questions.waiting] == ["release"]


def test_texts_of_a_question_are_bounded(questions: Questions) -> None:
    opened = questions.ask(gate("a", title="x" * 2_000, evidence=("y" * 1_000,) * 50))
    assert len(opened.title) == 600
    assert (len(opened.evidence), len(opened.evidence[0])) == (20, 300)


def test_only_what_a_person_decided_has_a_time_to_answer(waited: list[tuple[QuestionKind, timedelta]]) -> None:
    clock = iter(NOW + timedelta(minutes=minute) for minute in range(100))
    asked = Questions(now=lambda: next(clock), count=ignore, count_wait=lambda *one: waited.append(one))
    first, own, ended = (
        asked.ask(failed(step).evolve(kind=kind))
        for step, kind in (("a", QuestionKind.FAILED_STEP), ("b", QuestionKind.OPERATOR), ("c", QuestionKind.GATE))
    )
    asked.close(ended.id)
    for question in (own, first):
        asked.answer({"question": question.id, "option": "retry"})
    [(kind, time)] = waited
    assert kind is QuestionKind.FAILED_STEP
    assert time > timedelta()
