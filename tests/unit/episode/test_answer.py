"""Answers: what a person decides, what it leads to, and that words typed in prose decide nothing."""

import asyncio
import itertools
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.runs import KeptMeter
from tightloop.episode.budget import Budget, Spent
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.control import EpisodeInput, details_markdown, find_restore_point, read_amendment
from tightloop.episode.decisions import after_execution, alignment_question, make_question
from tightloop.episode.model import EpisodePhase, EpisodeRequest, EpisodeState
from tightloop.episode.planning import PlanningOutcome, PlanVerdict
from tightloop.episode.state_changes import (
    begin_iteration,
    with_answer,
    with_grant,
    with_plan,
    with_refused_proof,
    with_report,
)
from tightloop.errors import InvalidRequestError
from tightloop.executor.asking import clarifying_question, permission_question, report_on_work, work_question
from tightloop.executor.model import ExecutorChoice, ExecutorReport, ExecutorStatus, Grant, ResumeToken
from tightloop.run.commands import read_remark
from tightloop.run.question import Answer, Question, QuestionKind, evidence_of, match_answers, parse_answer
from tightloop.safety.rubric import Finding, Topic, Verdict
from tightloop.wording import status_label
from workflows.episode.record import EpisodeRecord
from workflows.episode.workflow import EpisodeCommands

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PERMISSION = permission_question("rm -rf build", "in the workspace", "f1").evolve(id="q1")
WORK = work_question("solder the cable").evolve(id="q1")
FINDING = Finding(rule="rewrites_history", topic=Topic.DAMAGE, verdict=Verdict.DENY, fingerprint="f2")
ALIGNMENT = alignment_question((FINDING,))
BUDGET = make_question(QuestionKind.BUDGET, "the budget is spent: iterations 5 of 5")
ASKING = ExecutorReport(
    key="k",
    status=ExecutorStatus.NEEDS_PERSON,
    question=PERMISSION,
    resume=ResumeToken(adapter="codex", session_id="s1"),
    new_tree="t0",
)
SENTENCES = [
    " ".join(words).strip()
    for words in itertools.product(
        ("", "yes,", "no,", "sure,", "ok:", "ada:", '{"option":', "done:", "please"),
        ("allow", "allow it", "keep the tests", "extend", "I allow this", "go on", "continue", "approve", '"allow"}'),
        ("", "now", "as before", "!", "q1", "and push", "or not", "this once"),
    )
] + [
    "allow",
    "allow: it is fine",
    "yes, allow it",
    "keep the tests",
    "done: allow",
    "extend",
    '{"option": "allow"}',
    "ALLOW",
]
"""More than 500 sentences that somebody could type as a message."""


class Episode:
    """What of an episode takes messages, without a server."""

    def __init__(self, question: Question) -> None:
        state = with_plan(EpisodeState(), PlanningOutcome(verdict=PlanVerdict.PLANNED, findings=(FINDING,)))
        request = EpisodeRequest(budget=Budget(max_iterations=5))
        given = EpisodeInput.of(request, state=state.evolve(budget=request.budget))
        self.meter = KeptMeter()
        self.record = EpisodeRecord(given, run_id="e", now=lambda: NOW, meter=self.meter)
        self.commands = EpisodeCommands(self.record, lambda: None)
        self.question = self.record.ask(question)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing was decided."""
        return self.record.waiting == (self.question,) and self.record.take_answer(self.question.id) is None

    @property
    def interventions(self) -> list[str]:
        """Messages of people that were counted."""
        return [labels["message"] for name, labels in self.meter.counted if name == "tightloop_interventions"]

    def respond(self, value: Any) -> str:
        """Take the argument of the update `respond`."""
        return self.commands.respond(self.commands.read_response(value))

    def resume(self, note: Any) -> None:
        """Take the argument of the signal `resume`."""
        asyncio.run(self.commands.resume(note))

    def answer(self, value: Any) -> str:
        """Take the argument of the update `answer`."""
        return asyncio.run(self.commands.answer(self.record.read_answer(value)))


@pytest.mark.parametrize("question", [PERMISSION, ALIGNMENT, BUDGET], ids=lambda question: question.kind.value)
def test_no_sentence_allows_anything(question: Question) -> None:
    assert len(set(SENTENCES)) > 500
    for sentence in SENTENCES:
        # A new one each time, because only a limited number of messages may wait for the planner.
        episode = Episode(question)
        said = episode.respond(sentence)
        assert "still needs an answer: " in said
        for note in (sentence, {"note": sentence}, {"text": sentence, "by": "ada"}):
            episode.resume(note)
        episode.commands.pause(read_remark(sentence))
        assert episode.is_waiting, sentence
        state = episode.record.state
        assert (state.overruled, state.grants, state.budget) == ((), (), episode.record.request.budget)


@given(st.text(max_size=60))
def test_no_text_allows_anything(text: str) -> None:
    episode = Episode(PERMISSION)
    episode.resume({"note": text})
    if text.strip():
        episode.respond(text)
    assert episode.is_waiting


def test_a_message_ends_a_wait_that_needs_no_decision_but_reports_no_work() -> None:
    deviation = Episode(make_question(QuestionKind.DEVIATION, "it left its course"))
    assert deviation.respond("use the other parser") == "the planner will read the message. The episode continues"
    assert deviation.record.waiting == ()
    work = Episode(WORK)
    assert "still needs an answer" in work.respond("I could not do it")
    assert work.is_waiting
    work.resume("two joints")
    assert work.is_waiting
    work.answer({"question": "q1", "option": "done", "text": "two joints"})
    answer = work.record.take_answer("q1")
    assert answer is not None
    assert (answer.option, answer.text) == ("done", "two joints")


def test_the_note_of_a_resume_at_an_operators_pause_is_in_the_timeline() -> None:
    episode = Episode(make_question(QuestionKind.OPERATOR, "lunch", by="ada"))
    episode.resume({"note": "the key is there now", "by": "bob"})
    line = episode.record.core.timeline[-1]
    assert (line.kind, line.text) == ("answered", "bob chose resume for 'lunch': the key is there now")


def test_a_resume_that_decides_nothing_says_what_is_needed() -> None:
    episode = Episode(ALIGNMENT)
    episode.resume({"note": "keep the tests", "by": "ada"})
    last = episode.record.core.timeline[-1]
    assert last.kind == "refused"
    assert (
        last.text == "cannot resume: q1 needs a decision: refuse, allow, cancel. Send an answer, for example: "
        '{"question": "q1", "option": "refuse"}'
    )
    assert episode.record.state.notes == ("keep the tests",)


def test_the_option_cancel_ends_the_episode() -> None:
    episode = Episode(BUDGET)
    assert episode.answer("cancel: enough") == "the answer is 'cancel', so the episode will end"
    assert episode.record.core.cancel == "enough"


def test_extend_raises_the_reached_bounds_by_their_first_amounts() -> None:
    first = Budget(max_iterations=5, warn_at_iteration=4, max_cost_usd=1.0, max_tokens=1_000)
    spent = Spent(iterations=5, cost_usd=2.5, input_tokens=10)
    state = EpisodeState(budget=first, spent=spent)
    extended = with_answer(state, BUDGET, Answer(question="q1", option="extend"), first=first).budget
    assert (extended.max_iterations, extended.warn_at_iteration) == (10, 9)
    assert (extended.max_cost_usd, extended.max_tokens) == (3.5, 1_000)


@pytest.mark.parametrize(
    ("question", "value", "option", "text"),
    [
        (PERMISSION, "allow", "allow", ""),
        (PERMISSION, " Deny: it is mine ", "deny", "it is mine"),
        (PERMISSION, {"option": "deny", "text": "no"}, "deny", "no"),
        (WORK, "done", "done", ""),
        (WORK, "failed: no iron: it is cold", "failed", "no iron: it is cold"),
        (WORK, {"question": "q1", "option": "refused", "text": "unsafe", "by": "ada"}, "refused", "unsafe"),
    ],
)
def test_answers_are_read_as_people_write_them(question: Question, value: Any, option: str, text: str) -> None:
    [(_, answer)] = match_answers(parse_answer(value), (question,))
    assert (answer.option, answer.text) == (option, text)


@pytest.mark.parametrize(
    ("question", "value", "sentence"),
    [
        (PERMISSION, None, "answer: the input: must be fields"),
        (PERMISSION, "done", "'done' is not an option of q1 ('rm -rf build'). Options: allow, deny"),
        (WORK, "allow", "Options: done, failed, refused"),
        (WORK, {"allow": True}, "answer: unknown field 'allow'. Known: by, option, question, text. Example: "),
        (PERMISSION, "", "'' is not an option"),
    ],
)
def test_what_answers_nothing_is_refused_with_an_example(question: Question, value: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        match_answers(parse_answer(value), (question,))
    assert sentence in refused.value.message
    assert "Example: " in refused.value.message


def test_the_whole_command_is_evidence_however_long_it_is() -> None:
    command = "x" * 1_000
    assert "".join(evidence_of(command)) == command
    secret = "ghp_" + "aB3dE5gH7j" * 3 + "kL9mN1"
    assert any(secret in line for line in evidence_of("y" * 280 + " " + secret + " z"))


def test_a_question_pauses_keeps_the_session_and_counts_as_nothing() -> None:
    state = with_report(EpisodeState(failed_deliveries=0), ASKING)
    decision = after_execution(state, ASKING, ExecutorChoice())
    assert decision.question == PERMISSION
    assert (state.resume, state.spent.executor_failures, state.executor_error) == (ASKING.resume, 0, "")


def test_the_last_answer_counts_and_is_forgotten_in_the_next_iteration() -> None:
    state = with_grant(with_grant(EpisodeState(), PERMISSION, allowed=True), PERMISSION, allowed=False)
    assert [(grant.fingerprint, grant.allowed) for grant in state.grants] == [("f1", False)]
    assert begin_iteration(state).grants == ()


@pytest.mark.parametrize(("option", "allowed"), [("answer", True), ("skip", False)])
def test_the_answer_to_a_question_of_an_agent_is_granted_with_its_text(option: str, allowed: bool) -> None:
    question = clarifying_question("which rounding?", "", "f2").evolve(id="q1")
    answer = Answer(question="q1", option=option, text="half even", by="ada")
    state = with_answer(EpisodeState(), question, answer, first=Budget())
    assert state.grants == (Grant(fingerprint="f2", allowed=allowed, text="half even"),)
    assert state.notes == ("ada, asked 'which rounding?': half even",)


def test_what_a_person_says_with_a_permission_is_granted_with_it() -> None:
    state = with_answer(EpisodeState(), PERMISSION, Answer(question="q1", option="deny", text="no"), first=Budget())
    assert [(grant.allowed, grant.text) for grant in state.grants] == [(False, "no")]


@pytest.mark.parametrize(("allowed", "failures"), [(False, 0), (True, 1)])
def test_to_obey_a_person_who_said_no_is_no_failure(allowed: bool, failures: int) -> None:
    state = with_grant(EpisodeState(), PERMISSION, allowed=allowed)
    refused = ExecutorReport(key="k", status=ExecutorStatus.REFUSED)
    assert with_report(state, refused).spent.executor_failures == failures


@pytest.mark.parametrize(
    ("option", "tree", "status"),
    [
        ("done", "t1", ExecutorStatus.COMPLETED),
        ("done", "t0", ExecutorStatus.NO_CHANGE),
        ("failed", "t1", ExecutorStatus.FAILED),
        ("refused", "t0", ExecutorStatus.REFUSED),
    ],
)
def test_the_report_on_a_persons_work_says_what_the_tree_says(option: str, tree: str, status: str) -> None:
    report = report_on_work(ASKING, Answer(question="q1", option=option, text="two joints", by="ada"), tree=tree)
    assert (report.status, report.new_tree, report.question) == (status, tree, None)
    assert (report.summary or report.error) == "ada: two joints"


def test_a_question_without_content_says_at_least_that() -> None:
    decision = after_execution(
        EpisodeState(), ExecutorReport(key="k", status=ExecutorStatus.NEEDS_PERSON), ExecutorChoice()
    )
    assert decision.question is not None
    assert decision.question.kind is QuestionKind.FATAL
    assert "needs_person" in decision.question.title


@pytest.mark.parametrize("question", [PERMISSION, WORK, ALIGNMENT, BUDGET], ids=lambda question: question.kind.value)
def test_the_details_show_the_json_of_every_option(question: Question) -> None:
    waiting = (question.evolve(id="q1"),)
    text = details_markdown(EpisodeRequest(goal="g"), EpisodeState(), waiting, episode_id="e", status="paused")
    shown = [line.split("`")[-2] for line in text.splitlines() if "update `answer`" in line]
    options = [match_answers(parse_answer(json.loads(value)), waiting)[0][1].option for value in shown]
    assert tuple(options) == question.names
    assert question.title in text
    assert ("`resume` alone does not answer it" in text) == (not question.default)


def test_the_details_of_what_has_ended_offer_no_message() -> None:
    ended = EpisodeState(phase=EpisodePhase.CLOSED)
    text = details_markdown(EpisodeRequest(goal="g"), ended, episode_id="e", status="succeeded")
    assert not any(word in text for word in ("signal `", "update `"))
    assert '{"restore": {"checkpoint_id": "ckpt-0"}}' in text


def test_only_a_question_of_the_executor_needs_a_response() -> None:
    assert status_label("paused", "permission") == "NEEDS RESPONSE"
    assert status_label("paused", "work") == "NEEDS RESPONSE"
    assert status_label("paused", "budget") == "paused"
    assert status_label("running", "permission") == "running"


def test_an_amendment_may_change_who_works() -> None:
    request = EpisodeRequest.model_validate(
        {"goal": "g", "executor": {"name": "codx", "model": "m", "fallback": ["a"], "options": {"effort": "high"}}}
    )
    by_name = read_amendment({"executor": "codex"}).apply_to(request)
    assert (by_name.executor.name, by_name.executor.model, by_name.executor.fallback) == ("codex", "", ("a",))
    assert by_name.executor.options == {"effort": "high"}
    assert read_amendment({"executor": "person"}).apply_to(by_name).executor.options == {}
    with_options = read_amendment({"executor": {"name": "command", "options": {"argv": ["agent"]}}}).apply_to(request)
    assert with_options.executor.options == {"argv": ["agent"]}
    rules = read_amendment({"executor": {"fallback": [], "permissions": "ask"}}).apply_to(request)
    assert (rules.executor.name, rules.executor.model) == ("codx", "m")
    assert rules.executor.options == {"effort": "high"}
    assert (rules.executor.fallback, rules.executor.permissions.value) == ((), "ask")
    assert read_amendment({"planner": "heuristic"}).apply_to(request).planner == "heuristic"
    with pytest.raises(InvalidRequestError, match=r"unknown field 'executor\.nam'\. Did you mean 'name'\?"):
        read_amendment({"executor": {"nam": "codex"}})


def test_what_people_do_is_counted_and_what_is_refused_or_comes_from_an_agent_is_not() -> None:
    episode = Episode(BUDGET)
    commands = episode.commands
    commands.pause(read_remark("a reason, while a question waits"))
    episode.respond({"text": "a remark of an agent", "resumes": False})
    with pytest.raises(InvalidRequestError):
        commands.read_top_up({"iterations": "many"})
    assert episode.interventions == []
    episode.respond("leave the flaky test")
    asyncio.run(commands.top_up(commands.read_top_up({"iterations": 5, "by": "ada"})))
    assert episode.record.core.timeline[-1].text == "5 iterations (by ada)"
    commands.amend(read_amendment({"goal": "another"}))
    episode.resume(None)
    commands.pause(read_remark(None))
    episode.resume("after all")
    commands.cancel(read_remark("enough"))
    assert episode.interventions == ["respond", "top_up", "amend", "pause", "resume", "cancel"]
    assert episode.record.state.spent.interventions == 6


def test_an_answer_that_cancels_is_one_intervention() -> None:
    episode = Episode(BUDGET)
    episode.answer("cancel")
    assert episode.interventions == ["answer"]


def test_the_report_of_an_agent_is_no_intervention() -> None:
    episode = Episode(WORK.evolve(blocks=""))
    episode.answer("done: two joints")
    assert episode.interventions == []


def records(*refused: str) -> tuple[CheckpointRecord, ...]:
    names = [f"ckpt-{number}" for number in range(5)]
    parents = [None, *names]
    return tuple(
        CheckpointRecord(id=name, iteration=number, tree=f"t{number}", parent=parent, refused=name in refused)
        for number, (name, parent) in enumerate(zip(names, parents, strict=False))
    )


@pytest.mark.parametrize(
    ("kind", "phase", "refused", "expected"),
    [
        (QuestionKind.OPERATOR, EpisodePhase.TRACKING, (), "ckpt-4"),
        (QuestionKind.ALIGNMENT, EpisodePhase.PLANNING, (), "ckpt-4"),
        (QuestionKind.ALIGNMENT, EpisodePhase.TRACKING, (), "ckpt-3"),
        (QuestionKind.PROOF, EpisodePhase.PROVING, (), "ckpt-3"),
        (QuestionKind.OPERATOR, EpisodePhase.TRACKING, ("ckpt-4", "ckpt-3"), "ckpt-2"),
        (QuestionKind.PROOF, EpisodePhase.PROVING, ("ckpt-3",), "ckpt-2"),
        (QuestionKind.OPERATOR, EpisodePhase.TRACKING, tuple(f"ckpt-{number}" for number in range(5)), "ckpt-0"),
    ],
)
def test_no_checkpoint_with_refused_work_is_offered(
    kind: QuestionKind, phase: EpisodePhase, refused: tuple[str, ...], expected: str
) -> None:
    state = EpisodeState(checkpoints=records(*refused), phase=phase, tree="t4")
    assert find_restore_point(state, (make_question(kind, "?"),)) == expected


def test_refused_work_is_marked_in_its_checkpoints() -> None:
    state = EpisodeState(checkpoints=records(), phase=EpisodePhase.TRACKING, tree="t4", findings=(FINDING,))
    refused = with_answer(state, ALIGNMENT, Answer(question="q1", option="refuse", by="ada"), first=state.budget)
    proof = with_refused_proof(state, "the checks pass, but", ())
    for changed in (refused, proof):
        assert [record.id for record in changed.checkpoints if record.refused] == ["ckpt-4"]
