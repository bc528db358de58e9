"""One call of an agent and its answer, as they pass the door."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from activities.model_gateway.wire import Route

HOP_HEADERS = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "expect",
    }
)
"""They concern one connection only (RFC 9110, 7.6.1)."""

Headers = tuple[tuple[str, str], ...]


class NoAnswerError(Exception):
    """There is no answer: `status` is that of the door's own one.

    Attributes:
        asked: whether the provider was asked, now or when the exchange was recorded.
    """

    def __init__(self, status: int, message: str, *, asked: bool = True) -> None:
        """Keep what the agent is told."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.asked = asked


class BrokenOffError(Exception):
    """An answer that had begun did not come to its end."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What an agent asks of its provider."""

    method: str
    route: Route
    headers: Headers = field(repr=False)
    """As sent, names in lower case."""
    body: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer whose headers are there; its body comes while it is read."""

    status: int
    headers: Headers
    """Without those that concern one connection only; names in lower case."""
    chunks: AsyncIterator[bytes]
    """May raise `BrokenOffError`."""

    def named(self) -> Mapping[str, str]:
        """Return the headers by name; the last of equal ones stands."""
        return dict(self.headers)


class Source(Protocol):
    """Where answers come from: the provider, or a recording."""

    def answer(self, call: Call) -> AbstractAsyncContextManager[Answer]:
        """Answer a call; leaving gives the call up.

        Raises:
            NoAnswerError: there is no answer.
        """
        ...

    async def close(self) -> None:
        """Let go of what is held open."""
        ...
