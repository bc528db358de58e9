"""Run the benchmarks: `python -m tests.benchmarks [name ...] [--json FILE]`. Figures, never a pass or a fail."""

import argparse
import asyncio
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = (
    "engine",
    "tracker",
    "prompts",
    "long",
    "idle",
    "busy",
    "scale",
    "sandbox",
    "scheduler",
    "plan",
    "proof",
    "gate",
    "watchers",
    "events",
    "ledger",
    "pages",
    "gui",
    "copies",
    "memory",
    "imports",
)
LIMIT_S = 300
"""For one benchmark, unless it says otherwise: a workflow whose code is edited meanwhile fails its tasks for ever."""


def main() -> int:
    """Run one benchmark here, or several each in a process of its own, so that none warms up the next."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=(*NAMES, "all"), default="all", metavar="name", help=f"of {', '.join(NAMES)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    chosen = parser.parse_args()
    names = NAMES if "all" in chosen.names else tuple(dict.fromkeys(chosen.names))
    if len(names) == 1:
        found = {names[0]: _here(names[0])}
        code = 0
    else:
        found, code = _apart(names)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")
    return code


def _here(name: str) -> dict[str, Any]:
    for variable in list(os.environ):
        if variable.startswith(("TIGHTLOOP_", "OPENAI_")) and not variable.startswith("TIGHTLOOP_TEST_"):
            del os.environ[variable]
    begun, load = time.perf_counter(), os.getloadavg()[0]
    module = importlib.import_module(f"tests.benchmarks.{name}")
    report = asyncio.run(asyncio.wait_for(module.measure(), getattr(module, "LIMIT_S", LIMIT_S)))
    took, after = time.perf_counter() - begun, os.getloadavg()[0]
    report.notes.append(f"took {took:.0f} s; load {load:.1f} before, {after:.1f} after, {os.cpu_count()} cores")
    print(report.text(), flush=True)
    return {**report.figures, "load": [load, after], "seconds": took}


def _apart(names: tuple[str, ...]) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    code = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            file = Path(folder) / f"{name}.json"
            done = subprocess.run((sys.executable, "-m", "tests.benchmarks", name, "--json", str(file)))
            code = code or done.returncode
            if file.exists():
                found |= json.loads(file.read_text())
    return found, code


if __name__ == "__main__":
    sys.exit(main())
