"""Every query of a dashboard and of an alert rule has data in a real Prometheus that read the workers of a run."""

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from activities.model.gateway.wire import Wire
from tests.support.alert_receiver import Answer, receiving
from tests.support.browser import chromium
from tests.support.episodes import Git, asked, eventually, scripted
from tests.support.fake_model import FakeCoderModel, Fault, use
from tests.support.fake_model.exchange import Tokens
from tests.support.observing import RULES, operands, panel_queries
from tests.support.prometheus import PROMETHEUS, Prometheus, scraping
from tests.support.stack.stack import Stack, wait_for_port
from tightloop.client import TightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.executor.model import ExecutorChoice
from tightloop.ledger.metrics import Unit
from tightloop.ledger.model import amount
from worker.server import free_port

COUNTED = {
    "episodes": "tightloop_episodes",
    "tokens": "tightloop_tokens",
    "cost": "tightloop_call_cost_usd_sum",
    "interventions": "tightloop_interventions",
}
"""What the page shows, too, by the name that it has there."""
ROUNDS = 2
"""What happened before the first look at a counter is no increase."""
WRITE = use(("create_file", {"path": "lines.py", "content": "LINES = 3\n", "overwrite": None}))
FINISH = use(("finish", {"summary": "written"}))
NEVER = timedelta(seconds=4)
"""After that an unanswered question fails its episode."""
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed: apt install prometheus")


def repositories(folder: Path, git: Git) -> Iterator[str]:
    for number in range(2 * ROUNDS):
        workspace = folder / str(number)
        workspace.mkdir(parents=True)
        (workspace / "README.md").write_text("a project\n")
        git(workspace, "init", "-q")
        git(workspace, "add", "-A")
        git(workspace, "commit", "-qm", "Begin")
        yield str(workspace)


async def found_missing(prometheus: Prometheus, seconds: float = 15.0) -> list[str]:
    """Return the queries that still have no number; of what is counted, one above zero."""

    def look() -> list[str]:
        queries = [*panel_queries(), *(part for rule in RULES for part in operands(rule["expr"]))]
        return [query for query in queries if not any(map(shows(query), prometheus.values(query)))]

    until = asyncio.get_running_loop().time() + seconds
    while (missing := await asyncio.to_thread(look)) and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.5)
    return missing


def shows(query: str) -> Callable[[float], bool]:
    """Return what tells whether a panel has something to show: quotients of nothing are NaN."""
    return (lambda value: value > 0) if "increase(" in query else math.isfinite


async def succeed(client: TightloopClient, workspace: str) -> None:
    """The coder asks a model that first fails; tokens and cost."""
    request = EpisodeRequest(
        goal="three lines",
        workspace=workspace,
        definition_of_done=("test -f lines.py",),
        executor=ExecutorChoice(name="coder"),
    )
    result = await client.result(await client.start(request))
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason


async def fail(client: TightloopClient, workspace: str) -> None:
    """The budget is spent; a person gives more, which is spent, too, and nobody answers."""
    request = EpisodeRequest(
        goal="never done",
        workspace=workspace,
        definition_of_done=("test -f never",),
        executor=scripted({"append": [{"path": "log.txt", "text": "once more"}]}),
        budget=Budget(max_iterations=1),
        pause_timeout=NEVER,
    )
    episode_id = await client.start(request)
    await asked(client, episode_id)
    await client.top_up(episode_id, iterations=1)
    assert (await client.result(episode_id)).outcome is EpisodeOutcome.FAILED


async def start_unknown(client: Client) -> None:
    """A workflow that the workers do not know, as after the upgrade of only some: its workflow tasks fail."""
    await client.start_workflow("WorkflowOfALaterVersion", id=f"later-{uuid4().hex}", task_queue="tightloop")


def figures(listen: str, token: str, picture: Path) -> dict[str, list[str]]:
    """Return the rows of figures on the page, as a browser shows them, and take a picture of it."""
    with chromium() as browser:
        headers = {"Authorization": f"Bearer {token}"}
        page = browser.new_context(extra_http_headers=headers, viewport={"width": 1280, "height": 900}).new_page()
        page.goto(f"http://{listen}/metrics?since=24h")
        page.screenshot(path=picture, full_page=True)
        rows = page.get_by_role("region", name="All figures").get_by_role("row").all()
        cells = [row.locator("th, td").all_text_contents() for row in rows]
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in cells}


@pytest.mark.timeout(300)
async def test_every_query_has_data_and_the_page_shows_the_same_numbers(tmp_path: Path, git: Git) -> None:
    binds = {role: f"127.0.0.1:{free_port()}" for role in ("workflows", "workspace")}
    tokens = Tokens(input=1200, output=80, cached=1000, cost_usd=0.002)
    with FakeCoderModel(*(WRITE, FINISH) * ROUNDS, tokens=tokens) as model, receiving() as refusing:
        refusing.answers = [Answer(404)]
        channels = {"ops": {"type": "webhook", "url": refusing.url}, "log": {"type": "log"}}
        listen = f"127.0.0.1:{free_port()}"
        variables = {
            "TIGHTLOOP_GATEWAY__LISTEN": listen,
            "TIGHTLOOP_CODER__BASE_URL": model.base_url(Wire.CHAT),
            "TIGHTLOOP_CODER__MODELS": json.dumps(["fake"]),
            "TIGHTLOOP_ALERTS__CHANNELS": json.dumps(channels),
            "TIGHTLOOP_RETENTION__EVERY_H": "24",
            "TIGHTLOOP_RETENTION__MAX_GB": "100",
        }
        with Stack(tmp_path / "stack", variables) as stack:
            stack.start_server()
            wait_for_port(stack.settings.temporal.address)
            for role, bind in binds.items():
                stack.environment["TIGHTLOOP_TELEMETRY__PROMETHEUS_BIND"] = bind
                stack.add_worker("--role", role)

            async def ready() -> bool:
                return stack.worker_log().count("is ready") == len(binds)

            await eventually(ready, seconds=120)
            client = await TightloopClient.connect(settings=stack.settings)
            temporal = await Client.connect(stack.settings.temporal.address)
            with scraping(tmp_path / "prometheus", list(binds.values())) as prometheus:
                workspaces = repositories(tmp_path / "work", git)
                for _ in range(ROUNDS):
                    model.rewrite(*(WRITE, FINISH) * ROUNDS, fault=Fault.server_error(times=1))
                    await start_unknown(temporal)
                    await asyncio.gather(succeed(client, next(workspaces)), fail(client, next(workspaces)))
                missing = await found_missing(prometheus)
                stack.start_gateway()
                token = await asyncio.to_thread(stack.tightloop, "token", "create", "op", "--role", "operator")
                wait_for_port(listen)
                shown = await asyncio.to_thread(figures, listen, token, tmp_path / "numbers.png")
                # Asked last: what happened at the end of the run has been read since.
                counted = {name: prometheus.values(f"sum({query})")[0] for name, query in COUNTED.items()}
    assert missing == []
    assert shown["Success rate"][0] == "50 %"
    assert shown["Success rate"][2] == f"{ROUNDS} of {counted['episodes']:.0f}"
    for name, unit in (("Tokens", Unit.COUNT), ("Cost", Unit.USD), ("Interventions", Unit.COUNT)):
        assert shown[name][2] == amount(counted[name.lower()], unit), name
    assert counted["tokens"] == sum(model.paid) * (tokens.input + tokens.output)
