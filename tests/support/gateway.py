"""A gateway in the event loop of the test, over real HTTP, and a ledger with two projects for it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2

from gateway.access.site import http_server, listening
from gateway.server import application
from tightloop.client import TightloopClient
from tightloop.database.access import Tokens
from tightloop.database.engine import sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.model import EpisodeStatus
from tightloop.host import state_folder
from tightloop.ledger.model import ProjectLine, StepRow, TrailEvent, WorkflowSnapshot
from tightloop.plan.request import PlanStatus
from tightloop.run.question import Option, Question, QuestionKind
from tightloop.safety.seal import Role
from tightloop.settings import Settings
from worker.server import free_port

NAMES = ("orders", "relay")
START = datetime(2026, 3, 1, 8, tzinfo=UTC)
EPISODES, PLANS = 5, 3


class Gateway:
    """A running gateway."""

    def __init__(self, address: str, ledger: Ledger, settings: Settings) -> None:
        self.address = address
        self.ledger = ledger
        self.settings = settings
        self.url = f"http://{address}"

    def token(self, name: str, role: Role, projects: Sequence[str] = ()) -> str:
        return Tokens(self.ledger.database).create(name, role, projects)[1]

    def http(self, token: str = "", **headers: str) -> httpx2.AsyncClient:
        """A client that sends a token."""
        given = {**headers, **({"Authorization": f"Bearer {token}"} if token else {})}
        return httpx2.AsyncClient(base_url=self.url, headers=given, timeout=60, trust_env=False)


@asynccontextmanager
async def gateway(
    folder: Path, client: TightloopClient, settings: Settings, ledger: Ledger | None = None
) -> AsyncIterator[Gateway]:
    """Serve a gateway with a ledger of its own, or another one."""
    address = f"127.0.0.1:{free_port()}"
    chosen = settings.evolve(gateway=settings.gateway.evolve(listen=address))
    own = sqlite_database(folder / "ledger" / "ledger.db") if ledger is None else None
    ledger = Ledger(own) if own is not None else ledger
    assert ledger is not None
    server = http_server(application(ledger, client, chosen), 1_000)
    with listening(address, "it") as listener:
        serving = asyncio.create_task(_serve(server, listener))
        try:
            yield Gateway(address, ledger, chosen)
        finally:
            server.should_exit = True
            await asyncio.wait({serving}, timeout=30)
            if own is not None:
                own.close()


async def _serve(server: Any, listener: socket.socket) -> None:
    # `serve` would take the signals of pytest.
    await server._serve([listener])


def secret_of(name: str) -> str:
    """A word that stands in everything of a project."""
    return f"{name}-secret-word"


def project_id(folder: Path, name: str) -> str:
    """The id of the project in `folder / name`."""
    return state_folder(folder / name).name


def fill(ledger: Ledger, folder: Path, at: datetime = START) -> None:
    """Write two projects alike, with their workspaces in a folder."""
    for name in NAMES:
        secret, workspace = secret_of(name), str(folder / name)
        of = ledger.select_project(
            ProjectLine(id=project_id(folder, name), name=name, workspace=workspace, host="here")
        )
        for number in range(EPISODES):
            episode = f"{name}-episode-{number}"
            asks = (question(secret),) if number % 2 else ()
            details = EpisodeStatus(episode_id=episode, goal=secret, workspace=workspace, questions=asks)
            fields: dict[str, Any] = {"status": "paused" if asks else "running", "questions": asks}
            began = at + timedelta(minutes=number)
            of.record(_line(episode, "episode", secret, began, details.model_dump(mode="json"), **fields))
            record = CheckpointRecord(id="", iteration=1, title=secret, at=began)
            of.record_checkpoint(episode, "run/1", record)
            of.add_event(TrailEvent(episode_id=episode, kind="iteration", text=secret, key="1", at=began))
        for number in range(PLANS):
            plan = f"{name}-plan-{number}"
            status = PlanStatus(plan_id=plan, title=secret, workspace=workspace)
            of.record(_line(plan, "plan", secret, at, status.model_dump(mode="json"), status="running"))
            of.record_steps([StepRow(plan_id=plan, step="build", status="running", title=secret)])


def enrol(ledger: Ledger, workspace: Path) -> str:
    """Make a project known, as its first episode does; returns its id."""
    project = state_folder(workspace).name
    of = ledger.select_project(ProjectLine(id=project, name=workspace.name, workspace=str(workspace), host="here"))
    of.add_event(TrailEvent(episode_id="first", kind="opened", key="1", at=START))
    return project


def question(secret: str) -> Question:
    return Question(
        id="q1",
        kind=QuestionKind.PERMISSION,
        title=f"May it push {secret}?",
        options=(Option(name="allow"), Option(name="deny")),
        blocks="the episode",
        since=START,
    )


def _line(name: str, kind: str, goal: str, at: datetime, details: dict[str, Any], **fields: Any) -> WorkflowSnapshot:
    known = {"id": name, "kind": kind, "goal": goal, "at": at, "started": at, "details": details}
    return WorkflowSnapshot.model_validate(known | fields)
