"""Decisions of the episode loop."""

from datetime import datetime, timedelta
from enum import StrEnum

from tightloop.episode.budget import breaches, describe_end
from tightloop.episode.check import Check, Verification, check_name, failing_text
from tightloop.episode.failure import Failure, FailureKind, FailureStreak, signature
from tightloop.episode.model import EpisodeRequest, EpisodeState
from tightloop.episode.planning import PlanningOutcome, PlanVerdict
from tightloop.executor.asking import IMPOSSIBLE, impossible_question
from tightloop.executor.model import ALERT_AFTER, SUCCESSES, ExecutorChoice, ExecutorReport, ExecutorStatus, backoff
from tightloop.run.core import Work
from tightloop.run.question import EVIDENCE_LINES, Answer, Option, OptionGroup, Question, QuestionKind, evidence_of
from tightloop.safety.approval import ShownChange
from tightloop.safety.drift import Drift, DriftAnswer
from tightloop.safety.rubric import Finding, describe_findings, unanswered_findings
from tightloop.value import Value, format_count, last_lines
from tightloop.wording import ENDED_BY_MESSAGE, span

ALLOW, REFUSE, EXTEND, CANCEL = "allow", "refuse", "extend", "cancel"
WORK, ACCEPT, ASKED, WITHDRAW = "work", "accept", "asked", "withdraw"
WAIT, END = "wait", "end"
KEEP, UNDO = "keep", "undo"
ADD = "add"
THE_EPISODE = "the episode"

_FIRST = {
    QuestionKind.OPERATOR: ("resume", "continue and keep your edits to files"),
    QuestionKind.BUDGET: (
        EXTEND,
        "continue, and allow the initial amount of each exhausted limit once more",
    ),
    QuestionKind.REPEATED_ERROR: (
        "continue",
        "try again, and reset the counts of failures and of iterations without progress",
    ),
    QuestionKind.LIMIT: (
        "retry",
        "deliver the plan now (if the limit still applies, the run waits and retries automatically)",
    ),
    QuestionKind.FATAL: ("retry", "try again after you have fixed the cause"),
    QuestionKind.DEVIATION: (
        "continue",
        "keep the work, reset the counts, and continue (to break out of the circle, restore an earlier checkpoint)",
    ),
    QuestionKind.ALREADY_GREEN: (
        "continue",
        "start the work, even though the checks can only show that nothing breaks",
    ),
    QuestionKind.PLANNER_GAVE_UP: ("retry", "ask the planner again (it sees your messages and your edits to files)"),
    QuestionKind.PROOF: (
        WORK,
        "continue working, and send the findings and any text that you add to this answer to the planner",
    ),
    QuestionKind.ALIGNMENT: (REFUSE, "reject the plan, and have the planner write one without these findings"),
}
CANCEL_EPISODE = Option(name=CANCEL, effect="end the episode and leave the files as they are", group=OptionGroup.STOP)
_ALLOW = Option(
    name=ALLOW,
    effect="allow the findings, and do not ask about them again in this episode",
    group=OptionGroup.ACCEPT,
)
_UNDO_CHANGE = Option(
    name=REFUSE, effect="reject the change, and have the planner write a plan that undoes or avoids the change"
)
_ALLOW_CHANGE = Option(
    name=ALLOW,
    effect="allow the change (if it decides whether a check passes, the result will not be proven)",
    group=OptionGroup.ACCEPT,
)
ASKED_FOR_CHANGE = Option(
    name=ASKED,
    effect="confirm that you asked for the change (the result can then be proven, and the proof records your name "
    "and the time)",
    group=OptionGroup.ACCEPT,
)
WRONG_DRAFT = Option(
    name=WITHDRAW,
    effect=(
        "drop all failing scenarios because they are wrong, and prove the work with the other checks (the proof "
        "records this)"
    ),
    group=OptionGroup.ACCEPT,
)
ACCEPT_FILES = Option(
    name=ACCEPT,
    effect=(
        "accept the current files despite the finding, and end the episode (the result is not proven and is recorded "
        "under your name)"
    ),
    group=OptionGroup.ACCEPT,
)
_GREEN = (
    Option(
        name=ADD,
        effect="add your command as a check (the command must fail until the goal is reached)",
        needs_text="COMMAND",
    ),
    Option(
        name=ACCEPT,
        effect="end the episode because the goal is already met (no work is done, and the result is not proven)",
        group=OptionGroup.ACCEPT,
    ),
)
_OTHERS = {
    QuestionKind.ALREADY_GREEN: (*_GREEN, CANCEL_EPISODE),
    QuestionKind.OPERATOR: (),
    QuestionKind.ALIGNMENT: (_ALLOW, CANCEL_EPISODE),
    QuestionKind.PROOF: (ACCEPT_FILES, CANCEL_EPISODE),
}
"""Options that follow a question's first option, by kind of question. Kinds that are not listed only have `cancel`."""
# A bare `resume` or a message to the planner must neither spend money nor allow findings.
_WITHOUT_DEFAULT = frozenset({QuestionKind.BUDGET, QuestionKind.ALIGNMENT})


def make_question(kind: QuestionKind, title: str, *, evidence: tuple[str, ...] = (), by: str = "tightloop") -> Question:
    """Create a question for a person. The first option is the default unless the kind has no default."""
    name, effect = _FIRST[kind]
    return Question(
        id="",
        kind=kind,
        title=title,
        evidence=evidence,
        options=(Option(name=name, effect=effect), *_OTHERS.get(kind, (CANCEL_EPISODE,))),
        default="" if kind in _WITHOUT_DEFAULT else name,
        blocks=THE_EPISODE,
        by=by,
    )


def alignment_question(findings: tuple[Finding, ...], change: ShownChange | None = None) -> Question:
    """Return the question about findings in a plan or a change, with a suggestion for each finding."""
    title, evidence = describe_findings(findings)
    state = "the finding is about the next plan, which has not been delivered"
    if change is not None:
        state = "the finding is about a change that is in the working tree"
    return about_change(make_question(QuestionKind.ALIGNMENT, title, evidence=(state, *evidence)), change)


def about_change(question: Question, change: ShownChange | None) -> Question:
    """Attach a change to the question that asks about it.

    The question also gets an option to confirm that the person asked for the change.
    """
    if change is None:
        return question
    renamed = {REFUSE: _UNDO_CHANGE, **({ALLOW: _ALLOW_CHANGE} if change.files else {})}
    options = tuple(renamed.get(option.name, option) for option in question.options)
    asked = (ASKED_FOR_CHANGE,) if change.files else ()
    return question.evolve(change=change, options=(*asked, *options))


def about_drafts(question: Question, failed: tuple[int, ...], episode_id: str) -> Question:
    """Say in a question which drafted scenarios failed, by number.

    The scenarios themselves are not quoted, because agents may read the question.
    """
    names = ", ".join(str(number + 1) for number in failed)
    more = (
        f"a model drafted the failing {'scenario' if len(failed) == 1 else 'scenarios'}: {names}",
        f"compare the expected with the actual output, on the workspace's host: tightloop scenarios show {episode_id}",
    )
    effects = {
        WORK: "continue because the work is wrong, and send only the number of failures and any text that you add to "
        "this answer to the planner"
    }
    options = tuple(
        option.evolve(effect=effects[option.name]) if option.name in effects else option for option in question.options
    )
    evidence = (*more, *question.evidence)[:EVIDENCE_LINES]
    return question.evolve(evidence=evidence, options=(*options[:1], WRONG_DRAFT, *options[1:]))


def already_green_question(checks: tuple[Check, ...]) -> Question:
    """Return the question to ask if every check passes before the first plan."""
    names = format_count(len(checks), "check")
    passing = "the only check passes" if len(checks) == 1 else f"all {names} pass"
    subject = "it" if len(checks) == 1 else "they"
    return make_question(
        QuestionKind.ALREADY_GREEN,
        f"{passing} before any work was done, so {subject} cannot show that the goal has been reached. Is "
        "anything left to do?",
        evidence=tuple(f"passes: {check_name(check.title)}" for check in checks[:EVIDENCE_LINES]),
    )


def end_question(work: Work, now: datetime) -> Question:
    """Return the question to ask when a pause is requested during long-running work.

    The work continues while the question is open.
    """
    return Question(
        id="",
        kind=QuestionKind.OPERATOR,
        title=f"the pause takes effect when the running work finishes: {work.describe(now)}",
        options=(
            Option(name=WAIT, effect="let the running work finish, and then pause"),
            Option(
                name=END,
                effect="stop the running work and pause now (the work starts over after the pause)",
                group=OptionGroup.STOP,
            ),
        ),
        default=WAIT,
    )


def drift_question(drift: Drift, *, blocks: str = THE_EPISODE, cancel: Option = CANCEL_EPISODE) -> Question:
    """Return the question about files that somebody else changed. A plain `resume` keeps the changes."""
    more = drift.count - len(drift.lines)
    return Question(
        id="",
        kind=QuestionKind.DRIFT,
        title=f"somebody else changed {drift.named}. Keep or undo the change?",
        evidence=(*drift.lines, *((f"and {format_count(more, 'more file')}",) if more > 0 else ())),
        options=(
            Option(
                name=KEEP,
                effect=(
                    "keep the changes and continue (if you name files, only the changes to those files are kept, and "
                    "all other changes are undone)"
                ),
                takes_paths=True,
            ),
            Option(
                name=UNDO,
                effect=(
                    "save a copy of the changes, then undo them (if you name files, only the changes to those "
                    "files are undone)"
                ),
                takes_paths=True,
            ),
            cancel,
        ),
        default=KEEP,
        blocks=blocks,
        # The answer is about this tree: if the files change again meanwhile, it does not apply.
        fingerprint=drift.tree,
        paths=drift.paths,
    )


def read_drift_answer(question: Question, answer: Answer) -> DriftAnswer:
    """Return the decision about the files that a question lists."""
    return DriftAnswer(tree=question.fingerprint, keep=answer.option != UNDO, words=answer.paths)


CHECKS_SHOWN = 2


def about_work(state: EpisodeState, evidence: tuple[str, ...], *, output: str) -> tuple[str, ...]:
    """Add the output of failing checks and the executor's last message to a question's evidence.

    Args:
        state: state of the episode.
        evidence: the question's own evidence, which comes first.
        output: command that prints the complete output of the checks.
    """
    lines = list[str]()
    for check in state.failed_checks[:CHECKS_SHOWN]:
        lines += [f"{check}:", *evidence_of(check.tail)]
    lines += [f"full output: {output}"] if lines else []
    lines += [f"the executor's last message: {state.last_words}"] if state.last_words else []
    return (*evidence[: EVIDENCE_LINES - len(lines)], *lines)


def is_ended_by_message(question: Question) -> bool:
    """Return whether a message to the planner ends the wait for an answer.

    The message does not select an option. The planner reads it and creates a plan.
    """
    return question.kind in ENDED_BY_MESSAGE


RETRY_UNANSWERED = timedelta(hours=1)
"""Time after which a delivery is retried even if nobody has confirmed that its login or quota is in order."""
LAST_LINES_CHARACTERS = 2_000
UNMOVED_MORE = 1
"""Number of iterations beyond `pause_after` in which new work may leave the checks unchanged before an alert is sent.
"""


class NextAction(StrEnum):
    """The next action of the loop."""

    CONTINUE = "continue"
    SUCCEED = "succeed"
    ASK = "ask"
    TELL = "tell"
    """Continue with another iteration, and report to people and to the planner."""
    REPEAT = "repeat"
    """Deliver the same plan again after a wait."""


class Decision(Value):
    """The next action of the loop, with its question or report."""

    action: NextAction
    question: Question | None = None
    """Question for a person, if the action is ASK."""
    tell: str = ""
    """Report to people, if the action is TELL or REPEAT. With TELL, the planner reads the report too."""
    wait: timedelta | None = None
    """Wait before the plan is delivered again.

    If there is a question, the plan is delivered again when nobody answers.
    """


CONTINUE = Decision(action=NextAction.CONTINUE)
SUCCEED = Decision(action=NextAction.SUCCEED)


def _ask(kind: QuestionKind, title: str) -> Decision:
    return Decision(action=NextAction.ASK, question=make_question(kind, title))


def guard_rails(state: EpisodeState, now: datetime) -> Decision:
    """Ask a person how to continue if a budget limit has been reached."""
    end = describe_end(state.budget.until, now)
    reached_limits = (*map(str, breaches(state.budget, state.spent)), *([end] if end else []))
    return (
        _ask(QuestionKind.BUDGET, "the budget is spent: " + ", ".join(reached_limits)) if reached_limits else CONTINUE
    )


def after_planning(outcome: PlanningOutcome, overruled: tuple[str, ...] = ()) -> Decision:
    """Decide what to do after planning.

    A malformed reply counts as a failed iteration and does not cause a pause. A person is not asked again
    about findings in `overruled`, which were already allowed.
    """
    if outcome.verdict is PlanVerdict.GAVE_UP:
        return _ask(QuestionKind.PLANNER_GAVE_UP, outcome.reason or "the planner gave up without giving a reason")
    if outcome.verdict is PlanVerdict.IMPOSSIBLE:
        question = impossible_question(f"{IMPOSSIBLE}: {outcome.reason}", by="the planner")
        return Decision(action=NextAction.ASK, question=question)
    # Findings include the planner's own "no" (`planners_own`), with its reason.
    if outcome.findings:
        return _ask_about(unanswered_findings(outcome.findings, overruled))
    if not outcome.aligned:
        return _ask(QuestionKind.ALIGNMENT, outcome.reason or "the planner's alignment check failed")
    return CONTINUE


def _ask_about(findings: tuple[Finding, ...], change: ShownChange | None = None) -> Decision:
    """Ask a person about the findings. Continue if there are none."""
    if not findings:
        return CONTINUE
    return Decision(action=NextAction.ASK, question=alignment_question(findings, change))


def is_plan_allowed(state: EpisodeState, outcome: PlanningOutcome) -> bool:
    """Return whether to execute a plan that a person approved.

    If there is a note for the planner, the planner creates a new plan instead.
    """
    planned = outcome.verdict in (PlanVerdict.PLANNED, PlanVerdict.CLAIMS_DONE)
    return planned and not state.notes and not unanswered_findings(outcome.findings, state.overruled)


def is_change_allowed(state: EpisodeState) -> bool:
    """Return whether the check results still apply to a change that a person allowed."""
    return not state.notes and state.checked_tree == state.tree


def after_execution(
    state: EpisodeState, report: ExecutorReport, choice: ExecutorChoice, *, changed: bool = False
) -> Decision:
    """Decide what to do after a delivery: verify the work, deliver the plan again, or ask a person.

    Args:
        state: state of the episode, including the report.
        report: the report on the delivery.
        choice: the executor, with its limits for failed deliveries.
        changed: whether the delivery has changed a file.
    """
    if report.status is ExecutorStatus.NEEDS_PERSON and report.question is not None:
        return Decision(action=NextAction.ASK, question=report.question)
    if report.status is ExecutorStatus.PAUSED:
        return _ask(QuestionKind.OPERATOR, "someone paused the executor")
    # NEEDS_PERSON without a question leaves nothing to answer, so it is treated as fatal.
    if report.status in (ExecutorStatus.FATAL, ExecutorStatus.NEEDS_PERSON):
        why = report.error or report.summary or f"it ended with {report.status.value} and gave no reason"
        title = f"the executor cannot work: {why}"
        if report.limit is None or state.failed_deliveries >= choice.retries:
            return _ask(QuestionKind.FATAL, title)
        # Credit that is added and a login that is renewed need no answer to the question.
        wait = report.limit.retry_after or RETRY_UNANSWERED
        title = f"{title}. If nobody answers, the run tries again in {span(wait.total_seconds())}"
        return _ask(QuestionKind.FATAL, title).evolve(wait=wait)
    if report.status is ExecutorStatus.LIMIT_HIT or report.failed_at_once:
        return _repeat(state, report, choice, changed=changed)
    return CONTINUE


def _repeat(state: EpisodeState, report: ExecutorReport, choice: ExecutorChoice, *, changed: bool) -> Decision:
    failures, limit = state.failed_deliveries, report.limit
    # An agent that works in portions, such as 25 tool calls each. The checks judge what it has done so far.
    if changed and failures >= ALERT_AFTER:
        return CONTINUE
    words = report.error or (limit.evidence if limit is not None else "") or report.summary or "it printed nothing"
    evidence = evidence_of(last_lines(words, LAST_LINES_CHARACTERS))
    what = "hit a limit" if report.status is ExecutorStatus.LIMIT_HIT else "ended in an error and changed no file"
    problem = f"{format_count(failures, 'attempt')} in a row {what}: {evidence[-1]}"
    wait = backoff(failures)
    told = limit.retry_after if limit is not None else None
    waited = sum(map(backoff, range(1, failures + 1)), timedelta())
    if failures >= choice.retries or (told is None and waited.total_seconds() > choice.retry_for_s):
        return Decision(action=NextAction.ASK, question=make_question(QuestionKind.LIMIT, problem, evidence=evidence))
    if told is not None:
        # A time that proved wrong several times is not trusted any more.
        wait = max(told, timedelta()) if failures < ALERT_AFTER else max(told, wait)
    tell = f"{problem}. The run tries again in {span(wait.total_seconds())}" if failures == ALERT_AFTER else ""
    return Decision(action=NextAction.REPEAT, wait=wait, tell=tell)


def failure_of(state: EpisodeState, verification: Verification | None, *, changed: bool) -> Failure | None:
    """Return the first failure of this iteration, or None if there was no failure."""

    def failure(kind: FailureKind, failure_signature: str, summary: str) -> Failure:
        return Failure(kind=kind, signature=failure_signature, summary=summary, iteration=state.iteration)

    # In the order of the iteration: a plan that was never delivered explains the failing checks after it.
    if state.plan_verdict is PlanVerdict.MALFORMED:
        summary = state.plan_title or "the planner's response was unusable"
        # A fixed signature, because the faults of unusable replies vary in their words.
        return failure(FailureKind.PLANNER, signature("planner", "malformed"), summary)
    status = state.executor_status
    if status is not None and status not in SUCCESSES:
        summary = f"executor {status.value}: {state.executor_error}".rstrip(": ")
        return failure(FailureKind.EXECUTOR, signature("executor", status.value, state.executor_error), summary)
    if verification is not None and not verification.green:
        names = ", ".join(str(check) for check in verification.failed[:3]) or "no check ran"
        summary = f"{failing_text(verification.failed_count, verification.total)}: {names}"
        return failure(FailureKind.CHECK, verification.signature, summary)
    if not changed and not is_complete(state):
        summary = "the iteration changed nothing, and the planner does not claim that the goal is met"
        return failure(FailureKind.EXECUTOR, signature("nothing changed"), summary)
    return None


def is_complete(state: EpisodeState) -> bool:
    """Return whether the goal is met.

    The checks must pass, and their result must be meaningful. The result is meaningful if the checks
    failed initially, or if the planner claims that the goal is met. The claim is ignored if the checks
    fail.

    Work that a person has requested is planned first. So if a person rejects a proof, it is repeated after the next
    iteration, even if that iteration changed nothing. The finding is then reported again.
    """
    means_something = state.baseline_red or state.plan_final
    return state.checks_green and means_something and not state.asked_for


def must_find_failing_check(state: EpisodeState, request: EpisodeRequest) -> bool:
    """Return whether all checks pass before the first plan and nobody has decided how to continue."""
    is_start = state.iteration == 0 and state.inherited is None
    return is_start and state.checks_green and not (state.baseline_red or state.green_settled or request.keep_green)


def after_tracking(state: EpisodeState, request: EpisodeRequest) -> Decision:
    """Decide whether to succeed, ask a question or continue at the end of an iteration.

    Findings come first, because the work may have made the checks pass in an illegitimate way.
    """
    decision = _ask_about(unanswered_findings(state.findings, state.overruled), state.change)
    if decision.action is NextAction.ASK:
        return decision
    if is_complete(state):
        return SUCCEED
    streak, limit = state.failures, request.pause_after
    if streak.last is not None and streak.iterations >= limit:
        question = _stuck_question(state, streak)
        if not request.unattended:
            return Decision(action=NextAction.ASK, question=question)
        # Once for each `limit` iterations.
        return Decision(action=NextAction.TELL, tell=question.title) if streak.iterations % limit == 0 else CONTINUE
    unmoved = state.memory.unmoved if state.memory else 0
    # Equality, so that it is reported once and not in every further iteration.
    if unmoved != limit + UNMOVED_MORE:
        return CONTINUE
    names = ", ".join(map(str, state.failed_checks[:3]))
    return Decision(action=NextAction.TELL, tell=f"the checks have shown no progress for {unmoved} iterations: {names}")


def _stuck_question(state: EpisodeState, streak: FailureStreak) -> Question:
    """Return the question about iterations without progress, including the cause."""
    count, failure = format_count(streak.iterations, "iteration"), streak.last.summary if streak.last else ""
    if state.circles:
        title = (
            f"the work is going in circles: {count} without progress led back to earlier files or failures: {failure}"
        )
        return make_question(QuestionKind.DEVIATION, title)
    if streak.unchanged >= streak.iterations:
        title = f"{count} in a row changed no files ({failure})"
    elif streak.times >= streak.iterations:
        title = f"the same error {format_count(streak.times, 'time')} without progress: {failure}"
    else:
        title = f"{count} in a row made no progress ({failure})"
    return make_question(QuestionKind.REPEATED_ERROR, title)


def may_continue_as_new(request: EpisodeRequest, *, iterations_in_run: int, suggested: bool) -> bool:
    """Return whether to continue as new. This must be called between iterations."""
    # Temporal's suggestion counts events, of which messages and questions make more than the iterations alone.
    return suggested or iterations_in_run >= request.iterations_per_run
