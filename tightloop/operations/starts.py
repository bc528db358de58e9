"""Requests that start episodes and plans, as HTTP takes them."""

from typing import Annotated, Literal

from pydantic import Field

from tightloop.episode.model import GOAL_CHARACTERS, EpisodeRequest
from tightloop.operations.models import CheckBody, Name, Request, Text
from tightloop.operations.wire import body
from tightloop.plan.request import PlanRequest

Workspace = Annotated[
    str,
    Field(
        max_length=1_000,
        pattern=r"^/[^\x00]*$",
        description="Absolute path of the top of a git working tree, on the host of its worker.",
        examples=["/home/me/orders"],
    ),
]
# The gateway itself says where they run, and only a plan starts something within itself.
_INNER = frozenset({"within", "queues", "workspace"})
_AnyEpisode = body(EpisodeRequest, "AnyEpisode", without=_INNER)
PlanOfProject = body(PlanRequest, "PlanOfProject", without=_INNER | {"depth", "base_tree"})


class EpisodeOfProject(_AnyEpisode):  # type: ignore[misc, valid-type]
    """What an episode is to reach, and how that is checked."""

    goal: Annotated[str, Field(min_length=1, max_length=GOAL_CHARACTERS, pattern=r"^[^\x00]*\S[^\x00]*$")]
    definition_of_done: Annotated[list[CheckBody], Field(min_length=1)]
    """Commands; all of them have to exit with 0."""
    planner: Literal["auto", "openai", "heuristic"] = "auto"


class EpisodeBody(EpisodeOfProject):
    """An episode in a workspace."""

    workspace: Workspace


class PlanBody(PlanOfProject):  # type: ignore[misc, valid-type]
    """A plan of steps in a workspace."""

    workspace: Workspace


class _Planning(Request):
    model: Name = ""
    """Model that divides the work; empty: as the settings say."""
    goal: Text = ""
    """What is to be reached; empty: what the project shows as open."""
    gates: list[CheckBody] = Field(default_factory=list)
    """Commands that have to pass in the end; empty: those of the settings, or detected."""


class PlanProject(_Planning):
    """What to plan; without anything: what the project shows as open."""

    packet_id: Annotated[str, Field(pattern=r"^(pkt_[0-9a-f]{16})?$")] = ""
    """A packet that was made before, of this project."""
    episode: Name = ""
    """Inspect this finished episode in place of the project."""


class AddProject(_Planning):
    """A project, and what to plan in it."""

    workspace: Workspace
