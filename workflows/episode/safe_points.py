"""Safe points: an episode runs one activity at a time and handles people's requests in between."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, overload

from temporalio import workflow
from temporalio.exceptions import FailureError

from activities.workspace.activity import WorkspaceActivities
from activities.workspace.port import AdoptRequest, AdoptResult, AmendRequest, ReconcileRequest
from tightloop.episode import decisions, state_changes
from tightloop.episode.checkpoint import RECENT_LIMIT, RestoreTarget, merge
from tightloop.episode.decisions import drift_question, end_question, make_question, read_drift_answer
from tightloop.episode.model import EpisodeOutcome, EpisodePhase
from tightloop.episode.planning import ReflectCause
from tightloop.ledger.alert import AlertKind, alert_kind
from tightloop.run.core import Work
from tightloop.run.question import Answer, Question, QuestionKind
from tightloop.safety.drift import Drift, DriftAnswer
from tightloop.value import format_count
from tightloop.wording import span
from workflows.episode.record import EpisodeRecord
from workflows.run.activities import (
    HAND_OFF_TIMEOUT,
    RESTORE_TIMEOUT,
    ActivityFailedError,
    ActivityOptions,
    ActivityRunner,
)
from workflows.run.kernel import ContinueAsNew
from workflows.run.reporting import Reporting

A = TypeVar("A")
R = TypeVar("R")

PAUSE_AGAIN = timedelta(seconds=1)


class EpisodeOver(Exception):  # noqa: N818 - it ends the loop, it is not an error
    """The episode has an outcome."""

    def __init__(self, outcome: EpisodeOutcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


class QuestionAnswered(Exception):  # noqa: N818 - it ends an activity, it is not an error
    """Raised if an activity was stopped because its open question was answered."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.option)
        self.answer = answer


class SafePoints:
    """Runs activities one at a time and handles people's requests in between.

    Attributes:
        tree: handles file changes between two steps.
    """

    def __init__(self, record: EpisodeRecord, runner: ActivityRunner, reporting: Reporting) -> None:
        self._record, self._runner, self._reporting = record, runner, reporting
        self._ending: str | None = None
        self._restoring: RestoreTarget | None = None
        self._pause_child: Callable[[], Awaitable[None]] | None = None
        self._asking_child: asyncio.Task[None] | None = None
        self.tree = TreeChanges(record, reporting, self)

    # -- activities ---------------------------------------------------------------------------------

    @overload
    async def do(
        self, method: Callable[[Any, A], Coroutine[Any, Any, R]], request: Callable[[], A], options: ActivityOptions
    ) -> R: ...
    @overload
    async def do(self, method: Callable[[Any, A], R], request: Callable[[], A], options: ActivityOptions) -> R: ...
    async def do(self, method: Callable[[Any, Any], Any], request: Callable[[], Any], options: ActivityOptions) -> Any:
        """Run one activity at a safe point. If it fails after all retries, ask a person and run it again.

        Args:
            method: the activity.
            request: builds the request when the activity starts, because people may change the state before
                then.
            options: the activity's options.

        Raises:
            QuestionAnswered: the question in `options.open_question` was answered before the activity ended.
        """
        if not options.at_once:
            await self._pass()
        return await self._run_until_done(lambda: self._runner.run(method, request(), options), options)

    async def do_workflow(
        self,
        child: Callable[[], Coroutine[Any, Any, R]],
        options: ActivityOptions,
        *,
        pause: Callable[[], Awaitable[None]],
    ) -> R:
        """Run a child workflow at a safe point. This works like `do` for an activity.

        Args:
            child: starts the child and waits for it to end. Called again after an interruption.
            options: description shown to people.
            pause: asks the child to stop at its next safe point. Called when a pause is requested.
        """
        await self._pass()
        self._pause_child = pause
        try:
            result: R = await self._run_until_done(lambda: self._runner.run_workflow(child()), options)
        finally:
            self._pause_child = None
        return result

    @contextmanager
    def restoring(self, target: RestoreTarget) -> Iterator[None]:
        """Delay pauses until an accepted restore is complete, so that edits made during a pause are kept."""
        self._restoring = target
        with self.tree.replacing_files():
            yield
        # Not in a `finally`: if the restore is interrupted, `raise_if_leaving` names the checkpoint that was dropped.
        self._restoring = None

    async def _run_until_done(self, once: Callable[[], Coroutine[Any, Any, Any]], options: ActivityOptions) -> Any:
        while True:
            try:
                return await self._run(once, options)
            except ActivityFailedError as failure:
                self.raise_if_leaving()
                # An interrupt to pause is no failure: pause, then run the activity again.
                if self._runner.interrupted and (pause := self._record.take_pause()):
                    await self.ask(pause)
                    continue
                if failure.drift is not None:
                    await self.tree.settle_drift(failure.drift)
                    continue
                await self.ask_about(failure)

    async def ask_about(self, failure: ActivityFailedError) -> None:
        """Ask a person about an activity that could not run. The caller then runs it again."""
        unserved = AlertKind.NO_EXECUTOR if failure.no_worker else None
        waits = f"cannot restore {self._restoring.checkpoint_id} yet: " if self._restoring else ""
        await self.ask(make_question(QuestionKind.FATAL, waits + failure.reason), alert=unserved)

    async def _run(self, once: Callable[[], Coroutine[Any, Any, Any]], options: ActivityOptions) -> Any:
        record = self._record
        work = options.work or Work(what=options.summary, limit_s=options.timeout.total_seconds())
        record.work = work.evolve(since=workflow.now())
        question_id = record.ask(options.open_question).id if options.open_question is not None else ""
        self._reporting.show()
        try:
            result = await once()
        except ActivityFailedError as failure:
            self._raise_answer(question_id, failure)
            raise
        else:
            # An accepted answer counts, even if the activity ended by itself before it could be stopped.
            self._raise_answer(question_id)
            return result
        finally:
            record.work = None
            record.close_questions(question_id)
            # The work has ended, so there is nothing left to stop: an answer to that question is void.
            if self._ending is not None:
                record.close_questions(self._ending)
                record.take_answer(self._ending)
                self._ending = None
                self._reporting.show()

    def _raise_answer(self, question_id: str, failure: ActivityFailedError | None = None) -> None:
        if answer := self._record.take_answer(question_id):
            raise QuestionAnswered(answer) from failure

    def offer_to_end(self) -> None:
        """Ask whether a requested pause should stop the running activity.

        The question is only asked if stopping the activity costs nothing but time. A child workflow is asked
        to stop at its own next safe point instead.
        """
        if self._pause_child is not None and self.is_pause_wanted:
            # A signal handler should return at once, and the child may not be able to take a signal yet.
            self._asking_child = asyncio.create_task(self._ask_child_to_pause())
        work = self._record.work
        if work is not None and work.ends_early and self._ending is None and self.is_pause_wanted:
            self._ending = self._record.ask(end_question(work, workflow.now())).id
            self._reporting.show()

    async def _ask_child_to_pause(self) -> None:
        while self._pause_child is not None and self.is_pause_wanted:
            try:
                await self._pause_child()
            except FailureError:
                # The child has just ended or has not started yet; a signal to it fails in both cases.
                await workflow.sleep(PAUSE_AGAIN, summary="the pause has not reached the child workflow yet")
            else:
                return

    @property
    def is_pause_wanted(self) -> bool:
        """True if a pause begins at the next safe point."""
        return self._record.core.pause is not None

    def enter(self, phase: EpisodePhase) -> None:
        """Enter a phase. The phase is published together with the next activity."""
        self._record.replace(self._record.state.evolve(phase=phase))

    # -- requests of people -------------------------------------------------------------------------

    def raise_if_leaving(self) -> None:
        """Raise an error if the run has to end now.

        Raises:
            asyncio.CancelledError: the workflow is being cancelled in Temporal.
            EpisodeOver: a person cancelled the episode.
            ContinueAsNew: a restore or a move is requested.
        """
        # An activity that ends normally swallows a cancellation that arrived while it ran.
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError
        record = self._record
        if record.core.cancel is not None:
            reason = record.core.cancel or "cancelled"
            if dropped := record.restore_wanted or self._restoring:
                reason += f". Checkpoint {dropped.checkpoint_id} was not restored, and the files are unchanged"
            raise EpisodeOver(EpisodeOutcome.CANCELLED, reason)
        if record.continues:
            raise ContinueAsNew

    async def apply_decision(self, decision: decisions.Decision) -> str:
        """Ask a decision's question, if it has one. Return the name of the chosen option, or "".

        Raises:
            EpisodeOver: there was no answer in time, or the episode was cancelled.
        """
        self.raise_if_leaving()
        answer = await self.ask(decision.question) if decision.question is not None else None
        return answer.option if answer is not None else ""

    async def ask(
        self, question: Question, *, alert: AlertKind | None = None, patience: timedelta | None = None
    ) -> Answer | None:
        """Ask a question, and pause until it is answered or `patience` has passed.

        Return None if the wait ended for another reason, such as a larger budget.
        """
        # A reset run puts the files back and claims the workspace before it waits for an answer.
        await self.tree.reconcile_reset()
        record = self._record
        open_question = record.ask(question)
        record.stop_work()
        record.log("paused", f"{open_question.kind.value}: {open_question.title} (by {open_question.by})")
        if kind := alert or alert_kind(open_question):
            record.alerts.send(record.alert(kind, open_question.title, open_question, open_question.since))
        self._reporting.show()
        is_ended = await self._wait_for_answer(open_question, patience)
        record.close_questions(open_question.id)
        record.start_work()
        answer = record.take_answer(open_question.id)
        if is_ended:
            record.apply(state_changes.with_ended_wait, open_question, answer)
        if answer is not None:
            record.apply(state_changes.with_answer, open_question, answer, first=record.request.budget)
        self._reporting.show()
        # A restore saves the files before it replaces them, and a cancelled episode leaves them alone.
        if not record.is_leaving:
            about_drift = open_question.kind is QuestionKind.DRIFT and answer is not None
            await self.tree.adopt(read_drift_answer(open_question, answer) if about_drift and answer else None)
        # During the wait people may have amended the request or asked for another pause.
        await self._pass()
        return answer

    async def _wait_for_answer(self, question: Question, patience: timedelta | None) -> bool:
        """Wait for an answer to a question. Return False if the wait timed out after `patience`."""
        record, longest = self._record, self._record.request.pause_timeout
        is_patient = patience is None or longest <= patience
        try:
            await workflow.wait_condition(
                lambda: not record.core.questions.is_open(question.id) or record.is_leaving,
                timeout=longest if is_patient else patience,
                timeout_summary=f"paused: {question.kind.value}",
            )
        except TimeoutError:
            record.close_questions(question.id)
            if not is_patient:
                record.log("limit", f"nobody answered {question.id}, so the run will try again")
                return False
            reason = f"nobody answered within {span(longest.total_seconds())}: {question.title}"
            await self.alert_failure(reason)
            raise EpisodeOver(EpisodeOutcome.FAILED, reason) from None
        return True

    def report(self, what: str) -> None:
        """Inform people and the planner about a problem that does not need a decision."""
        self._record.log("unmoved", what)
        self._record.note(f"The loop noticed: {what}.")
        self._record.alerts.send(self._record.alert(AlertKind.UNMOVED, what))

    async def alert_failure(self, reason: str) -> None:
        """Alert people that the episode is about to fail."""
        await self._record.alerts.send_last(self._record.alert(AlertKind.FAILED, reason))

    async def back_off(self, wait: timedelta) -> None:
        """Wait until a limit is lifted.

        A person's request ends the wait early. The wait does not count as working time.
        """
        self.enter(EpisodePhase.BACKING_OFF)
        self._record.stop_work()
        self._reporting.show()
        try:
            await workflow.wait_condition(
                lambda: self._record.is_leaving or self.is_pause_wanted,
                timeout=wait,
                timeout_summary=f"limit: continue after {wait.total_seconds():g} s",
            )
        except TimeoutError:
            return
        finally:
            self._record.start_work()
        await self._pass()

    async def _pass(self) -> None:
        """Handle pending requests from people, resets and amendments."""
        self.raise_if_leaving()
        # The reset first: until it is reconciled, the files on disk belong to the discarded run.
        await self.tree.reconcile_reset()
        await self.tree.store_amendment()
        if not self.tree.is_putting_back and (pause := self._record.take_pause()):
            await self.ask(pause)


class TreeChanges:
    """Keeps an episode's state and files consistent after external changes.

    Attributes:
        is_putting_back: whether files are being replaced. Pauses are then delayed and edits are
            discarded.
    """

    def __init__(self, record: EpisodeRecord, reporting: Reporting, points: "SafePoints") -> None:
        self._record, self._reporting, self._points = record, reporting, points
        self.is_putting_back = False

    @contextmanager
    def replacing_files(self) -> Iterator[None]:
        """Hold back pauses, and discard edits, while files are being replaced."""
        before, self.is_putting_back = self.is_putting_back, True
        try:
            yield
        finally:
            self.is_putting_back = before

    async def settle_drift(self, drift: Drift) -> None:
        """Ask a person about files that were changed externally. After a reset, restore the files instead."""
        if self._record.is_reset:
            await self.reconcile_reset()
        else:
            await self._points.ask(drift_question(drift))

    async def adopt(self, drift: DriftAnswer | None) -> None:
        """Keep the edits that a person made during a pause. If `drift` is given, it limits the edits to keep.

        After a reset, the files are restored first. Otherwise, leftovers of the discarded run would be
        mistaken for edits.
        """
        record = self._record
        if record.state.request is None or self.is_putting_back:
            return
        adopted, changed = await self.take_tree("resume: keep edits made during the pause", drift)
        record.log_drift(adopted.drift)
        if changed:
            # The person may have removed the findings that they refused.
            record.replace(record.state.evolve(findings=()))
            when = "during a pause" if drift is None else "meanwhile"
            record.note(f"Someone edited {format_count(adopted.files_changed, 'file')} {when}. Keep these edits.")
        when = "during the pause" if drift is None else "outside a pause"
        summary = f"edits to {format_count(adopted.files_changed, 'file')} {when} were kept"
        record.log("resumed", summary if changed else "resumed")

    async def take_tree(self, summary: str, drift: DriftAnswer | None = None) -> tuple[AdoptResult, bool]:
        """Adopt the files on disk as the episode's tree, except for files that `drift` undoes.

        Return the result and whether the tree changed.
        """
        record = self._record
        adopted: AdoptResult = await self._points.do(
            WorkspaceActivities.adopt_workspace,
            lambda: AdoptRequest(scope=record.scope, expected_tree=record.state.tree, drift=drift),
            ActivityOptions(summary, RESTORE_TIMEOUT, record.request.queues.workspace),
        )
        changed = adopted.tree != record.state.tree
        record.replace(record.state.evolve(tree=adopted.tree))
        record.apply(state_changes.with_retries, adopted.attempt)
        return adopted, changed

    async def store_amendment(self) -> None:
        """Store the request on the host if it was amended."""
        record = self._record
        if not record.is_amended or record.state.request is None:
            return
        # Clear the flag before the activity: it runs at a safe point, which would store the request again.
        record.is_amended = False
        try:
            stored = await self._points.do(
                WorkspaceActivities.amend_request,
                lambda: AmendRequest.of(record.request, scope=record.scope),
                ActivityOptions("store the amended request", HAND_OFF_TIMEOUT, record.request.queues.workspace),
            )
        except BaseException:
            # A cancellation too: the next run has to know that the request is not stored yet.
            record.is_amended = True
            raise
        record.replace(record.state.evolve(request=stored))

    async def reconcile_reset(self) -> None:
        """Restore the files after a reset in Temporal, and list the discarded checkpoints."""
        record = self._record
        if not record.is_reset:
            return
        # Cleared first: if the activity below fails, the question about it comes through here again.
        record.is_reset = False
        # The parent and the ledger still show questions of the discarded run.
        self._reporting.show_again()
        if record.state.request is None:
            return
        # Checkpoints with higher numbers were made by the discarded run.
        newest = max((checkpoint.number for checkpoint in record.state.checkpoints), default=-1)
        # An ordinary safe point could pause first, before the workspace is claimed, and then adopt the files on disk.
        with self.replacing_files():
            summary, queue = "put the files back after a reset", record.request.queues.workspace
            outcome = await self._points.do(
                WorkspaceActivities.reconcile_reset,
                lambda: ReconcileRequest(scope=record.scope, expected_tree=record.state.tree, newest_known=newest),
                ActivityOptions(summary, RESTORE_TIMEOUT, queue, at_once=True),
            )
        record.replace(
            record.state.evolve(
                # Above all branches of the discarded run, so that its checkpoints are not mistaken for new ones.
                branch=max([record.state.branch, *(checkpoint.branch for checkpoint in outcome.discarded)]) + 1,
                checkpoints=merge(record.state.checkpoints, outcome.discarded)[-RECENT_LIMIT:],
                reflect_next=ReflectCause.RESTORED,
                reflect_detail="the run was reset in Temporal to an earlier event",
            )
        )
        record.log_saved_tree(outcome.saved_tree, outcome.bring_back)
        record.log(
            "reset",
            f"the run was reset in Temporal: {format_count(len(outcome.discarded), 'checkpoint')} discarded, files "
            "restored",
        )
