"""A tree full of programs that are named like others, and what of it runs under a process tracer.

`python -m tests.support.hostile_programs AGENT FOLDER` lets an agent work on the tree `FOLDER/project`.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from activities.executor.agent.acp.agents import AGENTS
from activities.executor.agent.acp.executor import AcpExecutor
from activities.executor.agent.cli.codex import CodexAdapter
from activities.executor.agent.cli.executor import AgentExecutor
from activities.model.gateway.port import Wire
from activities.model.gateway.server import serve_gateway
from activities.sandbox.choose import choose_fence
from tests.support.agents.install import agent_program
from tests.support.fake_model import FakeModel, say, shell
from tests.support.orders import Supervision, order
from tightloop.host import private_folder, state_folder
from tightloop.settings import AgentSettings, SandboxSettings

NAMES = [
    "agent",
    "awk",
    "bash",
    "bun",
    "bwrap",
    "cat",
    "chromium",
    "claude",
    "codex",
    "copilot",
    "cursor-agent",
    "cut",
    "deno",
    "dirname",
    "docker",
    "env",
    "firefox",
    "gemini",
    "getconf",
    "git",
    "git-upload-pack",
    "gpg",
    "grep",
    "id",
    "kill",
    "launchctl",
    "ls",
    "lsb_release",
    "make",
    "mkdir",
    "node",
    "notify-send",
    "npm",
    "npx",
    "opencode",
    "osascript",
    "pip",
    "prlimit",
    "ps",
    "pytest",
    "python",
    "python3",
    "readlink",
    "rg",
    "rm",
    "ruff",
    "sandbox-exec",
    "sandbox-helper",
    "screencapture",
    "sed",
    "setpriv",
    "sh",
    "sort",
    "ssh",
    "ssh-keygen",
    "systemd-run",
    "temporal",
    "tightloop",
    "tr",
    "true",
    "uname",
    "uv",
    "which",
    "xargs",
    "xclip",
    "xdg-open",
]
"""Programs that we start, that agents were seen to start (`strace -f -e trace=execve`), and that are often looked up.

`sandbox-helper` is no other program's name: whoever starts it wants one of the tree.
"""
FOLDERS = (".venv/bin", "node_modules/.bin", "bin", ".")
OWN = "sandbox-helper"
TRACER = ("strace", "-f", "-qq", "--seccomp-bpf", "-s", "300", "-e", "trace=execve", "-e", "signal=none", "-o")
_STARTED = re.compile(r'^\d+ +execve\("((?:[^"\\]|\\.)*)", .*(?:= 0|<unfinished \.\.\.>)$', re.MULTILINE)

PROGRAMS: Mapping[str, tuple[str, str]] = {
    "codex": ("codex", "gpt-5"),
    "codex-alone": ("codex", "gpt-5"),
    "opencode": ("opencode", "test-model"),
    "gemini": ("gemini", "gemini-2.5-pro"),
    "claude": ("claude-agent-acp", "claude-sonnet-4-5"),
    "copilot": ("copilot", "test-model"),
}
"""Agent to its program and model; `codex-alone` is the one where no second sandbox works behind the fence."""


def plant(root: Path, watch: Path, folders: Sequence[str] = FOLDERS) -> None:
    """Write the programs into folders of a tree. Each does what the real one does, after it has noted that it ran.

    It can do so in `watch` only outside of a sandbox.
    """
    for name in NAMES:
        real = shutil.which(name)
        text = f'#!/bin/sh\n(echo "$0 $*" >> "{watch}/outside") 2> /dev/null\n'
        text += f'exec {real} "$@"\n' if real else "exit 0\n"
        for folder in folders:
            program = root / folder / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)


def programs_outside(watch: Path) -> list[str]:
    """Return the planted programs that ran outside of a sandbox, with their arguments."""
    noted = watch / "outside"
    return noted.read_text(errors="replace").splitlines() if noted.exists() else []


def programs_started(trace: Path) -> list[str]:
    """Return the path of every program that the tracer saw to be executed."""
    return _STARTED.findall(trace.read_text(errors="replace"))


def work(agent: str, folder: Path) -> None:
    """Let an agent run a command of the tree, and print how its delivery ended."""
    root, name = folder / "project", "codex" if agent == "codex-alone" else agent
    program, model_name = PROGRAMS[agent]
    wire = Wire.RESPONSES if name == "codex" else AGENTS[name].wire or Wire.CHAT
    os.environ["PROVIDER_KEY"] = "sk-planted-provider-key-0123456789"
    fence = None if agent == "codex-alone" else choose_fence(SandboxSettings())
    with FakeModel(shell(f"{OWN}; git status > status.txt; echo made > made.txt"), say("done")) as model:
        settings = AgentSettings(
            program=str(agent_program(program)),
            model=model_name,
            base_url=model.base_url(wire),
            api_key_env="PROVIDER_KEY",
        )
        host = {"settings": settings, "homes": folder / "homes", "gateways": serve_gateway, "fence": fence}
        executor = (
            AgentExecutor(CodexAdapter(settings), **host) if name == "codex" else AcpExecutor(AGENTS[name], **host)
        )
        wanted = order(root, name=name, wall_limit_s=240, idle_limit_s=200)
        outcome = executor.execute(wanted, Supervision(), private_folder(state_folder(root)))
    print(f"{outcome.status} {outcome.versions.get('fence')} {outcome.error}")


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]))
