"""What became of a simulated episode, read from the histories of its runs alone."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from tightloop.episode.check import Verification
from tightloop.episode.checkpoint import Tracked
from tightloop.episode.planning import PlanningOutcome, ReflectionOutcome
from tightloop.executor.model import ExecutorReport

RESULTS: dict[str, Any] = {
    "next_plan": PlanningOutcome,
    "execute": ExecutorReport,
    "verify": Verification,
    "track_iteration": Tracked,
    "reflect": ReflectionOutcome,
}


@dataclass(frozen=True)
class Done:
    """One activity that completed."""

    name: str
    iteration: int
    seconds: float
    attempt: int
    result: Any


@dataclass
class Account:
    """What the histories tell."""

    done: list[Done] = field(default_factory=list)
    iteration: int = 0
    """How many were planned."""
    runs: int = 0
    events: int = 0
    waited: timedelta = timedelta()
    """Sum of all timers that fired: simulated work, planning and back-offs."""
    signals: int = 0

    def of(self, name: str) -> list[Done]:
        """Return the completed activities of this name."""
        return [done for done in self.done if done.name == name]

    def statuses(self) -> Counter[str]:
        """Return how the deliveries ended."""
        return Counter(done.result.status.value for done in self.of("execute"))

    def cycles(self) -> list[float]:
        """Return what tracker and reflection took together, in seconds, for each iteration; with the server's part."""
        spent: defaultdict[int, float] = defaultdict(float)
        for done in (*self.of("track_iteration"), *self.of("reflect")):
            spent[done.iteration] += done.seconds
        return list(spent.values())

    def lost(self, iteration: int) -> int:
        """Return how many iterations from this one on passed until the checks got better."""
        better = (done.iteration for done in self.of("verify") if done.result.progress)
        return next((number - iteration for number in better if number >= iteration), 0)


async def account(client: Client, episode_id: str, runs: Iterable[str]) -> Account:
    """Read the histories of all runs, oldest first."""
    found = Account()
    for run in runs:
        history = await client.get_workflow_handle(episode_id, run_id=run).fetch_history()
        await _Reader(client, found).read(history.events)
        found.runs += 1
    return found


class _Reader:
    """Reads one run."""

    def __init__(self, client: Client, found: Account) -> None:
        self._client = client
        self._found = found
        self._names: dict[int, str] = {}
        self._started: dict[int, HistoryEvent] = {}
        self._timers: dict[str, timedelta] = {}

    async def read(self, events: Iterable[HistoryEvent]) -> None:
        for event in events:
            self._found.events += 1
            self._note(event)
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                await self._complete(event)

    def _note(self, event: HistoryEvent) -> None:
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_TIMER_STARTED:
            timer = event.timer_started_event_attributes
            self._timers[timer.timer_id] = timer.start_to_fire_timeout.ToTimedelta()
        elif kind == EventType.EVENT_TYPE_TIMER_FIRED:
            self._found.waited += self._timers[event.timer_fired_event_attributes.timer_id]
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            self._found.signals += 1
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            self._names[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            self._started[event.activity_task_started_event_attributes.scheduled_event_id] = event

    async def _complete(self, event: HistoryEvent) -> None:
        ended = event.activity_task_completed_event_attributes
        name, started = self._names[ended.scheduled_event_id], self._started[ended.scheduled_event_id]
        if name not in RESULTS:
            return
        (result,) = await self._client.data_converter.decode(ended.result.payloads, [RESULTS[name]])
        # A reflection comes before the next plan and belongs to the iteration that it is about.
        self._found.iteration += name == "next_plan"
        attempt = started.activity_task_started_event_attributes.attempt
        seconds = (_time(event) - _time(started)).total_seconds()
        self._found.done.append(Done(name, self._found.iteration, seconds, attempt, result))


def _time(event: HistoryEvent) -> datetime:
    return event.event_time.ToDatetime(tzinfo=UTC)
