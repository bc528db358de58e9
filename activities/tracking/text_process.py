"""Starts, bounds and ends the process that compares two big texts.

The libraries hold the GIL while they compare, so in the worker neither a timer nor another thread (a heartbeat) would
run meanwhile. A process of its own starts in about 20 ms, and big texts are rare: none is kept.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import IO

from activities.tracking.delta import encoded
from activities.tracking.text_steps import Compared

SEARCH_SHARE = 0.5
"""Part of the bound that diff-match-patch may search; reading, splitting and measuring take time, too."""

ALARM_AFTER = 1.0
"""Seconds after its bound at which a process ends itself, should its worker be gone."""

_COMMAND = (sys.executable, "-P", "-S", "-m", "activities.tracking.text_child")


def compare_apart(old: str, new: str, bound: timedelta) -> Compared | None:
    """Return what a process of its own found within `bound` (wall time), or None if it found nothing.

    The comparison may be without a delta, if there was time only for the ratio.
    """
    deadline = time.monotonic() + bound.total_seconds()
    try:
        with tempfile.TemporaryFile() as request:
            _write(request, old, new, bound.total_seconds())
            return _last(_run(request, deadline))
    except OSError:  # no room, no process: there is a coarser answer without
        return None


def _write(request: IO[bytes], old: str, new: str, bound_s: float) -> None:
    texts = encoded(old), encoded(new)
    head = {
        "sizes": [len(text) for text in texts],
        "bound_s": bound_s + ALARM_AFTER,
        "search_s": bound_s * SEARCH_SHARE,
    }
    request.write(json.dumps(head).encode() + b"\n")
    for text in texts:
        request.write(text)
    request.seek(0)


def _run(request: IO[bytes], deadline: float) -> bytes:
    folders = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path)
    process = subprocess.Popen(
        _COMMAND,
        stdin=request,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONPATH": folders, "PYTHONDONTWRITEBYTECODE": "1"},
        start_new_session=True,
    )
    with process:
        try:
            out, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as late:
            out = late.output or b""
        finally:
            process.kill()
    return out


def _last(out: bytes) -> Compared | None:
    lines = out.split(b"\n")[:-1]
    return Compared(*json.loads(lines[-1])) if lines else None
