"""What an iteration costs in processes."""

import os
import shutil
from itertools import pairwise

from tests.support.doubles import ScriptedPlanner, planned
from tightloop.episode.model import EpisodeOutcome


async def test_iteration_starts_at_most_two_git_processes(client, working, request_for, tmp_path, monkeypatch) -> None:
    calls = tmp_path / "calls"
    calls.touch()
    wrapper = tmp_path / "bin/git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec {shutil.which("git")} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=os.pathsep)
    seen: list[int] = []

    def count(_briefing):
        seen.append(len(calls.read_text().splitlines()))
        return planned()

    async with working(ScriptedPlanner(count)):
        result = await client.result(await client.start(request_for()))
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert seen[0] > 0, "opening the workspace asks git for its version"
    assert max(after - before for before, after in pairwise(seen)) <= 2
