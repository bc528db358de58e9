"""Read-only part of the client: status, events, results, and information about the installation."""

import asyncio
import builtins
import contextlib
import os
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal

from temporalio.client import Client

from tightloop.client import events, staffing
from tightloop.client import status as statuses
from tightloop.client.calls import QUERY_TIMEOUT, Calls
from tightloop.client.events import Event
from tightloop.client.execution import Kind, Run, Summary
from tightloop.client.setup import Topology, topology_of, wrong_search_attributes
from tightloop.client.staffing import UnservedHost, find_unserved_hosts
from tightloop.client.status import PATIENCE, POLL_INTERVAL, Feeds, OnSilence, describe_run, models_of
from tightloop.client.workers import Poller
from tightloop.errors import InvalidRequestError, ServiceUnavailableError
from tightloop.host import load_settings
from tightloop.run.core import RunResult, RunStatus
from tightloop.value import shorten
from tightloop.value.arguments import AtLeast, Hint, checks_arguments

if TYPE_CHECKING:
    from tightloop.client import (
        CheckpointRecord,
        EpisodeRequest,
        LoopRequest,
        PlanRequest,
        Settings,
        StepLine,
    )

Connection = Annotated[Client, Hint("To create a connected client: await TightloopClient.connect()")]
Duration = Annotated[timedelta, AtLeast(timedelta())]
Count = Annotated[int, AtLeast(1)]
KindName = Kind | Literal["episode", "plan", "loop"]


@checks_arguments
class Viewer:
    """Reads and follows episodes and plans. Every call has a time limit.

    Args:
        client: Temporal client that uses the same data converter as the workers.
        settings: defaults for new episodes and plans. None reads the settings files and environment
            variables.
        query_timeout: time after which a worker that does not respond is considered absent.
    """

    def __init__(
        self, client: Connection, settings: "Settings | None" = None, *, query_timeout: Duration = QUERY_TIMEOUT
    ) -> None:
        self._calls = Calls(client, query_timeout)
        self._feeds = Feeds(self._calls)
        self._settings = settings or load_settings()

    # -- look -----------------------------------------------------------------------------------

    async def status(self, workflow_id: str) -> RunStatus:
        """Return a snapshot of the status. A closed workflow does not need a worker."""
        return await statuses.status_of(self._calls, workflow_id)

    async def stored_status(self, workflow_id: str) -> RunStatus:
        """Return the status that Temporal stores, and how old it is.

        No worker is needed, but the result is less detailed than that of `status`.
        """
        return await statuses.stored_status(self._calls, workflow_id)

    async def summary(self, workflow_id: str) -> Summary:
        """Return the list entry for a run as stored by Temporal. No worker is queried."""
        return (await describe_run(self._calls, workflow_id)).summary

    async def watch(
        self,
        workflow_id: str,
        *,
        poll: Duration = POLL_INTERVAL,
        patience: Duration = PATIENCE,
        on_silence: OnSilence | None = None,
    ) -> AsyncGenerator[RunStatus]:
        """Yield the current status, then the status after every change until the workflow closes.

        The iterator continues across new runs, resets, and worker or server restarts. All followers of a workflow share
        one long poll per client.

        Args:
            workflow_id: id of the episode or plan.
            poll: minimum interval between two reads.
            patience: maximum time without a response.
            on_silence: function to call whenever a read gets no response.

        Raises:
            ServiceUnavailableError: there was no response for longer than `patience` (retryable).
        """
        async with self._feeds.following(workflow_id, poll) as feed:
            changes = statuses.changes(self._calls, feed, workflow_id, patience=patience, on_silence=on_silence)
            # Closed explicitly, so that the long poll ends as soon as the caller stops iterating.
            async with contextlib.aclosing(changes):
                async for change in changes:
                    yield change

    async def events(
        self,
        workflow_id: str,
        *,
        after: str = "",
        poll: Duration = POLL_INTERVAL,
        patience: Duration = PATIENCE,
        on_silence: OnSilence | None = None,
    ) -> AsyncGenerator[Event]:
        """Yield the past events of all runs, then new events until the workflow closes.

        Each event is yielded once. Like `watch`, the iterator continues across restarts. To resume later,
        even in another process, store the last event's `cursor`.

        Args:
            workflow_id: id of the episode or plan.
            after: cursor of the last known event. If empty, all events are returned.
            poll: minimum interval between two reads.
            patience: maximum time without a response.
            on_silence: function to call whenever a read gets no response.

        Raises:
            InvalidRequestError: the cursor is invalid, or the events after it are no longer stored.
            ServiceUnavailableError: there was no response for longer than `patience` (retryable).
        """
        async with self._feeds.following(workflow_id, poll) as feed:
            stream = events.follow(self._calls, feed, workflow_id, after, patience=patience, on_silence=on_silence)
            async with contextlib.aclosing(stream):
                async for event in stream:
                    yield event

    async def earlier_result(self, workflow_id: str, run_id: str) -> RunResult:
        """Return the result of a closed run from `runs`.

        Raises:
            InvalidRequestError: the run does not exist, is still open, or was continued as another run.
        """
        return await statuses.earlier_result(self._calls, workflow_id, run_id)

    async def result(
        self, workflow_id: str, *, timeout: Duration | None = None, patience: Duration = PATIENCE
    ) -> RunResult:
        """Wait until the workflow ends and return its result.

        Workflows that were cancelled or terminated in Temporal also have a result.

        Args:
            workflow_id: id of the episode or plan.
            timeout: maximum waiting time. None means no limit. A pause can delay the end for days.
            patience: maximum time without a response from Temporal.

        Raises:
            TimeoutError: the workflow has not ended yet. It continues to run.
            ServiceUnavailableError: Temporal did not respond for longer than `patience` (retryable).
        """
        try:
            async with asyncio.timeout(timeout.total_seconds() if timeout is not None else None):
                return await statuses.end(self._calls, workflow_id, patience=patience)
        except TimeoutError:
            raise TimeoutError(f"{workflow_id} did not end within {timeout} and is still open") from None

    async def list(
        self, status: str | None = None, limit: Count = 50, *, kind: KindName | None = None
    ) -> tuple[Summary, ...]:
        """Return episodes and plans, newest run first.

        Args:
            status: only list workflows with this status, one of `OPEN_STATUSES` or `CLOSED_STATUSES`.
            limit: maximum number of rows. Open workflows are preferred.
            kind: only consider workflows of this kind.

        Raises:
            InvalidRequestError: the status does not exist.
        """
        return await statuses.newest(self._calls, status, limit, Kind(kind) if kind else None)

    async def resolve(self, reference: str, *, kind: KindName | None = None) -> str:
        """Resolve a reference to an id.

        A reference is an id, an unambiguous prefix of an id, or `last`. `last` refers to the most recently
        started run without a parent plan. A prefix of a plan's id never matches the plan's children.

        Args:
            reference: reference as typed by the user.
            kind: only consider workflows of this kind.

        Raises:
            EpisodeNotFoundError: nothing matches.
            InvalidRequestError: several runs match, or the id belongs to another kind.
        """
        return await statuses.resolve(self._calls, reference, Kind(kind) if kind else None)

    async def timeline(self, workflow_id: str, *, after: str = "", limit: Count | None = None) -> tuple[Event, ...]:
        """Return all past events, oldest first. Events of earlier runs are included.

        Args:
            workflow_id: id of the episode or plan.
            after: only return events after this cursor.
            limit: maximum number of events. With a cursor, these are the first events after it. Otherwise,
                these are the last events.

        Raises:
            InvalidRequestError: the cursor is invalid, or the events after it are no longer stored.
        """
        if limit is not None and not after:
            return tuple(await events.last(self._calls, workflow_id, limit))
        collected: builtins.list[Event] = []
        async with contextlib.aclosing(events.read_timeline(self._calls, workflow_id, after)) as recorded:
            async for event in recorded:
                if limit is not None and len(collected) >= limit:
                    break
                collected.append(event)
        return tuple(collected)

    async def request(self, workflow_id: str) -> "EpisodeRequest | PlanRequest | LoopRequest":
        """Return the request that started a run. An episode's request includes all amendments."""
        execution = await describe_run(self._calls, workflow_id)
        return await self._calls.query(
            workflow_id, "request", models_of(execution.kind).request, run_id=execution.query_run_id
        )

    async def checkpoints(self, episode_id: str) -> "tuple[CheckpointRecord, ...]":
        """Return the checkpoints of an episode's newest run, oldest first."""
        from tightloop.episode.checkpoint import CheckpointRecord

        execution = await describe_run(self._calls, episode_id, Kind.EPISODE)
        records = builtins.list[CheckpointRecord]
        return tuple(await self._calls.query(episode_id, "checkpoints", records, run_id=execution.query_run_id))

    async def steps(self, plan_id: str) -> "tuple[StepLine, ...]":
        """Return all steps in plan order. Steps expanded from a template come last."""
        from tightloop.plan.request import StepPage

        run = (await describe_run(self._calls, plan_id, Kind.PLAN)).query_run_id
        page = await self._calls.query(plan_id, "steps", StepPage, 1, run_id=run)
        lines = builtins.list(page.lines)
        for number in range(2, page.pages + 1):
            lines += (await self._calls.query(plan_id, "steps", StepPage, number, run_id=run)).lines
        return tuple(lines)

    async def runs(self, workflow_id: str) -> tuple[Run, ...]:
        """Return the runs that Temporal still stores, oldest first."""
        newest = await describe_run(self._calls, workflow_id)
        return tuple(map(Run.of, await events.runs_until(self._calls, newest)))

    async def history(self, workflow_id: str, *, run_id: str = "") -> str:
        """Return a run's history as JSON in the format of Temporal's tools, for use with `tightloop replay`.

        Args:
            workflow_id: id of the episode or plan.
            run_id: run id from `runs`. If empty, the newest run is used.
        """
        run_id = run_id or (await describe_run(self._calls, workflow_id)).run_id
        return await self._calls.history.as_json(workflow_id, run_id)

    # -- the installation -----------------------------------------------------------------------

    async def missing_search_attributes(self) -> tuple[str, ...]:
        """Return which of tightloop's search attributes are missing or have the wrong type."""
        return tuple(await wrong_search_attributes(self._calls))

    async def pollers(self, task_queue: str) -> tuple[Poller, ...]:
        """Return the workers of a task queue, including those without a free slot."""
        return await staffing.workers_on(self._calls, task_queue)

    async def topology(self) -> Topology:
        """Return the workers of the installation, with sentences about missing workers."""
        return await topology_of(self._calls, self._settings)

    async def unserved_hosts(self) -> tuple[UnservedHost, ...]:
        """Return the hosts that have open work but no worker.

        At most 100 open episodes and plans are examined.
        """
        return await find_unserved_hosts(self._calls, self._settings)

    async def check_workspace(self, workspace: str) -> None:
        """Check that a worker can open a workspace.

        The path is checked only if all workers are on this host.

        Raises:
            InvalidRequestError: the path is not absolute, or it does not exist on this host and no other host
                has a worker.
            ServiceUnavailableError: no worker serves workspaces (retryable).
        """
        if not workspace.startswith("/") or "\0" in workspace:
            raise InvalidRequestError(
                f"{shorten(workspace, 200)!r} is not an absolute path. Use the root of a git working tree, for "
                "example /home/me/project"
            )
        topology = await self.topology()
        if not topology.homes:
            raise ServiceUnavailableError(
                "no workspace worker is running. Start a worker on the host where the project is: tightloop up, "
                "or tightloop worker run"
            )
        if any(home not in topology.here for home in topology.homes):
            # The worker that takes it reports problems.
            return
        if not await asyncio.to_thread(os.path.isdir, workspace):
            raise InvalidRequestError(
                f"the folder {shorten(workspace, 200)!r} does not exist on this host, and no other host has a "
                "worker. Check the path, or start a worker on the host that has the folder: tightloop worker run"
            )
        # Not `isdir`: in a linked worktree `.git` is a file.
        if not await asyncio.to_thread(os.path.exists, f"{workspace}/.git"):
            raise InvalidRequestError(
                f"{shorten(workspace, 200)!r} is not the root of a git working tree. Use the root of a working tree, "
                "or create one here: git init"
            )
