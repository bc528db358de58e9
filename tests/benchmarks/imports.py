"""Cost of importing the client compared with `temporalio.client`: processor time and memory."""

import os
import subprocess
import sys

from tests.benchmarks.figures import Report, Spread

ROUNDS = 9
BELOW, ABOVE = "temporalio.client", "tightloop.client"
# The peak is the memory in force here: an import frees next to nothing, and `ru_maxrss` starts at the parent's.
_PROGRAM = """
import importlib, resource, sys
importlib.import_module(sys.argv[1])
used = resource.getrusage(resource.RUSAGE_SELF)
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(used.ru_utime + used.ru_stime, int(peak) / 1024)
"""


def _import(module: str) -> tuple[float, float]:
    """Return the processor seconds and the megabytes of a fresh process that imports a module."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = (sys.executable, "-c", _PROGRAM, module)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


async def measure() -> Report:
    """Import both in turns, each in processes of its own; the first of each only writes bytecode."""
    report = Report(f"import of the client, {ROUNDS} processes each in turns", ("", "measured", "aim"))
    rounds = [(_import(BELOW), _import(ABOVE)) for _ in range(ROUNDS + 1)][1:]
    below, above = zip(*rounds, strict=True)
    ratios = Spread.of_ratios([seconds for seconds, _ in above], [seconds for seconds, _ in below])
    report.add(f"processor time / that of {BELOW}", ratios, aim="at most 1.5")
    report.add("memory, MB", Spread.of(megabytes for _, megabytes in above), aim="at most 50")
    report.add(f"memory of {BELOW}, MB", Spread.of(megabytes for _, megabytes in below))
    return report
