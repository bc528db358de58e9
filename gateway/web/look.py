"""A person's view of the ledger, and a page's content."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gateway.access.scope import Scope
from tightloop.database.ledger import Ledger
from tightloop.ledger.model import InboxItem
from tightloop.safety.seal import Person, Role


@dataclass(frozen=True)
class Screen:
    """A template and its content."""

    template: str
    content: dict[str, Any]
    section: str = ""
    """Path of the active navigation entry."""
    live: str = ""
    """Ids of workflows and projects whose events refresh the page. `*` means all."""


class SharedContent:
    """Ledger content that is shown on every page. People who see the same projects share it."""

    def __init__(self, ledger: Ledger) -> None:
        """Read from a ledger that is limited to the visible projects."""
        self._ledger = ledger

    @cached_property
    def inbox(self) -> tuple[InboxItem, ...]:
        """Open questions, oldest first."""
        return self._ledger.inbox()

    @cached_property
    def names(self) -> dict[str, str]:
        """Display names of projects, by id."""
        return self._ledger.names()


@dataclass(frozen=True)
class View:
    """A person's view of the ledger, created for each request."""

    ledger: Ledger
    person: Person
    shared: SharedContent

    @classmethod
    def of(cls, scope: Scope) -> "View":
        """Create the view that shows the ledger within a person's scope."""
        ledger = scope.ledger
        return cls(ledger, scope.person, SharedContent(ledger))

    @property
    def inbox(self) -> tuple[InboxItem, ...]:
        """Open questions, oldest first."""
        return self.shared.inbox

    def may(self, role: Role) -> bool:
        """Return whether the person has a role or a higher role that includes it."""
        return self.person.role.includes(role)

    def name_of(self, project: str) -> str:
        """Return a project's display name."""
        return self.shared.names.get(project, project)
