"""A planner whose messages do not follow the template, on a real Temporal server."""

from tests.support.doubles import ScriptedPlanner, planned
from tests.support.episodes import Working, eventually
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeStatus
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.executor.message import Alignment, Reflection
from tightloop.run.question import QuestionKind


def lacking(answer: PlannerAnswer) -> PlannerAnswer:
    assert answer.message is not None
    wrong = answer.message.evolve(reflection=Reflection(diagnosis="d"), alignment=Alignment())
    return answer.evolve(message=wrong)


def careless(briefing: Briefing) -> PlannerAnswer:
    whole = planned(f"step {briefing.iteration}")
    return whole if briefing.sent_back else lacking(whole)


async def paused(client: TightloopClient, episode_id: str) -> EpisodeStatus:
    async def is_paused() -> EpisodeStatus | None:
        status = await client.status(episode_id)
        return status if status.questions else None

    found: EpisodeStatus = await eventually(is_paused)
    return found


async def test_message_that_lacks_parts_comes_back_fixed_and_nobody_notices(
    client, working: Working, request_for
) -> None:
    planner = ScriptedPlanner(careless)
    async with working(planner):
        episode_id = await client.start(request_for())
        result = await client.result(episode_id)
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 3)
    assert len(planner.briefings) == 6
    for words in ("has no action_items", "has no rationale", "A correct message looks like this:"):
        assert words in planner.briefings[1].sent_back


async def test_message_that_never_follows_the_template_pauses_with_a_sentence(
    client, working: Working, request_for
) -> None:
    planner = ScriptedPlanner(lambda _briefing: lacking(planned()))
    async with working(planner):
        episode_id = await client.start(request_for())
        status = await paused(client, episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.REPEATED_ERROR
    assert "the plan message is still invalid after 2 correction attempts" in status.questions[0].title
    assert "has no action_items" in status.questions[0].title
    assert len(planner.briefings) == 12, "four plans, each with two corrections"
