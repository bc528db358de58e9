"""State of an episode, and its entries in the ledger."""

from collections.abc import Callable
from datetime import datetime
from typing import Concatenate, ParamSpec

from temporalio import workflow

from activities.workspace.scope import EpisodeScope
from tightloop.episode import state_changes
from tightloop.episode.checkpoint import MoveTarget
from tightloop.episode.model import EpisodeRequest, EpisodeState, EpisodeStatus, RunTimeline
from tightloop.episode.state_changes import COMMAND_CHARACTERS, LINE_CHARACTERS
from tightloop.ledger.model import WorkflowSnapshot, episode_snapshot
from tightloop.safety.drift import Drift, is_news, with_drift
from workflows.shared.reporting import Recording, begins

P = ParamSpec("P")


class EpisodeRecord:
    """Owns the request and the state of an episode: everybody else reads them, and changes them through here.

    Attributes:
        request: what was asked for, with amendments.
        state: what the episode remembers.
        status: `running`, or how it ended.
        reason: why it ended.
        timeline: what this run has logged.
    """

    def __init__(
        self,
        request: EpisodeRequest,
        state: EpisodeState,
        *,
        episode_id: str,
        now: Callable[[], datetime] = workflow.now,
    ) -> None:
        """Restore the state that the previous run left."""
        self.episode_id, self.request, self.state = episode_id, request, state
        self.status, self.reason = "running", ""
        self.timeline = RunTimeline()
        self._now = now
        self._working_since: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether messages are still accepted."""
        return self.status == "running"

    @property
    def scope(self) -> EpisodeScope:
        """Where activities work."""
        return EpisodeScope(
            episode_id=self.episode_id,
            workspace=self.request.workspace,
            worktree=self.request.worktree,
            request=self.state.request,
            home=self.request.queues.home,
            within=self.request.within,
            epoch=self.state.epoch,
        )

    def apply(
        self, change: Callable[Concatenate[EpisodeState, P], EpisodeState], *arguments: P.args, **named: P.kwargs
    ) -> None:
        """Change the state by one of the rules of the loop."""
        self.state = change(self.state, *arguments, **named)

    def replace(self, state: EpisodeState) -> None:
        """Go on with another state, derived from the present one."""
        self.state = state

    def amend(self, request: EpisodeRequest) -> None:
        """Go on with another request."""
        self.request = request

    def bind(self, home: str) -> None:
        """Note the host that has the workspace, by its task queue."""
        queues = self.request.queues
        self.request = self.request.evolve(queues=queues.evolve(home=home or queues.home))

    def move(self, target: MoveTarget) -> None:
        """Go on as an episode of another host, under an epoch of its own; that host has not taken over yet."""
        queues = self.request.queues
        # A queue that only the lost host serves would be waited for for ever.
        shared = "" if queues.workspace == queues.home else queues.workspace
        self.request = self.request.evolve(
            workspace=target.workspace or self.request.workspace,
            queues=queues.evolve(home=target.to, workspace=shared),
        )
        self.state = self.state.evolve(epoch=self.state.epoch + 1, move=target)

    def close(self, status: str, reason: str) -> None:
        """Say how the episode ended."""
        self.status, self.reason = status, reason

    def log(self, kind: str, text: str, *, bound: int = LINE_CHARACTERS) -> None:
        """Add a line to the timeline, of so many characters at most."""
        self.state = state_changes.with_entry(self.state, self._now(), kind, text, bound=bound)
        self.timeline.add(self.state.timeline[-1])

    def note(self, text: str, *, asks: bool = False) -> None:
        """Keep a message for the planner; one that asks for work is planned before the episode ends."""
        self.state = state_changes.with_note(self.state, text, asks=asks)

    def log_drift(self, drift: Drift | None) -> None:
        """Note what was found on disk that the work had not left."""
        if drift is None:
            return
        lines = drift.report if is_news(self.state.drifts, drift) else ()
        self.state = self.state.evolve(drifts=with_drift(self.state.drifts, drift))
        for line in lines:
            self.log("drift", line.strip(), bound=COMMAND_CHARACTERS)

    def log_saved(self, tree: str | None, bring_back: str) -> None:
        """Note where files are kept that going back would have lost, and the command that brings them back."""
        if tree is not None:
            self.log("saved", f"the files as they were before going back are kept as tree {tree[:12]}")
            if bring_back:
                self.log("saved", f"bring them back: {bring_back}", bound=COMMAND_CHARACTERS)

    # -- working time: waiting for people does not count -------------------------------------------

    @property
    def working_since(self) -> datetime:
        """Since when working time is not counted yet."""
        return self._working_since or self._now()

    def start_work(self) -> None:
        """Count working time from now on."""
        self._working_since = self._now()

    def count_work(self) -> None:
        """Count the working time until now."""
        if self._working_since is not None:
            now = self._now()
            self.state = state_changes.with_working_time(self.state, now - self._working_since)
            self._working_since = now

    def stop_work(self) -> None:
        """Count the working time until now, and none from now on."""
        self.count_work()
        self._working_since = None


class EpisodeRecording:
    """Records an episode from the opening of its workspace on."""

    def __init__(self, record: EpisodeRecord, status: Callable[[], EpisodeStatus]) -> None:
        """Take the state of the episode, and what tells its status."""
        self._record, self._status = record, status
        self._recording = Recording(
            lambda: record.request.queues.home or record.request.queues.workspace,
            lambda: record.scope,
            self._seen,
            self._snapshot,
        )

    @property
    def first(self) -> WorkflowSnapshot:
        """How the episode begins."""
        return begins("episode", self._record.request.goal, self._record.request.executor.name)

    @property
    def last(self) -> WorkflowSnapshot:
        """How the episode ended."""
        return self._snapshot().evolve(closed=workflow.now())

    def show(self) -> None:
        """Record the episode if people see something else than before."""
        if self._is_opened:
            self._recording.show()

    def show_again(self) -> None:
        """Record the episode in any case: the run was reset."""
        if self._is_opened:
            self._recording.show_again()

    async def settle(self) -> None:
        """Wait a little for what is being recorded."""
        await self._recording.settle()

    @property
    def _is_opened(self) -> bool:
        return self._record.state.request is not None

    def _seen(self) -> tuple[str, ...]:
        status = self._status()
        return (status.status, *(question.id for question in status.questions))

    def _snapshot(self) -> WorkflowSnapshot:
        parent = workflow.info().parent
        return episode_snapshot(self._status(), parent=parent.workflow_id if parent else "", at=workflow.now())
