"""Where this host keeps things, which settings files count, and what it is called."""

import os
import re
import stat
import sys
from pathlib import Path

import pytest

from tightloop.errors import SettingsError
from tightloop.host import (
    load_settings,
    open_state_home,
    private_folder,
    settings_files,
    state_folder,
    state_home,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host of its own: an empty home, no variables, and a project to stand in."""
    for variable in ("TIGHTLOOP_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    project = tmp_path / "project" / "deep"
    project.mkdir(parents=True)
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_state_lies_where_the_platform_keeps_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert state_home() == home / ".local/state/tightloop"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert state_home() == home / "Library/Application Support/tightloop"


def test_state_folder_can_be_chosen(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "xdg"))
    assert state_home() == home / "xdg/tightloop"
    monkeypatch.setenv("TIGHTLOOP_HOME", "~/mine")
    assert state_home() == home / "mine"


def test_relative_xdg_folder_is_ignored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_home() == home / ".local/state/tightloop"


def test_project_file_is_found_from_below_and_wins_over_the_users(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    user = write(home / "config/tightloop/settings.yaml", "budget: {max_iterations: 9, warn_at_iteration: 7}")
    far = write(home / "tightloop.yaml", "budget: {max_iterations: 5}")
    near = write(home / "project/tightloop.yaml", "budget: {max_iterations: 3}")
    assert settings_files(Path.cwd()) == [user, near]
    assert settings_files(home) == [user, far]
    settings = load_settings()
    assert (settings.budget.max_iterations, settings.budget.warn_at_iteration) == (3, 7)


def test_environment_wins_over_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "project/tightloop.yaml", "budget: {max_iterations: 3}")
    monkeypatch.setenv("TIGHTLOOP_BUDGET__MAX_ITERATIONS", "4")
    assert load_settings().budget.max_iterations == 4


def test_explicit_file_is_the_only_one_read(home: Path) -> None:
    write(home / "project/tightloop.yaml", "budget: {max_iterations: 3}")
    explicit = write(home / "other.yaml", "planner: {kind: heuristic}")
    settings = load_settings(explicit)
    assert (settings.planner.kind, settings.budget.max_iterations) == ("heuristic", 15)


def test_project_file_may_not_decide_what_runs_or_where_keys_go(home: Path) -> None:
    write(home / "project/tightloop.yaml", "planner: {base_url: 'http://elsewhere'}\nexecutor: {argv: [sh]}")
    with pytest.raises(SettingsError, match=r"sets executor, planner, but a project file may only set budget"):
        load_settings()


def test_mistake_names_the_file(home: Path) -> None:
    path = write(home / "project/tightloop.yaml", "planer: {}")
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert refused.value.message == f"{path}: unknown setting 'planer' (planer). Did you mean planner?"


def test_file_that_cannot_be_read_is_named(home: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml cannot be read: No such file"):
        load_settings(home / "nowhere.yaml")
    broken = home / "broken.yaml"
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"broken\.yaml is not UTF-8 text"):
        load_settings(broken)


def test_state_folder_is_named_after_the_real_path(tmp_path, monkeypatch):
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    project, link = tmp_path / "my project", tmp_path / "link"
    project.mkdir()
    link.symlink_to(project)
    found = state_folder(project)
    assert state_folder(link) == found
    assert found.parent == tmp_path / "home" / "projects"
    assert re.fullmatch(r"my-project-[0-9a-f]{16}", found.name)
    assert state_folder(tmp_path / "other" / "my project") != found


def test_a_state_home_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        home = open_state_home(tmp_path / "new" / "home")
        deep = private_folder(home / "projects" / "one" / "locks")
    finally:
        os.umask(old)
    for folder in (home.parent, home, deep.parent.parent, deep.parent, deep):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_a_state_home_that_others_could_read_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    open_state_home(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_state_home_that_others_may_write_is_refused_with_the_command_that_closes_it(
    tmp_path: Path, mode: int
) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(SettingsError, match=f"other users can write .* chmod 700 {tmp_path}"):
        open_state_home(tmp_path)


def test_a_state_home_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    (tmp_path / "home").mkdir(mode=0o700)
    os.chown(tmp_path / "home", 12345, 12345)
    (tmp_path / "link").symlink_to("home")
    for home in (tmp_path / "home", tmp_path / "link"):
        with pytest.raises(SettingsError, match=r"belongs to another user \(uid 12345\).*export TIGHTLOOP_HOME="):
            open_state_home(home)


def test_a_state_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(SettingsError, match="cannot be used"):
        open_state_home(tmp_path / "home")


def test_a_workspace_whose_links_lead_in_a_circle_has_a_state_folder(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    assert state_folder(tmp_path / "circle").parent == state_home() / "projects"
