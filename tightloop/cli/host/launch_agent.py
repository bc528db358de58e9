"""launchd agent that starts a worker when the user signs in at the console (macOS).

Sources: launchd.plist(5), launchctl(1), and Apple's Technical Note TN2083 on sessions.
"""

import os
import plistlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import click

from tightloop.cli.host.server_part import Role, environment_of
from tightloop.cli.parameters import DryRun, Option
from tightloop.cli.session import Session, session_of
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.host import home_folder
from tightloop.host.programs import find_trusted_program

PREFIX = "tightloop.worker"
LAUNCHCTL_SECONDS = 30
EXIT_SECONDS = 60
"""Time in seconds that a stopping worker has to hand back its work."""
STILL_ENDING = frozenset({5, 37})
"""Exit codes of `launchctl bootstrap` while the previous instance is still ending."""
NOT_LOADED = frozenset({3, 36, 113})
"""Exit codes of `launchctl bootout`, depending on the macOS version, if no agent has this name or it is just ending."""
RoleAtTheScreen = Annotated[Role, Option(help="Type of work that the worker does.")]


def install(context: click.Context, role: RoleAtTheScreen = Role.GUI, dry_run: DryRun = False) -> None:
    path, content = agent_file(role), property_list(session_of(context), role)
    if dry_run:
        click.echo(f"{path}:\n{content.decode()}\nlaunchctl bootstrap {_domain()} {path}")
        return
    _check_screen()
    try:
        log_file(role).parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        # launchd does not rotate the log and keeps it open, so it is truncated here.
        log_file(role).write_bytes(b"")
        path.write_bytes(content)
    except OSError as error:
        raise SettingsError(f"cannot write {error.filename}: {error.strerror}. Make the file writable") from None
    # launchd keeps the old property list of a loaded agent until it is booted out.
    _end(role)
    _load(path)
    click.echo(f"{PREFIX}.{role.value} is running and will start after each sign-in. Log: {log_file(role)}")
    click.echo(
        "In System Settings, allow the worker's Python interpreter under Privacy & Security > Accessibility. To see "
        "which permissions are still missing, run: tightloop doctor"
    )
    click.echo(f"Python interpreter: {sys.executable}")


def uninstall(_context: click.Context, role: RoleAtTheScreen = Role.GUI, dry_run: DryRun = False) -> None:
    path = agent_file(role)
    if dry_run:
        click.echo(f"launchctl bootout {_domain()}/{PREFIX}.{role.value}\nrm {path}")
        return
    if not path.exists():
        raise SettingsError(f"{path} does not exist, so nothing was removed. Use --role to specify another role")
    _check_screen()
    _end(role)
    # Last, so that a second try after a failure of launchctl still finds the file.
    path.unlink()
    click.echo(f"{PREFIX}.{role.value} has stopped and will not start again. Log: {log_file(role)}")


def agent_file(role: Role) -> Path:
    """Return the path of the launchd property list for a worker."""
    return home_folder() / "Library" / "LaunchAgents" / f"{PREFIX}.{role.value}.plist"


def log_file(role: Role) -> Path:
    """Return the path of the worker's log file."""
    return home_folder() / "Library" / "Logs" / "tightloop" / f"{role.value}.log"


def property_list(session: Session, role: Role) -> bytes:
    """Return the launchd property list of a worker as XML. See launchd.plist(5)."""
    settings = [] if session.settings_file is None else ["--settings", str(session.settings_file.absolute())]
    log, environment = str(log_file(role)), environment_of(session)
    # No keys, because the file is not private; the settings and the key file contain them.
    passed = (
        "PATH", "TIGHTLOOP_HOME", "TIGHTLOOP_TEMPORAL__ADDRESS", "TIGHTLOOP_TEMPORAL__NAMESPACE",
        "TEMPORAL_CONFIG_FILE", "TEMPORAL_PROFILE", "TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE",
    )  # fmt: skip
    return plistlib.dumps(
        {
            "Label": f"{PREFIX}.{role.value}",
            "ProgramArguments": [
                # -P: modules in the working folder must not replace ours.
                sys.executable, "-P", "-m", "tightloop.cli.main", *settings, "worker", "run", "--role", role.value,
            ],
            "EnvironmentVariables": {
                **{name: environment[name] for name in passed if name in environment},
                # Otherwise `pbcopy` treats text as ASCII.
                "LC_CTYPE": "UTF-8",
            },
            # The session at the screen: those of ssh or daemons have no windows.
            "LimitLoadToSessionType": "Aqua",
            "ProcessType": "Interactive",
            "RunAtLoad": True,
            "KeepAlive": True,
            "ThrottleInterval": 10,
            "ExitTimeOut": EXIT_SECONDS,
            "WorkingDirectory": str(home_folder()),
            "StandardOutPath": log,
            "StandardErrorPath": log,
        },
        sort_keys=False,
    )  # fmt: skip


def _domain() -> str:
    return f"gui/{os.getuid()}"


def _check_screen() -> None:
    """Check that this user is logged in to a graphical session.

    Raises:
        ServiceUnavailableError: this is not macOS, or the user is not logged in.
    """
    if os.uname().sysname != "Darwin":
        raise ServiceUnavailableError(
            "launchd is only available on macOS. On this system, run the worker in the desktop session: tightloop "
            "worker run --role gui. Use --dry-run to see what would be written"
        )
    if _run("print", _domain()).returncode != 0:
        raise ServiceUnavailableError(
            f"user {os.getuid()} is not signed in to the desktop, so there are no windows. Sign in and try again"
        )


def _end(role: Role) -> None:
    result = _run("bootout", f"{_domain()}/{PREFIX}.{role.value}")
    if result.returncode not in (0, *NOT_LOADED):
        raise ServiceUnavailableError(f"launchctl bootout failed: {_last_line(result)}")


def _load(path: Path) -> None:
    """Start the agent after any previous instance has ended.

    Raises:
        ServiceUnavailableError: launchd rejects the agent.
    """
    end = time.monotonic() + EXIT_SECONDS
    while (result := _run("bootstrap", _domain(), str(path))).returncode != 0:
        if result.returncode not in STILL_ENDING or time.monotonic() > end:
            raise ServiceUnavailableError(f"launchctl bootstrap failed: {_last_line(result)}")
        time.sleep(1)


def _last_line(result: subprocess.CompletedProcess[str]) -> str:
    return (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = find_trusted_program("launchctl")
    if program is None:
        raise ServiceUnavailableError("launchctl was not found. On macOS, it is in /bin")
    try:
        command = program.command(*arguments)
        return subprocess.run(command, capture_output=True, text=True, timeout=LAUNCHCTL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceUnavailableError(f"launchctl did not respond: {error}") from None
