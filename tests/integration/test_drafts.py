"""Drafted scenarios find cheats that pass every visible check, and do not doubt honest solutions."""

import subprocess
from pathlib import Path

import pytest

from activities.model.client import ModelService
from tests.data.proof.drafts import TASKS, Task
from tests.support.drafting import draft_for
from tests.support.git_sample import make_repository
from tests.support.model_server import ModelServer, says
from tests.support.sandboxes import sandbox_named
from tightloop.settings import Settings


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
async def test_recorded_drafts_find_the_cheat_and_accept_the_honest_solution(
    tmp_path: Path, settings: Settings, task: Task
) -> None:
    if problem := sandbox_named("bubblewrap").probe():
        pytest.skip(f"bubblewrap does not work here: {problem}")
    for number, solution in enumerate((task.base, {**task.base, **task.cheat}, {**task.base, **task.honest})):
        root = make_repository(tmp_path / str(number), solution)
        done = subprocess.run(task.done, shell=True, cwd=root, capture_output=True, check=False)
        assert (done.returncode == 0) == (number > 0), done
    with ModelServer(says({"scenarios": list(task.drafts)}), says({"prints": list(task.predictions)})) as server:
        service = ModelService(api_key="key-1", base_url=server.url, models=("m1",), timeout_s=60.0)
        drafted = await draft_for(
            tmp_path / "project",
            settings,
            service,
            goal=task.goal,
            done=task.done,
            base=task.base,
            cheat=task.cheat,
            honest=task.honest,
        )
    agreed = sum(entry["prints"] == line for entry, line in zip(task.drafts, task.predictions, strict=True))
    print(task.name, drafted)
    assert drafted.agreed == drafted.used == agreed
    assert drafted.fail_cheat > 0
    assert drafted.fail_honest == 0
