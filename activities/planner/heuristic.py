"""A planner without a model: it reads the failing checks and plans what the toolchain itself can fix."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tightloop.episode.check import CheckReport, failing_text
from tightloop.episode.fixes.fix import Fix, FixFinder
from tightloop.episode.fixes.ruff import RuffRules
from tightloop.episode.planning import Briefing, PlannerAnswer, PlanVerdict
from tightloop.episode.progress.history import parse_history
from tightloop.executor.messages.message import Alignment, PlanMessage, PlannedStep, Reflection
from tightloop.memory.model import Recollection

MODEL = "heuristic"


class Ruff(Protocol):
    """Knows what a ruff can fix."""

    def rules(self, start: tuple[str, ...], root: Path, /) -> RuffRules:
        """Return the rules of the ruff that is started like this in `root`; blocking, without exceptions."""
        ...


@dataclass(frozen=True)
class HeuristicPlanner:
    """Plans one fix for one cause at a time, and says so when it knows none.

    What the briefing already says (project, goal, iteration, definition of done) is put in by `enforced_plan`.
    """

    ruff: Ruff

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        """Answer a briefing from rules alone; needs neither a network nor a key."""
        report = briefing.checks
        if report is None or not report.results:
            return _gave_up("no check has run: name at least one command in the definition of done, such as pytest -q")
        if report.green:
            return _claims_done(len(report.results))
        if briefing.takes_whole_plans:
            return _handed_over(briefing, report)
        tried = parse_history(briefing.plan_request.history if briefing.plan_request else ())
        finder = FixFinder(report, tried, briefing.programs)
        rules = RuffRules()
        if finder.ruff:
            rules = await asyncio.to_thread(self.ruff.rules, finder.ruff, Path(briefing.root))
        fixes = finder.fixes(rules)
        # What fixed the same failure comes before any rule; what fixed one like it, before giving up.
        known = finder.remembered(briefing.remembered or (), exact=bool(fixes))
        if known:
            return _repeated(report, known, fixes)
        if not fixes:
            return _gave_up(finder.why_none(rules))
        return _planned(report, fixes)


def _gave_up(reason: str) -> PlannerAnswer:
    return PlannerAnswer(verdict=PlanVerdict.GAVE_UP, reason=reason, model=MODEL)


def _claims_done(count: int) -> PlannerAnswer:
    message = PlanMessage(
        final=True,
        reflection=Reflection(
            diagnosis=f"every check of the definition of done passes ({count} of {count})",
            action_items=("compare the result with the goal, which checks may not cover",),
        ),
        alignment=Alignment(answer="yes", rationale="every command of the definition of done exits with 0"),
    )
    return PlannerAnswer(
        verdict=PlanVerdict.CLAIMS_DONE, message=message, reason=f"every check passes ({count} of {count})", model=MODEL
    )


def _handed_over(briefing: Briefing, report: CheckReport) -> PlannerAnswer:
    """Pass the goal on with what fails; the agent finds the way itself."""
    failed = report.failed
    names = ", ".join(f"'{result.name}'" for result in failed[:3])
    helped = [(one, one.pattern) for one in briefing.remembered or () if one.pattern is not None]
    known = [f"{one.line} ({one.shown}): {'; '.join(pattern.steps)}" for one, pattern in helped]
    before = (f"What helped before in this project: {'. '.join(known)}",) if known else ()
    message = PlanMessage(
        context="\n\n".join((*briefing.notes, *(f"{result.run}\n{result.tail}" for result in failed[:5]), *before)),
        steps=tuple(PlannedStep(title=f"Make '{result.name}' pass") for result in failed[:5]),
        reflection=Reflection(
            diagnosis=f"{failing_text(len(failed), len(report.results))}: {names}",
            action_items=("fix the causes that the outputs show", "change nothing that the goal does not need"),
        ),
        alignment=Alignment(answer="yes", rationale="the agent is asked for the goal and its checks only"),
    )
    followed = tuple(pattern.id for _, pattern in helped)
    return PlannerAnswer(verdict=PlanVerdict.PLANNED, message=message, followed=followed, model=MODEL)


def _repeated(report: CheckReport, known: Sequence[Recollection], fixes: tuple[Fix, ...]) -> PlannerAnswer:
    """Do again what worked before, each command once."""
    patterns = [one.pattern for one in known if one.pattern is not None]
    steps = {run: title for pattern in patterns for title, run in zip(pattern.titles, pattern.commands, strict=True)}
    names = ", ".join(f"'{result.name}'" for result in report.failed[:3])
    message = PlanMessage(
        context=f"{failing_text(len(report.failed), len(report.results))}: {names}",
        steps=tuple(PlannedStep(title=title, run=run) for run, title in steps.items()),
        reflection=Reflection(
            diagnosis=". ".join(f"'{one.check}' fails with {one.shown}: {one.line}" for one in known),
            action_items=(
                *(f"{pattern.title}, and nothing else in this iteration" for pattern in patterns),
                *(f"run '{one.check}' again" for one in known),
                *(f"if it still fails: {fix.title}" for fix in fixes[:2]),
            ),
        ),
        alignment=Alignment(
            answer="yes",
            rationale=f"{known[0].check!r} is part of the definition of done; this made it pass before",
        ),
    )
    followed = tuple(pattern.id for pattern in patterns)
    return PlannerAnswer(verdict=PlanVerdict.PLANNED, message=message, followed=followed, model=MODEL)


def _planned(report: CheckReport, fixes: tuple[Fix, ...]) -> PlannerAnswer:
    first, *later = fixes
    names = ", ".join(f"'{result.name}'" for result in report.failed[:3])
    message = PlanMessage(
        context=f"{failing_text(len(report.failed), len(report.results))}: {names}",
        steps=(PlannedStep(title=first.title, run=first.run),),
        scope=first.scope,
        reflection=Reflection(
            diagnosis=first.diagnosis,
            action_items=(
                f"{first.title}, and nothing else in this iteration",
                f"run '{first.check}' again",
                # One cause at a time: the others may be gone once the first is fixed.
                *(f"if it still fails: {fix.title}" for fix in later[:2]),
            ),
        ),
        alignment=Alignment(
            answer="yes",
            rationale=f"'{first.check}' is part of the definition of done; the tool itself makes the change",
        ),
    )
    return PlannerAnswer(verdict=PlanVerdict.PLANNED, message=message, model=MODEL)
