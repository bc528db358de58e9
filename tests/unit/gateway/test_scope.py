"""What the gateway finds under an id."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.access.scope import Found, Scope, details_of
from tightloop.client.execution import Kind
from tightloop.episode.model import EpisodeStatus
from tightloop.errors import EpisodeNotFoundError
from tightloop.plan.request import PlanStatus


class NewerPlan:
    """A client for an id under which a plan runs."""

    async def status(self, workflow_id: str) -> PlanStatus:
        return PlanStatus(plan_id=workflow_id)

    async def summary(self, _workflow_id: str) -> Any:
        return SimpleNamespace(kind=Kind.PLAN)


async def test_an_id_of_an_episode_that_a_newer_plan_has_is_not_found_as_an_episode() -> None:
    scope, found = SimpleNamespace(client=NewerPlan()), Found("relay", "episode", "project", None)
    with pytest.raises(EpisodeNotFoundError, match="relay is a plan, not an episode"):
        await details_of(cast(Scope, scope), found, EpisodeStatus, fresh=True)
