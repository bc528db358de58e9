"""Starting agents on this host, and the interface for their adapters."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from activities.executor.agent.record import looks_secret
from activities.executor.port import Availability
from activities.model.gateway.wire import Gateways, GatewaySpec, Wire
from activities.process import GRACE_S, Growth, ProcessRequest, search_path
from activities.sandbox.choose import NoAgentSandbox
from activities.sandbox.port import MEBIBYTE, AgentSandbox, SandboxUnavailableError
from tightloop.errors import ExecutorError
from tightloop.executor.model import EPISODE_VARIABLE, AgentMode, ExecutorEvent, ExecutorOutcome, ResumeToken, WorkOrder
from tightloop.host.programs import find_trusted_program, trusted_path
from tightloop.host.worktree import path_inside
from tightloop.plan.commands import host_of
from tightloop.settings import AgentSettings, SandboxSettings

if TYPE_CHECKING:
    from activities.model.gateway.server import GatewayServer


@dataclass(frozen=True, kw_only=True)
class ModelAccess:
    """An agent's model access during one delivery. With a gateway, `key` is the gateway's token."""

    base_url: str = ""
    """Base URL of the model provider. If empty, the agent uses its own default with its own login."""
    key: str = field(default="", repr=False)
    model: str = ""
    login: bool = False
    """True if the agent's own login is used instead of a key."""
    hosts: tuple[str, ...] = ()
    """Hosts that the agent may reach, in the syntax of `sandbox.network`: either the gateway or the provider itself."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The parameters for starting an agent to carry out one order."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secret variables by name. With a gateway, the secret is the gateway's token."""
    stdin: str = ""
    """The prompt, passed on standard input. Prompts are never passed in `argv`, which the host's other users can
    read."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Settings files to write into the home before the start, from relative path to text. Their mode is 0600."""
    placeholders: tuple[str, ...] = ()
    """Empty folders that the agent's sandbox may leave in the working tree. They are removed unless they already
    existed."""
    session_meta: Mapping[str, Any] = field(default_factory=dict)
    """`_meta` of ACP sessions, for options that cannot be passed elsewhere."""
    own_sandbox: bool = False
    """True if the agent sandboxes the commands its model runs. It does not sandbox itself or its helpers."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The exit code and the last output of an agent's process."""

    exit_code: int | None
    output_end: str
    """The last lines of standard error and of other output that is not events. They may mention limits."""


class EventReader(ABC):
    """Reads the events of one run and builds a bounded summary for the outcome."""

    @abstractmethod
    def feed(self, line: str) -> list[ExecutorEvent]:
        """Read one line of standard output.

        If the line cannot be parsed, return an `unknown` event instead of raising.
        """

    @property
    @abstractmethod
    def finished(self) -> bool:
        """True if the agent has reported that it has finished, successfully or not."""

    def unknown_session(self, ending: Ending) -> bool:
        """Return whether the run failed only because the session to resume is unknown.

        If so, the agent is started again with a new session.
        """
        del ending
        return False

    @abstractmethod
    def read_outcome(self, ending: Ending) -> ExecutorOutcome:
        """Return the run's outcome, based on the agent's events and the end of its process.

        This is not called if the run was cancelled or exceeded one of our limits.
        """


class ModelUser(Protocol):
    """The model-related properties of an agent."""

    @property
    def name(self) -> str:
        """The executor's name, for example `codex`."""
        ...

    @property
    def wire(self) -> Wire | None:
        """The wire format. It is None if the agent's provider is fixed. In this case, no gateway is used."""

    @property
    def default_base_url(self) -> str:
        """The base URL used if the settings do not specify one."""
        ...

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the agent's provider and its login service, in the syntax of `sandbox.network`.

        They are allowed if there is no gateway and the settings do not specify a base URL.
        """
        ...

    @property
    def default_key_env(self) -> str:
        """The default name of the worker variable that contains the key. Empty if no key is needed."""
        ...


class AgentAdapter(ModelUser, Protocol):
    """An agent with a command line interface that prints one JSON event per line."""

    def availability(self) -> Availability:
        """Check whether the agent's program is installed; see `Executor.availability`."""
        ...

    def launch(self, order: WorkOrder, home: Path, access: ModelAccess, resume: ResumeToken | None) -> Launch:
        """Return the parameters for starting the agent.

        `home` is the agent's home folder for this episode. It is also HOME in the agent's environment.

        Raises:
            ExecutorError: the order cannot be run with this configuration.
        """
        ...

    def reader(self, order: WorkOrder) -> EventReader:
        """Create a reader for the events of one run."""
        ...


KILL_DELAY_S = 60.0
"""Time from the wall limit to killing the process. The wall limit first ends the turn so that the session can be
resumed."""


def resume_preface() -> str:
    """Return the text that precedes the task when a session is resumed."""
    return (resources.files("activities.executor.agent") / "prompts" / "resume.md").read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class AgentHost:
    """Runs an agent on this host. The executors implement the protocol."""

    settings: AgentSettings
    """The settings of this agent."""
    homes: Path
    """The folder that contains the agents' homes, outside the temporary folder."""
    gateways: Gateways | None = None
    """Opens gateways to the model. If None, the agent gets the real key."""
    agent_sandbox: AgentSandbox | None = None
    """The sandbox for all agents. Without one, agents that do not have their own are rejected except in mode `full`."""
    open_to: tuple[str, ...] = ()
    """Hosts and folders that the settings make accessible inside the sandbox."""
    writable: tuple[Path, ...] = ()
    """Folders to which the settings let commands write."""
    disk_mb: int = SandboxSettings().disk_mb
    """Limit on the data added to the working tree and the agent's home."""
    grace_s: float = GRACE_S
    """Seconds between SIGTERM and SIGKILL."""

    def key(self, agent: ModelUser) -> str:
        """Return the worker's key for this agent, or "" if there is none."""
        return os.environ.get(self.settings.api_key_env or agent.default_key_env, "")

    def missing_key(self, agent: ModelUser) -> str:
        """Return a message if a required key is missing, or "" otherwise.

        A self-hosted service (`base_url`) needs a key only if the settings name the variable that contains
        it.
        """
        settings = self.settings
        variable = settings.api_key_env or agent.default_key_env
        if settings.login or not variable or self.key(agent):
            return ""
        # A service of one's own without a key is common, but a named variable shows that a key is expected.
        if settings.base_url and not settings.api_key_env:
            return ""
        return (
            f"{agent.name} has no key because the worker's environment does not set {variable}. Set the variable, "
            f"or set executor.agents.{agent.name}.login to true to use {agent.name}'s own login"
        )

    @contextmanager
    def open_access(
        self, agent: ModelUser, order: WorkOrder, *, own_bound: bool = False
    ) -> "Iterator[tuple[ModelAccess, GatewayServer | None]]":
        """Give an agent access to its model for one delivery. The gateway, if any, is closed on exit.

        Set `own_bound` if the caller limits the number of model calls when there is no gateway.

        Yields:
            The access and the gateway. Without a gateway, calls are neither counted nor limited.

        Raises:
            ExecutorError: the key is missing, or the limit on model calls cannot be enforced.
        """
        settings, max_calls = self.settings, order.executor.max_model_calls
        model = order.executor.model or settings.model
        if missing := self.missing_key(agent):
            raise ExecutorError(missing)
        key = "" if settings.login else self.key(agent)
        upstream = settings.base_url or agent.default_base_url
        keyed = bool(key or settings.base_url) and not settings.login
        if self.gateways is None or not settings.gateway or agent.wire is None or not keyed:
            # A limit that nobody enforces must fail at once: it exists to limit costs.
            if max_calls is not None and not own_bound:
                raise ExecutorError(
                    f"max_model_calls is {max_calls}, but only the model gateway can enforce this limit, and "
                    f"{agent.name} does not use the gateway here. Remove the limit, or provide a key and set "
                    f"executor.agents.{agent.name}.gateway to true"
                )
            # With its own login the agent knows its provider; our default URL could be the wrong one.
            base_url = upstream if keyed else settings.base_url
            hosts = _authority(settings.base_url) if settings.base_url else agent.hosts
            yield ModelAccess(base_url=base_url, key=key, model=model, login=settings.login, hosts=hosts), None
            return
        with self.gateways(GatewaySpec(wire=agent.wire, upstream=upstream, key=key, max_calls=max_calls)) as gateway:
            # The token is useless elsewhere: with most agents, tools can see the agent's key.
            hosts = _authority(gateway.base_url)
            yield ModelAccess(base_url=gateway.base_url, key=gateway.token, model=model, hosts=hosts), gateway

    def effects_of(self, agent: ModelUser, order: WorkOrder) -> str:
        """Describe an agent's effects outside the working tree and its home; see `Executor.effects_outside`."""
        if order.executor.mode is AgentMode.FULL:
            return "the agent runs in mode full, which has no sandbox"
        if self.gateways is None or not self.settings.gateway or self.settings.login or agent.wire is None:
            return "the agent connects to its provider directly, not through the gateway"
        try:
            if self.agent_sandbox is None or self.agent_sandbox.name == NoAgentSandbox.name:
                return "the agent runs without a sandbox"
        except SandboxUnavailableError as error:
            return error.message
        return f"the agent may reach {', '.join(self.open_to)}" if self.open_to else ""

    def tree_inside(self, order: WorkOrder, *, own_sandbox: bool) -> Path:
        """Return the path of the working tree as the agent sees it.

        For `own_sandbox`, see `Launch`.
        """
        root = Path(order.root)
        try:
            if self.agent_sandbox is None or order.executor.mode is AgentMode.FULL:
                return root
            inside = path_inside(self.agent_sandbox.name, root)
            # Tried last, because it starts a process.
            return inside if inside == root or not own_sandbox or self.agent_sandbox.can_nest() else root
        # Without a sandbox, nothing will run.
        except SandboxUnavailableError:
            return root

    def build_request(
        self, order: WorkOrder, launch: Launch, home: Path, *, stdin: Path | None = None
    ) -> ProcessRequest:
        """Build the process request for running the agent without a sandbox.

        Only the worker variables named in the settings are included.

        Raises:
            ExecutorError: the agent's program does not exist.
            UntrustedProgramError: the program is located where a delivery or a command can write.
        """
        root, program = Path(order.root), find_trusted_program(launch.argv[0])
        if program is None:
            raise ExecutorError(f"the program {launch.argv[0]} was not found. Install the program on the worker's host")
        inside = self.tree_inside(order, own_sandbox=launch.own_sandbox)
        outside = (root, inside, self.homes, *self.writable)
        # Otherwise a delivery could replace the program that the next one runs with the user's login.
        program.refuse_within(outside)
        passed = {name: os.environ[name] for name in self.settings.environment if name in os.environ}
        return ProcessRequest(
            program=program,
            arguments=launch.argv[1:],
            cwd=root,
            environment={
                # Such an agent looks up its sandbox program in PATH, where the project's programs must not come first.
                **({"PATH": trusted_path(*outside)} if launch.own_sandbox else search_path(inside)),
                "HOME": str(home),
                EPISODE_VARIABLE: order.episode_id,
                **launch.environment,
            },
            secrets={**passed, **launch.secrets},
            inherit=False,
            stdin=stdin,
            wall_limit_s=order.executor.wall_limit_s + KILL_DELAY_S,
            # Sampled, because no platform limits the size of a folder for an ordinary user.
            growth=Growth(folders=(root, home), limit_bytes=self.disk_mb * MEBIBYTE),
            grace_s=self.grace_s,
            separate_errors=True,
        )

    @contextmanager
    def open_sandbox(
        self, request: ProcessRequest, order: WorkOrder, launch: Launch, *, home: Path, hosts: tuple[str, ...]
    ) -> Iterator[tuple[ProcessRequest, str]]:
        """Build the request that runs the agent's process in a sandbox. For `hosts`, see `ModelAccess`.

        Yields the request and the sandbox's name.

        An agent with its own sandbox is also wrapped if this host supports nested sandboxes.

        Raises:
            SandboxUnavailableError: neither the agent nor this worker has a sandbox.
        """
        if order.executor.mode is AgentMode.FULL:
            yield request, "none"
            return
        nested = False
        if launch.own_sandbox:
            with suppress(SandboxUnavailableError):
                nested = self.agent_sandbox is not None and self.agent_sandbox.can_nest()
        # Its own sandbox alone is better than ours alone: only its own can separate the commands from the key.
        if launch.own_sandbox and not nested:
            yield request, "own"
            return
        if self.agent_sandbox is None:
            raise SandboxUnavailableError(
                f"neither this worker nor {order.executor.name} has a sandbox. Install a sandbox "
                "(tightloop doctor lists the supported ones), or use mode full on a disposable host"
            )
        root, program = Path(order.root), Path(launch.argv[0])
        # A sandbox that hides the user's home must expose the program, which may be there, and what it loads.
        real = program.resolve()
        modules = [folder for folder in real.parents if folder.name == "node_modules"]
        installed = dict.fromkeys([program.parent, modules[-1] if modules else real.parent])
        reads_only = order.executor.mode is AgentMode.READ_ONLY
        # The home stays writable in any mode: sessions and settings are written there.
        writable, readable_roots = ((home,), (root,)) if reads_only else ((root, home), ())
        readable = (*installed, *readable_roots)
        sandboxed = self.agent_sandbox.wrap(request, writable=writable, readable=readable, network=hosts, nested=nested)
        with sandboxed as fenced:
            yield fenced, f"{self.agent_sandbox.name}+own" if nested else self.agent_sandbox.name

    def secrets_of(self, agent: ModelUser, request: ProcessRequest, launch: Launch) -> Iterator[str]:
        """Yield the values to redact.

        The worker's key is included, because an agent without a sandbox could find it.
        """
        yield from (value for name, value in request.secrets.items() if name in launch.secrets or looks_secret(name))
        yield self.key(agent)


def _authority(base_url: str) -> tuple[str, ...]:
    """Return the host and port of a URL from the settings or the gateway. The host may be private."""
    host = host_of(base_url)
    return (host.authority,) if host else ()
