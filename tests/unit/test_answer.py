"""What a person may answer an executor: read leniently, refused with a sentence, kept for the iteration."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.control import Remark, as_answer, read_amendment, read_answer
from tightloop.display import details_markdown, status_label
from tightloop.episode import EpisodeRequest, EpisodeState, PauseKind
from tightloop.errors import InvalidRequestError
from tightloop.executor import (
    PERMISSION_ANSWERS,
    Answer,
    AnswerKind,
    ExecutorReport,
    ExecutorStatus,
    Question,
    QuestionKind,
    ResumeToken,
    answered,
)
from tightloop.loop import after_execution, begin_iteration, with_grant, with_report

PERMISSION = Question(kind=QuestionKind.PERMISSION, title="rm -rf build", detail="in the workspace", fingerprint="f1")
WORK = Question(kind=QuestionKind.WORK, title="solder the cable")
ASKING = ExecutorReport(
    key="k",
    status=ExecutorStatus.NEEDS_PERSON,
    question=PERMISSION,
    resume=ResumeToken(adapter="codex", session_id="s1"),
    new_tree="t0",
)


@pytest.mark.parametrize(
    ("question", "value", "kind", "text"),
    [
        (PERMISSION, "allow", "allow", ""),
        (PERMISSION, " Deny: it is mine ", "deny", "it is mine"),
        (PERMISSION, True, "allow", ""),
        (PERMISSION, {"allow": False, "text": "no"}, "deny", "no"),
        (PERMISSION, {"answer": "allow"}, "allow", ""),
        (WORK, "done", "done", ""),
        (WORK, "failed: no iron: it is cold", "failed", "no iron: it is cold"),
        (WORK, "refused: unsafe", "refused", "unsafe"),
        (WORK, {"done": True, "text": "two joints"}, "done", "two joints"),
        (WORK, {"done": False, "text": "no tin"}, "failed", "no tin"),
        (WORK, {"answer": "refused", "text": "unsafe", "by": "ada"}, "refused", "unsafe"),
    ],
)
def test_answers_are_read_as_people_write_them(question: Question, value: Any, kind: str, text: str) -> None:
    answer = read_answer(value, question)
    assert (answer.kind.value, answer.text) == (kind, text)


@pytest.mark.parametrize(
    ("question", "value", "sentence"),
    [
        (PERMISSION, None, "answer: the value: Input should be a valid dictionary"),
        (PERMISSION, "done", "'done' does not answer 'rm -rf build'. Send for example: {\"allow\": true"),
        (WORK, "allow", "'allow' does not answer 'solder the cable'. Send for example: {\"done\": true"),
        (WORK, {"allow": True}, "does not answer"),
        (PERMISSION, {"alow": True}, "answer: alow: Extra inputs are not permitted"),
        (PERMISSION, "", "'' does not answer"),
    ],
)
def test_what_is_no_answer_is_refused_with_a_right_one(question: Question, value: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_answer(value, question)
    assert sentence in refused.value.message
    assert "Send for example: " in refused.value.message


@given(st.text(max_size=40))
def test_any_text_reports_on_work_and_only_its_own_words_give_a_permission(text: str) -> None:
    assert as_answer(Remark(text=text), WORK) is not None
    permission = as_answer(Remark(text=text), PERMISSION)
    assert permission is None or permission.kind in PERMISSION_ANSWERS


def test_a_plain_remark_reports_work_but_never_gives_a_permission() -> None:
    assert as_answer(Remark(text="two joints", by="ada"), WORK) == Answer(
        kind=AnswerKind.DONE, text="two joints", by="ada"
    )
    assert as_answer(Remark(), WORK) == Answer(kind=AnswerKind.DONE)
    assert as_answer(Remark(text="failed: no tin"), WORK) == Answer(kind=AnswerKind.FAILED, text="no tin")
    assert as_answer(Remark(text="sure, go on"), PERMISSION) is None
    assert as_answer(Remark(text="deny"), PERMISSION) == Answer(kind=AnswerKind.DENY)


def test_a_question_pauses_keeps_the_session_and_counts_as_nothing() -> None:
    state = with_report(EpisodeState(limit_strikes=0), ASKING)
    decision = after_execution(state, ASKING)
    assert decision.pause is not None
    assert decision.pause.kind is PauseKind.RESPONSE
    assert decision.pause.question == PERMISSION
    assert "rm -rf build: in the workspace" in decision.pause.reason
    assert (state.resume, state.spent.executor_failures, state.executor_error) == (ASKING.resume, 0, "")


def test_the_last_answer_counts_and_is_forgotten_in_the_next_iteration() -> None:
    state = with_grant(with_grant(EpisodeState(), PERMISSION, allowed=True), PERMISSION, allowed=False)
    assert [(grant.fingerprint, grant.allowed) for grant in state.grants] == [("f1", False)]
    assert begin_iteration(state).grants == ()


@pytest.mark.parametrize(("allowed", "failures"), [(False, 0), (True, 1)])
def test_to_obey_a_person_who_said_no_is_no_failure(allowed: bool, failures: int) -> None:
    state = with_grant(EpisodeState(), PERMISSION, allowed=allowed)
    refused = ExecutorReport(key="k", status=ExecutorStatus.REFUSED)
    assert with_report(state, refused).spent.executor_failures == failures


@pytest.mark.parametrize(
    ("kind", "tree", "status"),
    [
        (AnswerKind.DONE, "t1", ExecutorStatus.COMPLETED),
        (AnswerKind.DONE, "t0", ExecutorStatus.NO_CHANGE),
        (AnswerKind.FAILED, "t1", ExecutorStatus.FAILED),
        (AnswerKind.REFUSED, "t0", ExecutorStatus.REFUSED),
    ],
)
def test_the_report_on_a_persons_work_says_what_the_tree_says(kind: AnswerKind, tree: str, status: str) -> None:
    report = answered(ASKING, Answer(kind=kind, text="two joints", by="ada"), tree=tree)
    assert (report.status, report.new_tree, report.question) == (status, tree, None)
    assert (report.summary or report.error) == "ada: two joints"


def test_a_question_without_content_says_at_least_that() -> None:
    decision = after_execution(EpisodeState(), ExecutorReport(key="k", status=ExecutorStatus.NEEDS_PERSON))
    assert decision.pause is not None
    assert decision.pause.kind is PauseKind.FATAL
    assert "needs_person" in decision.pause.reason


@pytest.mark.parametrize(("question", "word"), [(PERMISSION, '{"allow": true'), (WORK, '{"done": true')])
def test_the_details_show_the_json_of_every_answer(question: Question, word: str) -> None:
    report = ASKING.model_copy(update={"question": question})
    state = EpisodeState(pause=after_execution(EpisodeState(), report).pause)
    text = details_markdown(EpisodeRequest(goal="g"), state, status="paused")
    assert text.startswith("**NEEDS RESPONSE**")
    assert "update `answer`" in text
    assert word in text
    assert question.title in text


def test_only_a_pause_for_an_answer_needs_a_response() -> None:
    assert status_label("paused", "needs_response") == "NEEDS RESPONSE"
    assert status_label("paused", "budget") == "paused"
    assert status_label("running", "needs_response") == "running"


def test_an_amendment_may_change_who_works() -> None:
    request = EpisodeRequest.model_validate(
        {"goal": "g", "executor": {"name": "codx", "model": "m", "fallback": ["a"]}}
    )
    by_name = read_amendment({"executor": "codex"}).applied(request)
    assert (by_name.executor.name, by_name.executor.model, by_name.executor.fallback) == ("codex", "", ("a",))
    rules = read_amendment({"executor": {"fallback": [], "permissions": "ask"}}).applied(request)
    assert (rules.executor.name, rules.executor.model) == ("codx", "m")
    assert (rules.executor.fallback, rules.executor.permissions.value) == ((), "ask")
    assert read_amendment({"planner": "heuristic"}).applied(request).planner == "heuristic"
    with pytest.raises(InvalidRequestError, match=r"executor\.nam: Extra inputs"):
        read_amendment({"executor": {"nam": "codex"}})
