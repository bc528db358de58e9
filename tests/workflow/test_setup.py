"""A project without its packages: one question, which is remembered, and packages that the next run reuses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.episodes import APPEND, Git, Working, asked, eventually, scripted
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeStatus
from tightloop.errors import WrongStateError
from tightloop.plan.request import PlanOutcome, PlanRequest, PlanStatus
from tightloop.run.question import QuestionKind
from tightloop.settings import WorkspaceSettings

Requests = Callable[..., EpisodeRequest]
LOCK = {
    "name": "sample",
    "lockfileVersion": 3,
    "packages": {
        "": {"name": "sample", "dependencies": {"inner": "file:inner"}},
        "inner": {"version": "1.0.0"},
        "node_modules/inner": {"resolved": "inner", "link": True},
    },
}
"""A package of the project itself, which is installed without any network."""
DONE = "node -e \"require('inner')\" && grep -q 2 log.txt"


@pytest.fixture
def npm_project(workspace: Path, git: Git) -> Path:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    (workspace / "package.json").write_text(json.dumps({"name": "sample", "dependencies": {"inner": "file:inner"}}))
    (workspace / "package-lock.json").write_text(json.dumps(LOCK))
    (workspace / "inner").mkdir()
    (workspace / "inner/package.json").write_text(json.dumps({"name": "inner", "version": "1.0.0"}))
    (workspace / "inner/index.js").write_text("module.exports = 1\n")
    (workspace / ".gitignore").write_text("node_modules/\n")
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "packages")
    return workspace


async def notes_of(client: TightloopClient, run_id: str) -> list[str]:
    return [entry.text for entry in await client.timeline(run_id) if entry.kind == "setup"]


async def test_episode_asks_once_and_the_next_one_reuses_the_packages(
    client: TightloopClient, working: Working, request_for: Requests, npm_project: Path
) -> None:
    request = request_for(definition_of_done=[DONE], executor=scripted(APPEND), worktree=True)
    async with working():
        first = await client.start(request)
        [question] = (await asked(client, first)).questions
        assert question.kind is QuestionKind.SETUP
        assert question.title == "node_modules is missing. Run `npm ci` (package-lock.json)?"
        with pytest.raises(WrongStateError, match="install, skip, cancel"):
            await client.resume(first)
        await client.answer(first, "install")
        result = await client.result(first)
        second = await client.start(request)
        later = await client.result(second)
        notes = [await notes_of(client, run_id) for run_id in (first, second)]
        paused = [entry for entry in await client.timeline(second) if entry.kind == "paused"]
    assert result.outcome is later.outcome is EpisodeOutcome.SUCCEEDED
    assert notes == [
        ["`npm ci`: node_modules (0 MB), installed now and mounted read-only"],
        ["`npm ci`: node_modules (0 MB), reused from an earlier run and mounted read-only"],
    ]
    assert paused == []
    assert not (npm_project / "node_modules").exists()


async def test_reopened_episode_does_not_install_a_lock_file_that_its_agent_changed(
    client: TightloopClient, working: Working, request_for: Requests, npm_project: Path
) -> None:
    changed = {**LOCK, "version": "2.0.0"}
    change = {"write": [{"path": "package-lock.json", "text": json.dumps(changed)}, *APPEND["append"]]}
    async with working():
        episode_id = await client.start(
            request_for(
                definition_of_done=["grep -q 1 log.txt"], executor=scripted(change), worktree=True, setup="npm ci"
            )
        )
        result = await client.result(episode_id)
        await client.restore(episode_id, "ckpt-1")
        await asked(client, episode_id)
        notes = await notes_of(client, episode_id)
        await client.cancel(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert notes == ["`npm ci`: node_modules (0 MB), installed now and mounted read-only"]


async def test_failed_setup_is_asked_about_again_and_can_be_skipped(
    client: TightloopClient, working: Working, request_for: Requests, npm_project: Path
) -> None:
    request = request_for(
        definition_of_done=["grep -q 2 log.txt"], executor=scripted(APPEND), setup="echo no such host; exit 7"
    )
    async with working():
        episode_id = await client.start(request)
        [question] = (await asked(client, episode_id)).questions
        await client.answer(episode_id, "skip")
        result = await client.result(episode_id)
        notes = await notes_of(client, episode_id)
    assert question.title == ("`echo no such host; exit 7` (package-lock.json) failed with exit code 7. Try again?")
    hosts = ", ".join(WorkspaceSettings().setup_hosts)
    assert question.evidence == ("no such host", f"allowed hosts (workspace.setup_hosts): {hosts}")
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert notes == ["the work starts without node_modules"]
    assert not (npm_project / "node_modules").exists()


async def test_plan_asks_before_its_first_step_and_its_episodes_do_not(
    client: TightloopClient, working: Working, npm_project: Path
) -> None:
    episode = {"goal": "write", "definition_of_done": [DONE], "worktree": True}
    steps = [{"id": name, "episode": episode} for name in ("one", "two")]
    source = json.dumps({"id": "p", "steps": steps})
    async with working():
        plan_id = await client.start(
            PlanRequest(workspace=str(npm_project), source=source, executor=scripted(APPEND), worktree=True)
        )

        async def waits() -> PlanStatus | None:
            status = await client.status(plan_id)
            assert isinstance(status, PlanStatus)
            return status if status.questions else None

        [question] = (await eventually(waits)).questions
        assert question.kind is QuestionKind.SETUP
        await client.answer(plan_id, "install")
        result = await client.result(plan_id)
        children = [await client.status(f"{plan_id}.{name}.1") for name in ("one", "two")]
        notes = [await notes_of(client, child.id) for child in children]
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert all(isinstance(child, EpisodeStatus) for child in children)
    assert notes == [["`npm ci`: node_modules (0 MB), reused from an earlier run and mounted read-only"]] * 2
