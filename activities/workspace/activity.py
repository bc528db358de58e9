"""Activities that open, adopt, restore, reconcile, amend and close a workspace."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from temporalio import activity

from activities.artifacts.port import ArtifactStores, get_model, put_model
from activities.attempt import should_stop
from activities.workspace.folders import root_of, store_folder_of
from activities.workspace.port import (
    BASE,
    RESULT,
    AdoptRequest,
    AdoptResult,
    AmendRequest,
    CloseRequest,
    CloseResult,
    OpenEpisodes,
    OpenRequest,
    OpenResult,
    ReconcileRequest,
    ReconcileResult,
    RestoredCheckpoint,
    RestoreRequest,
    ResultPart,
    SetUpRequest,
    SetUpResult,
    Setups,
    closing_message,
    forked_key,
    note_adoption,
    note_closing,
    note_opening,
    note_reset,
    note_restoration,
    opened_key,
)
from activities.workspace.scope import EpisodeScope, Ledgers, this_call
from tightloop.episode.checkpoint import RECENT_LIMIT, CheckpointRecord
from tightloop.episode.exit_status import refuse_masked
from tightloop.episode.model import CheckpointFile, EpisodeRequest, EpisodeState
from tightloop.errors import ArtifactMissingError, IdTakenError, WorkspaceError
from tightloop.ledger.model import FREED
from tightloop.safety.drift import Drift, DriftCause, DriftError
from tightloop.value import ArtifactRef, format_count

if TYPE_CHECKING:
    from activities.workspace.differ import Differ
    from activities.workspace.working_tree import WorkingTree, Workspaces


def restore_expected_tree(tree: "WorkingTree", expected: str) -> Drift | None:
    """Restore the expected tree when it is too late to ask a person.

    If someone else changed files, keep those changes and return them.
    """
    try:
        return tree.expect(expected)
    except DriftError as found:
        return found.drift


# `no_thread_cancel_exception`: otherwise the SDK raises in the thread between any two lines, even while a tree is
# written.
@dataclass(frozen=True)
class WorkspaceActivities:
    """Activities that operate on an episode's working tree. All of them are idempotent."""

    workspaces: "Workspaces"
    stores: ArtifactStores
    ledgers: Ledgers
    differ: "Differ"
    has_ended: OpenEpisodes
    refuse: Callable[[EpisodeRequest], None] = lambda _episode: None
    """Raises an error if a request needs something that its workers do not have."""
    setups: Setups | None = None
    """Setup commands of this host. None if no setup command ever runs."""

    @activity.defn(no_thread_cancel_exception=True)
    def open_workspace(self, request: OpenRequest) -> OpenResult:
        """Check and claim the workspace, store the request and create `ckpt-0`.

        Raises:
            WorkspaceError: the workspace cannot be used. The message says what to do.
            IdTakenError: another episode in this project has already used the id.
            InvalidRequestError: the request specifies an unknown executor or planner.
        """
        scope, key = request.scope, opened_key(request.opening)
        workspace = Path(scope.workspace)
        store, ledger = self.stores(workspace), self.ledgers(workspace)
        # Before anything is claimed or created: worktree, claim and refs are named after the id.
        checkpoints = () if ledger.is_recorded(scope.episode_id, key) else ledger.checkpoints(scope.episode_id)
        if request.is_new and checkpoints:
            raise _id_taken_error(scope, checkpoints)
        # Before the claim: a request that no worker can run must not block the workspace for others.
        self.refuse(request.episode)
        notes = self.workspaces.prepare(scope, take_over=self.has_ended)
        stored = put_model(store, request.episode, name="request")
        with self.workspaces.hold(scope) as tree:
            tree_id = tree.snapshot()
            folder = request.episode.folder
            if folder and not any(path.startswith(os.fsencode(f"{folder}/")) for path in tree.entries(tree_id)):
                self.workspaces.release(scope)
                raise WorkspaceError(
                    f"the folder {folder!r} in {workspace} contains no files, or git ignores them. Specify a different "
                    "folder, or remove the folder from .gitignore"
                )
            file = CheckpointFile(state=EpisodeState(budget=request.episode.budget).evolve(tree=tree_id))
            record = ledger.record_checkpoint(
                scope.episode_id,
                key,
                CheckpointRecord(
                    id="",
                    iteration=0,
                    tree=tree_id,
                    title="the files as they were found",
                    run_id=activity.info().workflow_run_id or "",
                    state=put_model(store, file, name="checkpoint"),
                    lines=self.differ.lines(store_folder_of(scope), tree_id),
                ),
            )
            tree.keep(str(record.number), record.tree)
            # In a reopened episode, an agent may have changed the lock files since the command was named.
            named = "" if request.episode.is_nested or checkpoints else request.episode.setup
            setup, missing = self.setups.examine(scope, tree, record.tree, named) if self.setups else (None, ())
        note_opening(ledger, request, this_call())
        return OpenResult(
            request=stored,
            tree=record.tree,
            checkpoint=record,
            notes=(*missing, *notes),
            worktree=str(root_of(scope)) if scope.worktree else "",
            setup=setup,
            known=tuple(earlier.evolve(discarded=True) for earlier in checkpoints[-RECENT_LIMIT:]),
            attempt=activity.info().attempt,
        )

    @activity.defn(no_thread_cancel_exception=True)
    def set_up(self, request: SetUpRequest) -> SetUpResult:
        """Carry out a decision about a setup command; see `Setups`.

        Raises:
            WorkspaceError: the packages cannot be added to the tree. The message says what to do.
        """
        assert self.setups is not None, "only setups that were examined are carried out"
        with self.workspaces.hold(request.scope) as tree:
            drift = tree.expect(request.expected_tree)
            done = self.setups.set_up(request.scope, tree, request.expected_tree, request.setup, cancelled=should_stop)
        return done.evolve(drift=drift, attempt=activity.info().attempt)

    @activity.defn(no_thread_cancel_exception=True)
    def adopt_workspace(self, request: AdoptRequest) -> AdoptResult:
        """Keep the tree as a person left it, except for changes that the person wants to undo.

        If `put_back` is set in the scope, the workflow's last tree is restored and nothing is kept.
        """
        attempt, undone = activity.info().attempt, None
        with self.workspaces.hold(request.scope) as tree:
            if request.scope.put_back:
                return AdoptResult(
                    tree=request.expected_tree,
                    drift=tree.ensure(request.expected_tree, DriftCause.INTERRUPTED),
                    attempt=attempt,
                )
            if request.drift is not None:
                tree_id, undone = tree.settle(request.expected_tree, request.drift)
            else:
                tree_id = tree.snapshot()
            if tree_id == request.expected_tree:
                return AdoptResult(tree=tree_id, drift=undone, attempt=attempt)
            tree.keep(f"adopted-{tree_id[:12]}", tree_id)
            diff = self.differ.compare(store_folder_of(request.scope), request.expected_tree, tree_id)
        adopted = AdoptResult(tree=tree_id, files_changed=diff.files_changed, drift=undone, attempt=attempt)
        note_adoption(self.ledgers(Path(request.scope.workspace)), request, adopted, this_call())
        return adopted

    @activity.defn(no_thread_cancel_exception=True)
    def restore_checkpoint(self, request: RestoreRequest) -> RestoredCheckpoint:
        """Restore a checkpoint's files and return its state. The current files are saved first.

        Raises:
            WorkspaceError: the checkpoint is unknown. The message lists the existing ones.
        """
        workspace = Path(request.scope.workspace)
        owner = request.target.episode_id or request.scope.episode_id
        record = request.record or self._find(workspace, owner, request.target.checkpoint_id)
        if record.state is None:
            raise ArtifactMissingError(f"{record.id} has no saved state and cannot be restored")
        store = self.stores(workspace)
        if request.closed and record.run_id == activity.info().workflow_run_id:
            # The person means an earlier checkpoint, not the one that this run created from the current files.
            self._refuse_after_collection(workspace, owner)
        file = get_model(store, record.state, CheckpointFile)
        checkpoints: tuple[CheckpointRecord, ...] = ()
        newest: EpisodeState | None = None
        if request.closed or record.number == 0:
            checkpoints = self.ledgers(workspace).checkpoints(owner)[-RECENT_LIMIT:]
            worked = [r.state for r in checkpoints if r.state is not None and r.iteration > 0]
            newest = get_model(store, worked[-1], CheckpointFile).state if worked else None
        if record.number == 0 and (added := request.added_tree or (newest.added_tree if newest else "")):
            record = record.evolve(tree=added)
        if not request.closed:
            checkpoints, newest = (), None
        info = activity.info()
        if owner != request.scope.episode_id:
            record = self.ledgers(workspace).record_checkpoint(
                request.scope.episode_id,
                forked_key(info.workflow_run_id or ""),
                record.evolve(id="", parent=None, branch=1, event_id=None, discarded=False),
            )
        with self.workspaces.hold(request.scope) as tree:
            saved = tree.ensure(record.tree)
            # A fork needs a ref of its own: `tightloop gc` may free those of the other episode.
            tree.keep(str(record.number), record.tree)
        note_restoration(self.ledgers(workspace), request, record, this_call())
        return RestoredCheckpoint(
            record=record,
            state=file.state,
            saved_tree=saved.tree if saved else None,
            bring_back=saved.bring_back if saved else "",
            newest=newest,
            known=checkpoints,
            attempt=info.attempt,
        )

    def _refuse_after_collection(self, workspace: Path, episode_id: str) -> None:
        freed = [event.at for event in self.ledgers(workspace).events(episode_id) if event.kind == FREED]
        if freed:
            at = f"{freed[-1]:%Y-%m-%d %H:%M} UTC" if freed[-1] else "an unknown time"
            raise WorkspaceError(
                f"tightloop gc deleted the checkpoints of {episode_id} at {at}, so they cannot be restored. "
                "Start a new episode with the current files"
            )

    def _find(self, workspace: Path, episode_id: str, checkpoint: str) -> CheckpointRecord:
        records = self.ledgers(workspace).checkpoints(episode_id)
        match = next((record for record in records if record.id == checkpoint), None)
        if match is None:
            self._refuse_after_collection(workspace, episode_id)
            names = ", ".join(record.id for record in records[-10:]) or "none"
            raise WorkspaceError(
                f"episode {episode_id} has no checkpoint {checkpoint!r}. The latest checkpoints are: {names}"
            )
        return match

    @activity.defn(no_thread_cancel_exception=True)
    def reconcile_reset(self, request: ReconcileRequest) -> ReconcileResult:
        """Restore the files to the reset run's state, and list the checkpoints of the discarded iterations."""
        ledger = self.ledgers(Path(request.scope.workspace))
        # A closed episode released its claim, and a reset reopens it.
        self.workspaces.prepare(request.scope, take_over=self.has_ended)
        with self.workspaces.hold(request.scope) as tree:
            saved = tree.ensure(request.expected_tree)
        discarded = tuple(
            record.evolve(discarded=True)
            for record in ledger.checkpoints(request.scope.episode_id)
            if record.number > request.newest_known
        )
        note_reset(ledger, request, len(discarded), this_call())
        return ReconcileResult(
            discarded=discarded,
            saved_tree=saved.tree if saved else None,
            bring_back=saved.bring_back if saved else "",
            attempt=activity.info().attempt,
        )

    @activity.defn(no_thread_cancel_exception=True)
    def amend_request(self, request: AmendRequest) -> ArtifactRef:
        """Store an amended request.

        Raises:
            InvalidRequestError: a check can never fail. Not retryable.
        """
        refuse_masked(request.definition_of_done or ())
        store = self.stores(Path(request.scope.workspace))
        episode = get_model(store, request.scope.stored_request, EpisodeRequest)
        amended = episode.evolve(
            goal=request.goal or episode.goal,
            definition_of_done=request.definition_of_done or episode.definition_of_done,
            scenarios=request.scenarios or episode.scenarios,
            executor=request.executor or episode.executor,
            planner=request.planner or episode.planner,
        )
        return put_model(store, amended, name="request")

    @activity.defn(no_thread_cancel_exception=True)
    def close_workspace(self, request: CloseRequest) -> CloseResult | None:
        """Restore the expected tree and release the claim.

        Changes made after the last step stay on disk unless the settings say otherwise.
        """
        drift, delivered = None, ""
        ledger = self.ledgers(Path(request.scope.workspace))
        if request.expected_tree:
            with self.workspaces.hold(request.scope) as tree:
                drift = restore_expected_tree(tree, request.expected_tree)
                if checkpoints := ledger.checkpoints(request.scope.episode_id):
                    tree.keep(BASE, checkpoints[0].tree)
                    tree.keep(RESULT, request.expected_tree)
            if checkpoints and request.result != "tree":
                message = closing_message(request.goal, request.snapshot, request.reason)
                part = ResultPart(checkpoints[0].tree, request.expected_tree, message)
                delivered = self.workspaces.deliver(request.scope, (part,))
        self.workspaces.release(request.scope)
        result = CloseResult(drift=drift, delivered=delivered)
        note_closing(ledger, request, this_call(), result)
        return result


def _id_taken_error(scope: EpisodeScope, checkpoints: tuple[CheckpointRecord, ...]) -> IdTakenError:
    name, last = scope.episode_id, checkpoints[-1].id
    return IdTakenError(
        f"episode {name} already exists in {scope.workspace}, with "
        f"{format_count(len(checkpoints), 'checkpoint')} (latest: {last}). Choose another id, continue "
        f"from the latest checkpoint: tightloop restore {name} {last}, or start with --replace, which keeps "
        "the existing checkpoints"
    )
