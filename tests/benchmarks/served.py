"""A gateway as a process of its own, for benchmarks."""

import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.support.stack.stack import ROOT
from worker.server import free_port


class Served(NamedTuple):
    """A running gateway."""

    pid: int
    url: str

    async def busy(self, work: Awaitable[None]) -> float:
        """Return the processor time that it takes while something goes on, as a part of one core."""
        process, begun = psutil.Process(self.pid), time.perf_counter()
        before = sum(process.cpu_times()[:2])
        await work
        return float(sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - begun)

    async def busy_seconds(self, requests: Iterable[Awaitable[object]]) -> float:
        """Return the processor time that each of these requests takes, one after the other."""
        process, count = psutil.Process(self.pid), 0
        before = sum(process.cpu_times()[:2])
        for request in requests:
            await request
            count += 1
        return float(sum(process.cpu_times()[:2]) - before) / count


@contextmanager
def gateway_process(home: Path, temporal: str, database: str = "") -> Iterator[Served]:
    """Start a gateway that has the state home in a folder; `database`: an address of PostgreSQL."""
    port = free_port()
    environment = {
        **os.environ,
        "TIGHTLOOP_HOME": str(home),
        "TIGHTLOOP_TEMPORAL__ADDRESS": temporal,
        "TIGHTLOOP_TEMPORAL__AUTHENTICATE": "false",
        "TIGHTLOOP_GATEWAY__LISTEN": f"127.0.0.1:{port}",
        "TIGHTLOOP_DATABASE__URL": database,
    }
    command = [sys.executable, "-m", "gateway"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "the gateway did not start"
        try:
            yield Served(process.pid, f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
