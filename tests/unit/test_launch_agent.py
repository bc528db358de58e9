"""The agent of launchd: what is written, and which commands are run, against a recorded `launchctl`."""

import os
import plistlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from tightloop.cli.host import launch_agent
from tightloop.cli.main import app

# All of launchd.plist(5) that is used, with the type of its value.
KEYS = {
    "Label": str,
    "ProgramArguments": list,
    "EnvironmentVariables": dict,
    "LimitLoadToSessionType": str,
    "ProcessType": str,
    "RunAtLoad": bool,
    "KeepAlive": bool,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "WorkingDirectory": str,
    "StandardOutPath": str,
    "StandardErrorPath": str,
}
Run = Callable[..., Result]


class Launchctl:
    """A program of this name in front of the path; it answers as recorded and notes what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.calls_file, self._codes, self.folder = folder / "calls", folder / "codes", folder
        self._codes.mkdir()
        program = folder / "launchctl"
        program.write_text(
            f"""#!/bin/sh
echo "$@" >> {self.calls_file}
next=$(ls {self._codes} | grep "^$1-" | head -1)
[ -n "$next" ] || exit 0
code=$(cat {self._codes}/$next); rm {self._codes}/$next
echo "Boot-out failed: $code: as recorded" >&2
exit $code
"""
        )
        program.chmod(0o755)

    def answers(self, command: str, *codes: int) -> None:
        for number, code in enumerate(codes):
            (self._codes / f"{command}-{number}").write_text(str(code))

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def launchctl(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Launchctl:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(launch_agent.os, "uname", lambda: SimpleNamespace(sysname="Darwin"))
    return Launchctl(folder)


@pytest.fixture
def run() -> Run:
    return lambda *arguments: CliRunner().invoke(app, ["worker", *arguments])


def plist_of(home: Path) -> Path:
    return home / "Library" / "LaunchAgents" / "tightloop.worker.gui.plist"


def test_agent_is_written_and_started_in_the_session_at_the_screen(
    home: Path, launchctl: Launchctl, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("TIGHTLOOP_TOKEN", "secret")
    launchctl.answers("bootout", 113)
    done = run("install")
    assert done.exit_code == 0, done.output
    written = plistlib.loads(plist_of(home).read_bytes())
    assert {name: type(value) for name, value in written.items()} == KEYS
    assert written["ProgramArguments"] == [
        sys.executable, "-P", "-m", "tightloop.cli.main", "worker", "run", "--role", "gui",
    ]  # fmt: skip
    assert written["LimitLoadToSessionType"] == "Aqua"
    assert written["EnvironmentVariables"]["LC_CTYPE"] == "UTF-8"
    assert b"secret" not in plist_of(home).read_bytes()
    assert Path(written["StandardErrorPath"]).read_bytes() == b""
    domain = f"gui/{os.getuid()}"
    assert launchctl.calls == [
        f"print {domain}",
        f"bootout {domain}/tightloop.worker.gui",
        f"bootstrap {domain} {plist_of(home)}",
    ]
    assert "Accessibility" in done.output


def test_one_that_is_still_ending_is_waited_for(
    launchctl: Launchctl, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_agent.time, "sleep", lambda _seconds: None)
    launchctl.answers("bootstrap", 37, 5)
    assert run("install").exit_code == 0
    assert [call.split()[0] for call in launchctl.calls].count("bootstrap") == 3


def test_what_launchd_does_not_take_is_told_in_its_own_words(launchctl: Launchctl, run: Run) -> None:
    launchctl.answers("bootstrap", 78)
    done = run("install")
    assert (done.exit_code, "bootstrap failed: Boot-out failed: 78: as recorded" in done.output) == (1, True)


def test_nobody_at_the_screen_is_refused_before_anything_is_written(home: Path, launchctl: Launchctl, run: Run) -> None:
    launchctl.answers("print", 113)
    done = run("install")
    assert (done.exit_code, "is not signed in to the desktop" in done.output) == (1, True)
    assert not plist_of(home).exists()


def test_another_system_is_refused_and_can_look(home: Path, run: Run) -> None:
    done, shown = run("install"), run("install", "--dry-run")
    assert (done.exit_code, "launchd is only available on macOS" in done.output) == (1, True)
    assert (shown.exit_code, "<key>LimitLoadToSessionType</key>" in shown.output) == (0, True)
    assert not (home / "Library").exists()


def test_agent_is_taken_out_again_once(home: Path, launchctl: Launchctl, run: Run) -> None:
    run("install")
    assert run("uninstall").exit_code == 0
    assert not plist_of(home).exists()
    assert launchctl.calls[-1] == f"bootout gui/{os.getuid()}/tightloop.worker.gui"
    again = run("uninstall")
    assert (again.exit_code, "nothing was removed" in again.output) == (2, True)
