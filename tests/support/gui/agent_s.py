"""Agent S for tests, in an environment of its own: python -m tests.support.gui.agent_s [FOLDER]."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agents.install import AGENT_FOLDER, REPOSITORY

VERSION = "0.3.2"
NEEDED = ("pyautogui", "openai", "anthropic", "backoff", "numpy", "pytesseract", "pillow")
"""What its grounding imports; with everything that it declares it is 1.8 GB, with these 0.2 GB."""
INSTALL_S = 600.0


def agent_s_python() -> str:
    """Return its Python; skip the test where it is not installed."""
    for folder in (*([Path(AGENT_FOLDER)] if AGENT_FOLDER else []), REPOSITORY / ".agents"):
        python = folder / "agent-s" / "bin" / "python"
        if python.exists():
            return str(python)
    pytest.skip("Agent S is not installed: python -m tests.support.gui.agent_s")


def install(folder: Path) -> None:
    """Install it as docs/macos.md says."""
    environment = folder / "agent-s"
    pip = (str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    for command in (
        (sys.executable, "-m", "venv", str(environment)),
        (*pip, "--no-deps", f"gui-agents=={VERSION}"),
        # pip's complaints that the package declares more go to standard error.
        (*pip, *NEEDED),
    ):
        subprocess.run(command, check=True, timeout=INSTALL_S, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    try:
        install(Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / ".agents")
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"Agent S cannot be had; its tests are left out: {error}")
