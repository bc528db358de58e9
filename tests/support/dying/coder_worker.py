"""A worker of coders that notes its pid with each activity, and dies when it is asked to.

python -m tests.support.dying.coder_worker <settings> <folder of moments>
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from temporalio.client import Client

from activities.coder.port import Message, ToolSpec, TurnModel
from activities.model.observed import ModelAnswer
from tests.support.doubles import ScriptedPlanner
from tests.support.dying.deaths import Deaths
from tightloop.settings import parse_settings
from worker.build import build_adapters, build_workers
from worker.composition import load_early
from worker.connect import connect

LAST = "last.pid"
"""Who did something last."""


class Noting(Deaths):
    """Notes who comes to a moment."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._note = folder / LAST

    def come(self, moment: str) -> None:
        """Note it, and die if this is a moment to."""
        made = self._note.with_suffix(f".{os.getpid()}")
        made.write_text(str(os.getpid()))
        made.replace(self._note)
        super().come(moment)


@dataclass(frozen=True)
class DyingModel(TurnModel):
    """A model with a moment before and after each answer."""

    model: TurnModel
    deaths: Deaths

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec], **options: Any) -> ModelAnswer:
        """Ask between two moments."""
        self.deaths.come("reply.before")
        answer = await self.model.reply(messages, tools, **options)
        self.deaths.come("reply.after")
        return answer


async def main(document: str, folder: str) -> None:
    """Work until stopped."""
    settings = parse_settings(document, {})
    connected = await connect(settings)
    deaths = Noting(Path(folder))
    client = Client(**{**connected.config(), "interceptors": [deaths]})
    planner = ScriptedPlanner()
    adapters: Any = build_adapters(client, settings)
    adapters = replace(adapters, planners=lambda _kind: planner, coder_model=DyingModel(adapters.coder_model, deaths))
    async with AsyncExitStack() as stack:
        for worker in build_workers(client, settings, adapters=adapters):
            await stack.enter_async_context(worker)
        print("ready", flush=True)
        await asyncio.to_thread(load_early, settings, adapters.sandbox)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
