"""The sandbox: what walls add to the start of one short command, against the same command without any."""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from activities.process import Reason, run_process, search_path
from activities.sandbox.bubblewrap import BubblewrapSandbox
from activities.sandbox.choose import UnsafeLocal
from activities.sandbox.docker import DockerSandbox
from activities.sandbox.port import Enforcement, Limit, Sandbox, SandboxSpec
from activities.sandbox.seatbelt import SeatbeltSandbox
from tests.benchmarks.figures import Report, Spread, progress
from tests.support.processes import request_for

ROUNDS = 25
COMMAND = ("python3", "-c", "pass")


async def measure() -> Report:
    """Measure every backend that works here, in turns, so that a busy moment meets all of them."""
    return await asyncio.to_thread(_measure)


def _measure() -> Report:
    report = Report(f"Sandbox: start to end of `{' '.join(COMMAND)}`", ("way", "ms", "times plain", "held hard", "aim"))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        ways: dict[str, Callable[[], None]] = {"plain": lambda: _plain(root)}
        held: dict[str, str] = {"plain": ""}
        for sandbox in _backends():
            if problem := sandbox.probe():
                report.notes.append(f"{sandbox.name} not measured: {problem[:100]}")
                continue
            ways[sandbox.name] = lambda sandbox=sandbox: _run(sandbox, root)  # type: ignore[misc]
            held[sandbox.name] = _held(sandbox, root)
        took = _in_turns(ways)
    for name, samples in took.items():
        ratio = Spread.of_ratios(samples, took["plain"])
        aim = "below 2" if name == "bubblewrap" else ""
        report.add(name, Spread.of(sample * 1e3 for sample in samples), ratio, held[name], aim=aim)
    report.notes.append(f"{ROUNDS} rounds; plain: the same process supervision without walls")
    return report


def _backends() -> tuple[Sandbox, ...]:
    image = os.environ.get("TIGHTLOOP_TEST_IMAGE", "")
    return UnsafeLocal(), BubblewrapSandbox(), SeatbeltSandbox(), DockerSandbox(image)


def _in_turns(ways: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(ROUNDS + 1):
        if round_number % 5 == 0:
            progress(f"round {round_number} of {ROUNDS}")
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            # The first round reads the programs from disk.
            if round_number:
                took[name].append(time.perf_counter() - begun)
    return took


def _plain(root: Path) -> None:
    request = request_for(COMMAND, cwd=root, environment=search_path(root))
    result = run_process(request, cancelled=lambda: False, started=lambda _pid: None)
    assert result.exit_code == 0, result


def _run(sandbox: Sandbox, root: Path) -> None:
    result = sandbox.run(SandboxSpec(argv=COMMAND, root=root), cancelled=lambda: False, started=lambda _pid: None)
    assert (result.reason, result.exit_code) == (Reason.EXITED, 0), result


def _held(sandbox: Sandbox, root: Path) -> str:
    """Return how many of the limits the kernel keeps."""
    spec = SandboxSpec(argv=COMMAND, root=root)
    limits = sandbox.run(spec, cancelled=lambda: False, started=lambda _pid: None).limits
    return f"{sum(held is Enforcement.HARD for held in limits.values())} of {len(Limit)}"
