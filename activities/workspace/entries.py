"""What the activities of workspaces leave in the ledger; see `Call`."""

from activities.workspace.requests import (
    Adopted,
    AdoptRequest,
    CloseRequest,
    OpenRequest,
    ReconcileRequest,
    RestoreRequest,
)
from activities.workspace.scope import EpisodeScope
from activities.workspace.trail import Call, Ledger
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.ledger.model import TrailEvent
from tightloop.value import counted


def opened_key(opening: str) -> str:
    """Return the key of the checkpoint that opening an episode makes."""
    return f"opened/{opening}"


def forked_key(run: str) -> str:
    """Return the key of the checkpoint that an episode begins with which goes on from another's."""
    return f"forked/{run}"


def note_opened(ledger: Ledger, request: OpenRequest, call: Call) -> None:
    """Enter that an episode was opened."""
    _note(ledger, request.scope, call, "opened", key=opened_key(request.opening))
    if request.snapshot is not None:
        ledger.record(request.snapshot)


def note_adopted(ledger: Ledger, request: AdoptRequest, adopted: Adopted, call: Call) -> None:
    """Enter that edits of a person were kept, if any were."""
    if request.scope.put_back or adopted.tree == request.expected_tree:
        return
    text = f"edits of a person were kept: {counted(adopted.files_changed, 'file')}"
    _note(ledger, request.scope, call, "adopted", text, key=f"adopted/{adopted.tree}")


def note_restored(ledger: Ledger, request: RestoreRequest, record: CheckpointRecord, call: Call) -> None:
    """Enter that an episode went back to a checkpoint."""
    _note(ledger, request.scope, call, "restored", f"{record.id}: {request.target.reason}", key=f"restored/{call.run}")


def note_reset(ledger: Ledger, request: ReconcileRequest, discarded: int, call: Call) -> None:
    """Enter that a run was reset."""
    _note(
        ledger, request.scope, call, "reset", f"{counted(discarded, 'checkpoint')} discarded", key=f"reset/{call.run}"
    )


def note_closed(ledger: Ledger, request: CloseRequest, call: Call) -> None:
    """Enter how an episode ended."""
    text = f"{request.outcome.value}: {request.reason}"
    _note(ledger, request.scope, call, "closed", text, key=f"closed/{call.run}")
    if request.snapshot is not None:
        ledger.record(request.snapshot)


def _note(ledger: Ledger, scope: EpisodeScope, call: Call, kind: str, text: str = "", *, key: str) -> None:
    ledger.add_event(TrailEvent(episode_id=scope.episode_id, kind=kind, text=text, key=key, at=call.scheduled))
