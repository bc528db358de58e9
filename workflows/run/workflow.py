"""A run's life cycle, and the messages and queries that all runs accept."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError, is_cancelled_exception
from temporalio.workflow import ContinueAsNewVersioningBehavior

from tightloop.run.commands import Remark, read_remark
from tightloop.run.core import TimelineLine, TimelinePage
from tightloop.run.question import AnswerCommand
from tightloop.value import abridge
from workflows.run.kernel import ContinueAsNew, NotOpenedError, Run, refusals
from workflows.run.reporting import Reporting

C = TypeVar("C")
REASON_CHARACTERS = 1_000
"""Length limit of the reason why a run could not start."""


class Commands(ABC):
    """Commands from people, implemented by each kind of run.

    Commands are parsed before these methods are called. The methods change the state and return. Only
    `resume`, `answer` and `top_up` may wait. After waiting, they must look up the open questions again,
    because another answer may have arrived.
    """

    @abstractmethod
    def refuse_late(self) -> None:
        """Refuse messages that arrive too late.

        Raises:
            InvalidRequestError: the run is ending.
        """

    @abstractmethod
    def pause(self, remark: Remark) -> None:
        """Stop starting new work. Repeated requests have no effect."""

    @abstractmethod
    async def resume(self, note: Any) -> None:
        """Choose the default option for each open question."""

    @abstractmethod
    def cancel(self, remark: Remark) -> None:
        """Stop running work and end the run."""

    @abstractmethod
    async def answer(self, command: AnswerCommand) -> str:
        """Apply an answer and return a sentence for the caller."""

    @abstractmethod
    def read_top_up(self, value: Any) -> Any:
        """Parse a budget increase.

        Raises:
            InvalidRequestError: the argument is not a valid budget increase.
        """

    @abstractmethod
    async def top_up(self, addition: Any) -> str:
        """Raise the budget and return a sentence for the caller."""


class RunWorkflow(ABC):
    """Base class of the workflows. A subclass sets the three attributes in `@workflow.init`.

    Handlers may run before `run` does, so all state has to exist after `__init__`. If a subclass
    overrides an update, it has to define the update's validator again. Otherwise, the update has no
    validator.
    """

    _run: Run
    _commands: Commands
    _reporting: Reporting

    # -- provided by each kind of run -----------------------------------------------------------------

    @abstractmethod
    def _check_request(self) -> None:
        """Check the request.

        Raises:
            InvalidRequestError: the request is invalid.
        """

    @abstractmethod
    async def _carry_out(self) -> Any:
        """Do the work and return the result.

        Raises:
            ApplicationError: the run failed.
            ContinueAsNew: a new Temporal run should follow.
            NotOpenedError: no work was started.
        """

    @abstractmethod
    async def _end_cancelled_run(self) -> Any:
        """Close a run that was cancelled in Temporal."""

    @abstractmethod
    async def _leave(self) -> None:
        """Finish work that must not be interrupted before the next Temporal run starts."""

    @abstractmethod
    def _next_input(self) -> Any:
        """Return the input for the next Temporal run."""

    # -- life cycle -----------------------------------------------------------------------------------

    async def _live(self) -> Any:
        """Check the input, do the work and close the run.

        This method covers the whole life cycle of a run.

        Raises:
            ApplicationError: the start was refused, or the run failed.
        """
        try:
            with refusals():
                self._run.check_start()
                self._check_request()
        except ApplicationError as refusal:
            self._refuse(refusal.message)
            raise
        try:
            return await self._or_continue_as_new(self._carry_out())
        except NotOpenedError as refusal:
            self._refuse(refusal.reason)
            await self._reporting.record_refused()
            raise ApplicationError(refusal.reason, type=refusal.kind, non_retryable=True) from refusal.__cause__
        except BaseException as error:
            # A cancellation arrives bare, or as the cause of an activity's or a child's error.
            if is_cancelled_exception(error):
                self._run.cancel("cancelled in Temporal")
                # Shielded, so that the cancellation does not also cancel the cleanup.
                await asyncio.shield(self._or_continue_as_new(self._end_cancelled_run()))
            # Temporal shows the run as cancelled only if the cancellation leaves the workflow.
            raise

    async def _or_continue_as_new(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except ContinueAsNew:
            await self._leave()
            # Otherwise the caller of an update gets an error when the run ends.
            await workflow.wait_condition(workflow.all_handlers_finished)
            continue_as_new(self._next_input())

    def _refuse(self, reason: str) -> None:
        """Publish that the run could not start."""
        self._run.close("failed", abridge(reason, REASON_CHARACTERS))
        self._run.log("closed", f"FAILED: {self._run.reason}")
        self._run.enter_closed_phase()
        self._reporting.refuse()

    # -- messages -------------------------------------------------------------------------------------
    # Signals accept any number of arguments, because a surplus one would fail every workflow task.

    @workflow.signal(description="Pause: do not start any new work. Optional argument: the reason.")
    def pause(self, reason: Any = None, *_more: Any) -> None:
        """Request a pause. Repeated requests have no effect."""
        for content in self._run.inbox.take_signal(reason):
            self._commands.pause(read_remark(content))

    @workflow.signal(description="Resume: choose the default for each open question. Optional argument: a note.")
    async def resume(self, note: Any = None, *_more: Any) -> None:
        """End all pauses that do not need a person's decision."""
        for content in self._run.inbox.take_signal(note):
            await self._commands.resume(content)

    @workflow.signal(
        description="End the run permanently: stop running work, leave files as they are. Optional argument: the "
        "reason."
    )
    def cancel(self, reason: Any = None, *_more: Any) -> None:
        """Stop running work and end the run."""
        for content in self._run.inbox.take_signal(reason):
            self._commands.cancel(read_remark(content))

    @workflow.update(description='Answer a question. Argument: "allow", or the JSON from the details of an option.')
    async def answer(self, value: Any = None) -> str:
        """Answer a question by choosing one of its options."""
        command = self._take(self._run.read_answer, value)
        with refusals():
            return await self._commands.answer(command)

    @answer.validator
    def _check_answer(self, value: Any = None) -> None:
        self._check(lambda content: self._run.match(self._run.read_answer(content)), value)

    @workflow.update(description='Raise the budget, and continue if the new budget is sufficient: {"cost_usd": 1}')
    async def top_up(self, addition: Any = None) -> str:
        """Raise one or more of the run's budget limits."""
        added = self._take(self._commands.read_top_up, addition)
        with refusals():
            return await self._commands.top_up(added)

    @top_up.validator
    def _check_top_up(self, addition: Any = None) -> None:
        self._check(self._commands.read_top_up, addition)

    @workflow.query(description="What happened, newest last")
    def timeline(self) -> list[TimelineLine]:
        """Return the last timeline entries."""
        return list(self._run.core.timeline)

    @workflow.query(
        description="Events of this Temporal run, in pages. Argument: number of events to skip. -1 skips the events "
        "before a reset"
    )
    def events(self, after: int = 0) -> TimelinePage:
        """Return a page of this Temporal run's events."""
        return self._run.timeline.page(after)

    # Temporal decodes arguments again after a validator, and replay runs no validator: handlers parse for themselves.

    def _check(self, read: Callable[[Any], object], message: Any) -> None:
        """Validate an update without changing state. A refused update does not add an event to the history.

        Raises:
            ApplicationError: the message is not authentic, too late, or invalid.
        """
        content = self._run.inbox.read(message)
        with refusals():
            self._commands.refuse_late()
            read(content)

    def _take(self, read: Callable[[Any], C], message: Any) -> C:
        """Parse an update's message. Record the message so that it is not accepted again.

        Raises:
            ApplicationError: see `_check`. The state may have changed since validation.
        """
        content = self._run.inbox.take(message)
        with refusals():
            self._commands.refuse_late()
            return read(content)


def is_other_build_wanted() -> bool:
    """Return whether new workflows start on a different build than this run.

    Always False for unversioned workers.
    """
    return workflow.info().is_target_worker_deployment_version_changed()


def continue_as_new(request: Any) -> NoReturn:
    """Continue as new on the build that new workflows start on."""
    # By default a pinned workflow would stay on its old build forever.
    behavior = ContinueAsNewVersioningBehavior.AUTO_UPGRADE if is_other_build_wanted() else None
    workflow.continue_as_new(request, initial_versioning_behavior=behavior)
