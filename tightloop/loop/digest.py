"""Digest of a project: work that is ready to merge, waiting for an answer, failed or still running, and its cost."""

import hashlib
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta
from enum import StrEnum

from tightloop.ledger.alert import AlertKind, Notice, Subject
from tightloop.ledger.metrics import Unit
from tightloop.ledger.model import InboxItem, WorkflowLine, amount
from tightloop.loop.model import LoopStatus, LoopTask, TaskState
from tightloop.run.outcome import is_success
from tightloop.value import Value, format_count, shorten
from tightloop.value.scrub import scrub

DAYS_LIMIT = 7
"""Maximum number of missed days to send. Older ones are dropped."""
ITEMS_SHOWN = 50
GOAL_CHARACTERS = 80
TEXT_CHARACTERS = 400
EFFECT_CHARACTERS = 80
LINE_CHARACTERS = 300
NAMES_SHOWN = 5


class DigestState(StrEnum):
    """State of a digest item. The most urgent state comes first."""

    ANSWER = "answer"
    """A run waits for a person."""
    MERGE = "merge"
    """The run succeeded, is proven, and changed files."""
    REVIEW = "review"
    """The run succeeded, but a part of it is not proven or not done."""
    FAILED = "failed"
    WAITS = "waits"
    """The project plan can only continue after one of its tasks has been answered."""
    RUNNING = "running"
    DONE = "done"
    """The run succeeded, and there is nothing to merge."""


class DigestItem(Value):
    """An item of a digest.

    The item is either a run that was started directly, or a project task that failed or has an open
    question.
    """

    id: str
    state: DigestState
    goal: str = ""
    kind: str = ""
    """Kind of the question, or status of the run. It never contains text written by people or programs."""
    text: str = ""
    """Description of the result, the question or the progress."""
    command: str = ""
    """Command for the next step, if there is a single one."""
    cost_usd: float | None = None
    """Cost of the whole run so far. None for tasks, whose cost is included in their plan's cost."""
    cost_known: bool = True
    """False if `cost_usd` is only a lower bound."""


class Digest(Value):
    """Summary of what happened in a project during a time range."""

    project: str
    workspace: str = ""
    since: datetime
    until: datetime
    items: tuple[DigestItem, ...] = ()
    """Pieces of work, most urgent first."""
    iterations: int = 0
    cost_usd: float = 0.0
    """Known cost in the time range."""

    @property
    def with_unknown_cost(self) -> tuple[str, ...]:
        """The IDs of the runs whose total cost is not known."""
        return tuple(item.id for item in self.items if not item.cost_known)


def digest_items(
    ended: Iterable[WorkflowLine], running: Iterable[WorkflowLine], waiting: Iterable[InboxItem]
) -> tuple[DigestItem, ...]:
    """Return the items of a digest, most urgent first.

    Args:
        ended: runs without a parent that ended in the time range, with details.
        running: open runs without a parent, with details.
        waiting: open questions.
    """
    questions: dict[str, list[InboxItem]] = {}
    for item in waiting:
        questions.setdefault(item.workflow_id, []).append(item)
    lines = {line.id: line for line in running}
    items = [_asking(asked, lines.get(key)) for key, asked in questions.items()]
    items += [item for line in ended for item in (_ended(line), *_failed_tasks(line))]
    items += [
        item
        for line in lines.values()
        for item in (*([] if line.id in questions else [_open(line, questions)]), *_failed_tasks(line))
    ]
    order = tuple(DigestState)
    return tuple(sorted(items, key=lambda item: order.index(item.state)))


def _item(line: WorkflowLine, state: DigestState, text: str, command: str = "") -> DigestItem:
    return DigestItem.of(line, state=state, kind=line.status, text=text, command=command)


def _asking(asked: list[InboxItem], line: WorkflowLine | None) -> DigestItem:
    """Return the digest item for a run with open questions. `line` is None if a plan started the run."""
    first, question = asked[0], asked[0].question
    more = f" ({format_count(len(asked) - 1, 'more question')})" if len(asked) > 1 else ""
    since = f" Since {first.since:%d %b %H:%M} UTC." if first.since else ""
    blocked = first.tasks[1:]
    waits = f" {_names(blocked)} {'waits' if len(blocked) == 1 else 'wait'} for it." if blocked else ""
    names = [option.name for option in question.options]
    if question.command:
        command = f"tightloop loop {question.command} {first.workflow_id}"
    elif names:
        text = f" {question.options[0].needs_text}" if question.options[0].needs_text else ""
        key = f" --question {question.id}" if len(asked) > 1 else ""
        command = f"tightloop answer {first.workflow_id} {names[0]}{text}{key}"
    else:
        command = f"tightloop status {first.workflow_id}"
    effects = [f"{option.name} ({shorten(option.effect, EFFECT_CHARACTERS)})" for option in question.options]
    answers = f" Answers: {', '.join(effects)}." if len(names) > 1 else ""
    item = DigestItem(id=first.workflow_id, state=DigestState.ANSWER, goal=first.goal, kind=question.kind.value)
    if line is not None:
        item = item.evolve(cost_usd=line.cost_usd, cost_known=line.cost_known)
    title = question.title.rstrip(".")
    return item.evolve(text=f"{shorten(title, TEXT_CHARACTERS)}{more}.{waits}{since}{answers}", command=command)


def _ended(line: WorkflowLine) -> DigestItem:
    details = line.details
    reason = str(details.get("reason") or "")
    if not is_success(line.status):
        why = shorten(" ".join(reason.split()), TEXT_CHARACTERS) or "no reason was given"
        why = why if line.status == "failed" else f"{line.status}: {why}"
        return _item(line, DigestState.FAILED, why, f"tightloop status {line.id}")
    proof = line.qualifier or f"proven ({reason or 'its checks pass'})"
    place = str(details.get("delivered") or "")
    if not place and line.files_changed == 0:
        return _item(line, DigestState.REVIEW if line.qualifier else DigestState.DONE, f"{proof}, and no files changed")
    if not place:
        count = "its changed files" if line.files_changed is None else format_count(line.files_changed, "changed file")
        place = f"{count} in the working tree, not committed. To see the changes: tightloop result {line.id} --patch"
    return _item(line, DigestState.REVIEW if line.qualifier else DigestState.MERGE, f"{proof}; {place}")


def _open(line: WorkflowLine, questions: dict[str, list[InboxItem]]) -> DigestItem:
    if line.kind == "episode":
        # The ledger learns of an iteration when it ends.
        done = f"{format_count(line.iteration, 'iteration')} done" if line.iteration else "in its first iteration"
        return _item(line, DigestState.RUNNING, f"{done}; checks {line.checks}" if line.checks else done)
    if line.kind == "plan":
        is_asking = any(key.startswith(f"{line.id}.") for key in questions)
        return _item(line, DigestState.RUNNING, "a step waits for an answer" if is_asking else line.phase.lower())
    tasks = LoopStatus.model_validate(line.details).tasks if line.details else ()
    moves = not tasks or any(task.state is TaskState.RUNNING for task in tasks)
    text = f"{_progress(tasks)}. When all have ended: tightloop loop verify {line.id}" if tasks else line.phase
    return _item(line, DigestState.RUNNING if moves else DigestState.WAITS, text)


_WORDS = {
    TaskState.COMPLETE: "complete",
    TaskState.RUNNING: "running",
    TaskState.AWAITING_RESPONSE: "waiting for an answer",
    TaskState.QUEUED: "not started",
    TaskState.CREATED: "not started",
    TaskState.ERROR: "failed",
    TaskState.CANCELLED: "cancelled",
}


def _progress(tasks: tuple[LoopTask, ...]) -> str:
    """Return the number of tasks in each state, with the names of the incomplete tasks."""
    counts = Counter(_WORDS[task.state] for task in tasks)
    parts = [f"{counts.pop('complete', 0)} of {format_count(len(tasks), 'task')} complete"] if tasks else []
    for word in counts:
        parts.append(f"{word}: {_names([task.task_id for task in tasks if _WORDS[task.state] == word])}")
    if resolved := sum(bool(task.conflict_of) and task.state is TaskState.COMPLETE for task in tasks):
        parts.append(f"{format_count(resolved, 'conflict')} resolved")
    return "; ".join(parts)


def _failed_tasks(line: WorkflowLine) -> list[DigestItem]:
    """Return the tasks of a project plan that ran and failed.

    Tasks that depend on a failed task are not returned. The item for the plan counts them.
    """
    if line.kind != "loop" or not line.details:
        return []
    return [
        DigestItem(
            id=task.run_id,
            state=DigestState.FAILED,
            goal=task.description,
            kind="failed",
            text=shorten(" ".join(task.message.split()), TEXT_CHARACTERS) or "it failed",
            command=f"tightloop status {task.run_id}",
        )
        for task in LoopStatus.model_validate(line.details).tasks
        if task.state is TaskState.ERROR and task.run_id
    ]


def _names(names: Iterable[str]) -> str:
    all_names = list(names)
    more = f" and {len(all_names) - NAMES_SHOWN} more" if len(all_names) > NAMES_SHOWN else ""
    return ", ".join(all_names[:NAMES_SHOWN]) + more


def is_worth_telling(digest: Digest) -> bool:
    """Return whether a digest contains anything worth sending."""
    return bool(digest.items or digest.iterations or digest.cost_usd)


def digest_lines(digest: Digest) -> list[str]:
    """Return the digest as text, at most `ITEMS_SHOWN` + 4 lines."""
    place = f" in {digest.workspace}" if digest.workspace else ""
    lines = [f"{digest.project}{place}, {_range(digest)}", _counts(digest), *_item_lines(digest, full=True)]
    if any(item.state is DigestState.ANSWER for item in digest.items):
        lines.append(f"Evidence for the questions: tightloop inbox --project {shlex.quote(digest.project)}")
    return lines


def newest_day(now: datetime, at: time) -> date:
    """Return the day on which the newest due digest starts.

    A digest covers the time from `at` to `at` on the next day.
    """
    return (now - timedelta(hours=at.hour, minutes=at.minute)).date() - timedelta(days=1)


def owed_days(last: date | None, newest: date) -> tuple[date, ...]:
    """Return the days whose digests are due but have not been sent, oldest first.

    Args:
        last: day of the last digest that was sent. If None, only the newest day is due.
        newest: newest day whose digest is due.
    """
    missed = 1 if last is None else min((newest - last).days, DAYS_LIMIT)
    return tuple(newest - timedelta(days=back) for back in reversed(range(missed)))


def digest_notice(digest: Digest, *, at: datetime, full: bool = False) -> Notice:
    """Convert a digest to a notice for the alert channels.

    Args:
        digest: digest of a finished time range.
        at: time of the notice.
        full: include scrubbed goals, reasons and question titles. Otherwise, include only ids, kinds and
            counts.
    """
    lines = [shorten(scrub(line), LINE_CHARACTERS) for line in _item_lines(digest, full=full)]
    since, until = (f"{moment:%Y-%m-%dT%H:%M}" for moment in (digest.since, digest.until))
    command = f"tightloop digest --project {shlex.quote(digest.project)} --since {since} --until {until}"
    return Notice(
        # Equal for all attempts to send this digest, so that receivers can drop duplicates.
        key=hashlib.sha256(f"digest\n{digest.project}\n{since}".encode()).hexdigest()[:32],
        kind=AlertKind.DIGEST,
        subject=Subject.PROJECT,
        episode_id=digest.project,
        phase="",
        at=at,
        title=f"Digest of {digest.project}, {_range(digest)}",
        text="\n".join((f"{digest.project}, {_range(digest)}", _counts(digest), *lines, f"More: {command}")),
        commands=(command, "tightloop inbox"),
    )


def _range(digest: Digest) -> str:
    return f"{digest.since:%Y-%m-%d %H:%M} to {digest.until:%Y-%m-%d %H:%M} UTC"


def _counts(digest: Digest) -> str:
    counts = Counter(item.state for item in digest.items)
    words = {
        DigestState.ANSWER: "to answer",
        DigestState.MERGE: "to merge",
        DigestState.REVIEW: "to review",
        DigestState.FAILED: "failed",
        DigestState.WAITS: "waiting for answers",
        DigestState.RUNNING: "running",
        DigestState.DONE: "done",
    }
    shown = ", ".join(f"{counts[state]} {word}" for state, word in words.items() if counts[state]) or "nothing happened"
    unknown = digest.with_unknown_cost
    cost = f"{'at least ' if unknown else ''}{amount(digest.cost_usd, Unit.USD)}"
    missing = f" (not fully reported by {_names(unknown)})" if unknown else ""
    return f"{shown}; {format_count(digest.iterations, 'iteration')}; cost {cost}{missing}"


def _item_lines(digest: Digest, *, full: bool) -> Iterator[str]:
    for item in digest.items[:ITEMS_SHOWN]:
        yield f"  {item.state.value:<8} {_full_line(item) if full else _short_line(item)}"
    if (left := len(digest.items) - ITEMS_SHOWN) > 0:
        yield f"  and {left} more: tightloop list"


def _short_line(item: DigestItem) -> str:
    return f"{item.id}: {item.kind}" if item.kind else item.id


def _full_line(item: DigestItem) -> str:
    goal = f' "{shorten(" ".join(item.goal.split()), GOAL_CHARACTERS)}"' if item.goal else ""
    cost = ""
    if item.cost_usd is not None:
        at_least = f"at least {amount(item.cost_usd, Unit.USD)}" if item.cost_usd else "unknown"
        cost = f"; cost {amount(item.cost_usd, Unit.USD) if item.cost_known else at_least}"
    return f"{item.id}{goal}: {item.text}{cost}" + (f" -> {item.command}" if item.command else "")
