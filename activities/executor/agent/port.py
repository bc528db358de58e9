"""What an adapter knows about one agent: how to start it, how to read it. Everything else is shared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from activities.executor.port import Availability
from activities.model.gateway.port import Wire
from tightloop.executor.model import ExecutorEvent, ExecutorOutcome, ResumeToken, WorkOrder


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


class EventReader(Protocol):
    """Reads the events of one run. Holds what the outcome needs, bounded. Readers derive from this class."""

    def feed(self, line: str) -> list[ExecutorEvent]:
        """Read one line of standard output; one that is not understood gives an `unknown` event, never an error."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the agent itself said that it is done, well or not."""
        ...

    def unknown_session(self, ending: Ending) -> bool:
        """Return whether it did nothing but say that it does not know the session it should go on with.

        It is started again then, with a new session.
        """
        del ending
        return False

    def read_outcome(self, ending: Ending) -> ExecutorOutcome:
        """Return what its events and its ending say. Not asked after a cancel or a limit of ours."""
        ...


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
