"""A worker's executors, looked up by name and created on first use."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Unpack

from activities.executor.agent.acp.agents import AGENTS
from activities.executor.agent.program import local_now
from activities.executor.command import CommandExecutor
from activities.executor.person import PersonExecutor
from activities.executor.port import Executor, NoExecutor
from activities.executor.scripted import ScriptedExecutor
from activities.model.gateway.wire import Gateways, GatewaySpec
from activities.process import ProcessRequest
from activities.sandbox.port import AgentSandbox, Sandbox, SandboxPermissions
from tightloop.errors import ExecutorError, SettingsError
from tightloop.executor.limit import detect
from tightloop.safety.drift import PromptPrivacy
from tightloop.settings import AgentSettings, SandboxSettings, Settings

if TYPE_CHECKING:
    from activities.model.gateway.server import GatewayServer

Make = Callable[[], Executor]


class ExecutorRegistry:
    """Thread-safe registry of executors."""

    def __init__(self, makers: Mapping[str, Make]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, Executor] = {}
        # Held while an executor is created, so that two activities do not create it twice.
        self._making = RLock()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._makers))

    def __call__(self, name: str) -> Executor:
        """Look up an executor by name.

        Raises:
            ExecutorError: there is no such executor. The message lists the known ones and suggests the closest match.
        """
        if name not in self._makers:
            raise ExecutorError(f"unknown executor {name!r}. {_advice(name, self.names)}")
        with self._making:
            try:
                if name not in self._made:
                    self._made[name] = self._makers[name]()
                return self._made[name]
            # An optional dependency must not keep the worker from starting or break the other executors.
            except ImportError as error:
                return NoExecutor(
                    f"the executor requires {error.name}, which is not installed. Install tightloop-server"
                )


@dataclass(frozen=True)
class ExecutorDependencies:
    """The objects that all executors of a worker share."""

    settings: Settings
    homes: Path
    """The folder that contains the agents' homes, one per episode."""
    sandbox: Sandbox
    """The sandbox for commands in plans."""
    agent_sandbox: AgentSandbox
    """The sandbox for agents that do not have their own."""
    gateways: Gateways

    def agent(self, name: str) -> AgentSettings:
        return self.settings.executor.agents.get(name, AgentSettings())


def executors(dependencies: ExecutorDependencies, more: Mapping[str, Executor] | None = None) -> ExecutorRegistry:
    """Build the registry of a worker's executors. `more` adds executors or replaces built-in ones.

    Raises:
        SettingsError: the settings name an unknown agent.
    """
    settings = dependencies.settings.executor
    makers: dict[str, Make] = {
        "command": lambda: CommandExecutor(
            dependencies.sandbox,
            dependencies.settings.sandbox,
            programs=settings.programs,
            argv=settings.argv,
            # Times of day in a command's output are in the host's zone.
            find_limit=lambda text: detect(text, now=local_now()),
        ),
        "scripted": ScriptedExecutor,
        "person": PersonExecutor,
    }
    makers |= {name: partial(_agent, dependencies, name) for name in ("codex", "cursor", *AGENTS)}
    makers["cursor-gui"] = partial(_window, dependencies)
    # A partial, because a lambda would capture the loop variable and see only the last executor.
    makers |= {name: partial(lambda executor: executor, executor) for name, executor in (more or {}).items()}
    registry = ExecutorRegistry(makers)
    for name in settings.agents:
        if name not in makers:
            raise SettingsError(f"unknown executor {name!r} in executor.agents. {_advice(name, registry.names)}")
    return registry


def _advice(name: str, names: tuple[str, ...]) -> str:
    matches = get_close_matches(name, names, 1)
    return f"{f'Did you mean {matches[0]}? ' if matches else ''}Executors on this worker: {', '.join(names)}"


class LazyAgentSandbox:
    """The agent sandbox of this host, chosen on first use. If this fails, the next agent tries again."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings

    @property
    def name(self) -> str:
        return self._sandbox.name

    def can_nest(self) -> bool:
        return self._sandbox.can_nest()

    def wrap(
        self, request: ProcessRequest, **openings: Unpack[SandboxPermissions]
    ) -> AbstractContextManager[ProcessRequest]:
        return self._sandbox.wrap(request, **openings)

    # Not chosen in the constructor: probing takes seconds, and a worker may never run an agent.
    # An exception is not cached, so the next agent tries again.
    @cached_property
    def _sandbox(self) -> AgentSandbox:
        from activities.sandbox.choose import choose_agent_sandbox

        return choose_agent_sandbox(self._settings)


def open_gateway(spec: GatewaySpec) -> "AbstractContextManager[GatewayServer]":
    """Open a gateway between an agent and its model; see `Gateways`."""
    from activities.model.gateway.server import serve_gateway

    return serve_gateway(spec)


def _window(dependencies: ExecutorDependencies) -> Executor:
    from activities.executor.gui.agent_s import AgentS
    from activities.executor.gui.drivers import choose_driver
    from activities.executor.gui.executor import CursorGuiExecutor
    from activities.executor.gui.port import gui_folder

    window, privacy = dependencies.settings.window, dependencies.settings.privacy
    return CursorGuiExecutor(
        window,
        gui_folder(),
        choose_driver,
        locator=AgentS(window.agent_s, os.environ) if window.agent_s.python else None,
        # Screenshots cannot be redacted.
        may_see_window=lambda workspace: privacy.prompt_privacy_of(workspace) is PromptPrivacy.FULL,
    )


def _agent(dependencies: ExecutorDependencies, name: str) -> Executor:
    settings, sandbox = dependencies.agent(name), dependencies.settings.sandbox
    writable = tuple(Path(folder).expanduser() for folder in sandbox.write)
    make: Callable[..., Executor]
    # Agent modules are imported on first use, so that a worker without agents does not pay for them.
    if name in AGENTS:
        from activities.executor.agent.acp.executor import AcpExecutor

        make = partial(AcpExecutor, AGENTS[name])
    else:
        from activities.executor.agent.cli import AgentExecutor
        from activities.executor.agent.codex import CodexAdapter
        from activities.executor.agent.cursor import CursorAdapter

        make = partial(AgentExecutor, CodexAdapter(settings, writable) if name == "codex" else CursorAdapter(settings))
    return make(
        settings=settings,
        homes=dependencies.homes,
        gateways=dependencies.gateways,
        agent_sandbox=dependencies.agent_sandbox,
        open_to=(*sandbox.network, *sandbox.write),
        writable=writable,
        disk_mb=sandbox.disk_mb,
    )
