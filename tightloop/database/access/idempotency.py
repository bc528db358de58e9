"""Answers of requests that start something, so that who sends one twice starts one thing.

As in draft-ietf-httpapi-idempotency-key-header-07: the key belongs to its sender, and another request with it is
refused, whatever became of the first one.
"""

import hashlib
import json
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, insert, select, update

from tightloop.database.engine import Database
from tightloop.database.schema import idempotency_keys
from tightloop.errors import TightloopError
from tightloop.value import Value

KEPT = timedelta(days=1)
ABANDONED = timedelta(minutes=2)
"""After this long without an answer its server is taken for dead, and the request is made again."""
KEY_CHARACTERS = 200
UNANSWERED, GIVEN_UP = 0, -1
"""As status: the request is being worked on; it ended without an answer, and may be sent again."""
OTHER_REQUEST = "this Idempotency-Key was sent with another request before. Take a new key"


class KeyInUseError(TightloopError):
    """The key was used for another request, or the first request with it has not been answered yet."""


class Stored(Value):
    """The answer that a request was given."""

    status: int
    body: str


class IdempotencyKeys:
    """The keys of one installation."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._began = datetime.now(UTC)

    def begin(self, principal: str, key: str, request: str) -> Stored | None:
        """Claim a key; return what its first request was answered, None where this is the first.

        Args:
            principal: who sends it.
            key: as the sender chose it.
            request: digest of method, path, query and body.

        Raises:
            KeyInUseError: it is another request, or the first one is not answered.
        """
        now = datetime.now(UTC)
        row = (idempotency_keys.c.principal == principal, idempotency_keys.c.key == key)
        with self._database.writing() as connection:
            connection.execute(delete(idempotency_keys).where(idempotency_keys.c.created < now - KEPT))
            found = connection.execute(select(idempotency_keys).where(*row)).mappings().first()
            if found is None:
                given = {"principal": principal, "key": key, "request": request, "created": now}
                connection.execute(insert(idempotency_keys).values(**given, status=UNANSWERED, body=""))
                return None
            if found["request"] != request:
                raise KeyInUseError(OTHER_REQUEST)
            if found["status"] not in (UNANSWERED, GIVEN_UP):
                return Stored(status=found["status"], body=found["body"])
            # Who claimed it before this process began has died. Where it is another gateway that works still, both do
            # the same: what they start and tell has ids that follow from the key.
            is_alive = self._began <= found["created"] and now - found["created"] < ABANDONED
            if found["status"] == UNANSWERED and is_alive:
                raise KeyInUseError(
                    "the first request with this Idempotency-Key is not answered yet. Wait, then send it again"
                )
            connection.execute(update(idempotency_keys).where(*row).values(created=now, status=UNANSWERED))
            return None

    def answer(self, principal: str, key: str, stored: Stored) -> None:
        """Keep the answer to the request that claimed the key."""
        self._set(principal, key, stored)

    def give_up(self, principal: str, key: str) -> None:
        """Let the request that claimed the key be sent again; no other one may have the key."""
        self._set(principal, key, Stored(status=GIVEN_UP, body=""))

    def _set(self, principal: str, key: str, stored: Stored) -> None:
        row = (idempotency_keys.c.principal == principal, idempotency_keys.c.key == key)
        with self._database.writing() as connection:
            connection.execute(update(idempotency_keys).where(*row).values(status=stored.status, body=stored.body))


def derived_id(prefix: str, *parts: str) -> str:
    """Return an id that follows from its parts: who sends a request, its key, and what belongs to it."""
    return f"{prefix}{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"
