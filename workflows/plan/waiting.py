"""A plan's waits: for activities, and for people within the time that the request allows."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow

from activities.workspace.activity import WorkspaceActivities
from activities.workspace.port import AdoptRequest
from tightloop.plan.progress import PlanProgress
from tightloop.value import format_count
from workflows.plan.context import PlanContext, PlanEnd
from workflows.plan.dispatch import Dispatch
from workflows.plan.reporting import PlanReporting
from workflows.run.activities import RESTORE_TIMEOUT, ActivityFailedError, ActivityOptions, ActivityRunner

NAMES_SHOWN = 5

A = TypeVar("A")
R = TypeVar("R")


class Waiting:
    """Waits for events, and handles people's requests while it waits."""

    def __init__(
        self,
        context: PlanContext,
        dispatch: Dispatch,
        reporting: PlanReporting,
        activities: ActivityRunner,
    ) -> None:
        self._context, self._dispatch, self._reporting, self._activities = context, dispatch, reporting, activities

    def check(self) -> None:
        """Handle a cancellation, a requested end and a reset.

        Raises:
            PlanEnd: the plan has to end.
            asyncio.CancelledError: the plan was cancelled in Temporal.
        """
        context = self._context
        # An activity that ends normally swallows a cancellation that arrived while it ran.
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError
        if context.core.cancel is not None:
            raise PlanEnd(context.core.cancel)
        if context.end is not None:
            raise context.end
        if context.is_reset:
            # The files on disk may be those of the discarded run. The next `keep_edits` puts them back.
            context.is_reset = False
            context.expect_own_leftovers()
            context.log("reset", "the run was reset in Temporal, and the files are being restored")
            self._reporting.show_again()

    async def next_event(self) -> None:
        """Wait for the next event. If only people can cause one, wait at most as long as the request allows.

        Raises:
            PlanEnd: there was no answer in time.
        """
        context, limit = self._context, self._patience()
        try:
            await workflow.wait_condition(
                lambda: context.is_woken, timeout=limit, timeout_summary="waiting for a person" if limit else None
            )
        except TimeoutError:
            raise context.give_up(context.waiting[:NAMES_SHOWN]) from None
        # After the wait and not before it: events that arrived while the loop was busy must wake it at once.
        context.sleep()

    async def run(self, method: Callable[[Any, A], R], request: Callable[[], A], options: ActivityOptions) -> R:
        """Run one activity. If it cannot run, ask a person and run it again."""
        while True:
            try:
                return await self.run_once(method, request(), options)
            except ActivityFailedError as failure:
                await self.ask_about(failure)
                await self.keep_edits()

    async def ask_about(self, failure: ActivityFailedError) -> None:
        """Wait for a person because an activity could not be run.

        Raises:
            PlanEnd: there was no answer in time, or the answer ended the plan.
        """
        self._dispatch.pause_for(failure)
        await self._until_resumed()

    async def wait_for_answer(self) -> None:
        """Wait until no open question pauses the plan, and adopt edits that people made.

        Raises:
            PlanEnd: there was no answer in time, or the answer ended the plan.
        """
        await self._until_resumed()
        await self.keep_edits()

    async def _until_resumed(self) -> None:
        while self._context.is_paused:
            self.check()
            await self.next_event()
        self.check()

    async def run_once(self, method: Callable[[Any, A], R], request: A, options: ActivityOptions) -> R:
        """Run one activity, and stop it if the plan is cancelled.

        Raises:
            ActivityFailedError: the activity could not be run.
        """
        task = asyncio.create_task(self._activities.run(method, request, options))
        try:
            await workflow.wait_condition(lambda: task.done() or self._context.core.cancel is not None)
        finally:
            # `cancel()` only requests the end; the next activity must not start while this one still runs.
            if not task.done():
                task.cancel()
                await workflow.wait_condition(task.done)
        self.check()
        return await task

    async def keep_edits(self) -> None:
        """Adopt edits by people or undo leftovers of this plan, unless a running step writes to the tree."""
        context, progress = self._context, self._context.progress
        is_due = progress.put_back or (progress.adopt and not context.is_paused)
        if not is_due or context.request.dry_run or context.is_held or not progress.tree:
            return
        is_written = any(attempt.writes for attempt in context.running.values())
        if is_written and (progress.put_back or progress.drift is not None):
            return  # the step writes to the same files
        if not progress.put_back:
            # Before the activity, so that an answer given while it runs can set the flag again.
            context.keep_edits(False)
        if is_written:
            return  # the tree of the step will contain them
        context.is_adopting = True
        try:
            adopted = await self.run(
                WorkspaceActivities.adopt_workspace,
                lambda: AdoptRequest(
                    scope=context.scope, expected_tree=context.progress.tree, drift=context.progress.drift
                ),
                context.on_host(_summary(progress), RESTORE_TIMEOUT),
            )
        finally:
            context.is_adopting = False
        # Read again, because handlers have changed the progress while the activity ran.
        progress = context.progress
        if progress.put_back:
            context.expect_own_leftovers(False)
            return
        when = "during the pause" if progress.drift is None else "outside a pause"
        context.progress = progress.evolve(drift=None)
        context.log_drift(adopted.drift)
        if adopted.tree != progress.tree:
            context.set_tree(adopted.tree)
            sentence = f"edits to {format_count(adopted.files_changed, 'file')} made {when} were kept"
            context.log("adopted", sentence)
            context.progress = context.progress.note_edits(sentence)

    def _patience(self) -> timedelta | None:
        """Return the time left for an answer if only a person can make the plan continue. None means no limit."""
        if self._dispatch.is_busy or self._context.alerts.is_sending:
            return None
        now = self._context.now()
        since = min((question.since for question in self._context.waiting if question.since is not None), default=now)
        left = since + self._context.request.pause_timeout - now
        return max(left, timedelta(milliseconds=1))


def _summary(progress: PlanProgress) -> str:
    if progress.put_back:
        return "restore files that were changed by stopped work"
    return "keep edits made during the pause" if progress.drift is None else "keep or undo changes made by someone else"
