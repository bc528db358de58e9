"""Choice of a sandbox."""

import functools
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Unpack

from activities.process import Callbacks, ProcessRequest, ProjectProgram, Reason, run_process, search_path
from activities.sandbox.bounds import WATCHED, request_of, run_with_limits
from activities.sandbox.bubblewrap import BubblewrapFence, BubblewrapSandbox
from activities.sandbox.docker import DockerSandbox
from activities.sandbox.port import (
    Fence,
    Openings,
    Sandbox,
    SandboxResult,
    SandboxSpec,
    SandboxUnavailableError,
    places,
)
from activities.sandbox.seatbelt import SeatbeltFence, SeatbeltSandbox
from activities.sandbox.visible import relocate
from tightloop.settings import SandboxSettings

NAME = "unsafe-local"


class UnsafeLocal:
    """Runs commands with the worker's rights; only resource limits and sampling restrict them."""

    name = NAME

    def probe(self) -> str:
        return ""

    def run(self, spec: SandboxSpec, **callbacks: Unpack[Callbacks]) -> SandboxResult:
        if not spec.argv:
            return SandboxResult(reason=Reason.NOT_STARTED, message="the command is empty", backend=NAME)
        spec = relocate(spec)
        run = functools.partial(run_process, **callbacks)
        program, *arguments = spec.argv
        environment = {**search_path(spec.root), **spec.environment}
        request = request_of(spec, ProjectProgram(program), tuple(arguments), environment, inherit=True)
        return replace(run_with_limits(request, spec, WATCHED, run=run, grouped=False), backend=NAME)


class NoFence:
    """Runs agents without a sandbox."""

    name = "none"

    def nests(self) -> bool:
        return False

    def around(self, request: ProcessRequest, **_openings: Unpack[Openings]) -> AbstractContextManager[ProcessRequest]:
        return nullcontext(request)


WITHOUT = "or set sandbox.unsafe_local to run commands with the worker's rights and without a sandbox"


@dataclass(frozen=True)
class Probed:
    """Probe result of one backend."""

    name: str
    problem: str
    """Problem and its fix; empty if the backend works."""
    chosen: bool = False


def choose_sandbox(settings: SandboxSettings) -> Sandbox:
    """Return a sandbox that is chosen on first use and kept once it works.

    Raises:
        SettingsError: the settings name a path that does not exist.
    """
    # Validated at worker start: later every episode would pause.
    places(settings.read, "sandbox.read")
    places(settings.write, "sandbox.write")
    return _FirstThatWorks(settings)


def choose_fence(settings: SandboxSettings) -> Fence:
    """Return the sandbox for agents on this host.

    Raises:
        SandboxUnavailableError: none works, and `unsafe_local` is not set.
    """
    sandbox: Sandbox = BubblewrapSandbox() if sys.platform == "linux" else SeatbeltSandbox()
    # Probed by running a command: Ubuntu 24.04 has bubblewrap, but denies it namespaces.
    problem = sandbox.probe()
    if not problem:
        return BubblewrapFence(settings.network) if sys.platform == "linux" else SeatbeltFence(settings.network)
    # Last: the setting allows running without a sandbox, but does not prefer it.
    if settings.unsafe_local:
        return NoFence()
    raise SandboxUnavailableError(f"no sandbox for agents works on this host. {sandbox.name}: {problem}; {WITHOUT}")


def examine_sandboxes(settings: SandboxSettings) -> tuple[Probed, ...]:
    """Probe every backend that the settings allow on this host, in order of preference."""
    probes = [(backend.name, backend.probe()) for backend in _backends(settings)]
    first = next((name for name, problem in probes if not problem), "")
    rows = tuple(Probed(name, problem, name == first) for name, problem in probes)
    if settings.unsafe_local:
        rows += (Probed(UnsafeLocal().name, "", not first),)
    return rows


def _backends(settings: SandboxSettings) -> Sequence[Sandbox]:
    docker, bubblewrap, seatbelt = DockerSandbox(settings.image), BubblewrapSandbox(), SeatbeltSandbox()
    match settings.backend:
        case "docker":
            return (docker,)
        case "bubblewrap":
            return (bubblewrap,)
        case "sandbox-exec":
            return (seatbelt,)
        case "auto":
            native: Sandbox = bubblewrap if sys.platform == "linux" else seatbelt
            # A configured image shows that its tools are wanted, so it comes first.
            return (docker, native) if settings.image else (native,)


class _FirstThatWorks:
    """Sandbox that is chosen on first use.

    A failure is not cached: the next command finds a backend that was installed in the meantime.
    """

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._found: Sandbox | None = None

    @property
    def name(self) -> str:
        return self._chosen().name

    def probe(self) -> str:
        try:
            self._chosen()
        except SandboxUnavailableError as error:
            return error.message
        return ""

    def run(self, spec: SandboxSpec, **callbacks: Unpack[Callbacks]) -> SandboxResult:
        return self._chosen().run(spec, **callbacks)

    def _chosen(self) -> Sandbox:
        # One probe for all threads: each starts a process, or a container.
        with self._lock:
            tried: list[str] = []
            for backend in () if self._found else _backends(self._settings):
                problem = backend.probe()
                if not problem:
                    self._found = backend
                    break
                tried.append(f"{backend.name}: {problem}")
            if self._found is None and self._settings.unsafe_local:
                self._found = UnsafeLocal()
            if self._found is None:
                raise SandboxUnavailableError(f"no sandbox works on this host. {'; '.join(tried)}; {WITHOUT}")
            return self._found
