"""Copies of the checkpoints in the remote store, written beside the work."""

import asyncio
import contextlib
from datetime import timedelta

from temporalio import workflow

from activities.remote.activity import Copied, CopyRequest, RemoteActivities
from workflows.episode.record import EpisodeRecord
from workflows.episode.safe_points import SafePoints
from workflows.shared.activities import ActivityFailedError, ActivityOptions, ActivityRunner

COPY_TIMEOUT = timedelta(minutes=5)
"""Of one copy; also how long the end of an episode waits for the last one."""


class EpisodeCopies:
    """Copies one checkpoint at a time, the newest last: what failed is made up for by the next one."""

    def __init__(self, record: EpisodeRecord, points: SafePoints) -> None:
        """Begin with nothing under way; the run before has copied what it left."""
        self._record, self._points = record, points
        # Its own: what people interrupt is the work, not the copies of what is done.
        self._runner = ActivityRunner(lambda: record.request.queues)
        self._copied = self._newest if record.state.epoch else ""
        self._copying: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Claim the id of a new episode in the store, and copy the files as they were found."""
        record = self._record
        copied = await self._copy_for_certain()
        record.replace(record.state.evolve(epoch=copied.epoch))

    def keep_up(self) -> None:
        """Copy the newest checkpoint in the background, if that is not under way."""
        is_copying = self._copying is not None and not self._copying.done()
        if self._record.state.epoch and self._is_behind and not is_copying:
            self._copying = asyncio.create_task(self._copy())

    async def settle(self) -> None:
        """Wait for what is being copied, for `COPY_TIMEOUT` at most."""
        copying = self._copying
        if copying is not None and not copying.done():
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    copying.done, timeout=COPY_TIMEOUT, timeout_summary="go on without the copy"
                )

    async def complete(self) -> None:
        """Copy the newest checkpoint for certain; a person is asked where that fails."""
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
        while self._is_behind:
            request = self._request()
            try:
                await self._runner.run(RemoteActivities.copy_checkpoint, request, self._options(request))
            except ActivityFailedError as failure:
                self._record.log("copy", f"{request.record.id} was not copied: {failure.reason}")
                return
            self._copied = request.record.id

    async def _copy_for_certain(self) -> Copied:
        request = self._request()
        copied: Copied = await self._points.do_next(
            RemoteActivities.copy_checkpoint, lambda: request, self._options(request)
        )
        self._copied = request.record.id
        return copied

    def _request(self) -> CopyRequest:
        last = self._record.state.last_checkpoint
        assert last is not None, "an episode has a checkpoint from its opening on"
        return CopyRequest(scope=self._record.scope, record=last)

    def _options(self, request: CopyRequest) -> ActivityOptions:
        queue = self._record.request.queues.workspace
        return ActivityOptions(f"copy {request.record.id} to the remote store", COPY_TIMEOUT, queue)
