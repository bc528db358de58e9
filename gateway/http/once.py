"""Requests that start something, sent twice with one Idempotency-Key, start one thing."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Header, Request
from starlette.responses import Response

from gateway.access.scope import Scope
from gateway.http.services import scope_of
from tightloop.database.access.idempotency import KEY_CHARACTERS, Stored, derived_id
from tightloop.errors import IdTakenError, TightloopError

Start = Callable[[str | None], Awaitable[str]]
"""Starts something under an id, None for a new one, and returns its id."""
Describe = Callable[[str], Awaitable[dict[str, Any]]]


def at(noun: str) -> Describe:
    """Return what describes something by its id and where it is."""

    async def describe(made: str) -> dict[str, Any]:
        return {"id": made, "href": f"/api/{noun}/{made}"}

    return describe


class Once:
    """Makes one request once for each key."""

    def __init__(self, request: Request, scope: Scope, key: str) -> None:
        self._request = request
        self._scope = scope
        self._key = key

    async def start(self, prefix: str, start: Start, describe: Describe) -> Response:
        """Start something, and answer 201 with where it is.

        Args:
            prefix: the beginning of its id, such as `episode-`.
            start: starts it.
            describe: makes the body of the answer from its id.
        """

        async def work() -> Response:
            wanted = derived_id(prefix, self._principal, self._key) if self._key else None
            try:
                made = await start(wanted)
            except IdTakenError:
                # The first request with the key started it, and its server died before it answered.
                if wanted is None:
                    raise
                made = wanted
            body = await describe(made)
            headers = {"Location": str(body["href"])}
            return Response(json.dumps(body), HTTPStatus.CREATED, headers, "application/json")

        return await self.answer(work)

    @property
    def message_id(self) -> str:
        """The id of what the request tells a workflow, so that it is told once after a crash; empty without a key."""
        return derived_id("message-", self._principal, self._key) if self._key else ""

    async def answer(self, work: Callable[[], Awaitable[Response]]) -> Response:
        """Return what the work answers; for a key that was used, what it answered then.

        Raises:
            KeyInUseError: the key was used for another request, or that is not answered yet.
        """
        if not self._key:
            return await work()
        keys = self._request.app.state.keys
        asked = b"\n".join((self._request.method.encode(), self._request.url.path.encode(), await self._request.body()))
        stored = await asyncio.to_thread(keys.begin, self._principal, self._key, asked)
        if stored is not None:
            location = json.loads(stored.body).get("href", "")
            headers = {"Idempotency-Replayed": "true"} | ({"Location": location} if location else {})
            return Response(stored.body, stored.status, headers, "application/json")
        try:
            answer = await work()
        except TightloopError:
            await asyncio.to_thread(keys.release, self._principal, self._key)
            raise
        body = bytes(answer.body).decode()
        await asyncio.to_thread(keys.answer, self._principal, self._key, Stored(status=answer.status_code, body=body))
        return answer

    @property
    def _principal(self) -> str:
        return self._scope.person.name


def once_of(
    request: Request,
    scope: Annotated[Scope, Depends(scope_of)],
    key: Annotated[
        str,
        Header(
            alias="Idempotency-Key",
            max_length=KEY_CHARACTERS,
            pattern=r"^[\x21-\x7e]*$",
            description="Sent again with the same body within a day, the request starts nothing more.",
            examples=["7f1c2d1e-nightly"],
        ),
    ] = "",
) -> Once:
    """Return what makes this request once."""
    return Once(request, scope, key)


InOnce = Annotated[Once, Depends(once_of)]
