"""Test runners of other languages: where they are, and how some of them get here.

python -m tests.support.runners
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.proof import Work

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("TIGHTLOOP_TEST_RUNNERS") or REPOSITORY / ".runners")
"""Read at import: a fixture takes all variables of ours away from the tests."""
PYTHON_PACKAGES = ("tox==4.67.15", "nox==2026.10.20", "pytest==9.0.2")
NODE_PACKAGES = {"vitest": "4.1.12"}
VITEST, TOX, NOX, CARGO, CTEST, MAVEN = "vitest", "tox", "nox", "cargo", "ctest", "maven"
_DATA = json.loads((Path(__file__).parents[1] / "data" / "proof" / "runners.json").read_text())


def read_works(*, honest: bool) -> list[Work]:
    """Return the cases of `tests/data/proof/runners.json`."""
    works = []
    for case in _DATA["cases"]:
        if case["honest"] is honest:
            base, write = (
                {path: _with_python(text) for path, text in files.items()}
                for files in (_DATA["projects"][case["project"]], case["write"])
            )
            run = ("sh", "-c", _with_python(case["run"])) if "run" in case else ()
            works.append(
                Work(
                    case["name"], case["runner"], write=write, delete=tuple(case.get("delete", ())), run=run,
                    goal=case["goal"], done=case["done"], base=base,
                )
            )  # fmt: skip
    return works


def _with_python(text: str) -> str:
    return text.replace("{PYTHON}", sys.executable)


def folders_of(runner: str) -> list[Path]:
    """Return the folders outside of the system that a runner needs, those with programs first.

    Skips the test if the runner is not installed.
    """
    if runner in (TOX, NOX):
        folders = [(FOLDER / "py").resolve() / "bin", (FOLDER / "py").resolve()]
    elif runner == VITEST:
        folders = [(FOLDER / "node_modules").resolve() / ".bin", (FOLDER / "node_modules").resolve()]
    else:
        program = _cargo() if runner == CARGO else shutil.which({MAVEN: "mvn"}.get(runner, runner))
        folders = [Path(program).parent, Path(program).parent.parent] if program else [Path("/nowhere")]
    if not (folders[0] / {MAVEN: "mvn"}.get(runner, runner)).exists():
        pytest.skip(f"{runner} is not installed")
    return folders


def _cargo() -> str | None:
    # The program of rustup only starts another one, which is below a home that the sandbox does not show.
    if rustup := shutil.which("rustup"):
        found = subprocess.run([rustup, "which", "cargo"], capture_output=True, text=True, check=False)
        return found.stdout.strip() or None
    return shutil.which("cargo")


def link_modules(project: Path) -> None:
    """Give a project the packages of Node that its runner needs."""
    modules = project / "node_modules"
    modules.mkdir()
    for package in (FOLDER / "node_modules").resolve().iterdir():
        (modules / package.name).symlink_to(package)


def install() -> None:
    """Install the runners that pip and npm have, where they are absent."""
    if all(
        (FOLDER / path).exists() for path in ("py/bin/tox", "py/bin/nox", "py/bin/pytest", "node_modules/.bin/vitest")
    ):
        return
    FOLDER.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", str(FOLDER / "py")], check=True)
    subprocess.run([str(FOLDER / "py" / "bin" / "pip"), "install", "-q", *PYTHON_PACKAGES], check=True, timeout=300)
    (FOLDER / "package.json").write_text(json.dumps({"private": True, "dependencies": NODE_PACKAGES}))
    argv = ["npm", "install", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error", "--fetch-retries=1"]
    subprocess.run(argv, cwd=FOLDER, check=True, timeout=300)


if __name__ == "__main__":
    try:
        install()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"runners: their tests are left out: {error}", file=sys.stderr)
        sys.exit(1)
