"""Who calls a tool, and the episode that the connection is about."""

import asyncio
from typing import NamedTuple

from gateway.access.scope import EPISODES, Found, Scope
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError
from tightloop.ledger.model import WorkflowFilter
from tightloop.safety.person import Role

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
        try:
            return await self.scope.find(workflow_id, kinds, now=now)
        except EpisodeNotFoundError:
            what = "episode" if kinds == EPISODES else "plan" if EPISODES[0] not in kinds else "episode or plan"
            raise EpisodeNotFoundError(
                f"no {what} has the id {workflow_id[:120]!r} for this connection. See the tool list_workflows"
            ) from None

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
