"""Messages of the workflow classes, as Temporal sees them."""

import pytest
from temporalio import workflow

from workflows.episode.workflow import EpisodeWorkflow
from workflows.plan.project import ProjectWorkflow
from workflows.plan.workflow import PlanWorkflow

CLASSES = (EpisodeWorkflow, PlanWorkflow, ProjectWorkflow)


def definition(kind: type) -> workflow._Definition:
    found = workflow._Definition.from_class(kind)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", CLASSES)
def test_every_update_is_validated_before_it_is_accepted(kind: type) -> None:
    updates = definition(kind).updates
    # An update that a subclass overrides without repeating its validator has none.
    assert {name: update.validator is not None for name, update in updates.items()} == dict.fromkeys(updates, True)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_run_takes_the_messages_of_the_kernel(kind: type) -> None:
    taken = definition(kind)
    assert {"pause", "resume", "cancel"} <= set(taken.signals)
    assert {"answer", "top_up"} <= set(taken.updates)
    assert {"status", "timeline", "events", "request"} <= set(taken.queries)


@pytest.mark.parametrize("kind", CLASSES)
def test_messages_are_described_in_the_temporal_ui(kind: type) -> None:
    taken = definition(kind)
    described = {**taken.signals, **taken.updates, **taken.queries}
    assert [name for name, one in described.items() if name and not one.description] == []
