"""What the gateway finds under an id."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.access.scope import Scope, Services, WorkflowRef, details_of, perform
from gateway.access.site import RefusedError
from tightloop.client.execution import Kind
from tightloop.episode.model import EpisodeStatus
from tightloop.errors import EpisodeNotFoundError
from tightloop.operations import BY_NAME
from tightloop.plan.request import PlanStatus
from tightloop.run.question import Question, QuestionKind
from tightloop.safety.seal import Person, Role


class NewerPlan:
    """A client for an id under which a plan runs."""

    async def status(self, workflow_id: str) -> PlanStatus:
        return PlanStatus(plan_id=workflow_id)

    async def summary(self, _workflow_id: str) -> Any:
        return SimpleNamespace(kind=Kind.PLAN)


async def test_an_id_of_an_episode_that_a_newer_plan_has_is_not_found_as_an_episode() -> None:
    scope, found = SimpleNamespace(client=NewerPlan()), WorkflowRef("relay", "episode", "project", None)
    with pytest.raises(EpisodeNotFoundError, match="relay is a plan, not an episode"):
        await details_of(cast(Scope, scope), found, EpisodeStatus, is_fresh=True)


class Asking:
    """A ledger and a client with a plan that waits at a gate."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def workflow(self, _workflow_id: str) -> Any:
        return SimpleNamespace(kind="plan", project="project")

    async def status(self, workflow_id: str) -> PlanStatus:
        self.told.append("status")
        gate = Question(id="q1", kind=QuestionKind.GATE, title="Release?", options=(), step="ship")
        limit = Question(id="q2", kind=QuestionKind.BUDGET, title="More?", options=(), step="build")
        return PlanStatus(plan_id=workflow_id, questions=(gate, limit))

    async def answer(self, _workflow_id: str, option: str, *, question: str, by: str) -> str:
        self.told.append(f"{by}: {option} to {question}")
        return "the answer is taken"


async def test_only_who_may_not_approve_is_compared_with_the_questions_of_the_run() -> None:
    asking: Any = Asking()

    async def answer(role: Role, question: str) -> str:
        scope = Scope(Person(name="ada", role=role), Services(asking, asking, asking))
        return await perform(scope, BY_NAME["answer"], "nightly", {"question": question, "option": "go"})

    assert await answer(Role.APPROVER, "q1") == "the answer is taken"
    assert asking.told == ["ada: go to q1"]
    assert await answer(Role.OPERATOR, "build") == "the answer is taken"
    assert asking.told[1:] == ["status", "ada: go to build"]
    for question in ("q1", "ship", ""):
        with pytest.raises(RefusedError, match="ada is an operator, but this requires an approver"):
            await answer(Role.OPERATOR, question)
