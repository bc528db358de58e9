"""Enforces the template on planners: an incomplete message is sent back, a bounded number of times."""

from activities.planner.port import Planner
from tightloop.episode.messages.enforcement import CORRECTIONS, gaps_of_plan, given_up
from tightloop.episode.planning import Briefing, PlannerAnswer, PlanVerdict
from tightloop.executor.messages.message import PlanMessage
from tightloop.executor.usage import Usage, total


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
        given = await planner.plan(briefing)
        # A message that is sent back was paid for, too.
        usages += [given.usage] if given.usage is not None else []
        answer = given.evolve(message=_completed(given.message, briefing), usage=total(usages) if usages else None)
        gaps = _gaps(answer)
        if not gaps:
            return answer
        briefing = briefing.evolve(sent_back=gaps)
    reason = given_up("plan message", gaps, returned=CORRECTIONS)
    return answer.evolve(verdict=PlanVerdict.MALFORMED, message=None, reason=reason)


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
    return message.evolve(
        project=message.project or briefing.project or "unnamed",
        goal=message.goal or briefing.goal,
        iteration=message.iteration or briefing.iteration,
        definition_of_done=message.definition_of_done or briefing.definition_of_done,
        context=context,
    )
