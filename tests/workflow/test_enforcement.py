"""A planner whose messages do not follow the template, on a real Temporal server."""

from tests.conftest import Working, eventually
from tests.doubles import ScriptedPlanner, planned
from tightloop.client import TightloopClient
from tightloop.episode import EpisodeOutcome, EpisodeStatus, PauseKind
from tightloop.message import Alignment, Reflection
from tightloop.planning import Briefing, PlannerAnswer


def lacking(answer: PlannerAnswer) -> PlannerAnswer:
    assert answer.message is not None
    wrong = answer.message.model_copy(update={"reflection": Reflection(diagnosis="d"), "alignment": Alignment()})
    return answer.model_copy(update={"message": wrong})


def careless(briefing: Briefing) -> PlannerAnswer:
    whole = planned(f"step {briefing.iteration}")
    return whole if briefing.sent_back else lacking(whole)


async def paused(client: TightloopClient, episode_id: str) -> EpisodeStatus:
    async def is_paused() -> EpisodeStatus | None:
        status = await client.status(episode_id)
        return status if status.pause is not None else None

    found: EpisodeStatus = await eventually(is_paused)
    return found


async def test_message_that_lacks_parts_comes_back_mended_and_nobody_notices(
    client, working: Working, request_for
) -> None:
    planner = ScriptedPlanner(careless)
    async with working(planner):
        episode_id = await client.start(request_for())
        result = await client.result(episode_id)
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 3)
    assert len(planner.briefings) == 6
    for words in ("has no action_items", "has no rationale", "A right message looks like this:"):
        assert words in planner.briefings[1].sent_back


async def test_message_that_never_follows_the_template_pauses_with_a_sentence(
    client, working: Working, request_for
) -> None:
    planner = ScriptedPlanner(lambda _briefing: lacking(planned()))
    async with working(planner):
        episode_id = await client.start(request_for())
        status = await paused(client, episode_id)
        await client.abort(episode_id)
        await client.result(episode_id)
    assert status.pause is not None
    assert status.pause.kind is PauseKind.REPEAT_ERROR
    assert "the plan message was sent back 2 times and is still wrong" in status.pause.reason
    assert "has no action_items" in status.pause.reason
    assert len(planner.briefings) == 9
