"""tightloop from the package index: the client alone, and the server part without a checkout."""

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from tests.support.episodes import Git
from tests.support.installed import CLIENT, ROOT, SERVER, built, installed, site_of
from tests.support.stack.stack import FOREIGN
from worker.server import free_port

pytestmark = pytest.mark.timeout(400)
OURS = ("activities", "gateway", "worker", "workflows")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return dict(zip((CLIENT, SERVER), built(folder, CLIENT, SERVER), strict=True))


@pytest.fixture
def user(tmp_path: Path) -> dict[str, str]:
    """Variables of a user who stands outside the checkout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith((*FOREIGN, "PYTHON"))}
    return {
        **clean,
        "HOME": str(tmp_path),
        # The linter of the sample, as a project has it.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}",
        "TIGHTLOOP_HOME": str(tmp_path / "state"),
        "TIGHTLOOP_TEMPORAL__ADDRESS": f"127.0.0.1:{free_port()}",
        "TIGHTLOOP_TEMPORAL__UI_URL": f"http://127.0.0.1:{free_port()}",
        "TIGHTLOOP_GATEWAY__LISTEN": f"127.0.0.1:{free_port()}",
        "TIGHTLOOP_SANDBOX__UNSAFE_LOCAL": "true",
    }


def test_an_episode_gets_green_without_a_checkout(
    wheels: dict[Path, Path], user: dict[str, str], tmp_path: Path, git: Git
) -> None:
    programs = installed(tmp_path / "env", [*wheels.values()])
    names = {path.name for path in site_of(tmp_path / "env").iterdir()}
    assert not names.intersection(OURS)
    assert {"tightloop", "tightloop_server"} <= names
    sample = tmp_path / "orders"
    shutil.copytree(ROOT / "examples" / "sample", sample, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    git(sample, "init", "--quiet")
    git(sample, "add", "--all")
    git(sample, "commit", "--quiet", "-m", "As found")

    tightloop = str(programs / "tightloop")
    up = subprocess.Popen([tightloop, "up"], cwd=tmp_path, env=user, stdout=subprocess.PIPE, text=True)
    with up:
        assert up.stdout is not None
        assert "tightloop is up" in up.stdout.readline()
        checks = ("--done", "ruff check --no-cache .", "--done", "ruff format --no-cache --check .")
        command = [tightloop, "start", "Get it green", *checks, "--watch"]
        try:
            done = subprocess.run(command, cwd=sample, env=user, capture_output=True, text=True, timeout=90)
        finally:
            up.terminate()
        assert up.wait(90) == 0
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCEEDED" in done.stdout


def test_the_client_alone_says_how_to_get_the_server_part(
    wheels: dict[Path, Path], user: dict[str, str], tmp_path: Path
) -> None:
    programs = installed(tmp_path / "env", [wheels[CLIENT]])
    # A service may well have folders of these names.
    for name in OURS:
        (site_of(tmp_path / "env") / name).mkdir()
        (site_of(tmp_path / "env") / name / "__main__.py").write_text("print('taken for ours')")
    for command in (["up"], ["worker", "run"], ["replay", "history.json"]):
        done = subprocess.run(
            [str(programs / "tightloop"), *command], cwd=tmp_path, env=user, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "error: only the client is installed on this host. "
            "Build and install tightloop-server (see docs/operate/install.md)\n"
        )


def test_the_extra_brings_the_server_part_of_the_same_version(tmp_path: Path, wheels: dict[Path, Path]) -> None:
    installed(tmp_path / "env", [*wheels.values()])
    site = site_of(tmp_path / "env")
    client, server = (
        PathDistribution(next(site.glob(f"{name}-*.dist-info"))) for name in ("tightloop", "tightloop_server")
    )
    assert server.version == client.version
    assert server.requires == [f"tightloop[server-libraries]=={client.version}"]
    assert f"tightloop-server=={client.version}; extra == 'server'" in (client.requires or [])
    assert (
        "server-libraries" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )
