"""The command that installs the agents for the tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.agents.install import AGENT_PACKAGES, REPOSITORY, agent_program

COMMAND = (sys.executable, "-m", "tests.support.agents.install", "install", "--folder")


def install(folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path, "HOME": str(folder)}
    return subprocess.run(
        [*COMMAND, str(folder)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_node_it_says_so_in_one_line(tmp_path: Path) -> None:
    done = install(tmp_path, str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == "agents not installed: node or npm is missing on PATH\n"


def stand_in(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_what_npm_says_reaches_the_one_line(tmp_path: Path) -> None:
    stand_in(tmp_path, "node", "exit 0")
    stand_in(tmp_path, "npm", "echo 'npm error network request to the registry failed' >&2; exit 7")
    done = install(tmp_path, f"{tmp_path}:{os.defpath}")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "npm ended with 7: npm error network request to the registry failed" in done.stderr
    assert json.loads((tmp_path / "package.json").read_text())["dependencies"] == AGENT_PACKAGES


def test_an_older_version_than_asked_for_is_named(tmp_path: Path) -> None:
    stand_in(tmp_path, "node", "exit 0")
    manifest = (
        'mkdir -p node_modules/opencode-ai && echo \'{"version": "0.1"}\' > node_modules/opencode-ai/package.json'
    )
    stand_in(tmp_path, "npm", manifest)
    done = install(tmp_path, f"{tmp_path}:{os.defpath}")
    assert done.returncode == 1
    assert "opencode-ai 0.1" in done.stderr


def test_codex_is_the_program_itself_and_not_its_node_wrapper() -> None:
    codex = agent_program("codex")
    with codex.open("rb") as program:
        assert not program.read(2).startswith(b"#!")
    said = subprocess.run([codex, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    assert said.startswith("codex")
