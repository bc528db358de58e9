"""What is proven: the definition of done of an episode or of a plan, and what people announced."""

from typing import NamedTuple

from activities.artifacts.port import ArtifactStore, find_model, get_model
from activities.workspace.scope import EpisodeScope
from tightloop.episode.check import Check
from tightloop.episode.model import EpisodeRequest
from tightloop.plan.stored import StoredPlan
from tightloop.value.artifact import ArtifactRef


class Subject(NamedTuple):
    """A definition of done, and the words of people about the work."""

    title: str
    goal: str
    """What announces changes of tests: words of people only."""
    checks: tuple[Check, ...]


def subject_of(store: ArtifactStore, scope: EpisodeScope, plan: ArtifactRef | None, goal: str = "") -> Subject:
    """Return what is proven: the plan, or without one the episode of the scope.

    Raises:
        ArtifactMissingError: it is not in the store. Not retryable.
    """
    if plan is None:
        episode = get_model(store, scope.stored_request, EpisodeRequest)
        return Subject(episode.goal, episode.goal, episode.definition_of_done)
    stored = get_model(store, plan, StoredPlan)
    words, revision = [goal, stored.words], stored
    while (earlier := find_model(store, revision.previous, StoredPlan)) is not None:
        words.append(earlier.words)
        revision = earlier
    title = stored.plan.title or goal or stored.plan.id
    return Subject(title, "\n".join(filter(None, words)), stored.plan.definition_of_done)
