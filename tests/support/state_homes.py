"""Worker processes on state homes that are moved, copied and given to another container."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.episodes import eventually

READY_SECONDS = 120
STOP_SECONDS = 30


@dataclass
class Machine:
    """A machine, or a container, with a host name of its own."""

    name: str
    settings: Path
    variables: dict[str, str] = field(default_factory=dict)
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """What the last worker has logged."""
        return self.settings.parent / f"{self.name}-{len(self.processes)}.log"

    def start(self, home: Path, role: str = "all", **variables: str) -> None:
        """Start a worker on a state home."""
        run = [sys.executable, "-m", "worker", "--settings", str(self.settings), "run", "--role", role]
        command = ["unshare", "--uts", "sh", "-c", f'hostname {self.name}; exec "$@"', "sh", *run]
        given = {**os.environ, "TIGHTLOOP_HOME": str(home), **self.variables, **variables}
        with (self.settings.parent / f"{self.name}-{len(self.processes) + 1}.log").open("wb") as file:
            process = subprocess.Popen(command, env=given, stdout=file, stderr=file, start_new_session=True)
        self.processes.append(process)

    async def serve(self, home: Path, role: str = "all", **variables: str) -> None:
        """Start a worker, and wait until it is ready."""
        self.start(home, role, **variables)

        async def is_ready() -> bool:
            assert self.processes[-1].poll() is None, self.log.read_text()
            return "is ready" in self.log.read_text()

        await eventually(is_ready, seconds=READY_SECONDS)

    async def ended(self) -> int:
        """Wait until the last worker has ended, and return its exit code."""

        async def has_ended() -> bool:
            return self.processes[-1].poll() is not None

        await eventually(has_ended, seconds=READY_SECONDS)
        return self.processes[-1].wait()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End all workers: by default they may hand back what they do."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, number)
        for process in self.processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def uts_problem() -> str:
    """Return why a process cannot have a host name of its own here; empty: it can."""
    try:
        tried = subprocess.run(("unshare", "--uts", "hostname", "other"), capture_output=True, text=True)
    except FileNotFoundError:
        return "unshare is not installed"
    return f"a process gets no host name of its own here: {tried.stderr.strip()[:200]}" if tried.returncode else ""
