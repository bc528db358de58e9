"""What differs between the doors behind the one guard."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from starlette.responses import Response

from gateway.access.body import RefusedError
from gateway.access.session import Sessions
from gateway.access.site import Site
from tightloop.safety.person import Person


class Account(NamedTuple):
    """A person, and the word under which a session remembers who that is."""

    subject: str
    person: Person


class Accounts(Protocol):
    """Knows people by their tokens."""

    async def by_token(self, token: str) -> Account | None:
        """Return whose token this is; None where it is nobody's, or not valid any more."""
        ...

    async def by_subject(self, subject: str) -> Person | None:
        """Return who a session belongs to; None where that person has no access any more."""
        ...


class SignIn(NamedTuple):
    """The page where people sign in."""

    title: str
    command: str
    """Prints a link that signs in."""
    other: str
    """What else can be pasted there."""
    path: str = ""
    """Where it is; empty: at every address that is asked for without a session."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may use one door, and how it answers those who may not."""

    site: Site
    sessions: Sessions
    accounts: Accounts
    owner: str
    """Subject of those who come by a sign-in link."""
    sign_in: SignIn
    refusal: Callable[[RefusedError], Response]
    """Makes the answer of a request that is refused."""
    policy: str
    """Content-Security-Policy of every answer that does not set one itself."""
    open_paths: frozenset[str] = frozenset()
    """Read by anybody, under any host name."""
    own_roles: frozenset[str] = frozenset()
    """Paths that judge the role of each message themselves: what reads and what changes come by the same method."""
    cached: str = ""
    """Prefix of the paths whose answers may be kept by browsers."""
    hint: str = ""
    """How programs get in."""
