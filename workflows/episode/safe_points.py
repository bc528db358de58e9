"""Safe points: where an episode runs one activity, and where people step in between two of them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload

from temporalio import workflow
from temporalio.exceptions import FailureError

from activities.workspace.activity import WorkspaceActivities
from activities.workspace.requests import Adopted, AdoptRequest, AmendRequest, ReconcileRequest
from tightloop.episode.checkpoint import RECENT_LIMIT, RestoreTarget, merge
from tightloop.episode.display import details_markdown
from tightloop.episode.loop import decisions, state_changes
from tightloop.episode.loop.questions import drift_question, end_question, make_question, read_drift_answer
from tightloop.episode.model import EpisodeOutcome, EpisodePhase
from tightloop.episode.planning import ReflectCause
from tightloop.episode.work import Work
from tightloop.ledger.alert import Alert, AlertKind, alert_kind, alert_of
from tightloop.plan.child import waits_of
from tightloop.question import Answer, Question, QuestionKind, is_paused
from tightloop.safety.drift import Drift, DriftAnswer
from tightloop.value import counted
from workflows.episode.operator import Operator
from workflows.episode.record import EpisodeRecord
from workflows.episode.recording import EpisodeRecording
from workflows.shared.activities import (
    HAND_OFF_TIMEOUT,
    RESTORE_TIMEOUT,
    ActivityFailedError,
    ActivityOptions,
    ActivityRunner,
)
from workflows.shared.alerts import Alerts
from workflows.shared.parent_notice import ParentNotice
from workflows.shared.questions import Questions
from workflows.shared.reporter import Reporter

A = TypeVar("A")
R = TypeVar("R")

_FILES_FIRST_PATCH = "files-before-pause"
"""A pause waits until the files are back. Without it the pause came first, and the restore undid its edits."""
_MISSING_PATCH = "tell-missing-executor"
"""People are told at once that nobody runs the executor. Without it they were told after `worker.no_worker_wait_s`."""


class EpisodeOver(Exception):  # noqa: N818 - it ends the loop, it is not an error
    """The episode has an outcome."""

    def __init__(self, outcome: EpisodeOutcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


class RunOver(Exception):  # noqa: N818 - it ends the run, it is not an error
    """The episode continues as a new run."""


class Answered(Exception):  # noqa: N818 - it ends an activity, it is not an error
    """The question beside an activity was answered, which ended it."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.option)
        self.answer = answer


async def _told(signal: Callable[[], Awaitable[None]]) -> None:
    # It may have ended meanwhile: then nothing is left to be paused.
    with suppress(FailureError):
        await signal()


class SafePoints:
    """Runs activities one by one, acts on what people want in between, and waits for them where needed.

    Attributes:
        work: what the activity that runs now does.
    """

    def __init__(
        self,
        record: EpisodeRecord,
        operator: Operator,
        questions: Questions,
        runner: ActivityRunner,
        recording: EpisodeRecording,
    ) -> None:
        self._record, self._operator, self._questions, self._runner = record, operator, questions, runner
        self._recording = recording
        self._reporter = Reporter(self._details)
        self._alerts = Alerts(
            record.request.queues.workspace, lambda: record.scope, lambda text: record.log("alert", text)
        )
        info = workflow.info()
        self._notice = ParentNotice(
            is_child=info.parent is not None and bool(record.request.within or record.request.tells_parent),
            is_first_run=not info.continued_run_id,
        )
        self.work: Work | None = None
        self._ending: str | None = None
        self._is_reset = self._putting_back = False
        self._restoring: RestoreTarget | None = None
        self._pause_child: Callable[[], Awaitable[None]] | None = None
        self._asking_child: asyncio.Task[None] | None = None
        # A reset is announced in no other way: the run that it makes gets a new random seed.
        workflow.register_random_seed_callback(self._on_reset)

    # -- activities ---------------------------------------------------------------------------------

    @overload
    async def do(
        self, method: Callable[[Any, A], Coroutine[Any, Any, R]], request: Callable[[], A], options: ActivityOptions
    ) -> R: ...
    @overload
    async def do(self, method: Callable[[Any, A], R], request: Callable[[], A], options: ActivityOptions) -> R: ...
    async def do(self, method: Callable[[Any, Any], Any], request: Callable[[], Any], options: ActivityOptions) -> Any:
        """Run one activity at a safe point. One that fails for good waits for a person, then runs again.

        Args:
            method: the activity.
            request: makes its request when it runs: people may have changed the state while it waited.
            options: how to run it.

        Raises:
            Answered: somebody answered the question beside it first.
        """
        await self._pass()
        return await self._insist(lambda: self._runner.run(method, request(), options), options)

    async def do_next(self, method: Callable[[Any, A], R], request: Callable[[], A], options: ActivityOptions) -> R:
        """Run an activity that concludes what ran before: nobody steps in between, so the tree is known at a pause."""
        result: R = await self._insist(lambda: self._runner.run(method, request(), options), options)
        return result

    async def do_workflow(
        self,
        child: Callable[[], Coroutine[Any, Any, R]],
        options: ActivityOptions,
        *,
        pause: Callable[[], Awaitable[None]],
    ) -> R:
        """Run a child workflow at a safe point, as `do` runs an activity.

        Args:
            child: starts it and waits for its end; called again where it was interrupted.
            options: what people are told of it.
            pause: asks it to stop at a safe point of its own; called when a pause is wanted.
        """
        await self._pass()
        self._pause_child = pause
        try:
            result: R = await self._insist(lambda: self._runner.run_workflow(child()), options)
        finally:
            self._pause_child = None
        return result

    @contextmanager
    def restoring(self, target: RestoreTarget) -> Iterator[None]:
        """Let an accepted restore come before a pause: what is edited in that pause is then kept."""
        self._restoring = target
        with self._replacing_files() if workflow.patched(_FILES_FIRST_PATCH) else nullcontext():
            yield
        self._restoring = None

    @contextmanager
    def _replacing_files(self) -> Iterator[None]:
        """Hold back pauses, and keep no edits of what is about to be replaced."""
        before, self._putting_back = self._putting_back, True
        try:
            yield
        finally:
            self._putting_back = before

    async def _insist(self, once: Callable[[], Coroutine[Any, Any, Any]], options: ActivityOptions) -> Any:
        while True:
            try:
                return await self._run(once, options)
            except ActivityFailedError as failure:
                self.leave_if_wanted()
                if self._runner.interrupted and (pause := self._operator.take_pause()):
                    await self.ask(pause)
                    continue
                if failure.drift is not None:
                    await self._settle_drift(failure.drift)
                    continue
                await self.ask_about(failure)

    async def ask_about(self, failure: ActivityFailedError) -> None:
        """Wait for a person because an activity could not be run; then it is run again."""
        unserved = AlertKind.NO_EXECUTOR if failure.no_worker else None
        waits = f"the restore to {self._restoring.checkpoint_id} waits: " if self._restoring else ""
        await self.ask(make_question(QuestionKind.FATAL, waits + failure.reason), alert=unserved)

    async def _run(self, once: Callable[[], Coroutine[Any, Any, Any]], options: ActivityOptions) -> Any:
        known = options.work or Work(what=options.summary, limit_s=options.timeout.total_seconds())
        self.work = known.evolve(since=workflow.now())
        beside = self._questions.ask(options.beside).id if options.beside is not None else ""
        self._reporter.show()
        try:
            result = await once()
        except ActivityFailedError as failure:
            self._heed(beside, failure)
            raise
        else:
            # What was accepted counts, though the activity ended by itself before it could be stopped.
            self._heed(beside)
            return result
        finally:
            self.work = None
            self._questions.close(beside)
            if self._ending is not None:
                self._questions.close(self._ending)
                self._operator.take_answer(self._ending)
                self._ending = None
                self._reporter.call_for("")
                self._recording.show()

    def _heed(self, beside: str, failure: ActivityFailedError | None = None) -> None:
        if answer := self._operator.take_answer(beside):
            raise Answered(answer) from failure

    def offer_to_end(self) -> None:
        """Ask whether a pause that is wanted ends what runs now, where that costs nothing but time.

        A child workflow is asked to stop at its own next safe point.
        """
        if self._pause_child is not None and self.is_pause_wanted:
            self._asking_child = asyncio.create_task(_told(self._pause_child))
        if self.work is None or not self.work.ends_early or self._ending is not None:
            return
        if self._operator.pause_wanted is not None:
            asked = self._questions.ask(end_question(self.work, workflow.now()))
            self._ending = asked.id
            self._reporter.call_for(asked.kind.value, paused=False)
            self._recording.show()

    @property
    def is_pause_wanted(self) -> bool:
        """Whether a pause begins at the next safe point."""
        return self._operator.pause_wanted is not None

    def enter(self, phase: EpisodePhase) -> None:
        """Note where the episode is; what runs next shows it."""
        self._record.replace(self._record.state.evolve(phase=phase))

    def close(self) -> None:
        """Show how the episode ended."""
        self._record.replace(self._record.state.evolve(phase=EpisodePhase.CLOSED))
        self._reporter.close(self._record.status)

    def refuse(self, reason: str, *, is_new: bool) -> None:
        """Show that the episode could not begin."""
        self._record.close("failed", reason)
        self._record.log("closed", f"{EpisodeOutcome.FAILED.value}: {reason}")
        self._record.replace(self._record.state.evolve(phase=EpisodePhase.CLOSED))
        self._reporter.refuse(is_new=is_new)

    # -- people -------------------------------------------------------------------------------------

    def leave_if_wanted(self) -> None:
        """End the run where a person wants that."""
        # An activity that ends normally swallows the cancellation that came meanwhile.
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError
        if self._operator.cancel_wanted is not None:
            reason = self._operator.cancel_wanted or "cancelled"
            if dropped := self._operator.restore_wanted or self._restoring:
                reason += f"; the restore to {dropped.checkpoint_id} was not carried out, the files are as they were"
            raise EpisodeOver(EpisodeOutcome.CANCELLED, reason)
        if self._operator.restore_wanted is not None:
            raise RunOver

    async def follow(self, decision: decisions.Decision) -> str:
        """Ask a person where that was decided on. Return the option that they chose.

        Raises:
            EpisodeOver: nobody answered in time.
        """
        self.leave_if_wanted()
        answer = await self.ask(decision.question) if decision.question is not None else None
        return answer.option if answer is not None else ""

    async def ask(self, question: Question, *, alert: AlertKind | None = None) -> Answer | None:
        """Wait for a person. Return the answer; None: the wait ended otherwise, such as by a larger budget."""
        # A reset run puts the files back and claims the workspace before it waits for anybody.
        await self.reconcile_reset()
        asked = self._questions.ask(question)
        since = asked.since or workflow.now()
        self._record.stop_work()
        self._record.log("paused", f"{asked.kind.value}: {asked.title} (by {asked.by})")
        self._reporter.call_for(asked.kind.value)
        if told := alert or alert_kind(asked):
            self._alerts.send(self._alert(told, since, asked))
        self._tell_parent()
        self._recording.show()
        await self._until_answered(asked)
        self._questions.close(asked.id)
        self._record.start_work()
        answer = self._operator.take_answer(asked.id)
        self._record.apply(state_changes.with_wait_ended, asked, answer)
        if answer is not None:
            self._record.apply(state_changes.with_answer, asked, answer, first=self._record.request.budget)
        self._reporter.call_for("")
        self._recording.show()
        if not self._operator.is_leaving:
            about_drift = asked.kind is QuestionKind.DRIFT and answer is not None
            await self._adopt(read_drift_answer(asked, answer) if about_drift and answer else None)
        await self._pass()
        return answer

    async def _until_answered(self, asked: Question) -> None:
        patience = self._record.request.pause_timeout
        try:
            await workflow.wait_condition(
                lambda: not self._questions.is_open(asked.id) or self._operator.is_leaving,
                timeout=patience,
                timeout_summary=f"paused: {asked.kind.value}",
            )
        except TimeoutError:
            self._questions.close(asked.id)
            reason = f"nobody answered within {patience}: {asked.title}"
            await self.alert_failure(reason)
            raise EpisodeOver(EpisodeOutcome.FAILED, reason) from None

    def tell(self, what: str) -> None:
        """Tell people and the planner something that nobody has to decide."""
        self._record.log("unmoved", what)
        self._record.note(f"The loop noticed: {what}.")
        self._alerts.send(self._alert(AlertKind.UNMOVED, workflow.now(), None, what))

    def tell_missing(self, what: str) -> None:
        """Tell people that nobody runs the executor; the episode waits, and goes on by itself when somebody does."""
        if workflow.patched(_MISSING_PATCH):
            self._record.log("waits", what)
            self._alerts.send(self._alert(AlertKind.NO_EXECUTOR, workflow.now(), None, what))

    async def alert_failure(self, reason: str) -> None:
        """Tell people that the episode fails."""
        await self._alerts.send_last(self._alert(AlertKind.FAILED, workflow.now(), None, reason))

    async def back_off(self, wait: timedelta) -> None:
        """Wait for a limit to pass, but not while a person wants something."""
        self.enter(EpisodePhase.BACKING_OFF)
        self._reporter.show()
        try:
            await workflow.wait_condition(
                lambda: self._operator.is_leaving or self._operator.pause_wanted is not None,
                timeout=wait,
                timeout_summary=f"limit: continue after {wait.total_seconds():g} s",
            )
        except TimeoutError:
            return
        await self._pass()

    async def _pass(self) -> None:
        """Act on what people wanted meanwhile."""
        self.leave_if_wanted()
        await self.reconcile_reset()
        self._tell_parent()
        await self._store_amendment()
        if self._operator.pause_wanted is None or (self._putting_back and workflow.patched(_FILES_FIRST_PATCH)):
            return
        if pause := self._operator.take_pause():
            await self.ask(pause)

    def _details(self) -> str:
        record, questions = self._record, self._questions.waiting
        status = "paused" if is_paused(questions) else record.status
        return details_markdown(
            record.request, record.state, questions, episode_id=record.episode_id, status=status, work=self.work
        )

    def _alert(self, kind: AlertKind, at: datetime, question: Question | None, reason: str = "") -> Alert:
        record, happened = self._record, (at, reason or (question.title if question else ""))
        return alert_of(
            record.request, record.state, kind, episode_id=record.episode_id, happened=happened, question=question
        )

    def _tell_parent(self) -> None:
        """Let the plan that waits for this episode know what it waits for."""
        self._notice.tell(waits_of(self._record.episode_id, self._questions.waiting))

    # -- the workspace between two steps ------------------------------------------------------------

    async def _settle_drift(self, drift: Drift) -> None:
        """Have a person decide about files that somebody else changed; those of a discarded future are put back."""
        if self._is_reset:
            await self.reconcile_reset()
        else:
            await self.ask(drift_question(drift))

    async def _adopt(self, drift: DriftAnswer | None) -> None:
        """Keep what a person edited during a pause; what a discarded future left is not an edit.

        Of what they were asked about in a question, only what they want is kept.
        """
        record = self._record
        if record.state.request is None or self._putting_back:
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
        adopted = await self.do(
            WorkspaceActivities.adopt_workspace,
            lambda: AdoptRequest(scope=record.scope, expected_tree=record.state.tree, drift=drift),
            ActivityOptions(summary, RESTORE_TIMEOUT, record.request.queues.workspace),
        )
        changed = adopted.tree != record.state.tree
        record.replace(record.state.evolve(tree=adopted.tree))
        record.apply(state_changes.with_retries, adopted.attempt)
        return adopted, changed

    async def _store_amendment(self) -> None:
        record = self._record
        if not self._operator.is_amended or record.state.request is None:
            return
        # Before the activity: it runs at a safe point, which would store the request again.
        self._operator.mark_amended(False)
        try:
            stored = await self.do(
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
            self._operator.mark_amended(True)
            raise
        record.replace(record.state.evolve(request=stored))

    def _on_reset(self, _seed: int) -> None:
        # Runs outside the workflow's event loop: only a mark may be left here.
        self._is_reset = True
        self._record.timeline.begin_own()

    async def reconcile_reset(self) -> None:
        """After a reset in Temporal: put the files back too, and list what was discarded."""
        record = self._record
        if not self._is_reset:
            return
        self._is_reset = False
        # The parent and the ledger heard of waits that belong to the discarded future.
        self._notice.tell_again()
        if record.state.request is None:
            return
        self._recording.show_again()
        newest = max((each.number for each in record.state.checkpoints), default=-1)
        # A safe point would pause first: without the claim, and what is on disk would then be adopted.
        with self._replacing_files():
            options = ActivityOptions(
                "the run was reset: put the files back", RESTORE_TIMEOUT, record.request.queues.workspace
            )
            outcome = await self._insist(
                lambda: self._runner.run(
                    WorkspaceActivities.reconcile_reset,
                    ReconcileRequest(scope=record.scope, expected_tree=record.state.tree, newest_known=newest),
                    options,
                ),
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
