"""What every call of a model service shares: the client, which model answers, and what the usage is."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from activities.model.observed import operation
from activities.model.service import OPENAI_URL, ModelService
from tightloop.errors import PlannerError
from tightloop.executor.usage import Usage
from tightloop.telemetry import genai

if TYPE_CHECKING:
    import openai


class Answered(Protocol):
    """What an answer tells of itself."""

    @property
    def usage(self) -> Usage:
        """What it cost."""
        ...

    @property
    def model(self) -> str:
        """Which model gave it."""
        ...

    @property
    def response_id(self) -> str:
        """The id that the service gave it."""
        ...

    @property
    def finish_reason(self) -> str:
        """Why it ended, in the word of the service."""
        ...


T = TypeVar("T", bound=Answered)


def open_client(service: ModelService, *, silence_s: float | None = None) -> "openai.AsyncOpenAI":
    """Return a client; use it as a context manager.

    Args:
        service: whom it asks.
        silence_s: longest silence within an answer that is streamed; one that comes as a whole is silent until then.
    """
    # The SDK takes most of a second to import: a worker that asks no model never pays for it.
    import httpx2
    import openai

    from activities.model.bounded import bounded_client

    return openai.AsyncOpenAI(
        http_client=bounded_client(),
        # An empty key is passed on as a word: own services need none, and the SDK must not look for one elsewhere.
        api_key=service.api_key or "none",
        base_url=service.base_url or OPENAI_URL,
        timeout=httpx2.Timeout(service.timeout_s, read=min(silence_s or service.timeout_s, service.timeout_s)),
        # Temporal makes the next try: durable, visible, and after the wait that the service asks for.
        max_retries=0,
    )


def load_client(service: ModelService) -> None:
    """Import what the first request would have to wait for; most of the SDK is loaded when it is first used."""
    client = open_client(service)
    _ = client.responses if service.uses_responses else client.chat.completions


class FirstAvailable:
    """Asks the first model of a list that the service has."""

    def __init__(self, service: ModelService, setting: str, missing: set[str] | None = None) -> None:
        """Take the service, the name of the setting with the list, for the error, and what is known to be missing."""
        self._service = service
        self._setting = setting
        self._missing = set() if missing is None else missing

    async def ask(self, call: Callable[[str], Awaitable[T]], *, conversation: str = "", agent: str = "") -> T:
        """Return what `call` returns for the first model that is not missing.

        Args:
            call: asks a model.
            conversation: id of the conversation that it belongs to.
            agent: name of the agent that asks.

        Raises:
            PlannerError: the service refuses, or has none of the models; not retryable.
            PlannerUnavailableError: it is busy or down; retryable.
        """
        import openai

        from activities.model.failure import model_missing, too_large, translated
        from activities.model.unpacking import AnswerError

        refused: list[str] = []
        models = self._service.models
        # All of them again once every one was missing: access may have been granted since.
        for model in tuple(each for each in models if each not in self._missing) or models:
            try:
                # Whoever else speaks the API of OpenAI goes by its name, too.
                about = {genai.PROVIDER: "openai", genai.REQUEST_MODEL: model}
                about |= {genai.CONVERSATION: conversation, genai.AGENT: agent}
                with operation(genai.CHAT, model, about) as made:
                    answer = await call(model)
                    made.answered(
                        answer.usage,
                        model=answer.model,
                        response_id=answer.response_id,
                        finish_reason=answer.finish_reason,
                    )
                return answer
            except openai.APIStatusError as error:
                if not model_missing(error):
                    raise translated(error, model) from error
                self._missing.add(model)
                refused.append(f"{model} ({error.status_code})")
            except AnswerError as error:
                raise too_large(error, model) from error
            except openai.APIError as error:
                raise translated(error, model) from error
        raise PlannerError(
            f"{self._service.base_url} has none of the models {', '.join(refused) or '(none configured)'}: "
            f"set {self._setting} to names that this key may use, and check the base URL"
        )


def read_usage(reported: dict[str, Any], came_in: str, went_out: str) -> Usage:
    """Return the usage that a service reported.

    Args:
        reported: the object `usage` of its answer; empty where there is none.
        came_in: what the API calls the tokens of the prompt: `input` or `prompt`.
        went_out: what it calls those of the answer: `output` or `completion`.
    """
    details = reported.get(f"{came_in}_tokens_details")
    cost = reported.get("cost")
    return Usage(
        input_tokens=_count(reported.get(f"{came_in}_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        output_tokens=_count(reported.get(f"{went_out}_tokens")),
        cost_usd=float(cost) if isinstance(cost, int | float) else None,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
