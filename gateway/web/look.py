"""What one person sees of the ledger, and what a page shows."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gateway.access.scope import Scope
from tightloop.database.ledger import Ledger
from tightloop.ledger.model import InboxItem
from tightloop.safety.seal import Person, Role


@dataclass(frozen=True)
class Screen:
    """A template and what it shows."""

    template: str
    content: dict[str, Any]
    section: str = ""
    """Path of the entry of the navigation that it belongs to."""
    live: str = ""
    """Ids of workflows and projects whose events bring a new look; `*`: all."""


class Around:
    """What every page shows of the ledger besides its own content; alike for all who see the same projects."""

    def __init__(self, ledger: Ledger) -> None:
        """Take the ledger as it exists for them."""
        self._ledger = ledger

    @cached_property
    def inbox(self) -> tuple[InboxItem, ...]:
        """Everything that waits, oldest first."""
        return self._ledger.inbox()

    @cached_property
    def names(self) -> dict[str, str]:
        """The names of projects for people, by id."""
        return self._ledger.names()


@dataclass(frozen=True)
class Look:
    """A look at the ledger with the eyes of one person; made for each request."""

    ledger: Ledger
    person: Person
    around: Around

    @classmethod
    def of(cls, scope: Scope) -> "Look":
        """Return the look of a person at what that person reaches."""
        ledger = scope.ledger
        return cls(ledger, scope.person, Around(ledger))

    @property
    def inbox(self) -> tuple[InboxItem, ...]:
        """Everything that waits, oldest first."""
        return self.around.inbox

    def may(self, role: Role) -> bool:
        """Whether the person has a role, or one that includes it."""
        return self.person.role.includes(role)

    def name_of(self, project: str) -> str:
        """Return the name of a project for people."""
        return self.around.names.get(project, project)
