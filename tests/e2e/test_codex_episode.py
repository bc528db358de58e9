"""A whole episode with a real coding agent, and a key in the worker that nobody but the provider may see."""

import asyncio
import json
from pathlib import Path

import pytest

from activities.model.gateway.wire import Wire
from tests.support.agents.install import agent_program
from tests.support.fake_model import FakeModel, say, shell
from tests.support.stack.stack import Stack, wait_for_port
from tests.support.stored import content_of
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.executor.model import ExecutorChoice
from worker.up import CHECKS, GOAL, make_sample

PLANTED = {
    "OPENAI_API_KEY": "sk-planted-5f2c9a71-openai",
    "ANTHROPIC_API_KEY": "sk-ant-planted-5f2c9a71",
    "GITHUB_TOKEN": "ghp_planted5f2c9a71",
    "DATABASE_URL": "postgres://app:planted5f2c9a71@db/app",
}
FIX = "ruff check --fix --unsafe-fixes --exit-zero --no-cache . ; ruff format --no-cache . ; env > seen.txt"


def settings_file(folder: Path, base_url: str) -> str:
    """The user's settings: codex at the fake model, with the key that stands in OPENAI_API_KEY."""
    program = str(agent_program("codex"))
    codex = {"program": program, "base_url": base_url, "model": "gpt-test", "api_key_env": "OPENAI_API_KEY"}
    document = {
        "planner": {"kind": "heuristic"},
        "executor": {"agents": {"codex": codex}},
        "sandbox": {"unsafe_local": True},
    }
    file = folder / "tightloop" / "settings.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(document))
    return str(folder)


def places_that_hold(secret: bytes, *folders: Path) -> list[str]:
    """Files with these bytes."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path) for path in files if secret in content_of(path)]


@pytest.mark.timeout(500)
async def test_codex_gets_the_sample_green_and_no_planted_key_is_seen_anywhere(tmp_path: Path) -> None:
    sample = make_sample(tmp_path)
    with (
        FakeModel(shell(FIX), say("All findings are fixed.")) as model,
        Stack(
            tmp_path / "stack",
            {**PLANTED, "XDG_CONFIG_HOME": settings_file(tmp_path / "config", model.base_url(Wire.RESPONSES))},
        ) as stack,
    ):
        stack.start_server()
        wait_for_port(stack.settings.temporal.address)
        stack.start_worker()
        client = await TightloopClient.connect(settings=stack.settings)
        request = EpisodeRequest(
            goal=GOAL, workspace=str(sample), definition_of_done=CHECKS, executor=ExecutorChoice(name="codex")
        )
        episode_id = await client.start(request)
        async with asyncio.timeout(400):
            result = await client.result(episode_id)
        timeline = await client.timeline(episode_id)
        history = await client.history(episode_id)
        keys = {seen.headers.get("authorization") for seen in model.requests}
    print("\n" + "\n".join(f"{entry.kind}: {entry.text}" for entry in timeline))
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert result.checks == "3/3"
    assert result.iterations == 1
    assert result.spent.tokens > 0
    assert keys == {f"Bearer {PLANTED['OPENAI_API_KEY']}"}, "the gateway gave the provider its key"
    seen = (sample / "seen.txt").read_text()
    assert "PATH=" in seen
    for name, value in PLANTED.items():
        assert name not in seen, f"the agent's shell saw {name}"
        assert value not in history
        assert places_that_hold(value.encode(), sample, tmp_path / "stack") == []
