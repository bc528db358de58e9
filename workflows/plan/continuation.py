"""When a run of a plan's workflow is followed by a new one, and what that takes over."""

import asyncio
from datetime import timedelta

from temporalio import workflow

from tightloop.plan.progress import PlanInput
from workflows.plan.context import PlanContext
from workflows.run.kernel import ContinueAsNew
from workflows.run.workflow import is_other_build_wanted

DRAIN_PATIENCE = timedelta(seconds=10)
"""How long nothing is started so that a new run may follow; a longer step is not waited for in vain."""
DRAIN_AGAIN = 4
"""The next try comes after the run's number of attempts divided by this."""
HARD_ATTEMPTS = 8_000
HARD_EVENTS = 30_000
"""From here on a new run follows whatever this one waits for: at about 51 000 events the server would end it."""
CARRIED_CHARACTERS = 100_000
"""A longer plan text is not given to the next run."""


class Continuation:
    """Lets a new run follow a long one, in a moment in which nothing runs."""

    # 10 000 steps took 105 s in one run, and 44 s with a new one every 1 000: a worker that has lost the workflow
    # replays all of its run, 32 000 events in 14 s, and a workflow task has 10 s.

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self._draining: asyncio.Task[None] | None = None
        self._drain_after = context.request.attempts_per_run

    @property
    def is_draining(self) -> bool:
        """Whether nothing is started because a new run is to follow."""
        return self._draining is not None

    def start_when_due(self, *, is_suitable: bool) -> None:
        """Start no more steps where the run is long, and let a new one follow as soon as nothing runs.

        Args:
            is_suitable: whether the moment is a good one; a very long run does not wait for one.

        Raises:
            ContinueAsNew: nothing runs, and a new run is to follow.
        """
        if self._draining is None:
            limit = max(HARD_ATTEMPTS, self._context.request.attempts_per_run)
            is_forced = self._context.attempts >= limit or workflow.info().get_current_history_length() >= HARD_EVENTS
            if not is_forced and not (is_suitable and self._is_due(is_quiet=self._is_quiet)):
                return
            self._context.hold()
            self._draining = asyncio.create_task(self._stop_draining(forever=is_forced))
        if self._is_quiet:
            raise ContinueAsNew

    @property
    def _is_quiet(self) -> bool:
        context = self._context
        return not (context.has_attempts or context.beside or context.alerts.is_sending)

    def _is_due(self, *, is_quiet: bool) -> bool:
        # Temporal suggests a new run from 4 096 events or 4 MiB on.
        # After a try in vain only further attempts count: the suggestion would hold for good.
        limit = self._context.request.attempts_per_run
        is_suggested = workflow.info().is_continue_as_new_suggested() and self._drain_after == limit
        attempts = self._context.attempts
        if is_suggested or attempts >= self._drain_after:
            return True
        # After an attempt at least: a run that is held on its build by an operator would do nothing else.
        return attempts > 0 and is_other_build_wanted() and (is_quiet or self._drain_after == limit)

    async def _stop_draining(self, *, forever: bool) -> None:
        """Start steps again where one that runs takes too long to wait for."""
        if forever:
            return
        await workflow.sleep(DRAIN_PATIENCE, summary="a new run follows when nothing runs")
        self._draining = None
        context = self._context
        self._drain_after = context.attempts + max(context.request.attempts_per_run // DRAIN_AGAIN, 1)
        context.release()

    def next_input(self) -> PlanInput:
        """Return the input of the run that follows."""
        context = self._context
        context.save()
        # A long text is stored, and has to leave room for the progress: Temporal refuses inputs over 2 MiB.
        source = context.request.source if len(context.request.source) <= CARRIED_CHARACTERS else ""
        return PlanInput.of(
            context.request, source=source, progress=context.progress, core=context.core, heard=context.inbox.heard
        )
