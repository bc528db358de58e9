"""Safe points: where an episode runs one activity, and where people step in between two of them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload

from temporalio import workflow
from temporalio.exceptions import FailureError

from tightloop.episode import decisions, state_changes
from tightloop.episode.budget import Work
from tightloop.episode.checkpoint import RestoreTarget
from tightloop.episode.decisions import end_question, make_question, read_drift_answer
from tightloop.episode.display import details_markdown
from tightloop.episode.model import EpisodeOutcome, EpisodePhase
from tightloop.ledger.alert import Alert, AlertKind, alert_kind, alert_of
from tightloop.plan.child import waits_of
from tightloop.question import Answer, Question, QuestionKind, is_paused
from workflows.episode.operator import Operator
from workflows.episode.record import EpisodeRecord, EpisodeRecording
from workflows.episode.tree_changes import TreeChanges
from workflows.shared.activities import (
    ActivityFailedError,
    ActivityOptions,
    ActivityRunner,
)
from workflows.shared.questions import Questions
from workflows.shared.reporting import Alerts, ParentNotice, Reporter

A = TypeVar("A")
R = TypeVar("R")

PAUSE_AGAIN = timedelta(seconds=1)


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


class SafePoints:
    """Runs activities one by one, acts on what people want in between, and waits for them where needed.

    Attributes:
        work: what the activity that runs now does.
        tree: what happens to the files between two steps.
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
        self._restoring: RestoreTarget | None = None
        self._pause_child: Callable[[], Awaitable[None]] | None = None
        self._asking_child: asyncio.Task[None] | None = None
        self.tree = TreeChanges(record, operator, recording, self._notice, self)

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
        return await self.do_next(method, request, options)

    async def do_next(
        self, method: Callable[[Any, Any], Any], request: Callable[[], Any], options: ActivityOptions
    ) -> Any:
        """Run an activity that concludes what ran before: nobody steps in between, so the tree is known at a pause."""
        return await self._insist(lambda: self._runner.run(method, request(), options), options)

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
        with self.tree.replacing_files():
            yield
        self._restoring = None

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
                    await self.tree.settle_drift(failure.drift)
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
            self._asking_child = asyncio.create_task(self._ask_child_to_pause())
        if self.work is None or not self.work.ends_early or self._ending is not None:
            return
        if self._operator.pause_wanted is not None:
            asked = self._questions.ask(end_question(self.work, workflow.now()))
            self._ending = asked.id
            self._reporter.call_for(asked.kind.value, paused=False)
            self._recording.show()

    async def _ask_child_to_pause(self) -> None:
        while self._pause_child is not None and self.is_pause_wanted:
            try:
                await self._pause_child()
            except FailureError:
                # It has just ended, or has not begun yet: a signal to what is not there fails.
                await workflow.sleep(PAUSE_AGAIN, summary="the pause has not reached the child workflow yet")
            else:
                return

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
        if self._operator.continues:
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
        await self.tree.reconcile_reset()
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
            await self.tree.adopt(read_drift_answer(asked, answer) if about_drift and answer else None)
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
        await self.tree.reconcile_reset()
        self._tell_parent()
        await self.tree.store_amendment()
        if self._operator.pause_wanted is None or self.tree.is_putting_back:
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
