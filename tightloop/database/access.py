"""The gateway's bearer tokens and idempotency keys."""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import RowMapping, delete, insert, select, update

from tightloop.database.engine import Database
from tightloop.database.schema import idempotency_keys, tokens
from tightloop.errors import InvalidRequestError, TightloopError
from tightloop.safety.seal import Person, Role
from tightloop.value import Value

PREFIX = "tl"
"""Token prefix that allows secret scanners to recognise a published token."""
NAME = re.compile(r"[a-z0-9][a-z0-9._@-]{0,39}")
"""Valid token names. They consist of lower-case ASCII characters, so that no two names look alike."""
RESERVED = frozenset({"operator", "temporal", "tightloop"})
"""Default author names, which tokens must not use."""
_SECRET_BYTES = 32


class Token(Value):
    """Stored token, without its secret."""

    id: str
    name: str
    role: Role
    projects: tuple[str, ...] = ()
    """Visible projects. Empty means all projects."""
    episode: str = ""
    """Episode that an agent works for."""
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        """Return whether the token is neither revoked nor expired."""
        return self.revoked is None and (self.expires is None or now < self.expires)

    @property
    def person(self) -> Person:
        """Identity of the token's owner."""
        return Person(name=self.name, role=self.role, projects=self.projects, episode=self.episode)


class Tokens:
    """Manages the access tokens of an installation."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        name: str,
        role: Role,
        projects: Sequence[str] = (),
        *,
        episode: str = "",
        lasts: timedelta | None = None,
    ) -> tuple[Token, str]:
        """Create a token. Return the token and its text, which cannot be retrieved again.

        Args:
            name: name recorded as `by` for the owner's actions. It must be unique among valid tokens.
            role: role of the token's owner.
            projects: projects that the owner can see. Empty means all projects.
            episode: the agent's episode, if the token is for an agent.
            lasts: lifetime of the token. None means that the token does not expire.

        Raises:
            InvalidRequestError: the name is invalid or already in use, an agent does not have a project, or a
                token with an episode is not for an agent.
        """
        if (role is Role.AGENT and not projects) or (episode and role is not Role.AGENT):
            raise InvalidRequestError(
                "an agent token requires an episode or a project, and only agent tokens can be limited to an "
                "episode. For example: tightloop token create cursor-orders --role agent --episode ID"
            )
        if not NAME.fullmatch(name) or name in RESERVED:
            raise InvalidRequestError(
                f"{name[:80]!r} is not a valid token name: use 1 to 40 characters from a-z, 0-9, '.', '_', '@' and "
                f"'-', but not {', '.join(sorted(RESERVED))}. Name the token after its holder, "
                "for example anna or ci-orders"
            )
        now = datetime.now(UTC)
        # The id is part of the token's text and finds the row; only a digest of the secret is stored.
        token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(_SECRET_BYTES)
        token = Token(
            id=token_id,
            name=name,
            role=role,
            projects=tuple(dict.fromkeys(projects)),
            episode=episode,
            created=now,
            expires=None if lasts is None else now + lasts,
        )
        with self._database.writing() as connection:
            # Not a unique index: revoked and expired tokens keep their rows, and their names can be used again.
            same = connection.execute(select(tokens).where(tokens.c.name == name)).mappings()
            if any(_read(row).is_valid(now) for row in same):
                raise InvalidRequestError(
                    f"a valid token named {name!r} already exists. Choose another name, or revoke that token: "
                    f"tightloop token revoke {name}"
                )
            row = token.model_dump() | {"projects": "\n".join(token.projects), "digest": _digest(secret)}
            connection.execute(insert(tokens).values(row))
        return token, f"{PREFIX}_{token_id}_{secret}"

    def all(self) -> tuple[Token, ...]:
        """Return all tokens, oldest first. Tokens that are no longer valid are included."""
        with self._database.reading() as connection:
            return tuple(map(_read, connection.execute(select(tokens).order_by(tokens.c.created)).mappings()))

    def revoke(self, name: str) -> None:
        """Revoke a valid token.

        Raises:
            InvalidRequestError: there is no valid token with this name.
        """
        now = datetime.now(UTC)
        condition = (tokens.c.name == name, tokens.c.revoked.is_(None))
        with self._database.writing() as connection:
            if not connection.execute(update(tokens).where(*condition).values(revoked=now)).rowcount:
                raise InvalidRequestError(f"no valid token named {name[:80]!r}. List tokens with: tightloop token list")

    def find(self, text: str) -> Token | None:
        """Return the valid token with this text, or None."""
        # At most three parts, because the secret may contain underscores (URL-safe base64).
        parts = text.split("_", 2)
        if len(parts) != 3 or parts[0] != PREFIX:
            return None
        row = self._row(parts[1])
        stored_digest = "" if row is None else str(row["digest"])
        # Constant time, so that response times reveal nothing about the digest.
        if row is None or not hmac.compare_digest(stored_digest, _digest(parts[2])):
            return None
        return self._valid(row)

    def by_id(self, token_id: str) -> Token | None:
        row = self._row(token_id)
        return None if row is None else self._valid(row)

    def _row(self, token_id: str) -> RowMapping | None:
        # PostgreSQL rejects NUL characters.
        if not token_id.isalnum() or not token_id.isascii():
            return None
        with self._database.reading() as connection:
            return connection.execute(select(tokens).where(tokens.c.id == token_id)).mappings().first()

    @staticmethod
    def _valid(row: RowMapping) -> Token | None:
        token = _read(row)
        return token if token.is_valid(datetime.now(UTC)) else None


def _digest(secret: str) -> str:
    # A random 256-bit secret needs no slow hash:
    # https://cheatsheetseries.owasp.org/cheatsheets/Password_Storage_Cheat_Sheet.html
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _read(row: RowMapping) -> Token:
    return Token.model_validate({**row, "projects": tuple(row["projects"].split("\n")) if row["projects"] else ()})


KEPT = timedelta(days=1)
ABANDONED = timedelta(minutes=2)
"""Time without a response after which the first server is considered dead and a repeated request is executed."""
KEY_CHARACTERS = 200
UNANSWERED, GIVEN_UP = 0, -1
"""Status values for a request that is in progress, and for one that ended without a response and may be repeated."""
OTHER_REQUEST = "this Idempotency-Key was already used for another request. Use a new key"


class KeyInUseError(TightloopError):
    """The key belongs to another request, or its first request is still in progress."""

    status, code = 409, "key-in-use"


class Stored(Value):
    """The stored response to a request with an idempotency key."""

    status: int
    body: str


class IdempotencyKeys:
    """Manages the idempotency keys of an installation."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._began = datetime.now(UTC)

    def begin(self, principal: str, key: str, request: str) -> Stored | None:
        """Claim an idempotency key.

        Return None for the first request with this key. For a repeated request, return the response to the
        first request.

        Args:
            principal: sender of the request.
            key: key chosen by the sender.
            request: digest of the method, path, query and body.

        Raises:
            KeyInUseError: the key belongs to another request, or the first request does not have a response
                yet.
        """
        now = datetime.now(UTC)
        row = (idempotency_keys.c.principal == principal, idempotency_keys.c.key == key)
        with self._database.writing() as connection:
            # On each use, because no background job does it; the index on `created` makes it cheap.
            connection.execute(delete(idempotency_keys).where(idempotency_keys.c.created < now - KEPT))
            stored_row = connection.execute(select(idempotency_keys).where(*row)).mappings().first()
            # Writers are serialized: of two equal requests only one gets here.
            if stored_row is None:
                claim = {"principal": principal, "key": key, "request": request, "created": now}
                connection.execute(insert(idempotency_keys).values(**claim, status=UNANSWERED, body=""))
                return None
            if stored_row["request"] != request:
                raise KeyInUseError(OTHER_REQUEST)
            if stored_row["status"] not in (UNANSWERED, GIVEN_UP):
                return Stored(status=stored_row["status"], body=stored_row["body"])
            # A claim from before this process started is considered dead. If another live gateway holds it, both act
            # the same: the ids of started workflows and sent messages are derived from the key.
            is_alive = self._began <= stored_row["created"] and now - stored_row["created"] < ABANDONED
            if stored_row["status"] == UNANSWERED and is_alive:
                raise KeyInUseError(
                    "the first request with this Idempotency-Key is still in progress. Wait, then retry the request"
                )
            connection.execute(update(idempotency_keys).where(*row).values(created=now, status=UNANSWERED))
            return None

    def answer(self, principal: str, key: str, stored: Stored) -> None:
        """Store the response to the request that claimed the key."""
        self._set(principal, key, stored)

    def give_up(self, principal: str, key: str) -> None:
        """Allow the request that claimed the key to be repeated. Other requests still cannot use the key."""
        self._set(principal, key, Stored(status=GIVEN_UP, body=""))

    def _set(self, principal: str, key: str, stored: Stored) -> None:
        row = (idempotency_keys.c.principal == principal, idempotency_keys.c.key == key)
        with self._database.writing() as connection:
            connection.execute(update(idempotency_keys).where(*row).values(status=stored.status, body=stored.body))


def derived_id(prefix: str, *parts: str) -> str:
    """Return a deterministic id derived from the given parts, such as the sender, key and name."""
    # As JSON, so that ("ab", "c") and ("a", "bc") differ.
    return f"{prefix}{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"
