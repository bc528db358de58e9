"""Code behind the fence of an agent, as this user or as another one.

Run as a program it is the worker of another user: it takes an order as JSON and prints what the code printed.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from activities.process import run_process
from activities.sandbox.bubblewrap import BubblewrapAgentSandbox, BubblewrapSandbox
from tests.support.processes import request_for
from tests.support.sandboxes import REPOSITORY, give

NOBODY = 65_534


def fenced(
    root: Path,
    code: str,
    *,
    network: tuple[str, ...] = (),
    user: int = 0,
    wall_s: float = 60.0,
    nested: bool = False,
) -> str:
    """Run Python code behind a fence and return what it printed; skip the test where there is no fence."""
    if problem := BubblewrapSandbox().probe():
        pytest.skip(problem)
    order = {"root": str(root), "code": code, "network": network, "wall_s": wall_s, "nested": nested}
    if not user or os.geteuid() == user:
        return run(order)
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root with setpriv of util-linux can be another user")
    give(root, user)
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    done = subprocess.run(
        ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "/usr/bin/python3", "-m", __name__),
        cwd="/", input=json.dumps(order), capture_output=True, text=True, timeout=120,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{REPOSITORY}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    if done.returncode != 0 and "Error" in done.stderr:
        pytest.skip(f"another user cannot run the worker's code here: {done.stderr[-300:]}")
    return done.stdout


def run(order: dict[str, Any]) -> str:
    """Run an order and return both streams."""
    root = Path(order["root"])
    request = request_for(
        ("python3", "-c", order["code"]),
        cwd=root,
        environment={"HOME": str(root)},
        wall_limit_s=order["wall_s"],
        inherit=False,
    )
    fence = BubblewrapAgentSandbox(tuple(order["network"]))
    with fence.wrap(request, writable=(root,), nested=order["nested"]) as around:
        return run_process(around, cancelled=lambda: False, started=lambda _pid: None).output.decode()


if __name__ == "__main__":
    print(run(json.loads(sys.stdin.read())), end="")
