"""Transitions of the episode state: step results, people's actions, and restored checkpoints."""

from collections.abc import Iterable
from datetime import timedelta

from tightloop.episode.budget import Budget, extend_budget, should_converge
from tightloop.episode.check import Verification
from tightloop.episode.checkpoint import RECENT_LIMIT, CheckpointRecord, Tracked, discard_after, merge
from tightloop.episode.decisions import ACCEPT, ADD, ALLOW, ASKED, EXTEND, REFUSE, WORK, failure_of
from tightloop.episode.failure import LONGEST_CIRCLE, NO_FAILURES, FailureStreak
from tightloop.episode.model import EpisodeOutcome, EpisodePhase, EpisodeResult, EpisodeState
from tightloop.episode.planning import PlanningOutcome, PlanVerdict, ReflectCause, ReflectionOutcome
from tightloop.episode.progress.course import reset_counts
from tightloop.episode.progress.tracking import ProbabilityClass, Tracking
from tightloop.episode.scenarios import HiddenScenarios
from tightloop.executor.asking import ANSWER
from tightloop.executor.model import SUCCESSES, ExecutorReport, ExecutorStatus, Grant
from tightloop.run.core import Evidence
from tightloop.run.outcome import Facts, qualify
from tightloop.run.question import Answer, Question, QuestionKind
from tightloop.safety.approval import with_approval
from tightloop.safety.rubric import OVERRULED_LIMIT, Topic, unanswered_findings
from tightloop.value import ArtifactRef, abridge, format_count, last_lines, shorten

# The state is an input of each new run and a query result, so every list in it is bounded.
NOTES_CHARACTERS = 16_000
"""Maximum total length of the messages waiting for the planner. A message that exceeds it is refused, never truncated.
"""
NOTE_CHARACTERS = 4_200
"""Maximum length of a note. The longest message fits, with the name of its author."""
AGENT_NOTES_LIMIT = 5
"""Number of waiting notes at which further messages from agents are refused."""
GRANTS_LIMIT = 100
GRANT_CHARACTERS = 2_000
FAILED_SHOWN = 5
NAMES_LIMIT = 50
"""Maximum number of checks that are remembered by name."""
LAST_WORDS_CHARACTERS = 400
# Two rounds of the longest cycle that `goes_round` recognises.
TREES_REMEMBERED = 2 * LONGEST_CIRCLE
NOT_A_FAILURE = SUCCESSES | {
    ExecutorStatus.LIMIT_HIT,
    ExecutorStatus.CANCELLED,
    ExecutorStatus.NEEDS_PERSON,
    ExecutorStatus.PAUSED,
}
"""Delivery results that do not count as executor failures."""
DELIVERED_AGAIN = frozenset(
    {ExecutorStatus.LIMIT_HIT, ExecutorStatus.NEEDS_PERSON, ExecutorStatus.FATAL, ExecutorStatus.PAUSED}
)
"""Delivery results after which the same plan is delivered again, starting where the executor stopped."""


def with_intervention(state: EpisodeState) -> EpisodeState:
    """Count a message from a person as an intervention."""
    return state.evolve(spent=state.spent.evolve(interventions=state.spent.interventions + 1))


def with_note(state: EpisodeState, note: str, *, asks: bool = False) -> EpisodeState:
    """Add a note that the planner reads before it writes the next plan.

    If the note requests work, the episode stays open until that work is planned.
    """
    text = shorten(note, NOTE_CHARACTERS)
    asked_for = (*state.asked_for, text) if asks else state.asked_for
    return state.evolve(notes=(*state.notes, text), asked_for=asked_for)


def has_room_for(state: EpisodeState, text: str) -> bool:
    """Return whether the planner's queue has room for another message."""
    return sum(map(len, state.notes)) + len(text) <= NOTES_CHARACTERS


def with_retries(state: EpisodeState, attempt: int) -> EpisodeState:
    """Count every attempt after the first one as an infrastructure retry."""
    if attempt <= 1:
        return state
    spent = state.spent.evolve(infrastructure_retries=state.spent.infrastructure_retries + attempt - 1)
    return state.evolve(spent=spent)


def with_working_time(state: EpisodeState, duration: timedelta) -> EpisodeState:
    """Add a duration to the episode's working time."""
    spent = state.spent.evolve(wall_time=state.spent.wall_time + max(duration, timedelta()))
    return state.evolve(spent=spent)


def with_repeated_work(state: EpisodeState, duration: timedelta) -> EpisodeState:
    """Add the working time of a delivery that was stopped by a limit or an error.

    This time does not indicate how large the plan is.
    """
    return state.evolve(repeated_work=state.repeated_work + duration)


def begin_iteration(state: EpisodeState) -> EpisodeState:
    """Start the next iteration and reset all per-iteration fields."""
    spent = state.spent.evolve(iterations=state.spent.iterations + 1)
    new_state = state.evolve(
        iteration=state.iteration + 1,
        spent=spent,
        phase=EpisodePhase.PLANNING,
        plan_verdict=None,
        executor_status=None,
        executor_error="",
        failed_deliveries=0,
        repeated_work=timedelta(),
        resume=None,
        grants=(),
        # An allowed change is known by its content from here on; the same line in another change is asked about again.
        overruled=tuple(name for name in state.overruled if name not in _of_checks(state)),
    )
    if should_converge(new_state.budget, new_state.spent):
        limit = new_state.budget.max_iterations
        left = (
            "few iterations" if limit is None else format_count(max(limit - new_state.spent.iterations, 0), "iteration")
        )
        return with_note(
            new_state,
            f"Circuit breaker: {left} left after this one. Wrap up: finish what is open and start nothing new.",
        )
    return new_state


def _of_checks(state: EpisodeState) -> frozenset[str]:
    """Return the fingerprints of findings about checks in the last change."""
    return frozenset(
        finding.fingerprint for finding in state.findings if state.change and finding.topic is Topic.CHECKS
    )


def with_plan(state: EpisodeState, outcome: PlanningOutcome, read_notes: tuple[str, ...] = ()) -> EpisodeState:
    """Record the planner's reply.

    `read_notes` are the notes that the planner has read. Later notes are kept.
    """
    answered = outcome.verdict is not PlanVerdict.MALFORMED
    planned = answered and outcome.verdict not in (PlanVerdict.GAVE_UP, PlanVerdict.IMPOSSIBLE)
    return with_retries(
        state.evolve(
            plan=outcome.plan or state.plan,
            plan_title=outcome.title or shorten(outcome.reason, 120),
            plan_final=outcome.final or outcome.verdict is PlanVerdict.CLAIMS_DONE,
            plan_verdict=outcome.verdict,
            # A refused change is in the tree until it is undone, whatever the next plan is.
            findings=(*outcome.findings, *(finding for finding in state.findings if finding.refused)),
            spent=state.spent.with_usage(outcome.usage),
            # Only a plan uses up notes, but a planner that gives up has answered the requests.
            notes=tuple(note for note in state.notes if not (planned and note in read_notes)),
            asked_for=tuple(note for note in state.asked_for if not (answered and note in read_notes)),
        ),
        outcome.attempt,
    )


def with_report(state: EpisodeState, report: ExecutorReport) -> EpisodeState:
    """Record the executor's report on a delivery."""
    spent = state.spent.with_usage(report.usage)
    moved = report.new_tree not in ("", state.tree)
    is_repeated = report.status is ExecutorStatus.LIMIT_HIT or report.failed_at_once or report.limit is not None
    fine = report.succeeded or report.question is not None
    # An executor that gives up a denied action has obeyed, so this is not a failure.
    obeyed = report.status is ExecutorStatus.REFUSED and any(not grant.allowed for grant in state.grants)
    if report.status not in NOT_A_FAILURE and not obeyed and not report.failed_at_once:
        spent = spent.evolve(executor_failures=spent.executor_failures + 1)
    return with_retries(
        state.evolve(
            tree=report.new_tree or state.tree,
            spent=spent,
            executor_status=report.status,
            executor_error="" if fine else last_lines(report.error or report.summary, 300),
            last_words=abridge(" ".join((report.summary or report.error).split()), LAST_WORDS_CHARACTERS),
            # A report counts as completed only if files changed.
            worked=state.worked or moved or report.status is ExecutorStatus.COMPLETED,
            stand_in=report.executor,
            model=report.model or state.model,
            failed_deliveries=state.failed_deliveries + 1 if is_repeated else 0,
            resume=report.resume if report.status in DELIVERED_AGAIN else None,
        ),
        report.attempt,
    )


def with_grant(state: EpisodeState, question: Question, *, allowed: bool, text: str = "") -> EpisodeState:
    """Save a person's answer to an agent's request. The answer applies to the next delivery of the plan.

    If a question is answered several times, the last answer counts.
    """
    other_grants = tuple(grant for grant in state.grants if grant.fingerprint != question.fingerprint)
    grant = Grant(fingerprint=question.fingerprint, allowed=allowed, text=shorten(text, GRANT_CHARACTERS))
    return state.evolve(grants=(*other_grants, grant)[-GRANTS_LIMIT:])


def with_settled_report(state: EpisodeState, report: ExecutorReport) -> EpisodeState:
    """Record a report that became final when a person answered a question.

    Such a report never counts as an executor failure.
    """
    return state.evolve(
        worked=state.worked or report.status is ExecutorStatus.COMPLETED,
        executor_status=report.status,
        executor_error="" if report.succeeded else shorten(report.error, 300),
        resume=None,
    )


def with_verification(state: EpisodeState, verification: Verification, *, baseline: bool = False) -> EpisodeState:
    """Record the results of the checks."""
    return with_retries(
        state.evolve(
            tree=verification.tree or state.tree,
            checks=verification.report or state.checks,
            checked_tree=verification.tree,
            checks_green=verification.green,
            checks_text=verification.passed_of_all,
            failed_checks=verification.failed[:FAILED_SHOWN],
            failed_before=_with_names(state.failed_before, (check.key for check in verification.failed)),
            flaky=_with_names(state.flaky, verification.flaky),
            baseline_red=state.baseline_red or (baseline and not verification.green),
        ),
        verification.attempt,
    )


def with_tracking(state: EpisodeState, tracked: Tracked, verification: Verification | None) -> EpisodeState:
    """Record the tracker's results and update the loop detection."""
    tracking = tracked.tracking
    failure = failure_of(state, verification, changed=tracking.files_changed > 0)
    streak = (
        NO_FAILURES
        if failure is None or tracking.progress
        else state.failures.plus(failure, changed=tracking.files_changed > 0)
    )
    cause, detail = _find_reflect_cause(tracking, streak)
    is_refused = any(finding.refused for finding in tracked.findings)
    is_same = bool(state.refused_tree) and tracked.checkpoint.tree == state.refused_tree
    checkpoint = tracked.checkpoint.evolve(refused=is_refused or is_same)
    return with_retries(
        state.evolve(
            tree=tracked.checkpoint.tree or state.tree,
            plan_request=tracked.plan_request or state.plan_request,
            probability_class=tracking.probability_class,
            circles=tracking.circles,
            failures=streak,
            trees=(*state.trees, tracked.checkpoint.tree)[-TREES_REMEMBERED:],
            memory=tracking.memory or state.memory,
            findings=tracked.findings,
            change=tracked.change,
            spent=state.spent.with_usage(tracked.usage),
            reflect_next=cause,
            reflect_detail=detail,
            checkpoints=(*state.checkpoints, checkpoint)[-RECENT_LIMIT:],
        ),
        tracked.attempt,
    )


def _find_reflect_cause(tracking: Tracking, streak: FailureStreak) -> tuple[ReflectCause | None, str]:
    reasons = [r.detail for r in tracking.reasons if r.implies is not ProbabilityClass.HIGH]
    # The repeated failure first, because it names the error.
    if streak.last is not None and streak.times >= 2:
        again = f"{streak.times} times in a row: {streak.last.summary}"
        return ReflectCause.REPEATED_FAILURE, shorten("; ".join((again, *reasons)), 400)
    if tracking.probability_class is not ProbabilityClass.HIGH:
        return ReflectCause.PROBABILITY_CLASS, shorten("; ".join(reasons), 400)
    return None, ""


def with_reflection(state: EpisodeState, outcome: ReflectionOutcome) -> EpisodeState:
    """Record a reflection for the next plan."""
    return with_retries(
        state.evolve(
            reflection=outcome.reflection,
            diagnosis=outcome.diagnosis,
            reflect_next=None,
            reflect_detail="",
            spent=state.spent.with_usage(outcome.usage),
        ),
        outcome.attempt,
    )


def with_ended_wait(state: EpisodeState, question: Question, answer: Answer | None) -> EpisodeState:
    """End the wait for a person, and reset the counters that caused the wait."""
    if question.kind is QuestionKind.ALIGNMENT and answer is not None and answer.option in (ALLOW, ASKED):
        return state  # what is harmless may still lead nowhere
    return state.evolve(
        failures=NO_FAILURES,
        failed_deliveries=0,
        memory=reset_counts(state.memory, state.spent),
    )


def with_answer(state: EpisodeState, question: Question, answer: Answer, *, first: Budget) -> EpisodeState:
    """Record a person's answer to a question.

    `first` is the episode's initial budget. The text of the answer is passed on to the planner and has no
    other effect.
    """
    text = f"{answer.by}: {answer.text}" if answer.text else ""
    # Work that undoes something is needed even if all checks pass.
    asks = (question.kind, answer.option) == (QuestionKind.PROOF, WORK)
    state = _with_approval(state, question, answer)
    match question.kind, answer.option:
        case QuestionKind.WORK, _:
            text = ""  # it goes into the report on the work
        case QuestionKind.IMPOSSIBLE, option if option == WORK:
            text = f"{answer.by} wants the work to continue, although {question.title}"
            text += f"\n{answer.text}" if answer.text else ""
        case QuestionKind.ALREADY_GREEN, option if option == ADD:
            text = ""  # it is in the definition of done
        case QuestionKind.PERMISSION, option:
            state = with_grant(state, question, allowed=option == ALLOW, text=answer.text)
            text = answer.text and f"{answer.by}, asked about {question.title}: {answer.text}"
        case QuestionKind.CLARIFICATION, option:
            state = with_grant(state, question, allowed=option == ANSWER, text=answer.text)
            text = answer.text and f"{answer.by}, asked {question.title!r}: {answer.text}"
        case QuestionKind.ALIGNMENT, option if option in (ALLOW, ASKED):
            state = _with_allowed_findings(state)
        case QuestionKind.ALIGNMENT, option if option == REFUSE:
            problems = "; ".join(map(str, unanswered_findings(state.findings, state.overruled))) or question.title
            text = f"{answer.by} rejected the following, so avoid or undo it: {problems}"
            text += f"\n{answer.text}" if answer.text else ""
            # In this phase they are about the change in the tree; before, about a plan that is dropped.
            if asks := state.phase is EpisodePhase.TRACKING:
                refused = tuple(finding.evolve(refused=True) for finding in state.findings)
                state = _with_refused_checkpoints(state.evolve(findings=refused))
        case QuestionKind.BUDGET, option if option == EXTEND:
            state = state.evolve(budget=extend_budget(state.budget, first, state.spent))
    return with_note(state, text, asks=asks) if text else state


def _with_approval(state: EpisodeState, question: Question, answer: Answer) -> EpisodeState:
    """Record a person's approval of a change.

    The person requested the change, accepted the change, or allowed its findings. In the last case, the
    approval covers only the files with these findings, and the proof may still ask about other files.
    """
    if question.change is None or answer.option not in (ALLOW, ACCEPT, ASKED):
        return state
    files = question.change.files
    if answer.option == ALLOW:
        paths = {finding.path for finding in state.findings if finding.topic is Topic.CHECKS}
        files = tuple(file for file in files if file.path in paths)
    approval = question.approval(answer, asked=answer.option == ASKED, files=files)
    return state.evolve(approvals=with_approval(state.approvals, approval))


def _with_allowed_findings(state: EpisodeState) -> EpisodeState:
    """Allow the findings that the open question lists.

    If the change was refused earlier, its findings are allowed only together with the change.
    """
    of_change = state.phase is EpisodePhase.TRACKING
    allowed = [finding.fingerprint for finding in state.findings if of_change or not finding.refused]
    findings = tuple(finding.evolve(refused=False) for finding in state.findings) if of_change else state.findings
    overruled = tuple(dict.fromkeys((*state.overruled, *allowed)))[-OVERRULED_LIMIT:]
    return state.evolve(findings=findings, overruled=overruled)


def reopen(initial: EpisodeState, newest: EpisodeState | None, records: tuple[CheckpointRecord, ...]) -> EpisodeState:
    """Restore the state of a closed episode so that a new run can continue it.

    Counters and lists come from the store. The budget comes from the new request, because the limits may
    have been raised.
    """
    if not records:
        return initial
    past = newest or initial
    return initial.evolve(
        checkpoints=merge(initial.checkpoints, records)[-RECENT_LIMIT:],
        iteration=past.iteration,
        spent=past.spent,
        branch=max(initial.branch, *(record.branch for record in records)),
        # A proof compares with the tree before the first plan, not with that of the checkpoint.
        beginning=past.beginning,
        added_tree=past.added_tree,
        failed_before=past.failed_before,
        worked=past.worked,
        approvals=past.approvals,
        flaky=past.flaky,
        green_settled=past.green_settled,
        scenario_reports=past.scenario_reports,
        drafts=past.drafts,
        reviewed=past.reviewed,
        runs=initial.runs + (newest.runs if newest else 0),
    )


def restore_state(current: EpisodeState, stored: EpisodeState, record: CheckpointRecord) -> EpisodeState:
    """Restore the state of a checkpoint on a new branch of the current episode.

    Plans, checks and reflections are restored. Spending, the list of checkpoints and the numbering are
    not restored, because they only ever grow.
    """
    records = discard_after(merge(current.checkpoints, (record,)), record.id)
    # The checkpoint itself stays listed regardless of its age, because it is the parent of the next one.
    recent = records[-RECENT_LIMIT:]
    if all(entry.id != record.id for entry in recent):
        recent = (next(old for old in records if old.id == record.id), *recent[1:])
    return stored.evolve(
        phase=EpisodePhase.RESTORING,
        iteration=current.iteration,
        branch=current.branch + 1,
        request=current.request or stored.request,
        beginning=current.beginning or stored.beginning,
        added_tree=current.added_tree or stored.added_tree,
        failed_before=_with_names(stored.failed_before, current.failed_before),
        flaky=current.flaky or stored.flaky,
        green_settled=current.green_settled or stored.green_settled,
        approvals=with_approval(stored.approvals, *current.approvals),
        # A proof is about the tree that is being left.
        proof=None,
        evidence=None,
        refused_tree=current.refused_tree,
        scenario_reports=current.scenario_reports,
        # Withdrawn scenarios stay withdrawn.
        drafts=current.drafts or stored.drafts,
        reviewed=current.reviewed or stored.reviewed,
        tree=record.tree,
        spent=current.spent,
        budget=current.budget,
        notes=current.notes,
        asked_for=current.asked_for,
        failures=NO_FAILURES,
        memory=reset_counts(current.memory, current.spent, keep_plans=True),
        failed_deliveries=0,
        # An agent's session remembers work that is now undone.
        resume=None,
        grants=(),
        reflect_next=ReflectCause.RESTORED,
        checkpoints=recent,
        restore=None,
        epoch=current.epoch,
        move=None,
        amended=False,
        # An amended request may have other checks, to which earlier results do not apply.
        checked_tree=stored.checked_tree if current.request in (None, stored.request) else "",
        runs=current.runs,
    )


def with_beginning(
    state: EpisodeState,
    beginning: ArtifactRef,
    verification: Verification,
    scenario_failed: bool,
    drafts: HiddenScenarios | None,
) -> EpisodeState:
    """Record the initial check results and the stored baseline.

    A failed hidden scenario counts as a failed check.
    """
    checked = with_verification(state, verification, baseline=not state.checked_tree)
    return checked.evolve(
        beginning=beginning,
        green_settled=state.green_settled or scenario_failed,
        drafts=drafts if drafts is not None else state.drafts,
    )


def without_drafts(state: EpisodeState, reason: str, numbers: Iterable[int] | None = None) -> EpisodeState:
    """Withdraw some or all of the drafted scenarios, so that the same tree can be proven."""
    drafts = state.drafts
    if drafts is None or not drafts.count:
        return state
    return state.evolve(drafts=drafts.withdraw(reason, numbers), refused_tree="")


def with_added_check(state: EpisodeState, tree: str) -> EpisodeState:
    """Record that a check was added before the first plan.

    `tree` contains the files of the check. The next baseline includes the check and its files.
    """
    added = tree if tree != state.tree else ""
    return state.evolve(tree=tree, added_tree=added, checked_tree="", beginning=None, green_settled=True)


def with_refused_proof(state: EpisodeState, title: str, evidence: tuple[str, ...]) -> EpisodeState:
    """Reject a proof and continue the work even though the checks pass.

    The planner receives the title and the evidence.
    """
    note = "\n".join((f"Success was not accepted: {title}", *evidence))
    refused = _with_refused_checkpoints(state.evolve(refused_tree=state.tree, proof=None, evidence=None))
    return with_note(refused, note, asks=True)


def _with_refused_checkpoints(state: EpisodeState) -> EpisodeState:
    """Mark the checkpoints whose tree a person has just refused."""
    records = (record.evolve(refused=record.refused or record.tree == state.tree) for record in state.checkpoints)
    return state.evolve(checkpoints=tuple(records))


def with_failed_scenarios(state: EpisodeState, title: str) -> EpisodeState:
    """Continue the work because hidden scenarios fail.

    The planner receives only the title, which contains counts.
    """
    return with_refused_proof(state.evolve(scenario_reports=state.scenario_reports + 1), title, ())


def qualifier_of(state: EpisodeState, outcome: EpisodeOutcome) -> str:
    """Return the qualifier of a successful outcome, or "" if there is none."""
    if outcome is not EpisodeOutcome.SUCCEEDED:
        return ""
    # Only a proof leads to a success, so there are always facts; without them nothing is proven.
    return qualify(Facts(**dict(state.evidence or Evidence(seen_to_fail=False, worked=state.worked))))


def _with_names(names: tuple[str, ...], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *more)))[:NAMES_LIMIT]


def result_of(state: EpisodeState, outcome: EpisodeOutcome, reason: str) -> EpisodeResult:
    """Build the result of an episode that has finished."""
    last = state.last_checkpoint
    return EpisodeResult(
        outcome=outcome,
        qualifier=qualifier_of(state, outcome),
        reason=shorten(reason, 600),
        files_changed=state.evidence.files_changed if state.evidence else None,
        iterations=state.spent.iterations,
        checkpoint_id=last.id if last else "",
        tree=state.tree,
        checks=state.checks_text,
        proof=state.proof if outcome is EpisodeOutcome.SUCCEEDED else None,
        approvals=state.approvals,
        spent=state.spent,
    )
