"""Models of OpenAI-compatible services, asked with tools; answers come in pieces."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import openai

from activities.coder.port import Message, ModelReply, ToolSpec, TurnModel, TurnModels
from activities.coder.turns.streams import read_chat, read_responses
from activities.coder.turns.wire import chat_request, mapped, responses_request
from activities.model.calling import FirstAvailable, open_client
from activities.model.prompt_privacy import passed
from activities.model.service import ModelService
from tightloop.coder.role import Role
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.safety.prompt_privacy import PromptPrivacy

AGENT = "coder"
OPTIONAL = ("temperature", "top_p", "parallel_tool_calls", "tool_choice", "stream_options", "prompt_cache_key")
"""What services and models may refuse by name; the answer is as good without it. OpenAI's thinking models take no
`temperature`, older servers no `parallel_tool_calls`."""


@dataclass
class Learnt:
    """What a service said of its models, kept for the next turns."""

    missing: set[str] = field(default_factory=set)
    """Models that it has not."""
    refused: dict[str, set[str]] = field(default_factory=dict)
    """By model: parameters that it does not take."""


class OpenAIModel:
    """One role's model. Every reply is one paid request: the caller's activity does the retrying."""

    def __init__(
        self,
        service: ModelService,
        role: Role,
        *,
        session: str = "",
        prompt_privacy: PromptPrivacy = PromptPrivacy.FULL,
        learnt: Learnt | None = None,
    ) -> None:
        """Take the service, the role that speaks, the id of the session, and what the project lets leave this host."""
        learnt = learnt or Learnt()
        self._service = replace(service, models=role.models or service.models)
        self._role = role
        self._session = session
        self._prompt_privacy = prompt_privacy
        self._first = FirstAvailable(self._service, "coder.models", learnt.missing)
        self._refused = learnt.refused

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, beat: Callable[[], None]
    ) -> ModelReply:
        """Ask once; see the port. Cancelling the task closes the connection.

        Raises:
            PlannerError: the project's prompts may hold no code; or the service refuses. Not retryable.
            PlannerUnavailableError: it is busy or down, silent for too long, or ends too early; retryable.
        """
        cleared = await asyncio.to_thread(self._cleared, messages)
        return await self._first.ask(
            lambda model: self._ask(model, cleared, tools, beat), conversation=self._session, agent=AGENT
        )

    def _cleared(self, messages: Sequence[Message]) -> Sequence[Message]:
        if self._prompt_privacy is PromptPrivacy.SUMMARY:
            raise PlannerError(
                "the coder was not started: it sends code to its model, and privacy.prompts of this project is "
                "'summary'. Set it to 'redacted' or 'full', or choose an executor with a model of its own"
            )
        if self._prompt_privacy is PromptPrivacy.FULL:
            return messages
        strictest = self._service.strictest_privacy
        return [
            mapped(message, lambda text: passed(text, self._prompt_privacy, strictest=strictest))
            for message in messages
        ]

    async def _ask(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], beat: Callable[[], None]
    ) -> ModelReply:
        service = self._service
        given = (responses_request if service.uses_responses else chat_request)(messages, tools)
        body = {"model": model, **given, **request_options(service, self._role, self._session)}
        read = read_responses if service.uses_responses else read_chat
        try:
            async with asyncio.timeout(service.timeout_s), open_client(service, silence_s=service.silence_s) as client:
                create = client.responses.create if service.uses_responses else client.chat.completions.create
                # A stream that is left and not closed goes on, and is paid for.
                async with await self._begin(create, body) as stream:
                    return await read(stream, model, beat)
        except TimeoutError:
            said = f"did not finish its answer within {service.timeout_s:g} s (coder.timeout_s)"
        except openai.APITimeoutError:
            said = f"said nothing for {service.silence_s:g} s (coder.silence_s)"
        except ValueError as error:
            # The SDK reads each event as JSON.
            said = f"sent what is not its API: {error}"
        raise PlannerUnavailableError(f"model {model} {said}")

    async def _begin(self, create: Any, body: dict[str, Any]) -> Any:
        """Send a request; once more without what the service refuses by name, which costs nothing."""
        refused = self._refused.setdefault(body["model"], set())
        while True:
            try:
                return await create(**{name: value for name, value in body.items() if name not in refused})
            except openai.APIStatusError as error:
                named = _named(error, [name for name in OPTIONAL if name in body and name not in refused])
                if error.status_code not in (400, 422) or not named:
                    raise
                refused.add(named)


def request_options(service: ModelService, role: Role, session: str) -> dict[str, Any]:
    """Return how a role is asked: bounds, sampling, and what only OpenAI itself is told."""
    limit = "max_output_tokens" if service.uses_responses else "max_completion_tokens"
    if not service.uses_responses and not service.is_openai:
        # OpenAI's thinking models refuse the old name; own services may know no other.
        limit = "max_tokens"
    options: dict[str, Any] = {limit: role.max_output_tokens}
    for name, value in (("temperature", role.temperature), ("top_p", role.top_p)):
        if value is not None:
            options[name] = value
    if service.is_openai:
        # Elsewhere many servers refuse the one or do not know the other.
        options["tool_choice"] = "required"
        if session:
            options["prompt_cache_key"] = session
    return options


def _named(error: openai.APIStatusError, names: Sequence[str]) -> str:
    """Return which parameter the service does not take."""
    return next((name for name in names if error.param == name or re.search(rf"\b{name}\b", error.message)), "")


def turn_models(service: ModelService) -> TurnModels:
    """Return who makes the model of a role."""
    learnt = Learnt()

    def model_of(role: Role, session: str, prompt_privacy: PromptPrivacy) -> TurnModel:
        return OpenAIModel(service, role, session=session, prompt_privacy=prompt_privacy, learnt=learnt)

    return model_of
