"""Agents' reports on their episodes, the stdio and socket transports, and a connection's caller."""

import asyncio
import os
import socket
import stat
import struct
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server

from gateway.access.scope import EPISODES, Scope, WorkflowRef, perform
from tightloop.episode.model import EpisodeStatus
from tightloop.errors import (
    EpisodeNotFoundError,
    InvalidRequestError,
    MessageError,
    ServiceUnavailableError,
    SettingsError,
)
from tightloop.executor.asking import DONE, FAILED, IMPOSSIBLE, LIMIT, REFUSED
from tightloop.executor.message import PlanRequestMessage, parse_plan_request
from tightloop.executor.model import SUMMARY_CHARACTERS, ExecutorStatus
from tightloop.ledger.model import WorkflowFilter
from tightloop.operations import Operation
from tightloop.run.commands import TEXT_CHARACTERS
from tightloop.run.question import Question, QuestionKind
from tightloop.safety.seal import Role
from tightloop.value import Value, shorten

OUTCOMES = {
    ExecutorStatus.COMPLETED: DONE,
    ExecutorStatus.NO_CHANGE: DONE,
    ExecutorStatus.FAILED: FAILED,
    ExecutorStatus.REFUSED: REFUSED,
    ExecutorStatus.LIMIT_HIT: LIMIT,
    IMPOSSIBLE: IMPOSSIBLE,
}
"""The question option that each OUTCOME in a report selects."""


class Report(Value):
    """A report on a delivery. It answers the open question about the work."""

    question: str
    option: str
    text: str

    @property
    def is_long(self) -> bool:
        """True if only the beginning of the text is stored with the delivery."""
        return len(self.text) > SUMMARY_CHARACTERS


def awaited_work(status: EpisodeStatus) -> Question | None:
    """Return the open question that a report on the work answers, or None."""
    return next((question for question in status.questions if question.kind is QuestionKind.WORK), None)


def is_report(message: str, *, before: int | None = None) -> bool:
    """Return whether a message is a report.

    If `before` is set, the report must be on an earlier iteration than `before`.
    """
    try:
        iteration = parse_plan_request(message).iteration
    except MessageError:
        return False
    return before is None or 0 < iteration < before


def read_report(message: str, status: EpisodeStatus, question: Question) -> Report:
    """Parse a message as the report on the current iteration.

    Raises:
        MessageError: a section is missing or invalid. The error message shows a valid example.
        InvalidRequestError: the report names another iteration, no iteration or an unknown outcome.
    """
    plan_request = parse_plan_request(message)
    # A late report on an earlier plan must not count as the result of the present one.
    if plan_request.iteration != status.iteration:
        which = (
            f"is about iteration {plan_request.iteration}"
            if plan_request.iteration
            else "does not contain an [🔁 ITERATION] section"
        )
        raise InvalidRequestError(
            f"the report {which}, but episode {status.episode_id} is in iteration {status.iteration}. Call "
            "the status tool to see the current plan, and report on that plan"
        )
    return Report(question=question.id, option=_option(plan_request), text=_text(plan_request))


def _option(plan_request: PlanRequestMessage) -> str:
    outcome = plan_request.outcome.strip().lower().replace(" ", "_")
    # An agent that rejects its own work does not claim success, even if OUTCOME does.
    if plan_request.alignment.answer == "no" and outcome != IMPOSSIBLE:
        return REFUSED
    if option := OUTCOMES.get(outcome):
        return option
    raise InvalidRequestError(f"[📨 OUTCOME] must be one of {', '.join(OUTCOMES)}, got {plan_request.outcome[:60]!r}")


def _text(plan_request: PlanRequestMessage) -> str:
    parts = [
        plan_request.report,
        f"Diagnosis: {plan_request.reflection.diagnosis}",
        *(f"To do: {item}" for item in plan_request.reflection.action_items),
        *(f"Question: {question}" for question in plan_request.questions),
        *([f"Not aligned: {plan_request.alignment.rationale}"] if plan_request.alignment.answer == "no" else []),
    ]
    return shorten("\n".join(filter(None, parts)), TEXT_CHARACTERS)


LINE_BYTES = 256 * 1024
CONNECTIONS = 32
_PEER = struct.Struct("3i")


async def serve_stdio(server: Server[Any]) -> None:
    """Serve over standard input and output until the input ends."""
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_socket(server: Server[Any], path: Path) -> None:
    """Serve on a Unix socket that only this user can open, until cancelled.

    Raises:
        SettingsError: the folder belongs to another user, or other users may write to it.
        ServiceUnavailableError: the path is already in use or cannot be bound.
    """
    free = asyncio.Semaphore(CONNECTIONS)

    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # Some systems ignore the permissions of a socket file (unix(7)).
            if _is_own_user(writer.get_extra_info("socket")):
                async with free:
                    await _serve_lines(server, reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    listener = _listening(path)
    try:
        async with await asyncio.start_unix_server(serve_connection, sock=listener, limit=LINE_BYTES) as serving:
            await serving.serve_forever()
    finally:
        path.unlink(missing_ok=True)


async def _serve_lines(server: Server[Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    lines = cast("anyio.AsyncFile[str]", Lines(reader, writer))
    # A client that disconnects or sends an overlong line ends only its own connection.
    with suppress(ConnectionError, ExceptionGroup):
        async with stdio_server(lines, lines) as (read, write):
            await server.run(read, write, server.create_initialization_options())


class Lines:
    """An adapter that gives a socket the text file interface that the SDK expects."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            try:
                line = await self._reader.readline()
            except (ValueError, ConnectionError):
                # readline raises ValueError for a line above the limit; the rest of it could not be parsed either.
                return
            if not line:
                return
            yield line.decode("utf-8", "replace")

    async def write(self, text: str) -> None:
        """Write a message, including its line ending."""
        self._writer.write(text.encode())

    async def flush(self) -> None:
        """Wait until the peer has read enough data to accept more."""
        await self._writer.drain()


def _listening(path: Path) -> socket.socket:
    folder = path.parent
    try:
        folder_stat = folder.stat()
        if folder_stat.st_uid != os.geteuid() or stat.S_IMODE(folder_stat.st_mode) & 0o022:
            raise SettingsError(
                f"the socket folder {folder} belongs to another user or is writable by others. Choose a folder "
                "that only your user can write to"
            )
        _remove_left(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The mode is restricted before `bind` creates the path, so that no other user can connect in between.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(CONNECTIONS)
    except OSError as error:
        raise ServiceUnavailableError(
            f"cannot listen on {path}: {error.strerror or error}. Choose another path for --socket"
        ) from error
    return listener


def _remove_left(path: Path) -> None:
    """Delete the socket file that a dead process left behind.

    Raises:
        ServiceUnavailableError: the path is not a socket, or a process is listening on it.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ServiceUnavailableError(f"{path} is not a socket. Choose another path for --socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # A live process with a full backlog lets the connection wait; a timeout counts as taken.
            probe.settimeout(1)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                # Nobody accepts connections there, so its process is dead.
                path.unlink()
                return
        raise ServiceUnavailableError(
            f"another process is already listening on {path}. Stop that process, or choose another path"
        )


def _is_own_user(connection: socket.socket) -> bool:
    """Return whether the peer process belongs to this user or to root."""
    if sys.platform == "darwin":
        # struct xucred of sys/ucred.h: version, uid, ...
        uid = struct.unpack_from("2I", connection.getsockopt(0, 1, 76))[1]
    else:
        uid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
    return uid in (0, os.geteuid())


_OPEN = ("running", "paused")
_NAMED = 5


class Caller(NamedTuple):
    """The person or agent that uses a connection, with the scope of their access."""

    scope: Scope
    episode: str = ""
    """Episode that the connection names. An agent's token may already name one."""

    @property
    def is_agent(self) -> bool:
        """True if the caller works on an episode. Such a caller must not make decisions about the episode."""
        return self.scope.person.role is Role.AGENT

    async def find(self, workflow_id: str, kinds: tuple[str, ...], *, now: bool = False) -> WorkflowRef:
        """Return a workflow that is visible to this caller. See `Scope.find`.

        Raises:
            EpisodeNotFoundError: there is no such workflow.
        """
        with _names_the_tool(workflow_id, kinds):
            return await self.scope.find(workflow_id, kinds, now=now)

    async def perform(self, operation: Operation, workflow_id: str, arguments: Mapping[str, Any]) -> str:
        """Send a message to a run and return its reply. See `gateway.access.scope.perform`."""
        with _names_the_tool(workflow_id, operation.kinds):
            return await perform(self.scope, operation, workflow_id, arguments)

    async def own(self) -> WorkflowRef:
        """Return the episode that the connection names, or the only open episode that is visible.

        Raises:
            InvalidRequestError: the connection names a different episode than its token. Or it names no episode, and
                there is not exactly one open episode.
            EpisodeNotFoundError: the named episode is not visible.
        """
        bound = self.scope.person.episode
        if bound and self.episode not in ("", bound):
            raise InvalidRequestError(
                f"the connection specifies episode {self.episode[:120]!r}, but its token is only valid for episode "
                f"{bound}"
            )
        return await self.find(bound or self.episode or await self._only_one(), EPISODES, now=True)

    async def _only_one(self) -> str:
        ledger = self.scope.ledger
        filters = [WorkflowFilter(kind=EPISODES[0], status=status) for status in _OPEN]
        pages = [
            await asyncio.to_thread(ledger.workflows, workflow_filter, limit=_NAMED) for workflow_filter in filters
        ]
        ids = [line.id for page in pages for line in page.lines]
        # With several open episodes a guess could report on the wrong one.
        if len(ids) == 1:
            return ids[0]
        summary = f"{len(ids)} episodes are open: {', '.join(ids[:_NAMED])}" if ids else "no episode is open"
        raise InvalidRequestError(
            f"this connection does not name an episode, and {summary}. Name the episode with: tightloop mcp serve "
            "--episode ID. Over HTTP, use /mcp?episode=ID or a token from: tightloop token create NAME --role "
            "agent --episode ID"
        )


@contextmanager
def _names_the_tool(workflow_id: str, kinds: tuple[str, ...]) -> Iterator[None]:
    """If an id is unknown, add the name of the tool that lists ids to the error."""
    try:
        yield
    except EpisodeNotFoundError:
        what = "episode" if kinds == EPISODES else "plan" if EPISODES[0] not in kinds else "episode or plan"
        raise EpisodeNotFoundError(
            f"no such {what} for this connection: {workflow_id[:120]!r}. List the ids with the list_workflows tool"
        ) from None
