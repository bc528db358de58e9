"""Choice of an embedder, and embeddings by a model service."""

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
    """Return the embedder; a local model is read from its folder.

    Raises:
        SettingsError: the service has no key, or the folder is not that of a model.
    """
    if settings.embedder == "local":
        # NumPy takes 0.1 s to import.
        from activities.memory.local import LocalEmbedder

        return LocalEmbedder(Path(settings.folder).expanduser())
    if settings.embedder == "openai":
        if not service.configured:
            raise SettingsError(
                "memory.embedder is openai, but there is no key: set OPENAI_API_KEY, or name your own service "
                "with planner.base_url, or use memory.embedder: hashing"
            )
        return OpenAIEmbedder(service, settings.model, settings.dimension, settings.timeout_s)
    return HashingEmbedder()


TEXTS_AT_ONCE = 256
"""The service takes 2 048 in one request."""


class OpenAIEmbedder:
    """Vectors of a model such as `text-embedding-3-large`, cut to a dimension by the service."""

    profile = OPENAI

    def __init__(self, service: ModelService, model: str, dimension: int, timeout_s: float) -> None:
        """Take the service, the model, the length of the vectors, and how long one request may take."""
        self._service, self.name, self.dimension, self._timeout_s = service, model, dimension, timeout_s

    def embed(self, texts: Sequence[str]) -> "list[array[float]]":
        """Return a vector for each text; from a thread without an event loop. Each call is paid for.

        Raises:
            ServiceUnavailableError: the service refuses, does not answer in time, or answers with other vectors.
        """
        return asyncio.run(self._embed(texts))

    async def _embed(self, texts: Sequence[str]) -> "list[array[float]]":
        # The SDK takes most of a second to import: a worker with another embedder never pays for it.
        import openai

        from activities.model.failure import bounded_client
        from activities.model.repair import AnswerError

        found: list[array[float]] = []
        try:
            async with openai.AsyncOpenAI(
                http_client=bounded_client(),
                api_key=self._service.api_key or "none",
                base_url=self._service.base_url or OPENAI_URL,
                timeout=self._timeout_s,
                # What cannot be had now is left out: nobody waits for the memory.
                max_retries=0,
            ) as client:
                for start in range(0, len(texts), TEXTS_AT_ONCE):
                    answer = await client.embeddings.create(
                        # An empty text is refused.
                        input=[text or "-" for text in texts[start : start + TEXTS_AT_ONCE]],
                        model=self.name,
                        dimensions=self.dimension,
                        encoding_format="float",
                    )
                    found += [unit(item.embedding) for item in sorted(answer.data, key=lambda item: item.index)]
        except (openai.OpenAIError, AnswerError, ValueError, TypeError, AttributeError) as error:
            said = " ".join(str(error).split())[:200]
            raise ServiceUnavailableError(f"no vectors of model {self.name}: {said}. Check planner.base_url") from error
        right = [vector for vector in found if len(vector) == self.dimension and all(map(math.isfinite, vector))]
        if len(right) != len(texts):
            raise ServiceUnavailableError(
                f"model {self.name} gave {len(right)} vectors of length {self.dimension} for {len(texts)} texts. "
                "Check memory.model and memory.dimension"
            )
        return right
