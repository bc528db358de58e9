"""Runs in each Python process that a check starts.

It reports the start and end of the process and instruments pytest and unittest.
"""

import importlib.abc
import importlib.util
import sys

try:
    import tightloop_observer
except Exception:  # a Python that is too old
    tightloop_observer = None  # type: ignore[assignment]


def _run_next() -> None:
    """Run the next `sitecustomize` on the path, because this file shadows it."""
    folder = __file__.rpartition("/")[0]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != folder])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if tightloop_observer is not None:
    tightloop_observer.begin()
_run_next()
