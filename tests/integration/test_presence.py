"""The notes of worker processes: what is given back, and what is left alone."""

import fcntl
import json
import time
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from tests.support.episodes import eventually
from worker.hosting.presence import MOST_BYTES, SUFFIX, Presence


def write(folder: Path, server: str, *lines: str) -> Path:
    """Write the notes of a process that has ended."""
    file = folder / f"1-{uuid4().hex[:8]}{SUFFIX}"
    file.write_text("\n".join([json.dumps({"identity": "1@elsewhere/0", "server": server}), *lines, ""]))
    return file


@pytest.fixture
def server(temporal_client: Client) -> str:
    return f"{temporal_client.service_client.config.target_host}/{temporal_client.namespace}"


async def test_notes_of_the_dead_are_looked_at_and_removed_and_those_of_the_living_stay(
    temporal_client: Client, server: str, tmp_path: Path
) -> None:
    now = int(time.time())
    dead = write(tmp_path, server, f"{now} + no-such-workflow", "torn li")
    broken = tmp_path / f"2-x{SUFFIX}"
    broken.write_text("")
    other = write(tmp_path, "127.0.0.1:1/default", f"{now} + anything")
    living = write(tmp_path, server, f"{now} + no-such-workflow")
    with living.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        async with Presence(tmp_path, temporal_client).alive():

            async def tidied() -> bool:
                return not dead.exists()

            await eventually(tidied)
            assert living.exists()
            assert other.exists(), "its own server may have work of it"

    async def gone() -> bool:
        return not living.exists() and not broken.exists()

    async with Presence(tmp_path, temporal_client).alive():
        await eventually(gone)


async def test_notes_stay_small_and_keep_what_runs(temporal_client: Client, tmp_path: Path) -> None:
    presence = Presence(tmp_path, temporal_client)
    async with presence.alive():
        with presence.working_for("it-runs"):
            for _ in range(2 * MOST_BYTES // 40):
                with presence.working_for("it-ended-a-moment-ago"):
                    pass
        [file] = tmp_path.iterdir()
        assert file.stat().st_size <= MOST_BYTES + 1_000
        assert "it-runs" in file.read_text()
