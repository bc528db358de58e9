"""Tells who observes this worker of its calls of models, agents and tools; of nothing that is in them."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from tightloop.executor.usage import Usage
from tightloop.telemetry import genai

Value = str | int | tuple[str, ...]


@dataclass
class Operation:
    """One call while it runs."""

    kind: str
    """One of `genai.OPERATIONS`."""
    name: str
    """Of the model, the agent or the tool."""
    attributes: dict[str, Value] = field(default_factory=dict)

    def note(self, attributes: Mapping[str, Value | None]) -> None:
        """Add what has become known; what is None or empty is not."""
        self.attributes |= {name: value for name, value in attributes.items() if value not in (None, "", ())}

    def answered(self, usage: Usage, *, model: str = "", response_id: str = "", finish_reason: str = "") -> None:
        """Add what an answer tells of itself."""
        self.note({
            genai.RESPONSE_MODEL: model,
            genai.RESPONSE_ID: response_id,
            genai.FINISH_REASONS: (finish_reason,) if finish_reason else (),
            genai.INPUT_TOKENS: usage.input_tokens,
            genai.OUTPUT_TOKENS: usage.output_tokens,
            genai.CACHED_TOKENS: usage.cached_tokens,
        })  # fmt: skip


class Observer(Protocol):
    """Observes calls."""

    def observe(self, operation: Operation) -> AbstractContextManager[None]:
        """Observe a call until the block ends."""
        ...


OBSERVER: ContextVar[Observer | None] = ContextVar("OBSERVER", default=None)
"""Who observes the activity that runs; nobody where telemetry is off."""


@contextmanager
def operation(kind: str, name: str, attributes: Mapping[str, Value | None]) -> Iterator[Operation]:
    """Make one call in the block."""
    made, observer = Operation(kind, name, {genai.OPERATION: kind}), OBSERVER.get()
    made.note(attributes)
    if observer is None:
        yield made
        return
    with observer.observe(made):
        yield made
