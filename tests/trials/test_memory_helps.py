"""The memory helps, measured: the same episodes without and with it, and no one takes longer."""

import asyncio
import shutil
import sys
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.support.episodes import Git, Working
from tests.support.extent import ALL, part
from tests.support.memory.causes import CAUSES as EVERY_CAUSE
from tests.support.memory.causes import Cause
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.settings import Settings
from worker.build import build_adapters

CAUSES = EVERY_CAUSE if ALL else EVERY_CAUSE[-2:]
"""The last ones need several iterations."""
ROUNDS = part(2, of=3)
BIN = Path(sys.executable).parent


class Course:
    """One project that is broken and fixed again and again."""

    def __init__(self, folder: Path, git: Git, client: TightloopClient) -> None:
        self._folder, self._git, self._client = folder, git, client
        folder.mkdir()
        (folder / "pyproject.toml").write_text(
            '[tool.ruff]\ntarget-version = "py311"\n[tool.pytest.ini_options]\npythonpath = ["."]\n'
            'addopts = "-p no:cacheprovider"\n'
        )
        git(folder, "init", "--quiet", "--initial-branch=main")

    async def iterations(self, cause: Cause) -> int:
        """Break the project in this way; return how many iterations an episode needs to fix it."""
        (self._folder / "shop.py").write_text(cause.module)
        (self._folder / "test_shop.py").write_text(cause.tests)
        self._git(self._folder, "add", "--all")
        self._git(self._folder, "commit", "--quiet", "--allow-empty", "-m", "break it")
        request = EpisodeRequest.model_validate(
            {
                "goal": f"fix: {cause.name}",
                "workspace": str(self._folder),
                "definition_of_done": cause.checks,
                "executor": {"name": "command"},
                "planner": "heuristic",
            }
        )
        result = await self._client.result(await self._client.start(request))
        assert result.outcome is EpisodeOutcome.SUCCEEDED, (cause.name, result.reason)
        print(self._folder.name, cause.name, result.iterations, flush=True)
        return result.iterations


@pytest.mark.timeout(1_800)
@pytest.mark.skipif(not shutil.which("ruff", path=str(BIN)), reason="ruff is not installed next to this Python")
async def test_episodes_over_the_same_causes_need_fewer_iterations_with_the_memory(
    temporal_client: Client, settings: Settings, working: Working, tmp_path: Path, git: Git, monkeypatch
) -> None:
    monkeypatch.setenv("PATH", str(BIN), prepend=":")

    async def pursue(name: str, *, enabled: bool) -> list[list[int]]:
        queue = f"{settings.temporal.task_queue}-{name}"
        under = settings.evolve(
            temporal=settings.temporal.evolve(task_queue=queue),
            memory=settings.memory.evolve(enabled=enabled),
            executor=settings.executor.evolve(programs=("ruff", "python")),
        )
        planners = build_adapters(temporal_client, under).planners
        async with working(under=under, planners=planners):
            course = Course(tmp_path / name, git, TightloopClient(temporal_client, under))
            return [[await course.iterations(cause) for cause in CAUSES] for _ in range(ROUNDS)]

    without, with_it = await asyncio.gather(pursue("without", enabled=False), pursue("with", enabled=True))
    for cause, *numbers in zip(CAUSES, *without, *with_it, strict=True):
        print(f"{cause.name:26} without {numbers[:ROUNDS]}  with {numbers[ROUNDS:]}")
    total, total_with_it = sum(map(sum, without)), sum(map(sum, with_it))
    print(f"iterations of {ROUNDS * len(CAUSES)} episodes: {total} without, {total_with_it} with the memory")
    assert total_with_it < total
    worse = [
        cause.name
        for before, after in zip(without, with_it, strict=True)
        for cause, one, other in zip(CAUSES, before, after, strict=True)
        if other > one
    ]
    assert not worse
