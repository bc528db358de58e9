"""Model-based and rule-based planners."""

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from activities.model.asking import LOWERED, PromptedAsker, UnusableAnswerError, apply_privacy
from activities.model.client import ModelService
from activities.planner.activity import Planners
from activities.process import GRACE_S, Reason
from activities.sandbox.port import MEBIBYTE, Sandbox, SandboxUnavailableError, build_spec
from tightloop.episode.check import CheckReport, failing_text
from tightloop.episode.fixes import Fix, FixFinder, RuffRules, read_rules
from tightloop.episode.model import PlanVerdict
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.episode.progress.course import parse_history
from tightloop.errors import SettingsError
from tightloop.executor.message import Alignment, PlanMessage, PlannedStep, Reflection, problems_of
from tightloop.memory import Recollection
from tightloop.settings import SandboxSettings
from tightloop.value import Value, shorten

STEPS_LIMIT = 50
PROMPTS = Path(__file__).parent / "prompts"


def _parse_list(value: object) -> object:
    """Convert null or a single item to a list. Models sometimes return these where a list is expected."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def _command(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError:
        # Unbalanced quotes: kept as one word, which no program list allows.
        return [value]


_Texts = Annotated[list[str], BeforeValidator(_parse_list)]


class _Step(Value):
    title: str = ""
    run: Annotated[list[str] | None, BeforeValidator(_command)] = None


class _Alignment(Value):
    answer: Annotated[Literal["yes", "no"], LOWERED]
    rationale: str = ""


class _Plan(Value):
    """The model's response; its schema is `prompts/answer.json`."""

    diagnosis: str = ""
    action_items: _Texts = Field(default_factory=list)
    steps: list[_Step] = Field(default_factory=list)
    scope: _Texts = Field(default_factory=list)
    context: str | None = ""
    claims_done: bool = False
    gave_up: bool = False
    impossible: bool = False
    reason: str | None = ""
    alignment: _Alignment


class OpenAIPlanner:
    """Asks a model for the next plan and makes sure that the response matches the template."""

    def __init__(self, service: ModelService) -> None:
        self._asker = PromptedAsker(service, PROMPTS, "plan")

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        shown = apply_privacy(briefing)
        exchange = await self._asker.ask(
            "plan.md", shown, briefing.prompt_privacy, lambda value: self._read(value, briefing)
        )
        plan = exchange.value
        if plan is None:
            verdict = PlanVerdict.GAVE_UP if exchange.refusal else PlanVerdict.MALFORMED
            reason = exchange.failure
        elif plan.impossible:
            verdict, reason = PlanVerdict.IMPOSSIBLE, plan.reason or ""
        elif plan.gave_up:
            verdict, reason = PlanVerdict.GAVE_UP, plan.reason or ""
        elif plan.claims_done and not plan.steps:
            verdict, reason = PlanVerdict.CLAIMS_DONE, plan.reason or ""
        else:
            verdict, reason = PlanVerdict.PLANNED, ""
        return PlannerAnswer(
            verdict=verdict,
            message=_message(plan) if plan else None,
            # All of them, because it is unknown which ones the model used.
            followed=tuple(item.pattern.id for item in shown.remembered or () if item.pattern),
            reason=shorten(reason, 2_000),
            usage=exchange.usage,
            model=exchange.model,
            prompt_sha256=self._asker.sha256,
            repair=exchange.level.value if plan else "",
            transcript=exchange.transcript,
        )

    def _read(self, value: dict[str, Any], briefing: Briefing) -> _Plan:
        plan = _Plan.model_validate(value)
        gaps: list[str] = []
        ends = [name for name in ("claims_done", "gave_up", "impossible") if getattr(plan, name)]
        if len(ends) > 1:
            named = " and ".join(f"`{name}`" for name in ends)
            gaps.append(f"{named} are both true, but at most one of them may be true")
        if plan.gave_up and not (plan.reason or "").strip():
            gaps.append("`reason` is empty. State in one sentence what a person must do")
        if plan.impossible and not (plan.reason or "").strip():
            gaps.append("`reason` is empty. State in one sentence why the goal cannot be reached")
        if not (plan.steps or ends):
            gaps.append("`steps` is empty. Provide at least one step, or set `claims_done`, `gave_up` or `impossible`")
        if len(plan.steps) > STEPS_LIMIT:
            gaps.append(
                f"`steps` has {len(plan.steps)} items. Use at most {STEPS_LIMIT}, all addressing the same cause"
            )
        gaps.extend(f"`steps.{n}.title` is empty" for n, step in enumerate(plan.steps) if not step.title.strip())
        # All at once, because every further question is paid.
        problems = [*problems_of(*_closing(plan)), *gaps, *_not_runnable(plan, briefing.programs)]
        if problems:
            raise UnusableAnswerError(*problems)
        # A model may copy the example; the diagnosis gives that away.
        if plan.diagnosis == self._asker.example["diagnosis"]:
            raise UnusableAnswerError("the answer repeats the example. Write a plan for the goal in the briefing")
        return plan


def _closing(plan: _Plan) -> tuple[Reflection, Alignment]:
    return (
        Reflection(diagnosis=plan.diagnosis, action_items=tuple(plan.action_items)),
        Alignment(answer=plan.alignment.answer, rationale=plan.alignment.rationale),
    )


def _not_runnable(plan: _Plan, programs: tuple[str, ...]) -> list[str]:
    if not programs or plan.gave_up or plan.impossible:
        return []
    allowed = ", ".join(programs)
    problems: list[str] = []
    for number, step in enumerate(plan.steps):
        if not step.run:
            problems.append(f"`steps.{number}.run` is missing: the executor can only run programs ({allowed})")
        elif step.run[0].rsplit("/", 1)[-1] not in programs and step.run[0] not in programs:
            problems.append(f"`steps.{number}.run` starts {step.run[0]!r}: the executor may only run {allowed}")
    return problems


def _message(plan: _Plan) -> PlanMessage:
    reflection, alignment = _closing(plan)
    return PlanMessage(
        context=plan.context or "",
        steps=tuple(PlannedStep(title=step.title, run=tuple(step.run or ())) for step in plan.steps),
        scope=tuple(plan.scope),
        final=plan.claims_done,
        reflection=reflection,
        alignment=alignment,
    )


MODEL = "heuristic"


@dataclass(frozen=True)
class HeuristicPlanner:
    """Plans one fix for one cause at a time, or gives up.

    `enforced_plan` fills in fields from the briefing (project, goal, iteration and definition of done).
    """

    ruff: "ProjectRuff"

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        """Decide on the next step using rules. This needs neither a network nor a key."""
        report = briefing.checks
        if report is None or not report.results:
            return _gave_up(
                "no check has run. Add at least one command to the definition of done, for example pytest -q"
            )
        # Also if the checks pass before the first iteration, because the goal may ask for more than they cover.
        if briefing.takes_whole_plans and (briefing.asked_for or briefing.iteration == 1 or not report.green):
            return _handed_over(briefing, report)
        if report.green:
            return _claims_done(len(report.results))
        tried = parse_history(briefing.plan_request.history if briefing.plan_request else ())
        finder = FixFinder(report, tried, briefing.programs)
        rules = RuffRules()
        if finder.ruff:
            rules = await asyncio.to_thread(self.ruff.rules, finder.ruff, Path(briefing.root))
        fixes = finder.fixes(rules)
        # Fixes of the same failure come before any rule, fixes of similar failures before giving up.
        recollections = finder.select_patterns(briefing.remembered or (), exact=bool(fixes))
        if recollections:
            return _with_notes(_repeat_solutions(report, recollections, fixes), briefing.notes)
        if not fixes:
            return _gave_up(finder.why_none(rules))
        return _with_notes(_plan_first_fix(report, fixes), briefing.notes)


def _failing(report: CheckReport) -> str:
    """Return a text with the number of failing checks and the names of the first three."""
    names = ", ".join(f"'{result.name}'" for result in report.failed[:3])
    return f"{failing_text(len(report.failed), len(report.results))}: {names}"


def _gave_up(reason: str) -> PlannerAnswer:
    return PlannerAnswer(verdict=PlanVerdict.GAVE_UP, reason=reason, model=MODEL)


def _with_notes(answer: PlannerAnswer, notes: tuple[str, ...]) -> PlannerAnswer:
    """Add people's messages to the plan. Rules cannot act on these messages."""
    if answer.message is None or not notes:
        return answer
    context = "\n\n".join((*notes, answer.message.context))
    return answer.evolve(message=answer.message.evolve(context=context))


def _claims_done(count: int) -> PlannerAnswer:
    message = PlanMessage(
        final=True,
        reflection=Reflection(
            diagnosis=f"every check in the definition of done passes ({count} of {count})",
            action_items=("compare the result with the goal, because the checks may not cover it",),
        ),
        alignment=Alignment(answer="yes", rationale="every command in the definition of done exits with 0"),
    )
    return PlannerAnswer(
        verdict=PlanVerdict.CLAIMS_DONE, message=message, reason=f"every check passes ({count} of {count})", model=MODEL
    )


def _handed_over(briefing: Briefing, report: CheckReport) -> PlannerAnswer:
    """Plan to hand over the goal and the failures to the agent, which decides on the steps."""
    failed = report.failed
    helped = [
        (recollection, recollection.pattern)
        for recollection in briefing.remembered or ()
        if recollection.pattern is not None
    ]
    solutions = [
        f"{recollection.line} ({recollection.shown}): {'; '.join(pattern.steps)}" for recollection, pattern in helped
    ]
    before = (f"What helped before in this project: {'. '.join(solutions)}",) if solutions else ()
    message = PlanMessage(
        context="\n\n".join((*briefing.notes, *(f"{result.run}\n{result.tail}" for result in failed[:5]), *before)),
        steps=tuple(PlannedStep(title=f"Make '{result.name}' pass") for result in failed[:5])
        or (PlannedStep(title="Do what the message asks for" if briefing.asked_for else "Reach the goal"),),
        reflection=Reflection(
            diagnosis=_failing(report) if failed else "every check passes, and the goal or a message asks for more",
            action_items=("fix the causes shown in the outputs", "change nothing that the goal does not require"),
        ),
        alignment=Alignment(answer="yes", rationale="the agent is asked only for the goal and its checks"),
    )
    followed = tuple(pattern.id for _, pattern in helped)
    return PlannerAnswer(verdict=PlanVerdict.PLANNED, message=message, followed=followed, model=MODEL)


def _repeat_solutions(
    report: CheckReport, recollections: Sequence[Recollection], fixes: tuple[Fix, ...]
) -> PlannerAnswer:
    """Plan to repeat the commands that fixed the same failures before. Each command is used once."""
    patterns = [recollection.pattern for recollection in recollections if recollection.pattern is not None]
    steps = {run: title for pattern in patterns for title, run in zip(pattern.titles, pattern.commands, strict=True)}
    message = PlanMessage(
        context=_failing(report),
        steps=tuple(PlannedStep(title=title, run=run) for run, title in steps.items()),
        reflection=Reflection(
            diagnosis=". ".join(
                f"'{recollection.check}' fails with {recollection.shown}: {recollection.line}"
                for recollection in recollections
            ),
            action_items=(
                *(f"{pattern.title}, and nothing else in this iteration" for pattern in patterns),
                *(f"run '{recollection.check}' again" for recollection in recollections),
                *(f"if it still fails: {fix.title}" for fix in fixes[:2]),
            ),
        ),
        alignment=Alignment(
            answer="yes",
            rationale=f"{recollections[0].check!r} is part of the definition of done, and this fix has made it pass "
            "before",
        ),
    )
    followed = tuple(pattern.id for pattern in patterns)
    return PlannerAnswer(verdict=PlanVerdict.PLANNED, message=message, followed=followed, model=MODEL)


def _plan_first_fix(report: CheckReport, fixes: tuple[Fix, ...]) -> PlannerAnswer:
    first, *later = fixes
    message = PlanMessage(
        context=_failing(report),
        steps=(PlannedStep(title=first.title, run=first.run),),
        scope=first.scope,
        reflection=Reflection(
            diagnosis=first.diagnosis,
            action_items=(
                f"{first.title}, and nothing else in this iteration",
                f"run '{first.check}' again",
                # One cause at a time: fixing the first may resolve the others.
                *(f"if it still fails: {fix.title}" for fix in later[:2]),
            ),
        ),
        alignment=Alignment(
            answer="yes",
            rationale=f"'{first.check}' is part of the definition of done, and this tool can fix it by itself",
        ),
    )
    return PlannerAnswer(verdict=PlanVerdict.PLANNED, message=message, model=MODEL)


def planners(service: ModelService, ruff: "ProjectRuff") -> Planners:
    """Return a factory for planners. The kind `auto` uses rules if no model is configured."""
    by_model = cache(lambda: OpenAIPlanner(service))
    return lambda kind: by_model() if service.must_plan(kind) else HeuristicPlanner(ruff)


TIMEOUT_S = 60.0
OUTPUT_BYTES = 16 * MEBIBYTE
"""Maximum size of the output in bytes. The rule list of ruff 0.17 (973 rules with explanations) takes 1.6 MB."""


class ProjectRuff:
    """Runs the project's own ruff in the sandbox and caches its rules by version."""

    def __init__(self, sandbox: Sandbox, settings: SandboxSettings) -> None:
        self._sandbox = sandbox
        self._settings = settings
        self._known: dict[str, RuffRules] = {}
        self._lock = Lock()

    def rules(self, start: tuple[str, ...], root: Path) -> RuffRules:
        """Return the rules of the ruff version that the command `start` runs in `root`.

        This call blocks. If ruff fails, the result has no rules and its `problem` states the reason.
        """
        try:
            version = self._output((*start, "--version"), root)
            # Held during the query: episodes that plan at the same time query a version once.
            with self._lock:
                if version not in self._known:
                    listed = self._output((*start, "rule", "--all", "--output-format", "json"), root)
                    self._known[version] = read_rules(listed)
                return self._known[version]
        except (SandboxUnavailableError, SettingsError, OSError, ValueError) as error:
            return RuffRules(problem=shorten(str(error), 200))

    def _output(self, argv: tuple[str, ...], root: Path) -> str:
        spec = build_spec(
            self._settings, argv, root, wall_limit_s=TIMEOUT_S, grace_s=GRACE_S, output_bytes=OUTPUT_BYTES
        )
        result = self._sandbox.run(spec, cancelled=lambda: False, started=lambda _pid: None)
        output = result.output.decode(errors="replace")
        if result.reason is not Reason.EXITED or result.exit_code != 0:
            why = result.message or output.strip() or f"exit code {result.exit_code}"
            raise OSError(f"'{' '.join(argv)}' failed: {why}")
        return output
