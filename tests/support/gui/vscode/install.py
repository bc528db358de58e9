"""Builds code-server, which npm alone cannot where GitHub is not reached: python -m tests.support.gui.vscode.install

Takes a minute, 330 MB, and needs node 20, a C++ compiler, ripgrep and the headers of Kerberos (libkrb5-dev).
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

VERSION = "4.100.3"
"""The newest for node 20: VS Code 1.100.3."""
FOLDER = Path(__file__).resolve().parents[4] / ".agents" / "vscode"
NATIVE = ("@vscode/spdlog", "node-pty", "native-watchdog", "@parcel/watcher", "@vscode/deviceid", "kerberos")
QUIET = ("--no-audit", "--no-fund", "--loglevel=error")
STEP_TIMEOUT_S = 600


def entry(folder: Path = FOLDER) -> Path:
    """Return the program of code-server."""
    return folder / "node_modules" / "code-server" / "out" / "node" / "entry.js"


def install(folder: Path) -> None:
    """Build it; what is there already is built again."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true}\n')
    _run(folder, "npm", "install", f"code-server@{VERSION}", "--ignore-scripts", *QUIET)
    code = folder / "node_modules" / "code-server" / "lib" / "vscode"
    for place in (code, code / "extensions"):
        _run(place, "npm", "install", "--omit=dev", "--ignore-scripts", *QUIET)
    ripgrep = shutil.which("rg")
    if ripgrep is None:
        raise SystemExit("ripgrep is missing (apt install ripgrep)")
    # Its own package downloads one from GitHub.
    target = code / "node_modules" / "@vscode" / "ripgrep" / "bin" / "rg"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(ripgrep, target)
    # It ends with an error of one package that only Windows needs; whether the rest is there shows below.
    _run(code, "npm", "rebuild", *NATIVE, *QUIET, check=False)
    link = code / "node_modules.asar"
    if not link.exists():
        link.symlink_to("node_modules")
    build = ("npx", "--no-install", "node-pre-gyp", "install", "--build-from-source")
    _run(folder / "node_modules" / "argon2", *build)
    _run(folder, "node", str(entry(folder)), "--version")
    print(f"code-server {VERSION} is in {folder}")


def _run(folder: Path, *command: str, check: bool = True) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False)
    if check and done.returncode != 0:
        raise SystemExit(f"{' '.join(command[:3])} failed: {_last((done.stdout + done.stderr).splitlines())}")


def _last(lines: Sequence[str]) -> str:
    return next((line for line in reversed(lines) if line.strip()), "no output")


if __name__ == "__main__":
    install(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
