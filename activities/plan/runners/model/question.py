"""Questions of plans to a model: prompt privacy, the budget of the step, checked answers, a record by hash."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from activities.model.asking import Asker, Exchange, Question, Unusable
from activities.model.client import AnswerSchema
from activities.model.prompt import Prompts
from activities.model.prompt_privacy import WITHHELD
from activities.model.service import ModelService
from activities.plan.attempts.contract import make_failure
from activities.plan.attempts.outputs import find_unfit
from activities.plan.port import RunnerResult, Work
from activities.plan.runners.model.schema import problems_with, schema_problem, strict
from activities.plan.runners.waiting import run_until
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.plan.document.failing import FailureClass
from tightloop.plan.language.reference import resolve
from tightloop.safety.prompt_privacy import PromptPrivacy
from tightloop.value.artifact import ArtifactRef

PROMPTS = Path(__file__).parents[2] / "prompts"
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
class Answered(RunnerResult):
    """The result of a question: the fields of the answer are its outputs."""

    model: str = ""


class PlanModel:
    """Asks the model service of this worker for steps of plans."""

    def __init__(self, service: ModelService, prompt_privacy_of: Callable[[str], PromptPrivacy]) -> None:
        """Take the service, and the level of a workspace."""
        self._service = service
        self._prompt_privacy_of = prompt_privacy_of
        self._prompts = Prompts(PROMPTS, context_characters=service.context_characters)

    @property
    def configured(self) -> bool:
        """Whether there is a service to ask."""
        return self._service.configured

    def render(self, name: str, **values: object) -> str:
        """Return a prompt of the plan activities."""
        return self._prompts.render(name, **values)

    def prompt(self, work: Work, text: str) -> str:
        """Return a prompt with its references replaced, within the prompt privacy of the workspace.

        At `summary` only numbers, truth values and what the plan's author wrote are left.
        """
        # The line end keeps a prompt that is one reference a text; otherwise it would become the value itself.
        if self._prompt_privacy_of(work.scope.workspace) is not PromptPrivacy.SUMMARY:
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
            return Answered(failure=make_failure(problem))
        artifacts = {"prompt": work.store.put(prompt.encode(), name="prompt", media_type="text/markdown")}
        question = Question(
            system=self._prompts.render(asked.system),
            user=prompt,
            schema=AnswerSchema("answer", strict(asked.schema)),
            prompt_privacy=self._prompt_privacy_of(work.scope.workspace),
        )

        def read(value: dict[str, Any]) -> dict[str, Any]:
            if why := find_unfit(value):
                raise Unusable(why)
            if problems := problems_with(value, asked.schema):
                raise Unusable(*problems)
            return value

        asker = Asker(self._chosen(work, asked))
        try:
            exchange = asyncio.run(run_until(asker.ask(question, read), work.cancelled))
        except PlannerError as error:
            return Answered(failure=make_failure(error.message), api_calls=1, artifacts=artifacts)
        except PlannerUnavailableError as error:
            wait = None if error.retry_after is None else error.retry_after.total_seconds()
            failure = make_failure(error.message, FailureClass.TRANSIENT).evolve(retry_after_s=wait)
            return Answered(failure=failure, api_calls=1, artifacts=artifacts)
        except TimeoutError:
            stopped = make_failure("the question was stopped", FailureClass.TRANSIENT)
            return Answered(failure=stopped, artifacts=artifacts)
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


def _answered(exchange: Exchange[dict[str, Any]], artifacts: dict[str, ArtifactRef]) -> Answered:
    failure = None
    if exchange.refusal:
        failure = make_failure(f"model {exchange.model} refuses to answer: {exchange.refusal}")
    elif exchange.value is None or exchange.truncated:
        failure = make_failure(exchange.failure)
    return Answered(
        outputs=exchange.value or {},
        failure=failure,
        model=exchange.model,
        usage=exchange.usage,
        api_calls=exchange.asked,
        artifacts=artifacts,
    )
