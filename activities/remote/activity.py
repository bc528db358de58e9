"""The activities of the remote store: copy a checkpoint, and take an episode over from a host that is lost."""

from dataclasses import dataclass
from pathlib import Path

from temporalio import activity

from activities.remote.copies import Copies, need_copies
from activities.workspace.port import OpenEpisodes, Workspaces
from activities.workspace.scope import EpisodeScope, Ledgers
from tightloop.episode.checkpoint import CheckpointRecord, CopiesHead
from tightloop.value import Value


class CopyRequest(Value):
    """A checkpoint to be copied; with the first one of an episode (epoch 0) its id is claimed."""

    scope: EpisodeScope
    record: CheckpointRecord


class Copied(Value):
    """A checkpoint that another host can go on from."""

    epoch: int


class TakeOverRequest(Value):
    """An episode to go on with here, under the epoch in its scope."""

    scope: EpisodeScope
    last: CheckpointRecord | None = None
    """From which the host that has it goes on where the store has lost what it knew of the episode; histories before
    do not have it."""


class TakenOver(Value):
    """What the copies of an episode make."""

    record: CheckpointRecord
    """The last checkpoint; its tree, its artifacts and those before it are on this host now."""
    notes: tuple[str, ...] = ()
    attempt: int = 1


@dataclass(frozen=True)
class RemoteActivities:
    """Keeps copies of episodes where another host finds them. All methods are idempotent."""

    copies: Copies | None
    """None: the settings name no bucket."""
    workspaces: Workspaces
    ledgers: Ledgers
    has_ended: OpenEpisodes

    @activity.defn(no_thread_cancel_exception=True)
    def copy_checkpoint(self, request: CopyRequest) -> Copied:
        """Copy a checkpoint, of which this host has the tree and the state.

        Raises:
            FencedError: another host has taken the episode over.
            ServiceUnavailableError: the store does not answer.
        """
        copies, scope = need_copies(self.copies), request.scope
        if not scope.epoch:
            scope = scope.evolve(epoch=copies.open(scope, activity.info().workflow_run_id or ""))
        return Copied(epoch=copies.add(scope, request.record).epoch)

    @activity.defn(no_thread_cancel_exception=True)
    def take_over(self, request: TakeOverRequest) -> TakenOver:
        """Claim an episode for this host, and fetch everything that going on with it needs but the files themselves.

        Raises:
            FencedError: a third host has it by now.
            WorkspaceError: the last checkpoint is neither in the store nor here, or the workspace cannot be used.
            ServiceUnavailableError: the store does not answer.
        """
        copies, scope = need_copies(self.copies), request.scope
        copies.trees.make_workspace(scope)
        notes = self.workspaces.prepare(scope, take_over=self.has_ended)
        ledger = self.ledgers(Path(scope.workspace))
        with self.workspaces.hold(scope) as tree:

            def adopt(head: CopiesHead, record: CheckpointRecord) -> None:
                tree.keep(str(record.number), record.tree)
                key = f"copied/{head.epoch}/{record.number}"
                ledger.adopt([(scope.episode_id, record.number, key, record.model_dump_json())])

            head = copies.take(scope, request.last, adopt)
        assert head.last is not None  # `take` refuses an empty one
        return TakenOver(record=head.last, notes=notes, attempt=activity.info().attempt)
