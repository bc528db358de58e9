"""The port of the model gateway: what an agent talks to in place of its provider."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from tightloop.executor.model import LimitHit
from tightloop.executor.usage import Usage


class Wire(StrEnum):
    """The wire formats of model providers."""

    RESPONSES = "responses"
    CHAT = "chat"
    MESSAGES = "messages"
    GEMINI = "gemini"


class Cassette(StrEnum):
    """How a recording is used."""

    OFF = "off"
    RECORD = "record"
    REPLAY = "replay"
    """Answers come from the recording; a call that is not in it gets an error, never the provider."""


@dataclass(frozen=True, kw_only=True)
class GatewaySpec:
    """One delivery's gateway."""

    wire: Wire
    upstream: str
    """Base URL of the provider, such as `https://api.openai.com/v1`."""
    key: str = field(default="", repr=False)
    """The provider's key; only the gateway has it."""
    max_calls: int | None = None
    max_tokens: int | None = None
    """Calls beyond this number of calls or tokens get a 429 that names the budget."""
    cassette: Cassette = Cassette.OFF
    recording: Path | None = None
    """File of the cassette; one JSON line for each exchange. Needed unless the cassette is off."""
    volatile: tuple[str, ...] = ()
    """Paths that differ from run to run (homes, working trees), in an order that does not. In a recording they are
    placeholders; a replay puts its own in their place."""


@dataclass(frozen=True, kw_only=True)
class GatewaySeen:
    """Counts of the calls so far."""

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    """What was reported; a lower bound where an answer reports nothing."""
    statuses: Mapping[int, int] = field(default_factory=dict)
    """How often the provider answered model calls with each HTTP status; 0: it gave no answer."""
    limit: LimitHit | None = None
    """The last limit that the provider reported, with its own time to retry; None once a call succeeded after it."""
    budget_spent: bool = False
    """A call was refused, as the budget is spent; the last call within it is let through to its end."""
    waiting: bool = False
    """A call is with the provider right now."""
    moved: float = field(default=0.0, compare=False)
    """When a call last began, ended or brought a piece of its answer (`time.monotonic`): a sign of life of an agent
    that prints nothing. A provider that hangs gives none."""


class Gateway(Protocol):
    """An open gateway."""

    @property
    def base_url(self) -> str:
        """Loopback address for the agent, with the same path as `upstream` has after its host."""
        ...

    @property
    def token(self) -> str:
        """What the agent must send as its key; worth nothing elsewhere, and only while the gateway is open."""
        ...

    def seen(self) -> GatewaySeen:
        """Return what passed through; may be called from any thread."""
        ...


Gateways = Callable[[GatewaySpec], AbstractContextManager[Gateway]]
"""Opens a gateway on a free loopback port; it is shut on leaving, within a second.

Raises `ExecutorError` where the upstream, the key or the recording cannot be used.
"""
