"""Resources: what happened in an episode, its checkpoints, and where it is."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from mcp_types import Resource, ResourceTemplate

from gateway.access.scope import EPISODES, Found
from gateway.mcp.caller import Caller
from tightloop.errors import InvalidRequestError

MEDIA_TYPE = "application/json"
TIMELINE_EVENTS = 200
_URI = re.compile(r"tightloop://episodes/([^/]+)/([a-z]+)")


class Part(NamedTuple):
    """One resource of every episode."""

    name: str
    description: str
    read: Callable[[Caller, Found], Awaitable[Any]]


async def _timeline(caller: Caller, found: Found) -> Any:
    events = await caller.scope.client.timeline(found.id, limit=TIMELINE_EVENTS)
    return [event.model_dump(mode="json") for event in events]


async def _checkpoints(caller: Caller, found: Found) -> Any:
    records = await asyncio.to_thread(caller.scope.ledger.checkpoints, found.id)
    return [record.model_dump(mode="json", exclude_defaults=True) for record in records]


async def _status(caller: Caller, found: Found) -> Any:
    return (await caller.scope.client.status(found.id)).model_dump(mode="json", exclude_defaults=True)


PARTS = (
    Part("timeline", f"The last {TIMELINE_EVENTS} events, oldest first.", _timeline),
    Part("checkpoints", "The checkpoints, oldest first, with their probability class.", _checkpoints),
    Part("status", "Where the episode is, and what waits for a person.", _status),
)


def uri_of(episode_id: str, part: str) -> str:
    """Return the address of a resource."""
    return f"tightloop://episodes/{episode_id}/{part}"


def of_episode(episode_id: str) -> list[Resource]:
    """Return the resources of an episode."""
    return [
        Resource(
            uri=uri_of(episode_id, part.name),
            name=f"{episode_id} {part.name}",
            description=part.description,
            mime_type=MEDIA_TYPE,
        )
        for part in PARTS
    ]


def templates() -> list[ResourceTemplate]:
    """Return what there is of every episode."""
    return [
        ResourceTemplate(
            uri_template=uri_of("{id}", part.name), name=part.name, description=part.description, mime_type=MEDIA_TYPE
        )
        for part in PARTS
    ]


async def read(caller: Caller, uri: str) -> str:
    """Return a resource as JSON.

    Raises:
        InvalidRequestError: there is no such resource.
        TightloopError: it cannot be read.
    """
    match = _URI.fullmatch(uri)
    part = next((one for one in PARTS if match is not None and one.name == match[2]), None)
    if match is None or part is None:
        names = ", ".join(uri_of("ID", one.name) for one in PARTS)
        raise InvalidRequestError(f"nothing is at {uri[:200]!r}. There are: {names}")
    found = await caller.find(match[1], EPISODES, now=True)
    return json.dumps(await part.read(caller, found), ensure_ascii=False)
