"""The HTTP client for model services: it takes no more of an answer than it can use, packed or not."""

from collections.abc import AsyncIterator

import httpx2
import openai

from activities.model.unpacking import Unpacker

LARGEST_ANSWER_BYTES = 16 * 2**20
"""Unpacked. An answer of 8 000 tokens has about 50 kB."""


def bounded_client() -> httpx2.AsyncClient:
    """Return a client with the habits of the SDK; a larger answer ends in an `AnswerError` while it comes."""
    return openai.DefaultAsyncHttpxClient(event_hooks={"response": [_bound]})


async def _bound(response: httpx2.Response) -> None:
    """Put the bound around a body that is not read yet."""
    unpacker = Unpacker(response.headers.pop("content-encoding", ""), LARGEST_ANSWER_BYTES)
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _BoundedStream(response.stream, unpacker)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, unpacker: Unpacker) -> None:
        self._stream = stream
        self._unpacker = unpacker

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            for part in self._unpacker.feed(chunk):
                yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
