"""The working tree between two steps: edits of people, amendments to be stored, and what a reset discarded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from activities.workspace.activity import WorkspaceActivities
from activities.workspace.requests import Adopted, AdoptRequest, AmendRequest, ReconcileRequest
from tightloop.episode import state_changes
from tightloop.episode.checkpoint import RECENT_LIMIT, merge
from tightloop.episode.decisions import drift_question
from tightloop.episode.planning import ReflectCause
from tightloop.question import Answer, Question
from tightloop.safety.drift import Drift, DriftAnswer
from tightloop.value import counted
from workflows.episode.record import EpisodeRecord
from workflows.run.activities import HAND_OFF_TIMEOUT, RESTORE_TIMEOUT, ActivityOptions
from workflows.run.reporting import Reporting


class Steps(Protocol):
    """Runs activities at safe points, and asks people; see `SafePoints`."""

    async def do(self, method: Callable[[Any, Any], Any], request: Callable[[], Any], options: ActivityOptions) -> Any:
        """Run an activity at a safe point."""

    async def do_next(
        self, method: Callable[[Any, Any], Any], request: Callable[[], Any], options: ActivityOptions
    ) -> Any:
        """Run an activity at once."""

    async def ask(self, question: Question) -> Answer | None:
        """Wait for a person."""


class TreeChanges:
    """Keeps the state and the files of an episode together where somebody else has changed one of them.

    Attributes:
        is_putting_back: files are about to be replaced: pauses wait, and edits are not kept.
    """

    def __init__(self, record: EpisodeRecord, reporting: Reporting, points: Steps) -> None:
        self._record, self._reporting, self._points = record, reporting, points
        self.is_putting_back = False

    @contextmanager
    def replacing_files(self) -> Iterator[None]:
        """Hold back pauses, and keep no edits of what is about to be replaced."""
        before, self.is_putting_back = self.is_putting_back, True
        try:
            yield
        finally:
            self.is_putting_back = before

    async def settle_drift(self, drift: Drift) -> None:
        """Have a person decide about files that somebody else changed; those of a discarded future are put back."""
        if self._record.is_reset:
            await self.reconcile_reset()
        else:
            await self._points.ask(drift_question(drift))

    async def adopt(self, drift: DriftAnswer | None) -> None:
        """Keep what a person edited during a pause; what a discarded future left is not an edit.

        Of what they were asked about in a question, only what they want is kept.
        """
        record = self._record
        if record.state.request is None or self.is_putting_back:
            return
        adopted, changed = await self.take_tree("resume: keep edits made during the pause", drift)
        record.log_drift(adopted.drift)
        if changed:
            # What they refused they may have taken out themselves.
            record.replace(record.state.evolve(findings=()))
            when = "during a pause" if drift is None else "meanwhile"
            record.note(f"A person edited {counted(adopted.files_changed, 'file')} {when}; keep these edits.")
        when = "during the pause" if drift is None else "outside a pause"
        kept = f"edits of {counted(adopted.files_changed, 'file')} {when} were kept"
        record.log("resumed", kept if changed else "resumed")

    async def take_tree(self, summary: str, drift: DriftAnswer | None = None) -> tuple[Adopted, bool]:
        """Go on with what is on disk, of which only what was decided on is undone; return whether it has changed."""
        record = self._record
        adopted: Adopted = await self._points.do(
            WorkspaceActivities.adopt_workspace,
            lambda: AdoptRequest(scope=record.scope, expected_tree=record.state.tree, drift=drift),
            ActivityOptions(summary, RESTORE_TIMEOUT, record.request.queues.workspace),
        )
        changed = adopted.tree != record.state.tree
        record.replace(record.state.evolve(tree=adopted.tree))
        record.apply(state_changes.with_retries, adopted.attempt)
        return adopted, changed

    async def store_amendment(self) -> None:
        """Store the request where a person has amended it."""
        record = self._record
        if not record.is_amended or record.state.request is None:
            return
        # Before the activity: it runs at a safe point, which would store the request again.
        record.is_amended = False
        try:
            stored = await self._points.do(
                WorkspaceActivities.amend_request,
                lambda: AmendRequest(
                    scope=record.scope,
                    goal=record.request.goal,
                    definition_of_done=record.request.definition_of_done,
                    executor=record.request.executor,
                    planner=record.request.planner,
                ),
                ActivityOptions("store the amended request", HAND_OFF_TIMEOUT, record.request.queues.workspace),
            )
        except BaseException:
            record.is_amended = True
            raise
        record.replace(record.state.evolve(request=stored))

    async def reconcile_reset(self) -> None:
        """After a reset in Temporal: put the files back too, and list what was discarded."""
        record = self._record
        if not record.is_reset:
            return
        record.is_reset = False
        # The parent and the ledger heard of waits that belong to the discarded future.
        self._reporting.show_again()
        if record.state.request is None:
            return
        newest = max((each.number for each in record.state.checkpoints), default=-1)
        # A safe point would pause first: without the claim, and what is on disk would then be adopted.
        with self.replacing_files():
            options = ActivityOptions(
                "the run was reset: put the files back", RESTORE_TIMEOUT, record.request.queues.workspace
            )
            outcome = await self._points.do_next(
                WorkspaceActivities.reconcile_reset,
                lambda: ReconcileRequest(scope=record.scope, expected_tree=record.state.tree, newest_known=newest),
                options,
            )
        record.replace(
            record.state.evolve(
                branch=max([record.state.branch, *(each.branch for each in outcome.discarded)]) + 1,
                checkpoints=merge(record.state.checkpoints, outcome.discarded)[-RECENT_LIMIT:],
                reflect_next=ReflectCause.RESTORED,
                reflect_detail="the run was reset in Temporal to an earlier event",
            )
        )
        record.log_saved(outcome.saved_tree, outcome.bring_back)
        record.log(
            "reset", f"reset in Temporal: {counted(len(outcome.discarded), 'checkpoint')} discarded, files put back"
        )
