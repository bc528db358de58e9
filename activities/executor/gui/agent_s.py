"""Locates controls on the screen by asking a vision model through Agent S."""

import base64
import json
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from activities.executor.gui.port import DriverError, Frame
from tightloop.host.programs import find_trusted_program, trusted_path
from tightloop.settings import AgentSSettings
from tightloop.value import shorten

MODEL_S = 40.0
LOCATE_S = 60.0
"""Time limit in seconds for one question. It includes starting Python, whose imports take up to 10 s on a busy machine.
"""
PROBE_S = 10.0
WHAT = "the text input box of the AI chat, where one types a message to the agent"
OPENAI_URL = "https://api.openai.com/v1"
PASSED = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE")
"""Worker variables that are passed to the helper. DISPLAY is not passed, because the helper must not act on the
screen."""


@dataclass(frozen=True)
class AgentS:
    """Agent S, which is installed in its own Python environment."""

    settings: AgentSSettings
    environ: Mapping[str, str]
    model_s: float = MODEL_S
    locate_s: float = LOCATE_S

    @property
    def python(self) -> str:
        """The path to the Python interpreter of Agent S.

        Symlinks are not resolved, because the target is outside the virtual environment.
        """
        return str(Path(self.settings.python).expanduser())

    def problem(self) -> str:
        """Return why Agent S is unavailable and how to fix it, or "" if it is available."""
        python = find_trusted_program(self.python)
        if python is None:
            return f"window.agent_s.python is set to {self.python!r}, which is not a program (see docs/macos.md)"
        code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('gui_agents') is None)"
        try:
            completed = subprocess.run(
                python.command("-I", "-c", code), capture_output=True, timeout=PROBE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"cannot start window.agent_s.python: {error}"
        return "" if completed.returncode == 0 else f"gui-agents is not installed in {self.python} (see docs/macos.md)"

    def locate(self, png: bytes, frame: Frame) -> tuple[int, int]:
        """Ask a model once to locate the chat box in a frame. Return a point inside the box.

        Raises:
            DriverError: there is no answer, or the answer is not a point in the frame.
        """
        width, height = size_of(png)
        point = self._ask(png, width, height)
        if not (0 <= point[0] < width and 0 <= point[1] < height):
            raise DriverError(
                f"Agent S returned {point}, which is outside the window ({width} x {height}). Nothing was clicked"
            )
        # On a Retina display the screenshot has more pixels than the frame has points.
        return (frame.x + point[0] * frame.width // width, frame.y + point[1] * frame.height // height)

    def _ask(self, png: bytes, width: int, height: int) -> tuple[int, int]:
        request = {
            "what": WHAT,
            "png": base64.b64encode(png).decode(),
            "width": width,
            "height": height,
            "grid": self.settings.grid,
            "model": self.settings.model,
            "base_url": self.settings.base_url or OPENAI_URL,
            "timeout_s": self.model_s,
        }
        # Not the worker's environment, whose keys a package that evaluates model output must not see.
        variables = {name: self.environ[name] for name in PASSED if name in self.environ}
        variables["PATH"] = trusted_path()
        variables["AGENT_S_KEY"] = self.environ.get(self.settings.api_key_env, "")
        python = find_trusted_program(self.python)
        if python is None:
            raise DriverError(f"{self.python} was not found. Change window.agent_s.python")
        helper = resources.files("activities.executor.gui") / "agent_s_helper.py"
        try:
            with resources.as_file(helper) as path:
                completed = subprocess.run(
                    python.command("-I", path),
                    input=json.dumps(request).encode(),
                    capture_output=True,
                    env=variables,
                    timeout=self.locate_s,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            raise DriverError(f"Agent S did not respond within {self.locate_s:g} s") from None
        except OSError as error:
            raise DriverError(f"cannot start {self.python}: {error.strerror}") from error
        if completed.returncode != 0:
            message = (completed.stderr.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]
            raise DriverError(f"Agent S did not find the chat box: {shorten(message, 400)}")
        point = json.loads(completed.stdout)
        return int(point["x"]), int(point["y"])


def size_of(png: bytes) -> tuple[int, int]:
    """Return the width and height of a PNG in pixels.

    Raises:
        DriverError: the data is not a PNG.
    """
    # PNG specification, 11.2.2: IHDR comes first.
    if not png.startswith(b"\x89PNG\r\n\x1a\n") or png[12:16] != b"IHDR":
        raise DriverError("the screenshot of the window is not a PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height
