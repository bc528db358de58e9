"""HTTP parameters, request checks and idempotency keys."""

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Header, HTTPException, Path, Query, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query as QueryField
from pydantic import AfterValidator
from starlette.responses import Response

from gateway.access.scope import EPISODES, PLANS, Scope
from tightloop.database.access import KEY_CHARACTERS, OTHER_REQUEST, IdempotencyKeys, KeyInUseError, Stored, derived_id
from tightloop.errors import IdTakenError, InvalidRequestError
from tightloop.wording import CLOSED_STATUSES, OPEN_STATUSES

WorkflowId = Annotated[
    str, Path(alias="workflowId", max_length=200, description="Id of an episode or a plan.", examples=["nightly-1"])
]
ProjectId = Annotated[
    str,
    Path(
        alias="projectId",
        max_length=80,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Id of a project.",
        examples=["orders-0123456789abcdef"],
    ),
]
ProjectFilter = Annotated[
    str,
    Query(
        max_length=80,
        pattern=r"^[A-Za-z0-9-]*$",
        description="Only items in this project.",
        examples=["orders-0123456789abcdef"],
    ),
]
Wait = Annotated[
    int,
    Query(
        ge=0,
        le=60,
        description="Seconds to wait for the outcome. After that time, the response shows the current state.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of items.")]
Cursor = Annotated[
    str,
    Query(
        max_length=1_000,
        pattern=r"^[A-Za-z0-9_.-]*$",
        description="`cursor` from the previous page. Leave it empty for the first page.",
    ),
]
Position = Annotated[
    str,
    Query(
        max_length=1_000,
        pattern=r"^[A-Za-z0-9_.-]*$",
        description="`cursor` from the previous response. If it is empty, the newest events are returned.",
    ),
]
NewId = Annotated[
    str | None,
    Query(
        max_length=100,
        description="Id to use instead of a generated one. Requires a token that covers all projects.",
        examples=["nightly-1"],
    ),
]
Replace = Annotated[
    bool, Query(description="Reuse the `id` of a closed run. The checkpoints and timeline of that run are kept.")
]
Fresh = Annotated[bool, Query(description="Query the workflow directly. Requires a running worker.")]
FreshList = Annotated[
    bool,
    Query(
        description="List the newest runs from Temporal, including runs that no worker has opened yet. Cannot be "
        "combined with `cursor`."
    ),
]
Checkpoint = Annotated[str, Query(max_length=20, pattern=r"^(ckpt-)?[0-9]{1,7}$", examples=["ckpt-1"])]
Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the bytes.")]
After = Annotated[int, Query(ge=0, le=2**62, description="Only lines after this one.")]
STATUSES = (*OPEN_STATUSES, *CLOSED_STATUSES)


def _check_status(status: str) -> str:
    if status and status not in STATUSES:
        raise ValueError(f"must be one of {', '.join(STATUSES)}")
    return status


Status = Annotated[
    str,
    Query(json_schema_extra={"enum": ["", *STATUSES]}, examples=["paused"]),
    AfterValidator(_check_status),
]
Part = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$", description="Part of the id or the goal.")]
Parent = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=r"^[^\x00]*$",
        description="Id of the plan that started the runs. Leave it empty for runs that were not started by a plan.",
    ),
]
RunId = Annotated[
    str,
    Path(
        alias="runId",
        pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        examples=["01979c1e-7a31-7b52-8f3e-5a4d3c2b1a09"],
    ),
]
IN_PATH = {
    name: Annotated[
        str,
        Path(alias=name, max_length=200, pattern=r"^[^\x00]*$", description="Id of a step or its question."),
    ]
    for name in ("taskId", "gateId")
}
"""Path parameters that are arguments of a message."""


_JSON = re.compile(r"application/([\w.-]+\+)?json\s*(;.*)?", re.IGNORECASE)


async def check_request(request: Request) -> None:
    """Reject requests with unknown query parameters or with a body that is not JSON.

    FastAPI would ignore unknown query parameters.

    Raises:
        InvalidRequestError: a query parameter is unknown.
        HTTPException: the body is not JSON.
    """
    route = request.scope["route"]
    if request.query_params:
        names = [
            parameter.alias
            for parameter in get_flat_params(route.dependant)
            if isinstance(parameter.field_info, QueryField)
        ]
        for unknown in request.query_params.keys() - set(names):
            allowed = f"Allowed: {', '.join(names)}" if names else "This path accepts no query parameters"
            raise InvalidRequestError(f"unknown query parameter {unknown[:80]!r}. {allowed}")
    # Pages of other sites can post forms and text without a preflight, so these must not count as JSON.
    is_json = _JSON.fullmatch(request.headers.get("content-type", "")) is not None
    if route.body_field is not None and not is_json and await request.body():
        detail = "the request body must be JSON. Send it with Content-Type: application/json"
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)


def scope_of(request: Request) -> Scope:
    """Return the scope of a request that passed the guard."""
    return Scope(request.state.person, request.app.state.services)


InScope = Annotated[Scope, Depends(scope_of)]


Start = Callable[[str | None, str], Awaitable[str]]
"""Function that starts a run and returns the run's id. Its arguments are the id to use, or None for a new id, and the
request id."""
Describe = Callable[[str], Awaitable[dict[str, Any]]]


def location_of(noun: str) -> Describe:
    """Return a function that builds a response body with the id and path of a new run."""

    async def describe(new_id: str) -> dict[str, Any]:
        return {"id": new_id, "href": f"/api/{noun}/{new_id}"}

    return describe


class IdempotentRequest:
    """Handles a request at most once per idempotency key."""

    def __init__(self, keys: IdempotencyKeys, scope: Scope, key: str, request: str) -> None:
        """Prepare to handle a request.

        `key` may be empty. `request` is the digest of the method, path, query and body.
        """
        self._keys = keys
        self._scope = scope
        self._key = key
        self._request = request

    async def start(self, prefix: str, chosen_id: str | None, start: Start, describe: Describe) -> Response:
        """Start a run and respond with status 201 and the run's location.

        Args:
            prefix: prefix for the run's id, e.g. `episode-`.
            chosen_id: id that the client chose, if any.
            start: starts the run, or finds the run that this request started before the gateway died.
            describe: builds the response body from the id.

        Raises:
            IdTakenError: another request started a run with the chosen id.
            KeyInUseError: see `answer`.
        """

        async def work() -> Response:
            # A gateway that died after the start thus finds the same workflow again.
            derived = derived_id(prefix, self._principal, self._key) if self._key else None
            try:
                new_id = await start(chosen_id or derived, self._derive_id("request-"))
            except IdTakenError as error:
                if chosen_id or derived is None:
                    raise
                # The derived id depends on the key only: another request with the same key has taken it.
                raise KeyInUseError(OTHER_REQUEST) from error
            body = await describe(new_id)
            headers = {"Location": str(body["href"])}
            return Response(json.dumps(body), HTTPStatus.CREATED, headers, "application/json")

        return await self.answer(work)

    @property
    def message_id(self) -> str:
        """Id that makes a workflow accept this message only once, even after a crash.

        The id is empty if the request has no key.
        """
        return self._derive_id("message-")

    async def answer(self, work: Callable[[], Awaitable[Response]]) -> Response:
        """Return the response of `work`. If the key was used before, return the stored response.

        Raises:
            KeyInUseError: the key belongs to another request, or to a request that is still running.
            EpisodeNotFoundError: the run that the request started no longer exists.
        """
        if not self._key:
            return await work()
        # Claimed before the work, so that of two copies sent at once only one is carried out.
        stored = await asyncio.to_thread(self._keys.begin, self._principal, self._key, self._request)
        if stored is not None:
            return await self._replay(stored)
        try:
            answer = await work()
            body = bytes(answer.body).decode()
            stored = Stored(status=answer.status_code, body=body)
            await asyncio.to_thread(self._keys.answer, self._principal, self._key, stored)
        except BaseException:
            # The work may have happened nevertheless, so the key stays bound to this request.
            await asyncio.to_thread(self._keys.give_up, self._principal, self._key)
            raise
        return answer

    async def _replay(self, stored: Stored) -> Response:
        location = json.loads(stored.body).get("href", "")
        if location:
            # The person may have lost access to it since.
            await self._scope.find(location.rpartition("/")[2], (*EPISODES, *PLANS), now=True)
        headers = {"Idempotency-Replayed": "true"} | ({"Location": location} if location else {})
        return Response(stored.body, stored.status, headers, "application/json")

    def _derive_id(self, prefix: str) -> str:
        """Derive an id that is unique to this request and key. Return "" if there is no key."""
        return derived_id(prefix, self._principal, self._key, self._request) if self._key else ""

    @property
    def _principal(self) -> str:
        return self._scope.person.name


async def read_idempotent_request(
    request: Request,
    scope: Annotated[Scope, Depends(scope_of)],
    key: Annotated[
        str,
        Header(
            alias="Idempotency-Key",
            max_length=KEY_CHARACTERS,
            pattern=r"^[\x21-\x7e]*$",
            description=(
                "Repeating a request with the same key within a day starts nothing new and returns the first "
                "response. A request with the same key but a different path, query or body is rejected with 409."
            ),
            examples=["7f1c2d1e-nightly"],
        ),
    ] = "",
) -> IdempotentRequest:
    """Read a request's idempotency key and return a handler for the request."""
    target = [
        request.method,
        request.scope["raw_path"].decode("latin-1"),
        request.scope["query_string"].decode("latin-1"),
    ]
    # JSON has no raw line breaks, so a body cannot be mistaken for part of the query.
    digest = hashlib.sha256(json.dumps(target).encode() + b"\n" + await request.body()).hexdigest()
    return IdempotentRequest(request.app.state.keys, scope, key, digest)


InOnce = Annotated[IdempotentRequest, Depends(read_idempotent_request)]
