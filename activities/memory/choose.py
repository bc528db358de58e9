"""Chooses the embedder that the settings name."""

from pathlib import Path

from activities.model.service import ModelService
from tightloop.errors import SettingsError
from tightloop.memory.embedding import Embedder, HashingEmbedder
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
        from activities.memory.openai import OpenAIEmbedder

        if not service.configured:
            raise SettingsError(
                "memory.embedder is openai, but there is no key: set OPENAI_API_KEY, or name your own service "
                "with planner.base_url, or use memory.embedder: hashing"
            )
        return OpenAIEmbedder(service, settings.model, settings.dimension, settings.timeout_s)
    return HashingEmbedder()
