"""A gateway on another host than the projects: a token's project is known by host and path, and work goes there."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from gateway.access.scope import Scope, Services, check_workspace
from tests.support.ledger import snapshot
from tests.support.postgres import new_database, postgres_server
from tightloop.client import TightloopClient
from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.forwarding import Forwarder
from tightloop.database.ledger import Ledger
from tightloop.errors import ProjectNotFoundError
from tightloop.ledger.model import ProjectLine
from tightloop.run.core import Queues
from tightloop.safety.seal import Person, Role
from tightloop.settings import Settings

ORDERS = "/workspaces/orders"


@pytest.fixture
def shared() -> Iterator[Database]:
    with postgres_server() as server, new_database(server) as address:
        found = postgres_database(address)
        yield found
        found.close()


def bring(folder: Path, shared: Database, host: str, workspace: str = ORDERS) -> str:
    """Record a project on a host, bring it to the shared database, and return its id there."""
    local = sqlite_database(folder / f"{host}.db")
    line = ProjectLine(id=workspace.rpartition("/")[2], name="orders", workspace=workspace, host=host)
    Ledger(local).select_project(line).record(snapshot(f"one-{host}"))
    Forwarder(local, shared, (host,)).forward()
    return next(each.id for each in Ledger(shared).projects() if each.host == host)


async def test_token_starts_work_on_the_host_of_its_project_and_nowhere_else(
    shared: Database, temporal_client: Client, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "gateway"))
    services = Services(Ledger(shared), TightloopClient(temporal_client, settings), settings)
    mine, theirs = bring(tmp_path, shared, "compose"), bring(tmp_path, shared, "other")

    def scope(*projects: str) -> Scope:
        return Scope(Person(name="a", role=Role.OPERATOR, projects=projects), services)

    def home(host: str) -> Queues:
        return Queues(home=f"{settings.temporal.task_queue}-workspace-{host}")

    assert mine != theirs
    assert await check_workspace(scope(mine), ORDERS) == home("compose")
    assert await check_workspace(scope(theirs), ORDERS) == home("other")
    assert await check_workspace(scope(), ORDERS) == Queues()
    for projects, workspace in [((mine, theirs), ORDERS), ((mine,), "/workspaces/shop")]:
        with pytest.raises(ProjectNotFoundError, match="this token has no access to a project with the workspace"):
            await check_workspace(scope(*projects), workspace)
    assert scope(mine).queues_of(Ledger(shared).project(mine)) == home("compose")
