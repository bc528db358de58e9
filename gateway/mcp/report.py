"""Connection of an agent to its episode."""

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

from gateway.access.scope import EPISODES, Found, Scope, perform
from tightloop.episode.model import EpisodeStatus
from tightloop.errors import (
    EpisodeNotFoundError,
    InvalidRequestError,
    MessageError,
    ServiceUnavailableError,
    SettingsError,
)
from tightloop.executor.asking import DONE, FAILED, LIMIT, REFUSED
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
}
"""What the section OUTCOME of a report says, and the option of the question that it answers."""


class Report(Value):
    """The report on a delivery, as the answer to the question that waits for the work."""

    question: str
    option: str
    text: str

    @property
    def is_long(self) -> bool:
        """Whether the report of the delivery keeps only the beginning of it."""
        return len(self.text) > SUMMARY_CHARACTERS


def awaited_work(status: EpisodeStatus) -> Question | None:
    """Return the question that is answered by doing the work."""
    return next((each for each in status.questions if each.kind is QuestionKind.WORK), None)


def is_report(message: str, *, before: int | None = None) -> bool:
    """Return whether a message is a report, such as one that comes a second time; `before`: on an earlier iteration."""
    try:
        iteration = parse_plan_request(message).iteration
    except MessageError:
        return False
    return before is None or 0 < iteration < before


def read_report(message: str, status: EpisodeStatus, question: Question) -> Report:
    """Read a message as the report on the work of the current iteration.

    Raises:
        MessageError: a section is missing or wrong; the sentence has a right example.
        InvalidRequestError: it is about another iteration or none, or its outcome is not one.
    """
    said = parse_plan_request(message)
    if said.iteration != status.iteration:
        which = f"is on iteration {said.iteration}" if said.iteration else "does not say on which [🔁 ITERATION] it is"
        raise InvalidRequestError(
            f"the report {which}, and {status.episode_id} is in iteration {status.iteration}. "
            "Report on the plan that is waited for; the tool status shows it"
        )
    return Report(question=question.id, option=_option(said), text=_text(said))


def _option(said: PlanRequestMessage) -> str:
    # Who finds its own work wrong does not claim that it is done.
    if said.alignment.answer == "no":
        return REFUSED
    outcome = said.outcome.strip().lower().replace(" ", "_")
    for status, option in OUTCOMES.items():
        if outcome == status.value:
            return option
    raise InvalidRequestError(
        f"[📨 OUTCOME] says {said.outcome[:60]!r}: it must be one of {', '.join(status.value for status in OUTCOMES)}"
    )


def _text(said: PlanRequestMessage) -> str:
    parts = [
        said.report,
        f"Diagnosis: {said.reflection.diagnosis}",
        *(f"To do: {item}" for item in said.reflection.action_items),
        *(f"Question: {question}" for question in said.questions),
        *([f"Not aligned: {said.alignment.rationale}"] if said.alignment.answer == "no" else []),
    ]
    return shorten("\n".join(filter(None, parts)), TEXT_CHARACTERS)


LINE_BYTES = 256 * 1024
CONNECTIONS = 32
_PEER = struct.Struct("3i")


async def serve_stdio(server: Server[Any]) -> None:
    """Answer on standard output until standard input ends."""
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_socket(server: Server[Any], path: Path) -> None:
    """Answer at a Unix socket that only this user can open, until it is cancelled.

    Raises:
        SettingsError: the folder belongs to somebody else, or others may write to it.
        ServiceUnavailableError: something else is there, or listens there.
    """
    free = asyncio.Semaphore(CONNECTIONS)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _is_own_user(writer.get_extra_info("socket")):
                async with free:
                    await _serve_lines(server, reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    listener = _listening(path)
    try:
        async with await asyncio.start_unix_server(connected, sock=listener, limit=LINE_BYTES) as serving:
            await serving.serve_forever()
    finally:
        path.unlink(missing_ok=True)


async def _serve_lines(server: Server[Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    lines = cast("anyio.AsyncFile[str]", Lines(reader, writer))
    # A client that goes away, or sends a line without end, ends its own connection alone.
    with suppress(ConnectionError, ExceptionGroup):
        async with stdio_server(lines, lines) as (read, write):
            await server.run(read, write, server.create_initialization_options())


class Lines:
    """A socket as the text file that the SDK reads and writes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            try:
                line = await self._reader.readline()
            except (ValueError, ConnectionError):
                return
            if not line:
                return
            yield line.decode("utf-8", "replace")

    async def write(self, text: str) -> None:
        """Write a message and its line end."""
        self._writer.write(text.encode())

    async def flush(self) -> None:
        """Wait while the other side does not read."""
        await self._writer.drain()


def _listening(path: Path) -> socket.socket:
    folder = path.parent
    try:
        found = folder.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            raise SettingsError(
                f"the folder {folder} of the socket belongs to another user, or others may write to it. Choose your own"
            )
        _remove_left(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Before it has a name: a client that is quick must not find it open to others.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(CONNECTIONS)
    except OSError as error:
        raise ServiceUnavailableError(
            f"nothing can listen at {path}: {error.strerror or error}. Choose another path for --socket"
        ) from error
    return listener


def _remove_left(path: Path) -> None:
    """Remove the socket of a process that is gone; anything else stays.

    Raises:
        ServiceUnavailableError: it is not a socket, or somebody listens there.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ServiceUnavailableError(f"{path} is not a socket. Choose another path for --socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                return
        raise ServiceUnavailableError(f"something listens at {path} already. End it, or choose another path")


def _is_own_user(connection: socket.socket) -> bool:
    """Whether the other side is a process of this user, or of root."""
    if sys.platform == "darwin":
        # struct xucred of sys/ucred.h: version, uid, ...
        uid = struct.unpack_from("2I", connection.getsockopt(0, 1, 76))[1]
    else:
        uid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
    return uid in (0, os.geteuid())


_OPEN = ("running", "paused")
_NAMED = 5


class Caller(NamedTuple):
    """One connection."""

    scope: Scope
    episode: str = ""
    """The episode that the connection names for itself; an agent's token may have named it already."""

    @property
    def is_agent(self) -> bool:
        """Whether it works for an episode, and so decides nothing about it."""
        return self.scope.person.role is Role.AGENT

    async def find(self, workflow_id: str, kinds: tuple[str, ...], *, now: bool = False) -> Found:
        """Return a workflow that exists for this caller; see `Scope.find`.

        Raises:
            EpisodeNotFoundError: there is none.
        """
        with _names_the_tool(workflow_id, kinds):
            return await self.scope.find(workflow_id, kinds, now=now)

    async def perform(self, operation: Operation, workflow_id: str, arguments: Mapping[str, Any]) -> str:
        """Send a run a message; see `gateway.access.scope.perform`. Returns the run's sentence."""
        with _names_the_tool(workflow_id, operation.kinds):
            return await perform(self.scope, operation, workflow_id, arguments)

    async def own(self) -> Found:
        """Return the episode of this connection: the one that it names, else the only open one that it sees.

        Raises:
            InvalidRequestError: it names another one than its token does, or none, and not exactly one is open.
            EpisodeNotFoundError: it names one that does not exist for it.
        """
        bound = self.scope.person.episode
        if bound and self.episode not in ("", bound):
            raise InvalidRequestError(f"this connection is for {bound}, not for {self.episode[:120]!r}")
        return await self.find(bound or self.episode or await self._only_one(), EPISODES, now=True)

    async def _only_one(self) -> str:
        ledger = self.scope.ledger
        wanted = [WorkflowFilter(kind=EPISODES[0], status=status) for status in _OPEN]
        pages = [await asyncio.to_thread(ledger.workflows, one, limit=_NAMED) for one in wanted]
        ids = [line.id for page in pages for line in page.lines]
        if len(ids) == 1:
            return ids[0]
        found = f"{len(ids)} are open: {', '.join(ids[:_NAMED])}" if ids else "none is open"
        raise InvalidRequestError(
            f"this connection is bound to no episode, and {found}. Bind it: tightloop mcp serve --episode ID; over "
            "HTTP /mcp?episode=ID, or a token of tightloop token create NAME --role agent --episode ID"
        )


@contextmanager
def _names_the_tool(workflow_id: str, kinds: tuple[str, ...]) -> Iterator[None]:
    """Name the tool that lists ids where an id does not exist."""
    try:
        yield
    except EpisodeNotFoundError:
        what = "episode" if kinds == EPISODES else "plan" if EPISODES[0] not in kinds else "episode or plan"
        raise EpisodeNotFoundError(
            f"no {what} has the id {workflow_id[:120]!r} for this connection. See the tool list_workflows"
        ) from None
