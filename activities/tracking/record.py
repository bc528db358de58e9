"""The activity `record`: keeps in the ledger what a workflow says of itself."""

from dataclasses import dataclass
from pathlib import Path

from temporalio import activity

from activities.workspace.folders import state_folder_of
from activities.workspace.scope import EpisodeScope
from activities.workspace.trail import Ledger, Ledgers
from tightloop.ledger.metrics import Metric
from tightloop.ledger.model import TrailEvent, WorkflowSnapshot
from tightloop.value import Value


class RecordRequest(Value):
    """What people see of a workflow, as it is now."""

    scope: EpisodeScope
    snapshot: WorkflowSnapshot
    events: tuple[TrailEvent, ...] = ()
    """Lines of the trail besides those that a change of status and of questions makes."""
    metrics: tuple[Metric, ...] = ()
    """What was measured since."""


class Recorded(Value):
    """Whether it is in the ledger."""

    kept: bool = True


@dataclass(frozen=True)
class RecordActivities:
    """Keeps the ledger of the project up to date."""

    ledgers: Ledgers

    @activity.defn(no_thread_cancel_exception=True)
    def record(self, request: RecordRequest) -> Recorded:
        """Keep a snapshot, unless a newer one is known. Idempotent. A project that was never opened is left alone."""
        if not state_folder_of(request.scope).is_dir():
            return Recorded(kept=False)
        keep_record(self.ledgers(Path(request.scope.workspace)), request)
        return Recorded()


def keep_record(ledger: Ledger, request: RecordRequest) -> None:
    """Enter what a workflow said of itself."""
    for event in request.events:
        ledger.add_event(event)
    if request.metrics:
        ledger.add_metrics(request.metrics)
    ledger.record(request.snapshot)
