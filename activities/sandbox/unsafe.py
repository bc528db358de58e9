"""No sandbox: used where none works and the operator accepts that, and for agents that have their own."""

import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from activities.process import Callbacks, ProcessRequest, ProjectProgram, Reason, run_process, search_path
from activities.sandbox.bounds import WATCHED, request_of, run_bounded
from activities.sandbox.port import SandboxResult, SandboxSpec
from activities.sandbox.visible import relocated

NAME = "unsafe-local"


class UnsafeLocal:
    """Runs commands with the worker's rights, bounded by resource limits and by watching only."""

    name = NAME

    def probe(self) -> str:
        """Return "": it needs nothing."""
        return ""

    def run(self, spec: SandboxSpec, **callbacks: Unpack[Callbacks]) -> SandboxResult:
        """Run a command; `limits` says how little is enforced."""
        if not spec.argv:
            return SandboxResult(reason=Reason.NOT_STARTED, message="the command is empty", backend=NAME)
        spec = relocated(spec)
        run = functools.partial(run_process, **callbacks)
        program, *arguments = spec.argv
        environment = {**search_path(spec.root), **spec.environment}
        request = request_of(spec, ProjectProgram(program), tuple(arguments), environment, inherit=True)
        return replace(run_bounded(request, spec, WATCHED, run=run, grouped=False), backend=NAME)


class NoFence:
    """Leaves an agent as it is."""

    name = "none"

    def nests(self) -> bool:
        """Return False: there is no fence in which a sandbox could nest."""
        return False

    def around(
        self,
        request: ProcessRequest,
        *,
        writable: tuple[Path, ...],
        readable: tuple[Path, ...] = (),
        network: tuple[str, ...] = (),
        nested: bool = False,
    ) -> AbstractContextManager[ProcessRequest]:
        """Give the request unchanged."""
        del writable, readable, network, nested
        return nullcontext(request)
