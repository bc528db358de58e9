"""A whole installation as processes of its own, so that any of them can be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tightloop.settings import Settings, parse_settings
from worker.server import free_port, server_arguments, temporal_binary

ROOT = Path(__file__).parents[3]
FOREIGN = ("OPENAI_", "OTEL_", "TIGHTLOOP_")
"""Variables of whoever runs the tests that a stack must not see."""


def shared_state() -> dict[str, str]:
    """Return the variable of a stack whose state the test itself wants to open."""
    return {"TIGHTLOOP_HOME": os.environ["TIGHTLOOP_HOME"]}


class Stack:
    """One Temporal server on a file, and one worker process."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None, within: Sequence[str] = ()) -> None:
        """Take a folder of its own, variables, and the command that starts a worker somewhere else, if any."""
        self.folder, self._within = folder, tuple(within)
        port, ui_port = free_port(), free_port()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)},
            "TIGHTLOOP_HOME": str(folder / "state"),
            # Also for the clients in the process of the test, whose state folder is another one.
            "TIGHTLOOP_PRIVACY__KEYS_FILE": str(folder / "state" / "keys.json"),
            "TIGHTLOOP_TEMPORAL__ADDRESS": f"127.0.0.1:{port}",
            # Said, because commands in the process of the test would speak plainly.
            "TIGHTLOOP_TEMPORAL__AUTHENTICATE": "true",
            "TIGHTLOOP_TEMPORAL__UI_URL": f"http://127.0.0.1:{ui_port}",
            # Those that need the page start it themselves.
            "TIGHTLOOP_GATEWAY__ENABLED": "false",
            "TIGHTLOOP_SANDBOX__UNSAFE_LOCAL": "true",
            **(environment or {}),
        }
        self.settings: Settings = parse_settings("", self.environment)
        self._server: subprocess.Popen[bytes] | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._others: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Stack":
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for other in self._others:
            self._kill(other)
        self.kill_worker()
        self.kill_server()

    def start_server(self) -> None:
        """Start Temporal on the same file and ports as before."""
        arguments = server_arguments(self.settings, self.folder / "temporal.db")
        self._server = self._start([str(temporal_binary()), *arguments], "server.log")

    def start_worker(self) -> None:
        """Start a worker of all roles."""
        self._worker = self._start([*self._within, sys.executable, "-m", "worker", "run"], "worker.log")

    def add_worker(self, *options: str, code: Path = ROOT) -> subprocess.Popen[bytes]:
        """Start one more worker, of all roles where no option says another one, with the packages of a folder."""
        self._others.append(self._start([sys.executable, "-m", "worker", "run", *options], "worker.log", code))
        return self._others[-1]

    def start_gateway(self) -> subprocess.Popen[bytes]:
        """Start the page and the HTTP API."""
        self._others.append(self._start([sys.executable, "-m", "gateway"], "gateway.log"))
        return self._others[-1]

    def tightloop(self, *arguments: str) -> str:
        """Run a command that has to succeed; returns what it prints."""
        command = [sys.executable, "-m", "tightloop.cli.main", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def start_faulty_workers(self, count: int, marks: Path) -> subprocess.Popen[bytes]:
        """Start the workers of `faulty_worker.py`; returns the process that keeps so many alive until SIGTERM."""
        self.environment["FAULT_MARKS"] = str(marks)
        command = [sys.executable, "-m", "tests.support.stack.faulty_worker", str(count)]
        return self._start(command, "worker.log")

    def start_keeper(self, folder: Path) -> subprocess.Popen[bytes]:
        """Start the workers of `faulty_plan_worker.py`; returns the process that keeps them alive until SIGTERM."""
        return self._start([sys.executable, "-m", "tests.support.stack.faulty_plan_worker", str(folder)], "worker.log")

    def kill_server(self) -> None:
        """kill -9."""
        self._server = self._kill(self._server)

    def kill_worker(self) -> None:
        """kill -9 of the worker alone; what it started stays behind, as after a real crash."""
        self._worker = self._kill(self._worker)

    def stop_worker(self) -> None:
        """SIGTERM, and wait until it has ended in order."""
        process, self._worker = self._worker, None
        if process is not None:
            process.terminate()
            process.wait(60)

    def worker_log(self) -> str:
        """What the workers wrote."""
        return (self.folder / "worker.log").read_text(errors="replace")

    def _start(self, command: list[str], log: str, folder: Path = ROOT) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as out:
            return subprocess.Popen(
                command, cwd=folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    @staticmethod
    def _kill(process: subprocess.Popen[bytes] | None) -> None:
        if process is not None and process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(60)


def wait_for_port(address: str, seconds: float = 120.0) -> None:
    """Wait until something listens at `host:port`."""
    import socket

    host, _, port = address.partition(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
