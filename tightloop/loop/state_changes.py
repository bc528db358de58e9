"""What the state of an episode becomes: by what a step reports, by what a person did, by going back to a checkpoint."""

import re
from datetime import datetime, timedelta
from typing import Any

from tightloop.alignment import OVERRULED_LIMIT
from tightloop.budget import should_converge
from tightloop.check import Verification
from tightloop.checkpoint import RECENT_LIMIT, CheckpointRecord, discard_after, merge
from tightloop.course import anew
from tightloop.episode import (
    EpisodeOutcome,
    EpisodePhase,
    EpisodeResult,
    EpisodeState,
    PauseKind,
    TimelineEntry,
    Tracked,
)
from tightloop.executor import ExecutorReport, ExecutorStatus, Grant, Question
from tightloop.failure import NO_FAILURES, FailureStreak
from tightloop.loop.decisions import failure_of
from tightloop.planning import PlanOutcome, PlanVerdict, ReflectCause, ReflectionOutcome
from tightloop.tracking import ProbabilityClass, Tracking
from tightloop.value import shorten

TIMELINE_LIMIT = 80
NOTES_LIMIT = 5
GRANTS_LIMIT = 100
TREES_REMEMBERED = 8
NOT_A_FAILURE = frozenset(
    {
        ExecutorStatus.COMPLETED,
        ExecutorStatus.NO_CHANGE,
        ExecutorStatus.LIMIT_HIT,
        ExecutorStatus.CANCELLED,
        ExecutorStatus.NEEDS_PERSON,
    }
)
"""Ends of a delivery that are not counted as a failure of the executor."""
DELIVERED_AGAIN = frozenset({ExecutorStatus.LIMIT_HIT, ExecutorStatus.NEEDS_PERSON, ExecutorStatus.FATAL})
"""Ends after which the same plan is delivered again, from where the executor was."""


def with_entry(state: EpisodeState, at: datetime, kind: str, text: str) -> EpisodeState:
    """Add a line to the timeline; the oldest lines go first when it is full."""
    entry = TimelineEntry(at=at, kind=kind, text=shorten(text, 240))
    return state.model_copy(update={"timeline": (*state.timeline, entry)[-TIMELINE_LIMIT:]})


def with_note(state: EpisodeState, note: str) -> EpisodeState:
    """Keep a message for the next plan."""
    return state.model_copy(update={"notes": (*state.notes, shorten(note, 2_000))[-NOTES_LIMIT:]})


def with_retries(state: EpisodeState, attempt: int) -> EpisodeState:
    """Count the attempts after the first as infrastructure retries."""
    if attempt <= 1:
        return state
    spent = state.spent.model_copy(update={"infrastructure_retries": state.spent.infrastructure_retries + attempt - 1})
    return state.model_copy(update={"spent": spent})


def with_worked(state: EpisodeState, duration: timedelta) -> EpisodeState:
    """Count working time."""
    spent = state.spent.model_copy(update={"wall_time": state.spent.wall_time + max(duration, timedelta())})
    return state.model_copy(update={"spent": spent})


def begin_iteration(state: EpisodeState) -> EpisodeState:
    """Count a new pass and forget what belonged to the last one."""
    spent = state.spent.model_copy(update={"iterations": state.spent.iterations + 1})
    begun = state.model_copy(
        update={
            "iteration": state.iteration + 1,
            "spent": spent,
            "phase": EpisodePhase.PLANNING,
            "plan_verdict": None,
            "executor_status": None,
            "executor_error": "",
            "limit_strikes": 0,
            "resume": None,
            "grants": (),
        }
    )
    if should_converge(begun.budget, begun.spent):
        limit = begun.budget.max_iterations
        left = "few" if limit is None else str(max(limit - begun.spent.iterations, 0))
        return with_note(
            begun,
            f"Circuit breaker: {left} iterations are left after this one. "
            "Converge: finish what is open, start nothing new.",
        )
    return begun


def with_plan(state: EpisodeState, outcome: PlanOutcome) -> EpisodeState:
    """Take in the planner's answer."""
    spent = state.spent if outcome.usage is None else state.spent.with_usage(outcome.usage)
    return with_retries(
        state.model_copy(
            update={
                "plan": outcome.plan or state.plan,
                "plan_title": outcome.title or shorten(outcome.reason, 120),
                "plan_final": outcome.final or outcome.verdict is PlanVerdict.CLAIMS_DONE,
                "plan_verdict": outcome.verdict,
                "findings": (*outcome.findings, *(finding for finding in state.findings if finding.refused)),
                "spent": spent,
                "notes": () if outcome.verdict in (PlanVerdict.PLANNED, PlanVerdict.CLAIMS_DONE) else state.notes,
            }
        ),
        outcome.attempt,
    )


def with_report(state: EpisodeState, report: ExecutorReport) -> EpisodeState:
    """Take in what became of a delivery; to obey a person who denied something is no failure."""
    spent = state.spent if report.usage is None else state.spent.with_usage(report.usage)
    limited = report.status is ExecutorStatus.LIMIT_HIT
    fine = report.succeeded or report.question is not None
    obeyed = report.status is ExecutorStatus.REFUSED and any(not grant.allowed for grant in state.grants)
    if report.status not in NOT_A_FAILURE and not obeyed:
        spent = spent.model_copy(update={"executor_failures": spent.executor_failures + 1})
    return with_retries(
        state.model_copy(
            update={
                "tree": report.new_tree or state.tree,
                "spent": spent,
                "executor_status": report.status,
                "executor_error": "" if fine else shorten(report.error or report.summary, 300),
                "limit_strikes": state.limit_strikes + 1 if limited else 0,
                "resume": report.resume if report.status in DELIVERED_AGAIN else None,
            }
        ),
        report.attempt,
    )


def with_grant(state: EpisodeState, question: Question, *, allowed: bool) -> EpisodeState:
    """Keep a person's answer for the next delivery of the plan; the last answer to a question counts."""
    others = tuple(grant for grant in state.grants if grant.fingerprint != question.fingerprint)
    grant = Grant(fingerprint=question.fingerprint, allowed=allowed)
    return state.model_copy(update={"grants": (*others, grant)[-GRANTS_LIMIT:]})


def with_answered(state: EpisodeState, report: ExecutorReport) -> EpisodeState:
    """Take in the report on work that a person did; it never counts as a failure of the executor."""
    return state.model_copy(
        update={
            "executor_status": report.status,
            "executor_error": "" if report.succeeded else shorten(report.error, 300),
            "resume": None,
        }
    )


def with_verification(state: EpisodeState, verification: Verification, *, baseline: bool = False) -> EpisodeState:
    """Take in the results of the checks."""
    update: dict[str, Any] = {
        "tree": verification.tree or state.tree,
        "checks": verification.report or state.checks,
        "checked_tree": verification.tree,
        "checks_green": verification.green,
        "checks_text": verification.passed_of_all,
        "failed_checks": verification.failed[:5],
    }
    if baseline:
        update["baseline_red"] = state.baseline_red or not verification.green
    return with_retries(state.model_copy(update=update), verification.attempt)


def with_tracking(state: EpisodeState, tracked: Tracked, verification: Verification | None) -> EpisodeState:
    """Take in the tracker's record and update everything that guards against going in circles."""
    tracking = tracked.tracking
    failure = failure_of(state, verification, changed=tracking.files_changed > 0)
    progress = verification is not None and verification.progress
    streak = NO_FAILURES if failure is None or progress else state.failures
    if failure is not None and not progress:
        streak = streak.plus(failure)
    low = tracking.probability_class is ProbabilityClass.LOW
    cause, detail = _reflection_needed(tracking, streak)
    return with_retries(
        state.model_copy(
            update={
                "tree": tracked.checkpoint.tree or state.tree,
                "plan_request": tracked.plan_request or state.plan_request,
                "probability_class": tracking.probability_class,
                "low_streak": state.low_streak + 1 if low else 0,
                "failures": streak,
                "trees": (*state.trees, tracked.checkpoint.tree)[-TREES_REMEMBERED:],
                "memory": tracking.memory or state.memory,
                "findings": tracked.findings,
                "spent": state.spent if tracked.usage is None else state.spent.with_usage(tracked.usage),
                "reflect_next": cause,
                "reflect_detail": detail,
                "checkpoints": (*state.checkpoints, tracked.checkpoint)[-RECENT_LIMIT:],
            }
        ),
        tracked.attempt,
    )


def _reflection_needed(tracking: Tracking, streak: FailureStreak) -> tuple[ReflectCause | None, str]:
    reasons = [r.detail for r in tracking.reasons if r.implies is not ProbabilityClass.HIGH]
    if streak.last is not None and streak.count >= 2:
        again = f"{streak.count} times in a row: {streak.last.summary}"
        return ReflectCause.REPEATED_FAILURE, shorten("; ".join((again, *reasons)), 400)
    if tracking.probability_class is not ProbabilityClass.HIGH:
        return ReflectCause.PROBABILITY_CLASS, shorten("; ".join(reasons), 400)
    return None, ""


def with_reflection(state: EpisodeState, outcome: ReflectionOutcome) -> EpisodeState:
    """Take in a reflection; it goes into the next plan."""
    spent = state.spent if outcome.usage is None else state.spent.with_usage(outcome.usage)
    return with_retries(
        state.model_copy(
            update={
                "reflection": outcome.reflection,
                "diagnosis": outcome.diagnosis,
                "reflect_next": None,
                "reflect_detail": "",
                "spent": spent,
            }
        ),
        outcome.attempt,
    )


def resumed(state: EpisodeState) -> EpisodeState:
    """End a pause: a person stepped in, so what was counted towards a pause is counted anew.

    What the alignment check found is allowed by that, unless they said no.
    """
    asked = state.pause is not None and state.pause.kind is PauseKind.ALIGNMENT
    of_change = state.phase is EpisodePhase.TRACKING
    said_no = asked and _said_no(state.notes)
    shown = tuple(finding for finding in state.findings if of_change or not finding.refused) if asked else ()
    allowed = () if said_no else tuple(finding.fingerprint for finding in shown)
    findings = state.findings
    if asked and of_change:
        findings = tuple(finding.model_copy(update={"refused": said_no}) for finding in findings)
    return state.model_copy(
        update={
            "pause": None,
            "overruled": tuple(dict.fromkeys((*state.overruled, *allowed)))[-OVERRULED_LIMIT:],
            "findings": findings,
            "failures": NO_FAILURES,
            "low_streak": 0,
            "limit_strikes": 0,
            "memory": anew(state.memory, state.spent),
        }
    )


_NO = re.compile(
    r"(?:[^:\n]{1,80}: )?\s*(?:please\s+)?(?:no|nope|not|never|deny|denied|stop|refuse|instead|undo|revert|remove|"
    r"take it out|take that out|do not|don't|must not)\b",
    re.IGNORECASE,
)


def _said_no(notes: tuple[str, ...]) -> bool:
    """Return whether the newest message of a person begins like a refusal."""
    return bool(notes) and _NO.match(notes[-1]) is not None


def taken_up(fresh: EpisodeState, newest: EpisodeState | None, known: tuple[CheckpointRecord, ...]) -> EpisodeState:
    """Return the state of a run that continues a closed episode: its counters and lists come from the store.

    The budget is the one of the new run's request, which may have been raised since.
    """
    branches = [record.branch for record in known]
    update: dict[str, Any] = {"checkpoints": merge(fresh.checkpoints, known)[-RECENT_LIMIT:]}
    if newest is not None:
        update |= {"iteration": newest.iteration, "spent": newest.spent}
    return fresh.model_copy(update={**update, "branch": max([fresh.branch, *branches])}) if known else fresh


def restored(current: EpisodeState, stored: EpisodeState, record: CheckpointRecord) -> EpisodeState:
    """Return the state of a checkpoint, in a new branch of the present episode.

    What was planned, checked and learnt goes back; what was spent, the list of checkpoints and the
    numbers do not: they only grow.
    """
    known = discard_after(merge(current.checkpoints, (record,)), record.id)
    recent = known[-RECENT_LIMIT:]
    if all(kept.id != record.id for kept in recent):
        recent = (next(old for old in known if old.id == record.id), *recent[1:])
    return stored.model_copy(
        update={
            "phase": EpisodePhase.RESTORING,
            "iteration": current.iteration,
            "branch": current.branch + 1,
            "request": current.request or stored.request,
            "tree": record.tree,
            "spent": current.spent,
            "budget": current.budget,
            "notes": current.notes,
            "pause": None,
            "low_streak": 0,
            "failures": NO_FAILURES,
            "memory": anew(current.memory, current.spent, keep_plans=True),
            "limit_strikes": 0,
            "resume": None,
            "grants": (),
            "reflect_next": ReflectCause.RESTORED,
            "checkpoints": recent,
            "timeline": current.timeline,
            "restore": None,
            "abort": None,
            "amended": False,
            "checked_tree": stored.checked_tree if current.request in (None, stored.request) else "",
            "runs": current.runs,
        }
    )


def result_of(state: EpisodeState, outcome: EpisodeOutcome, reason: str) -> EpisodeResult:
    """Return what a closed episode leaves behind."""
    last = state.last_checkpoint
    return EpisodeResult(
        outcome=outcome,
        reason=shorten(reason, 600),
        iterations=state.spent.iterations,
        checkpoint_id=last.id if last else "",
        tree=state.tree,
        checks=state.checks_text,
        spent=state.spent,
    )
