"""Two people on one host: nothing of one is readable, startable or answerable by the other, whatever the umask is."""

import base64
import binascii
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import temporalio.api.taskqueue.v1 as taskqueue
import temporalio.api.workflowservice.v1 as service
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.history.v1 import History
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.client import Client
from temporalio.service import RPCError

from tests.e2e.test_up import first_line, stopped
from tests.support.episodes import APPEND, TRIES, BoundedClient, eventually, scripted
from tests.support.git_sample import make_repository
from tests.support.sandboxes import open_folder
from tests.support.stack.stack import ROOT
from tightloop.client import TightloopClient
from tightloop.client.connection import connect
from tightloop.client.encryption import data_converter, open_all, payloads_of
from tightloop.client.sealing import ENCRYPTED
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeStatus
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import ExecutorChoice
from tightloop.host import state_folder
from tightloop.settings import Settings, parse_settings
from worker.server import free_port, temporal_binary

OTHER = 12_345
"""User id of the neighbour; it needs no entry anywhere."""
WORD = "teasel-and-marl"
"""Like no secret, so that nothing scrubs it. What follows it says where it was planted."""
QUERIES = ("__temporal_workflow_metadata", "__stack_trace", "__enhanced_stack_trace", "status", "timeline", "request")
LOOK = """
import json, os, sys
read = []
for path in json.loads(sys.stdin.read()):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").close()
        read.append(path)
    except OSError:
        pass
print(json.dumps(read))
"""
FIND_UI = """
import pathlib, urllib.request, urllib.error
for process in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        words = process.read_bytes().split(b"\\0")
    except OSError:
        continue
    if b"ADDRESS_PORT" in words and b"--ui-port" in words:
        host, port = (words[words.index(name) + 1].decode() for name in (b"--ui-ip", b"--ui-port"))
        for path in ("workflows", *(f"workflows/{name}/history" for name in NAMES)):
            print(urllib.request.urlopen(f"http://{host}:{port}/api/v1/namespaces/default/{path}", timeout=20).read())
named = {"Content-Type": "application/json", "Origin": DECODE.removesuffix("/codec/decode")}
try:
    print(urllib.request.urlopen(urllib.request.Request(DECODE, b'{"payloads": []}', named)).read())
except urllib.error.HTTPError as error:
    print("decode:", error.code)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Not pytest's own folder, which is closed to other users."""
    with open_folder() as folder:
        shutil.copy(temporal_binary(), folder / "temporal")
        yield folder


@dataclass
class Owner:
    """The person who runs `up`, and what their neighbour does."""

    place: Path
    settings: Settings
    bare: Client
    """Without a key."""
    client: TightloopClient
    seen: dict[str, bytes] = field(default_factory=dict)
    """What the neighbour got to see, by where."""
    plain: list[str] = field(default_factory=list)
    """Payloads that Temporal shows and that are not encrypted."""

    def as_neighbour(self, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd="/", input=given, user=OTHER, group=OTHER, extra_groups=[],
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def temporal(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What the neighbour types; kept as seen."""
        done = self.as_neighbour(str(self.place / "temporal"), *words, "--address", self.settings.temporal.address)
        self.keep(f"neighbour: {' '.join(words[:6])}", (done.stdout + done.stderr).encode())
        return done

    def keep(self, where: str, raw: bytes) -> None:
        """Keep an answer, with all that stands in it as base64."""
        found = [raw]
        for text in re.findall(rb"[A-Za-z0-9+/]{8,}={0,2}", raw):
            try:
                found.append(base64.b64decode(text + b"=" * (-len(text) % 4)))
            except binascii.Error:
                continue
        self.seen[f"{len(self.seen)} {where}"] = b"\n".join(found)

    async def look(self) -> list[str]:
        """Ask Temporal for everything, without a key; returns the ids of what the owner has there."""
        answers, queue = self.bare.workflow_service, taskqueue.TaskQueue(name=self.settings.temporal.task_queue)
        listed = await answers.list_workflow_executions(service.ListWorkflowExecutionsRequest(namespace="default"))
        found: list[tuple[str, Message]] = [
            ("list", listed),
            ("workers", await answers.list_workers(service.ListWorkersRequest(namespace="default"))),
            *[
                (
                    f"queue {kind}",
                    await answers.describe_task_queue(
                        service.DescribeTaskQueueRequest(
                            namespace="default",
                            task_queue=queue,
                            task_queue_type=TaskQueueType.Value(f"TASK_QUEUE_TYPE_{kind}"),
                        )
                    ),
                )
                for kind in ("WORKFLOW", "ACTIVITY")
            ],
        ]
        ids = [each.execution.workflow_id for each in listed.executions]
        ids = [name for name in ids if not name.startswith("evil")]
        for name in ids:
            execution = WorkflowExecution(workflow_id=name)
            history = await self.bare.get_workflow_handle(name).fetch_history()
            described = service.DescribeWorkflowExecutionRequest(namespace="default", execution=execution)
            found += [
                (f"{name}: history", History(events=history.events)),
                (f"{name}: description", await answers.describe_workflow_execution(described)),
            ]
            for query in QUERIES:
                question = service.QueryWorkflowRequest(
                    namespace="default", execution=execution, query=WorkflowQuery(query_type=query)
                )
                try:
                    found.append((f"{name}: {query}", await answers.query_workflow(question)))
                except RPCError as error:
                    self.keep(f"{name}: {query} fails", f"{error.message}".encode() + (error.raw_grpc_status or b""))
        for where, message in found:
            self.keep(where, message.SerializeToString())
            self.plain += [f"{where}: {payload}" for payload in payloads_of(message) if not may_be_plain(payload)]
        return ids

    async def opened(self, ids: list[str]) -> str:
        """All histories, as the owner reads them."""
        codec = data_converter(self.settings).payload_codec
        assert codec is not None
        texts = []
        for name in ids:
            history = await self.bare.get_workflow_handle(name).fetch_history()
            message = History(events=history.events)
            await open_all(message, codec)
            texts.append(message.SerializeToString().decode("utf-8", "replace"))
        return "\n".join(texts)

    def kept_files(self) -> list[Path]:
        # Not rglob: a folder that a worker removes meanwhile would end it.
        return [self.place / "home"] + [
            Path(folder, name) for folder, folders, files in os.walk(self.place / "home") for name in folders + files
        ]


def may_be_plain(payload: Payload) -> bool:
    """Whether a payload is encrypted, of the neighbour, a search attribute, a trace id or the name of a patch."""
    if payload.metadata.get("encoding") == ENCRYPTED or "type" in payload.metadata or payload.data == b'"evil"':
        return True
    return set(json.loads(payload.data)) in ({"traceparent"}, {"id", "deprecated"})


@asynccontextmanager
async def owner_of(place: Path, monkeypatch: pytest.MonkeyPatch, *, encrypt: bool) -> AsyncIterator[Owner]:
    """Run `up` for somebody who is careless with the umask."""
    variables = {
        "TIGHTLOOP_HOME": str(place / "home"),
        "XDG_CONFIG_HOME": str(place / "config"),
        "TIGHTLOOP_TEMPORAL__ADDRESS": f"127.0.0.1:{free_port()}",
        "TIGHTLOOP_TEMPORAL__UI_URL": f"http://127.0.0.1:{free_port()}",
        "TIGHTLOOP_GATEWAY__ENABLED": "false",
        "TIGHTLOOP_SANDBOX__UNSAFE_LOCAL": "true",
        # The default, which other tests turn off.
        "TIGHTLOOP_TEMPORAL__AUTHENTICATE": "true",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "worker", "up", *(["--encrypt"] if encrypt else [])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, umask=0) as up:
        try:
            said = [first_line(up)]
            while said[-1] and "tightloop is up" not in said[-1]:
                said.append(first_line(up))
            assert said[-1], said
            settings = parse_settings(f"privacy: {{encrypt: {json.dumps(encrypt)}}}\n", os.environ)
            bare = await Client.connect(settings.temporal.address)
            temporal = await connect(settings, data_converter(settings))
            yield Owner(place, settings, bare, BoundedClient(temporal, settings))
        finally:
            stopped(up)


pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users"),
    pytest.mark.parametrize("encrypt", [False, True], ids=["default", "privacy.encrypt"]),
]


async def test_nothing_that_one_user_keeps_is_readable_by_another(
    place: Path, monkeypatch: pytest.MonkeyPatch, encrypt: bool
) -> None:
    workspace = make_repository(place / "project", {"app.py": "print('hello')\n"})
    async with owner_of(place, monkeypatch, encrypt=encrypt) as owner:
        request = EpisodeRequest(
            goal="write a line",
            workspace=str(workspace),
            definition_of_done=["test -s log.txt"],
            executor=scripted(APPEND),
            worktree=True,
        )
        episode_id = await owner.client.start(request)
        assert (await owner.client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
        kept = sorted(map(str, owner.kept_files()))
        looked = owner.as_neighbour(sys.executable, "-I", "-c", LOOK, given=json.dumps([*kept, str(place)]))
        assert looked.returncode == 0, looked.stderr
    assert json.loads(looked.stdout) == [str(place)], "the neighbour can look at all, but into nothing of ours"
    ours = state_folder(workspace)
    assert ours.is_relative_to(place / "home")
    assert {"outbox.db", "artifacts", "worktrees"} <= {path.name for path in ours.iterdir()}
    assert (place / "home" / "ledger.db").is_file()
    # Behind a closed door, too; but modes of a checkout and of git's own files are git's.
    theirs = (ours / "worktrees" / episode_id, ours / "worktree-data" / episode_id, ours / "trees")
    assert stat.S_IMODE((ours / "worktree-data" / episode_id).stat().st_mode) == 0o700
    open_to_others = [
        f"{path} {stat.S_IMODE(path.lstat().st_mode):o}"
        for path in owner.kept_files()
        if not path.is_symlink()
        and path.lstat().st_mode & 0o077
        and not any(path != folder and path.is_relative_to(folder) for folder in theirs)
        and path not in theirs[:1]
    ]
    assert open_to_others == []


async def test_nothing_of_one_user_is_read_started_or_answered_by_another_at_the_port(
    place: Path, monkeypatch: pytest.MonkeyPatch, encrypt: bool
) -> None:
    written = make_repository(place / f"{WORD}-project", {"app.py": "print('hello')\n"})
    handed = make_repository(place / f"{WORD}-handed", {"app.py": "print('hello')\n"})
    failing = {**TRIES, "status": "failed", "error": f"{WORD}-error", "summary": f"{WORD}-summary"}
    async with owner_of(place, monkeypatch, encrypt=encrypt) as owner:
        client = owner.client
        done = await client.start(
            EpisodeRequest(
                goal=f"{WORD}-goal",
                workspace=str(written),
                definition_of_done=[f"echo {WORD}-output; test -s log.txt"],
                executor=scripted(failing, APPEND),
            )
        )
        assert (await client.result(done)).outcome is EpisodeOutcome.SUCCEEDED
        broken = await client.start(
            EpisodeRequest(goal="fail", workspace=str(place / f"{WORD}-absent"), definition_of_done=["true"])
        )
        asking = await client.start(
            EpisodeRequest(
                goal=f"{WORD}-question",
                workspace=str(handed),
                definition_of_done=[f"echo {WORD}-prompt; test -f agreed.txt"],
                executor=ExecutorChoice(name="person"),
            )
        )

        async def asks() -> EpisodeStatus | None:
            status = await client.status(asking)
            assert isinstance(status, EpisodeStatus)
            return status if status.questions else None

        asked = await eventually(asks, seconds=60)
        with pytest.raises(InvalidRequestError, match=f"{WORD}-wrong"):
            await client.answer(asking, f"{WORD}-wrong")
        assert set(await owner.look()) == {done, broken, asking}

        attack(owner, asking)
        now = await asks()
        assert now is not None, "the question is still open"
        assert now.questions == asked.questions
        (handed / "agreed.txt").write_text("agreed\n")
        await client.answer(asking, "done", f"{WORD}-answer", by=f"{WORD}-person")
        assert (await client.result(asking)).outcome is EpisodeOutcome.SUCCEEDED

        await owner.look()
        for name in (done, broken, asking):
            for words in (("show",), ("show", "-o", "json"), ("describe",), ("stack",), ("query", "--type", "status")):
                owner.temporal("workflow", *words, "-w", name)
        owner.temporal("workflow", "list", "-o", "json")
        page = FIND_UI.replace("ADDRESS_PORT", owner.settings.temporal.address.rpartition(":")[2])
        names, decode = json.dumps([done, broken, asking]), f"{owner.settings.temporal.ui_url}/codec/decode"
        ui = owner.as_neighbour(sys.executable, "-I", "-c", f"NAMES, DECODE = {names}, {decode!r}\n{page}")
        owner.keep("the UI's own port", ui.stdout.encode())
        opened = await owner.opened([done, broken, asking])
    assert owner.plain == []
    planted = ("goal", "output", "error", "summary", "absent", "question", "prompt", "answer", "person", "project")
    assert [word for word in planted if f"{WORD}-{word}" not in opened] == [], "there was something to hide"
    assert [where for where, raw in owner.seen.items() if WORD.encode() in raw] == []
    assert sum(b"Encoded failure" in raw for raw in owner.seen.values()) >= 1
    assert "decode: 401" in ui.stdout
    assert "executions" in ui.stdout, "it reached the UI"


def attack(owner: Owner, victim: str) -> None:
    """Start, run and answer as the neighbour."""
    marked = owner.place / "marked"
    marked.mkdir(mode=0o777)
    request = {
        "goal": "evil",
        "workspace": str(marked),
        "definition_of_done": [{"run": "touch evil"}],
        "executor": {"name": "command", "options": {"run": "touch evil"}},
    }
    queue = ("--task-queue", owner.settings.temporal.task_queue)
    for kind in ("EpisodeWorkflow", "PlanWorkflow"):
        begun = owner.temporal(
            "workflow", "execute", "--type", kind, "-w", f"evil-{kind}", *queue, "--input", json.dumps(request)
        )
        assert begun.returncode != 0
    ran = owner.temporal(
        "activity", "execute", "--activity-id", "evil", "--type", "verify", *queue, "--input", "{}",
        "--schedule-to-close-timeout", "2s",
    )  # fmt: skip
    assert ran.returncode != 0
    for name in ("answer", "respond", "amend_goal", "top_up"):
        for given in ('"done"', '{"option": "done"}'):
            said = owner.temporal("workflow", "update", "execute", "-w", victim, "--name", name, "--input", given)
            assert said.returncode != 0
    for name in ("answer", "resume", "pause"):
        owner.temporal("workflow", "signal", "-w", victim, "--name", name, "--input", '"evil"')
    assert list(marked.iterdir()) == []
