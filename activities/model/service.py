"""The model service and its bounds."""

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from tightloop.safety.prompt_privacy import PromptPrivacy

OPENAI_URL = "https://api.openai.com/v1"
DEFAULT_MODELS = ("gpt-5.1", "gpt-5-mini")


@dataclass(frozen=True, kw_only=True)
class ModelService:
    """An OpenAI-compatible service and how it is used."""

    api_key: str = field(default="", repr=False)
    base_url: str = OPENAI_URL
    models: tuple[str, ...] = DEFAULT_MODELS
    """The first that the service has is used; the next ones where it says that it has not."""
    api: Literal["auto", "responses", "chat"] = "auto"
    """`auto`: Responses at OpenAI itself, Chat Completions elsewhere, where Responses often ignore the schema."""
    timeout_s: float = 100.0
    """For one request; keep it below the timeout of the activity."""
    silence_s: float = 120.0
    """Longest silence within an answer that comes in pieces."""
    max_output_tokens: int = 8_000
    corrections: int = 2
    """Maximum number of times a malformed answer is sent back."""
    context_characters: int = 60_000
    """Bound of the changing part of a prompt."""
    strictest_privacy: PromptPrivacy = PromptPrivacy.FULL
    """The strictest level of any project that is served: it holds for prompts whose author names none."""

    @property
    def configured(self) -> bool:
        """Whether it can be asked: there is a key, or an own service, which may need none."""
        return bool(self.api_key) or not self.is_openai

    def plans(self, planner: str) -> bool:
        """Return whether a planner of this kind asks it."""
        return self.configured and planner in ("auto", "openai")

    @property
    def is_openai(self) -> bool:
        """Whether it is OpenAI's own service."""
        host = urlsplit(self.base_url or OPENAI_URL).hostname or ""
        return host == "openai.com" or host.endswith(".openai.com")

    @property
    def uses_responses(self) -> bool:
        """Whether the Responses API is used."""
        return self.api == "responses" or (self.api == "auto" and self.is_openai)
