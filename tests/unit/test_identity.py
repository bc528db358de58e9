"""The identity of a host: made once, kept in the state home, and changed by nothing but its owner."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tightloop.errors import InvalidRequestError, SettingsError
from tightloop.host.identity import (
    ADOPTED_MOST,
    FILE,
    adopt_host,
    claim_identity,
    home_queue,
    host_identity,
    machine_name,
    read_identity,
)
from tightloop.settings import Settings


def named(host: str) -> Settings:
    return Settings.model_validate({"worker": {"host": host}})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("Adas-MacBook-Pro.local", "adas-macbook-pro"),
        ("worker_7.eu.example", "worker-7"),
        ("é.local", "localhost"),
        ("", "localhost"),
        ("a" * 60, "a" * 40),
    ],
)
def test_machine_name_is_safe_in_the_name_of_a_queue(
    home: Path, name: str, safe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    assert machine_name() == safe
    assert home_queue(Settings()).startswith(f"tightloop-workspace-{safe}-")


def test_two_state_homes_of_one_machine_are_two_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for number in range(20):
        monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / str(number)))
        names.add(host_identity().name)
    assert len(names) == 20


def test_queue_outlives_another_path_a_link_and_another_machine_name(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = home_queue(Settings())
    shutil.copytree(home, tmp_path / "restored")
    home.rename(tmp_path / "larger-disk")
    home.symlink_to(tmp_path / "larger-disk")
    assert home_queue(Settings()) == before
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "restored"))
    monkeypatch.setattr(socket, "gethostname", lambda: "another-container")
    assert home_queue(Settings()) == before


def test_only_its_owner_may_read_it(home: Path) -> None:
    before = os.umask(0)
    try:
        host_identity()
    finally:
        os.umask(before)
    assert ((home / FILE).stat().st_mode & 0o777, home.stat().st_mode & 0o777) == (0o600, 0o700)


def test_processes_that_make_it_at_once_make_one(home: Path) -> None:
    command = [sys.executable, "-c", "from tightloop.host.identity import host_identity; print(host_identity().name)"]
    made = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ.copy()) for _ in range(6)]
    names = {process.communicate(timeout=60)[0] for process in made}
    assert names == {f"{host_identity().name}\n"}
    assert [path.name for path in home.iterdir()] == [FILE]


def test_setting_wins_and_is_kept_for_processes_without_it(home: Path) -> None:
    assert read_identity() is None
    assert read_identity(named("build-1")) == host_identity(named("build-1"))
    assert not home.exists()
    assert claim_identity(named("build-1")).name == "build-1"
    assert host_identity().name == host_identity(Settings()).name == "build-1"
    assert home_queue(named("build-2")) == "tightloop-workspace-build-2"
    assert home_queue(Settings()) == "tightloop-workspace-build-1"


@pytest.mark.parametrize("text", ["", "{}", '{"name": "../other"}', '{"name": "a", "adopted": ["a b"]}', "[]"])
def test_damaged_file_is_refused_and_named(home: Path, text: str) -> None:
    home.mkdir(mode=0o700)
    (home / FILE).write_text(text)
    with pytest.raises(SettingsError, match=r"cannot read .*host\.json: .*\{\"name\": \"NAME\"\}"):
        host_identity()


def test_adopted_hosts_are_kept_once_and_released(home: Path) -> None:
    own = host_identity().name
    assert adopt_host(Settings(), "tightloop-workspace-old-1").names == (own, "old-1")
    assert adopt_host(Settings(), "old-1").names == (own, "old-1")
    assert host_identity().queues(Settings()) == (f"tightloop-workspace-{own}", "tightloop-workspace-old-1")
    assert claim_identity(named("old-1")).names == ("old-1",)
    assert adopt_host(Settings(), "older").names == ("old-1", "older")
    assert adopt_host(Settings(), "older", release=True) == read_identity()
    assert host_identity().adopted == ()


def test_adoption_that_cannot_be_meant_is_refused(home: Path) -> None:
    own = host_identity().name
    with pytest.raises(InvalidRequestError, match="is this host"):
        adopt_host(Settings(), own)
    with pytest.raises(InvalidRequestError, match="is not a valid host name"):
        adopt_host(Settings(), "../x")
    for number in range(ADOPTED_MOST):
        adopt_host(Settings(), f"old-{number}")
    with pytest.raises(InvalidRequestError, match="tightloop host adopt old-0 --release"):
        adopt_host(Settings(), "one-more")
