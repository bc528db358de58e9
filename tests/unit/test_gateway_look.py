"""`list`, `status` and `inbox` over the gateway of this host: what they load, what they show, whom they trust."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from rich.console import Console

from tightloop.cli.main import app
from tightloop.cli.now import Document, gateway_here, plain_names
from tightloop.cli.views import drift_lines, status_panel, todo_lines
from tightloop.episode.budget import Spent
from tightloop.episode.decisions import make_question
from tightloop.episode.model import EpisodeStatus
from tightloop.host import settings_mark
from tightloop.host.access import cookie_name, note_gateway, page_key, session_purpose, ticket_time
from tightloop.operations.models import make_output_model
from tightloop.plan.child import StepStatus
from tightloop.plan.request import PlanSpent, PlanStatus, StepLine
from tightloop.run.core import Work
from tightloop.run.question import ChildWait, QuestionKind
from tightloop.safety.drift import Drift, DriftCause

NOW = datetime.now(UTC)
QUESTION = make_question(QuestionKind.BUDGET, "iterations 5 of 5").evolve(id="q1", since=NOW)
STATUSES = (
    EpisodeStatus(episode_id="episode-1", goal="green", status="paused", questions=(QUESTION,), way_back="ckpt-2"),
    EpisodeStatus(
        episode_id="episode-1",
        work=Work(what="check 1 of 2", since=NOW, limit_s=90, attempt=2, attempts=3, problem="cut off"),
        spent=Spent(iterations=2, input_tokens=3, cost_usd=0.5, wall_time=timedelta(minutes=4)),
        drifts=(Drift(paths=("a.txt",), count=2, cause=DriftCause.DURING_CHECKS, bring_back="git show x"),),
    ),
    PlanStatus(
        plan_id="plan-1",
        title="release",
        counts={"completed": 3, "not_started": 1},
        running=(StepLine(id="build", status=StepStatus.RUNNING, attempt=2),),
        questions=(QUESTION.evolve(step="deploy"),),
        children=(ChildWait(workflow_id="episode-2", question=QUESTION.evolve(step="x"), step="build"),),
        spent=PlanSpent(attempts=3, tokens=9, wall_time=timedelta(seconds=90)),
    ),
)


class Handler(BaseHTTPRequestHandler):
    """Fake gateway."""

    answers: ClassVar[dict[str, Any]] = {}
    cookies: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Answer as long as the path is known."""
        self.cookies.append(self.headers["Cookie"])
        found = self.answers.get(self.path.partition("?")[0])
        content = json.dumps(found).encode()
        self.send_response(200 if found is not None else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state home, with nothing else set."""
    for name in [name for name in os.environ if name.startswith(("TIGHTLOOP_", "TEMPORAL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def gateway(home: Path) -> Iterator[str]:
    """Address of a stand-in that has noted itself in the state home."""
    assert home
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"127.0.0.1:{server.server_port}"
        note_gateway(address, address, settings_mark())
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield address
        server.shutdown()
    Handler.answers.clear()
    Handler.cookies.clear()


def wire(status: Any) -> Any:
    return make_output_model(type(status)).model_validate(status).model_dump(mode="json", by_alias=True)


def text(part: Any) -> str:
    out = StringIO()
    Console(file=out, width=120, color_system=None).print(part)
    return out.getvalue()


@pytest.mark.parametrize("status", STATUSES)
def test_a_document_of_the_gateway_is_shown_as_the_model_is(status: Any) -> None:
    document = Document(wire(status))
    assert text(status_panel(document)) == text(status_panel(status))
    assert todo_lines(document) == todo_lines(status)
    assert drift_lines(document.drifts) == drift_lines(status.drifts)


def test_names_of_the_api_become_those_of_the_models() -> None:
    assert plain_names(wire(QUESTION)) == QUESTION.model_dump(mode="json")


def test_status_list_and_inbox_load_neither_models_nor_the_sdk(gateway: str) -> None:
    line = {
        "id": "episode-1", "kind": "episode", "status": "paused", "qualifier": "", "iteration": 3, "goal": "green",
        "project": "p", "started": NOW.isoformat(), "closed": None, "questions": [wire(QUESTION)],
    }  # fmt: skip
    item = {"workflowId": "episode-1", "goal": "green", "project": "p", "question": wire(QUESTION)}
    Handler.answers |= {
        "/api/episodes/episode-1": {"details": wire(STATUSES[0])},
        "/api/episodes": {"items": [line]},
        "/api/plans": {"items": []},
        "/api/projects": {"items": [{"id": "p", "workspace": "/work/p", "running": 1}]},
        "/api/inbox": {"items": [{**item, "blocks": 1, "loop": "", "tasks": [], "answerHref": "/"}]},
    }
    for words, said in ((("list",), "/work/p"), (("status", "episode-1"), "ckpt-2"), (("inbox",), "answer episode-1")):
        program = (
            "import atexit, sys; atexit.register(lambda: print('LOADED', *sys.modules));"
            f"sys.argv[:] = ['tightloop', *{words!r}]; from tightloop.cli.main import app; app()"
        )
        done = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=True, timeout=60)
        printed, _, modules = done.stdout.partition("LOADED")
        assert said in printed
        assert not {"pydantic", "temporalio", "tightloop.client"} & set(modules.split())
    name, _, session = Handler.cookies[-1].partition("=")
    subject, _, proof = session.partition(".")
    assert (name, subject) == (cookie_name(gateway), "owner")
    assert ticket_time(page_key(), session_purpose(gateway, "owner"), proof)


@pytest.mark.usefixtures("gateway")
def test_inbox_names_a_question_only_if_its_run_has_several() -> None:
    question = {"project": "p", "goal": "green", "blocks": 1, "loop": "", "tasks": [], "answerHref": "/"}
    asked = [
        (workflow_id, QUESTION.evolve(id=name)) for workflow_id, name in (("one", "q1"), ("two", "q1"), ("two", "q2"))
    ]
    items = [{**question, "workflowId": workflow_id, "question": wire(found)} for workflow_id, found in asked]
    Handler.answers |= {"/api/inbox": {"items": items}}
    shown = CliRunner().invoke(app, ["inbox"]).output
    commands = [line.partition("#")[0].strip() for line in shown.splitlines() if "extend" in line]
    assert commands == [
        "tightloop answer one extend",
        "tightloop answer two extend --question q1",
        "tightloop answer two extend --question q2",
    ]


def test_a_gateway_is_asked_only_with_the_settings_that_it_has(gateway: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gateway_here({"address": None}) is not None
    assert gateway_here({"address": "127.0.0.1:1"}) is None
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__NAMESPACE", "other")
    assert gateway_here(None) is None


def test_a_note_that_others_can_change_or_read_is_not_trusted(home: Path, gateway: str) -> None:
    assert gateway
    note = home / "gateway.json"
    assert note.stat().st_mode & 0o777 == 0o600
    note.chmod(0o644)
    assert gateway_here(None) is None


def test_without_a_gateway_none_is_asked_and_no_key_is_made(home: Path) -> None:
    assert gateway_here(None) is None
    assert list(home.iterdir()) == []
