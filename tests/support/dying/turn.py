"""Takes one turn of a coder in a process that kills itself on the way: `python -m tests.support.dying.turn ...`."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from activities.artifacts.stores import open_local_store
from activities.coder.model import OpenAIModel
from activities.model.client import ModelService
from tests.support.coder_turns import Conversing
from tightloop.value import ArtifactRef


class Death(StrEnum):
    """Where the process dies."""

    STREAM = "stream"
    """In the middle of the answer."""
    BEFORE_NODE = "before_node"
    """The whole answer is there, and nothing of it is written."""
    BEFORE_JOURNAL = "before_journal"
    """The conversation is written, the journal is not."""
    BEFORE_RETURN = "before_return"
    """The journal is written, and nobody has heard of it."""
    NEVER = "never"


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class DyingStore:
    """A real store that is deadly to write conversations to."""

    store: Any
    death: Death

    def put(self, content: bytes, *, name: str, **options: Any) -> ArtifactRef:
        """Store bytes; see the port."""
        if name == "conversation" and self.death is Death.BEFORE_NODE:
            die()
        ref: ArtifactRef = self.store.put(content, name=name, **options)
        if name == "conversation" and self.death is Death.BEFORE_JOURNAL:
            die()
        return ref

    def get(self, ref: ArtifactRef) -> bytes:
        """Read bytes; see the port."""
        content: bytes = self.store.get(ref)
        return content


async def take(workspace: Path, base_url: str, death: Death) -> str:
    """Take the first turn; the answer is its JSON."""
    service = ModelService(api_key="key-1", base_url=base_url, models=("m1",))
    session = Conversing(
        workspace, OpenAIModel(service), store_of=lambda place: DyingStore(open_local_store(place), death)
    )
    pieces: list[None] = []

    def beat() -> None:
        pieces.append(None)
        if death is Death.STREAM and len(pieces) == 3:
            die()

    turn = await session.take(session.request(), beat=beat)
    if death is Death.BEFORE_RETURN:
        die()
    return turn.model_dump_json()


if __name__ == "__main__":
    place, url, point = sys.argv[1:]
    print(asyncio.run(take(Path(place), url, Death(point))))
