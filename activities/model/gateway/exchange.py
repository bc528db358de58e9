"""One call of an agent and its answer, as they pass through the gateway."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from activities.model.gateway.wire import Route

HOP_HEADERS = frozenset({
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "host", "expect",
})  # fmt: skip
"""They concern one connection only (RFC 9110, 7.6.1)."""

Headers = tuple[tuple[str, str], ...]


class NoAnswerError(Exception):
    """No answer came: `status` is that of the gateway's own one, `asked` whether the provider was ever asked."""

    def __init__(self, status: int, message: str, *, asked: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.asked = asked


class BrokenOffError(Exception):
    """An answer that had begun did not come to its end."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request of an agent, read to its end."""

    method: str
    target: str
    """Path and query as sent."""
    headers: Headers = field(repr=False)
    """As sent, names in lower case."""
    body: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Call(Request):
    """Request that may go to the provider."""

    route: Route


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer whose headers are there; its body comes while it is read."""

    status: int
    headers: Headers
    """Without those that concern one connection only; names in lower case."""
    chunks: AsyncIterator[bytes]
    """May raise `BrokenOffError`."""


class Source(Protocol):
    """Source of answers: the provider, or a recording."""

    def answer(self, call: Call) -> AbstractAsyncContextManager[Answer]:
        """Answer a call; leaving gives the call up.

        Raises:
            NoAnswerError: the provider gave no answer.
        """
        ...

    async def close(self) -> None:
        """Close connections and files."""
