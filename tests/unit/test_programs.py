"""Programs that run outside of a sandbox: which are found, and which are refused."""

import os
from pathlib import Path

import pytest

from tightloop.errors import UntrustedProgramError
from tightloop.host import private_folder, state_folder, state_home
from tightloop.host.programs import (
    TrustedProgram,
    find_trusted_program,
    own_environment,
    own_python,
    trusted_path,
)


def plant(folder: Path, name: str = "tool") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A folder of programs that no project can write."""
    plant(tmp_path / "system")
    return tmp_path / "system"


def use_path(monkeypatch: pytest.MonkeyPatch, *folders: Path | str) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))


def test_a_name_is_no_trusted_program() -> None:
    with pytest.raises(ValueError, match="must be absolute, got 'git'"):
        TrustedProgram("git", Path("git"))


def test_relative_folders_of_path_are_never_looked_in(
    tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path / "here")
    plant(tmp_path / "here" / "bin")
    monkeypatch.chdir(tmp_path / "here")
    use_path(monkeypatch, "", ".", "bin", system)
    assert find_trusted_program("tool") == TrustedProgram("tool", system / "tool")
    assert find_trusted_program("./tool") is None
    assert trusted_path() == str(system)
    use_path(monkeypatch, "", ".")
    assert find_trusted_program("tool") is None
    assert "." not in trusted_path().split(os.pathsep)


def test_a_workspace_of_this_host_and_the_state_home_are_never_looked_in(
    tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, home = tmp_path / "project", private_folder(state_home() / "homes")
    private_folder(state_folder(workspace))
    plant(workspace / ".venv" / "bin")
    plant(home)
    (tmp_path / "link").symlink_to(workspace / ".venv")
    use_path(monkeypatch, workspace / ".venv" / "bin", tmp_path / "link" / "bin", home, system)
    assert find_trusted_program("tool") == TrustedProgram("tool", system / "tool")
    assert trusted_path() == str(system)


def test_what_was_found_stays_whatever_is_planted_before_it(
    tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    use_path(monkeypatch, first, system)
    assert str(find_trusted_program("tool")) == str(system / "tool")
    plant(first)
    assert str(find_trusted_program("tool")) == str(system / "tool")
    assert find_trusted_program("late") is None
    plant(system, "late")
    assert str(find_trusted_program("late")) == str(system / "late")
    (system / "tool").unlink()
    assert str(find_trusted_program("tool")) == str(first / "tool")


@pytest.mark.parametrize("through", ["itself", "link", "link in the middle", "link to its folder", "link beside"])
def test_a_program_that_the_run_can_write_is_refused_with_both_paths(
    tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    workspace, shown = tmp_path / "project", tmp_path / "shown"
    planted = plant(workspace / "bin")
    shown.mkdir()
    if through == "itself":
        use_path(monkeypatch, workspace / "bin")
    elif through == "link":
        (shown / "tool").symlink_to(planted)
        use_path(monkeypatch, shown)
    elif through == "link in the middle":
        # It ends outside today: whoever writes the workspace decides where it ends tomorrow.
        planted.unlink()
        planted.symlink_to(system / "tool")
        (shown / "tool").symlink_to(planted)
        use_path(monkeypatch, shown)
    elif through == "link to its folder":
        (tmp_path / "bin").symlink_to(workspace / "bin")
        use_path(monkeypatch, tmp_path / "bin")
    else:
        (shown / "tool").symlink_to("../project/bin/../bin/tool")
        use_path(monkeypatch, shown)
    program = find_trusted_program("tool")
    assert program is not None
    with pytest.raises(UntrustedProgramError) as refused:
        program.refuse_within((workspace,))
    assert str(program.path) in refused.value.message
    assert str(workspace) in refused.value.message
    assert not refused.value.retryable
    # Another project that nobody works in does not matter, until somebody does.
    program.refuse_within((tmp_path / "other",))
    private_folder(state_folder(workspace))
    with pytest.raises(UntrustedProgramError):
        program.refuse_within((tmp_path / "other",))


def test_our_own_python_is_refused_for_the_workspace_that_it_runs_from() -> None:
    python = own_python()
    python.refuse_within((Path("/nowhere"),))
    for place in python.installed:
        with pytest.raises(UntrustedProgramError, match="Install tightloop outside that folder"):
            python.refuse_within((place.parent,))


def test_a_run_in_the_root_folder_works_for_no_project(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_path(monkeypatch, system)
    program = find_trusted_program("tool")
    assert program is not None
    program.refuse_within((Path("/"),))
    assert trusted_path(Path("/")) == str(system)


def test_our_own_processes_load_nothing_from_the_current_folder() -> None:
    given = {"PATH": ":/usr/bin:.", "PYTHONPATH": "src", "LD_LIBRARY_PATH": "/opt/lib:", "HOME": "relative"}
    assert own_environment(given) == {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib", "HOME": "relative"}
