"""Every surface shows the same figures of a run."""

import asyncio
import contextlib
import json
import random
import re
from contextlib import AsyncExitStack
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from click.testing import CliRunner
from temporalio.client import Client, WorkflowFailureError

from tests.support.alert_receiver import SECRET, Receiver, receiving
from tests.support.doubles import ScriptedPlanner, claims_done, planned
from tests.support.episodes import APPEND, Working, eventually, scripted
from tests.support.extent import draw_seed, part
from tests.support.gateway import gateway
from tests.support.mcp import call, over_http
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.client.sign_in import page_link
from tightloop.database.ledger import local_ledger
from tightloop.episode.model import EpisodeStatus
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.errors import ServiceUnavailableError
from tightloop.host import state_folder
from tightloop.plan.request import PlanRequest, PlanStatus
from tightloop.run.outcome import is_success, label
from tightloop.safety.seal import Role
from tightloop.settings import Settings, parse_settings

RUNS = 200
REST_SECONDS = 300
PAGE = {"Accept": "text/html", "Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none"}
CHECKS = ("grep -q 2 log.txt", "test -f app.py", "test -f absent.txt", "grep -q 3 log.txt")
STEPS = (
    "{{id: s{0}, shell: {{run: 'true'}}, access: none}}",
    "{{id: s{0}, shell: {{run: 'false'}}, access: none}}",
    "{{id: s{0}, shell: {{run: 'false'}}, access: none, failure_modes: [{{name: red, recover: skip}}]}}",
    "{{id: s{0}, shell: {{run: 'false'}}, access: none, failure_modes: [{{name: red, recover: continue}}]}}",
    "{{id: s{0}, when: '${{plan.n}} == 1', shell: {{run: 'true'}}, access: none}}",
    "{{id: s{0}, edit: {{files: [{{path: made{0}.txt, content: x}}]}}}}",
    "{{id: s{0}, gate: {{approval: {{question: 'Go on?'}}}}}}",
)


def planner(briefing: Briefing) -> PlannerAnswer:
    """Plan twice, and then claim that the goal is met."""
    return planned() if briefing.iteration <= 2 else claims_done()


def random_episode(chance: random.Random, workspace: Path) -> dict[str, Any]:
    usage: dict[str, Any] = {"input_tokens": chance.randrange(1, 2000), "output_tokens": chance.randrange(1, 2000)}
    if chance.random() < 0.5:
        usage["cost_usd"] = chance.randrange(1, 900) / 100
    step: dict[str, Any] = chance.choice((APPEND, APPEND, {"sleep": 0}))
    return {
        "workspace": str(workspace),
        "definition_of_done": chance.sample(CHECKS, chance.randrange(1, 4)),
        "executor": scripted({**step, **({"usage": usage} if chance.random() < 0.7 else {})}),
        "budget": {"max_iterations": chance.randrange(1, 5)},
    }


def random_plan(chance: random.Random, workspace: Path) -> PlanRequest:
    steps = "".join(f"- {chance.choice(STEPS).format(number)}\n" for number in range(chance.randrange(1, 6)))
    return PlanRequest(workspace=str(workspace), source=f"id: p\ntitle: random\ninputs: {{n: 0}}\nsteps:\n{steps}")


async def bring_to_rest(client: TightloopClient, chance: random.Random, run_id: str) -> EpisodeStatus | PlanStatus:
    """Answer some questions until the run has ended, or waits for a person who does not come."""
    while True:

        async def rests() -> EpisodeStatus | PlanStatus | None:
            try:
                status = await client.status(run_id)
            except ServiceUnavailableError:
                return None  # the worker is busy
            assert isinstance(status, EpisodeStatus | PlanStatus)
            idle = bool(status.questions) and not getattr(status, "running", ())
            return status if idle or status.list_status not in {"running", "paused"} else None

        status = await eventually(rests, seconds=REST_SECONDS)
        if not status.questions or chance.random() < 0.25:
            return status
        if chance.random() < 0.3:
            await client.cancel(run_id, by="ada")
        else:
            question = chance.choice(status.questions)
            names = [option.name for option in question.options if not option.takes_paths and option.name != "retry"]
            with contextlib.suppress(ServiceUnavailableError):
                await client.answer(run_id, chance.choice(names), question=question.id, by="ada")
            await asyncio.sleep(0.2)


def figures(document: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a status, in the spelling of the API or not."""

    def field(name: str) -> Any:
        camel = re.sub(r"_(.)", lambda found: found[1].upper(), name)
        return document.get(name, document.get(camel))

    return {
        "status": document.get("status"),
        "qualifier": document.get("qualifier"),
        "reason": document.get("reason"),
        "files_changed": field("files_changed"),
        "iteration": field("iteration"),
        "checks": field("checks"),
        "counts": field("counts"),
        "questions": [question["id"] for question in document["questions"]],
        "cost": (document.get("spent") or {}).get("cost_usd", (document.get("spent") or {}).get("costUsd")),
    }


class Surfaces:
    """Everything that shows runs, beside one server."""

    def __init__(
        self,
        stack: AsyncExitStack,
        served: Any,
        client: TightloopClient,
        temporal: Client,
        file: Path,
        receiver: Receiver,
    ):
        self.stack, self.served, self.client, self.temporal, self.file, self.receiver = (
            stack,
            served,
            client,
            temporal,
            file,
            receiver,
        )
        self.differences: list[str] = []

    async def open(self) -> None:
        token = self.served.token(f"anna-{uuid4().hex[:8]}", Role.OPERATOR)
        self.http = await self.stack.enter_async_context(self.served.http(token))
        self.mcp = await self.stack.enter_async_context(over_http(self.served, token))
        link = urlsplit(page_link(self.served.settings, "/episodes"))
        async with self.served.http(Host=link.netloc, **PAGE) as first:
            cookie = (await first.get(f"{link.path}?{link.query}")).headers["set-cookie"].partition(";")[0]
        self.page = await self.stack.enter_async_context(self.served.http(Host=link.netloc, Cookie=cookie, **PAGE))

    async def cli(self, *arguments: str) -> Any:
        """Return what a command prints: one document, or the last one of several lines."""
        command = ("--settings", str(self.file), *arguments, "--json")
        done = await asyncio.to_thread(CliRunner().invoke, app, command)
        assert done.exit_code in {0, 1, 3, 4}, done.output
        return json.loads(done.stdout.splitlines()[-1] if arguments[0] == "watch" else done.stdout)

    def same(self, run_id: str, surface: str, shown: Any, expected: Any) -> None:
        if shown != expected:
            self.differences.append(f"{run_id}: {surface} shows {shown}, not {expected}")

    async def compare(self, run_id: str, rows: dict[str, Any]) -> None:
        """Compare all surfaces with the status that the workflow itself reports."""
        status = await self.client.status(run_id)
        assert isinstance(status, EpisodeStatus | PlanStatus)
        noun, kind = ("episodes", "") if isinstance(status, EpisodeStatus) else ("plans", "&kind=plan")
        expected, shown = figures(status.model_dump(mode="json")), label(status.list_status, status.qualifier)
        self.same(run_id, "status --json", figures(await self.cli("status", run_id)), expected)

        async def is_recorded() -> bool:
            return figures((await self.http.get(path)).json()["details"]) == expected

        path = f"/api/{noun}/{run_id}"
        with contextlib.suppress(TimeoutError):
            await eventually(is_recorded, seconds=10)
        document = (await self.http.get(path)).json()
        self.same(run_id, "API", figures(document["details"]), expected)
        fresh = (await self.http.get(f"{path}?fresh=true")).json()
        self.same(run_id, "API, fresh", figures(fresh["details"]), expected)
        listed = (await self.http.get(f"/api/{noun}?limit=200{kind}")).json()["items"]
        line = next((item for item in listed if item["id"] == run_id), None)
        self.same(run_id, "API, list", line, {name: it for name, it in document.items() if name != "details"})
        spent = status.spent
        columns = {
            "status": status.list_status,
            "qualifier": status.qualifier,
            "filesChanged": status.files_changed,
            "costUsd": spent.cost_usd,
            "costKnown": not spent.unpriced_calls,
            "workedS": spent.wall_time.total_seconds(),
            "tokens": None if getattr(spent, "unreported_calls", 0) else spent.tokens,
            "iteration": getattr(status, "iteration", 0),
            "checks": getattr(status, "checks", ""),
        }
        self.same(run_id, "ledger", {name: document[name] for name in columns}, columns)
        asks = sorted(question.id for question in status.questions if question.needs_person)
        items = (await self.http.get("/api/inbox")).json()["items"]
        waiting = sorted(item["question"]["id"] for item in items if item["workflowId"] == run_id)
        self.same(run_id, "inbox", waiting, asks)
        told = await call(self.mcp, "status" if noun == "episodes" else "plan", id=run_id)
        words = {"qualifier": status.qualifier, "reason": status.reason}
        self.same(run_id, "MCP", {name: told.get(name, "") for name in words}, words)
        await self._compare_list(run_id, rows, (shown, columns["iteration"]))
        described = await self.temporal.get_workflow_handle(run_id).describe()
        self.same(run_id, "search attribute", described.search_attributes["TightloopStatus"], [shown])
        html = (await self.page.get(f"/workflows/{run_id}")).text
        facts = {
            "Result": status.qualifier,
            "Files changed": "" if status.files_changed is None else str(status.files_changed),
        }
        if isinstance(status, EpisodeStatus):
            facts |= {"Checks": status.checks, "Iterations": str(spent.iterations)}
        else:
            facts |= {"Steps done": f"{status.counts.get('completed', 0)}/{sum(status.counts.values())}"}
        if status.list_status not in {"running", "paused"}:
            result = await self.client.result(run_id)
            outcome = (result.outcome.lower(), result.qualifier, result.files_changed)
            self.same(run_id, "result", outcome, (status.status, status.qualifier, status.files_changed))
            facts["Doing"] = ""
            watched = await self.cli("watch", run_id)
            self.same(run_id, "watch", figures(watched), expected)
        seen = {name: fact(html, name) for name in facts}
        seen["Iterations"] = seen.get("Iterations", "").partition("/")[0]
        self.same(run_id, "page", seen, {"Iterations": "", **facts})
        await self._compare_reports(status, asks)

    async def _compare_list(self, run_id: str, rows: dict[str, Any], expected: tuple[str, int]) -> None:
        """Compare the run's row of `tightloop list`, which Temporal updates a moment after the run has changed."""

        def shown() -> tuple[str, int]:
            row = rows.get(run_id, {"status": "", "qualifier": "", "iteration": 0})
            return label(row["status"], row["qualifier"]), row["iteration"]

        async def is_listed() -> bool:
            if shown() != expected:
                rows.update((row["id"], row) for row in await self.cli("list", "--limit", "5000"))
            return shown() == expected

        with contextlib.suppress(TimeoutError):
            await eventually(is_listed)
        self.same(run_id, "list", shown(), expected)

    async def _compare_reports(self, status: EpisodeStatus | PlanStatus, asks: list[str]) -> None:
        """Compare the digest of the run's project, which has no other run, and the alerts."""
        [digest] = await self.cli("digest", "--project", state_folder(Path(status.workspace)).name)
        is_closed, is_good = status.list_status not in {"running", "paused"}, is_success(status.list_status)
        [item] = digest["items"]
        good = "review" if status.qualifier else "done" if status.files_changed == 0 else "merge"
        ended = good if is_good else "failed"
        expected = {"id": status.id, "state": ended if is_closed else "answer" if asks else "running"}
        shown: dict[str, Any] = {name: item[name] for name in expected}
        expected |= {"iterations": getattr(status.spent, "iterations", 0), "cost_usd": round(status.spent.cost_usd, 6)}
        shown |= {"iterations": digest["iterations"], "cost_usd": round(digest["cost_usd"], 6)}
        self.same(status.id, "digest", shown, expected)

        asking = [question for question in status.questions if question.id in asks]

        async def are_sent() -> bool:
            ids, kinds = (
                {came.told.get(name, "") for came in self.receiver.of(status.id)} for name in ("question", "kind")
            )
            # Questions of one window are answered together, so only the first of them has an alert.
            return all(question.id in ids or (question.window and question.kind in kinds) for question in asking)

        assert await eventually(are_sent, seconds=REST_SECONDS), f"{status.id}: no alert for {asks}"
        if isinstance(status, EpisodeStatus):
            for came in self.receiver.of(status.id):
                if came.told.get("question", "") in asks:
                    shown = {name: came.told.get(name, "") for name in ("iteration", "checks")}
                    self.same(status.id, "webhook", shown, {"iteration": status.iteration, "checks": status.checks})


def fact(html: str, name: str) -> str:
    """Return a fact of a run's page, or "" if the page does not show it."""
    found = re.search(rf"<dt[^>]*>\s*{name}\s*</dt>\s*<dd[^>]*>(.*?)</dd>", html, re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", "", found[1])).strip() if found else ""


@pytest.mark.timeout(7200)
async def test_surfaces_show_equal_figures(
    client: TightloopClient, temporal_client: Client, settings: Settings, working: Working, request_for: Any,
    workspace: Path, tmp_path: Path, git: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("S", SECRET)
    chance = random.Random(draw_seed())
    with receiving() as receiver:
        alerts = f"alerts: {{channels: {{ops: {{type: webhook, url: '{receiver.url}', secret_env: S}}}}}}\n"
        under = parse_settings(settings.as_yaml() + "", {}).evolve(alerts=parse_settings(alerts, {}).alerts)
        file = tmp_path / "settings.yaml"
        file.write_text(settings.as_yaml().replace("api_key: '**********'", "api_key: ''"))
        async with AsyncExitStack() as stack:
            served = await stack.enter_async_context(gateway(tmp_path, client, settings, local_ledger()))
            await stack.enter_async_context(working(ScriptedPlanner(planner), under=under))
            ids: list[str] = []

            async def play(number: int) -> None:
                copy = tmp_path / f"copy{number}"
                git(tmp_path, "clone", "--quiet", str(workspace), str(copy))
                own = random.Random(f"{chance.random()} {number}")
                if own.random() < 0.5:
                    run_id = await client.start(request_for(**random_episode(own, copy)), new_id=f"episode-{number}")
                else:
                    run_id = await client.start(random_plan(own, copy), new_id=f"plan-{number}")
                ids.append(run_id)
                await bring_to_rest(client, own, run_id)

            surfaces = Surfaces(stack, served, client, temporal_client, file, receiver)
            await surfaces.open()
            total = part(12, of=RUNS)
            for first in range(0, total, 4):
                ids.clear()
                await asyncio.gather(*(play(number) for number in range(first, min(first + 4, total))))
                # Other tests share the server.
                rows: dict[str, Any] = {}
                for run_id in ids:
                    await surfaces.compare(run_id, rows)
                for run_id in ids:
                    if (await client.status(run_id)).list_status == "paused":
                        await client.cancel(run_id, by="ada")
    assert not surfaces.differences, "\n".join(surfaces.differences)


async def test_page_of_a_run_in_its_first_check_says_what_it_does(
    client: TightloopClient, temporal_client: Client, settings: Settings, working: Working, request_for: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(gateway(tmp_path, client, settings, local_ledger()))
        await stack.enter_async_context(working())
        run_id = await client.start(request_for(definition_of_done=["sleep 15; test -f absent.txt"]))
        surfaces = Surfaces(stack, served, client, temporal_client, tmp_path, Receiver())
        await surfaces.open()

        async def shown() -> str:
            return fact((await surfaces.page.get(f"/workflows/{run_id}")).text, "Running")

        running = await eventually(shown)
        await client.cancel(run_id, by="ada")
        await client.result(run_id)

        async def is_closed() -> bool:
            html = (await surfaces.page.get(f"/workflows/{run_id}")).text
            return fact(html, "Ended") != "" and fact(html, "Doing") == fact(html, "Running") == ""

        assert await eventually(is_closed)
    assert "sleep 15" in running
    assert " of at most " in running


async def test_a_run_that_could_not_open_its_workspace_is_listed_with_the_reason(
    client: TightloopClient, temporal_client: Client, settings: Settings, working: Working, request_for: Any,
    workspace: Path, tmp_path: Path,
) -> None:  # fmt: skip
    file = tmp_path / "settings.yaml"
    file.write_text(settings.as_yaml().replace("api_key: '**********'", "api_key: ''"))
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(gateway(tmp_path, client, settings, local_ledger()))
        await stack.enter_async_context(working())
        surfaces = Surfaces(stack, served, client, temporal_client, file, Receiver())
        await surfaces.open()
        first = await client.start(request_for(executor=scripted({"sleep": 30})))
        await eventually(lambda: _is_open(client, first))
        second = await client.start(request_for())
        with pytest.raises(WorkflowFailureError):
            await temporal_client.get_workflow_handle(second).result()
        row = (await surfaces.http.get(f"/api/episodes/{second}")).json()
        [digest] = await surfaces.cli("digest", "--project", state_folder(workspace).name)
        listed = {item["id"] for item in (await surfaces.http.get("/api/episodes?limit=200")).json()["items"]}
        await client.cancel(first, by="ada")
        await client.result(first)
    assert (row["status"], row["started"] < row["closed"]) == ("failed", True)
    assert {first, second} <= listed
    [text] = [item["text"] for item in digest["items"] if (item["id"], item["state"]) == (second, "failed")]
    assert text.startswith(f"{first} is using ")


async def _is_open(client: TightloopClient, run_id: str) -> bool:
    return bool((await client.status(run_id)).iteration)


async def test_a_result_on_a_branch_is_named_on_every_surface(
    client: TightloopClient, temporal_client: Client, settings: Settings, working: Working, request_for: Any,
    workspace: Path, tmp_path: Path, git: Any,
) -> None:  # fmt: skip
    file = tmp_path / "settings.yaml"
    file.write_text(settings.as_yaml().replace("api_key: '**********'", "api_key: ''"))
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(gateway(tmp_path, client, settings, local_ledger()))
        await stack.enter_async_context(working())
        surfaces = Surfaces(stack, served, client, temporal_client, file, Receiver())
        await surfaces.open()
        run_id = await client.start(request_for(worktree=True))
        await client.result(run_id)
        [digest] = await surfaces.cli("digest", "--project", state_folder(workspace).name)
        shown = {
            (await client.status(run_id)).delivered,
            (await surfaces.cli("status", run_id))["delivered"],
            (await surfaces.http.get(f"/api/episodes/{run_id}")).json()["details"]["delivered"],
            fact((await surfaces.page.get(f"/workflows/{run_id}")).text, "Delivered"),
        }
    [delivered] = shown
    assert f"git merge tightloop/{run_id}" in delivered
    [item] = digest["items"]
    assert item["text"] == f"proven (all checks pass: 1/1); {delivered}"
    assert len(git(workspace, "show", f"tightloop/{run_id}:log.txt").splitlines()) == 3
    assert git(workspace, "status", "--porcelain") == ""
