"""Worker and gateway are killed with SIGKILL at moments of dispatch and verify: the end is the same."""

import asyncio
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.client import Client

from tests.support.dying.deaths import ask_for_death, died_at
from tests.support.dying.pair import dying_pair
from tests.support.dying.whole_loop import PatientClient, evidence, whole_loop
from tests.support.episodes import Git, eventually
from tests.support.extent import some
from tests.support.gateway import enrol
from tightloop.database.access import Tokens
from tightloop.database.ledger import local_ledger
from tightloop.safety.seal import Role
from tightloop.settings import Settings
from worker.server import free_port

DISPATCH = (
    "dispatch", "open_plan", "prepare_children", "open_workspace", "hand_off", "track_iteration", "settle_children",
    "leave_workspace", "enter_workspace", "revise_plan",
)  # fmt: skip
VERIFY = ("verify", "run_project", "close_plan")
EVERY = tuple(f"{name}.{moment}" for name in ("start", *DISPATCH, *VERIFY) for moment in ("after", "before"))
MOMENTS = some(EVERY, 2)
SECONDS = 150.0


@pytest.mark.timeout(60 + 90 * len(MOMENTS))
async def test_kills_of_worker_and_gateway_change_nothing_of_the_end(
    settings: Settings, temporal_client: Client, workspace: Path, tmp_path: Path, git: Git
) -> None:
    deaths, address, ledger = tmp_path / "deaths", f"127.0.0.1:{free_port()}", local_ledger()
    deaths.mkdir()
    token = Tokens(ledger.database).create("anna", Role.OPERATOR)[1]
    headers = {"Authorization": f"Bearer {token}"}

    async def evidence_with(moment: str, expected: dict[str, Any] | None) -> dict[str, Any]:
        """Let the processes die at a moment; return what is found in the end, when it is as expected or stays."""
        project_folder = tmp_path / (moment or "undisturbed")
        shutil.copytree(workspace, project_folder)
        begun, before = time.perf_counter(), len(died_at(deaths))
        if moment:
            ask_for_death(deaths, moment)
        async with httpx2.AsyncClient(
            base_url=f"http://{address}", headers=headers, timeout=90, trust_env=False
        ) as http:
            client = PatientClient(http, moment or "undisturbed", SECONDS)
            plan_id = await whole_loop(client, enrol(ledger, project_folder))
        assert len(died_at(deaths)) == before + bool(moment), f"nothing died at {moment}"
        found: dict[str, Any] = {}

        async def is_told() -> bool:
            nonlocal found
            await asyncio.sleep(0.5)
            before, found = found, await evidence(ledger, temporal_client, plan_id, project_folder, git)
            return found == (expected or before)

        # The comparison of the caller says what differs.
        with suppress(TimeoutError):
            await eventually(is_told, seconds=20)
        took = time.perf_counter() - begun
        print(f"\n{moment or 'undisturbed'}: {took:.0f} s, {client.repeated} sent again, {client.busy} told to wait")
        return found

    async with dying_pair(_document(settings, address), deaths):
        expected = await evidence_with("", None)
        assert expected["files"]["all.txt"] == "1\n2\n3\n"
        assert {state for _, state, _ in expected["tasks"]} == {"COMPLETE"}
        assert {passed for _, passed in expected["gates"]} == {True}
        for moment in MOMENTS:
            assert await evidence_with(moment, expected) == expected, moment
    assert died_at(deaths) == sorted(MOMENTS)
    print(f"\nworker and gateway killed at {len(MOMENTS)} moments, the same end each time")


def _document(settings: Settings, address: str) -> str:
    temporal = settings.temporal
    return (
        f"temporal: {{address: '{temporal.address}', task_queue: '{temporal.task_queue}', authenticate: false}}\n"
        # A worker that was killed keeps its workflows for so long.
        "worker: {sticky_timeout_s: 1}\nsandbox: {unsafe_local: true}\n"
        f"gateway: {{listen: '{address}'}}\n"
    )
