"""The gate's walls: the shell that brings them up ends as its own commands did, and leaves nothing behind."""

import os
import subprocess
from pathlib import Path

import pytest

WALLS = Path(__file__).parents[2] / ".ci" / "sandbox.sh"
LIMIT_S = 120
PROGRAMS = {
    "id": "echo 0",
    "uname": "echo Linux",
    "apt-cache": "exit 1",
    "apt-get": "exit 0",
    "bwrap": 'echo "bubblewrap 0"',
    "dpkg": 'mkdir -p "$3/usr/bin"',
    # No engine answers until one is started here.
    "docker": '[ "$1" = info ] && [ -z "$DOCKER_HOST" ] && exit 1; [ "$1" != import ] || cat >/dev/null',
    "dockerd": "exec sleep 60",
}
"""What the machine may lack: these stand for the packages of a Debian, and for the engine."""


@pytest.mark.parametrize(("command", "status"), [("true", 0), ("false", 1), ("exit 7", 7)])
def test_the_gate_ends_as_its_commands_did(tmp_path: Path, command: str, status: int) -> None:
    programs, state = tmp_path / "programs", tmp_path / "state"
    programs.mkdir()
    state.mkdir()
    for name, body in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("DOCKER_HOST", "TIGHTLOOP_TEST_IMAGE")
    }
    environment |= {"PATH": f"{programs}:{environment['PATH']}", "TMPDIR": str(state)}

    ended = subprocess.run(
        ["bash", "-c", f'set -euo pipefail; . {WALLS}; echo "with $DOCKER_HOST"; {command}'],
        env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip

    assert ended.returncode == status, ended.stderr
    assert f"with unix://{state}" in ended.stdout
    assert list(state.iterdir()) == []
