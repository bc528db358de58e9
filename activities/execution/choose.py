"""The executors of a worker by name, each made when it is first asked for."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from threading import RLock

from activities.execution.agent.acp_agents import AGENTS
from activities.execution.agent.port import AgentAdapter
from activities.execution.chosen import Nobody
from activities.execution.command import CommandExecutor
from activities.execution.port import Executor
from activities.execution.scripted import ScriptedExecutor
from activities.model_gateway.port import Gateway, Gateways, GatewaySpec
from activities.process import ProcessRequest
from activities.sandbox.port import Fence, Sandbox
from tightloop.errors import ExecutorError, SettingsError
from tightloop.executor import LimitHit
from tightloop.limit import detect
from tightloop.settings import AgentSettings, SandboxSettings, Settings

Make = Callable[[], Executor]


class ExecutorRegistry:
    """The choice of executors; may be asked from any thread."""

    def __init__(self, makers: Mapping[str, Make]) -> None:
        """Take what makes each executor."""
        self._makers = dict(makers)
        self._made: dict[str, Executor] = {}
        self._making = RLock()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all executors, sorted."""
        return tuple(sorted(self._makers))

    def __call__(self, name: str) -> Executor:
        """Return the executor of this name.

        Raises:
            ExecutorError: there is none; the message names the nearest and lists those that are there.
        """
        if name not in self._makers:
            raise ExecutorError(f"there is no executor {name!r}.{_nearest(name, self.names)} {_listed(self.names)}")
        with self._making:
            try:
                if name not in self._made:
                    self._made[name] = self._makers[name]()
                return self._made[name]
            except ImportError as error:
                return Nobody(f"it needs {error.name}, which is not installed: pip install 'tightloop[server]'")


@dataclass(frozen=True)
class Surroundings:
    """What the executors of one worker share."""

    settings: Settings
    homes: Path
    """Where agents have their homes, one for each episode."""
    sandbox: Sandbox
    """Around commands of plans."""
    fence: Fence
    """Around agents that have no walls of their own."""
    gateways: Gateways

    def agent(self, name: str) -> AgentSettings:
        """Return the settings of an agent."""
        return self.settings.executor.agents.get(name, AgentSettings())


def executors(around: Surroundings, more: Mapping[str, Executor] | None = None) -> ExecutorRegistry:
    """Return the choice among the executors that are shipped and `more`, which win.

    Raises:
        SettingsError: the settings name an agent that there is not.
    """
    makers: dict[str, Make] = {
        "command": lambda: _command(around),
        "scripted": ScriptedExecutor,
        "person": _person,
        "codex": lambda: _codex(around),
        "claude": lambda: _claude(around),
        "cursor": lambda: _cursor(around),
    }
    makers |= {name: _acp_maker(around, name) for name in AGENTS}
    makers |= {name: _given(executor) for name, executor in (more or {}).items()}
    registry = ExecutorRegistry(makers)
    for name in around.settings.executor.agents:
        if name not in makers:
            raise SettingsError(
                f"executor.agents has {name!r}, and there is no such executor.{_nearest(name, registry.names)} "
                f"{_listed(registry.names)}"
            )
    return registry


def _nearest(name: str, names: tuple[str, ...]) -> str:
    near = get_close_matches(name, names, 1)
    return f" Did you mean {near[0]}?" if near else ""


def _listed(names: tuple[str, ...]) -> str:
    return f"This worker has: {', '.join(names)}"


def _given(executor: Executor) -> Make:
    return lambda: executor


def _find_limit(text: str) -> LimitHit | None:
    """Read a limit out of status lines; a time without a zone is meant in the zone of this host."""
    return detect(text, now=datetime.now(UTC).astimezone())


def _command(around: Surroundings) -> Executor:
    settings, walls = around.settings.executor, around.settings.sandbox
    return CommandExecutor(
        around.sandbox, walls, programs=settings.programs, argv=settings.argv, find_limit=_find_limit
    )


class FenceWhenNeeded:
    """Stands for the fence of a host until an agent needs it; where none works, the next agent looks again."""

    def __init__(self, settings: SandboxSettings) -> None:
        """Take the settings of the sandbox."""
        self._settings = settings
        self._found: Fence | None = None

    @property
    def name(self) -> str:
        """Name of the fence that was found."""
        return self._fence().name

    def around(
        self, request: ProcessRequest, *, writable: tuple[Path, ...], readable: tuple[Path, ...] = ()
    ) -> ProcessRequest:
        """Return the request behind the fence; see `Fence`."""
        return self._fence().around(request, writable=writable, readable=readable)

    def _fence(self) -> Fence:
        from activities.sandbox.choose import choose_fence

        if self._found is None:
            self._found = choose_fence(self._settings)
        return self._found


def open_gateway(spec: GatewaySpec) -> AbstractContextManager[Gateway]:
    """Open a door of the model gateway; see `Gateways`."""
    from activities.model_gateway.server import ModelGateways

    return ModelGateways()(spec)


# The modules of agents are imported where one is used: a worker that runs none never pays for them.


def _person() -> Executor:
    from activities.execution.person import PersonExecutor

    return PersonExecutor()


def _codex(around: Surroundings) -> Executor:
    from activities.execution.agent.codex import CodexAdapter

    return _agent(around, CodexAdapter(around.agent("codex")))


def _claude(around: Surroundings) -> Executor:
    from activities.execution.agent.claude import ClaudeAdapter

    return _agent(around, ClaudeAdapter(around.agent("claude")))


def _cursor(around: Surroundings) -> Executor:
    from activities.execution.agent.cursor import CursorAdapter

    return _agent(around, CursorAdapter(around.agent("cursor")))


def _agent(around: Surroundings, adapter: AgentAdapter) -> Executor:
    from activities.execution.agent.executor import AgentExecutor

    return AgentExecutor(
        adapter,
        settings=around.agent(adapter.name),
        homes=around.homes,
        gateways=around.gateways,
        fence=around.fence,
    )


def _acp_maker(around: Surroundings, name: str) -> Make:
    def make() -> Executor:
        from activities.execution.agent.acp import AcpExecutor

        return AcpExecutor(
            AGENTS[name],
            settings=around.agent(name),
            homes=around.homes,
            gateways=around.gateways,
            fence=around.fence,
        )

    return make
