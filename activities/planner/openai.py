"""A planner that asks a language model of an OpenAI-compatible service."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from activities.model.asking import LOWERED, PromptedAsker, Unusable
from activities.model.prompt_privacy import cleared
from activities.model.service import ModelService
from tightloop.episode.planning import Briefing, PlannerAnswer, PlanVerdict
from tightloop.executor.messages.message import Alignment, PlanMessage, PlannedStep, Reflection, problems_of
from tightloop.value import Value, shorten

STEPS_LIMIT = 50
PROMPTS = Path(__file__).parent / "prompts"


def _listed(value: object) -> object:
    """Accept what models write instead of a list: nothing, or the only item."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def _command(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError:
        # Unbalanced quotes: kept as one word, which no list of programs allows.
        return [value]


_Texts = Annotated[list[str], BeforeValidator(_listed)]


class _Step(Value):
    title: str = ""
    run: Annotated[list[str] | None, BeforeValidator(_command)] = None


class _Alignment(Value):
    answer: Annotated[Literal["yes", "no"], LOWERED]
    rationale: str = ""


class _Plan(Value):
    """The answer; `prompts/answer.json` is its schema."""

    diagnosis: str = ""
    action_items: _Texts = Field(default_factory=list)
    steps: list[_Step] = Field(default_factory=list)
    scope: _Texts = Field(default_factory=list)
    context: str | None = ""
    claims_done: bool = False
    gave_up: bool = False
    reason: str | None = ""
    alignment: _Alignment


class OpenAIPlanner:
    """Asks a model for the next plan and enforces the template on its answer."""

    def __init__(self, service: ModelService) -> None:
        self._asker = PromptedAsker(service, PROMPTS, "plan")

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        """Answer a briefing; see the port."""
        exchange = await self._asker.ask(
            "plan.md", cleared(briefing), briefing.prompt_privacy, lambda value: self._read(value, briefing)
        )
        plan = exchange.value
        if plan is None:
            verdict = PlanVerdict.GAVE_UP if exchange.refusal else PlanVerdict.MALFORMED
            reason = exchange.failure
        elif plan.gave_up:
            verdict, reason = PlanVerdict.GAVE_UP, plan.reason or ""
        elif plan.claims_done and not plan.steps:
            verdict, reason = PlanVerdict.CLAIMS_DONE, plan.reason or ""
        else:
            verdict, reason = PlanVerdict.PLANNED, ""
        return PlannerAnswer(
            verdict=verdict,
            message=_message(plan, briefing) if plan else None,
            # Nobody can tell which of them a model followed.
            followed=tuple(one.pattern.id for one in cleared(briefing).remembered or () if one.pattern),
            reason=shorten(reason, 2_000),
            usage=exchange.usage,
            model=exchange.model,
            prompt_sha256=self._asker.sha256,
            repair=exchange.level.value if plan else "",
            transcript=exchange.transcript,
        )

    def _read(self, value: dict[str, Any], briefing: Briefing) -> _Plan:
        plan = _Plan.model_validate(value)
        found: list[str] = []
        if plan.claims_done and plan.gave_up:
            found.append("`claims_done` and `gave_up` are both true: at most one of them can be")
        if plan.gave_up and not (plan.reason or "").strip():
            found.append("`reason` is empty: say in one sentence what a person has to do")
        if not (plan.steps or plan.claims_done or plan.gave_up):
            found.append("`steps` is empty: give at least one step, or set `claims_done` or `gave_up`")
        if len(plan.steps) > STEPS_LIMIT:
            found.append(f"`steps` has {len(plan.steps)} items: at most {STEPS_LIMIT}, for one cause")
        found.extend(f"`steps.{n}.title` is empty" for n, step in enumerate(plan.steps) if not step.title.strip())
        problems = [*problems_of(*_closing(plan)), *found, *_not_runnable(plan, briefing.programs)]
        if problems:
            raise Unusable(*problems)
        # A model may copy the example; its diagnosis tells it apart from an answer.
        if plan.diagnosis == self._asker.example["diagnosis"]:
            raise Unusable("the example came back: plan for the goal of the briefing")
        return plan


def _closing(plan: _Plan) -> tuple[Reflection, Alignment]:
    return (
        Reflection(diagnosis=plan.diagnosis, action_items=tuple(plan.action_items)),
        Alignment(answer=plan.alignment.answer, rationale=plan.alignment.rationale),
    )


def _not_runnable(plan: _Plan, programs: tuple[str, ...]) -> list[str]:
    if not programs or plan.gave_up:
        return []
    allowed = ", ".join(programs)
    found: list[str] = []
    for number, step in enumerate(plan.steps):
        if not step.run:
            found.append(f"`steps.{number}.run` is missing: the executor can only run programs ({allowed})")
        elif step.run[0].rsplit("/", 1)[-1] not in programs and step.run[0] not in programs:
            found.append(f"`steps.{number}.run` starts {step.run[0]!r}: the executor may only run {allowed}")
    return found


def _message(plan: _Plan, briefing: Briefing) -> PlanMessage:
    reflection, alignment = _closing(plan)
    return PlanMessage(
        project=briefing.project,
        goal=briefing.goal,
        iteration=briefing.iteration,
        definition_of_done=briefing.definition_of_done,
        context=plan.context or "",
        steps=tuple(PlannedStep(title=step.title, run=tuple(step.run or ())) for step in plan.steps),
        scope=tuple(plan.scope),
        final=plan.claims_done,
        reflection=reflection,
        alignment=alignment,
    )
