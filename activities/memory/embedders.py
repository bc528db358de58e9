"""Embedder selection, and embeddings from a model service."""

import asyncio
import math
from array import array
from collections.abc import Sequence
from pathlib import Path

from activities.model.client import OPENAI_URL, ModelService
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.memory import OPENAI, Embedder, HashingEmbedder, unit
from tightloop.settings import MemorySettings


def choose_embedder(settings: MemorySettings, service: ModelService) -> Embedder:
    """Create the configured embedder. A local model is loaded from its folder.

    Raises:
        SettingsError: the service has no key, or the folder contains no model.
    """
    if settings.embedder == "local":
        # Importing NumPy takes 0.1 s.
        from activities.memory.local import LocalEmbedder

        return LocalEmbedder(Path(settings.folder).expanduser())
    if settings.embedder == "openai":
        if not service.configured:
            raise SettingsError(
                "memory.embedder is openai, but no key is set. Set OPENAI_API_KEY, set planner.base_url to "
                "your own service, or use memory.embedder: hashing"
            )
        return OpenAIEmbedder(service, settings.model, settings.dimension, settings.timeout_s)
    return HashingEmbedder()


TEXTS_AT_ONCE = 256
"""Number of texts per request. The service accepts up to 2 048."""


class OpenAIEmbedder:
    """Gets embeddings from a model such as `text-embedding-3-large`.

    The service shortens each vector to the given dimension.
    """

    profile = OPENAI

    def __init__(self, service: ModelService, model: str, dimension: int, timeout_s: float) -> None:
        """Set the service, the model, the vector length and the timeout of each request."""
        self._service, self.name, self.dimension, self._timeout_s = service, model, dimension, timeout_s

    def embed(self, texts: Sequence[str]) -> "list[array[float]]":
        """Request a vector for each text. Requests cost money.

        Call this from a thread without an event loop.

        Raises:
            ServiceUnavailableError: the service rejects the request, times out, or returns vectors of the
                wrong shape.
        """
        return asyncio.run(self._embed(texts))

    async def _embed(self, texts: Sequence[str]) -> "list[array[float]]":
        # Importing the SDK takes most of a second: a worker with another embedder never pays for it.
        import openai

        from activities.model.failure import bounded_client
        from activities.model.repair import AnswerError

        vectors: list[array[float]] = []
        try:
            async with openai.AsyncOpenAI(
                http_client=bounded_client(),
                api_key=self._service.api_key or "none",
                base_url=self._service.base_url or OPENAI_URL,
                timeout=self._timeout_s,
                # No retries: the memory is optional, so nothing waits for it.
                max_retries=0,
            ) as client:
                for start in range(0, len(texts), TEXTS_AT_ONCE):
                    answer = await client.embeddings.create(
                        # The service rejects empty texts.
                        input=[text or "-" for text in texts[start : start + TEXTS_AT_ONCE]],
                        model=self.name,
                        dimensions=self.dimension,
                        encoding_format="float",
                    )
                    vectors += [unit(item.embedding) for item in sorted(answer.data, key=lambda item: item.index)]
        except (openai.OpenAIError, AnswerError, ValueError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ServiceUnavailableError(
                f"model {self.name} returned no vectors: {reason}. Check planner.base_url"
            ) from error
        right = [vector for vector in vectors if len(vector) == self.dimension and all(map(math.isfinite, vector))]
        if len(right) != len(texts):
            raise ServiceUnavailableError(
                f"model {self.name} returned {len(right)} vectors of length {self.dimension} for {len(texts)} texts. "
                "Check memory.model and memory.dimension"
            )
        return right
