"""The rules of the loop: what ends it, what pauses it, what it counts, and what it never forgets."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.runs import BareRun
from tightloop.episode.budget import Budget, Spent
from tightloop.episode.check import Check, FailedCheck, Verification
from tightloop.episode.checkpoint import RECENT_LIMIT, CheckpointRecord, Tracked, checkpoint_id
from tightloop.episode.control import EpisodeInput
from tightloop.episode.decisions import (
    ALLOW,
    CONTINUE,
    EXTEND,
    REFUSE,
    SUCCEED,
    Decision,
    NextAction,
    after_execution,
    after_planning,
    after_tracking,
    failure_of,
    guard_rails,
    is_complete,
    make_question,
    may_continue_as_new,
    must_find_failing_check,
)
from tightloop.episode.failure import Failure, FailureKind, FailureStreak
from tightloop.episode.model import GOAL_CHARACTERS, EpisodeOutcome, EpisodePhase, EpisodeRequest, EpisodeState
from tightloop.episode.planning import PlanningOutcome, PlanVerdict, ReflectCause, ReflectionOutcome
from tightloop.episode.progress.tracking import ProbabilityClass, Reason, ReasonKind, Tracking
from tightloop.episode.state_changes import (
    TREES_REMEMBERED,
    begin_iteration,
    restore_state,
    result_of,
    with_answer,
    with_ended_wait,
    with_note,
    with_plan,
    with_reflection,
    with_refused_proof,
    with_report,
    with_retries,
    with_tracking,
    with_verification,
    with_working_time,
)
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import ExecutorChoice, ExecutorReport, ExecutorStatus, LimitHit, ResumeToken, Usage
from tightloop.run.question import Answer, QuestionKind
from tightloop.value import ArtifactRef, reference

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
REQUEST = EpisodeRequest(goal="make it green", workspace="/home/ada/shop", definition_of_done=(Check(run="pytest"),))
TROUBLE = [s for s in ExecutorStatus if s.value not in ("completed", "no_change", "limit_hit")]


def record(number: int, **more: Any) -> CheckpointRecord:
    parent = checkpoint_id(number - 1) if number else None
    return CheckpointRecord.model_validate(
        {"id": checkpoint_id(number), "iteration": number, "tree": f"tree-{number}", "parent": parent} | more
    )


def red(signature: str = "s", *, progress: bool = False) -> Verification:
    failed = (FailedCheck(name="pytest", signature=signature),)
    return Verification(tree="t", total=1, failed=failed, failed_count=1, signature=signature, progress=progress)


GREEN = Verification(tree="t", total=1)


def tracked(number: int = 1, *, verdict: ProbabilityClass = ProbabilityClass.HIGH, files: int = 1) -> Tracked:
    reasons = (Reason(kind=ReasonKind.RATIO, implies=verdict, detail="0.1 of the tree is unchanged"),)
    tracking = Tracking(probability_class=verdict, reasons=reasons, files_changed=files)
    return Tracked(tracking=tracking, checkpoint=record(number))


def after_iterations(
    *verifications: Verification, verdict: ProbabilityClass = ProbabilityClass.HIGH, files: int = 1
) -> EpisodeState:
    """Return the state after iterations that ended with these verifications."""
    state = EpisodeState(baseline_red=True)
    for number, verification in enumerate(verifications, start=1):
        state = with_verification(begin_iteration(state), verification)
        made = tracked(number, verdict=verdict, files=files)
        tracking = made.tracking.evolve(progress=verification.progress)
        state = with_tracking(state, made.evolve(tracking=tracking), verification)
    return state


amounts = st.integers(min_value=0, max_value=1000)
spendings = st.builds(Spent, iterations=amounts, executor_failures=amounts, input_tokens=amounts)
statuses = st.one_of(st.none(), st.sampled_from(ExecutorStatus))
verdicts = st.one_of(st.none(), st.sampled_from(PlanVerdict))
failures = st.builds(Failure, kind=st.sampled_from(FailureKind), signature=st.sampled_from(["a", "b"]))
states = st.builds(
    EpisodeState,
    iteration=amounts,
    branch=st.integers(min_value=1, max_value=9),
    plan_final=st.booleans(),
    plan_verdict=verdicts,
    checks_green=st.booleans(),
    baseline_red=st.booleans(),
    circles=st.booleans(),
    failures=st.builds(
        FailureStreak,
        last=failures,
        times=st.integers(min_value=1, max_value=5),
        iterations=st.integers(min_value=1, max_value=7),
        unchanged=st.integers(min_value=0, max_value=5),
    ),
    failed_deliveries=st.integers(min_value=0, max_value=5),
    executor_status=statuses,
    spent=spendings,
    notes=st.lists(st.text(max_size=5), max_size=5).map(tuple),
    checkpoints=st.integers(min_value=0, max_value=RECENT_LIMIT).map(lambda size: tuple(map(record, range(size)))),
    runs=st.integers(min_value=1, max_value=9),
)


# what ends an episode


@given(states)
def test_episode_is_complete_only_with_green_checks_that_mean_something(state: EpisodeState) -> None:
    assert is_complete(state) == (state.checks_green and (state.baseline_red or state.plan_final))
    assert (after_tracking(state, REQUEST) == SUCCEED) == is_complete(state)


def test_claim_without_green_checks_is_not_success() -> None:
    claimed = with_plan(EpisodeState(), PlanningOutcome(verdict=PlanVerdict.CLAIMS_DONE))
    assert claimed.plan_final
    assert not is_complete(with_verification(claimed, red()))
    assert is_complete(with_verification(claimed, GREEN))


def test_checks_that_were_green_from_the_start_are_not_success_by_themselves() -> None:
    state = with_verification(EpisodeState(), GREEN, baseline=True)
    assert not is_complete(with_verification(state, GREEN))


def test_checks_that_turn_green_are_success() -> None:
    state = with_verification(EpisodeState(), red(), baseline=True)
    assert state.baseline_red
    assert is_complete(with_verification(state, GREEN))


def test_refused_proof_is_repeated_once_its_finding_was_planned() -> None:
    passed = with_verification(EpisodeState(baseline_red=True, tree="t"), GREEN)
    refused = with_refused_proof(passed, "the checks pass, but 1 of 2 hidden scenarios fails", ())
    assert after_tracking(refused, REQUEST) == CONTINUE
    planned = with_plan(refused, PlanningOutcome(verdict=PlanVerdict.PLANNED), refused.notes)
    assert after_tracking(planned, REQUEST) == SUCCEED


# what pauses an episode


@given(states, st.booleans())
def test_end_of_an_iteration_pauses_only_after_iterations_without_progress(
    state: EpisodeState, unattended: bool
) -> None:
    decision = after_tracking(state, REQUEST.evolve(unattended=unattended))
    is_stuck = state.failures.iterations >= REQUEST.pause_after and not is_complete(state)
    assert (decision.action is NextAction.ASK) == (is_stuck and not unattended)
    if decision.question is not None:
        assert decision.question.kind is (QuestionKind.DEVIATION if state.circles else QuestionKind.REPEATED_ERROR)
        assert decision.question.title
        assert decision.question.options


def asked_after(*verifications: Verification, **fields: Any) -> str:
    """Return the title of the question after iterations, or ""."""
    question = after_tracking(after_iterations(*verifications, **fields), REQUEST).question
    return question.title if question is not None else ""


def test_same_error_four_times_in_a_row_pauses() -> None:
    assert asked_after(*[red()] * 3) == ""
    assert asked_after(*[red()] * 4) == "the same error 4 times without progress: the check fails: pytest"


def test_iterations_that_bring_nothing_pause_whatever_their_errors() -> None:
    assert asked_after(*map(red, "abca")) == "4 iterations in a row made no progress (the check fails: pytest)"


def test_iterations_that_change_no_file_pause() -> None:
    assert asked_after(*map(red, "abca"), files=0) == "4 iterations in a row changed no files (the check fails: pytest)"


def test_progress_starts_the_count_anew() -> None:
    assert asked_after(red(), red(), red(), red("fewer", progress=True), *[red("fewer")] * 3) == ""
    assert asked_after(red("fewer", progress=True), *[red("fewer")] * 4)


def test_unattended_episode_tells_of_every_fourth_iteration() -> None:
    unattended = REQUEST.evolve(unattended=True)
    decisions = [after_tracking(after_iterations(*[red()] * count), unattended).action for count in range(1, 9)]
    assert [count for count, action in enumerate(decisions, start=1) if action is NextAction.TELL] == [4, 8]
    assert NextAction.ASK not in decisions


def test_class_alone_does_not_pause() -> None:
    low = ProbabilityClass.LOW
    assert asked_after(*(red(mark, progress=True) for mark in "abcdefgh"), verdict=low) == ""


@pytest.mark.parametrize(("minutes", "is_over"), [(-1, False), (0, True), (1, True)])
def test_no_iteration_begins_after_the_time_to_stop(minutes: int, is_over: bool) -> None:
    until = datetime(2026, 11, 30, 7, tzinfo=UTC)
    state = EpisodeState(budget=Budget(until=until))
    question = guard_rails(state, until + timedelta(minutes=minutes)).question
    assert (question is not None) == is_over
    if question is not None:
        assert question.title == "the budget is spent: until 2026-11-30 07:00 UTC"
        extended = with_answer(state, question, Answer(question="", option=EXTEND, by="ada"), first=Budget(until=until))
        assert extended.budget.until is None


@given(states, st.builds(Budget, max_iterations=st.one_of(st.none(), amounts)))
def test_no_iteration_begins_with_a_spent_budget(state: EpisodeState, budget: Budget) -> None:
    state = state.evolve(budget=budget)
    spent = budget.max_iterations is not None and state.spent.iterations >= budget.max_iterations
    decision = guard_rails(state, datetime.now(UTC))
    if spent:
        assert decision.question is not None
        assert decision.question.kind is QuestionKind.BUDGET
        assert f"iterations {state.spent.iterations} of {budget.max_iterations}" in decision.question.title


def test_planner_that_gives_up_or_disagrees_pauses() -> None:
    gave_up = after_planning(PlanningOutcome(verdict=PlanVerdict.GAVE_UP)).question
    disagrees = after_planning(PlanningOutcome(verdict=PlanVerdict.PLANNED, aligned=False, reason="unsafe")).question
    assert gave_up is not None
    assert disagrees is not None
    assert (gave_up.kind, disagrees.kind) == (QuestionKind.PLANNER_GAVE_UP, QuestionKind.ALIGNMENT)
    assert disagrees.title == "unsafe"
    assert after_planning(PlanningOutcome(verdict=PlanVerdict.MALFORMED)) == CONTINUE


def test_planner_that_calls_the_goal_impossible_asks_with_its_reason() -> None:
    outcome = PlanningOutcome(verdict=PlanVerdict.IMPOSSIBLE, reason="two tests contradict each other")
    question = after_planning(outcome).question
    assert question is not None
    assert (question.kind, question.by, question.default) == (QuestionKind.IMPOSSIBLE, "the planner", "work")
    assert question.title == "the planner stopped: impossible: two tests contradict each other"
    # The messages that it has read are answered, but still there for the plan after the question.
    state = with_plan(EpisodeState(notes=("a",), asked_for=("a",)), outcome, ("a",))
    assert (state.notes, state.asked_for) == (("a",), ())


@pytest.mark.parametrize(
    ("state", "keeps_green", "searches"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"checks_green": False}, False, False),
        ({"green_settled": True}, False, False),
        ({"baseline_red": True}, False, False),
        ({"iteration": 1}, False, False),
        ({"inherited": ArtifactRef(sha256="0" * 64, size_bytes=1)}, False, False),
    ],
)
def test_a_failing_check_is_searched_once_and_only_before_the_first_plan(
    state: dict[str, Any], keeps_green: bool, searches: bool
) -> None:
    start = EpisodeState(**{"checks_green": True, **state})
    assert must_find_failing_check(start, EpisodeRequest(keep_green=keeps_green)) is searches


def repeated(
    report: ExecutorReport, times: int, choice: ExecutorChoice | None = None, **changes: bool
) -> list[Decision]:
    """The decisions after the same report again and again."""
    state, decisions = EpisodeState(), list[Decision]()
    for _ in range(times):
        state = with_report(state, report)
        decisions.append(after_execution(state, report, choice or ExecutorChoice(), **changes))
    return decisions


FAILED = ExecutorReport(key="k", status=ExecutorStatus.FAILED, error="boom\nno such model", failed_at_once=True)
LIMITED = ExecutorReport(key="k", status=ExecutorStatus.LIMIT_HIT, limit=LimitHit(evidence="25 tool calls"))


def test_executor_that_cannot_work_is_asked_about_at_once() -> None:
    [decision] = repeated(ExecutorReport(key="k", status=ExecutorStatus.FATAL, error="no such program"), 1)
    assert decision.question is not None
    assert (decision.question.title, decision.wait) == ("the executor cannot work: no such program", None)


@pytest.mark.parametrize("report", [FAILED, LIMITED])
def test_delivery_that_fails_is_repeated_with_growing_waits_and_asked_about_at_the_twelfth(report) -> None:
    decisions = repeated(report, 12)
    waits = [decision.wait.total_seconds() for decision in decisions if decision.wait]
    assert waits == [10, 20, 40, 80, 160, 320, 640, 900, 900, 900, 900]
    assert [bool(decision.tell) for decision in decisions] == [number == 3 for number in range(1, 13)]
    asked = decisions[-1].question
    assert asked is not None
    assert asked.kind is QuestionKind.LIMIT
    assert asked.title.startswith("12 attempts in a row ")
    assert asked.evidence == (("boom", "no such model") if report is FAILED else ("25 tool calls",))


def test_failing_for_longer_than_two_hours_or_more_often_than_allowed_is_asked_about() -> None:
    patient = repeated(FAILED, 40, ExecutorChoice(retries=40))
    asked = next(number for number, decision in enumerate(patient, 1) if decision.question)
    assert sum(decision.wait.total_seconds() for decision in patient[: asked - 1] if decision.wait) <= 7200
    assert asked == 14
    strict = repeated(FAILED, 2, ExecutorChoice(retries=2))
    assert [bool(decision.question) for decision in strict] == [False, True]


def test_time_that_the_provider_named_is_waited_for_until_it_proved_wrong() -> None:
    soon = LIMITED.evolve(limit=LimitHit(retry_after=timedelta(seconds=2)))
    assert [decision.wait.total_seconds() for decision in repeated(soon, 5) if decision.wait] == [2, 2, 40, 80, 160]
    far = LIMITED.evolve(limit=LimitHit(retry_after=timedelta(hours=5)))
    assert [decision.wait for decision in repeated(far, 11)] == [timedelta(hours=5)] * 11
    [past] = repeated(LIMITED.evolve(limit=LimitHit(retry_after=timedelta(seconds=-5))), 1)
    assert past.wait == timedelta()


def test_login_and_quota_are_asked_about_at_once_and_tried_again_unanswered() -> None:
    login = ExecutorReport(key="k", status=ExecutorStatus.FATAL, error="please log in", limit=LimitHit(kind="auth"))
    decisions = repeated(login, 12)
    assert all(decision.question and decision.question.kind is QuestionKind.FATAL for decision in decisions)
    assert [decision.wait for decision in decisions] == [timedelta(hours=1)] * 11 + [None]
    assert decisions[0].question is not None
    assert decisions[0].question.title.endswith("If nobody answers, the run tries again in 60 min")
    weekly = login.evolve(limit=LimitHit(kind="usage_exhausted", retry_after=timedelta(days=3)))
    assert repeated(weekly, 1)[0].wait == timedelta(days=3)


def test_agent_that_works_in_portions_is_checked_after_three() -> None:
    assert [decision.wait is None for decision in repeated(LIMITED, 3, changed=True)] == [False, False, True]


def test_delivery_that_ends_without_an_error_counts_however_short() -> None:
    report = ExecutorReport(key="k", status=ExecutorStatus.NO_CHANGE)
    assert repeated(report, 3) == [CONTINUE] * 3


def test_person_who_resumes_gives_every_counter_a_new_start() -> None:
    state = after_iterations(red(), red(), red(), verdict=ProbabilityClass.LOW)
    asked = make_question(QuestionKind.REPEATED_ERROR, "the same error")
    after = with_ended_wait(state.evolve(failed_deliveries=3), asked, None)
    assert (after.failures.iterations, after.failed_deliveries) == (0, 0)
    assert after.spent == state.spent


def test_person_who_allows_a_finding_has_not_looked_at_the_course() -> None:
    state = after_iterations(red(), red())
    asked = make_question(QuestionKind.ALIGNMENT, "tests are deleted")
    allowed = Answer(question=asked.id, option=ALLOW, by="ada")
    assert with_ended_wait(state, asked, allowed).failures.iterations == 2
    assert with_ended_wait(state, asked, allowed.evolve(option=REFUSE)).failures.iterations == 0


# what an iteration adds


def test_iterations_are_counted_and_begin_clean() -> None:
    state = begin_iteration(
        EpisodeState(executor_status=ExecutorStatus.FAILED, executor_error="x", failed_deliveries=2)
    )
    assert (state.iteration, state.spent.iterations, state.phase) == (1, 1, EpisodePhase.PLANNING)
    assert (state.executor_status, state.executor_error, state.failed_deliveries) == (None, "", 0)


@pytest.mark.parametrize(("limit", "said"), [(15, "3 iterations left"), (None, "few iterations left")])
def test_planner_is_told_to_converge_near_the_end(limit: int | None, said: str) -> None:
    state = EpisodeState(spent=Spent(iterations=11), budget=Budget(max_iterations=limit))
    assert said in begin_iteration(state).notes[-1]
    assert begin_iteration(EpisodeState()).notes == ()


def test_message_of_the_operator_is_kept_until_a_plan_took_it_in() -> None:
    state = with_note(EpisodeState(), "use the other parser")
    assert with_plan(state, PlanningOutcome(verdict=PlanVerdict.MALFORMED)).notes == ("use the other parser",)
    told, later = state.notes, with_note(state, "and write docs", asks=True)
    planned = with_plan(later, PlanningOutcome(verdict=PlanVerdict.PLANNED), told)
    assert (planned.notes, planned.asked_for) == (("and write docs",), ("and write docs",))


def test_episode_does_not_end_before_what_a_person_asked_for_was_planned() -> None:
    state = with_note(with_verification(EpisodeState(baseline_red=True), GREEN), "and write docs", asks=True)
    assert not is_complete(state)
    assert is_complete(with_plan(state, PlanningOutcome(verdict=PlanVerdict.PLANNED), state.notes))


@pytest.mark.parametrize("status", list(ExecutorStatus))
def test_executor_failures_are_counted_but_limits_cancels_and_questions_are_none(status: ExecutorStatus) -> None:
    fine = ("completed", "no_change", "limit_hit", "cancelled", "needs_person", "paused")
    counted = with_report(EpisodeState(), ExecutorReport(key="k", status=status)).spent.executor_failures
    assert counted == (0 if status.value in fine else 1)


def test_limited_executor_can_go_on_where_it_stopped() -> None:
    token = ResumeToken(adapter="codex", session_id="7")
    limited = ExecutorReport(key="k", status=ExecutorStatus.LIMIT_HIT, resume=token)
    done = ExecutorReport(key="k", status=ExecutorStatus.COMPLETED, resume=token)
    assert with_report(EpisodeState(), limited).resume == token
    assert with_report(EpisodeState(), done).resume is None


@given(states, st.integers(min_value=-1, max_value=20), st.timedeltas())
def test_counted_work_never_shrinks(state: EpisodeState, attempt: int, duration: timedelta) -> None:
    retries = with_retries(state, attempt).spent.infrastructure_retries
    assert retries == state.spent.infrastructure_retries + max(attempt - 1, 0)
    assert with_working_time(state, duration).spent.wall_time >= state.spent.wall_time


def test_usage_and_attempts_of_every_activity_are_counted() -> None:
    usage = Usage(input_tokens=10, output_tokens=1)
    state = with_plan(EpisodeState(), PlanningOutcome(verdict=PlanVerdict.PLANNED, usage=usage, attempt=2))
    state = with_report(state, ExecutorReport(key="k", status=ExecutorStatus.COMPLETED, usage=usage, attempt=2))
    state = with_reflection(
        state, ReflectionOutcome(reflection=reference(b"r", name="reflection"), usage=usage, attempt=3)
    )
    assert (state.spent.tokens, state.spent.infrastructure_retries) == (33, 4)


def test_unknown_tree_of_a_report_changes_nothing() -> None:
    state = EpisodeState(tree="known")
    assert with_report(state, ExecutorReport(key="k", status=ExecutorStatus.OUTCOME_UNKNOWN)).tree == "known"


# what went wrong


@pytest.mark.parametrize("status", TROUBLE)
def test_trouble_of_the_executor_comes_before_red_checks(status: ExecutorStatus) -> None:
    state = EpisodeState(executor_status=status, executor_error="boom", iteration=4)
    failure = failure_of(state, red(), changed=True)
    assert failure is not None
    assert (failure.kind, failure.iteration) == (FailureKind.EXECUTOR, 4)
    assert failure.summary == f"executor {status.value}: boom"


def test_unusable_plan_is_the_first_cause() -> None:
    state = EpisodeState(plan_verdict=PlanVerdict.MALFORMED, executor_status=ExecutorStatus.FAILED)
    failure = failure_of(state, red(), changed=False)
    assert failure is not None
    assert failure.kind is FailureKind.PLANNER


def test_red_checks_are_named() -> None:
    failure = failure_of(EpisodeState(executor_status=ExecutorStatus.COMPLETED), red("abc"), changed=True)
    assert failure is not None
    assert (failure.kind, failure.signature) == (FailureKind.CHECK, "abc")
    assert failure.summary == "the check fails: pytest"


def test_iteration_without_effect_is_a_failure_unless_the_goal_is_met() -> None:
    state = EpisodeState(executor_status=ExecutorStatus.NO_CHANGE, checks_green=True)
    failure = failure_of(state, GREEN, changed=False)
    assert failure is not None
    assert "changed nothing" in failure.summary
    assert failure_of(state, GREEN, changed=True) is None
    assert failure_of(state.evolve(plan_final=True), GREEN, changed=False) is None


def test_lowered_class_and_repeated_failure_ask_for_a_reflection() -> None:
    low = after_iterations(red(), verdict=ProbabilityClass.MEDIUM)
    assert (low.reflect_next, low.reflect_detail) == (ReflectCause.PROBABILITY_CLASS, "0.1 of the tree is unchanged")
    assert after_iterations(red()).reflect_next is None
    again = after_iterations(red(), red())
    assert again.reflect_next is ReflectCause.REPEATED_FAILURE
    assert again.reflect_detail.startswith("2 times in a row")


def test_reflection_that_was_made_is_not_asked_for_again() -> None:
    made = ReflectionOutcome(reflection=reference(b"r", name="reflection"), diagnosis="d")
    state = with_reflection(after_iterations(red(), red()), made)
    assert (state.reflect_next, state.reflect_detail, state.diagnosis) == (None, "", "d")


# what stays bounded


@given(st.integers(min_value=0, max_value=100), st.text(max_size=400))
def test_memory_of_an_episode_is_bounded(times: int, text: str) -> None:
    state, run = EpisodeState(), BareRun(now=lambda: NOON)
    for number in range(times):
        state = with_note(state, f"{number}")
        run.log("iteration", text)
    assert len(run.core.timeline) == min(times, run.lines_kept)
    assert all(len(entry.text) <= 240 for entry in run.core.timeline)
    assert list(state.notes) == [str(n) for n in range(times)]


def test_hundred_iterations_keep_the_newest_checkpoints_and_trees() -> None:
    state = after_iterations(*[red(str(n)) for n in range(100)])
    assert [kept.number for kept in state.checkpoints] == list(range(101 - RECENT_LIMIT, 101))
    assert len(state.trees) == TREES_REMEMBERED
    assert len(state.model_dump_json(exclude_defaults=True)) < 20_000


# going back


@given(states, states, st.integers(min_value=0, max_value=RECENT_LIMIT + 40))
def test_restore_forgets_no_checkpoint_and_no_spending(
    current: EpisodeState, stored: EpisodeState, number: int
) -> None:
    target = record(number)
    state = restore_state(current, stored, target)
    assert (state.spent, state.budget, state.iteration) == (current.spent, current.budget, current.iteration)
    assert (state.branch, state.notes, state.runs) == (current.branch + 1, current.notes, current.runs)
    assert state.tree == target.tree
    wanted = {kept.id for kept in current.checkpoints} | {target.id}
    kept = [kept.id for kept in state.checkpoints]
    assert len(kept) == len(set(kept)) == min(len(wanted), RECENT_LIMIT)
    assert set(kept) <= wanted
    assert state.last_checkpoint is not None
    assert state.last_checkpoint.id == target.id
    assert state.failures.iterations == 0
    assert state.reflect_next is ReflectCause.RESTORED


def test_restore_to_a_checkpoint_older_than_the_list_keeps_it() -> None:
    current = EpisodeState(checkpoints=tuple(map(record, range(40, 40 + RECENT_LIMIT))))
    state = restore_state(current, EpisodeState(), record(3))
    assert [kept.number for kept in state.checkpoints] == [3, *range(41, 40 + RECENT_LIMIT)]
    assert [kept.number for kept in state.checkpoints if not kept.discarded] == [3]


@pytest.mark.parametrize("worked", [True, False])
def test_work_after_the_checkpoint_is_gone_with_a_restore_but_not_what_was_seen(worked: bool) -> None:
    stored, current = EpisodeState(worked=worked), EpisodeState(worked=True, failed_before=("k",), added_tree="t")
    state = restore_state(current, stored, record(1))
    assert (state.worked, state.failed_before, state.added_tree) == (worked, ("k",), "t")


def test_plan_and_checks_go_back_with_the_checkpoint() -> None:
    stored = EpisodeState(plan_title="old plan", checks_text="1/3", baseline_red=True, diagnosis="old")
    current = EpisodeState(plan_title="new plan", checks_text="2/3", diagnosis="new")
    state = restore_state(current, stored, record(1))
    assert (state.plan_title, state.checks_text, state.diagnosis, state.baseline_red) == (
        "old plan",
        "1/3",
        "old",
        True,
    )


# opening and closing


def test_result_names_the_tree_the_checks_and_the_last_checkpoint() -> None:
    state = after_iterations(red(), GREEN)
    result = result_of(state, EpisodeOutcome.SUCCEEDED, "green")
    assert (result.tree, result.checks, result.checkpoint_id, result.iterations) == ("tree-2", "1/1", "ckpt-2", 2)


def test_run_is_followed_by_a_new_one_when_suggested_or_long() -> None:
    assert may_continue_as_new(REQUEST, iterations_in_run=1, suggested=True)
    assert may_continue_as_new(REQUEST, iterations_in_run=50, suggested=False)
    assert not may_continue_as_new(REQUEST, iterations_in_run=49, suggested=False)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"goal": " "}, "the goal is empty"),
        ({"goal": "x" * (GOAL_CHARACTERS + 1)}, f"the goal is {GOAL_CHARACTERS + 1} characters long"),
        ({"workspace": "shop"}, "the workspace 'shop' is not an absolute path"),
        ({"definition_of_done": (), "tells_parent": True}, "the definition of done is empty"),
        ({"definition_of_done": (Check(run=" "),)}, "a check has no command"),
        ({"pause_after": 0}, "pause_after must be at least 1, got 0"),
    ],
)
def test_request_that_cannot_work_is_refused(change: dict[str, object], sentence: str) -> None:
    REQUEST.check()
    with pytest.raises(InvalidRequestError, match=sentence):
        REQUEST.evolve(**change).check()


def test_project_is_named_after_its_folder() -> None:
    assert REQUEST.project_name == "shop"
    assert REQUEST.evolve(project="web shop").project_name == "web shop"


json_leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
json_keys = st.one_of(st.sampled_from([*EpisodeInput.model_fields, "run", "max_iterations"]), st.text(max_size=4))
json_values = st.recursive(
    json_leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_keys, inner, max_size=4)
)


@given(json_values)
def test_any_input_is_read_or_carries_its_problem(value: Any) -> None:
    for read in (EpisodeInput.model_validate(value), EpisodeInput.model_validate_json(json.dumps(value))):
        assert isinstance(read, EpisodeInput)
        if not isinstance(value, dict):
            assert read.problem
        assert EpisodeInput.model_validate_json(read.model_dump_json()).problem == read.problem


@pytest.mark.parametrize(
    ("value", "start"),
    [
        ("make it green", "the input: must be"),
        ({"goal": 7}, "goal: must be a string, not 7."),
        ({"goal": "g", "budget": {"max_iterations": "many"}}, "budget.max_iterations: "),
    ],
)
def test_problem_of_an_input_names_the_field_and_shows_a_right_one(value: Any, start: str) -> None:
    problem = EpisodeInput.model_validate(value).problem
    assert problem.startswith(start)
    example = json.loads(problem.partition("Valid input: ")[2])
    EpisodeRequest.of(EpisodeInput.model_validate(example)).check()


def test_right_input_has_no_problem_and_is_the_request() -> None:
    read = EpisodeInput.model_validate_json(REQUEST.model_dump_json())
    assert read.problem == ""
    assert EpisodeRequest.of(read) == REQUEST


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"budget": Budget(max_cost_usd=float("inf"))}, "budget.max_cost_usd must be a finite number, got inf"),
        ({"definition_of_done": (Check(run="true", timeout_s=-1),)}, "s, got -1 s"),
        ({"definition_of_done": (Check(run="true", timeout_s=float("nan")),)}, "s, got nan s"),
        (
            {"pause_timeout": timedelta(days=-1)},
            "pause_timeout must be greater than 0 and at most one year",
        ),
        ({"executor": ExecutorChoice(options={"x": "y" * 300_000})}, "the request is longer than 256000"),
    ],
)
def test_what_would_hang_a_workflow_is_refused(change: dict[str, Any], sentence: str) -> None:
    request = EpisodeRequest(goal="g", workspace="/w", definition_of_done=(Check(run="true"),)).evolve(**change)
    with pytest.raises(InvalidRequestError, match=sentence):
        request.check()
