"""An episode's workspace: opening, restoring, moving and closing it, and copying its checkpoints."""

import asyncio
import contextlib
from datetime import timedelta

from temporalio import workflow

from activities.proof.activity import ProofActivities
from activities.proof.port import FindChecksRequest
from activities.remote.activity import CopyRequest, CopyResult, RemoteActivities, TakeOverRequest, TakeOverResult
from activities.workspace.activity import WorkspaceActivities
from activities.workspace.port import CloseRequest, OpenRequest, RestoreRequest, SetUpRequest
from tightloop.checks.choice import no_checks_message
from tightloop.checks.setup import Setup, setup_question
from tightloop.episode import state_changes
from tightloop.episode.checkpoint import RECENT_LIMIT, CheckpointRecord, MoveTarget, RestoreTarget, host_of
from tightloop.episode.decisions import CANCEL_EPISODE, THE_EPISODE
from tightloop.episode.model import EpisodeOutcome, EpisodePhase
from tightloop.value import shorten
from workflows.episode.record import EpisodeRecord, EpisodeView
from workflows.episode.safe_points import EpisodeOver, SafePoints
from workflows.run.activities import (
    CLOSE_TIMEOUT,
    FIND_TIMEOUT,
    OPEN_TIMEOUT,
    RESTORE_TIMEOUT,
    SETUP_TIMEOUT,
    ActivityFailedError,
    ActivityOptions,
    ActivityRunner,
)
from workflows.run.kernel import NotOpenedError
from workflows.run.reporting import Reporting

COPY_TIMEOUT = timedelta(minutes=5)
"""Timeout of one copy, and of the wait for the last copy at the end of an episode."""


class EpisodeCopies:
    """Copies checkpoints to the remote store, one at a time. The next copy makes up for a failed copy."""

    def __init__(self, record: EpisodeRecord, points: SafePoints) -> None:
        """Start without a running copy. The previous run has already copied its last checkpoint."""
        self._record, self._points = record, points
        # A runner of its own: an interrupt stops the work, not the copying of finished checkpoints.
        self._runner = ActivityRunner(record, quiet=True)
        # Without a remote store the epoch stays 0, and nothing is ever copied.
        self._copied = self._newest if record.state.epoch else ""
        self._copying: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Claim the ID of a new episode in the remote store and copy the initial tree."""
        record = self._record
        copied = await self._copy_for_certain()
        record.replace(record.state.evolve(epoch=copied.epoch))

    def keep_up(self) -> None:
        """Start copying the newest checkpoint in the background, unless a copy is running."""
        is_copying = self._copying is not None and not self._copying.done()
        if self._record.state.epoch and self._is_behind and not is_copying:
            self._copying = asyncio.create_task(self._copy())

    async def settle(self) -> None:
        """Wait for the running copy to finish, for up to `COPY_TIMEOUT`."""
        copying = self._copying
        if copying is not None and not copying.done():
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    copying.done, timeout=COPY_TIMEOUT, timeout_summary="continue without the copy"
                )

    async def complete(self) -> None:
        """Copy the newest checkpoint and wait until it is copied. If copying fails, ask a person."""
        if self._record.state.epoch:
            await self.settle()
            if self._is_behind:
                await self._copy_for_certain()

    @property
    def _newest(self) -> str:
        last = self._record.state.last_checkpoint
        return last.id if last is not None else ""

    @property
    def _is_behind(self) -> bool:
        return self._copied != self._newest

    async def _copy(self) -> None:
        # Checkpoints made during a copy are skipped: a host that takes over needs only the newest one.
        while self._is_behind:
            request = self._request()
            try:
                await self._runner.run(RemoteActivities.copy_checkpoint, request, self._options(request))
            except ActivityFailedError as failure:
                self._record.log(
                    "copy", f"checkpoint {request.record.id} was not copied to the remote store: {failure.reason}"
                )
                return
            self._copied = request.record.id

    async def _copy_for_certain(self) -> CopyResult:
        request = self._request()
        copied = await self._points.do(RemoteActivities.copy_checkpoint, lambda: request, self._options(request))
        self._copied = request.record.id
        return copied

    def _request(self) -> CopyRequest:
        last = self._record.state.last_checkpoint
        assert last is not None, "an open episode has a checkpoint"
        return CopyRequest(scope=self._record.scope, record=last)

    def _options(self, request: CopyRequest) -> ActivityOptions:
        queue = self._record.request.queues.workspace
        return ActivityOptions(f"copy {request.record.id} to the remote store", COPY_TIMEOUT, queue, at_once=True)


class Workspace:
    """Opens, restores, moves and closes an episode's workspace."""

    def __init__(
        self,
        record: EpisodeRecord,
        points: SafePoints,
        runner: ActivityRunner,
        view: EpisodeView,
        reporting: Reporting,
        copies: EpisodeCopies,
    ) -> None:
        self._record, self._points, self._runner, self._copies = record, points, runner, copies
        self._view, self._reporting = view, reporting

    async def open(self) -> None:
        """Check and claim a new episode's workspace.

        Raises:
            NotOpenedError: the workspace cannot be opened. An alert was sent.
        """
        record = self._record
        while True:
            request = OpenRequest(
                scope=record.scope,
                episode=record.request,
                # Unlike the run id, the original execution's id survives a reset, so the workspace is claimed once.
                opening=workflow.info().original_execution_run_id,
                is_new=record.is_first,
                snapshot=self._view.first,
            )
            options = ActivityOptions("check and claim the workspace", OPEN_TIMEOUT, record.request.queues.workspace)
            try:
                opened = await self._runner.run(WorkspaceActivities.open_workspace, request, options)
                break
            except ActivityFailedError as failure:
                # `SafePoints.do` would pause and adopt edits, which needs the workspace that is only being opened here.
                if self._runner.interrupted:
                    self._points.raise_if_leaving()
                if not failure.no_worker:
                    await self._points.alert_failure(failure.reason)
                    raise NotOpenedError(failure.reason, "WorkspaceError") from failure
                await self._points.ask_about(failure)
        record.bind(opened.home)
        checkpoint = opened.checkpoint.evolve(event_id=workflow.info().get_current_history_length())
        record.replace(
            record.state.evolve(
                request=opened.request,
                tree=opened.tree,
                checkpoints=(*(opened.known if record.given.replace else ()), checkpoint)[-RECENT_LIMIT:],
                trees=(opened.tree,),
            )
        )
        source = record.given.restore
        forked_from = f"{source.checkpoint_id} of {source.episode_id}" if source and source.episode_id else ""
        record.core = record.core.evolve(worktree=opened.worktree, forked_from=forked_from)
        record.log("opened", f"{checkpoint.id}: " + "; ".join(["the workspace is ready", *opened.notes]))
        # An episode within a plan shares the plan's workspace, so it cannot move to another host on its own.
        if opened.copied and not record.request.within:
            await self._copies.begin()
        await self._set_up(opened.setup)

    async def _set_up(self, setup: Setup | None) -> None:
        """Install the project's packages. Ask a person about each command that has not been decided yet.

        Raises:
            EpisodeOver: there was no answer in time, or the episode was cancelled.
        """
        while setup is not None:
            if not setup.decision:
                answer = await self._points.ask(setup_question(setup, blocks=THE_EPISODE, cancel=CANCEL_EPISODE))
                # Another request ended the wait.
                if answer is None:
                    continue
                setup = setup.decide(answer)
            setup = await self._carry_out(setup)

    async def _carry_out(self, setup: Setup) -> Setup | None:
        """Carry out the decision about a setup command. Return the next setup to ask about, or None."""
        record = self._record
        done = await self._points.do(
            WorkspaceActivities.set_up,
            lambda: SetUpRequest(scope=record.scope, expected_tree=record.state.tree, setup=setup),
            ActivityOptions(f"set up: {shorten(setup.command, 80)}", SETUP_TIMEOUT, record.request.queues.workspace),
        )
        record.apply(state_changes.with_retries, done.attempt)
        record.log_drift(done.drift)
        for note in done.notes:
            record.log("setup", note)
        return done.setup

    async def find_checks(self) -> None:
        """Derive the definition of done from the project's files if the request has none.

        Raises:
            EpisodeOver: none of the project's checks can run here.
        """
        record = self._record
        if record.request.definition_of_done:
            return
        found = await self._points.do(
            ProofActivities.find_checks,
            lambda: FindChecksRequest(scope=record.scope, expected_tree=record.state.tree),
            ActivityOptions("find the project's own checks", FIND_TIMEOUT, record.request.queues.workspace),
        )
        record.log_drift(found.drift)
        # A person may have named checks meanwhile.
        if record.request.definition_of_done:
            return
        if not found.checks:
            raise EpisodeOver(EpisodeOutcome.FAILED, no_checks_message(found.sentences))
        record.amend(record.request.evolve(definition_of_done=found.checks))
        record.replace(
            record.state.evolve(request=found.request, chosen_checks=found.sentences, first_runs=found.first_runs)
        )
        for sentence in found.sentences:
            record.log("checks", sentence)

    async def take_over(self, target: MoveTarget) -> None:
        """Take over an episode from the last checkpoint that its previous host copied."""
        record, last = self._record, self._record.state.last_checkpoint
        assert last is not None, "an open episode has a checkpoint"
        self._points.enter(EpisodePhase.RESTORING)
        with self._points.tree.replacing_files():
            queue = record.request.queues.workspace
            takeover: TakeOverResult = await self._points.do(
                RemoteActivities.take_over,
                lambda: TakeOverRequest(scope=record.scope, last=last),
                ActivityOptions("take over the episode", RESTORE_TIMEOUT, queue, at_once=True),
            )
        record.apply(state_changes.with_retries, takeover.attempt)
        reason = f"moved to {host_of(target.to)}" + (f": {target.reason}" if target.reason else "")
        # A restore that was requested together with the move decides on the checkpoint.
        back = record.state.restore or RestoreTarget(checkpoint_id=takeover.record.id, reason=reason, by=target.by)
        record.replace(record.state.evolve(restore=back))
        lines = (f"{reason} (by {target.by}), epoch {record.state.epoch}", *takeover.notes)
        record.log("moved", ". ".join(lines))
        await self.restore(back, moved=takeover.record)

    async def restore(self, target: RestoreTarget, *, moved: CheckpointRecord | None = None) -> None:
        """Restore the state and the files of a checkpoint.

        `moved` is the last checkpoint that the previous host copied.
        """
        record = self._record
        self._points.enter(EpisodePhase.RESTORING)
        # Ids such as `ckpt-2` exist in every episode, so this one's list must not answer for another one's.
        checkpoints = () if target.episode_id else (*record.state.checkpoints, *([moved] if moved else []))
        with self._points.restoring(target):
            restored = await self._points.do(
                WorkspaceActivities.restore_checkpoint,
                lambda: RestoreRequest(
                    scope=record.scope,
                    target=target,
                    record=next(
                        (checkpoint for checkpoint in checkpoints if checkpoint.id == target.checkpoint_id), None
                    ),
                    closed=record.state.restore is None and not target.episode_id,
                    added_tree=record.state.added_tree,
                ),
                ActivityOptions(f"restore {target.checkpoint_id}", RESTORE_TIMEOUT, record.request.queues.workspace),
            )
        current = state_changes.reopen(record.state, restored.newest, restored.known)
        record.replace(state_changes.restore_state(current, restored.state, restored.record))
        if target.episode_id or moved:
            # Untracked files differ here; the original tests remain those of the first episode.
            record.replace(record.state.evolve(beginning=None, inherited=restored.state.beginning))
        record.apply(state_changes.with_retries, restored.attempt)
        record.log_saved_tree(restored.saved_tree, restored.bring_back)
        why = f"back to {target.checkpoint_id}" + (f": {target.reason}" if target.reason else "")
        record.replace(record.state.evolve(reflect_detail=why))
        record.log("restored", f"{why} (by {target.by or 'operator'}), branch {record.state.branch}")

    async def close(self, outcome: EpisodeOutcome, reason: str) -> None:
        """Release the workspace. The episode ends even if this fails."""
        record = self._record
        if record.state.request is None:
            return
        # First, while the workspace is still claimed: a late record would otherwise arrive after the final one.
        await self._reporting.settle()
        await self._copies.settle()
        # Only a success promises a certain tree; other outcomes leave the files as they are.
        keep = record.state.tree if outcome is EpisodeOutcome.SUCCEEDED else ""
        try:
            closed = await self._runner.run(
                WorkspaceActivities.close_workspace,
                CloseRequest(
                    scope=record.scope,
                    outcome=outcome,
                    reason=reason,
                    expected_tree=keep,
                    result=record.request.result_mode,
                    goal=record.request.goal,
                    snapshot=self._reporting.last,
                ),
                ActivityOptions(f"close: {outcome.value}", CLOSE_TIMEOUT, record.request.queues.workspace),
            )
            record.log_drift(closed.drift if closed is not None else None)
            record.log_delivery(closed.delivered if closed is not None else "")
        except ActivityFailedError as failure:
            # The outcome stands. A claim that is left behind is void, because its owner has ended.
            record.log("closed", f"the workspace could not be released: {failure.reason}")
