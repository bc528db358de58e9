"""What one person sees of the ledger, and what a page shows."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tightloop.database.ledger import Ledger
from tightloop.ledger import InboxItem
from tightloop.safety.person import Person, Role


@dataclass(frozen=True)
class Screen:
    """A template and what it shows."""

    template: str
    content: dict[str, Any]
    section: str = ""
    """Path of the entry of the navigation that it belongs to."""
    live: str = ""
    """Ids of workflows and projects whose events bring a new look; `*`: all."""


@dataclass(frozen=True)
class Look:
    """A look at the ledger with the eyes of one person; made for each request."""

    ledger: Ledger
    person: Person
    _names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, ledger: Ledger, person: Person) -> "Look":
        """Return the look of a person at what exists for that person."""
        return cls(ledger.limited(person.projects) if person.projects else ledger, person)

    @cached_property
    def inbox(self) -> tuple[InboxItem, ...]:
        """Everything that waits, oldest first."""
        return self.ledger.inbox()

    def may(self, role: Role) -> bool:
        """Whether the person has a role, or one that includes it."""
        return self.person.role.includes(role)

    def name_of(self, project: str) -> str:
        """Return the name of a project for people."""
        if not self._names:
            self._names.update((one.id, one.name) for one in self.ledger.projects())
        return self._names.get(project, project)
