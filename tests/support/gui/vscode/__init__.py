"""The real interface of the VS Code family, by code-server, with an agent of ours in its own chat."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from activities.executor.gui import cursor_hook
from activities.executor.gui.drivers.x11 import X11Driver
from activities.executor.gui.port import Window
from tests.support.gui.desktop import empty_desktop
from tests.support.gui.vscode.install import FOLDER, entry
from tests.support.stack.stack import wait_for_port
from worker.server import free_port

TITLE = "demo - Cursor"
SETTINGS = {
    # As Cursor's own on Linux.
    "window.title": "${activeEditorShort}${separator}${rootName}${separator}Cursor",
    "editor.accessibilitySupport": "on",
    "workbench.startupEditor": "none",
    "telemetry.telemetryLevel": "off",
    "security.workspace.trust.enabled": False,
}
KEYS = [{"key": "ctrl+l", "command": "workbench.action.chat.toggle"}]
_TYPES = (
    '<?xml version="1.0" encoding="utf-8"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension=".json" ContentType="application/json"/><Default Extension=".js" '
    'ContentType="application/javascript"/></Types>'
)
_MANIFEST = (
    '<?xml version="1.0" encoding="utf-8"?><PackageManifest Version="2.0.0" '
    'xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011"><Metadata><Identity Language="en-US" Id="standin" '
    'Version="0.0.1" Publisher="tightloop"/><DisplayName>standin</DisplayName><Description>An agent</Description>'
    '</Metadata><Installation><InstallationTarget Id="Microsoft.VisualStudio.Code"/></Installation><Dependencies/>'
    '<Assets><Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" Addressable="true"/>'
    "</Assets></PackageManifest>"
)


def missing() -> str:
    """Return why the editor cannot be started; empty: it can."""
    return "" if entry().exists() else f"no code-server in {FOLDER}: python -m tests.support.gui.vscode.install"


@dataclass
class Editor:
    """What tests need of it."""

    driver: X11Driver
    folder: Path
    """Where hooks, ledger and log are."""
    file: Path
    """The source file of the project."""

    @property
    def taken(self) -> list[str]:
        """What the agent has got."""
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    @property
    def window(self) -> Window:
        return next(window for window in self.driver.windows() if window.title.endswith(TITLE))

    def works_for(self, seconds: float) -> None:
        """Say how long the agent works on each prompt from now on."""
        (self.folder / "work_s").write_text(str(seconds))


@contextmanager
def editor(folder: Path) -> Iterator[Editor]:
    """Start the editor on a project `demo`, in a window of a desktop of its own."""
    home, project, port = folder / "home", folder / "demo", free_port()
    _prepare(folder, home, project)
    command = ("node", str(entry()), "--user-data-dir", str(folder / "data"), "--extensions-dir", str(folder / "ext"))
    environment = {**os.environ, "HOME": str(home), "STANDIN_FOLDER": str(folder)}
    subprocess.run(
        (*command, "--install-extension", str(folder / "standin.vsix")),
        env=environment, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    quiet = ("--auth", "none", "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust")
    proposals = ("--enable-proposed-api", "tightloop.standin")
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            (*command, "--bind-addr", f"127.0.0.1:{port}", *quiet, *proposals, str(project)),
            env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for_port(f"127.0.0.1:{port}")
        with empty_desktop(folder) as (driver, open_address):
            open_address(f"http://127.0.0.1:{port}/?folder={project}")
            made = Editor(driver, folder, project / "main.py")
            _until_ready(made)
            yield made
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(10)


def _prepare(folder: Path, home: Path, project: Path) -> None:
    for each in (home / ".cursor", project, folder / "data" / "User", folder / "ext", folder / "hooks"):
        each.mkdir(parents=True)
    (project / "main.py").write_text("print('mine')\n")
    ours = {"command": f"{sys.executable} -I {cursor_hook.__file__} {folder / 'hooks'}"}
    hooks = {name: [ours] for name in ("beforeSubmitPrompt", "afterAgentResponse", "stop")}
    (home / ".cursor" / "hooks.json").write_text(json.dumps({"version": 1, "hooks": hooks}))
    (folder / "data" / "User" / "settings.json").write_text(json.dumps(SETTINGS))
    (folder / "data" / "User" / "keybindings.json").write_text(json.dumps(KEYS))
    with zipfile.ZipFile(folder / "standin.vsix", "w") as package:
        for name in ("package.json", "extension.js"):
            package.write(Path(__file__).parent / name, f"extension/{name}")
        package.writestr("[Content_Types].xml", _TYPES)
        package.writestr("extension.vsixmanifest", _MANIFEST)


def _until_ready(made: Editor) -> None:
    """Wait for the window, and for the agent: the editor starts its extensions a while later."""
    end = time.monotonic() + 90
    while not (made.folder / "log").exists() or TITLE not in {window.title for window in made.driver.windows()}:
        if time.monotonic() > end:
            pytest.fail(f"the editor did not start: {[window.title for window in made.driver.windows()]}")
        time.sleep(0.2)
