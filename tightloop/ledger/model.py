"""Models of the ledger, and the daily digest of a project."""

import hashlib
import shlex
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta
from typing import Any

from pydantic import Field

from tightloop.episode.model import EpisodeStatus
from tightloop.ledger.alert import AlertKind, Notice, Subject
from tightloop.ledger.metrics import Unit
from tightloop.run.question import Question
from tightloop.value import Value, format_count, shorten
from tightloop.value.scrub import scrub

KINDS = ("episode", "plan", "loop")
FREED = "freed"
"""Kind of the only event kept for a workflow whose rows `tightloop gc` deleted."""
KEPT, RELEASED = "kept", "released"
"""Kinds of the events that protect a workflow from `tightloop gc`, or end the protection; the last one wins."""


SUCCEEDED = frozenset({"succeeded", "completed", "verified"})
"""Success statuses, lower case."""
UNKNOWN = "unknown"
"""Status of an ended workflow whose outcome Temporal no longer knows."""


class TrailEvent(Value):
    """Recorded event of a workflow."""

    episode_id: str
    """Id of the episode, plan or loop."""
    kind: str
    """Event kind, such as `iteration`, `paused`, `plan_created`, `plan_verified`."""
    text: str = ""
    key: str = ""
    """Idempotency key, unique in the workflow; a second event with the same key is ignored."""
    at: datetime | None = None


class EvidenceLine(TrailEvent):
    """Recorded event as read back."""

    seq: int = 0
    """Sequence number, increasing over the whole ledger; cursor of the live events."""
    project: str = ""


class WorkflowSnapshot(Value):
    """State of a workflow at one moment; the newest snapshot wins."""

    id: str
    kind: str
    """One of `KINDS`."""
    status: str
    """Status as in `tightloop list`: `running`, `paused`, `succeeded`, ..."""
    parent: str = ""
    goal: str = ""
    """Goal of an episode or loop, title of a plan; at most 200 characters."""
    executor: str = ""
    phase: str = ""
    iteration: int = 0
    checks: str = ""
    """Passed checks of all, such as `2/3`."""
    model: str = ""
    """Model of the executor, if known."""
    cost_usd: float = 0.0
    cost_known: bool = False
    """False if `cost_usd` is only a lower bound or was not reported."""
    tokens: int | None = None
    """Input and output tokens of all model calls. Here and below, None means unknown or incomplete."""
    worked_s: float | None = None
    """Working time in seconds."""
    interventions: int | None = None
    """Number of messages from people during the run."""
    run: int = 1
    """Run number; decides with `at` which snapshot is newer."""
    at: datetime
    started: datetime | None = None
    closed: datetime | None = None
    questions: tuple[Question, ...] = ()
    details: dict[str, Any] = Field(default_factory=dict)
    """Complete status as JSON: an `EpisodeStatus`, `PlanStatus` or `LoopStatus`."""


class WorkflowLine(WorkflowSnapshot):
    """Snapshot as read back."""

    project: str = ""
    waiting_since: datetime | None = None
    """Time since when a person is needed; None if nobody is needed now."""


class WorkflowFilter(Value):
    """Filter of a workflow list; empty fields match all."""

    project: str = ""
    kind: str = ""
    status: str = ""
    text: str = ""
    """Substring of the id or the goal."""
    parent: str | None = None
    """Id of the parent plan; empty: only workflows without a parent; None: all."""


class WorkflowPage(Value):
    """Page of a workflow list, newest start first."""

    lines: tuple[WorkflowLine, ...] = ()
    cursor: str = ""
    """Cursor of the next page; empty on the last page."""


class InboxItem(Value):
    """Open question that waits for a person."""

    project: str
    workflow_id: str
    kind: str
    goal: str = ""
    executor: str = ""
    iteration: int = 0
    question: Question
    since: datetime | None = None
    blocks: int = 0
    """Number of blocked tasks or steps, including the asking one."""
    loop: str = ""
    """Id of the project plan that waits for the answer."""
    tasks: tuple[str, ...] = ()
    """Blocked tasks of that plan: first the asking one, then its dependents."""


class ProjectLine(Value):
    """Project with its activity."""

    id: str
    name: str
    workspace: str = ""
    host: str = ""
    running: int = 0
    waiting: int = 0
    """Workflows that need a person."""
    last_event: datetime | None = None


class StepRow(Value):
    """Last recorded state of a plan step."""

    plan_id: str
    step: str
    status: str
    attempt: int = 0
    child_id: str = ""
    """Id of the workflow that it started, if any."""
    needs: tuple[str, ...] = ()
    title: str = ""
    order: int = 0
    at: datetime | None = None


class Digest(Value):
    """Summary of one day of a project."""

    project: str
    day: date
    done: tuple[str, ...] = ()
    """Succeeded workflows as `id: goal`."""
    blocked: tuple[str, ...] = ()
    """Blocked workflows as `id: reason`."""
    waiting: tuple[InboxItem, ...] = ()
    iterations: int = 0
    cost_usd: float = 0.0


MODEL_CHARACTERS = 120


def episode_snapshot(status: EpisodeStatus, *, parent: str, at: datetime) -> WorkflowSnapshot:
    """Return the ledger row of an episode.

    Args:
        status: result of the status query.
        parent: id of the workflow that started it, if any.
        at: now.
    """
    spent = status.spent
    return WorkflowSnapshot(
        id=status.episode_id,
        kind="episode",
        status=status.status,
        parent=parent,
        goal=status.goal,
        executor=status.executor,
        phase=status.phase.value,
        iteration=status.iteration,
        checks=status.checks,
        model=shorten(status.model, MODEL_CHARACTERS),
        cost_usd=spent.cost_usd,
        cost_known=not spent.unpriced_calls,
        # A sum without the unreported calls would look complete.
        tokens=None if spent.unreported_calls else spent.tokens,
        worked_s=spent.wall_time.total_seconds(),
        interventions=spent.interventions,
        run=status.runs,
        at=at,
        questions=tuple(question for question in status.questions if question.needs_person),
        details=status.model_dump(mode="json"),
    )


_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def amount(value: float | None, unit: Unit) -> str:
    """Format a value with its unit, such as `80 %`, `$0.41` or `1h 5m`; None becomes `unknown`."""
    if value is None:
        return UNKNOWN
    match unit:
        case Unit.SHARE:
            return f"{value:.0%}".replace("%", " %")
        # Calls of small models cost less than a cent, and $0.00 would look free.
        case Unit.USD:
            return f"${value:,.2f}" if value >= 0.01 or value == 0 else f"${value:.4f}"
        case Unit.SECONDS:
            # Compared as it will be rounded: 59.7 is `1m`, not `60s`.
            if value < _MINUTE - 0.5:
                return f"{value:.1f}s" if 0 < value < 10 else f"{value:.0f}s"
            whole = round(value)
            for large, small, names in ((_DAY, _HOUR, "dh"), (_HOUR, _MINUTE, "hm"), (_MINUTE, 1, "ms")):
                if whole >= large:
                    rest = whole % large // small
                    return f"{whole // large}{names[0]} {rest}{names[1]}" if rest else f"{whole // large}{names[0]}"
            return f"{whole}s"
        case Unit.COUNT:
            return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


DAYS_LIMIT = 7
"""Maximum number of missed digests to send; older ones are dropped."""
NOTICE_LINES = 50
LINE_CHARACTERS = 300


def digest_lines(digest: Digest) -> list[str]:
    return [_counts(digest), *(f"  {line}" for line in _details(digest, full=True))]


def is_worth_telling(digest: Digest) -> bool:
    """Return whether the digest has any content."""
    return bool(digest.done or digest.blocked or digest.waiting or digest.iterations or digest.cost_usd)


def newest_day(now: datetime, at: time) -> date:
    """Return the newest day whose digest is due: yesterday from `at` on, earlier the day before yesterday."""
    return (now - timedelta(hours=at.hour, minutes=at.minute)).date() - timedelta(days=1)


def owed_days(last: date | None, newest: date) -> tuple[date, ...]:
    """Return the days whose digests are due, oldest first.

    Args:
        last: day of the last digest sent; None if there was none, which makes only the newest day due.
        newest: newest day whose digest is due.
    """
    missed = 1 if last is None else min((newest - last).days, DAYS_LIMIT)
    return tuple(newest - timedelta(days=back) for back in reversed(range(missed)))


def digest_notice(digest: Digest, *, at: datetime, full: bool = False) -> Notice:
    """Return the digest as a notice.

    Args:
        digest: of a finished day.
        at: time of the notice.
        full: include goals, reasons and question titles, scrubbed; otherwise only ids, kinds and counts.
    """
    details = list(_details(digest, full=full))
    lines = [shorten(scrub(line), LINE_CHARACTERS) for line in details[:NOTICE_LINES]]
    if len(details) > len(lines):
        lines.append(f"and {len(details) - len(lines)} more")
    command = f"tightloop digest --project {shlex.quote(digest.project)} --day {digest.day}"
    return Notice(
        # Equal for all attempts to send this digest, so that receivers can drop duplicates.
        key=hashlib.sha256(f"digest\n{digest.project}\n{digest.day}".encode()).hexdigest()[:32],
        kind=AlertKind.DIGEST,
        subject=Subject.PROJECT,
        episode_id=digest.project,
        phase="",
        at=at,
        title=f"Digest of {digest.project}, {digest.day}",
        text="\n".join((_counts(digest), *lines, f"More: {command}")),
        commands=(command, "tightloop inbox"),
    )


def _counts(digest: Digest) -> str:
    return (
        f"{digest.project}, {digest.day}: {len(digest.done)} succeeded, {len(digest.blocked)} blocked, "
        f"{format_count(len(digest.waiting), 'question')} open; {format_count(digest.iterations, 'iteration')}, "
        f"${digest.cost_usd:.2f}"
    )


def _details(digest: Digest, *, full: bool) -> Iterator[str]:
    yield from (f"done     {line}" for line in _format_lines(digest.done, full))
    yield from (f"blocked  {line}" for line in _format_lines(digest.blocked, full))
    for item in digest.waiting:
        yield f"waits    {item.workflow_id}: {item.question.title if full else item.question.kind.value}"


def _format_lines(lines: Iterable[str], full: bool) -> Iterator[str]:
    for line in lines:
        yield line if full else line.partition(": ")[0]
