"""An episode in a tree that carries programs, or whose executor writes them: none runs outside, no check is proven."""

import sys
from pathlib import Path

import pytest

from activities.sandbox.bubblewrap import BubblewrapSandbox
from tests.support.episodes import Working, eventually
from tests.support.planted import plant, planting_script, ran
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.settings import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox of Linux")


@pytest.mark.parametrize("written_by", ["repository", "executor"])
async def test_no_program_of_the_tree_runs_outside_and_a_failing_check_stays_so(
    client: TightloopClient,
    working: Working,
    settings: Settings,
    workspace: Path,
    tmp_path: Path,
    written_by: str,
) -> None:
    if problem := BubblewrapSandbox().probe():
        pytest.skip(problem)
    marker = tmp_path / "ran"
    (workspace / ".gitignore").write_text(".venv/\nnode_modules/\n")
    script = "pass"
    if written_by == "repository":
        plant(workspace, marker)
    else:
        script = planting_script(marker)
    request = EpisodeRequest.model_validate(
        {
            "goal": "make it green",
            "workspace": str(workspace),
            "definition_of_done": ["test -s never-made.txt"],
            "budget": {"max_iterations": 2},
            "executor": {
                "name": "command",
                "options": {"argv": ["/usr/bin/python3", "-c", f"{script}\nopen('log.txt', 'a').write('x')"]},
            },
        }
    )
    walled = settings.evolve(sandbox=settings.sandbox.evolve(unsafe_local=False))
    async with working(under=walled):
        episode_id = await client.start(request)

        async def over_or_asks() -> bool:
            status = await client.status(episode_id)
            return bool(status.questions) or status.outcome is not None

        await eventually(over_or_asks, seconds=90)
        status = await client.status(episode_id)
    assert (workspace / ".venv/bin/bwrap").exists()
    assert ran(marker) == ""
    assert status.outcome is not EpisodeOutcome.SUCCEEDED
    assert (workspace / "log.txt").read_text() == "xx"
