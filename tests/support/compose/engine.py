"""A Docker engine with compose and networks: the one that answers, or a private one out of Debian's packages."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.compose.debian import download, unpack

ENGINE = (
    "docker.io", "containerd", "runc", "tini", "iptables", "libip4tc2", "libip6tc2", "libxtables12", "libnftnl11",
    "libmnl0", "libnfnetlink0", "libnetfilter-conntrack3",
)  # fmt: skip
COMPOSE_RELEASE = "trixie"
"""Debian 12 has compose 1 only."""
START_S = 30.0
STOP_S = 60.0


@contextmanager
def docker_engine() -> Iterator[Mapping[str, str]]:
    """Yield the environment in which `docker compose` works. Skips where no engine can be had."""
    environment = dict(os.environ)
    if _answers(environment):
        yield environment
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None or shutil.which("docker") is None:
        pytest.skip("no Docker engine with compose and networks answers; a private one needs root, Debian and `docker`")
    # A short path: a socket's name is bounded.
    folder = Path(tempfile.mkdtemp(prefix="tl-engine-"))
    try:
        _unpack(folder)
        with _daemon(folder) as environment:
            yield environment
    finally:
        _unmount(folder)
        shutil.rmtree(folder)


def _answers(environment: Mapping[str, str]) -> bool:
    """Return whether there is an engine with compose and networks: that of .ci/sandbox.sh has neither."""
    commands = (["docker", "network", "inspect", "bridge"], ["docker", "compose", "version"])
    return shutil.which("docker") is not None and all(_succeeds(command, environment) for command in commands)


def _succeeds(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _unpack(folder: Path) -> None:
    """Unpack the engine beside the system: nothing is installed, no service is started."""
    root = folder / "root"
    unpack(download(folder / "engine", ENGINE), root)
    unpack(download(folder / "compose", ("docker-compose",), release=COMPOSE_RELEASE), root)
    # Debian makes these links when the package is installed.
    (root / "usr/sbin/iptables").symlink_to("iptables-nft")
    (root / "usr/sbin/ip6tables").symlink_to("ip6tables-nft")
    plugins = folder / "settings" / "cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(root / "usr/libexec/docker/cli-plugins/docker-compose")


@contextmanager
def _daemon(folder: Path) -> Iterator[Mapping[str, str]]:
    root, socket = folder / "root", f"unix://{folder}/docker.sock"
    [libraries] = (root / "usr/lib").glob("*-linux-gnu")
    environment = {**os.environ, "DOCKER_HOST": socket, "DOCKER_CONFIG": str(folder / "settings")}
    own = {
        **environment,
        "PATH": f"{root}/usr/bin:{root}/usr/sbin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(libraries),
        "XTABLES_LIBDIR": str(libraries / "xtables"),
    }
    # This machine's own rules for its network stay as they are: names and published ports work without.
    untouched = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
    command = [
        "dockerd", f"--data-root={folder / 'data'}", f"--exec-root={folder / 'exec'}",
        f"--pidfile={folder / 'docker.pid'}", f"--host={socket}", *untouched,
    ]  # fmt: skip
    with (
        (folder / "engine.log").open("wb") as log,
        # A session of its own: Ctrl-C reaches the tests first, which still need the engine to clean up.
        subprocess.Popen(command, env=own, stdout=log, stderr=log, start_new_session=True) as process,
    ):
        try:
            if not _starts(process, environment):
                reason = (folder / "engine.log").read_text().strip().splitlines()[-1]
                pytest.skip(f"the private Docker engine does not start here: {reason[:300]}")
            yield environment
        finally:
            process.terminate()
            process.wait(STOP_S)


def _starts(process: subprocess.Popen[bytes], environment: Mapping[str, str]) -> bool:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        if _succeeds(["docker", "info"], environment):
            return True
        time.sleep(0.5)
    return False


def _unmount(folder: Path) -> None:
    """Let go what the engine leaves mounted when it ends."""
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in sorted((place for place in places if place.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", place], capture_output=True, timeout=20, check=False)
