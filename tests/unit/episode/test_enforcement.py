"""Both messages are held to the template: their author is told what is missing, a bounded number of times."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.planner.activity import enforced_plan
from tests.support.doubles import ScriptedPlanner
from tests.unit.episode.test_message import plans
from tightloop.episode.check import Check, CheckReport, judge
from tightloop.episode.messages import CORRECTIONS, gaps_of_plan, plan_request_of
from tightloop.episode.model import EpisodeRequest, EpisodeState
from tightloop.episode.planning import Briefing, PlannerAnswer, PlanVerdict
from tightloop.executor.message import (
    Alignment,
    PlanMessage,
    PlannedStep,
    Reflection,
    parse_plan,
    parse_plan_request,
    render_plan_request,
)
from tightloop.executor.model import ExecutorReport, ExecutorStatus, Usage

WHOLE = PlanMessage(
    project="shop",
    goal="make the tests pass",
    iteration=4,
    definition_of_done=("pytest -q",),
    steps=(PlannedStep(title="keep the last line"),),
    reflection=Reflection(diagnosis="parse() drops a line", action_items=("keep it",)),
    alignment=Alignment(rationale="touches the parser only"),
)
BRIEFING = Briefing(project="shop", goal="make the tests pass", iteration=4, definition_of_done=("pytest -q",))
LACKING: dict[str, tuple[dict[str, object], str]] = {
    "steps": ({"steps": ()}, "[📋 PLAN] is missing"),
    "diagnosis": ({"reflection": Reflection(action_items=("a",))}, "[🪞 REFLECTION] has no diagnosis"),
    "action items": ({"reflection": Reflection(diagnosis="d")}, "[🪞 REFLECTION] has no action_items"),
    "alignment": ({"alignment": Alignment()}, "[✅ ALIGNMENT_CHECK] has no rationale"),
}


def answer(message: PlanMessage | None, verdict: PlanVerdict = PlanVerdict.PLANNED, **more: object) -> PlannerAnswer:
    return PlannerAnswer(verdict=verdict, message=message, usage=Usage(input_tokens=10, output_tokens=1), **more)


def then_right(wrong: PlannerAnswer) -> Callable[[Briefing], PlannerAnswer]:
    return lambda briefing: answer(WHOLE) if briefing.sent_back else wrong


@pytest.mark.parametrize("gap", LACKING)
async def test_planner_is_told_exactly_what_its_message_lacks_and_gets_an_example(gap: str) -> None:
    change, words = LACKING[gap]
    planner = ScriptedPlanner(then_right(answer(WHOLE.evolve(**change))))
    got = await enforced_plan(planner, BRIEFING)
    told = planner.briefings[1].sent_back
    assert [line for line in told.split("\n") if line.startswith("- [")] == [
        next(line for line in told.split("\n") if words in line)
    ]
    example = told.partition("A correct message looks like this:\n")[2]
    assert parse_plan(example).steps
    assert got.message == WHOLE
    assert got.usage == Usage(input_tokens=20, output_tokens=2)


@pytest.mark.parametrize("gap", LACKING)
async def test_message_that_stays_wrong_is_given_up_with_a_sentence(gap: str) -> None:
    change, words = LACKING[gap]
    planner = ScriptedPlanner(lambda _briefing: answer(WHOLE.evolve(**change)))
    got = await enforced_plan(planner, BRIEFING)
    assert len(planner.briefings) == 1 + CORRECTIONS
    assert (got.verdict, got.message) == (PlanVerdict.MALFORMED, None)
    assert words in got.reason
    assert got.reason.startswith("the plan message is still invalid after 2 correction attempts: ")
    assert got.usage is not None
    assert got.usage.input_tokens == 10 * (1 + CORRECTIONS)


async def test_plan_without_a_message_and_giving_up_without_a_reason_are_sent_back() -> None:
    for wrong in (answer(None), answer(None, PlanVerdict.GAVE_UP, reason=" ")):
        planner = ScriptedPlanner(then_right(wrong))
        assert (await enforced_plan(planner, BRIEFING)).message == WHOLE
        assert "is missing" in planner.briefings[1].sent_back


async def test_claim_needs_no_steps_but_a_reflection() -> None:
    claim = WHOLE.evolve(steps=())
    got = await enforced_plan(ScriptedPlanner(lambda _: answer(claim, PlanVerdict.CLAIMS_DONE)), BRIEFING)
    assert got.verdict is PlanVerdict.CLAIMS_DONE
    wrong = claim.evolve(reflection=Reflection())
    got = await enforced_plan(ScriptedPlanner(lambda _: answer(wrong, PlanVerdict.CLAIMS_DONE)), BRIEFING)
    assert got.verdict is PlanVerdict.MALFORMED


async def test_malformed_answer_and_an_honest_one_are_passed_on_at_once() -> None:
    for given_answer in (
        PlannerAnswer(verdict=PlanVerdict.MALFORMED, reason="no JSON"),
        PlannerAnswer(verdict=PlanVerdict.GAVE_UP, reason="a password is missing"),
        PlannerAnswer(verdict=PlanVerdict.CLAIMS_DONE),
    ):
        planner = ScriptedPlanner(lambda _briefing, given_answer=given_answer: given_answer)
        assert await enforced_plan(planner, BRIEFING) == given_answer
        assert len(planner.briefings) == 1


async def test_what_the_loop_knows_is_filled_in_without_asking() -> None:
    bare = PlanMessage(steps=WHOLE.steps, reflection=WHOLE.reflection, alignment=WHOLE.alignment)
    planner = ScriptedPlanner(lambda _briefing: answer(bare))
    got = await enforced_plan(planner, BRIEFING)
    assert len(planner.briefings) == 1
    assert got.message == WHOLE


async def test_fresh_reflection_goes_into_the_next_plan_message_once() -> None:
    learnt = Reflection(diagnosis="the cache was never the cause", action_items=("profile load()",))
    briefing = BRIEFING.evolve(reflection=learnt, reflection_is_fresh=True)
    got = await enforced_plan(ScriptedPlanner(lambda _: answer(WHOLE)), briefing)
    assert got.message is not None
    assert "the cache was never the cause\n- profile load()" in got.message.context
    again = await enforced_plan(ScriptedPlanner(lambda _: answer(got.message)), briefing)
    assert again.message == got.message
    stale = briefing.evolve(reflection_is_fresh=False)
    assert (await enforced_plan(ScriptedPlanner(lambda _: answer(WHOLE)), stale)).message == WHOLE


@given(plans)
def test_any_whole_plan_message_lacks_nothing(message: PlanMessage) -> None:
    assert gaps_of_plan(message) == ""


statuses = st.sampled_from([None, *ExecutorStatus])
outputs = st.sampled_from(["", "E   assert 1 == 2", "[OUTCOME] x\n[🪞 REFLECTION]\ndiagnosis:", "\x00\n- \n"])


@given(statuses, outputs, st.lists(st.booleans(), max_size=3), st.text(max_size=40))
def test_plan_request_of_the_loop_itself_always_follows_the_template(
    status: ExecutorStatus | None, output: str, passes: list[bool], words: str
) -> None:
    results = tuple(
        judge(
            Check(run=f"check {n}"),
            tree="t",
            exit_code=0 if good else 1,
            timed_out=False,
            duration_s=0.1,
            output=output,
        )
        for n, good in enumerate(passes)
    )
    report = None if status is None else ExecutorReport(key="k", status=status, summary=words, error=output)
    message = plan_request_of(
        EpisodeRequest(goal="g", workspace="/w"),
        EpisodeState(iteration=2, plan_title=words),
        plan=None,
        report=report,
        checks=CheckReport(results=results),
        changes=(words,),
        before=None,
        checks_before="",
    )
    assert parse_plan_request(render_plan_request(message)) == message
