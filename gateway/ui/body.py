"""Reads the body of a request within bounds of size and time."""

import asyncio
from http import HTTPStatus

from starlette.requests import Request

LARGEST_BYTES = 16 * 2**20
BODY_SECONDS = 30.0


class RefusedError(Exception):
    """A request that is not answered; the text says why and what to do."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


async def body_of(request: Request, bound: int = LARGEST_BYTES) -> bytes:
    """Return the body.

    Raises:
        RefusedError: it is too large, or does not come in time.
        starlette.requests.ClientDisconnect: the client went away.
    """
    too_large = RefusedError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is too large, {bound} bytes are allowed. Send less at once"
    )
    if int(request.headers.get("content-length", "0")) > bound:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                content += part
                if len(content) > bound:
                    raise too_large
    except TimeoutError:
        raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {BODY_SECONDS:g} s") from None
    return bytes(content)
