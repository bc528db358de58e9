"""A token of one project sees nothing of another, and a viewer changes nothing: over the API, the page and streams."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2
import pytest
from temporalio.client import Client

from tests.support.extent import part
from tests.support.gateway import EPISODES, NAMES, PLANS, Gateway, fill, gateway, project_id, secret_of
from tightloop.client import EpisodeRequest, TightloopClient
from tightloop.ledger.model import TrailEvent
from tightloop.safety.seal import Role
from tightloop.settings import Settings

REQUESTS = part(200, of=2_000)
READS = ("", "timeline", "trail", "artifacts", "checkpoints", "steps", "diff?before=0&after=1", f"artifacts/{'0' * 64}")
MESSAGES: dict[str, dict[str, Any]] = {
    "pause": {},
    "resume": {},
    "cancel": {},
    "answer": {"option": "allow"},
    "respond": {"text": "hello"},
    "top-up": {"tokens": 1},
    "restore": {"checkpointId": "ckpt-0"},
    "fork": {"checkpointId": "ckpt-0"},
    "gates/build/approve": {},
    "tasks/build/run": {},
}
AT_ONCE = ("pause", "resume")
"""Messages that need no worker: those with an answer of its own would wait for one, which is not there."""


class Asked(NamedTuple):
    """One random request."""

    name: str
    method: str
    path: str
    body: dict[str, Any] | None


def random_request(chance: random.Random, folder: Path) -> Asked:
    name, about = chance.choice(NAMES), chance.choice(NAMES)
    project = project_id(folder, about)
    noun, count = chance.choice((("episode", EPISODES), ("plan", PLANS)))
    item = f"{about}-{noun}-{chance.randrange(count)}"
    lists = [
        f"/api/{noun}s?{words}" for words in (f"project={project}", "", "limit=1", f"text={about}", f"parent={item}")
    ]
    kind = "&kind=plan" if noun == "plan" else ""
    reads = [
        "/api/inbox",
        f"/api/inbox?project={project}",
        "/api/projects",
        f"/api/projects/{project}",
        f"/api/projects/{project}/digest?since=2026-03-01&until=2026-03-02",
        *(f"{path}{kind}" for path in lists),
        *(f"/api/{noun}s/{item}/{rest}".rstrip("/") for rest in READS),
        *("/", "/episodes", "/plans", "/projects", f"/projects/{project}", f"/workflows/{item}"),
    ]
    if about == name:
        # Nobody would answer, as with messages.
        reads = [path for path in reads if not path.endswith("/timeline")]
    if chance.random() < 0.6:
        return Asked(name, "GET", chance.choice(reads), None)
    workspace = str(folder / about)
    starts: list[tuple[str, dict[str, Any]]] = [
        ("/api/episodes", {"goal": "x", "workspace": workspace, "definitionOfDone": [{"run": "true"}]}),
        (f"/api/projects/{project}/episodes", {"goal": "x", "definitionOfDone": [{"run": "true"}]}),
        ("/api/plans", {"workspace": workspace, "file": f"{folder / 'relay'}/plan.yaml"}),
    ]
    if about != name and chance.random() < 0.3:
        return Asked(name, "POST", *chance.choice(starts))
    message = chance.choice(AT_ONCE if about == name else tuple(MESSAGES))
    return Asked(name, "POST", f"/api/{noun}s/{item}/{message}", MESSAGES[message])


@pytest.mark.timeout(900)
async def test_random_requests_see_nothing_of_the_other_project(
    tmp_path: Path, temporal_client: Client, client: TightloopClient, settings: Settings
) -> None:
    chance = random.Random(12)
    async with gateway(tmp_path, client, settings) as served:
        fill(served.ledger, tmp_path)
        for name in NAMES:
            request = EpisodeRequest(goal=secret_of(name), workspace=str(tmp_path / name), definition_of_done=("true",))
            await client.start(request, new_id=f"{name}-episode-0")
        people = {name: served.http(served.token(name, Role.ADMIN, [project_id(tmp_path, name)])) for name in NAMES}
        seen = Counter[int]()
        for _ in range(REQUESTS):
            asked = random_request(chance, tmp_path)
            answer = await people[asked.name].request(asked.method, asked.path, json=asked.body)
            seen[answer.status_code] += 1
            check(asked, answer, tmp_path)
        for person in people.values():
            await person.aclose()
    print(dict(seen))
    assert seen[200] > REQUESTS / 5
    assert seen[404] > REQUESTS / 5


def check(asked: Asked, answer: httpx2.Response, folder: Path) -> None:
    """Nothing of the other project is told that the request did not say itself."""
    other = next(name for name in NAMES if name != asked.name)
    said = f"{asked.path} {json.dumps(asked.body)}"
    told = f"{answer.text} {dict(answer.headers)}"
    assert answer.status_code < 500, f"{asked}: {told[:500]}"
    hidden = [secret_of(other), project_id(folder, other), str(folder / other)]
    hidden += [f"{other}-{noun}-{number}" for noun in ("episode", "plan") for number in range(5)]
    for word in hidden:
        assert word not in told or word in said, f"{asked} told of {word}: {told[:800]}"
    if f"/{other}-" in asked.path and asked.path.startswith("/api"):
        assert answer.status_code == 404, f"{asked}: {answer.status_code} {told[:300]}"
    if f"/projects/{project_id(folder, other)}" in asked.path:
        assert 400 <= answer.status_code < 500, f"{asked}: {answer.status_code}"


async def test_another_project_is_refused_in_the_words_of_one_that_does_not_exist(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served:
        fill(served.ledger, tmp_path)
        token = served.token("anna", Role.ADMIN, [project_id(tmp_path, "orders")])
        async with served.http(token) as http:
            for path in ("", "/trail", "/artifacts", "/checkpoints"):
                known = await http.get(f"/api/episodes/relay-episode-1{path}")
                unknown = await http.get(f"/api/episodes/relay-episode-9{path}")
                assert known.status_code == unknown.status_code == 404
                assert known.text.replace("relay-episode-1", "X") == unknown.text.replace("relay-episode-9", "X")
            taken = await http.post(
                "/api/episodes?id=relay-episode-0",
                json={"goal": "x", "workspace": str(tmp_path / "orders"), "definitionOfDone": [{"run": "true"}]},
            )
            assert taken.status_code == 422
            assert "choosing an id requires a token that covers all projects" in taken.json()["detail"]


async def test_a_viewer_reads_everything_and_changes_nothing(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served:
        fill(served.ledger, tmp_path)
        async with served.http(served.token("eve", Role.VIEWER)) as http:
            document = (await http.get("/api/openapi.json")).json()
            tried = 0
            for path, methods in document["paths"].items():
                for method in methods.keys() & {"post", "put", "patch", "delete"}:
                    there = path.format(
                        workflowId="orders-episode-1", projectId=project_id(tmp_path, "orders"), taskId="t", gateId="g"
                    )
                    answer = await http.request(method, there, json={})
                    assert answer.status_code == 403, f"{method} {there}: {answer.text}"
                    assert "is a viewer and has read-only access" in answer.json()["detail"]
                    tried += 1
            for path in ("/workflows/orders-episode-1/answer", "/loops/x/dispatch", "/anything"):
                assert (await http.post(path, data={"option": "allow"})).status_code == 403
            assert tried >= 18
            assert (await http.get("/api/inbox")).json()["items"]


async def test_a_stream_carries_the_events_of_its_projects_alone(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served:
        fill(served.ledger, tmp_path)
        tokens = {name: served.token(name, Role.VIEWER, [project_id(tmp_path, name)]) for name in NAMES}
        # The first with everything that was before, the second with what comes.
        streams = [
            asyncio.create_task(read_until(served, tokens["orders"], "last of orders", "0")),
            asyncio.create_task(read_until(served, tokens["relay"], "last of relay", "")),
        ]
        await asyncio.sleep(1)
        for number in range(20):
            for name in NAMES:
                await asyncio.to_thread(add_event, served, tmp_path, name, secret_of(name), str(number))
        for name in NAMES:
            await asyncio.to_thread(add_event, served, tmp_path, name, f"last of {name}", "last")
        orders, relay = await asyncio.gather(*streams)
    assert orders.count("event: trail") >= 21 + EPISODES
    assert relay.count("event: trail") == 21
    assert secret_of("relay") not in orders
    assert secret_of("orders") not in relay


def add_event(served: Gateway, folder: Path, name: str, text: str, key: str) -> None:
    of = served.ledger.of(project_id(folder, name))
    of.add_event(TrailEvent(episode_id=f"{name}-episode-0", kind="iteration", text=text, key=f"live/{key}"))


async def read_until(served: Gateway, token: str, word: str, after: str) -> str:
    """Everything that a stream carries until a word comes."""
    told = ""
    path = f"/api/events?lastEventId={quote(after)}" if after else "/api/events"
    async with asyncio.timeout(60), served.http(token) as http, http.stream("GET", path) as stream:
        async for part in stream.aiter_text():
            told += part
            if word in told:
                return told
    raise AssertionError(told[-500:])
