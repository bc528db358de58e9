"""A tree full of programs that are named like others, and what of it runs under a process tracer.

`python -m tests.support.hostile_programs AGENT FOLDER` lets an agent work on the tree `FOLDER/project`; with `gate
FOLDER MARKER` the gate for tests of a change judges one.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from activities.executor.agent.acp.agents import AGENTS
from activities.executor.agent.acp.executor import AcpExecutor
from activities.executor.agent.cli import AgentExecutor
from activities.executor.agent.codex import CodexAdapter
from activities.model.gateway.server import serve_gateway
from activities.model.gateway.wire import Wire
from activities.sandbox.choose import choose_agent_sandbox
from activities.sandbox.port import AgentSandbox
from tests.support.agents.install import agent_program
from tests.support.fake_model import FakeModel, say, shell
from tests.support.gating import changed
from tests.support.orders import Supervision, order
from tests.support.planted import FOLDERS, NAMES, program_text
from tightloop.executor.model import ExecutorChoice
from tightloop.host import private_folder, state_folder
from tightloop.host.programs import SYSTEM_PATH
from tightloop.settings import AgentSettings, SandboxSettings

SEEN = (
    "agent", "awk", "copilot", "cut", "dirname", "getconf", "getopt", "kill", "lsb_release", "lxc-ls", "mkdir", "pgrep",
    "readlink", "rm", "sed", "slirp4netns", "sort", "tr", "wc", "xargs",
)  # fmt: skip
"""What agents were seen to start (`strace -f -e trace=execve`), besides what is planted anyway."""
OWN = "sandbox-helper"
"""No other program has this name: whoever starts it wants one of the tree."""
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


def plant_acting(root: Path, marker: Path) -> None:
    """Write the programs into every folder of `FOLDERS`.

    Each does what the real one does, after it has noted in `marker` that it ran: only outside of a sandbox it can.
    """
    for name in (*NAMES, *SEEN, OWN):
        # Claude Code takes zsh for its commands where it finds one.
        real = shutil.which(name, path=SYSTEM_PATH) or ("/bin/sh" if name == "zsh" else shutil.which(name))
        if name.startswith("python"):
            real = sys.executable
        text = program_text(marker).replace("exit 0", f'exec {real} "$@"' if real else "exit 0")
        for folder in FOLDERS:
            program = root / folder / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)


def programs_started(trace: Path) -> list[str]:
    """Return the path of every program that the tracer saw to be executed."""
    return _STARTED.findall(trace.read_text(errors="replace"))


def work(agent: str, folder: Path) -> None:
    """Let an agent run a command of the tree, and print how its delivery ended."""
    root, name = folder / "project", "codex" if agent == "codex-alone" else agent
    program, model_name = PROGRAMS[agent]
    wire = Wire.RESPONSES if name == "codex" else AGENTS[name].wire or Wire.CHAT
    os.environ["PROVIDER_KEY"] = "sk-planted-provider-key-0123456789"
    fence: AgentSandbox | None = None if agent == "codex-alone" else choose_agent_sandbox(SandboxSettings())
    with FakeModel(shell(f"{OWN}; git status > status.txt; echo made > made.txt"), say("done")) as model:
        settings = AgentSettings(
            program=str(agent_program(program)),
            model=model_name,
            base_url=model.base_url(wire),
            api_key_env="PROVIDER_KEY",
        )
        homes = folder / "homes"
        executor = (
            AgentExecutor(
                CodexAdapter(settings), settings=settings, homes=homes, gateways=serve_gateway, agent_sandbox=fence
            )
            if name == "codex"
            else AcpExecutor(AGENTS[name], settings=settings, homes=homes, gateways=serve_gateway, agent_sandbox=fence)
        )
        choice = ExecutorChoice(name=name, wall_limit_s=240, idle_limit_s=200)
        wanted = order(root).evolve(executor=choice)
        outcome = executor.execute(wanted, Supervision(), private_folder(state_folder(root)))
    print(f"{outcome.status} {outcome.versions.get('fence')} {outcome.error}")


def judge_test(folder: Path, marker: Path) -> None:
    """Let the gate judge a test in a tree full of programs, and print what it says."""
    before = {"shop.py": "def price(n):\n    return n\n"}
    after = {
        "shop.py": "def price(n):\n    return 2 * n\n",
        "tests/test_shop.py": "from shop import price\n\n\ndef test_price():\n    assert price(2) == 4\n",
    }
    with changed(folder / "judged", before, after) as judged:
        plant_acting(folder / "judged", marker)
        print(judged.judge("tests/test_shop.py"))


if __name__ == "__main__":
    if sys.argv[1] == "gate":
        judge_test(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        work(sys.argv[1], Path(sys.argv[2]))
