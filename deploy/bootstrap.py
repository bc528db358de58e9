"""Creates the virtual environment of a checkout with a plain Python.

Used by `make`; runs again only after `pyproject.toml` or `constraints.txt` has changed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv"
STAMP = FOLDER / "installed"
EXTRAS = ".[server-libraries,dev-server,dev]"
INSTALL_SECONDS = 1_800


def main() -> int:
    """Install missing packages, or print the obstacle. Returns the exit code."""
    if "--lock" in sys.argv:
        return lock()
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return 0
    problem = obstacle()
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    print("Setting up .venv (once, needs the package index) ...", flush=True)
    if not pip_of(FOLDER).exists():
        venv.create(FOLDER, with_pip=True, clear=FOLDER.exists())
    code = pip(FOLDER, "install", "--quiet", "--constraint", "constraints.txt", "--editable", EXTRAS)
    if code == 0:
        # Only after success, so that a failed installation is tried again.
        STAMP.write_text(wanted)
    else:
        print("error: the packages could not be installed; the lines above say why", file=sys.stderr)
    return code


def lock() -> int:
    """Resolve all dependencies in a fresh environment and write `constraints.txt`."""
    fresh = ROOT / ".venv-lock"
    venv.create(fresh, with_pip=True, clear=True)
    code = pip(fresh, "install", "--quiet", EXTRAS)
    if code == 0:
        command = [str(pip_of(fresh)), "freeze", "--exclude", "tightloop"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
        header = "# Versions that `make` installs. Refresh with: make lock\n"
        (ROOT / "constraints.txt").write_text(header + done.stdout)
    shutil.rmtree(fresh)
    return code


def obstacle() -> str:
    """Return the reason why this machine cannot be set up; empty if it can."""
    if sys.version_info < (3, 11):
        return f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}. Name another: make PYTHON=python3.12"
    if shutil.which("git") is None:
        return "git is missing. Install it: apt-get install git (Debian), xcode-select --install (macOS)"
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        return "this Python cannot make virtual environments. Install it: apt-get install python3-venv"
    return ""


def fingerprint() -> str:
    """Return a digest of everything that determines the installed packages."""
    digest = hashlib.sha256(f"{sys.version} {ROOT} {EXTRAS}".encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def pip_of(folder: Path) -> Path:
    return folder / "bin" / "pip"


def pip(folder: Path, *arguments: str) -> int:
    """Run pip non-interactively and return its exit code."""
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    command = [str(pip_of(folder)), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=INSTALL_SECONDS, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
