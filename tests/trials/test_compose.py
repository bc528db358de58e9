"""The stack of docker-compose.yml on a real Docker engine, and a first episode in its containers, as the docs say.

Runs only with `TIGHTLOOP_TEST_COMPOSE=1`: it builds all images, a quarter of an hour. Our own come from
deploy/Dockerfile on a base that is made here; those that would be pulled are replaced, see
tests/support/compose/images. An engine with compose that answers is used, and its images `tightloop/*:local` are built
again; otherwise a private one is started, as root on Debian.
"""

import base64
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.compose.engine import docker_engine
from tests.support.compose.stack import Compose, compose_stack
from tests.support.stack.stack import ROOT

pytestmark = [
    pytest.mark.skipif("TIGHTLOOP_TEST_COMPOSE" not in os.environ, reason="it builds images: TIGHTLOOP_TEST_COMPOSE=1"),
    pytest.mark.timeout(3_600),
]
ONCE = {"setup", "temporal-schema"}
"""These do something and end."""
WATCHED = {"postgresql", "temporal", "workflows", "workspace", "gateway", "codec"}
"""These have a health check."""
TARGETS = {"workflows:9464", "workspace:9464"}
PROMPT = "$ docker compose exec workspace "
CHECKS = ["pytest -q", "ruff check .", "ruff format --check ."]
NAME = "tightloop.localhost:8235"
"""The gateway's, in the links that it makes."""
BEGUN = ("cut", "-d", " ", "-f", "22", "/proc/1/stat")
"""When a container began, in a unit of the kernel's."""
PATIENCE_S = 60.0
EPISODE_S = 600.0


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    with docker_engine() as environment, compose_stack(environment, tmp_path_factory.mktemp("compose")) as stack:
        yield stack


def first_episode(compose: Compose, folder: str) -> Iterator[str]:
    """Run the commands of docs/operate/production.md, one after the other, with another folder."""
    lines = (ROOT / "docs" / "operate" / "production.md").read_text().splitlines()
    for line in lines:
        if line.startswith(PROMPT):
            command = line.removeprefix(PROMPT).replace("/workspaces/orders", folder)
            yield compose.inside("workspace", *shlex.split(command))


@pytest.fixture(scope="module")
def episode(compose: Compose) -> str:
    """The id of an episode that ended green."""
    *_, watched = first_episode(compose, "/workspaces/orders")
    assert "SUCCEEDED" in watched
    status = json.loads(compose.inside("workspace", "tightloop", "status", "last", "--json"))
    assert status["outcome"] == "SUCCEEDED", status["reason"]
    return str(status["episode_id"])


def eventually(look: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """Return what a look finds; it is repeated until that is something."""
    deadline = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(1)
    return found


def proven_runs(compose: Compose, episode: str) -> list[dict[str, Any]]:
    """Return the checks of each run in the proof of an episode."""
    compose.inside("workspace", "tightloop", "proof", episode, "--output", "/tmp/proof.json")
    envelope = json.loads(compose.inside("workspace", "cat", "/tmp/proof.json"))
    proof = json.loads(base64.b64decode(envelope["payload"]))["predicate"]["tightloop"]
    assert (proof["episode"], proof["verdict"]) == (episode, "proven")
    return [check for run in proof["runs"] for check in run["checks"]]


def test_what_stays_is_healthy_and_what_runs_once_ended_well(compose: Compose) -> None:
    services = compose.services()
    assert services.keys() == set(compose("config", "--services").split())
    assert {name for name, service in services.items() if service["State"] != "running"} == ONCE
    assert {services[name]["ExitCode"] for name in ONCE} == {0}
    assert {name for name, service in services.items() if service["Health"]} == WATCHED
    assert {services[name]["Health"] for name in WATCHED} == {"healthy"}


def test_first_episode_ends_green_with_its_checks_proven_in_the_sandbox(compose: Compose, episode: str) -> None:
    runs = proven_runs(compose, episode)
    assert [run["run"] for run in runs] == CHECKS
    assert {(run["status"], run["sandbox"], *run["notEnforced"]) for run in runs} == {("passed", "bubblewrap")}
    assert runs[0]["reports"][0]["passed"] == 9


def test_ledger_of_the_episode_is_in_postgresql(compose: Compose, episode: str) -> None:
    def counted(query: str) -> str:
        command = ["psql", "-h", "/tmp", "-U", "temporal", "-d", "tightloop", "-tAc", query]
        return compose.inside("postgresql", *command).strip()

    status = f"SELECT status FROM workflows WHERE id = '{episode}'"
    assert eventually(lambda: counted(status) == "succeeded"), counted(status)
    for table in ("checkpoints", "events"):
        assert int(counted(f"SELECT count(*) FROM {table} WHERE workflow_id = '{episode}'")) > 1


def test_prometheus_reads_the_workers_and_knows_the_rules(compose: Compose, episode: str) -> None:
    def found(query: str) -> dict[str, str]:
        answer = compose.ask("prometheus", 9090, f"/api/v1/query?query={query}")
        return {series["metric"]["instance"]: series["value"][1] for series in answer["data"]["result"]}

    assert eventually(lambda: found("up{job='tightloop'}") == dict.fromkeys(TARGETS, "1")), found("up")
    assert eventually(lambda: found("tightloop_episodes{outcome='SUCCEEDED'}")), "no episode was counted"
    groups = compose.ask("prometheus", 9090, "/api/v1/rules")["data"]["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}


def test_collector_gets_the_spans_of_the_episode(compose: Compose, episode: str) -> None:
    def services() -> set[str]:
        return compose.telemetry().services

    workers = {"tightloop-workflows", "tightloop-workspace"}
    assert eventually(lambda: workers <= services()), services()


@pytest.mark.parametrize("service", ["workflows", "workspace", "gateway", "codec"])
def test_container_of_ours_has_no_privileges_and_a_read_only_root(compose: Compose, service: str) -> None:
    facts = compose.inside(service, "sh", "-c", "id -u; grep -E '^(CapEff|NoNewPrivs):' /proc/1/status | cut -f2")
    assert facts.split() == ["10001", "0" * 16, "1"]
    refused = compose.inside(service, "sh", "-c", "touch /opt/tightloop/new 2>&1 || true")
    assert "Read-only file system" in refused


def test_only_who_needs_the_database_finds_it(compose: Compose) -> None:
    def reaches_it(service: str) -> bool:
        reach = "import socket; socket.create_connection(('postgresql', 5432), 5); print('reached')"
        return "reached" in compose("exec", "--no-TTY", service, "python", "-c", reach, check=False)

    assert {name: reaches_it(name) for name in ("gateway", "codec")} == {"gateway": True, "codec": False}


def test_link_of_the_gateway_signs_a_browser_in(compose: Compose) -> None:
    link = urlsplit(compose.inside("gateway", "tightloop", "open").split()[-1])
    assert link.netloc == NAME
    connection = HTTPConnection(compose.published("gateway", 8235), timeout=20)
    connection.request("GET", f"{link.path}?{link.query}", headers={"Host": NAME})
    with closing(connection), connection.getresponse() as answer:
        assert answer.status == HTTPStatus.SEE_OTHER
        assert answer.headers["set-cookie"]


def test_episode_that_the_api_started_outlives_the_death_of_its_worker(compose: Compose) -> None:
    next(first_episode(compose, "/workspaces/api"))
    token = compose.inside("gateway", "tightloop", "token", "create", "ada", "--role", "operator").split()[-1]
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        # It answers under its own name only.
        "Host": NAME,
    }
    request = {
        "goal": "Get the tests green",
        "workspace": "/workspaces/api",
        "definitionOfDone": [{"run": check} for check in CHECKS],
    }
    started = compose.ask("gateway", 8235, "/api/episodes", body=request, headers=headers)

    def state() -> dict[str, Any]:
        return compose.ask("gateway", 8235, started["href"], headers=headers)  # type: ignore[no-any-return]

    assert eventually(lambda: state()["iteration"] > 0), state()
    begun = compose.inside("workspace", *BEGUN)
    # With its first program the container ends, and this command with it.
    killing = ["sh", "-c", 'kill -9 "$(cut -d" " -f1 /proc/1/task/1/children)"']
    compose("exec", "--no-TTY", "workspace", *killing, check=False)
    assert eventually(lambda: state()["status"] != "running", EPISODE_S)
    assert state()["status"] == "succeeded"
    assert compose.inside("workspace", *BEGUN) != begun
    assert [run["status"] for run in proven_runs(compose, started["id"])] == ["passed"] * len(CHECKS)
