"""People behind bearer tokens and sign-in links of the gateway."""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from gateway.access.rules import Account
from tightloop.database.access.tokens import Token, Tokens
from tightloop.safety.person import Person, Role

OWNER = "owner"
"""Subject of who signs in by a link: only the user of this host can make one."""
FRESH_SECONDS = 2.0
"""So long a token counts as it was last seen in the database."""
REMEMBERED = 1_000


class _Seen(NamedTuple):
    at: float
    token: Token | None


class People:
    """The owner of this host, and everybody with a token."""

    def __init__(self, tokens: Tokens, owner: str) -> None:
        """Take the tokens, and the owner's name."""
        self._tokens = tokens
        self._owner = Person(name=owner, role=Role.ADMIN)
        self._seen: dict[str, _Seen] = {}

    async def by_token(self, token: str) -> Account | None:
        """Return whose token this is."""
        found = await self._look(token, lambda: self._tokens.find(token))
        return None if found is None else Account(found.id, found.person)

    async def by_subject(self, subject: str) -> Person | None:
        """Return who a session belongs to; the session of a token ends with it."""
        if subject == OWNER:
            return self._owner
        found = await self._look(f"id {subject}", lambda: self._tokens.by_id(subject))
        return None if found is None else found.person

    async def _look(self, key: str, ask: Callable[[], Token | None]) -> Token | None:
        now = time.monotonic()
        seen = self._seen.get(key)
        if seen is not None and now - seen.at < FRESH_SECONDS:
            return seen.token
        if len(self._seen) >= REMEMBERED:
            self._seen.clear()
        found = await asyncio.to_thread(ask)
        self._seen[key] = _Seen(now, found)
        return found
