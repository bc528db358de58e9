"""Spans and metrics of the calls of models, agents and tools, by OpenTelemetry's conventions for generative AI."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from activities.model.observed import Operation
from tightloop.telemetry import genai
from worker.observing.recording import Recording, Sample

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class Calls:
    """Observes the calls that activities make: a span for each, and for those of models how long and how much."""

    def __init__(self, recording: Recording) -> None:
        self._record = recording.record
        self._tracer = recording.tracer

    @contextmanager
    def observe(self, operation: Operation) -> Iterator[None]:
        """Observe a call until the block ends."""
        name = f"{operation.kind} {operation.name}"
        began = time.monotonic()
        with nullcontext() if self._tracer is None else self._tracer.start_as_current_span(name) as span:
            try:
                yield
            except BaseException as error:
                operation.note({genai.ERROR: operation.attributes.get(genai.ERROR) or type(error).__name__})
                raise
            finally:
                if span is not None:
                    _describe(span, operation)
                # Within the span, which the exemplars then name.
                if operation.kind == genai.CHAT:
                    self._measure(operation, time.monotonic() - began)

    def _measure(self, operation: Operation, seconds: float) -> None:
        known = operation.attributes
        labels = {name: str(known[name]) for name in sorted(genai.LABELS & known.keys())}
        self._record(Sample(genai.DURATION, seconds, labels))
        for kind, name in (("input", genai.INPUT_TOKENS), ("output", genai.OUTPUT_TOKENS)):
            if isinstance(tokens := known.get(name), int):
                self._record(Sample(genai.USAGE, float(tokens), {**labels, genai.KIND: kind}))


def _describe(span: "Span", operation: Operation) -> None:
    span.set_attributes(operation.attributes)
    if genai.ERROR in operation.attributes:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR))
