"""Tracing of Temporal calls without their content.

Only import this module if telemetry is on, because it loads OpenTelemetry. Nothing is registered globally, so spans
from other libraries in the process are never exported.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Status, Tracer, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio.contrib.opentelemetry import TracingInterceptor, TracingWorkflowInboundInterceptor
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, WorkflowInterceptorClassInput

from tightloop.telemetry import UNTRACED, class_name, span_attributes, span_name, status_text
from tightloop.value import digest

EXPORT_SECONDS = 5.0
BATCH_SECONDS = 2.0


class WithoutContent(SpanExporter):
    """Span exporter that keeps only names, times, ids and error classes.

    The SDK adds exception messages and stack traces, which can quote code, prompts and secrets.
    """

    def __init__(self, next: SpanExporter) -> None:
        self._next = next

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the spans without their content."""
        reduced = [without_content(span) for span in spans if not span.name.startswith(UNTRACED)]
        return self._next.export(reduced) if reduced else SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Shut down the wrapped exporter."""
        self._next.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the wrapped exporter."""
        return self._next.force_flush(timeout_millis)


def without_content(span: ReadableSpan) -> ReadableSpan:
    """Rebuild a span from fields that never contain content. All other fields are dropped."""
    description = span.status.description
    return ReadableSpan(
        name=span_name(span.name),
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span_attributes(span.attributes or {}),
        events=[_exception(event) for event in span.events if event.name == "exception"],
        links=[type(link)(link.context) for link in span.links],
        kind=span.kind,
        status=Status(span.status.status_code, status_text(description) if description else None),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _exception(event: Event) -> Event:
    attributes = event.attributes or {}
    reduced = {
        "exception.type": class_name(attributes.get("exception.type")),
        "exception.message": digest(str(attributes.get("exception.message", ""))),
    }
    return Event("exception", reduced, event.timestamp)


class _WorkflowInbound(TracingWorkflowInboundInterceptor):
    def __init__(self, next: Any) -> None:
        super().__init__(next)
        # Set again, because the SDK does not take it from the client's interceptor.
        self.text_map_propagator = TraceContextTextMapPropagator()


class _ErrorNames(ActivityInboundInterceptor):
    """Records the class of tightloop errors, because the SDK sees only `ApplicationError`."""

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            return await super().execute_activity(input)
        except ApplicationError as error:
            get_current_span().set_attribute("error.type", class_name(error.type))
            raise


class Tracing(TracingInterceptor):
    """SDK interceptor that traces clients and workers.

    Baggage is not used, because its values would be stored in histories.
    """

    def __init__(self, tracer: Tracer, meter: Meter | None = None) -> None:
        super().__init__(tracer)
        self.text_map_propagator = TraceContextTextMapPropagator()
        self.meter = meter
        """Meter for measurements within spans, or None if metrics are exported in another way."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Create a span around each activity."""
        return super().intercept_activity(_ErrorNames(next))

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[TracingWorkflowInboundInterceptor]:
        """Return the interceptor that creates workflow spans, except during replay."""
        # For its side effect: it registers the functions with which workflows end spans.
        super().workflow_interceptor_class(input)
        return _WorkflowInbound


@contextlib.contextmanager
def exporting(
    endpoint: str, service_name: str, *, seconds: float = EXPORT_SECONDS, measures: bool = False
) -> Iterator[Tracing]:
    """Export spans to a collector until the block ends.

    Args:
        endpoint: base URL of the collector.
        service_name: default for `OTEL_SERVICE_NAME`.
        seconds: time limit for a request including retries, and for the final flush.
        measures: also export the meter's metrics.
    """
    # No other detector: the process detector would export the command line, which contains the goal.
    resource = Resource({SERVICE_NAME: service_name}).merge(OTELResourceDetector().detect())
    # Ended below in bounded time; at exit the SDK would wait for the collector.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    sender = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=seconds)
    provider.add_span_processor(
        BatchSpanProcessor(
            WithoutContent(sender), schedule_delay_millis=BATCH_SECONDS * 1_000, export_timeout_millis=seconds * 1_000
        )
    )
    meters = _meters(endpoint, resource, seconds) if measures else None
    try:
        yield Tracing(provider.get_tracer("tightloop"), None if meters is None else meters.get_meter("tightloop"))
    finally:
        # In parallel threads, so that an unreachable collector delays the end by `seconds` at most.
        ending = [
            threading.Thread(target=pipeline.shutdown, name="telemetry-shutdown", daemon=True)
            for pipeline in (provider, meters)
            if pipeline is not None
        ]
        for thread in ending:
            thread.start()
        until = time.monotonic() + seconds
        for thread in ending:
            thread.join(max(until - time.monotonic(), 0))


def _meters(endpoint: str, resource: Resource, seconds: float) -> MeterProvider:
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=seconds),
        export_interval_millis=BATCH_SECONDS * 1_000,
        export_timeout_millis=seconds * 1_000,
    )
    return MeterProvider([reader], resource, shutdown_on_exit=False)
