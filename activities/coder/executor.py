"""The executor `coder`, whose deliveries run in a workflow; see `workflows/coder.py`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from activities.artifacts.port import ArtifactStore
from activities.coder.activity import keep_progress
from activities.coder.turns import render_conversation
from activities.executor.port import Availability, Control, DelegatingExecutor
from tightloop.coder.model import CODER, CoderResult
from tightloop.executor.model import ErrorKind, ExecutorOutcome, ExecutorStatus, ResumeToken, WorkOrder

DELIVERED_LATER = frozenset({ExecutorStatus.NEEDS_PERSON, ExecutorStatus.PAUSED, ExecutorStatus.FATAL})
"""Statuses with which a session does not end, because the next delivery continues it."""


@dataclass(frozen=True)
class CoderExecutor(DelegatingExecutor):
    """Delegates deliveries to the workflow."""

    problem: Callable[[], str]
    """Returns the reason why no model or sandbox is available. Empty if both are available."""
    open_to: tuple[str, ...] = ()
    """Hosts and folders that can be reached from the sandbox."""

    def availability(self) -> Availability:
        problem = self.problem()
        return Availability(usable=not problem, reason=problem)

    def continues(self, order: WorkOrder, state_folder: Path) -> bool:
        """Return True, because the journal records everything that earlier attempts have done."""
        del order, state_folder
        return True

    def effects_outside(self, order: WorkOrder) -> str:
        del order
        return f"the coder's commands may reach {', '.join(self.open_to)}" if self.open_to else ""

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        del order, control, state_folder
        return ExecutorOutcome(status=ExecutorStatus.DELEGATED)

    def conclude(self, result: CoderResult, store: ArtifactStore, state_folder: Path) -> ExecutorOutcome:
        """Return the outcome of a delivery.

        If another delivery will continue the session, the session's progress is stored.
        """
        talk = result.progress.talks.get(CODER)
        resume = None
        if result.session and result.status in DELIVERED_LATER:
            # In a file: the next delivery is another workflow, which cannot read the history of this one.
            keep_progress(state_folder, result.session, result.progress)
            resume = ResumeToken(adapter=CODER, session_id=result.session)
        is_fatal = result.status is ExecutorStatus.FATAL
        finished = [result.result for result in talk.results if result.finished] if talk else []
        return ExecutorOutcome.of(
            result.progress,
            status=result.status,
            summary=(store.get(finished[-1]).decode("utf-8", "replace") if finished else "") or result.error,
            error=result.error,
            error_kind=ErrorKind.CONFIG if is_fatal else None,
            resume=resume,
            question=result.question,
            transcript=render_conversation(store, talk.node) if talk and talk.node else b"",
        )
