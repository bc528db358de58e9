"""Enforces the template on planners: an incomplete message is sent back, a bounded number of times."""

from activities.planner.port import Planner
from tightloop.episode.messages.enforcement import CORRECTIONS, gaps_of_plan, given_up
from tightloop.episode.planning import Briefing, PlannerAnswer, PlanVerdict
from tightloop.executor.messages.message import Alignment, PlanMessage, PlannedStep, Reflection
from tightloop.executor.usage import Usage, total
from tightloop.value import shorten


async def enforced_plan(planner: Planner, briefing: Briefing) -> PlannerAnswer:
    """Ask a planner until its message follows the template; `MALFORMED` with a sentence where it never does.

    What the loop itself knows (project, goal, iteration, definition of done, a fresh reflection) is put into the
    message where the planner left it out; the rest has to come from the planner.

    Raises:
        PlannerError: the service refuses; not retryable.
        PlannerUnavailableError: it is busy or down; retryable.
    """
    usages: list[Usage] = []
    answer, gaps = PlannerAnswer(verdict=PlanVerdict.MALFORMED), ""
    for _ in range(1 + CORRECTIONS):
        given = _asked_for(await planner.plan(briefing), briefing)
        # A message that is sent back was paid for, too.
        usages += [given.usage] if given.usage is not None else []
        answer = given.evolve(message=_completed(given.message, briefing), usage=total(usages) if usages else None)
        gaps = _gaps(answer)
        if not gaps:
            return answer
        briefing = briefing.evolve(sent_back=gaps)
    reason = given_up("plan message", gaps, returned=CORRECTIONS)
    return answer.evolve(verdict=PlanVerdict.MALFORMED, message=None, reason=reason)


def _asked_for(answer: PlannerAnswer, briefing: Briefing) -> PlannerAnswer:
    """Turn a claim that nothing is left to do into the work that a person asks for."""
    if answer.verdict is not PlanVerdict.CLAIMS_DONE or not briefing.asked_for:
        return answer
    if not briefing.takes_whole_plans:
        reason = f"the checks pass, and no command is known for what was asked for: {briefing.asked_for[-1]}"
        return answer.evolve(verdict=PlanVerdict.GAVE_UP, message=None, reason=reason)
    message = PlanMessage(
        steps=tuple(PlannedStep(title=f"Do what was asked for: {shorten(text, 300)}") for text in briefing.asked_for),
        reflection=Reflection(
            diagnosis="the checks pass, and a person asks for more",
            action_items=("do what was asked for", "keep the checks green"),
        ),
        alignment=Alignment(answer="yes", rationale="a person asked for it"),
    )
    return answer.evolve(verdict=PlanVerdict.PLANNED, message=message, reason="")


def _gaps(answer: PlannerAnswer) -> str:
    if answer.verdict is PlanVerdict.GAVE_UP and not answer.reason.strip():
        return "- [reason] is missing: say in one sentence what a person has to do"
    if answer.verdict is PlanVerdict.PLANNED:
        return gaps_of_plan(answer.message or PlanMessage())
    if answer.verdict is PlanVerdict.CLAIMS_DONE and answer.message is not None:
        return gaps_of_plan(answer.message.evolve(final=True))
    return ""


def _completed(message: PlanMessage | None, briefing: Briefing) -> PlanMessage | None:
    if message is None:
        return None
    context, learnt = message.context, briefing.reflection if briefing.reflection_is_fresh else None
    # The executor is told, too, what the last reflection found: the planner may have acted on it without a word.
    if learnt is not None and learnt.diagnosis not in context:
        items = "".join(f"\n- {item}" for item in learnt.action_items)
        found = f"Reflection on the last iteration: {learnt.diagnosis}{items}"
        context = f"{context}\n\n{found}" if context else found
    # What a person said reaches the executor in their own words.
    context = "\n\n".join(filter(None, (context, *(text for text in briefing.asked_for if text not in context))))
    return message.evolve(
        project=message.project or briefing.project or "unnamed",
        goal=message.goal or briefing.goal,
        iteration=message.iteration or briefing.iteration,
        definition_of_done=message.definition_of_done or briefing.definition_of_done,
        context=context,
    )
