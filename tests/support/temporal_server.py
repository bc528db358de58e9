"""One Temporal dev server for a whole run of tests, however many processes the run has."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from temporalio.client import Client

from worker.connect import DATA_CONVERTER
from worker.stack.server import free_port, temporal_binary, tuning_arguments

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
    """End the server, if a test needed it, and remove the folder."""
    os.close(_life.pop())
    shutil.rmtree(os.environ.pop(RUN_FOLDER), ignore_errors=True)


def server_address() -> str:
    """Return the address of the run's server; whoever asks first starts it."""
    folder = Path(os.environ[RUN_FOLDER])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = folder / "address"
        if not file.exists():
            file.write_text(_start(folder))
        return file.read_text()


async def connect_to_server() -> Client:
    """Return a client of the run's server."""
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
    with (folder / "temporal.log").open("wb") as log:
        # A session of its own: the process that happened to ask first may end before the others do.
        supervisor = subprocess.Popen(
            ["sh", "-c", SUPERVISE, str(folder / "life"), *command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    # Popen would warn that it outlives its object.
    supervisor.returncode = 0
    return f"127.0.0.1:{port}"
