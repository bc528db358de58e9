"""A Temporal dev server for each process of a run of tests, and others for tests that read a whole namespace."""

import asyncio
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from worker.connect import DATA_CONVERTER
from worker.server import free_port, temporal_binary, tuning_arguments

RUN_FOLDER = "TIGHTLOOP_TEST_RUN"
"""Names the folder of the run; processes of pytest-xdist inherit it from the one that started them."""
START_SECONDS = 60.0


SUPERVISE = """
exec 3<"$0"
"$@" &
read -r nothing <&3
kill $!
"""
"""Ends the server when nobody holds the writing end of the pipe `$0` any more, however the run ended."""
_life: list[int] = []


def open_run() -> None:
    """Make the folder in which the processes of a run find what they share."""
    folder = tempfile.mkdtemp(prefix="tightloop-test-run-")
    os.environ[RUN_FOLDER] = folder
    os.mkfifo(f"{folder}/life")
    # Also open for reading: to open a pipe for writing alone waits for a reader.
    _life.append(os.open(f"{folder}/life", os.O_RDWR))


def close_run() -> None:
    """End the servers and remove the folder."""
    os.close(_life.pop())
    shutil.rmtree(os.environ.pop(RUN_FOLDER), ignore_errors=True)


@functools.cache
def server_address() -> str:
    """Return the address of the server of this process, which starts with the first call.

    One server for all processes would answer more slowly with each test: what lists workflows reads those of all.
    """
    return _start(Path(os.environ[RUN_FOLDER]))


@pytest.fixture(scope="module")
async def own_server() -> AsyncIterator[WorkflowEnvironment]:
    """A server with the workflows of one file of tests only: `temporal, temporal_client = own_server, own_client`."""
    async with await WorkflowEnvironment.start_local(
        data_converter=DATA_CONVERTER,
        dev_server_existing_path=str(temporal_binary()),
        dev_server_extra_args=tuning_arguments(),
    ) as environment:
        yield environment


@pytest.fixture(scope="module")
async def own_client(temporal: WorkflowEnvironment) -> Client:
    """A client of that server."""
    return temporal.client


async def connect_to_server() -> Client:
    """Return a client of the server of this process."""
    address = await asyncio.to_thread(server_address)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return await Client.connect(address, data_converter=DATA_CONVERTER)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def _start(folder: Path) -> str:
    port = str(free_port())
    command = [str(temporal_binary()), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", port]
    command += ["--log-level", "error", *tuning_arguments()]
    with (folder / f"temporal-{port}.log").open("wb") as log:
        # In its own session, so that Ctrl-C reaches the tests before the server.
        supervisor = subprocess.Popen(
            ["sh", "-c", SUPERVISE, str(folder / "life"), *command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    # Popen would warn that it outlives its object.
    supervisor.returncode = 0
    return f"127.0.0.1:{port}"
