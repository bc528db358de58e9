"""Questions of plans to a model: egress, budget of the step, checked answers, and all of it kept by hash."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from activities.model.asking import Asker, Exchange, Question, Unusable
from activities.model.client import AnswerSchema
from activities.model.egress import WITHHELD
from activities.model.prompt import Prompts
from activities.model.service import ModelService
from activities.plan.outputs import unfit
from activities.plan.port import Work
from activities.plan.runners.schema import problems_with, schema_problem, strict
from tightloop.artifact import ArtifactRef
from tightloop.budget import Usage
from tightloop.egress import Egress
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.plan.language.reference import resolve
from tightloop.plan.model import FailureClass
from tightloop.plan.result import REASON_CHARACTERS, StepFailure
from tightloop.value import shorten

CANCEL_POLL_S = 0.5
PROMPTS = Path(__file__).parents[1] / "prompts"
_WRITTEN_BY_THE_AUTHOR = ("plan.", "seed")
"""References whose values stand in the plan itself."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a model is asked."""

    prompt: str
    """With references."""
    system: str = "step.md"
    schema: Mapping[str, Any]
    model: str = ""
    max_output_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What came of a question."""

    value: dict[str, Any] = field(default_factory=dict)
    failure: StepFailure | None = None
    model: str = ""
    usage: Usage | None = None
    calls: int = 0
    artifacts: dict[str, ArtifactRef] = field(default_factory=dict)


class PlanModel:
    """Asks the model service of this worker for steps of plans."""

    def __init__(self, service: ModelService, egress_of: Callable[[str], Egress]) -> None:
        """Take the service, and the level of a workspace."""
        self._service = service
        self._egress_of = egress_of
        self._prompts = Prompts(PROMPTS, context_characters=service.context_characters)

    @property
    def configured(self) -> bool:
        """Whether there is a service to ask."""
        return self._service.configured

    def render(self, name: str, **values: object) -> str:
        """Return a prompt of the plan activities."""
        return self._prompts.render(name, **values)

    def prompt(self, work: Work, text: str) -> str:
        """Return a prompt with its references replaced, as far as the workspace's egress level lets values out.

        At `summary` only numbers, truth values and what the plan's author wrote are left.
        """
        if self._egress_of(work.scope.workspace) is not Egress.SUMMARY:
            return str(resolve(text + "\n", work.lookup)).rstrip("\n")

        def outlined(name: str) -> Any:
            value = work.lookup(name)
            own = name.startswith(_WRITTEN_BY_THE_AUTHOR)
            return value if own or value is None or isinstance(value, bool | int | float) else WITHHELD

        return str(resolve(text + "\n", outlined)).rstrip("\n")

    def ask(self, work: Work, asked: Asked) -> Answered:
        """Ask until the answer fits the schema, a bounded number of times. Failures are data."""
        prompt = self.prompt(work, asked.prompt)
        problem = self._problem(prompt, asked)
        if problem:
            return Answered(failure=_failure(FailureClass.LOGIC, problem))
        artifacts = {"prompt": work.store.put(prompt.encode(), name="prompt", media_type="text/markdown")}
        question = Question(
            system=self._prompts.render(asked.system),
            user=prompt,
            schema=AnswerSchema("answer", strict(asked.schema)),
            egress=self._egress_of(work.scope.workspace),
        )

        def read(value: dict[str, Any]) -> dict[str, Any]:
            if why := unfit(value):
                raise Unusable(why)
            if problems := problems_with(value, asked.schema):
                raise Unusable(*problems)
            return value

        asker = Asker(self._chosen(work, asked))
        try:
            exchange = asyncio.run(_until_cancelled(work, asker, question, read))
        except PlannerError as error:
            return Answered(failure=_failure(FailureClass.LOGIC, error.message), calls=1, artifacts=artifacts)
        except PlannerUnavailableError as error:
            wait = None if error.retry_after is None else error.retry_after.total_seconds()
            failure = _failure(FailureClass.TRANSIENT, error.message).model_copy(update={"retry_after_s": wait})
            return Answered(failure=failure, calls=1, artifacts=artifacts)
        if exchange is None:
            return Answered(failure=_failure(FailureClass.TRANSIENT, "the question was stopped"), artifacts=artifacts)
        artifacts["exchange"] = work.store.put(exchange.transcript, name="exchange", media_type="text/markdown")
        return _answered(exchange, artifacts)

    def _problem(self, prompt: str, asked: Asked) -> str:
        if not self._service.configured:
            return (
                "no model can be asked: the worker has no key. Set OPENAI_API_KEY (or the variable that "
                "planner.api_key_env names), or planner.base_url for a service of your own, and restart the worker"
            )
        bound = self._service.context_characters
        if len(prompt) > bound:
            return (
                f"the prompt has {len(prompt)} characters, more than planner.context_characters ({bound}): ask for less"
            )
        if "properties" not in asked.schema:
            right = '{"type": "object", "properties": {"answer": {"type": "string"}}}'
            return f"the schema has no properties: a right one is {right}"
        return schema_problem(asked.schema)

    def _chosen(self, work: Work, asked: Asked) -> ModelService:
        """Return the service with the step's model and bounds."""
        bounds = (self._service.max_output_tokens, asked.max_output_tokens, work.step.budget.max_tokens)
        return replace(
            self._service,
            models=(asked.model,) if asked.model else self._service.models,
            max_output_tokens=max(min(bound for bound in bounds if bound is not None), 1),
            timeout_s=min(self._service.timeout_s, work.step.timeout_s),
        )


async def _until_cancelled(
    work: Work, asker: Asker, question: Question, read: Callable[[dict[str, Any]], dict[str, Any]]
) -> Exchange[dict[str, Any]] | None:
    going = asyncio.ensure_future(asker.ask(question, read))
    try:
        while not going.done():
            if work.cancelled():
                return None
            await asyncio.wait({going}, timeout=CANCEL_POLL_S)
        return going.result()
    finally:
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)


def _answered(exchange: Exchange[dict[str, Any]], artifacts: dict[str, ArtifactRef]) -> Answered:
    failure = None
    if exchange.refusal:
        failure = _failure(FailureClass.LOGIC, f"model {exchange.model} refuses to answer: {exchange.refusal}")
    elif exchange.value is None or exchange.truncated:
        failure = _failure(FailureClass.LOGIC, exchange.failure)
    return Answered(
        value=exchange.value or {},
        failure=failure,
        model=exchange.model,
        usage=exchange.usage,
        calls=exchange.asked,
        artifacts=artifacts,
    )


def _failure(failure_class: FailureClass, reason: str) -> StepFailure:
    return StepFailure(failure_class=failure_class, reason=shorten(reason, REASON_CHARACTERS))
