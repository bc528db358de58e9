"""Choice of a sandbox."""

import functools
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Unpack

from activities.process import Callbacks, ProcessRequest, ProjectProgram, Reason, run_process, search_path
from activities.sandbox.bubblewrap import BubblewrapAgentSandbox, BubblewrapSandbox
from activities.sandbox.control_group import UNSANDBOXED_LIMITS, request_of, run_with_limits
from activities.sandbox.docker import DockerSandbox
from activities.sandbox.port import (
    AgentSandbox,
    Sandbox,
    SandboxPermissions,
    SandboxResult,
    SandboxSpec,
    SandboxUnavailableError,
    resolve_locations,
)
from activities.sandbox.seatbelt import SeatbeltAgentSandbox, SeatbeltSandbox
from activities.sandbox.visible import relocate
from tightloop.settings import SandboxSettings

NAME = "unsafe-local"


class UnsafeLocal:
    """Runs commands with the worker's rights. Only resource limits and sampling restrict them."""

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
        return replace(run_with_limits(request, spec, UNSANDBOXED_LIMITS, run=run, grouped=False), backend=NAME)


class NoAgentSandbox:
    """Runs agents without a sandbox."""

    name = "none"

    def can_nest(self) -> bool:
        return False

    def wrap(
        self, request: ProcessRequest, **_openings: Unpack[SandboxPermissions]
    ) -> AbstractContextManager[ProcessRequest]:
        return nullcontext(request)


UNSAFE_ADVICE = "Alternatively, set sandbox.unsafe_local to run commands with the worker's rights and without a sandbox"


@dataclass(frozen=True)
class ProbeResult:
    """Result of probing one backend."""

    name: str
    problem: str
    """The problem and how to fix it. Empty if the backend works."""
    chosen: bool = False


def choose_sandbox(settings: SandboxSettings) -> Sandbox:
    """Return a sandbox that chooses its backend on first use. A working backend is kept.

    Raises:
        SettingsError: the settings name a path that does not exist.
    """
    # Validated at worker start: later every episode would pause.
    resolve_locations(settings.read, "sandbox.read")
    resolve_locations(settings.write, "sandbox.write")
    return _LazySandbox(settings)


def choose_agent_sandbox(settings: SandboxSettings) -> AgentSandbox:
    """Return this host's sandbox for agents.

    Raises:
        SandboxUnavailableError: no sandbox works and `unsafe_local` is not set.
    """
    sandbox: Sandbox = BubblewrapSandbox() if sys.platform == "linux" else SeatbeltSandbox()
    # Probed by running a command: Ubuntu 24.04 has bubblewrap, but denies it namespaces.
    problem = sandbox.probe()
    if not problem:
        return (
            BubblewrapAgentSandbox(settings.network)
            if sys.platform == "linux"
            else SeatbeltAgentSandbox(settings.network)
        )
    # Last: the setting allows running without a sandbox, but does not prefer it.
    if settings.unsafe_local:
        return NoAgentSandbox()
    raise SandboxUnavailableError(f"no agent sandbox works on this host. {sandbox.name}: {problem}. {UNSAFE_ADVICE}")


def examine_sandboxes(settings: SandboxSettings) -> tuple[ProbeResult, ...]:
    """Probe every backend that the settings allow on this host, in order of preference."""
    probes = [(backend.name, backend.probe()) for backend in _backends(settings)]
    first = next((name for name, problem in probes if not problem), "")
    rows = tuple(ProbeResult(name, problem, name == first) for name, problem in probes)
    if settings.unsafe_local:
        rows += (ProbeResult(UnsafeLocal().name, "", not first),)
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


class _LazySandbox:
    """Sandbox that chooses its backend on first use.

    A failure is not cached, so the next command can use a backend that was installed in the meantime.
    """

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._sandbox: Sandbox | None = None

    @property
    def name(self) -> str:
        return self._choose().name

    def probe(self) -> str:
        try:
            self._choose()
        except SandboxUnavailableError as error:
            return error.message
        return ""

    def run(self, spec: SandboxSpec, **callbacks: Unpack[Callbacks]) -> SandboxResult:
        return self._choose().run(spec, **callbacks)

    def _choose(self) -> Sandbox:
        # One probe for all threads: each starts a process, or a container.
        with self._lock:
            tried: list[str] = []
            for backend in () if self._sandbox else _backends(self._settings):
                problem = backend.probe()
                if not problem:
                    self._sandbox = backend
                    break
                tried.append(f"{backend.name}: {problem}")
            if self._sandbox is None and self._settings.unsafe_local:
                self._sandbox = UnsafeLocal()
            if self._sandbox is None:
                raise SandboxUnavailableError(f"no sandbox works on this host. {'; '.join(tried)}. {UNSAFE_ADVICE}")
            return self._sandbox
