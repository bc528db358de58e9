"""A planner without a model: it reads the failing checks and plans what the toolchain itself can fix."""

from tightloop.check import CheckReport
from tightloop.history import parse_history
from tightloop.message import Alignment, PlanMessage, PlannedStep, Reflection
from tightloop.planning import Briefing, PlannerAnswer, PlanVerdict
from tightloop.remedy import Remedy, cannot, remedies_for

MODEL = "heuristic"


class HeuristicPlanner:
    """Plans one fix for one cause at a time, and says honestly when it knows none."""

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        """Answer a briefing from rules alone; needs neither a network nor a key."""
        report = briefing.checks
        if report is None or not report.results:
            return _gave_up("no check has run: name at least one command in the definition of done, such as pytest -q")
        if report.green:
            return _claims_done(briefing, report)
        if briefing.takes_whole_plans:
            return _handed_over(briefing, report)
        tried = parse_history(briefing.plan_request.history if briefing.plan_request else ())
        remedies = remedies_for(report, tried, briefing.programs)
        if not remedies:
            return _gave_up(cannot(report, tried, briefing.programs))
        return _planned(briefing, report, remedies)


def _gave_up(reason: str) -> PlannerAnswer:
    return PlannerAnswer(verdict=PlanVerdict.GAVE_UP, reason=reason, model=MODEL)


def _claims_done(briefing: Briefing, report: CheckReport) -> PlannerAnswer:
    count = len(report.results)
    message = PlanMessage(
        project=briefing.project,
        goal=briefing.goal,
        iteration=briefing.iteration,
        definition_of_done=briefing.definition_of_done,
        final=True,
        reflection=Reflection(
            diagnosis=f"all {count} checks of the definition of done pass",
            action_items=("compare the result with the goal, which checks may not cover",),
        ),
        alignment=Alignment(answer="yes", rationale="every command of the definition of done exits with 0"),
    )
    return PlannerAnswer(
        verdict=PlanVerdict.CLAIMS_DONE, message=message, reason=f"all {count} checks pass", model=MODEL
    )


def _handed_over(briefing: Briefing, report: CheckReport) -> PlannerAnswer:
    """Pass the goal on with what fails; the agent finds the way itself."""
    failed = report.failed
    names = ", ".join(f"'{result.name}'" for result in failed[:3])
    message = PlanMessage(
        project=briefing.project,
        goal=briefing.goal,
        iteration=briefing.iteration,
        definition_of_done=briefing.definition_of_done,
        context="\n\n".join((*briefing.notes, *(f"{result.run}\n{result.tail}" for result in failed[:5]))),
        steps=tuple(PlannedStep(title=f"Make '{result.name}' pass") for result in failed[:5]),
        reflection=Reflection(
            diagnosis=f"{len(failed)} of {len(report.results)} checks fail: {names}",
            action_items=("mend the causes that the outputs show", "change nothing that the goal does not need"),
        ),
        alignment=Alignment(answer="yes", rationale="the agent is asked for the goal and its checks only"),
    )
    return PlannerAnswer(verdict=PlanVerdict.PLANNED, message=message, model=MODEL)


def _planned(briefing: Briefing, report: CheckReport, remedies: tuple[Remedy, ...]) -> PlannerAnswer:
    first, *later = remedies
    names = ", ".join(f"'{result.name}'" for result in report.failed[:3])
    message = PlanMessage(
        project=briefing.project,
        goal=briefing.goal,
        iteration=briefing.iteration,
        definition_of_done=briefing.definition_of_done,
        context=f"{len(report.failed)} of {len(report.results)} checks fail: {names}",
        steps=(PlannedStep(title=first.title, run=first.run),),
        scope=first.scope,
        reflection=Reflection(
            diagnosis=first.diagnosis,
            action_items=(
                f"{first.title}, and nothing else in this iteration",
                f"run '{first.check}' again",
                *(f"if it still fails: {remedy.title}" for remedy in later[:2]),
            ),
        ),
        alignment=Alignment(
            answer="yes",
            rationale=f"'{first.check}' is part of the definition of done; the tool itself makes the change",
        ),
    )
    return PlannerAnswer(verdict=PlanVerdict.PLANNED, message=message, model=MODEL)
