"""Answers of requests that start something, so that who sends one twice starts one thing.

As in draft-ietf-httpapi-idempotency-key-header-07: the key belongs to its sender, and another body under it is refused.
"""

import hashlib
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
UNANSWERED = 0
"""As status: the request is being worked on."""


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

    def begin(self, principal: str, key: str, request: bytes) -> Stored | None:
        """Claim a key; return what its first request was answered, None where this is the first.

        Args:
            principal: who sends it.
            key: as the sender chose it.
            request: method, path and body.

        Raises:
            KeyInUseError: it is another request, or the first one is not answered.
        """
        now, digest = datetime.now(UTC), hashlib.sha256(request).hexdigest()
        row = (idempotency_keys.c.principal == principal, idempotency_keys.c.key == key)
        with self._database.writing() as connection:
            connection.execute(delete(idempotency_keys).where(idempotency_keys.c.created < now - KEPT))
            found = connection.execute(select(idempotency_keys).where(*row)).mappings().first()
            if found is None:
                given = {"principal": principal, "key": key, "request": digest, "created": now}
                connection.execute(insert(idempotency_keys).values(**given, status=UNANSWERED, body=""))
                return None
            if found["request"] != digest:
                raise KeyInUseError("this Idempotency-Key was sent with another request before. Take a new key")
            if found["status"] != UNANSWERED:
                return Stored(status=found["status"], body=found["body"])
            # Who claimed it before this process began has died. Where it is another gateway that works still, both do
            # the same: what they start and tell has ids that follow from the key.
            if self._began <= found["created"] and now - found["created"] < ABANDONED:
                raise KeyInUseError(
                    "the first request with this Idempotency-Key is not answered yet. Wait, then send it again"
                )
            connection.execute(update(idempotency_keys).where(*row).values(created=now))
            return None

    def answer(self, principal: str, key: str, stored: Stored) -> None:
        """Keep the answer to the request that claimed the key."""
        row = (idempotency_keys.c.principal == principal, idempotency_keys.c.key == key)
        with self._database.writing() as connection:
            connection.execute(update(idempotency_keys).where(*row).values(status=stored.status, body=stored.body))

    def release(self, principal: str, key: str) -> None:
        """Forget the key of a request that started nothing."""
        row = (idempotency_keys.c.principal == principal, idempotency_keys.c.key == key)
        with self._database.writing() as connection:
            connection.execute(delete(idempotency_keys).where(*row))


def derived_id(prefix: str, principal: str, key: str) -> str:
    """Return the id of what a request with a key starts: the same whenever it is sent again."""
    return f"{prefix}{hashlib.sha256(f'{principal} {key}'.encode()).hexdigest()[:12]}"
