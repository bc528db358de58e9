"""Setting a namespace up, and workers at their start: a Temporal server that nobody prepared."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.testing import WorkflowEnvironment

from tightloop.cli.main import app
from worker.server import temporal_binary


@pytest.fixture
async def bare() -> AsyncIterator[WorkflowEnvironment]:
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=str(temporal_binary())) as environment:
        yield environment


def address_of(environment: WorkflowEnvironment) -> str:
    return environment.client.service_client.config.target_host


async def setup(address: str, *options: str) -> tuple[int, str]:
    done = await asyncio.to_thread(CliRunner().invoke, app, ["--address", address, "setup", *options])
    return done.exit_code, done.stdout + done.stderr


async def work(address: str, home: Path, **variables: str) -> tuple[int, str]:
    """Run a worker until it ends by itself; it must within half a minute."""
    own = {"TIGHTLOOP_TEMPORAL__ADDRESS": address, "TIGHTLOOP_HOME": str(home), "TIGHTLOOP_WORKER__START_WAIT_S": "2"}
    done = await asyncio.to_thread(
        subprocess.run, (sys.executable, "-m", "worker", "run"), env={**os.environ, **own, **variables},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


async def test_setup_is_idempotent_and_a_dry_run_changes_nothing(bare: WorkflowEnvironment) -> None:
    address = address_of(bare)
    for _ in range(2):
        assert "search attributes: would be set up" in (await setup(address, "--dry-run"))[1]
    made = await setup(address, "--retention", "9")
    assert made[0] == 0
    assert "search attributes: set up" in made[1]
    assert "retention: set up (9 days instead of 1)" in made[1]
    again = await setup(address, "--retention", "9")
    assert again[1].count("already set up") == 3


async def test_setup_makes_a_namespace_only_where_it_is_named(bare: WorkflowEnvironment) -> None:
    address = address_of(bare)
    missing = await asyncio.to_thread(CliRunner().invoke, app, ["--address", address, "--namespace", "crew", "setup"])
    assert missing.exit_code == 2
    assert f"tightloop --address {address} setup --namespace crew" in missing.stderr
    made = await setup(address, "--namespace", "crew", "--retention", "5")
    assert (made[0], "namespace: set up (crew, histories are retained for 5 days)" in made[1]) == (0, True)


async def test_attribute_of_another_type_has_a_command_that_replaces_it(bare: WorkflowEnvironment) -> None:
    address, kind = address_of(bare), IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    await bare.client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace="default", search_attributes={"TightloopIteration": kind})
    )
    code, said = await setup(address)
    assert code == 2
    assert "TightloopIteration is Keyword instead of Int" in said
    where = f"--address {address} --namespace default"
    assert f"search-attribute remove {where} --name TightloopIteration --yes" in said
    assert f"search-attribute create {where}" in said


async def test_worker_ends_with_the_command_where_the_namespace_is_not_set_up(
    bare: WorkflowEnvironment, tmp_path: Path
) -> None:
    address = address_of(bare)
    code, said = await work(address, tmp_path)
    assert code == 1
    assert f"tightloop --address {address} setup --namespace default" in said


async def test_worker_waits_for_its_server_within_a_bound(tmp_path: Path) -> None:
    code, said = await work("127.0.0.1:9", tmp_path)
    assert code == 1
    assert "waiting up to " in said
    assert "error: cannot reach Temporal at 127.0.0.1:9" in said
    assert "Waited 2 s (worker.start_wait_s)" in said
