"""Steps that ask a model."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from activities.model.asking import WITHHELD, Asker, Exchange, Prompts, Question, UnusableAnswerError
from activities.model.client import AnswerSchema, ModelService
from activities.plan.attempts.runner import make_failure
from activities.plan.outputs import find_unfit
from activities.plan.port import RunnerResult, Work
from activities.plan.runners.request import run_until
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.plan.action import ModelAction
from tightloop.plan.failing import FailureClass
from tightloop.plan.reference import FunctionError, pattern_of, resolve
from tightloop.safety.drift import PromptPrivacy
from tightloop.value import ArtifactRef, clip, shorten

PROBLEMS_LIMIT = 8
PROBLEM_CHARACTERS = 300
"""Maximum length of a problem. The tail is kept because messages start with the value."""


def schema_problem(schema: Mapping[str, Any]) -> str:
    """Return the reason why a schema is invalid, or "" if it is valid."""
    try:
        _Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"the schema is invalid at '{_place(error)}': {clip(error.message, PROBLEM_CHARACTERS)}"
    except RecursionError:
        return "the schema is nested too deeply"
    return ""


def find_violations(value: Any, schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return at most `PROBLEMS_LIMIT` sentences about schema violations. Empty if the value is valid."""
    if problem := schema_problem(schema):
        return (problem,)
    try:
        # Empty registry: a schema must not make this process fetch another one.
        errors = sorted(_Validator(schema, registry=Registry()).iter_errors(value), key=lambda error: error.json_path)
    except Unresolvable as error:
        return (f"the schema refers to {error.ref!r} but does not contain it",)
    except FunctionError as error:
        return (f"invalid schema: {error}",)
    except RecursionError:
        return ("the schema or the value is nested too deeply",)
    return tuple(f"`{_place(error)}`: {clip(error.message, PROBLEM_CHARACTERS)}" for error in errors[:PROBLEMS_LIMIT])


def strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a schema for strict mode. All properties become required, and no others are allowed."""
    result: dict[str, Any] = {name: _strict(name, part) for name, part in schema.items()}
    if isinstance(schema.get("properties"), Mapping):
        result |= {"required": list(schema["properties"]), "additionalProperties": False}
    return result


def _strict(name: str, part: Any) -> Any:
    if name in ("properties", "$defs") and isinstance(part, Mapping):
        return {key: strict(value) if isinstance(value, Mapping) else value for key, value in part.items()}
    if name == "items" and isinstance(part, Mapping):
        return strict(part)
    if name in ("anyOf", "allOf", "oneOf") and isinstance(part, list | tuple):
        return [strict(value) if isinstance(value, Mapping) else value for value in part]
    return part


def _place(error: jsonschema.ValidationError | jsonschema.SchemaError) -> str:
    return ".".join(map(str, error.absolute_path)) or "(whole)"


# jsonschema matches patterns with `re`, whose backtracking takes exponential time for some.
def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
    if isinstance(instance, str) and not pattern_of(pattern).isinstance_python(instance):
        yield jsonschema.ValidationError(f"{shorten(instance, 80)!r} does not match {pattern!r}")


_Validator: Any = extend(jsonschema.Draft202012Validator, {"pattern": _pattern})  # type: ignore[no-untyped-call]


PROMPTS = Path(__file__).parents[1] / "prompts"
_AUTHOR_KEYS = ("plan.", "seed")
"""Prefixes of references whose values are part of the plan itself."""


@dataclass(frozen=True, kw_only=True)
class ModelQuestion:
    """A question for a model."""

    prompt: str
    """Prompt, which may contain references."""
    system: str = "step.md"
    schema: Mapping[str, Any]
    model: str = ""
    max_output_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelRunnerResult(RunnerResult):
    """A model's answer. Its fields are used as outputs."""

    model: str = ""


class PlanModel:
    """Sends the questions of plan steps to the worker's model service."""

    def __init__(self, service: ModelService, prompt_privacy_of: Callable[[str], PromptPrivacy]) -> None:
        self._service = service
        self._prompt_privacy_of = prompt_privacy_of
        self._prompts = Prompts(PROMPTS, context_characters=service.context_characters)

    @property
    def configured(self) -> bool:
        return self._service.configured

    def render(self, name: str, **values: object) -> str:
        return self._prompts.render(name, **values)

    def prompt(self, work: Work, text: str) -> str:
        """Resolve the references in a prompt, as far as the workspace's prompt privacy allows.

        At the `summary` level, only numbers, booleans and values written by the plan's author are included.
        """
        # The newline forces a text: a prompt that is a single reference would resolve to the raw value.
        if self._prompt_privacy_of(work.scope.workspace) is not PromptPrivacy.SUMMARY:
            return str(resolve(text + "\n", work.lookup)).rstrip("\n")

        def look_up_public(name: str) -> Any:
            value = work.lookup(name)
            is_authored = name.startswith(_AUTHOR_KEYS)
            return value if is_authored or value is None or isinstance(value, bool | int | float) else WITHHELD

        return str(resolve(text + "\n", look_up_public)).rstrip("\n")

    def ask(self, work: Work, request: ModelQuestion) -> ModelRunnerResult:
        """Ask until the answer matches the schema or a limit is reached. Failures are returned, not raised."""
        prompt = self.prompt(work, request.prompt)
        problem = self._problem(prompt, request)
        if problem:
            return ModelRunnerResult(failure=make_failure(problem))
        # Stored before the call, so that it can be read after a failed one too.
        artifacts = {"prompt": work.store.put(prompt.encode(), name="prompt", media_type="text/markdown")}
        question = Question(
            system=self._prompts.render(request.system),
            user=prompt,
            schema=AnswerSchema("answer", strict(request.schema)),
            prompt_privacy=self._prompt_privacy_of(work.scope.workspace),
        )

        def read(value: dict[str, Any]) -> dict[str, Any]:
            if why := find_unfit(value):
                raise UnusableAnswerError(why)
            # In strict mode services ignore keywords such as `pattern` and `minimum`, so every answer is checked here.
            if problems := find_violations(value, request.schema):
                raise UnusableAnswerError(*problems)
            return value

        asker = Asker(self._chosen(work, request))
        try:
            exchange = asyncio.run(run_until(asker.ask(question, read), work.cancelled))
        except PlannerError as error:
            return ModelRunnerResult(failure=make_failure(error.message), api_calls=1, artifacts=artifacts)
        except PlannerUnavailableError as error:
            wait = None if error.retry_after is None else error.retry_after.total_seconds()
            failure = make_failure(error.message, FailureClass.TRANSIENT).evolve(retry_after_s=wait)
            return ModelRunnerResult(failure=failure, api_calls=1, artifacts=artifacts)
        except TimeoutError:
            stopped = make_failure("the model call was stopped", FailureClass.TRANSIENT)
            return ModelRunnerResult(failure=stopped, artifacts=artifacts)
        artifacts["exchange"] = work.store.put(exchange.transcript, name="exchange", media_type="text/markdown")
        return _make_answer(exchange, artifacts)

    def _problem(self, prompt: str, request: ModelQuestion) -> str:
        if not self._service.configured:
            return (
                "cannot ask a model: the worker has no API key. Set OPENAI_API_KEY (or the variable named in "
                "planner.api_key_env), or set planner.base_url to your own service, and restart the worker"
            )
        bound = self._service.context_characters
        if len(prompt) > bound:
            return (
                f"the prompt is {len(prompt)} characters long, but planner.context_characters is {bound}. "
                "Shorten the prompt"
            )
        if "properties" not in request.schema:
            right = '{"type": "object", "properties": {"answer": {"type": "string"}}}'
            return f"the schema has no properties. Example: {right}"
        return schema_problem(request.schema)

    def _chosen(self, work: Work, request: ModelQuestion) -> ModelService:
        """Return the model service with the step's model, token limit and time limit applied."""
        bounds = (self._service.max_output_tokens, request.max_output_tokens, work.step.budget.max_tokens)
        return replace(
            self._service,
            models=(request.model,) if request.model else self._service.models,
            # Services reject 0, which a nearly spent budget yields.
            max_output_tokens=max(min(bound for bound in bounds if bound is not None), 1),
            timeout_s=min(self._service.timeout_s, work.step.timeout_s),
        )


def _make_answer(exchange: Exchange[dict[str, Any]], artifacts: dict[str, ArtifactRef]) -> ModelRunnerResult:
    failure = None
    if exchange.refusal:
        failure = make_failure(f"model {exchange.model} refused to answer: {exchange.refusal}")
    # A truncated answer may still be valid, with its last text cut short.
    elif exchange.value is None or exchange.truncated:
        failure = make_failure(exchange.failure)
    return ModelRunnerResult(
        outputs=exchange.value or {},
        failure=failure,
        model=exchange.model,
        usage=exchange.usage,
        api_calls=exchange.attempts,
        artifacts=artifacts,
    )


PREVIEW_CHARACTERS = 4_000
PLAIN = strict({"type": "object", "properties": {"text": {"type": "string"}}})
"""Schema to use if the step has none. The answer becomes the `text` output."""


class ModelRunner:
    """Runs model steps. The fields of the answer become the step's outputs."""

    def __init__(self, model: PlanModel) -> None:
        self._model = model

    def preview(self, work: Work) -> str:
        return shorten(self._model.prompt(work, work.action(ModelAction).prompt), PREVIEW_CHARACTERS)

    def run(self, work: Work) -> RunnerResult:
        """Ask the model. The prompt, the answer and the full exchange are stored as artifacts."""
        action = work.action(ModelAction)
        answered = self._model.ask(
            work,
            ModelQuestion(
                prompt=action.prompt,
                schema=action.schema_ or PLAIN,
                model=action.model,
                max_output_tokens=action.max_output_tokens,
            ),
        )
        artifacts = dict(answered.artifacts)
        if answered.failure is None:
            content = json.dumps(answered.outputs, ensure_ascii=False, indent=1, sort_keys=True).encode()
            artifacts["answer"] = work.store.put(content, name="answer")
        command = f"asked {answered.model or action.model or 'no model'}"
        summary = shorten(answered.failure.reason if answered.failure else command, 200)
        return replace(answered, artifacts=artifacts, command=command, summary=summary)
