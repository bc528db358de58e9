"""Projects of `tests/data/proof` on disk."""

import subprocess
import sys
import sysconfig
import venv
from functools import cache
from pathlib import Path
from shutil import copytree, which

from tests.data.proof import NODE, Work
from tests.support.git_sample import make_repository


@cache
def has_node() -> bool:
    """Whether node runs tests and tells of them."""
    if which("node") is None:
        return False
    told = subprocess.run(["node", "--help"], capture_output=True, text=True, check=False)
    return "--test-reporter-destination" in told.stdout


def make_environment(folder: Path) -> Path:
    """Make a `.venv` with pytest, once for many projects: it sees the packages of the tests' own Python."""
    venv.create(folder, symlinks=True, with_pip=False)
    [site] = folder.glob("lib/python3.*/site-packages")
    (site / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    script = folder / "bin" / "pytest"
    # Relative, so that the folder can be copied.
    script.write_text(
        '#!/bin/sh\nexec "$(dirname "$0")/python" -c "import sys, pytest; sys.exit(pytest.main())" "$@"\n'
    )
    script.chmod(0o755)
    return folder


def make_project(folder: Path, work: Work, environment: Path) -> Path:
    """Make the repository that some work is done in."""
    make_repository(folder, work.project())
    if work.environment:
        copytree(environment, folder / ".venv", symlinks=True)
    if work.checker == NODE:
        package = folder / "node_modules" / "same"
        package.mkdir(parents=True)
        (package / "index.js").write_text(
            "module.exports = (a, b) => { if (a !== b) throw new Error(`${a} is not ${b}`); };\n"
        )
    return folder


PYTHON = sys.executable
