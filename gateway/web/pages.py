"""The pages of the web interface, and how their values are formatted."""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import anyio
from anyio.to_thread import run_sync
from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.access.scope import Scope
from gateway.web.code import read_files
from gateway.web.graph import lay_out
from tightloop.client import CLOSED_STATUSES, OPEN_STATUSES, Topology
from tightloop.client.store import Store, TreeChange, checkpoint_file, read_number
from tightloop.database.ledger import Ledger
from tightloop.episode.check import CheckReport
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.failure import explain_output
from tightloop.episode.model import EpisodeState, EpisodeStatus
from tightloop.episode.planning import PlanRecord
from tightloop.errors import TightloopError
from tightloop.executor.message import Reflection, render_plan
from tightloop.ledger.model import InboxItem, WorkflowFilter, WorkflowLine
from tightloop.loop.gates import estimate_of
from tightloop.loop.model import LoopState, LoopStatus
from tightloop.plan.request import PlanStatus
from tightloop.run.core import RunStatus
from tightloop.safety.seal import Person, Role
from tightloop.value import format_count
from tightloop.value.scrub import scrub
from tightloop.wording import number_text, status_label, steps_done


@dataclass(frozen=True)
class Screen:
    """A template and its content."""

    template: str
    content: dict[str, Any]
    section: str = ""
    """Path of the active navigation entry."""
    live: str = ""
    """Ids of workflows and projects whose events refresh the page. `*` means all."""


class SharedContent:
    """Ledger content that is shown on every page. It is shared by people who see the same projects."""

    def __init__(self, ledger: Ledger) -> None:
        """Store a ledger that is limited to the visible projects."""
        self._ledger = ledger

    @cached_property
    def inbox(self) -> tuple[InboxItem, ...]:
        """Open questions, oldest first."""
        return self._ledger.inbox()

    @cached_property
    def names(self) -> dict[str, str]:
        """The display names of projects, by id."""
        return self._ledger.names()


@dataclass(frozen=True)
class View:
    """A person's view of the ledger, created for each request."""

    ledger: Ledger
    person: Person
    shared: SharedContent

    @classmethod
    def of(cls, scope: Scope) -> "View":
        """Create the view that shows the ledger within a person's scope."""
        ledger = scope.ledger
        return cls(ledger, scope.person, SharedContent(ledger))

    @property
    def inbox(self) -> tuple[InboxItem, ...]:
        """Open questions, oldest first."""
        return self.shared.inbox

    def may(self, role: Role) -> bool:
        """Return whether the person has a role or a higher role that includes it."""
        return self.person.role.includes(role)

    def name_of(self, project: str) -> str:
        """Return a project's display name."""
        return self.shared.names.get(project, project)


_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


class Badge(NamedTuple):
    """A badge that shows a state. It can be recognized without its colour."""

    word: str
    glyph: str
    tone: str
    """CSS class: `quiet`, `running`, `needs`, `paused`, `good` or `bad`."""


NEEDS_RESPONSE = Badge("NEEDS RESPONSE", "", "needs")
"""Badge for questions. Its glyph is a pulsing dot that CSS draws."""
_TONES = {
    "quiet": ("○", ("idle", "created", "queued", "cancelled", "draft", "pending", "skipped", "ready", "waiting")),
    "running": ("◐", ("open", "running", "dispatching", "verifying", "retrying", "compensating", "planning")),
    "paused": ("❚❚", ("paused",)),
    "good": (
        "✓",
        ("succeeded", "completed", "complete", "verified", "done", "reused", "passed", "recovered", "connected"),
    ),
    "bad": ("✕", ("failed", "error", "terminated", "timed_out", "compensated", "undone", "blocked", "missing")),
}
_TONE_OF = {status: (glyph, tone) for tone, (glyph, statuses) in _TONES.items() for status in statuses}
_NEEDS = ("awaiting_response", "needs response")


def badge(status: str, *, waits: bool = False) -> Badge:
    """Return the badge that displays a status.

    Args:
        status: status of an episode, plan, loop, task or step, in upper or lower case, with any qualifier.
        waits: whether the run is waiting for a person. This overrides the status.
    """
    state = status.lower()
    if waits or state in _NEEDS:
        return NEEDS_RESPONSE
    word, _, qualifier = state.partition(", ")
    # A success with a qualifier needs a look, so it does not get the colour of success.
    glyph, tone = ("!", "paused") if qualifier else _TONE_OF.get(word, ("○", "quiet"))
    return Badge(status_label(state, None).replace("_", " ").capitalize(), glyph, tone)


def title_of(line: WorkflowLine) -> str:
    """Return the title of an episode or plan.

    This is the goal, if there is one; otherwise, it is the id, or a fixed string for a loop.
    """
    return line.goal or ("Fix the failing checks" if line.kind == "loop" else line.id)


def age(at: datetime | None, now: datetime | None = None) -> str:
    """Format the time elapsed since a given moment, e.g. `12m`. Return an empty string if the moment is unknown."""
    if at is None:
        return ""
    seconds = max(int(((now or datetime.now(UTC)) - at).total_seconds()), 0)
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def duration(span: timedelta | float | None) -> str:
    """Format a duration, e.g. `1h 5m` or `8s`. Return an empty string if the duration is unknown."""
    if span is None:
        return ""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < _MINUTE:
        return f"{seconds:.0f}s"
    hours, minutes = divmod(int(seconds) // _MINUTE, 60)
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {int(seconds) % _MINUTE}s"


def money(cost_usd: float) -> str:
    """Format a cost, e.g. `$0.41`. Return an empty string for zero."""
    return f"${cost_usd:.2f}" if cost_usd >= 0.005 else "<$0.01" if cost_usd > 0 else ""


def moment(at: datetime | None) -> str:
    """Format a time in UTC. Return an empty string if the time is unknown."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at is not None else ""


EPISODE_TABS = ("Timeline", "Checks", "Diff", "Plan", "Findings", "Checkpoints", "Log")
LOG_LINES = 500
WHY_CHARACTERS = 1_200


def show_episode(ledger: Ledger, line: WorkflowLine, query: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the template and content for an episode's page."""
    tab = query.get("tab", "timeline")
    checkpoints = ledger.checkpoints(line.id)
    status = EpisodeStatus.model_validate(line.details)
    content = {
        "tabs": EPISODE_TABS,
        "tab": tab,
        "facts": _facts(line, status),
        "checkpoints": checkpoints,
        # Hundreds of rows, so only for the tab that shows them.
        "log": ledger.events(workflow_id=line.id, limit=LOG_LINES) if tab == "log" else (),
    }
    workspace = Path(status.workspace)
    if tab == "checks":
        content |= _checks(Store(workspace, line.id), status, query.get("check", ""))
    elif tab == "diff":
        content |= _diff(workspace, line.id, checkpoints, query)
    elif tab in ("plan", "findings"):
        content |= _thought(Store(workspace, line.id), checkpoints)
    return "episode.html", content


def _facts(line: WorkflowLine, status: EpisodeStatus) -> list[tuple[str, str]]:
    budget, spent = status.budget, status.spent
    used = f"{spent.iterations}/{budget.max_iterations}" if budget.max_iterations else str(spent.iterations)
    return [
        ("Checks", line.checks),
        ("Found checks", " ".join(status.chosen_checks)),
        ("Result", line.qualifier),
        ("Files changed", "" if line.files_changed is None else str(line.files_changed)),
        ("Delivered", status.delivered),
        # A closed run does nothing any more.
        ("Doing", "" if line.closed else line.phase.lower().replace("_", " ")),
        ("Running", status.work.describe(datetime.now(UTC)) if status.work else ""),
        ("Iterations", used),
        ("Executor", line.executor),
        ("Spent", _spent(line, spent.tokens)),
        ("Working time", duration(spent.wall_time) if spent.wall_time else ""),
        ("Checkpoint", status.checkpoint_id),
        ("Started", moment(line.started)),
        ("Ended", moment(line.closed)),
        ("Reason", status.reason),
    ]


def _spent(line: WorkflowLine, tokens: int) -> str:
    """Format a run's cost and tokens.

    They are shown as lower bounds if some model calls did not report their usage.
    """
    cost = money(line.cost_usd)
    parts = (
        f"at least {cost}" if cost and not line.cost_known else cost,
        f"{'at least ' if line.tokens is None else ''}{number_text(tokens)} tokens" if tokens else "",
    )
    return ", ".join(filter(None, parts))


def _checks(store: Store, status: EpisodeStatus, name: str) -> dict[str, Any]:
    """Return the latest check results and the complete output of one check.

    The output is stored on the workspace's host.
    """
    content: dict[str, Any] = {"results": (), "shown": None, "output": "", "missing": "No check has run yet."}
    if status.check_report is None:
        return content
    try:
        results = store.load_model(status.check_report, CheckReport).results
        shown = next((result for result in results if result.name == name), None)
        output = store.artifact(shown.output).decode("utf-8", "replace") if shown and shown.output else ""
    except TightloopError as error:
        return content | {"missing": error.message}
    explained = [(result, explain_output(scrub(result.tail), WHY_CHARACTERS)) for result in results]
    return content | {"results": explained, "shown": shown, "output": scrub(output)}


def _diff(
    workspace: Path, episode_id: str, checkpoints: Sequence[CheckpointRecord], query: Mapping[str, str]
) -> dict[str, Any]:
    newest = checkpoints[-1].id if checkpoints else ""
    to = query.get("to", newest)
    parent = next(
        (checkpoint.parent for checkpoint in checkpoints if checkpoint.id == to and checkpoint.parent), newest
    )
    selected_ids = (query.get("from", parent), to)
    content = {"chosen": selected_ids, "split": query.get("view") == "split", "files": (), "missing": ""}
    if not checkpoints:
        return content | {"missing": "There are no checkpoints yet."}
    try:
        numbers = [read_number(episode_id, name) for name in selected_ids]
        patch = TreeChange(workspace, episode_id, numbers, checkpoints).text()
    except TightloopError as error:
        return content | {"missing": error.message}
    return content | {"files": read_files(patch)}


def _thought(store: Store, checkpoints: Sequence[CheckpointRecord]) -> dict[str, Any]:
    """Read the newest plan, reflection and findings. They are only available on the workspace's host."""
    content: dict[str, Any] = {"plan_text": "", "reflection": None, "findings": [], "missing": ""}
    if not checkpoints:
        return content
    try:
        # The ledger has no plan texts; they are in the files of the newest checkpoint.
        state = checkpoint_file(store, checkpoints, checkpoints[-1].number).state
        return content | _load_content(store, state)
    except TightloopError as error:
        return content | {"missing": error.message}


def _load_content(store: Store, state: EpisodeState) -> dict[str, Any]:
    plan = store.load_model(state.plan, PlanRecord).message if state.plan else None
    return {
        "plan_text": render_plan(plan) if plan is not None else "",
        "reflection": store.load_model(state.reflection, Reflection) if state.reflection else None,
        "findings": list(state.findings),
    }


T = TypeVar("T")
PLAN_TABS = ("Steps", "Children", "Log")
CHILDREN_LINES = 100
GRAPH_STEPS = 1_000
"""Maximum number of steps in a graph. A larger graph is unreadable, and the list has the same information."""


def show_plan(ledger: Ledger, line: WorkflowLine, query: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the template and content for a plan's page."""
    tab, steps = query.get("tab", "steps"), ledger.steps(line.id)
    status = PlanStatus.model_validate(line.details)
    graph = lay_out({step.step: step.needs for step in steps} if len(steps) <= GRAPH_STEPS else {})
    return "plan.html", {
        "tabs": PLAN_TABS,
        "tab": tab,
        "steps": steps,
        "states": {step.step: step.status for step in steps},
        "graph": graph,
        "children": ledger.workflows(WorkflowFilter(parent=line.id), limit=CHILDREN_LINES).lines,
        "log": ledger.events(workflow_id=line.id, limit=LOG_LINES) if tab == "log" else (),
        "facts": [
            ("Steps done", steps_done(status.counts)),
            ("Result", line.qualifier),
            ("Files changed", "" if line.files_changed is None else str(line.files_changed)),
            ("Delivered", status.delivered),
            ("Doing", "" if line.closed else line.phase.lower()),
            ("Revision", str(status.revision) if status.revision > 1 else ""),
            ("Spent", _spent(line, status.spent.tokens)),
            ("Working time", duration(line.worked_s) if line.worked_s else ""),
            ("Started", moment(line.started)),
            ("Ended", moment(line.closed)),
            ("Reason", status.reason),
        ],
    }


def show_loop(ledger: Ledger, line: WorkflowLine, _query: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the template and content for a project plan's page."""
    status = LoopStatus.model_validate(line.details)
    return "loop.html", {
        "tabs": (),
        "tab": "",
        "status": status,
        "children": ledger.workflows(WorkflowFilter(parent=line.id), limit=CHILDREN_LINES).lines,
        "log": ledger.events(workflow_id=line.id, limit=LOG_LINES),
        "facts": [
            ("Delivered", status.delivered),
            ("Packet", status.packet_id),
            ("Found checks", " ".join(status.chosen_checks)),
            ("Dispatched", moment(status.executed_at)),
            ("Completed", moment(status.completed_at)),
            ("Gates ended", moment(status.verified_at)),
        ],
    }


class DispatchPreview(NamedTuple):
    """The content of the confirmation page for a dispatch."""

    runs: int
    checks: tuple[str, ...]
    facts: list[tuple[str, str]]


def preview_dispatch(status: LoopStatus) -> DispatchPreview:
    """Estimate how many episodes a dispatch will start, according to the plan."""
    estimate = estimate_of(status)
    facts = [
        ("Runs", format_count(estimate.runs, "episode")),
        ("Start at once", f"{estimate.at_once} of {estimate.runs}"),
        ("At the same time", f"at most {estimate.parallel}" if estimate.parallel else ""),
        ("Executor", estimate.executor),
    ]
    if estimate.is_bounded:
        facts += [
            ("Iterations together", _format_bound(estimate.iterations)),
            ("Cost together", _format_bound(estimate.cost_usd, "${:.2f}".format)),
            ("Tokens together", _format_bound(estimate.tokens, "{:,}".format)),
            ("Work together", _format_bound(estimate.wall_time, duration)),
        ]
    return DispatchPreview(estimate.runs, estimate.checks, [(name, value) for name, value in facts if value])


def _format_bound(bound: T | None, to_text: Callable[[T], str] = str) -> str:
    return "no limit" if bound is None else f"at most {to_text(bound)}"


PAGE_LINES = 50
RUNNING_LINES = 20
ENDED_LINES = 10


def inbox(view: View, request: Request) -> Screen:
    """Show open questions, running work and work that ended recently."""
    project = request.query_params.get("project", "")
    waiting = [item for item in view.inbox if project in ("", item.project)]
    top = WorkflowFilter(project=project, parent="")
    running = view.ledger.workflows(top.evolve(status="running"), limit=RUNNING_LINES).lines
    newest = view.ledger.workflows(top, limit=PAGE_LINES).lines
    # The ledger sorts by start, but what ended last matters here.
    ended = sorted((line for line in newest if line.closed), key=_closing_time, reverse=True)[:ENDED_LINES]
    content = {
        "items": waiting,
        "running": running,
        "ended": ended,
        "any": bool(newest or waiting),
        "may_answer_item": lambda item: may_answer(view, item),
    }
    return Screen("inbox.html", content, section="/", live="*")


def may_answer(view: View, item: InboxItem | WorkflowLine, number: int = 0) -> bool:
    """Return whether the person may answer a question."""
    question = item.question if isinstance(item, InboxItem) else item.questions[number]
    return view.may(question.required_role)


def episodes(view: View, request: Request) -> Screen:
    """List episodes."""
    command = 'tightloop start "Get the tests green" --workspace ~/project --done "pytest -q"'
    return _list_workflows(view, request, "episode", "Episodes", command)


def plans(view: View, request: Request) -> Screen:
    """List plans."""
    return _list_workflows(view, request, "plan", "Plans", "tightloop plan run plan.yaml --workspace ~/project")


def projects(view: View, _request: Request) -> Screen:
    """List projects."""
    return Screen("projects.html", {"projects": view.ledger.projects()}, section="/projects", live="*")


def project(view: View, request: Request) -> Screen:
    """Show a project with its plan and the actions that are available."""
    ledger, key = view.ledger, request.path_params["id"]
    project_line = ledger.project(key)
    newest = ledger.workflows(WorkflowFilter(project=key, kind="loop"), limit=1).lines
    # Rows of a list come without details.
    current = ledger.workflow(newest[0].id) if newest else None
    status = LoopStatus.model_validate(current.details) if current is not None else LoopStatus()
    is_open = current is not None and status.status not in (LoopState.VERIFIED, LoopState.FAILED, LoopState.CANCELLED)
    may_act, now = view.may(Role.OPERATOR), datetime.now(UTC)
    content = {
        "project": project_line,
        "current": current,
        "status": status,
        "ended": sum(task.state.has_ended for task in status.tasks),
        "may_plan": may_act and not is_open,
        "reason": _why_not(may_act, is_open),
        "digest": ledger.digest(key, now - timedelta(days=1), now),
        "lines": ledger.workflows(WorkflowFilter(project=key, parent=""), limit=RUNNING_LINES).lines,
    }
    return Screen("project.html", content, section="/projects", live=key)


def _up_to_date(line: WorkflowLine, status: RunStatus | None) -> WorkflowLine:
    """Update the ledger row of an open run with the figures from its current status, if available."""
    if status is None or line.closed is not None:
        return line
    figures: dict[str, Any] = {"details": status.model_dump(mode="json")}
    if isinstance(status, EpisodeStatus):
        spent = status.spent
        figures |= {"iteration": status.iteration, "checks": status.checks, "cost_usd": spent.cost_usd}
        figures |= {"cost_known": not spent.unpriced_calls, "tokens": None if spent.unreported_calls else spent.tokens}
    return line.evolve(phase=getattr(status, "phase", line.phase), **figures)


def workflow(view: View, request: Request) -> Screen:
    """Show the page of an episode, a plan or a project's plan."""
    line = _up_to_date(view.ledger.workflow(request.path_params["id"]), request.state.current)
    show = {"episode": show_episode, "plan": show_plan, "loop": show_loop}[line.kind]
    template, content = show(view.ledger, line, request.query_params)
    may = [may_answer(view, line, number) for number in range(len(line.questions))]
    is_open = line.closed is None and line.status not in CLOSED_STATUSES
    content |= {"line": line, "may_answer": may, "is_open": is_open}
    section = "/episodes" if line.kind == "episode" else "/plans" if line.kind == "plan" else "/projects"
    children = " ".join(child.id for child in content.get("children", ()))
    return Screen(template, content, section=section, live=f"{line.id} {children}".strip())


def workers(view: View, topology: Topology) -> Screen:
    """Show the task queues and their workers, and the kinds of workers that are missing."""
    if view.person.projects:
        raise HTTPException(HTTPStatus.FORBIDDEN, "Listing the workers requires a token for all projects.")
    return Screen("workers.html", {"seen": topology}, section="/workers", live="*")


def _list_workflows(view: View, request: Request, kind: str, heading: str, command: str) -> Screen:
    filters = {name: request.query_params.get(name, "") for name in ("text", "status", "project")}
    workflow_filter = WorkflowFilter(kind=kind, **filters)
    page = view.ledger.workflows(workflow_filter, cursor=request.query_params.get("cursor", ""), limit=PAGE_LINES)
    filter_query = urlencode({name: value for name, value in filters.items() if value})
    content = {
        "heading": heading,
        "wanted": workflow_filter,
        "statuses": (*OPEN_STATUSES, *CLOSED_STATUSES),
        "projects": view.shared.names,
        "lines": page.lines,
        "cursor": page.cursor,
        "query": f"{filter_query}&" if filter_query else "",
        "filtered": any(filters.values()),
        "command": command,
    }
    return Screen("list.html", content, section=f"/{kind}s", live="*")


def _why_not(may_act: bool, is_open: bool) -> str:
    if not may_act:
        return "Your token is read-only."
    return "You can plan again once this plan ends." if is_open else ""


def _closing_time(line: WorkflowLine) -> datetime:
    return line.closed or line.at


KEPT_SECONDS = 1.0
"""Maximum age of a cached response in seconds, even if no event has arrived since then."""
ENTRIES = 1_000
THREADS = 4
"""Number of threads. Threads share one interpreter lock, so more threads would only keep more database connections
open."""


class _CacheEntry(NamedTuple):
    at: float
    task: "asyncio.Task[tuple[int, Any]]"


class PageCache:
    """A cache of recent responses. Concurrent requests for the same response share one computation."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._entries: dict[Hashable, _CacheEntry] = {}
        self._turns = anyio.CapacityLimiter(THREADS)

    async def get(self, key: Hashable, last_event: int, make: Callable[[], T]) -> T:
        """Return a recent response from the cache, or compute it.

        Args:
            key: everything that the response depends on, other than the ledger.
            last_event: last event that the caller has received. An older response is not returned.
            make: reads the ledger in a thread and computes the response.
        """
        entry = self._entries.get(key)
        if entry is not None and self._is_young(entry):
            # Shielded, because other requests wait for the same task.
            number, answer = await asyncio.shield(entry.task)
            if number >= last_event:
                cached: T = answer
                return cached
        # Another waiter for the same answer may have started a new one meanwhile.
        if entry is self._entries.get(key):
            self._forget()
            self._entries[key] = _CacheEntry(self._now(), asyncio.create_task(self._make(make)))
        _, result = await asyncio.shield(self._entries[key].task)
        new_answer: T = result
        return new_answer

    async def _make(self, make: Callable[[], Any]) -> tuple[int, Any]:
        def work() -> tuple[int, Any]:
            # Read first, so that the answer contains at least this event.
            return self._ledger.last_event(), make()

        return await run_sync(work, limiter=self._turns)

    def _is_young(self, entry: _CacheEntry) -> bool:
        if not entry.task.done():
            return True
        # A failed answer is not reused: the next request tries again.
        return self._now() - entry.at < KEPT_SECONDS and entry.task.exception() is None

    def _forget(self) -> None:
        if len(self._entries) >= ENTRIES:
            self._entries = {key: entry for key, entry in self._entries.items() if self._is_young(entry)}

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
