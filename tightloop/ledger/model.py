"""Models of the ledger, and the digest of a project's day."""

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
from tightloop.value import Value, counted, shorten
from tightloop.value.scrub import scrub

KINDS = ("episode", "plan", "loop")
FREED = "freed"
"""Kind of the one event that stays of a workflow whose rows `tightloop gc` freed."""
KEPT, RELEASED = "kept", "released"
"""Kinds of the events with which a person keeps a workflow from `tightloop gc`; the last one counts."""


SUCCEEDED = frozenset({"succeeded", "completed", "verified"})
"""Statuses of what succeeded, in small letters."""
UNKNOWN = "unknown"
"""Status of what ended, and Temporal has forgotten how."""


class TrailEvent(Value):
    """One line of the evidence trail."""

    episode_id: str
    """The episode, plan or loop."""
    kind: str
    """Such as `iteration`, `paused`, `plan_created`, `plan_verified`."""
    text: str = ""
    key: str = ""
    """Makes the event unique in its workflow; an event with the same key is recorded once."""
    at: datetime | None = None


class EvidenceLine(TrailEvent):
    """A line of the trail as it is read."""

    seq: int = 0
    """Grows with each line of the ledger; the cursor of live events."""
    project: str = ""


class WorkflowSnapshot(Value):
    """What a workflow says of itself at one moment; the newest one wins."""

    id: str
    kind: str
    """One of `KINDS`."""
    status: str
    """As in `tightloop list`: `running`, `paused`, `succeeded`, ..."""
    parent: str = ""
    goal: str = ""
    """The goal of an episode or loop, the title of a plan; at most 200 characters."""
    executor: str = ""
    phase: str = ""
    iteration: int = 0
    checks: str = ""
    """Passed of all, such as `2/3`."""
    model: str = ""
    """Of the executor, where its name is known."""
    cost_usd: float = 0.0
    cost_known: bool = False
    """Whether that is all of it; False: it is a lower bound, or nobody said."""
    tokens: int | None = None
    """Input and output tokens of all calls of models. Here and below None: not known, or not in full."""
    worked_s: float | None = None
    """Working time in seconds."""
    interventions: int | None = None
    """Messages of people while it ran."""
    run: int = 1
    """Number of the run; with `at` it tells which snapshot is newer."""
    at: datetime
    started: datetime | None = None
    closed: datetime | None = None
    questions: tuple[Question, ...] = ()
    details: dict[str, Any] = Field(default_factory=dict)
    """The whole status as JSON: an `EpisodeStatus`, `PlanStatus` or `LoopStatus`."""


class WorkflowLine(WorkflowSnapshot):
    """A snapshot as it is read."""

    project: str = ""
    waiting_since: datetime | None = None
    """Since when a person is needed; None: not now."""


class WorkflowFilter(Value):
    """Which workflows to list; empty fields mean all."""

    project: str = ""
    kind: str = ""
    status: str = ""
    text: str = ""
    """Part of the id or the goal."""
    parent: str | None = None
    """Id of the plan whose children are listed; empty: only those without a parent; None: all."""


class WorkflowPage(Value):
    """A page of a list, the newest start first."""

    lines: tuple[WorkflowLine, ...] = ()
    cursor: str = ""
    """Where the next page begins; empty: this is the last one."""


class InboxItem(Value):
    """One question that waits for a person."""

    project: str
    workflow_id: str
    kind: str
    goal: str = ""
    executor: str = ""
    iteration: int = 0
    question: Question
    since: datetime | None = None
    blocks: int = 0
    """Tasks or steps that cannot go on before it is answered, its own included."""
    loop: str = ""
    """Id of the project's plan that waits for it."""
    tasks: tuple[str, ...] = ()
    """Of that plan: the task that asks, then those that wait for it."""


class ProjectLine(Value):
    """A project and what goes on in it."""

    id: str
    name: str
    workspace: str = ""
    host: str = ""
    running: int = 0
    waiting: int = 0
    """Workflows that need a person."""
    last_event: datetime | None = None


class StepRow(Value):
    """A step of a plan as last recorded."""

    plan_id: str
    step: str
    status: str
    attempt: int = 0
    child_id: str = ""
    """The workflow that it started, if any."""
    needs: tuple[str, ...] = ()
    title: str = ""
    order: int = 0
    at: datetime | None = None


class Digest(Value):
    """What happened in a project in one day."""

    project: str
    day: date
    done: tuple[str, ...] = ()
    """`id: goal` of what succeeded."""
    blocked: tuple[str, ...] = ()
    """`id: by what`."""
    waiting: tuple[InboxItem, ...] = ()
    iterations: int = 0
    cost_usd: float = 0.0


MODEL_CHARACTERS = 120


def episode_snapshot(status: EpisodeStatus, *, parent: str, at: datetime) -> WorkflowSnapshot:
    """Return the row of an episode.

    Args:
        status: as the query answers it.
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
    """Return a value in its unit, such as `80 %`, `$0.41` or `1h 5m`; `unknown` is never a number."""
    if value is None:
        return UNKNOWN
    match unit:
        case Unit.SHARE:
            return f"{value:.0%}".replace("%", " %")
        case Unit.USD:
            return f"${value:,.2f}" if value >= 0.01 or value == 0 else f"${value:.4f}"
        case Unit.SECONDS:
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
"""Older digests that were missed are not sent any more."""
NOTICE_LINES = 50
LINE_CHARACTERS = 300


def digest_lines(digest: Digest) -> list[str]:
    return [_counts(digest), *(f"  {line}" for line in _details(digest, full=True))]


def is_worth_telling(digest: Digest) -> bool:
    """Return whether anything happened, or waits."""
    return bool(digest.done or digest.blocked or digest.waiting or digest.iterations or digest.cost_usd)


def newest_day(now: datetime, at: time) -> date:
    """Return the newest day whose digest is due: yesterday from `at` on, before that the day before yesterday."""
    return (now - timedelta(hours=at.hour, minutes=at.minute)).date() - timedelta(days=1)


def owed_days(last: date | None, newest: date) -> tuple[date, ...]:
    """Return the days whose digests are to be sent, oldest first.

    Args:
        last: the day of the last digest that was sent; None: there was none, and only the newest day is owed.
        newest: the newest day whose digest is due.
    """
    missed = 1 if last is None else min((newest - last).days, DAYS_LIMIT)
    return tuple(newest - timedelta(days=back) for back in reversed(range(missed)))


def digest_notice(digest: Digest, *, at: datetime, full: bool = False) -> Notice:
    """Return the digest as a notice.

    Args:
        digest: of a day that is over.
        at: the time of the notice.
        full: with goals, reasons and what is asked, scrubbed; else with ids, kinds and counts alone.
    """
    details = list(_details(digest, full=full))
    shown = [shorten(scrub(line), LINE_CHARACTERS) for line in details[:NOTICE_LINES]]
    if len(details) > len(shown):
        shown.append(f"and {len(details) - len(shown)} more")
    command = f"tightloop digest --project {shlex.quote(digest.project)} --day {digest.day}"
    return Notice(
        key=hashlib.sha256(f"digest\n{digest.project}\n{digest.day}".encode()).hexdigest()[:32],
        kind=AlertKind.DIGEST,
        subject=Subject.PROJECT,
        episode_id=digest.project,
        phase="",
        at=at,
        title=f"Digest of {digest.project}, {digest.day}",
        text="\n".join((_counts(digest), *shown, f"More: {command}")),
        commands=(command, "tightloop inbox"),
    )


def _counts(digest: Digest) -> str:
    return (
        f"{digest.project}, {digest.day}: {len(digest.done)} done, {len(digest.blocked)} not, "
        f"{counted(len(digest.waiting), 'question')} open; {counted(digest.iterations, 'iteration')}, "
        f"${digest.cost_usd:.2f}"
    )


def _details(digest: Digest, *, full: bool) -> Iterator[str]:
    yield from (f"done     {line}" for line in _worded(digest.done, full))
    yield from (f"blocked  {line}" for line in _worded(digest.blocked, full))
    for item in digest.waiting:
        yield f"waits    {item.workflow_id}: {item.question.title if full else item.question.kind.value}"


def _worded(lines: Iterable[str], full: bool) -> Iterator[str]:
    for line in lines:
        yield line if full else line.partition(": ")[0]
