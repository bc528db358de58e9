"""What the ledger learns of an episode."""

from collections.abc import Callable

from temporalio import workflow

from tightloop.episode.model import EpisodeStatus
from tightloop.ledger.model import WorkflowSnapshot
from tightloop.ledger.snapshot import episode_snapshot
from workflows.episode.record import EpisodeRecord
from workflows.shared.recording import Recording, begins


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
