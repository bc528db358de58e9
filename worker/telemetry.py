"""A worker's traces and metrics."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from temporalio import activity
from temporalio.client import Client, Interceptor
from temporalio.common import MetricMeter
from temporalio.exceptions import ApplicationError
from temporalio.runtime import OpenTelemetryConfig, PrometheusConfig
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput
from temporalio.worker import Interceptor as WorkerInterceptor

from activities.alerts.activity import AlertsSent, SendAlertsRequest
from activities.model.observed import OBSERVER, Operation
from activities.retention import CollectionTotals
from tightloop import telemetry
from tightloop.episode.checkpoint import Tracked
from tightloop.episode.planning import PlanningOutcome, ReflectionOutcome
from tightloop.errors import SettingsError, TightloopError
from tightloop.executor.model import ExecutorReport, Usage
from tightloop.settings import Settings
from tightloop.telemetry import METRICS, TelemetrySettings, class_name

if TYPE_CHECKING:
    # An optional dependency, imported at run time only if a collector is configured.
    from opentelemetry.metrics import Counter, Histogram, Meter
    from opentelemetry.trace import Tracer


BUCKETS: Mapping[str, tuple[float, ...]] = {
    # Seconds; tracking an iteration may take 3 s.
    "tightloop_tracker_seconds": (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0),
    # A person may answer at once or after the weekend.
    "tightloop_answer_seconds": (10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0, 259200.0, 604800.0),
    "tightloop_bandit_findings": (0.0, 1.0, 2.0, 5.0, 10.0, 50.0),
    "tightloop_changed_line_coverage": (0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
    "tightloop_call_cost_usd": (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0, 100.0),
    "tightloop_episode_cost_usd": (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0),
    "tightloop_episode_tokens": (1e3, 1e4, 1e5, 3e5, 1e6, 3e6, 1e7, 1e8),
    "tightloop_episode_minutes": (1.0, 5.0, 15.0, 60.0, 240.0, 480.0, 720.0, 1440.0),
    "tightloop_episode_iterations": (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 15.0, 30.0, 100.0),
    **telemetry.BUCKETS,
}


def prometheus_name(name: str) -> str:
    """Convert an OpenTelemetry metric name to Prometheus notation."""
    return name.replace(".", "_")


@dataclass(frozen=True)
class Sample:
    """An increment for a counter (int) or a value for a histogram (float)."""

    name: str
    value: int | float
    labels: dict[str, str] = field(default_factory=dict)


Record = Callable[[Sample], None]


@dataclass(frozen=True)
class Recording:
    """The recorder and the tracer for the workers of a connection."""

    record: Record
    tracer: "Tracer | None" = None

    @contextmanager
    def observe(self, operation: Operation) -> Iterator[None]:
        """Record a span for an operation. For a model call, also record its duration and token counts."""
        name = f"{operation.kind} {operation.name}"
        began = time.monotonic()
        with nullcontext() if self.tracer is None else self.tracer.start_as_current_span(name) as span:
            try:
                yield
            except BaseException as error:
                operation.note({telemetry.ERROR: operation.attributes.get(telemetry.ERROR) or type(error).__name__})
                raise
            finally:
                if span is not None:
                    span.set_attributes(operation.attributes)
                    if telemetry.ERROR in operation.attributes:
                        from opentelemetry.trace import Status, StatusCode

                        span.set_status(Status(StatusCode.ERROR))
                # Inside the span, so that the exemplars refer to it.
                if operation.kind == telemetry.CHAT:
                    self._measure(operation.attributes, time.monotonic() - began)

    def _measure(self, attributes: Mapping[str, object], seconds: float) -> None:
        labels = {name: str(attributes[name]) for name in sorted(telemetry.LABELS & attributes.keys())}
        self.record(Sample(telemetry.DURATION, seconds, labels))
        for kind, name in (("input", telemetry.INPUT_TOKENS), ("output", telemetry.OUTPUT_TOKENS)):
            if isinstance(tokens := attributes.get(name), int):
                self.record(Sample(telemetry.USAGE, float(tokens), {**labels, telemetry.KIND: kind}))


def recording_of(client: Client) -> Recording | None:
    """Return the recording for a connection's workers, or None if metrics are not recorded."""
    runtime = client.service_client.config.runtime
    if runtime is None or runtime.metric_meter is MetricMeter.noop:
        return None
    # Found by attribute, because importing its class would load OpenTelemetry.
    traced = next(
        (interceptor for interceptor in client.config()["interceptors"] if hasattr(interceptor, "tracer")), None
    )
    meter = getattr(traced, "meter", None)
    record = _by_core(runtime.metric_meter) if meter is None else _by_opentelemetry(meter)
    return Recording(record, getattr(traced, "tracer", None))


def _by_core(meter: MetricMeter) -> Record:
    def record(sample: Sample) -> None:
        name, labels = prometheus_name(sample.name), {prometheus_name(k): v for k, v in sample.labels.items()}
        if isinstance(sample.value, int):
            meter.create_counter(name, METRICS[sample.name]).add(sample.value, labels)
        else:
            meter.create_histogram_float(name, METRICS[sample.name]).record(sample.value, labels)

    return record


def _by_opentelemetry(meter: "Meter") -> Record:
    """Return a function that records samples in OpenTelemetry. Exemplars refer to the sampled span."""

    # Cached, because OpenTelemetry warns about each instrument that is created twice.
    @cache
    def counter(name: str) -> "Counter":
        return meter.create_counter(name, description=METRICS[name])

    @cache
    def histogram(name: str) -> "Histogram":
        return meter.create_histogram(
            name, description=METRICS[name], explicit_bucket_boundaries_advisory=list(BUCKETS[name])
        )

    def record(sample: Sample) -> None:
        if isinstance(sample.value, int):
            counter(sample.name).add(sample.value, sample.labels)
        else:
            histogram(sample.name).record(sample.value, sample.labels)

    return record


logger = logging.getLogger("tightloop")

METRICS_EVERY = timedelta(seconds=2)
FLUSH_SECONDS = 2.5
"""Time in seconds to wait at the end for the last metrics. The SDK's core has no flush function."""


COMPLAIN_SECONDS = 600.0
"""Interval in seconds between warnings that a collector does not accept data."""
_EXPORTERS = {
    "temporalio.core": "metric_export",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter": "metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter": "trace_exporter",
}
"""Logger names, with the part of the record name that indicates a failed export."""


class _RateLimitFilter(logging.Filter):
    """A log filter that passes one record per `COMPLAIN_SECONDS`.

    Without the filter, an unreachable collector would cause a record every two seconds.
    """

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part, self._last_record_s = part, -COMPLAIN_SECONDS

    def filter(self, record: logging.LogRecord) -> bool:
        if self._part not in record.name:
            return True
        now = time.monotonic()
        if now - self._last_record_s < COMPLAIN_SECONDS:
            return False
        self._last_record_s = now
        return True


@dataclass(frozen=True)
class Telemetry:
    """Telemetry for a worker's connection. Empty if telemetry is off."""

    interceptors: tuple[Interceptor, ...] = ()
    metrics: OpenTelemetryConfig | PrometheusConfig | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags that are added to every metric."""


@contextlib.asynccontextmanager
async def observe_worker(settings: Settings) -> AsyncIterator[Telemetry]:
    """Observe a worker during the block.

    Leaving the block can take a few seconds, because it waits for the last metrics.

    Raises:
        SettingsError: the required packages are not installed.
    """
    options = settings.telemetry
    endpoint = options.endpoint(os.environ)
    if options.describe(os.environ):
        logger.info("telemetry: %s", options.describe(os.environ))
    metrics, tags = _metrics(options, endpoint)
    if not endpoint:
        yield Telemetry(metrics=metrics, tags=tags)
        return
    for name, part in _EXPORTERS.items():
        logging.getLogger(name).addFilter(_RateLimitFilter(part))
    try:
        # Imported here: it loads OpenTelemetry, which is an optional dependency.
        from tightloop.client.tracing import exporting
    except ImportError as error:
        raise SettingsError(
            f"telemetry is on, but a required package is missing ({error.name}). "
            "Install it with: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        ) from None
    with exporting(endpoint, options.service_name, measures=isinstance(metrics, OpenTelemetryConfig)) as tracing:
        try:
            yield Telemetry((tracing,), metrics, tags)
        finally:
            if isinstance(metrics, OpenTelemetryConfig):
                await asyncio.sleep(FLUSH_SECONDS)


def _metrics(
    options: TelemetrySettings, endpoint: str
) -> tuple[OpenTelemetryConfig | PrometheusConfig | None, dict[str, str]]:
    """Return the metrics exporter and the tags that name the service. Tags use the exporter's notation."""
    name = os.environ.get("OTEL_SERVICE_NAME") or options.service_name
    if options.prometheus_bind:
        prometheus = PrometheusConfig(
            bind_address=options.prometheus_bind,
            # By default the SDK reports whole milliseconds, against the conventions of Prometheus and OpenTelemetry.
            durations_as_seconds=True,
            histogram_bucket_overrides={prometheus_name(metric): bounds for metric, bounds in BUCKETS.items()},
        )
        return prometheus, {"service_name": name}
    if not endpoint:
        return None, {}
    # Headers such as an API key; the trace exporter reads these variables itself.
    from opentelemetry.util.re import parse_env_headers

    headers = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_HEADERS") or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    collector = OpenTelemetryConfig(
        url=f"{endpoint}/v1/metrics",
        http=True,
        headers=dict(parse_env_headers(headers, liberal=True)),
        metric_periodicity=METRICS_EVERY,
        durations_as_seconds=True,
        histogram_bucket_overrides=BUCKETS,
    )
    return collector, {"service.name": name}


def samples(request: object, result: object, seconds: float) -> Iterator[Sample]:
    """Yield the metrics of a successful activity.

    Args:
        request: the activity's input.
        result: the activity's result.
        seconds: the activity's duration.
    """
    match result:
        case Tracked():
            report: ExecutorReport | None = getattr(request, "report", None)
            status = None if report is None else report.status
            classed = result.tracking.probability_class.value
            yield Sample("tightloop_iterations", 1, {"class": classed, "executor": status or "none"})
            yield Sample("tightloop_tracker_seconds", float(seconds))
            count = sum(not finding.refused for finding in result.findings)
            yield Sample("tightloop_safety_findings", count, {"of": "change"})
            yield from _usage("judge", result.usage)
            yield from _iteration_samples(result.recalled, report)
        case PlanningOutcome():
            yield Sample("tightloop_plans", 1, {"verdict": result.verdict.value})
            yield Sample("tightloop_safety_findings", len(result.findings), {"of": "plan"})
            yield from _usage("planner", result.usage)
        case ReflectionOutcome():
            yield from _usage("reflector", result.usage)
        case ExecutorReport():
            yield from _usage("executor", result.usage)
        case CollectionTotals():
            yield Sample("tightloop_freed_bytes", result.size_bytes)
        case AlertsSent() if isinstance(request, SendAlertsRequest):
            for delivery in result.deliveries:
                if not delivery.known:
                    outcome = "failed" if delivery.at is None else "sent"
                    yield Sample("tightloop_alerts", 1, {"cause": request.alert.kind.value, "result": outcome})


def _iteration_samples(recalled: int | None, report: ExecutorReport | None) -> Iterator[Sample]:
    """Yield the memory and coverage metrics of an iteration.

    A value is None if memory was not queried or coverage was not measured.
    """
    if recalled is not None:
        yield Sample("tightloop_memory_searches", 1, {"result": "hit" if recalled else "miss"})
    if report is not None and report.coverage is not None:
        yield Sample("tightloop_changed_line_coverage", report.coverage)
    if report is not None and report.bandit_findings is not None:
        yield Sample("tightloop_bandit_findings", float(report.bandit_findings))


def _usage(by: str, usage: Usage | None) -> Iterator[Sample]:
    if usage is None:
        return
    # Providers include cached tokens in the input; here each token counts once.
    cached = usage.cached_tokens or 0
    counts = {"input": (usage.input_tokens or 0) - cached, "cached": cached, "output": usage.output_tokens or 0}
    for kind, tokens in counts.items():
        if tokens > 0:
            yield Sample("tightloop_tokens", tokens, {"by": by, "kind": kind})
    if usage.cost_usd is not None:
        yield Sample("tightloop_call_cost_usd", usage.cost_usd, {"by": by})


def measuring(client: Client) -> list[WorkerInterceptor]:
    """Return the interceptors that measure a connection's workers. Empty if metrics are not recorded."""
    recording = recording_of(client)
    return [] if recording is None else [Measuring(recording)]


class Measuring(WorkerInterceptor):
    """Records the metrics and spans of activities."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next, self._recording)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, recording: Recording) -> None:
        super().__init__(next)
        self._recording = recording

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        OBSERVER.set(self._recording)
        began = time.monotonic()
        try:
            result = await super().execute_activity(input)
        except (TightloopError, ApplicationError) as error:
            kind = error.type if isinstance(error, ApplicationError) else type(error).__name__
            labels = {"activity": activity.info().activity_type, "error": class_name(kind)}
            self._recording.record(Sample("tightloop_activity_failures", 1, labels))
            raise
        for sample in samples(next(iter(input.args), None), result, time.monotonic() - began):
            self._recording.record(sample)
        return result
