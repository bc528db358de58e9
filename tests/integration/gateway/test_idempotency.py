"""One Idempotency-Key is one request: it starts one thing, and no answer confirms what did not happen."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import pytest
from sqlalchemy import text
from temporalio.client import Client

from tests.support.episodes import Working, eventually
from tests.support.extent import draw_seed, part
from tests.support.gateway import Gateway, enrol, gateway
from tests.support.mcp import call, over_http, refused
from tests.support.temporal_server import own_client, own_server
from tightloop.client import Check, EpisodeRequest, TightloopClient
from tightloop.database.engine import Database
from tightloop.errors import IdTakenError
from tightloop.host import state_folder
from tightloop.ledger.model import ProjectLine, WorkflowSnapshot
from tightloop.loop.model import LoopRequest
from tightloop.safety.seal import Role
from tightloop.settings import Settings

temporal, temporal_client = own_server, own_client

PAIRS = part(12, of=200)
PLAN = 'title: Green tests\nsteps:\n- {id: test, shell: {run: "true"}}\n'


class Sent(NamedTuple):
    """A request that starts something."""

    path: str
    body: dict[str, Any]
    query: dict[str, str]

    async def post(self, http: httpx2.AsyncClient, key: str = "") -> httpx2.Response:
        headers = {"Idempotency-Key": key} if key else {}
        return await http.post(self.path, json=self.body, params=self.query, headers=headers)


def episode(workspace: Path, **query: str) -> Sent:
    body = {"goal": "Keep green", "workspace": str(workspace), "definitionOfDone": [{"run": "true"}]}
    return Sent("/api/episodes", body, query)


@pytest.fixture
async def served(tmp_path: Path, client: TightloopClient, settings: Settings) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path, client, settings) as running:
        yield running


@pytest.fixture
async def http(served: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with served.http(served.token("anna", Role.ADMIN)) as connection:
        yield connection


async def runs_in(temporal_client: Client) -> set[tuple[str, str]]:
    """Every run that Temporal lists; its index lags behind."""
    return {(row.id, row.run_id) async for row in temporal_client.list_workflows()}


async def started_since(temporal_client: Client, before: set[tuple[str, str]], expected: set[str]) -> list[str]:
    """Return the ids of the runs that are new, once those that are expected are among them."""

    async def listed() -> list[str]:
        new = [name for name, _ in await runs_in(temporal_client) - before]
        return new if expected <= set(new) else []

    new: list[str] = await eventually(listed)
    return sorted(new)


def problem_of(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["type"].rpartition(":")[2]


async def test_the_id_of_what_another_request_started_is_not_confirmed(
    http: httpx2.AsyncClient, workspace: Path
) -> None:
    taken = f"taken-{uuid4().hex[:6]}"
    assert (await episode(workspace, id=taken).post(http)).status_code == 201
    assert problem_of(await episode(workspace, id=taken).post(http)) == (409, "id-taken")
    for path in ("/api/episodes", "/api/plans"):
        other = episode(workspace, id=taken)
        if path == "/api/plans":
            other = Sent(path, {"workspace": str(workspace), "source": PLAN}, {"id": taken})
        assert problem_of(await other.post(http, f"fresh-{uuid4().hex}")) == (409, "id-taken")


async def test_an_id_that_only_the_ledger_still_knows_is_not_used_for_another_kind(
    served: Gateway, http: httpx2.AsyncClient, workspace: Path
) -> None:
    old = f"old-{uuid4().hex[:6]}"
    line = WorkflowSnapshot(id=old, kind="episode", status="succeeded", at=datetime.now(UTC))
    project = ProjectLine(id=state_folder(workspace).name, name="project", workspace=str(workspace))
    served.ledger.select_project(project).record(line)
    refused = Sent("/api/plans", {"workspace": str(workspace), "source": PLAN}, {"id": old})
    assert problem_of(await refused.post(http)) == (409, "id-taken")
    assert (await http.get(f"/api/episodes/{old}")).status_code == 200


async def test_one_key_with_another_id_starts_nothing(http: httpx2.AsyncClient, workspace: Path) -> None:
    name, key = uuid4().hex[:6], f"k-{uuid4().hex}"
    first = await episode(workspace, id=f"{name}-a").post(http, key)
    second = await episode(workspace, id=f"{name}-b").post(http, key)
    again = await episode(workspace, id=f"{name}-a").post(http, key)
    assert (first.status_code, first.json()["id"]) == (201, f"{name}-a")
    assert problem_of(second) == (409, "key-in-use")
    assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
    assert (await http.get(f"/api/episodes/{name}-b")).status_code == 404


async def test_a_request_that_was_refused_keeps_its_key(http: httpx2.AsyncClient, workspace: Path) -> None:
    name, key = f"taken-{uuid4().hex[:6]}", f"k-{uuid4().hex}"
    assert (await episode(workspace, id=name).post(http)).status_code == 201
    assert problem_of(await episode(workspace, id=name).post(http, key)) == (409, "id-taken")
    assert problem_of(await episode(workspace, id=f"{name}-2").post(http, key)) == (409, "key-in-use")
    assert problem_of(await episode(workspace, id=name).post(http, key)) == (409, "id-taken")


async def test_64_duplicates_at_once_start_one_episode(
    served: Gateway, http: httpx2.AsyncClient, workspace: Path, temporal_client: Client
) -> None:
    key, sent, before = f"dup-{uuid4().hex}", episode(workspace), await runs_in(temporal_client)
    limits = httpx2.Limits(max_connections=64)
    async with httpx2.AsyncClient(
        base_url=served.url, headers=dict(http.headers), timeout=120, trust_env=False, limits=limits
    ) as many:
        answers = await asyncio.gather(*(sent.post(many, key) for _ in range(64)))
    seen = Counter(problem_of(one) if one.status_code != 201 else (201, one.json()["id"]) for one in answers)
    [(_, made)] = [kind for kind in seen if kind[0] == 201]
    assert set(seen) <= {(201, made), (409, "key-in-use")}
    first = [one for one in answers if one.status_code == 201 and "idempotency-replayed" not in one.headers]
    assert len(first) == 1
    assert await started_since(temporal_client, before, {str(made)}) == [made]


@pytest.mark.timeout(60 + 4 * PAIRS)
async def test_requests_that_differ_in_one_part_never_share_a_key(
    served: Gateway, http: httpx2.AsyncClient, workspace: Path, client: TightloopClient, temporal_client: Client
) -> None:
    seed = draw_seed()
    print(f"TIGHTLOOP_TEST_SEED={seed}")
    draw, project = random.Random(seed), enrol(served.ledger, workspace)
    before, expected = await runs_in(temporal_client), set[str]()
    for number in range(PAIRS):
        one, other = pair(draw, workspace, project, f"p{number}-{uuid4().hex[:4]}")
        key = f"pair-{uuid4().hex}"
        first = await one.post(http, key)
        assert first.status_code == 201, (one, first.text)
        assert problem_of(await other.post(http, key)) == (409, "key-in-use"), (one, other)
        second = await other.post(http, f"{key}-2")
        assert second.status_code == 201, (other, second.text)
        assert (await other.post(http, f"{key}-2")).json() == second.json()
        for made in (first.json(), second.json()):
            expected.add(made["id"])
            assert (await client.summary(made["id"])).workspace == str(workspace)
    assert len(expected) == 2 * PAIRS
    assert await started_since(temporal_client, before, expected) == sorted(expected)


def pair(draw: random.Random, workspace: Path, project: str, name: str) -> tuple[Sent, Sent]:
    """Return two requests that differ in their path, in one part of their query, or in one field of their body."""
    is_plan = draw.random() < 0.4
    noun = "plans" if is_plan else "episodes"
    of_project = draw.random() < 0.4
    body: dict[str, Any] = {"source": PLAN} if is_plan else episode(workspace).body | {}
    if of_project:
        body.pop("workspace", None)
        path = f"/api/projects/{project}/{noun}"
    else:
        body["workspace"] = str(workspace)
        path = f"/api/{noun}"
    query = {"id": name} if draw.random() < 0.6 else {}
    one, part_of = Sent(path, body, query), draw.choice(["path", "query", "body"])
    if part_of == "path":
        other_noun = "episodes" if is_plan else "plans"
        other = {"source": PLAN} if other_noun == "plans" else episode(workspace).body
        # Without the chosen id, which only one of the two can have.
        return one._replace(query={}), Sent(f"/api/{other_noun}", {**other, "workspace": str(workspace)}, {})
    if part_of == "query":
        changed = {"id": f"{name}-b"} if query else {"id": f"{name}-c"}
        return one, one._replace(query=changed)
    changes: list[dict[str, Any]] = (
        [{"source": PLAN + "# more\n"}, {"source": PLAN.replace("true", "true ")}]
        if is_plan
        else [{"goal": "Keep it green"}, {"definitionOfDone": [{"run": "true "}]}, {"planner": "heuristic"}]
    )
    one = one._replace(query={})
    return one, one._replace(body=body | draw.choice(changes))


def forget_answers(database: Database) -> None:
    """Leave what a gateway leaves that is killed between a start and its record."""
    with database.writing() as connection:
        connection.execute(text("UPDATE idempotency_keys SET status = 0, body = ''"))


async def end(client: TightloopClient, name: str) -> None:
    await client.cancel(name)
    await client.result(name)


async def test_a_gateway_that_was_killed_before_it_recorded_a_start_finds_it_again(
    tmp_path: Path, workspace: Path, client: TightloopClient, settings: Settings, working: Working
) -> None:
    key, name, chosen = f"k-{uuid4().hex}", f"own-{uuid4().hex[:6]}", f"c-{uuid4().hex}"
    async with gateway(tmp_path, client, settings) as served:
        token = served.token("anna", Role.ADMIN)
        async with served.http(token) as http, working():
            derived = (await episode(workspace).post(http, key)).json()["id"]
            await end(client, derived)
            fork = Sent(f"/api/episodes/{derived}/fork", {"checkpointId": "ckpt-0"}, {})
            forked = (await fork.post(http, f"f-{key}")).json()["id"]
            await end(client, forked)
            assert (await episode(workspace, id=name).post(http, chosen)).status_code == 201
            await end(client, name)
        forget_answers(served.ledger.database)
        ledger = served.ledger
        async with gateway(tmp_path, client, settings, ledger) as again, again.http(token) as http:
            found = [
                await episode(workspace).post(http, key),
                await episode(workspace, id=name).post(http, chosen),
            ]
            assert [(one.status_code, one.json()["id"]) for one in found] == [(201, derived), (201, name)]
            other = episode(workspace)._replace(body=episode(workspace).body | {"goal": "Another goal"})
            assert problem_of(await other.post(http, key)) == (409, "key-in-use")
            replaced = await episode(workspace, id=name, replace="true").post(http, f"r-{key}")
            assert replaced.status_code == 201
            run = (await client._calls.describe(name)).run_id
            forget_answers(ledger.database)
        async with gateway(tmp_path, client, settings, ledger) as last, last.http(token) as http, working():
            assert (await fork.post(http, f"f-{key}")).json()["id"] == forked
            await end(client, name)
            again_replaced = await episode(workspace, id=name, replace="true").post(http, f"r-{key}")
            assert again_replaced.status_code == 201
            assert (await client._calls.describe(name)).run_id == run, "it must not start over what it started"
            other = await episode(workspace, id=name).post(http, f"other-{key}")
            assert problem_of(other) == (409, "id-taken")
    assert derived.startswith("episode-")


async def test_the_same_request_of_a_program_is_started_once_and_another_one_is_refused(
    client: TightloopClient, workspace: Path
) -> None:
    request = EpisodeRequest(goal="Keep green", workspace=str(workspace), definition_of_done=(Check(run="true"),))
    name, loop = f"nightly-{uuid4().hex[:6]}", f"plan_{uuid4().hex[:6]}"
    asked = LoopRequest(workspace=str(workspace), goal="make files")
    for _ in range(2):
        assert await client.start(request, new_id=name, request_id="monday") == name
        assert await client.plan_project(asked, new_id=loop, request_id="monday") == loop
    for wrong, request_id in ((request.evolve(goal="other"), "monday"), (request, "tuesday"), (request, "")):
        with pytest.raises(IdTakenError, match=f"{name} already exists"):
            await client.start(wrong, new_id=name, request_id=request_id)
    with pytest.raises(IdTakenError, match=f"{loop} already exists"):
        await client.plan_project(asked.evolve(goal="other"), new_id=loop, request_id="monday")


async def test_one_key_of_a_tool_is_one_call(served: Gateway, workspace: Path) -> None:
    asked = {"goal": "Keep green", "workspace": str(workspace), "definition_of_done": ["true"]}
    async with over_http(served, served.token("boris", Role.OPERATOR)) as tools:
        started = [await call(tools, "start_episode", **asked, key="monday") for _ in range(2)]
        assert started[0] == started[1]
        for changes in ({"goal": "Another"}, {"executor": "human"}, {"definition_of_done": ["false"]}):
            said = await refused(tools, "start_episode", **asked | changes, key="monday")
            assert "'monday' was already used for another request" in said
        assert await call(tools, "start_episode", **asked, key="tuesday") != started[0]
