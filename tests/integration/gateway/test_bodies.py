"""Bodies that stand for too much, are nested too deeply, or hold numbers that nothing can read."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.gateway import gateway
from tightloop.client import TightloopClient
from tightloop.safety.seal import Role
from tightloop.settings import Settings

JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def http(tmp_path: Path, client: TightloopClient, settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        gateway(tmp_path, client, settings) as served,
        served.http(served.token("anna", Role.ADMIN)) as connection,
    ):
        yield connection


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def episode(workspace: Path, options: str) -> str:
    fields: dict[str, Any] = {"goal": "x", "workspace": str(workspace), "definitionOfDone": [{"run": "true"}]}
    return json.dumps(fields)[:-1] + ', "executor": {"name": "my-plugin", "options": {"x": ' + options + "}}}"


async def slowest_beside(http: httpx2.AsyncClient, work: list["asyncio.Task[Any]"]) -> float:
    """Ask for something small until the work has ended; return the longest wait, in seconds."""
    clock, waits = asyncio.get_running_loop().time, list[float]()
    while not all(one.done() for one in work):
        asked = clock()
        assert (await http.get("/live")).status_code == 200
        waits.append(clock() - asked)
        await asyncio.sleep(0.01)
    print(f"{len(waits)} other requests, the slowest {max(waits):.3f} s")
    return max(waits)


async def test_json_that_a_worker_could_not_read_starts_nothing(http: httpx2.AsyncClient, workspace: Path) -> None:
    for number, options in enumerate((nested(150), nested(300), nested(900), nested(100_000), "9" * 100_000)):
        answer = await http.post(f"/api/episodes?id=deep-{number}", content=episode(workspace, options), headers=JSON)
        assert answer.status_code in (400, 422), (number, answer.text)
        assert number > 0 or "nested more than 100 levels deep" in answer.text
        assert (await http.get(f"/api/episodes/deep-{number}")).status_code == 404
    shallow = await http.post("/api/episodes?id=flat", content=episode(workspace, nested(90)), headers=JSON)
    assert shallow.status_code == 201, shallow.text


async def test_other_requests_are_answered_while_large_texts_are_checked(http: httpx2.AsyncClient) -> None:
    large = "title: x\nsteps:\n" + "".join(f"- {{id: s{n}, shell: {{run: 'true'}}}}\n" for n in range(1_000))
    clock = asyncio.get_running_loop().time

    async def check() -> float:
        answer = await http.post("/api/plans/validate", json={"source": large})
        assert answer.json()["ok"], answer.text
        return clock()

    began = clock()
    checks = [asyncio.create_task(check()) for _ in range(6)]
    slowest = await slowest_beside(http, checks)
    ended = [await one for one in checks]
    assert slowest < (max(ended) - began) / 3, "it waited for whole checks"


async def test_a_plan_of_aliases_is_refused_at_once(http: httpx2.AsyncClient) -> None:
    source = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
    source += "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    posts = [asyncio.create_task(http.post("/api/plans/validate", json={"source": source})) for _ in range(20)]
    await slowest_beside(http, posts)
    for answer in [await post for post in posts]:
        [problem] = answer.json()["problems"]
        assert (answer.status_code, answer.json()["ok"]) == (200, False)
        assert "aliases expand to more than 20000 values" in problem["message"]


async def test_short_forms_are_read_and_bodies_without_required_fields_may_be_absent(
    http: httpx2.AsyncClient, workspace: Path
) -> None:
    fields = {"goal": "x", "workspace": str(workspace), "definitionOfDone": ["true"], "executor": "person"}
    assert (await http.post("/api/episodes?id=short", json=fields)).status_code == 201
    assert (await http.post("/api/episodes/short/pause")).status_code == 202
    assert (await http.post("/api/episodes/short/respond")).status_code == 422


async def test_a_status_that_does_not_exist_is_no_filter(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/api/episodes?status=failed")).status_code == 200
    answer = await http.get("/api/episodes?status=broken")
    assert answer.status_code == 422
    assert "running, paused" in answer.text
