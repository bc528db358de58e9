"""Composes the memory: its database, its embedder, and what may be sent to a model."""

import json
import sys
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from activities.memory.choose import choose_embedder
from activities.memory.spared import Memories, SparedMemories, no_memories
from activities.model.service import ModelService
from tightloop.database.memory.opening import memory_database, open_memory
from tightloop.database.memory.store import MemoryStore
from tightloop.errors import InvalidRequestError
from tightloop.host import state_folder
from tightloop.memory.model import Kind, Query
from tightloop.safety.prompt_privacy import PromptPrivacy
from tightloop.settings import Settings
from tightloop.value import Document, Value, first_problem


class Recall(Document):
    """What is searched."""

    project: str
    """Id in the database of the memory."""
    text: str
    kind: Kind = Kind.FAILURE
    limit: int = 5


def memories(settings: Settings, service: ModelService) -> Memories:
    """Return the memory of each project, as the settings have it; what is wrong with it costs nothing else."""
    if not settings.memory.enabled:
        return no_memories

    # A local model is read once.
    embedder = cache(lambda: choose_embedder(settings.memory, service))

    def opened(workspace: Path) -> MemoryStore:
        level = settings.privacy.prompt_privacy_of(str(workspace.resolve()))
        # A failing line may quote any file: at this level none of it leaves the host.
        leaves = settings.memory.embedder == "openai" and level is PromptPrivacy.SUMMARY
        return open_memory(settings, None if leaves else embedder())

    return SparedMemories(opened, lambda workspace: state_folder(workspace).name, shown=settings.memory.shown)


def print_recalled(settings: Settings, service: ModelService) -> None:
    """Read a `Recall` as JSON from standard input, and print what was found as JSON.

    Raises:
        InvalidRequestError: the input is something else.
        SettingsError: the embedder of the settings cannot be used.
    """
    try:
        wanted = Recall.model_validate_json(sys.stdin.buffer.read())
    except ValidationError as error:
        raise InvalidRequestError(f"recall: {first_problem(error)}") from None
    memory = MemoryStore(memory_database(settings), choose_embedder(settings.memory, service), settings.memory)
    print(json.dumps([one.model_dump(mode="json") for one in _found(memory, wanted)]))


def _found(memory: MemoryStore, wanted: Recall) -> tuple[Value, ...]:
    if wanted.kind is Kind.FAILURE:
        return memory.recall(wanted.project, Query(text=wanted.text, limit=wanted.limit, solved=False, in_words=True))
    return memory.search(wanted.project, wanted.text, kind=wanted.kind, limit=wanted.limit)
