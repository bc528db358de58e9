"""Start of an agent on this host, and what an adapter says about it."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from activities.executor.agent.record import looks_secret
from activities.executor.port import Availability
from activities.model.gateway.wire import Gateway, Gateways, GatewaySpec, Wire
from activities.process import GRACE_S, Growth, ProcessRequest, search_path
from activities.sandbox.choose import NoFence
from activities.sandbox.port import MEBIBYTE, Fence, SandboxUnavailableError
from tightloop.errors import ExecutorError
from tightloop.executor.model import EPISODE_VARIABLE, AgentMode, ExecutorEvent, ExecutorOutcome, ResumeToken, WorkOrder
from tightloop.host.programs import find_trusted, trusted_path
from tightloop.plan.commands import host_of
from tightloop.settings import AgentSettings, SandboxSettings


@dataclass(frozen=True, kw_only=True)
class ModelAccess:
    """How an agent reaches its model in this delivery. With the gateway, the key is the gateway's token."""

    base_url: str = ""
    """Empty: the agent's own default, with its own login."""
    key: str = field(default="", repr=False)
    model: str = ""
    login: bool = False
    """The agent's own login is used in place of a key."""
    hosts: tuple[str, ...] = ()
    """What it has to reach for that, in the words of `sandbox.network`: the gateway, or its provider itself."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How an agent is started for one order."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that look like keys, named one by one; a gateway token wherever there is a gateway."""
    stdin: str = ""
    """The prompt, for agents that read it there. Prompts never go into `argv`: other users of the host see that."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Settings to write into the home before the start: relative path to text, mode 0600."""
    placeholders: tuple[str, ...] = ()
    """Folders that its sandbox may leave behind empty in the working tree; removed where they were not there before."""
    session_meta: Mapping[str, Any] = field(default_factory=dict)
    """`_meta` of the sessions of an agent over the Agent Client Protocol: options that it has no other place for."""
    own_sandbox: bool = False
    """The agent fences the commands of its model, but neither itself nor what it starts for itself."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the process of an agent ended, for its reader."""

    exit_code: int | None
    output_end: str
    """The last lines of standard error and of what was not an event: status lines, where limits may be read."""


class EventReader(ABC):
    """Reads the events of one run. Holds what the outcome needs, bounded."""

    @abstractmethod
    def feed(self, line: str) -> list[ExecutorEvent]:
        """Read one line of standard output; one that is not understood gives an `unknown` event, never an error."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether the agent itself said that it is done, well or not."""

    def unknown_session(self, ending: Ending) -> bool:
        """Return whether it did nothing but say that it does not know the session it should go on with.

        It is started again then, with a new session.
        """
        del ending
        return False

    @abstractmethod
    def read_outcome(self, ending: Ending) -> ExecutorOutcome:
        """Return what its events and its ending say. Not asked after a cancel or a limit of ours."""


class ModelUser(Protocol):
    """An agent, as far as its way to a model goes."""

    @property
    def name(self) -> str:
        """The executor's name, such as `codex`."""
        ...

    @property
    def wire(self) -> Wire | None:
        """How it talks to its model; None where its provider cannot be chosen: it works without a gateway."""

    @property
    def default_base_url(self) -> str:
        """Of its provider, where the settings name none."""
        ...

    @property
    def hosts(self) -> tuple[str, ...]:
        """Its provider and where its login is renewed, in the words of `sandbox.network`.

        It reaches them where it has no gateway and the settings name no base URL.
        """
        ...

    @property
    def default_key_env(self) -> str:
        """Variable of the worker with its key, where the settings name none; empty: it needs no key."""
        ...


class AgentAdapter(ModelUser, Protocol):
    """One agent with a command line that prints one JSON event a line."""

    def availability(self) -> Availability:
        """Look for the program; see `Executor.availability`."""
        ...

    def launch(self, order: WorkOrder, home: Path, access: ModelAccess, resume: ResumeToken | None) -> Launch:
        """Return how to start it. `home` is its own for this episode, and HOME of the process.

        Raises:
            ExecutorError: the order cannot be done as configured.
        """
        ...

    def reader(self, order: WorkOrder) -> EventReader:
        """Return a reader for one run."""
        ...


BEYOND_S = 60.0
"""The wall limit ends the turn, so that the session can go on; so much later the process is killed in any case."""


def resume_preface() -> str:
    """Return what an agent that goes on with a session reads before its task."""
    return (resources.files("activities.executor.agent") / "prompts" / "resume.md").read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class AgentHost:
    """How one agent is run on this host; the executors of agents add how it is talked to."""

    settings: AgentSettings
    """Of the agent on this host."""
    homes: Path
    """Folder of the agents' homes, outside of the temporary folder."""
    gateways: Gateways | None = None
    """Opens gateways to the model; None: the agent gets the key itself."""
    fence: Fence | None = None
    """Around every agent; None: those without a sandbox of their own are refused except in mode `full`."""
    open_to: tuple[str, ...] = ()
    """Hosts and folders that the settings open to what runs behind the fence."""
    writable: tuple[Path, ...] = ()
    """Folders that the settings let commands write."""
    disk_mb: int = SandboxSettings().disk_mb
    """What a delivery may add to the working tree and the agent's home."""
    grace_s: float = GRACE_S
    """How long the process may take to follow a polite signal."""

    def key(self, agent: ModelUser) -> str:
        """Return the key of the worker for this agent; empty where it has none."""
        return os.environ.get(self.settings.api_key_env or agent.default_key_env, "")

    def missing_key(self, agent: ModelUser) -> str:
        """Return the sentence about a key that is not there; empty where none is needed.

        A service of one's own (`base_url`) may need none, unless the settings name the variable of its key.
        """
        settings = self.settings
        variable = settings.api_key_env or agent.default_key_env
        if settings.login or not variable or self.key(agent):
            return ""
        if settings.base_url and not settings.api_key_env:
            return ""
        return (
            f"{agent.name} has no key: the variable {variable} is not set where the worker runs. Set it, or set "
            f"executor.agents.{agent.name}.login to true to use {agent.name}'s own login"
        )

    @contextmanager
    def open_access(
        self, agent: ModelUser, order: WorkOrder, *, own_bound: bool = False
    ) -> Iterator[tuple[ModelAccess, Gateway | None]]:
        """Open the way to the model for one delivery; the gateway, where there is one, is shut on leaving.

        With `own_bound` the caller sees to it that the bound of model calls is kept without a gateway.

        Yields:
            What the agent is told, and the gateway; without one, calls are neither seen nor bounded.

        Raises:
            ExecutorError: the key is missing, or the bound of model calls cannot be kept.
        """
        settings, max_calls = self.settings, order.executor.max_model_calls
        model = order.executor.model or settings.model
        if missing := self.missing_key(agent):
            raise ExecutorError(missing)
        key = "" if settings.login else self.key(agent)
        upstream = settings.base_url or agent.default_base_url
        keyed = bool(key or settings.base_url) and not settings.login
        if self.gateways is None or not settings.gateway or agent.wire is None or not keyed:
            if max_calls is not None and not own_bound:
                raise ExecutorError(
                    f"max_model_calls is {max_calls}, but only the model gateway can keep it and {agent.name} does not "
                    f"go through it here. Leave it out, or give a key and set executor.agents.{agent.name}.gateway to "
                    "true"
                )
            base_url = upstream if keyed else settings.base_url
            hosts = _authority(settings.base_url) if settings.base_url else agent.hosts
            yield ModelAccess(base_url=base_url, key=key, model=model, login=settings.login, hosts=hosts), None
            return
        with self.gateways(GatewaySpec(wire=agent.wire, upstream=upstream, key=key, max_calls=max_calls)) as gateway:
            # The token is worth nothing elsewhere: the tools of most agents see the key that the agent has.
            hosts = _authority(gateway.base_url)
            yield ModelAccess(base_url=gateway.base_url, key=gateway.token, model=model, hosts=hosts), gateway

    def effects_of(self, agent: ModelUser, order: WorkOrder) -> str:
        """Return what an agent may change beyond the working tree and its home; see the port of executors."""
        if order.executor.mode is AgentMode.FULL:
            return "the mode full has no walls"
        if self.gateways is None or not self.settings.gateway or self.settings.login or agent.wire is None:
            return "it talks to its provider itself, not through the gateway"
        try:
            if self.fence is None or self.fence.name == NoFence.name:
                return "nothing fences it"
        except SandboxUnavailableError as error:
            return error.message
        return f"it may reach {', '.join(self.open_to)}" if self.open_to else ""

    def build_request(
        self, order: WorkOrder, launch: Launch, home: Path, *, stdin: Path | None = None
    ) -> ProcessRequest:
        """Return the process without a fence. Of the worker's variables it gets those that the settings name.

        Raises:
            ExecutorError: the program of the agent is gone.
            UntrustedProgramError: it lies where a delivery or a command can write.
        """
        root, program = Path(order.root), find_trusted(launch.argv[0])
        if program is None:
            raise ExecutorError(f"the program {launch.argv[0]} was not found. Install it where the worker runs")
        outside = (root, self.homes, *self.writable)
        program.refuse_within(outside)
        passed = {name: os.environ[name] for name in self.settings.environment if name in os.environ}
        return ProcessRequest(
            program=program,
            arguments=launch.argv[1:],
            cwd=root,
            environment={
                **({"PATH": trusted_path(*outside)} if launch.own_sandbox else search_path(root)),
                "HOME": str(home),
                EPISODE_VARIABLE: order.episode_id,
                **launch.environment,
            },
            secrets={**passed, **launch.secrets},
            inherit=False,
            stdin=stdin,
            wall_limit_s=order.executor.wall_limit_s + BEYOND_S,
            growth=Growth(folders=(root, home), limit_bytes=self.disk_mb * MEBIBYTE),
            grace_s=self.grace_s,
            separate_errors=True,
        )

    @contextmanager
    def behind_fence(
        self, request: ProcessRequest, order: WorkOrder, launch: Launch, *, home: Path, hosts: tuple[str, ...]
    ) -> Iterator[tuple[ProcessRequest, str]]:
        """Give the process behind its fence, and the name of what fences it; `hosts` as of `ModelAccess`.

        An agent with a sandbox of its own is put behind the fence, too, where one works within the other.

        Raises:
            SandboxUnavailableError: the agent has no sandbox of its own, and there is none on this worker.
        """
        if order.executor.mode is AgentMode.FULL:
            yield request, "none"
            return
        nested = False
        if launch.own_sandbox:
            with suppress(SandboxUnavailableError):
                nested = self.fence is not None and self.fence.nests()
        if launch.own_sandbox and not nested:
            yield request, "own"
            return
        if self.fence is None:
            raise SandboxUnavailableError(
                f"this worker has no sandbox, and neither has {order.executor.name}. Install one "
                "(tightloop doctor names them), or use the mode full where the host itself is a throw-away"
            )
        root, program = Path(order.root), Path(launch.argv[0])
        # A fence that hides the user's home has to show the program that may lie in it, and what that loads.
        real = program.resolve()
        modules = [folder for folder in real.parents if folder.name == "node_modules"]
        installed = dict.fromkeys([program.parent, modules[-1] if modules else real.parent])
        reads_only = order.executor.mode is AgentMode.READ_ONLY
        writable, shown = ((home,), (root,)) if reads_only else ((root, home), ())
        readable = (*installed, *shown)
        around = self.fence.around(request, writable=writable, readable=readable, network=hosts, nested=nested)
        with around as fenced:
            yield fenced, f"{self.fence.name}+own" if nested else self.fence.name

    def secrets_of(self, agent: ModelUser, request: ProcessRequest, launch: Launch) -> Iterator[str]:
        """Yield what must not be recorded; the key of the worker, too: an agent without a fence could find it."""
        yield from (value for name, value in request.secrets.items() if name in launch.secrets or looks_secret(name))
        yield self.key(agent)


def _authority(base_url: str) -> tuple[str, ...]:
    """Return the one host and port of a URL that a person or we set: it may be private, too."""
    host = host_of(base_url)
    return (host.authority,) if host else ()
