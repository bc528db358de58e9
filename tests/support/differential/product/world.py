"""The world around one run: it numbers calls, lets moments happen, plays the person, and notes what can be compared."""

import asyncio
import contextlib
import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from temporalio import activity
from temporalio.api.enums.v1 import PendingActivityState, WorkflowExecutionStatus
from temporalio.client import Client, WorkflowQueryFailedError, WorkflowUpdateFailedError, WorkflowUpdateStage
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from tests.support.differential.schedule import Act, Asked, Reply, Schedule, Sent
from tightloop.errors import TightloopError
from tightloop.value import ArtifactRef
from worker.hosting.interceptor import as_application_error

R = TypeVar("R")
Step = dict[str, Any]
BESIDE = frozenset({"record", "send_alerts"})
"""Activities beside the work: while only these run, a workflow waits."""
COMMANDS = frozenset({"dispatch", "verify"})
"""What a project plan waits for without a question."""
ROUND = "dispatch-"
UPDATES = {"restore": "restore_checkpoint", "amend": "amend_goal"}
"""Names of updates on this side, where they are others than in the schedules."""
LOOK_S = 0.02
SIGNALS = frozenset({"pause", "resume", "cancel"})
STUCK_S = 15.0
"""Without an event, a task or an activity for so long, a run without a timer waits without a bound."""
SKIP_S = 60.0
"""So long the server may take to skip time; it mostly takes milliseconds."""
FAILED_TASKS = 4
"""Attempts at one workflow task from which on the workflow counts as stuck."""
Files = dict[str, str]


class StuckError(Exception):
    """A run that will never end."""


class NotSkippedError(Exception):
    """A fault of the server: time is not skipped although nothing else is under way."""


def reference(text: str, name: str = "stored") -> ArtifactRef:
    """Return a reference that is equal for equal texts."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return ArtifactRef(sha256=digest, size_bytes=max(len(text), 1), media_type="application/json", name=name)


class World:
    """What surrounds the run of one schedule.

    Attributes:
        restart: replaces the worker of the workflows by one that remembers nothing.
        broken: invariants that did not hold.
        cancelled: ids of workflows that have cancelled a call.
    """

    def __init__(self, schedule: Schedule, client: Client, root: str, restart: Callable[[], Awaitable[None]]) -> None:
        self.schedule, self.client, self.root, self.restart = schedule, client, root, restart
        self.asked: list[Asked] = []
        self.sent: list[Sent] = []
        self.deliveries: list[str] = []
        self.undone: list[str] = []
        self.broken: list[str] = []
        self.spent: dict[str, dict[str, float]] = {}
        self.edit: Callable[[Act], None] = lambda _act: None
        self.checkpoints: Callable[[], list[str]] = list
        self.cancelled: set[str] = set()
        self._is_leaving = False
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._counts: Counter[str] = Counter()
        self._desk = asyncio.Lock()
        self._seen: dict[str, set[str]] = defaultdict(set)
        self._replied = self._calls_made = self._in_flight = 0
        self._continued = 0
        self._last_answer: dict[tuple[str, str], int] = {}
        self._updates: list[tuple[int, asyncio.Task[str], bool]] = []

    # -- calls ----------------------------------------------------------------------------------------

    def place(self, workflow_id: str) -> str:
        """Return the place of a workflow in the run; empty: it is the one that was started."""
        if workflow_id == self.root:
            return ""
        parts = workflow_id.removeprefix(self.root).strip(".").split(".")
        names = [part for part in parts if not part.isdigit() and not part.startswith(ROUND)]
        return ".".join(names) or "round"

    async def call(self, name: str, effect: Callable[[Step, int], R]) -> R:
        """Make a call: its moments, its scripted failures, its effect.

        Args:
            name: of the call.
            effect: gets the scripted result and the number of the attempt.
        """
        self._calls_made += 1
        self._in_flight += 1
        try:
            return await self._call(name, effect)
        finally:
            self._in_flight -= 1

    async def _call(self, name: str, effect: Callable[[Step, int], R]) -> R:
        info = activity.info()
        workflow_id = info.workflow_id or ""
        place = self.place(workflow_id)
        name = f"{place}:{name}" if place else name
        key = (workflow_id, info.workflow_run_id or "", info.activity_id)
        if key not in self._numbers:
            self._counts[name] += 1
            self._numbers[key] = self._counts[name]
        number = self._numbers[key]
        step = self._step(name, number)
        is_first = info.attempt == 1
        if is_first:
            await self._moments(f"{name}#{number}", after=False)
            if step.get("crash") == "before":
                raise RuntimeError("the worker died before the work")
        try:
            result = effect(step, info.attempt)
        except TightloopError as error:
            raise as_application_error(error) from error
        if is_first:
            await self._moments(f"{name}#{number}", after=True)
            if step.get("crash") == "after":
                raise RuntimeError("the worker died after the work")
        return result

    def _step(self, name: str, number: int) -> Step:
        steps = self.schedule.script.get(name, ())
        if not steps:
            return {}
        if number <= len(steps):
            return steps[number - 1]
        return steps[-1] if steps[-1].get("repeat") else {}

    async def _moments(self, at: str, *, after: bool) -> None:
        info = activity.info()
        for moment in self.schedule.moments:
            if (moment.at, moment.after) == (at, after):
                for act in moment.acts:
                    await self.do(act, info.workflow_id or self.root)
                await self._heed(info)

    async def _heed(self, info: activity.Info) -> None:
        """End the call where the workflow has cancelled it."""
        if info.is_local:
            return
        described = await self._describe(info.workflow_id or self.root)
        wanted = PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED
        if any(
            pending.activity_id == info.activity_id and pending.state == wanted
            for pending in described.pending_activities
        ):
            self.cancelled.add(info.workflow_id or "")
            for _ in range(500):
                activity.heartbeat()
                await asyncio.sleep(LOOK_S)

    # -- acts -----------------------------------------------------------------------------------------

    async def do(self, act: Act, workflow_id: str, *, completed: bool = False) -> None:
        """Carry an act out, and wait until the workflow has processed it; `completed`: also answered it."""
        if act.do == "edit":
            self.edit(act)
        elif act.do == "restart":
            await self.restart()
        else:
            target = self.root if act.to == "root" else workflow_id
            await self._send(act, target, completed=completed)

    async def _send(self, act: Act, workflow_id: str, *, completed: bool) -> None:
        if act.name == "restore":
            known = self.checkpoints()
            value: Any = known[int(act.value * len(known))] if known else "ckpt-0"
        else:
            value = act.value
        self._is_leaving = self._is_leaving or act.name == "cancel"
        arguments = [] if value is None else [value]
        handle = self.client.get_workflow_handle(workflow_id)
        index = len(self.sent)
        self.sent.append(Sent(name=act.name, taken="taken"))
        try:
            if act.name in SIGNALS and not (act.name == "cancel" and isinstance(value, dict) and "reason" in value):
                await handle.signal(act.name, *arguments)
            else:
                update = await handle.start_update(
                    UPDATES.get(act.name, act.name),
                    *arguments,
                    wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                    result_type=str,
                )
                waiting = asyncio.create_task(update.result())
                # A coder takes no updates; its schedules send some to it all the same.
                is_known = workflow_id == self.root and self.schedule.kind != "coder"
                self._updates.append((index, waiting, is_known))
                if completed:
                    await asyncio.wait([waiting], timeout=30)
        except WorkflowUpdateFailedError:
            self.sent[index] = Sent(name=act.name, taken="refused")
        except RPCError:
            self.sent[index] = Sent(name=act.name, taken="closed")
        await self._until_processed(workflow_id)

    async def settle_updates(self) -> None:
        """Note how the updates were answered that were only accepted."""
        for index, waiting, is_known in self._updates:
            await asyncio.wait([waiting], timeout=10)
            name = self.sent[index].name
            if not waiting.done():
                waiting.cancel()
                self.sent[index] = Sent(name=name, taken="never answered")
                self.broken.append(f"{name} was accepted and never answered")
            elif error := waiting.exception():
                cause = cause_of(error)
                if cause is not None and is_known and "expected but not found" in cause.message:
                    # The SDK's own words: a name that the product does not know must not look like a refusal.
                    self.broken.append(f"{name} is no message of the product")
                self.sent[index] = Sent(name=name, taken="failed" if cause is None else "refused")

    async def _describe(self, workflow_id: str) -> Any:
        return (await self.client.get_workflow_handle(workflow_id).describe()).raw_description

    async def _until_processed(self, workflow_id: str) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            described = await self._describe(workflow_id)
            if not described.HasField("pending_workflow_task"):
                return
            await asyncio.sleep(LOOK_S / 2)

    def continue_act(self) -> Act | None:
        """Return the signal that arrives as a run is followed by another one; each once."""
        if self._continued >= len(self.schedule.at_continue):
            return None
        self._continued += 1
        return self.schedule.at_continue[self._continued - 1]

    # -- the person -----------------------------------------------------------------------------------

    async def idle(self) -> None:
        """Wait until nothing but the person can make a difference."""
        before: tuple[int, ...] = ()
        pause_s, quiet_since = LOOK_S, self._calls_made
        await asyncio.sleep(LOOK_S)
        while True:
            # Looking costs the server more than anything else: only where no call is being made here.
            if self._in_flight or quiet_since != self._calls_made:
                before, quiet_since, pause_s = (), self._calls_made, LOOK_S
            else:
                now = await self._standing(self.root)
                if now and now == before:
                    return
                pause_s = LOOK_S if now else min(pause_s * 2, 0.3)
                before = now
            await asyncio.sleep(pause_s)

    async def _standing(self, workflow_id: str) -> tuple[int, ...]:
        """Return the lengths of all histories; nothing where something is under way."""
        try:
            described = await self._describe(workflow_id)
        except RPCError:
            return (0,)
        if described.HasField("pending_workflow_task"):
            return ()
        if any(pending.activity_type.name not in BESIDE for pending in described.pending_activities):
            return ()
        lengths = [described.workflow_execution_info.history_length]
        for child in described.pending_children:
            inner = await self._standing(child.workflow_id)
            if not inner:
                return ()
            lengths += inner
        return tuple(lengths)

    async def attend(self, questions: Callable[[], Awaitable[list[Any]]]) -> None:
        """Reply to the open questions of a workflow, each when nothing else can happen.

        Args:
            questions: returns those that are open, with `id`, `kind`, `options` and `blocks`.
        """
        info = activity.info()
        workflow_id = info.workflow_id or self.root
        async with self._desk:
            while True:
                await self.idle()
                try:
                    waiting = await questions()
                except RPCError:
                    return
                seen = self._seen[workflow_id]
                unseen = [question for question in waiting if question.id not in seen]
                # What a person has cancelled needs no answers; whether one still counts is a matter of time.
                if not unseen or self._is_leaving:
                    return
                seen.add(unseen[0].id)
                await self._reply(unseen[0], workflow_id)

    async def _reply(self, question: Any, workflow_id: str) -> None:
        replies = self.schedule.replies
        reply = replies[self._replied] if self._replied < len(replies) else Reply(do="act")
        self._replied += 1
        options = tuple(option.name for option in question.options)
        kind, place = question.kind.value, self.place(workflow_id)
        self._note_repetition(kind, f"{getattr(question, 'step', '')} {question.title}", workflow_id)
        replied: str = reply.do
        if reply.do == "answer":
            replied = options[min(int(reply.pick * len(options)), len(options) - 1)]
        self.asked.append(Asked(of=place, kind=kind, options=options, blocks=bool(question.blocks), replied=replied))
        for act in reply.before:
            await self.do(act, workflow_id, completed=True)
        if reply.do == "answer" and kind in COMMANDS:
            await self.do(Act(do="send", name=replied, value={"by": "ada"}), workflow_id, completed=True)
        elif reply.do == "answer":
            people = ("ada", "bob") if getattr(question, "count", 1) > 1 else ("ada",)
            for by in people:
                value = {"question": question.id, "option": replied, "text": reply.text, "by": by}
                await self.do(Act(do="send", name="answer", value=value), workflow_id, completed=True)
        elif reply.do == "act" and not reply.before:
            await self.do(Act(do="send", name="cancel"), self.root, completed=True)

    def _note_repetition(self, kind: str, title: str, workflow_id: str) -> None:
        """An answered question that comes back before anything else was done was asked twice."""
        done = sum(self._counts.values())
        key = (workflow_id, f"{kind} {title}")
        if kind not in ("fatal", "drift", "operator") and self._last_answer.get(key) == done:
            self.broken.append(f"asked again: {kind}")
        self._last_answer[key] = done

    # -- what is seen ---------------------------------------------------------------------------------

    def note_spending(self, workflow_id: str, spent: dict[str, float]) -> None:
        """Keep the newest sums of a workflow; none of them may fall."""
        before = self.spent.get(workflow_id, {})
        for name, amount in spent.items():
            if amount < before.get(name, 0) - 1e-9:
                self.broken.append(f"spending fell: {name}")
        self.spent[workflow_id] = spent

    async def result_of(self, workflow_id: str, limit_s: float) -> Any:
        """Wait for the end of a run.

        Raises:
            StuckError: nothing happens any more, and nothing ever will.
            NotSkippedError: a timer is open, and the server does not let it fire.
            TimeoutError: this machine is too slow; it says nothing about the run.
        """
        waiting = asyncio.create_task(self.client.get_workflow_handle(workflow_id).result())
        until, before, since = time.monotonic() + limit_s, (-1,), time.monotonic()
        try:
            while time.monotonic() < until:
                done, _ = await asyncio.wait([waiting], timeout=3.0)
                if done:
                    return waiting.result()
                if await self._fails_its_task(workflow_id):
                    raise StuckError("its task fails")
                now = await self._standing(workflow_id)
                if not now or now != before:
                    before, since = now, time.monotonic()
                elif time.monotonic() - since > STUCK_S and not await self._has_timer(workflow_id):
                    raise StuckError("it waits")
                elif time.monotonic() - since > SKIP_S:
                    raise NotSkippedError(f"the server has skipped no time for {workflow_id}")
            raise TimeoutError(f"{workflow_id} takes longer than {limit_s:g} s")
        finally:
            if not waiting.done():
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await waiting

    async def _fails_its_task(self, workflow_id: str) -> bool:
        """Return whether a workflow, or one that it started, fails the same task again and again."""
        try:
            described = await self._describe(workflow_id)
        except RPCError:
            return False
        if described.pending_workflow_task.attempt >= FAILED_TASKS:
            return True
        return any([await self._fails_its_task(child.workflow_id) for child in described.pending_children])

    async def _has_timer(self, workflow_id: str) -> bool:
        """Return whether a workflow, or one that it started, waits for a time: then the wait has a bound."""
        handle = self.client.get_workflow_handle(workflow_id)
        open_timers: set[str] = set()
        try:
            async for event in handle.fetch_history_events():
                if event.HasField("timer_started_event_attributes"):
                    open_timers.add(event.timer_started_event_attributes.timer_id)
                elif event.HasField("timer_fired_event_attributes"):
                    open_timers.discard(event.timer_fired_event_attributes.timer_id)
                elif event.HasField("timer_canceled_event_attributes"):
                    open_timers.discard(event.timer_canceled_event_attributes.timer_id)
            described = await self._describe(workflow_id)
        except RPCError:
            return False
        if open_timers:
            return True
        return any([await self._has_timer(child.workflow_id) for child in described.pending_children])

    async def stop(self) -> None:
        """Terminate what still runs."""
        described = await self._describe(self.root)
        if described.workflow_execution_info.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING:
            with contextlib.suppress(RPCError):
                await self.client.get_workflow_handle(self.root).terminate("the harness gives up")


async def ask_again(question: Callable[[], Awaitable[R]]) -> R:
    """Ask a workflow, again where the worker that had it was just replaced."""
    for _ in range(4):
        try:
            return await question()
        except (WorkflowQueryFailedError, RPCError):
            await asyncio.sleep(0.3)
    return await question()


def cause_of(error: BaseException) -> ApplicationError | None:
    """Return the application's error behind a failure of a workflow."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ApplicationError):
        seen = seen.__cause__ or getattr(seen, "cause", None)
    return seen
