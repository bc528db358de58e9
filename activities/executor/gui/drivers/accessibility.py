"""Client for the helper process that reads the accessibility tree on Linux. Each question has a timeout."""

import importlib.util
import json
import os
import selectors
import subprocess
import time
from importlib import resources
from pathlib import Path
from typing import Any

from activities.executor.gui.port import DriverError
from tightloop.host.programs import TrustedProgram, own_environment, own_python

ANSWER_S = 8.0
START_S = 20.0
SYSTEM_PYTHON = TrustedProgram("python3", Path("/usr/bin/python3"))
_CHUNK = 1 << 16


class Accessibility:
    """Queries the accessibility tree through a helper process.

    A helper that does not answer in time is killed. The next query starts a new one.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def start(self) -> None:
        """Start the helper unless it is already running.

        Raises:
            DriverError: there is no Python with the bindings, or no accessibility bus.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        # The bindings belong to the system's Python and cannot be installed from PyPI without a compiler.
        python = own_python() if importlib.util.find_spec("gi") else SYSTEM_PYTHON
        helper = resources.files("activities.executor.gui.drivers") / "atspi.py"
        try:
            self._process = subprocess.Popen(
                python.command(str(helper)),
                env=own_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # GLib may print many warnings there, and a full pipe would block the helper.
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise DriverError(f"cannot start {python}: {error.strerror}. Install Python") from error
        try:
            self._read(START_S)
        except DriverError:
            self.close()
            raise DriverError(
                f"cannot read the accessibility tree with {python}. Run apt install gir1.2-atspi-2.0 python3-gi "
                "at-spi2-core, and start the worker in a desktop session with D-Bus"
            ) from None

    def ask(self, what: str, pid: int) -> Any:
        """Ask the helper about the windows of a process and return its answer.

        Raises:
            DriverError: the helper did not answer in time.
        """
        self.start()
        try:
            stdin = self._running.stdin
            assert stdin is not None
            stdin.write(json.dumps({"do": what, "pid": pid}).encode() + b"\n")
            stdin.flush()
            answer = json.loads(self._read(ANSWER_S))
        except (OSError, ValueError, DriverError) as error:
            self.close()
            raise DriverError(f"the accessibility tree did not respond: {error}") from error
        if "error" in answer:
            raise DriverError(f"cannot read the accessibility tree: {answer['error']}")
        return answer.get("answer")

    def close(self) -> None:
        process, self._process, self._rest = self._process, None, b""
        if process is not None:
            process.kill()
            process.communicate()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _read(self, seconds: float) -> bytes:
        stdout = self._running.stdout
        assert stdout is not None
        end, descriptor = time.monotonic() + seconds, stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left = end - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise DriverError(f"no response within {seconds:g} s")
                # Not `stdout.readline`: its buffer would hide from the selector that data is there.
                chunk = os.read(descriptor, _CHUNK)
                if not chunk:
                    raise DriverError("the helper has exited")
                self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line
