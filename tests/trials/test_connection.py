"""A Temporal that somebody else runs, empty and behind nginx: everything works through one temporal.toml."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.episodes import Git
from tests.support.nginx import NGINX, nginx_front
from tests.support.stack.stack import wait_for_port
from tests.support.tls_front import Authority
from worker.server import free_port, temporal_binary

KEY = "key-of-the-trial-77ab"
NAME = "front.test"
ROLES = ("workflows", "workspace", "llm")
PLAN = "id: note\nsteps:\n  - {id: note, shell: {run: 'echo done > NOTE'}}\ndefinition_of_done: ['test -f NOTE']\n"
EXECUTOR = 'argv=["sh", "-c", "echo b >> letter.txt"]'
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt install nginx")


@contextmanager
def ended(*command: str, log: Path, environ: dict[str, str] | None = None) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def profile(address: str, authority: Authority, by: str) -> str:
    if by == "api key":
        access, files = f'api_key = "{KEY}"', ""
    else:
        certificate, private = authority.issue("client")
        access, files = "", f'client_cert_path = "{certificate}"\nclient_key_path = "{private}"'
    tls = f'server_name = "{NAME}"\nserver_ca_cert_path = "{authority.ca}"\n{files}'
    return f'[profile.shared]\naddress = "{address}"\nnamespace = "crew"\n{access}\n[profile.shared.tls]\n{tls}\n'


@pytest.mark.parametrize("by", ["client certificate", "api key"])
def test_one_profile_serves_setup_workers_episode_plan_and_temporals_command_line(
    tmp_path: Path, git: Git, by: str
) -> None:
    authority, upstream = Authority(tmp_path, "authority"), f"127.0.0.1:{free_port()}"
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "letter.txt").write_text("a\n")
    (workspace / "plan.yaml").write_text(PLAN)
    git(workspace, "init", "-q")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "Begin")
    file = tmp_path / "temporal.toml"
    own = {"TEMPORAL_CONFIG_FILE": str(file), "TEMPORAL_PROFILE": "shared", "TIGHTLOOP_HOME": str(tmp_path / "state")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIGHTLOOP_", "TEMPORAL_"))}
    environ = kept | own

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=workspace, env=environ, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        return done.stdout

    tightloop = (sys.executable, "-m", "tightloop.cli.main")
    with ExitStack() as stack:
        server = (str(temporal_binary()), "server", "start-dev", "--headless", "--log-level", "error")
        port = upstream.rpartition(":")[2]
        stack.enter_context(ended(*server, "--port", port, log=tmp_path / "server.log"))
        wait_for_port(upstream)
        clients_of = authority.ca if by != "api key" else None
        front = nginx_front(tmp_path / "nginx", upstream, authority.issue(NAME), key=KEY, clients_of=clients_of)
        file.write_text(profile(stack.enter_context(front), authority, by))
        made = run(*tightloop, "setup", "--namespace", "crew", "--retention", "3")
        assert "namespace: set up (crew, histories are retained for 3 days)" in made
        assert "search attributes: set up" in made
        for role in ROLES:
            worker = (sys.executable, "-m", "worker", "run", "--role", role)
            stack.enter_context(ended(*worker, log=tmp_path / f"{role}.log", environ=environ))
        work = ("--executor", "command", "--executor-option", EXECUTOR, "--id", "letter", "--watch", "--no-wait")
        run(*tightloop, "start", "Write a letter", "--done", "grep -q b letter.txt", *work)
        run(*tightloop, "plan", "run", "plan.yaml", "--no-wait")
        assert "letter" in run(str(temporal_binary()), "workflow", "list", "--query", "ExecutionStatus='Completed'")
