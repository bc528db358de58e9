"""A planner that asks a language model of an OpenAI-compatible service."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from activities.model.asking import Asker, Exchange, Question, Unusable
from activities.model.client import AnswerSchema
from activities.model.egress import cleared
from activities.model.prompt import Prompts
from activities.model.service import ModelService
from tightloop.message import Alignment, PlanMessage, PlannedStep, Reflection, problems_of
from tightloop.planning import Briefing, PlannerAnswer, PlanVerdict
from tightloop.value import shorten

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
        return [value]


def _lowered(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


_Texts = Annotated[list[str], BeforeValidator(_listed)]


class _Answered(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Step(_Answered):
    title: str = ""
    run: Annotated[list[str] | None, BeforeValidator(_command)] = None


class _Alignment(_Answered):
    answer: Annotated[Literal["yes", "no"], BeforeValidator(_lowered)]
    rationale: str = ""


class _Plan(_Answered):
    """The answer; `prompts/answer.json` is its schema."""

    diagnosis: str = ""
    action_items: _Texts = []
    steps: list[_Step] = []
    scope: _Texts = []
    context: str | None = ""
    claims_done: bool = False
    gave_up: bool = False
    reason: str | None = ""
    alignment: _Alignment


class OpenAIPlanner:
    """Asks a model for the next plan and enforces the template on its answer."""

    def __init__(self, service: ModelService) -> None:
        """Take the service; nothing is opened before the first plan."""
        self._asker = Asker(service)
        self._prompts = Prompts(PROMPTS, context_characters=service.context_characters)
        self._schema = AnswerSchema("plan", json.loads((PROMPTS / "answer.json").read_text(encoding="utf-8")))
        self._example = self._prompts.render("example.json")

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        """Answer a briefing.

        Raises:
            PlannerError: the service refuses; not retryable.
            PlannerUnavailableError: the service is busy or down; retryable.
        """
        question = Question(
            system=self._prompts.render("plan.md"),
            user=self._prompts.render("briefing.md", briefing=cleared(briefing)),
            schema=self._schema,
            egress=briefing.egress,
            example=self._example,
        )
        exchange = await self._asker.ask(question, lambda value: self._read(value, briefing))
        return _answer(exchange, briefing, self._prompts.sha256)

    def _read(self, value: dict[str, Any], briefing: Briefing) -> _Plan:
        plan = _checked(value, briefing)
        if plan.diagnosis == json.loads(self._example)["diagnosis"]:
            raise Unusable("the example came back: plan for the goal of the briefing")
        return plan


def _checked(value: dict[str, Any], briefing: Briefing) -> _Plan:
    plan = _Plan.model_validate(value)
    problems = [*problems_of(*_closing(plan)), *_missing(plan), *_not_runnable(plan, briefing.programs)]
    if problems:
        raise Unusable(*problems)
    return plan


def _closing(plan: _Plan) -> tuple[Reflection, Alignment]:
    return (
        Reflection(diagnosis=plan.diagnosis, action_items=tuple(plan.action_items)),
        Alignment(answer=plan.alignment.answer, rationale=plan.alignment.rationale),
    )


def _missing(plan: _Plan) -> list[str]:
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
    return found


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


def _answer(exchange: Exchange[_Plan], briefing: Briefing, prompt_sha256: str) -> PlannerAnswer:
    plan = exchange.value
    if plan is None:
        verdict = PlanVerdict.GAVE_UP if exchange.refusal else PlanVerdict.MALFORMED
        reason = f"the model refused: {exchange.refusal}" if exchange.refusal else exchange.failure
    elif plan.gave_up:
        verdict, reason = PlanVerdict.GAVE_UP, plan.reason or ""
    elif plan.claims_done and not plan.steps:
        verdict, reason = PlanVerdict.CLAIMS_DONE, plan.reason or ""
    else:
        verdict, reason = PlanVerdict.PLANNED, ""
    return PlannerAnswer(
        verdict=verdict,
        message=_message(plan, briefing) if plan else None,
        reason=shorten(reason, 2_000),
        usage=exchange.usage,
        model=exchange.model,
        prompt_sha256=prompt_sha256,
        repair=exchange.level.value if plan else "",
        transcript=exchange.transcript,
    )


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
