"""Holding every planner to the template: what its message lacks is sent back to it, a bounded number of times."""

from activities.model.usage import total
from activities.planning.port import Planner
from tightloop.budget import Usage
from tightloop.enforcement import CORRECTIONS, gaps_of_plan, given_up
from tightloop.message import PlanMessage
from tightloop.planning import Briefing, PlannerAnswer, PlanVerdict


async def enforced_plan(planner: Planner, briefing: Briefing) -> PlannerAnswer:
    """Ask a planner until its message follows the template; `MALFORMED` with a sentence where it never does.

    What the loop itself knows (project, goal, iteration, definition of done, a fresh reflection) is put into the
    message where the planner left it out; the rest has to come from the planner.

    Raises:
        PlannerError: the service refuses; not retryable.
        PlannerUnavailableError: it is busy or down; retryable.
    """
    usages: list[Usage] = []
    answer, told = PlannerAnswer(verdict=PlanVerdict.MALFORMED), ""
    for _ in range(1 + CORRECTIONS):
        given = await planner.plan(briefing)
        usages += [given.usage] if given.usage is not None else []
        answer = given.model_copy(
            update={"message": _completed(given.message, briefing), "usage": total(usages) if usages else None}
        )
        told = _gaps(answer)
        if not told:
            return answer
        briefing = briefing.model_copy(update={"sent_back": told})
    reason = given_up("plan message", told, returned=CORRECTIONS)
    return answer.model_copy(update={"verdict": PlanVerdict.MALFORMED, "message": None, "reason": reason})


def _gaps(answer: PlannerAnswer) -> str:
    if answer.verdict is PlanVerdict.GAVE_UP and not answer.reason.strip():
        return "- [reason] is missing: say in one sentence what a person has to do"
    if answer.verdict is PlanVerdict.PLANNED:
        return gaps_of_plan(answer.message or PlanMessage())
    if answer.verdict is PlanVerdict.CLAIMS_DONE and answer.message is not None:
        return gaps_of_plan(answer.message.model_copy(update={"final": True}))
    return ""


def _completed(message: PlanMessage | None, briefing: Briefing) -> PlanMessage | None:
    if message is None:
        return None
    return message.model_copy(
        update={
            "project": message.project or briefing.project or "unnamed",
            "goal": message.goal or briefing.goal,
            "iteration": message.iteration or briefing.iteration,
            "definition_of_done": message.definition_of_done or briefing.definition_of_done,
            "context": _with_reflection(message.context, briefing),
        }
    )


def _with_reflection(context: str, briefing: Briefing) -> str:
    """Tell the executor, too, what the last reflection found; the planner may have acted on it without a word."""
    learnt = briefing.reflection if briefing.reflection_is_fresh else None
    if learnt is None or learnt.diagnosis in context:
        return context
    items = "".join(f"\n- {item}" for item in learnt.action_items)
    return "\n\n".join(
        part for part in (context, f"Reflection on the last iteration: {learnt.diagnosis}{items}") if part
    )
