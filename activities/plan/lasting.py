"""Whether the result that a step had in another run of the plan still holds, besides that its inputs are the same."""

from datetime import UTC, datetime

from activities.artifacts.port import ArtifactStore
from activities.plan.references import unpacked
from tightloop.plan.model import Capability, Step, StepKind
from tightloop.plan.result import StepRecord


def lasts(step: Step) -> bool:
    """Return whether the result of a step depends on nothing but what the digest of its inputs covers."""
    if step.search is not None and step.search.where != "project":
        # The cache of documents is not the tree's; a search in it is quick.
        return False
    # Git steps find out themselves what is done: the branch that is checked out may be another one now.
    return step.cache and step.kind is not StepKind.COMPENSATION and step.capability is not Capability.GIT


def is_fresh(step: Step, old: StepRecord, store: ArtifactStore) -> bool:
    """Return whether fetched documents are still young enough; True for steps that fetch nothing.

    Raises:
        ArtifactMissingError: the list of them is not in the store.
    """
    if step.fetch is None:
        return True
    try:
        documents = unpacked(old.outputs["documents"], store)
        times = [datetime.fromisoformat(document["fetched_at"]) for document in documents]
    except (LookupError, TypeError, ValueError):
        # The step declares an output of that name which is something else.
        return False
    return all((datetime.now(UTC) - at).total_seconds() < step.fetch.max_age_s for at in times)
