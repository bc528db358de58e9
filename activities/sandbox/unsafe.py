"""No walls: what is left where no sandbox works and the operator accepts it, and where an agent has its own."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from activities.process import ProcessRequest, run_process, search_path
from activities.sandbox.bounds import WATCHED, request_of, run_bounded
from activities.sandbox.port import SandboxResult, SandboxSpec

NAME = "unsafe-local"


class UnsafeLocal:
    """Runs commands with the worker's rights, bounded by resource limits and by watching only."""

    @property
    def name(self) -> str:
        """`unsafe-local`."""
        return NAME

    def probe(self) -> str:
        """Return "": there is nothing that could be missing."""
        return ""

    def run(
        self,
        spec: SandboxSpec,
        *,
        cancelled: Callable[[], bool],
        started: Callable[[int], None],
        on_output: Callable[[bytes], None] | None = None,
    ) -> SandboxResult:
        """Run a command; `limits` says how little is enforced."""
        run = functools.partial(run_process, cancelled=cancelled, started=started, on_output=on_output)
        request = request_of(spec, spec.argv, {**search_path(spec.root), **spec.environment}, inherit=True)
        return replace(run_bounded(request, spec, WATCHED, run=run, grouped=False), backend=NAME)


class NoFence:
    """Leaves an agent as it is."""

    @property
    def name(self) -> str:
        """`none`."""
        return "none"

    def around(
        self, request: ProcessRequest, *, writable: tuple[Path, ...], readable: tuple[Path, ...] = ()
    ) -> ProcessRequest:
        """Return the request unchanged."""
        del writable, readable
        return request
