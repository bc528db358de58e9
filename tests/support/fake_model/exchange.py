"""What the wire formats have in common: what was asked, what is answered, how it is put on the wire."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.support.fake_model.script import Act, Call, Several, Tool

PIECE_CHARACTERS = 24
"""Length of one delta of a stream."""

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Usage that every answer reports."""

    input: int = 1000
    output: int = 100
    cached: int = 0
    """Part of the input."""
    cost_usd: float | None = None
    """What a call costs, as OpenRouter reports it; Chat Completions only."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request, as far as the script needs it."""

    model: str
    tools: tuple[Tool, ...]
    step: int
    """Tool results since the last user message."""
    stream: bool
    usage_in_stream: bool = True


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer, before it gets its wire format."""

    asked: Asked
    act: Act
    tokens: Tokens
    id: str
    """Hexadecimal, equal for equal requests: what a recording holds can be asked for again."""

    @property
    def text(self) -> str:
        """What is said; empty for a lone call."""
        if isinstance(self.act, Several):
            return self.act.text
        return self.act if isinstance(self.act, str) else ""

    @property
    def calls(self) -> tuple[Call, ...]:
        """What is called."""
        if isinstance(self.act, Several):
            return self.act.calls
        return (self.act,) if isinstance(self.act, Call) else ()

    @property
    def cut(self) -> bool:
        """Whether it ends at the output limit."""
        return isinstance(self.act, Several) and self.act.cut

    @property
    def call(self) -> Call | None:
        """The first of them, if anything is called."""
        return next(iter(self.calls), None)

    @property
    def arguments(self) -> str:
        """Arguments of the first call as JSON."""
        return self.call.written if self.call else ""

    def call_id(self, number: int) -> str:
        """Return the id of a call, by its place in the answer."""
        return f"call_{self.id}" + (f"_{number}" if number else "")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error answer."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


class WireFormat(Protocol):
    """One provider's API."""

    def read(self, path: str, body: Json) -> Asked:
        """Understand a request. Raises: KeyError, TypeError: it is not one of this API."""
        ...

    def whole(self, answer: Answer) -> Json:
        """Return the body of an answer that is not streamed."""
        ...

    def stream(self, answer: Answer) -> list[bytes]:
        """Return the server-sent events of a streamed answer."""
        ...

    def broken_stream(self, answer: Answer) -> list[bytes]:
        """Return the events of a stream in which the service reports a failure."""
        ...


def digest(body: Json) -> str:
    """Return an id for what answers `body`."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:24]


def pieces(text: str) -> Iterator[str]:
    """Cut a text into deltas; an empty text is one empty delta."""
    yield from (text[at : at + PIECE_CHARACTERS] for at in range(0, max(len(text), 1), PIECE_CHARACTERS))


def event(data: Mapping[str, Any] | str, name: str = "") -> bytes:
    """Return one server-sent event."""
    line = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return (f"event: {name}\n" if name else "").encode() + f"data: {line}\n\n".encode()


def since_last(user: Sequence[bool], results: Sequence[int]) -> int:
    """Sum `results` of the turns after the last one that is the user's own words."""
    last = max((at for at, is_user in enumerate(user) if is_user), default=-1)
    return sum(results[last + 1 :])
