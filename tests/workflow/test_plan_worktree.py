"""Episodes of a plan that work beside each other, each in a worktree of its own."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.episodes import Git, Working
from tests.support.git_sample import stored
from tests.support.loops import ObedientExecutor, planner_of_goals
from tightloop.client import TightloopClient
from tightloop.plan.request import PlanOutcome, PlanRequest, PlanResult


@pytest.fixture
def obeying(working: Working, registry: Callable[..., dict[str, Any]]) -> Working:
    """Run workers whose coding agent does what its goal says."""
    return partial(working, planner_of_goals(), **registry(command=ObedientExecutor()))


def episode(name: str, command: str, done: str, **more: object) -> dict[str, object]:
    action = {"goal": f"RUN: {command}", "definition_of_done": [done], "worktree": True}
    return {"id": name, "episode": action, "retry": {"attempts": 1}, **more}


async def run(client: TightloopClient, workspace: Path, *steps: dict[str, object]) -> tuple[str, PlanResult]:
    source = json.dumps({"id": "beside", "on_failure": "fail", "steps": steps})
    plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
    result = await client.result(plan_id)
    assert isinstance(result, PlanResult)
    return plan_id, result


TOP = episode("top", "sed -i '1s/.*/top/' notes.txt", "grep -qx top notes.txt")
END = episode("end", "sed -i '200s/.*/end/' notes.txt", "grep -qx end notes.txt")


async def test_changes_of_episodes_beside_each_other_are_all_in_the_tree(
    client: TightloopClient, obeying: Working, workspace: Path, git: Git
) -> None:
    (workspace / "notes.txt").write_text((workspace / "notes.txt").read_text().replace("line 50\n", "mine\n"))
    last = {"id": "last", "needs": ["top", "end"], "shell": {"run": "cp notes.txt seen.txt"}}
    async with obeying():
        plan_id, result = await run(client, workspace, TOP, END, last)
        children = [await client.status(f"{plan_id}.{name}.1") for name in ("top", "end")]
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    lines = (workspace / "seen.txt").read_text().splitlines()
    assert (lines[0], lines[50], lines[199]) == ("top", "mine", "end")
    assert [child.status for child in children] == ["succeeded", "succeeded"]
    assert len(git(workspace, "worktree", "list").splitlines()) == 1, "their worktrees are gone"


async def test_conflict_fails_the_later_step_keeps_its_tree_and_the_rest_goes_on(
    client: TightloopClient, obeying: Working, workspace: Path
) -> None:
    other = episode("other", "sed -i '1s/.*/other/' notes.txt", "grep -qx other notes.txt")
    async with obeying():
        plan_id, result = await run(client, workspace, TOP, other, END)
        lines = await client.steps(plan_id)
    assert result.outcome is PlanOutcome.FAILED
    states = {line.id: line.status.value for line in lines}
    # Which of the two was first to end is not decided.
    assert sorted((states["top"], states["other"])) == ["completed", "failed"]
    assert states["end"] == "completed"
    why = next(line.failure.reason for line in lines if line.failure is not None)
    assert "conflict" in why
    assert "notes.txt" in why
    loser = next(name for name in ("top", "other") if states[name] == "failed")
    base, left = why.split(" diff ")[1].split()[:2]
    assert f"+{loser}".encode() in stored(workspace, "diff", base, left)
    assert (workspace / "notes.txt").read_text().startswith("top" if loser == "other" else "other")


async def test_episode_that_begins_with_a_conflict_finds_its_markers(
    client: TightloopClient, obeying: Working, workspace: Path
) -> None:
    other = episode("other", "sed -i '1s/.*/other/' notes.txt", "grep -qx other notes.txt")
    async with obeying():
        plan_id, _ = await run(client, workspace, TOP, other)
        lines = await client.steps(plan_id)
        why = next(line.failure.reason for line in lines if line.failure is not None)
        base, left = (
            stored(workspace, "rev-parse", short).decode().strip() for short in why.split(" diff ")[1].split()[:2]
        )
        resolve = episode("resolve", "sed -i '/^[<=>]\\{7\\}/d' notes.txt", "! grep -q '^<<<<<<<' notes.txt")
        resolve["episode"] |= {"merge": {"base": base, "tree": left}}  # type: ignore[operator]
        _, result = await run(client, workspace, resolve)
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert sorted((workspace / "notes.txt").read_text().splitlines()[:2]) == ["other", "top"]


async def test_step_whose_changes_were_merged_is_taken_back_alone(
    client: TightloopClient, obeying: Working, workspace: Path
) -> None:
    fails = {"id": "fails", "needs": ["top", "end"], "shell": {"run": "exit 3"}}
    fails |= {"retry": {"attempts": 1}, "on_failure": {"to": "instead", "compensate": ["top"]}}
    instead = {"id": "instead", "shell": {"run": "cp notes.txt seen.txt"}}
    async with obeying():
        _, result = await run(client, workspace, TOP, END, fails, instead)
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    lines = (workspace / "seen.txt").read_text().splitlines()
    assert (lines[0], lines[199]) == ("line 0", "end")
