"""Who acts through a door, and what that person may see and do."""

from enum import StrEnum
from typing import Protocol

from tightloop.value import Value

APPROVALS = frozenset({"gate", "policy"})
"""Kinds of questions that ask for an approval."""


class Role(StrEnum):
    """What a person may do; each role includes those before it."""

    VIEWER = "viewer"
    """Reads."""
    AGENT = "agent"
    """Works for an episode: also reports to the planner and asks for a pause, by MCP alone; decides nothing."""
    OPERATOR = "operator"
    """Starts and steers, and answers questions that keep an episode or plan from going on."""
    APPROVER = "approver"
    """Also answers what asks for an approval: gates, policies, and questions that name who may answer."""
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        """Whether this role may do what the other one may."""
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(other)


class Person(Value):
    """A person or a service that proved who it is."""

    name: str
    """Stands as `by` in answers, approvals and the timeline."""
    role: Role = Role.VIEWER
    projects: tuple[str, ...] = ()
    """The projects that exist for this person; empty: all."""
    episode: str = ""
    """Of an agent: the episode that it works for; empty: the only open one in its projects."""

    def sees(self, project: str) -> bool:
        """Whether a project exists for this person."""
        return not self.projects or project in self.projects


class Asks(Protocol):
    """What of a question decides who may answer it."""

    @property
    def kind(self) -> str:
        """Why it is asked."""
        ...

    @property
    def role(self) -> str:
        """Who may answer, in the words of the plan; empty: anybody."""
        ...


def role_for(question: Asks) -> Role:
    """Return the role that an answer needs: an approval is not given by who asked for the work."""
    return Role.APPROVER if question.role or question.kind in APPROVALS else Role.OPERATOR
