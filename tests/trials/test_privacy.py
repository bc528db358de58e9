"""What Temporal, its files and all logs show of an episode into which a secret, an address and code were planted."""

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import temporalio.api.common.v1 as common
import temporalio.api.query.v1 as query
import temporalio.api.workflowservice.v1 as service
from temporalio.client import Client

from tests.support.alert_receiver import Receiver, receiving
from tests.support.episodes import TRIES, Git, eventually
from tests.support.model_server import ModelServer, fails, raw, says
from tests.support.otlp_receiver import Collector, collecting, values
from tests.support.stack.stack import ROOT, Stack, wait_for_port
from tests.support.stored import content_of
from tightloop.client import TightloopClient
from tightloop.client.keys import new_ring, write_ring
from tightloop.client.tracing import Tracing, exporting
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.errors import ServiceUnavailableError
from tightloop.executor.model import ExecutorChoice
from tightloop.host import state_folder
from worker.server import free_port

SECRET = "sk-" + "proj-9f3Kq2Lx71Zb84Tn56Vw"
ODD_SECRET = "correct horse battery 4711"
"""Like no key of any provider: only its variable's name tells that it is one."""
EMAIL = "jane.planted@customer.example.com"
CODE = "return ledger.balance_of(customer_47) * margin_of_the_house"
PLANTED = (SECRET, ODD_SECRET, EMAIL, CODE, "margin_of_the_house")
EVERYTHING = f"{SECRET} {EMAIL} {CODE}"


def plan(title: str) -> dict[str, Any]:
    return {
        "diagnosis": f"it says {EVERYTHING}",
        "action_items": [f"fix {EVERYTHING}"],
        "steps": [{"title": f"{title} {EVERYTHING}", "run": None}],
        "scope": ["customer.py"],
        "context": EVERYTHING,
        "claims_done": False,
        "gave_up": False,
        "impossible": False,
        "reason": "",
        "alignment": {"answer": "yes", "rationale": EVERYTHING},
    }


ANSWERS = (
    fails(500, f"upstream says {EVERYTHING}"),
    fails(401, f"wrong key for {EVERYTHING}"),
    raw(f"<html>{CODE} {SECRET} {EMAIL}".encode()),
    says(plan("First")),
    says(plan("Second")),
)
"""The last one is repeated; a plan has what a reflection needs."""


@pytest.fixture
def project(tmp_path: Path, git: Git) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "customer.py").write_text(f"# {EMAIL} {SECRET}\ndef price():\n    {CODE}\n")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "start")
    return folder


def request(project: Path) -> EpisodeRequest:
    failing = {**TRIES, "status": "failed", "error": f"it broke at {EVERYTHING}", "summary": EVERYTHING}
    # The end that is kept of an error, 494 characters, begins inside of the key.
    cut = {**TRIES, "status": "failed", "error": SECRET + " and so on" * 48, "summary": f"{' and so on' * 49} {SECRET}"}
    working = {"write": [{"path": "done.txt"}], "summary": EVERYTHING, "sleep": 0.5}
    return EpisodeRequest(
        goal=f"make it right: {EVERYTHING}",
        workspace=str(project),
        definition_of_done=("cat customer.py; test -f done.txt",),
        executor=ExecutorChoice(name="scripted", options={"steps": [failing, cut, working]}),
        planner="openai",
        drafts=0,
    )


def environment(models: ModelServer, alerts: Receiver, *, encrypt: bool) -> dict[str, str]:
    channels = {"log": {"type": "log"}, "ops": {"type": "webhook", "url": alerts.url}}
    return {
        "TIGHTLOOP_ALERTS__CHANNELS": json.dumps(channels),
        "OPENAI_API_KEY": SECRET,
        "OPENAI_BASE_URL": models.url,
        "BILLING_PASSWORD": ODD_SECRET,
        "TIGHTLOOP_PRIVACY__ENCRYPT": str(encrypt).lower(),
    }


async def run_through(
    stack: Stack, project: Path, monkeypatch: pytest.MonkeyPatch, tracing: Tracing
) -> tuple[TightloopClient, str]:
    """Run an episode with a pause in it, in which a person writes what was planted, too."""
    monkeypatch.setenv("TIGHTLOOP_HOME", stack.environment["TIGHTLOOP_HOME"])
    stack.start_server()
    wait_for_port(stack.settings.temporal.address)
    stack.start_worker()
    client = await TightloopClient.connect(settings=stack.settings, interceptors=[tracing])
    episode_id = await client.start(request(project))
    await client.pause(episode_id, f"wait: {EVERYTHING}")

    async def paused() -> bool:
        with suppress(ServiceUnavailableError):  # its worker is still starting
            return (await client.status(episode_id)).status == "paused"
        return False

    await eventually(paused, seconds=120)
    await client.respond(episode_id, f"note {EVERYTHING}")
    # The refused key pauses it again, with an alert.
    async with asyncio.timeout(240):
        async for status in client.watch(episode_id):
            if status.status == "paused":
                await client.answer(episode_id, "retry", EVERYTHING)
    result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    return client, episode_id


async def what_temporal_shows(address: str, episode_id: str) -> dict[str, bytes]:
    """Everything about an episode that can be asked of Temporal without a key, as raw bytes."""
    bare = await Client.connect(address)
    execution = common.WorkflowExecution(workflow_id=episode_id)
    answers = bare.workflow_service
    described = await answers.describe_workflow_execution(
        service.DescribeWorkflowExecutionRequest(namespace="default", execution=execution)
    )
    listed = await answers.list_workflow_executions(service.ListWorkflowExecutionsRequest(namespace="default"))
    asked = await answers.query_workflow(
        service.QueryWorkflowRequest(
            namespace="default",
            execution=execution,
            query=query.WorkflowQuery(query_type="__temporal_workflow_metadata"),
        )
    )
    history = await bare.get_workflow_handle(episode_id).fetch_history()
    return {
        "history": b"".join(event.SerializeToString() for event in history.events),
        "history as JSON": history.to_json().encode(),
        "search attributes": listed.executions[0].search_attributes.SerializeToString(),
        "memo": listed.executions[0].memo.SerializeToString(),
        "description and summaries": described.SerializeToString(),
        "list": listed.SerializeToString(),
        "current details": asked.SerializeToString(),
    }


def files_of(folder: Path) -> dict[str, bytes]:
    """The server's database, all logs, and whatever else lies in the state folder but keys and projects' own files."""
    files = (
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name != "keys.json" and "projects" not in path.relative_to(folder).parts
    )
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def places(seen: dict[str, bytes], planted: Iterable[str]) -> list[str]:
    return [
        f"{value!r} in {place}" for place, content in seen.items() for value in planted if value.encode() in content
    ]


def exported_in_full(collector: Collector) -> bool:
    """Whether spans came of client, workflow and activities, those that failed with the class of the error."""
    names = {span.name for span in collector.spans}
    errors = {values(span.attributes).get("error.type") for span in collector.spans}
    messages = [values(event.attributes) for span in collector.spans for event in span.events]
    assert {"StartWorkflow:EpisodeWorkflow", "RunWorkflow:EpisodeWorkflow", "HandleSignal:pause"} <= names
    assert {"HandleUpdate:respond", "RunActivity:next_plan", "RunActivity:send_alerts"} <= names
    assert {"PlannerUnavailableError", "PlannerError"} <= errors
    assert messages
    assert all(re.fullmatch(r"\d+ characters, sha256 \w{12}", told["exception.message"]) for told in messages)
    return True


def scrape(bind: str) -> bytes:
    with urllib.request.urlopen(f"http://{bind}/metrics", timeout=10) as answer:
        text: bytes = answer.read()
        return text


def command_line(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=stack.environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.timeout(600)
async def test_with_encryption_nothing_that_was_planted_is_seen_without_the_key_and_all_of_it_with_the_key(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        receiving() as alerts,
        collecting() as collector,
        ModelServer(*ANSWERS) as models,
        Stack(
            tmp_path / "stack",
            environment(models, alerts, encrypt=True) | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url},
        ) as stack,
    ):
        write_ring(Path(stack.environment["TIGHTLOOP_HOME"]) / "keys.json", new_ring())
        with exporting(collector.url, "the-service") as tracing:
            client, episode_id = await run_through(stack, project, monkeypatch, tracing)
        seen = await what_temporal_shows(stack.settings.temporal.address, episode_id)
        exported = tmp_path / "export.json"
        command_line(stack, "tightloop.cli.main", "export", episode_id, "--out", str(exported))
        replayed = command_line(stack, "worker", "replay", episode_id).stdout
        offline = command_line(stack, "worker", "replay", str(exported)).stdout
        status = await client.status(episode_id)
        sent = "\n".join(asked.text for asked in models.requests)
        stack.stop_worker()
    seen |= files_of(stack.folder)
    seen["alerts"] = b"".join(came.body for came in alerts.came)
    seen["spans and metrics"] = collector.raw
    assert b"fatal" in seen["alerts"]
    assert exported_in_full(collector)
    assert {"temporal.db", "worker.log", "server.log"} <= seen.keys()
    assert min(len(seen[name]) for name in ("history", "memo", "current details", "temporal.db", "worker.log")) > 50
    # The ledger and the memory hold content by design, and no secrets.
    ledger = {name: seen.pop(name) for name in list(seen) if "ledger.db" in name or "memory.db" in name}
    assert CODE.encode() in b"".join(ledger.values())
    assert places(ledger, (SECRET, ODD_SECRET, EMAIL)) == []
    assert places(seen, PLANTED) == []
    assert b"next_plan: PlannerUnavailableError" in seen["worker.log"], "the log tells that the model failed"
    assert EVERYTHING in sent, "full prompts: the model saw the code"
    document = json.loads(exported.read_text())
    assert document["problems"] == []
    assert document["request"]["goal"] == status.goal == request(project).goal
    assert any(CODE in entry["text"] for entry in document["timeline"])
    assert "json/plain" not in json.dumps(document["history"]), "encodings are base64 in histories"
    assert "YmluYXJ5L2VuY3J5cHRlZA==" not in json.dumps(document["history"]), "binary/encrypted"
    assert "the current code is compatible with the history" in replayed
    assert "the current code is compatible with the history" in offline


@pytest.mark.timeout(600)
async def test_where_nothing_is_sealed_code_is_in_histories_but_no_secret_that_an_activity_answered_and_none_in_a_log(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scraped = f"127.0.0.1:{free_port()}"
    with (
        receiving() as alerts,
        collecting() as collector,
        ModelServer(*ANSWERS) as models,
        Stack(
            tmp_path / "stack",
            environment(models, alerts, encrypt=False)
            | {
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
                "TIGHTLOOP_TELEMETRY__PROMETHEUS_BIND": scraped,
                "TIGHTLOOP_TEMPORAL__AUTHENTICATE": "false",
            },
        ) as stack,
    ):
        with exporting(collector.url, "the-service") as tracing:
            _, episode_id = await run_through(stack, project, monkeypatch, tracing)
        seen = await what_temporal_shows(stack.settings.temporal.address, episode_id)
        bare = await Client.connect(stack.settings.temporal.address)
        history = await bare.get_workflow_handle(episode_id).fetch_history()
        seen["metrics"] = await asyncio.to_thread(scrape, scraped)
        stack.stop_worker()
    seen["spans"] = collector.raw
    assert not any(export.path == "/v1/metrics" for export in collector.exports)
    assert b'tightloop_alerts{cause="fatal",result="sent"' in seen["metrics"]
    assert exported_in_full(collector)
    # Telemetry never says more where histories are plain.
    assert places({name: seen[name] for name in ("spans", "metrics")}, PLANTED) == []
    seen |= files_of(stack.folder)
    seen["alerts"] = b"".join(came.body for came in alerts.came)
    assert b"fatal" in seen["alerts"]
    # This also shows that the search above would have found something.
    assert CODE.encode() in seen["history"]
    assert CODE.encode() in seen["temporal.db"] + seen.get("temporal.db-wal", b"")
    answered = {
        f"event {event.event_id}": event.SerializeToString()
        for event in history.events
        if event.HasField("activity_task_completed_event_attributes")
        or event.HasField("activity_task_started_event_attributes")
    }
    assert places(answered, (SECRET, SECRET[-10:], ODD_SECRET, EMAIL)) == []
    assert b" and so on" in b"".join(answered.values())
    assert b"[secret:openai-key]" in b"".join(answered.values())
    assert (
        places(
            {name: seen[name] for name in ("memo", "alerts", "worker.log", "server.log")}, (SECRET, ODD_SECRET, EMAIL)
        )
        == []
    )


@pytest.mark.parametrize(
    ("prompts", "withheld"),
    [("redacted", (SECRET, EMAIL)), ("summary", (SECRET, EMAIL, CODE))],
)
@pytest.mark.timeout(600)
async def test_a_project_decides_what_its_prompts_contain(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch, prompts: str, withheld: tuple[str, ...]
) -> None:
    answers = [says({**plan(name), "context": "", "diagnosis": "it fails", "action_items": ["fix it"],
                     "steps": [{"title": name, "run": None}]}) for name in ("First", "Second")]  # fmt: skip
    with receiving() as alerts, ModelServer(*answers) as models:
        variables = environment(models, alerts, encrypt=False) | {
            "TIGHTLOOP_PRIVACY__PROJECTS": json.dumps({str(project.parent): {"prompts": prompts}})
        }
        with Stack(tmp_path / "stack", variables) as stack:
            monkeypatch.setenv("TIGHTLOOP_HOME", stack.environment["TIGHTLOOP_HOME"])
            stack.start_server()
            wait_for_port(stack.settings.temporal.address)
            stack.start_worker()
            client = await TightloopClient.connect(settings=stack.settings)
            asked = request(project).evolve(goal=f"make it right, {SECRET} {EMAIL}")
            async with asyncio.timeout(240):
                result = await client.result(await client.start(asked))
        sent = "\n".join(asked.text for asked in models.requests)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert [value for value in withheld if value in sent] == []
    assert "make it right, [secret:openai-key] [pii:email]" in sent
    assert "cat customer.py; test -f done.txt" in sent
    assert (CODE in sent) == (prompts == "redacted")
    kept = b"".join(content_of(path) for path in state_folder(project).rglob("*") if path.is_file())
    assert kept.count(f'"prompt_privacy":"{prompts}"'.encode()) >= 2, "the level stands in the record of each plan"
    assert os.environ.get("BILLING_PASSWORD") is None
