"""The document of the API against the API itself: random requests, and chains of them."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.support import confirmed_names
from tests.support.episodes import APPEND, Working
from tests.support.extent import ALL, part
from tests.support.gateway import enrol, fill, gateway
from tightloop.client import TightloopClient
from tightloop.safety.seal import Role
from tightloop.settings import Settings

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "tests" / "data" / "schemathesis.toml"
SECONDS = part(20, of=600)


@pytest.mark.timeout(2 * SECONDS + 300)
async def test_every_answer_is_as_the_document_says(
    tmp_path: Path, workspace: Path, client: TightloopClient, settings: Settings, working: Working
) -> None:
    async with gateway(tmp_path, client, settings) as served, working():
        fill(served.ledger, tmp_path)
        enrol(served.ledger, workspace)
        token = served.token("fuzz", Role.ADMIN)
        async with served.http(token) as http:
            body = {
                "goal": "write",
                "workspace": str(workspace),
                "definitionOfDone": [{"run": "test -s log.txt"}],
                "executor": {"name": "scripted", "options": {"steps": [APPEND]}},
            }
            assert (await http.post("/api/episodes?id=nightly-1", json=body)).status_code == 201
        document = f"{served.url}/api/openapi.json"
        alone = await run_schemathesis(document, token, tmp_path, "examples,coverage,fuzzing")
        chained = await run_schemathesis(document, token, tmp_path, "stateful")
    covered = re.search(r"API Links:\s*(\d+) covered", chained)
    assert covered is not None, chained
    assert int(covered[1]) > 0, f"chains of requests that follow no link show nothing: {chained}"
    print(alone, chained)
    path = tmp_path / confirmed_names.LIST
    confirmed = path.read_text().splitlines() if path.exists() else []
    print(
        f"{len(confirmed)} names of confirmed changes exist, of {len({line.split()[1] for line in confirmed})} routes"
    )
    # In the time of the gate it may be that no random request is accepted.
    assert confirmed or not ALL


async def run_schemathesis(document: str, token: str, folder: Path, phases: str) -> str:
    """Return what it prints about some phases; all of them at once take the time from the last one."""
    command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIG), "run", document]
    command += ["--header", f"Authorization: Bearer {token}", "--max-time", str(SECONDS // 2), "--seed", "12"]
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--phases", phases, "--request-timeout=40", "--no-color"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": confirmed_names.__name__},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said = (await asyncio.wait_for(process.communicate(), SECONDS + 120))[0].decode("utf-8", "replace")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said[-20_000:]
    return said
