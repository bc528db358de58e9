"""A plan under payload encryption: what Temporal shows of it and its children, without the key and with it."""

import asyncio
import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import temporalio.api.workflowservice.v1 as service
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import History
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.client import Client

from tests.support.alert_receiver import Receiver, receiving
from tests.support.episodes import eventually
from tests.support.otlp_receiver import Collector, collecting
from tests.support.stack.stack import Stack, wait_for_port
from tightloop.client import TightloopClient
from tightloop.client.encryption import open_all
from tightloop.client.keys import new_ring, read_ring, write_ring
from tightloop.client.sealing import ENCRYPTED, Keys, SealingCodec
from tightloop.errors import InvalidRequestError, ServiceUnavailableError
from tightloop.plan.request import PlanOutcome, PlanRequest, PlanResult, PlanStatus

pytestmark = pytest.mark.timeout(600)
WITHOUT_KEYS = {"TIGHTLOOP_PRIVACY__ENCRYPT": "false", "TIGHTLOOP_TEMPORAL__AUTHENTICATE": "false"}
"""Whoever has the keys reads what is encrypted, also where they encrypt nothing themselves."""
WAIT_S = 120.0
SECRET = "sk-" + "proj-7h2Jw9Rk4Mx61Vb35Qn80T"
"""Known for what it is: scrubbed where texts are."""
WORD = "teasel-and-marl"
"""Like no secret: only encryption hides it. What follows it says where it was planted."""
NAME = "chervil"
"""In the ids of the plan's text and of a step that starts no workflow; ids of steps that do stand in workflow ids."""
PLAN = f"""\
id: {NAME}-release
title: Release {WORD}-title {SECRET}
description: {WORD}-description {SECRET}
inputs: {{margin: {WORD}-input}}
steps:
  - id: {NAME}-look
    title: "{WORD}-step"
    shell: {{run: "echo {WORD}-out''put {SECRET} $(cat planted.txt)"}}
    access: reads
  - id: release
    needs: [{NAME}-look]
    gate:
      checks: [{{name: "{WORD}-check", command: "echo {WORD}-checked"}}]
      approval:
        question: "{WORD}-question ${{plan.margin}} ${{{NAME}-look.stdout}}"
        options: [{{name: "{WORD}-ship", pros: ["{WORD}-pro"]}}, {{name: hold}}]
  - id: build
    needs: [release]
    shell: {{run: "echo {WORD}-error >&2; test -f absent"}}
    access: reads
  - id: inner
    needs: [build]
    title: "{WORD}-inner"
    subplan:
      steps:
        - {{id: ask, title: "{WORD}-child", gate: {{approval: {{question: "{WORD}-within ${{plan.margin}}"}}}}}}
  - id: hand
    needs: [inner]
    title: "{WORD}-hand"
    episode:
      goal: "{WORD}-goal {SECRET}"
      executor: person
      planner: heuristic
      definition_of_done: ["echo {WORD}-done; test -f agreed.txt"]
definition_of_done: ["test -f agreed.txt"]
"""
CHANGED = PLAN.replace("test -f absent", f"echo {WORD}-revised")
REFUSED = f"{CHANGED}\n{WORD}-typo: 1\n"
FAILING = f"""\
id: failing
title: {WORD}-failing
on_failure: fail
steps:
  - id: within
    subplan:
      steps:
        - {{id: broken, shell: {{run: "echo {WORD}-broken {SECRET} >&2; false"}}}}
"""
HELD = {
    "": (
        *("title", "description", "input", "step", "ship", "pro", "check", "question", "output", "file", "error"),
        *("reason", "note", "rationale", "approver", "answerer", "typo", "revised", "because", "inner", "within"),
        *("hand", "goal", "done"),
    ),
    ".inner.1": ("child", "within", "input", "inside", "insider"),
    ".hand.1": ("goal", "done", "handed", "hander"),
}
"""What was planted and stands, sealed, in the histories of the plan and of what its steps started."""


def missing(text: str, *places: str) -> list[str]:
    """Return those of the planted words that are not in a text."""
    return [place for place in places if f"{WORD}-{place}" not in text]


@dataclass
class Played:
    """A plan that ran to its end, and what was seen of it meanwhile."""

    stack: Stack
    folder: Path
    client: TightloopClient
    alerts: Receiver
    collector: Collector
    plan_id: str = ""
    failed_id: str = ""
    result: PlanResult = field(default_factory=lambda: PlanResult(outcome=PlanOutcome.FAILED))
    failed: PlanResult = field(default_factory=lambda: PlanResult(outcome=PlanOutcome.COMPLETED))
    """Of another plan, of which a plan within it failed."""
    seen: dict[str, Message] = field(default_factory=dict)
    """What Temporal answers to one who has no key, by when and what."""
    told: list[str] = field(default_factory=list)
    """What `tightloop plan status` showed while it waited."""

    @property
    def children(self) -> tuple[str, str]:
        return f"{self.plan_id}.inner.1", f"{self.plan_id}.hand.1"

    def tightloop(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """What a person types."""
        return self.ran((sys.executable, "-m", "tightloop.cli.main", *words), **variables)

    def ran(self, command: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.stack.environment, "COLUMNS": "400", **variables}
        return subprocess.run(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip

    def typed(self, *words: str) -> str:
        done = self.tightloop(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async def until(self, holds: Callable[[PlanStatus], object]) -> PlanStatus:
        async def status() -> PlanStatus | None:
            with suppress(ServiceUnavailableError):  # its worker is still starting
                found = await self.client.status(self.plan_id)
                assert found.outcome is None, found.reason
                return found if holds(found) else None
            return None

        found: PlanStatus = await eventually(status, seconds=WAIT_S)
        return found

    async def look(self, when: str) -> None:
        """Keep everything that Temporal shows now to one who has no key."""
        bare = await Client.connect(self.stack.settings.temporal.address)
        listed = await bare.workflow_service.list_workflow_executions(
            service.ListWorkflowExecutionsRequest(namespace="default")
        )
        self.seen[f"{when}: list"] = listed
        for one in listed.executions:
            name, execution = one.execution.workflow_id, one.execution
            described = service.DescribeWorkflowExecutionRequest(namespace="default", execution=execution)
            history = await bare.get_workflow_handle(name).fetch_history()
            self.seen |= {
                f"{when}: {name}: description": await bare.workflow_service.describe_workflow_execution(described),
                f"{when}: {name}: history": History(events=history.events),
            }
            for asked in ("__temporal_workflow_metadata", "status", "timeline", "request"):
                question = service.QueryWorkflowRequest(
                    namespace="default", execution=execution, query=WorkflowQuery(query_type=asked)
                )
                self.seen[f"{when}: {name}: {asked}"] = await bare.workflow_service.query_workflow(question)

    async def opened(self, workflow_id: str) -> str:
        """What the key makes of the history of a workflow at its end."""
        history = History.FromString(self.seen[f"end: {workflow_id}: history"].SerializeToString())
        await open_all(history, SealingCodec(Keys(read_ring(self.stack.settings.privacy))))
        return history.SerializeToString().decode("utf-8", "replace")


async def play(played: Played) -> None:
    """Run the plan, and say what its people say."""
    client = played.client
    played.plan_id = json.loads(played.typed("plan", "run", "plan.yaml", "--detach", "--json"))["id"]
    await played.until(lambda status: status.questions)
    await client.pause(played.plan_id, f"{WORD}-reason")
    await played.until(lambda status: status.status == "paused")
    await played.look("gate")
    played.told.append(played.typed("status", played.plan_id))
    await client.resume(played.plan_id, note=f"{WORD}-note {SECRET}")
    words = ("--option", f"{WORD}-ship", "--rationale", f"{WORD}-rationale {SECRET}", "--by", f"{WORD}-approver")
    played.typed("approve", played.plan_id, "release", *words)

    await played.until(lambda status: status.failed)
    await played.look("failure")
    played.told.append(played.typed("status", played.plan_id))
    await client.answer(played.plan_id, "retry", question="build", by=f"{WORD}-answerer")
    await played.until(lambda status: status.questions and status.failed and status.failed[0].attempt == 2)
    with pytest.raises(InvalidRequestError, match=f"{WORD}-typo"):
        await client.replan(played.plan_id, REFUSED)
    await client.replan(played.plan_id, CHANGED, rationale=f"{WORD}-because {SECRET}")

    subplan, episode = played.children
    await played.until(lambda status: status.children and status.children[0].workflow_id == subplan)
    await played.look("subplan")
    played.told.append(played.typed("status", played.plan_id))
    played.typed("approve", subplan, "--rationale", f"{WORD}-inside {SECRET}", "--by", f"{WORD}-insider")

    await played.until(lambda status: status.children and status.children[0].workflow_id == episode)
    await played.look("episode")
    played.told.append(played.typed("status", played.plan_id))
    (played.folder / "agreed.txt").write_text("agreed\n")
    await client.answer(episode, "done", f"{WORD}-handed {SECRET}", by=f"{WORD}-hander")
    async with asyncio.timeout(WAIT_S):
        played.result = await client.result(played.plan_id)
        failing = PlanRequest(workspace=str(played.folder), source=FAILING)
        played.failed_id = await client.start(failing)
        played.failed = await client.result(played.failed_id)

    async def listed() -> bool:
        closed = {row.id for row in await client.list() if row.status in ("completed", "failed")}
        return {played.plan_id, played.failed_id} <= closed

    await eventually(listed, seconds=WAIT_S)
    await played.look("end")


@pytest.fixture(scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Played]:
    """A plan that was run with encryption on, by the processes that a user starts; these still run."""
    root = tmp_path_factory.mktemp("encrypted")
    folder = root / "project"
    folder.mkdir()
    (folder / "planted.txt").write_text(f"{WORD}-file\n")
    (folder / "plan.yaml").write_text(PLAN)
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@localhost")
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "start")):
        subprocess.run((*git, *words), cwd=folder, check=True, timeout=30)
    write_ring(root / "keys.json", new_ring())
    with receiving() as alerts, collecting() as collector:
        environment = {
            "TIGHTLOOP_PRIVACY__ENCRYPT": "true",
            "TIGHTLOOP_PRIVACY__KEYS_FILE": str(root / "keys.json"),
            "TIGHTLOOP_ALERTS__CHANNELS": json.dumps(
                {"log": {"type": "log"}, "ops": {"type": "webhook", "url": alerts.url}}
            ),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        }
        with Stack(root / "stack", environment) as stack:
            stack.start_server()
            wait_for_port(stack.settings.temporal.address)
            stack.start_worker()
            client = await TightloopClient.connect(settings=stack.settings)
            made = Played(stack, folder, client, alerts, collector)
            await play(made)
            yield made


def plain(message: Message, place: str = "") -> Iterator[tuple[str, Payload]]:
    """Yield each payload that is not sealed, with the fields that lead to it."""
    for one, value in message.ListFields():
        where = f"{place}.{one.name}"
        if one.message_type is None:
            continue
        items = [value] if isinstance(value, Message) else value
        for item in items.values() if isinstance(items, Mapping) else items:
            if isinstance(item, Payload):
                if item.metadata.get("encoding") != ENCRYPTED:
                    yield where, item
            elif isinstance(item, Message):
                yield from plain(item, where)


def harmless(where: str, payload: Payload) -> bool:
    """Whether Temporal keeps it plain by its nature: search attributes, trace ids, names of patches."""
    if ".search_attributes." in where:
        return True
    value = json.loads(payload.data)
    return set(value) == ({"traceparent"} if ".header." in where else {"id", "deprecated"})


def leaks(seen: Mapping[str, bytes], *planted: str) -> list[str]:
    return [f"{value!r} in {place}" for place, held in seen.items() for value in planted if value.encode() in held]


def test_plan_with_children_that_ask_completes(played: Played) -> None:
    assert played.result.outcome is PlanOutcome.COMPLETED, played.result.reason
    assert (played.result.counts, played.result.revision) == ({"completed": 5}, 2)
    assert played.failed.outcome is PlanOutcome.FAILED
    assert missing(played.failed.reason, "broken") == []


def test_temporal_shows_nothing_that_was_planted(played: Played) -> None:
    shown = {place: message.SerializeToString() for place, message in played.seen.items()}
    assert leaks(shown, WORD, SECRET, NAME, str(played.folder)) == []
    unsealed = [
        f"{place}{where}: {payload.data!r}"
        for place, message in played.seen.items()
        for where, payload in plain(message)
        if not harmless(where, payload)
    ]
    assert unsealed == []
    for workflow in (played.plan_id, *played.children):
        assert len(shown[f"end: {workflow}: __temporal_workflow_metadata"]) > 500
        for held in ("memo {", "user_metadata {", "input {"):
            assert held in str(played.seen[f"end: {workflow}: history"]), "there is something to seal"
    assert "child_waits" in str(played.seen[f"end: {played.plan_id}: history"])
    assert "Encoded failure" in str(played.seen[f"end: {played.failed_id}: history"])


async def test_histories_hold_all_of_it_for_who_has_the_key(played: Played) -> None:
    for child, places in HELD.items():
        assert missing(await played.opened(f"{played.plan_id}{child}"), *places) == [], child or "plan"
    assert missing(await played.opened(played.failed_id), "failing", "broken") == []
    summary = await played.client.summary(played.plan_id)
    assert summary.goal == f"Release {WORD}-title [secret:openai-key]", "memo"


def test_files_of_the_server_logs_alerts_and_telemetry_hold_none_of_it(played: Played) -> None:
    root = played.stack.folder
    files = (path for path in root.rglob("*") if path.is_file() and "projects" not in path.relative_to(root).parts)
    # What belongs to a project, its trees and artifacts, is the content itself.
    kept = {str(path.relative_to(root)): path.read_bytes() for path in files}
    kept["alerts"] = b"".join(came.body for came in played.alerts.came)
    kept["spans and metrics"] = played.collector.raw
    assert {"temporal.db", "worker.log", "server.log"} <= kept.keys()
    assert b"RunWorkflow:PlanWorkflow" in kept["spans and metrics"]
    told = {came.told["kind"] for came in played.alerts.came}
    assert {"gate", "failed_step", "failed"} <= told
    # The ledger and the memory hold content by design, and no secrets.
    ledger = {name: kept.pop(name) for name in list(kept) if "ledger.db" in name or "memory.db" in name}
    assert ledger
    assert leaks(ledger, SECRET) == []
    assert leaks(kept, WORD, SECRET, str(played.folder)) == []


def test_commands_show_it_with_the_key_and_say_what_to_do_without(played: Played, tmp_path: Path) -> None:
    gate, failure, subplan, episode = played.told
    assert missing(gate, "title", "question", "input", "output", "file", "check", "ship", "pro", "reason") == []
    assert missing(failure, "error") == []
    assert missing(subplan, "within", "input") == []
    assert missing(episode, "goal", "done") == []
    plan_id = played.plan_id
    assert missing(played.typed("status", plan_id, "--steps"), "title", "step", "inner", "hand") == []
    assert missing(played.typed("plan", "show", plan_id), "description", "input", "question", "revised", "goal") == []
    shown = played.typed("plan", "show", plan_id, "--step", "release")
    assert f"{WORD}-ship by {WORD}-approver {WORD}-rationale {SECRET}" in shown

    write_ring(tmp_path / "other.json", new_ring())
    sentences = {
        "Use the same tightloop release, key file and temporal.authenticate as the workers": WITHOUT_KEYS,
        "which is not one of the keys on this host": {"TIGHTLOOP_PRIVACY__KEYS_FILE": str(tmp_path / "other.json")},
    }
    for sentence, variables in sentences.items():
        for words in (("status", plan_id), ("export", plan_id)):
            done = played.tightloop(*words, **variables)
            assert (done.returncode, WORD in done.stdout + done.stderr) == (2, False), words
            assert sentence in " ".join(done.stderr.split())


def test_export_holds_everything_and_is_replayed_without_the_key(played: Played, tmp_path: Path) -> None:
    folder, file = tmp_path / "export", tmp_path / "export.json"
    played.typed("export", played.plan_id, "--out", str(folder))
    document = json.loads((folder / "plan.json").read_text())
    assert document["problems"] == []
    assert missing((folder / "timeline.json").read_text(), "because", "typo", "answerer", "note") == []
    assert missing((folder / "revision-2.json").read_text(), "title", "input", "revised") == []
    assert missing((folder / "records.jsonl").read_text(), "rationale", "approver", "error") == []
    inside = (folder / "children" / played.children[0] / "records.jsonl").read_text()
    assert missing(inside, "inside", "insider") == []
    assert b64encode(ENCRYPTED).decode() not in (folder / "history.json").read_text()

    played.typed("export", played.plan_id, "--out", str(file))
    done = played.tightloop("replay", str(file), **WITHOUT_KEYS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"of {played.plan_id}: the current code is compatible with the history" in done.stdout


def test_plans_and_what_they_started_are_replayed_with_the_key_only(played: Played) -> None:
    for workflow in (*played.children, played.failed_id, played.plan_id):
        replayed = played.typed("replay", workflow)
        assert f"of {workflow}: the current code is compatible with the history" in replayed
    assert missing(replayed, "question", "rationale", "because", "within") == []
    worker = (sys.executable, "-m", "worker", "replay", played.plan_id)
    without = played.ran(worker, **WITHOUT_KEYS)
    assert (without.returncode, WORD in without.stdout + without.stderr) == (1, False)
    assert f"cannot decrypt the history of {played.plan_id}" in without.stderr
