"""Where measured values go: to the SDK's meter, which Prometheus reads, or to OpenTelemetry's, which knows the span."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from temporalio.client import Client
from temporalio.common import MetricMeter

from tightloop.telemetry import METRICS, genai

if TYPE_CHECKING:
    # An optional dependency, loaded where a collector is named.
    from opentelemetry.metrics import Counter, Histogram, Meter
    from opentelemetry.trace import Tracer

BUCKETS: Mapping[str, tuple[float, ...]] = {
    # Seconds; an iteration may take 3 s to be looked at.
    "tightloop_tracker_seconds": (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0),
    # A person may answer at once, or after the weekend.
    "tightloop_answer_seconds": (10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0, 259200.0, 604800.0),
    "tightloop_bandit_findings": (0.0, 1.0, 2.0, 5.0, 10.0, 50.0),
    "tightloop_changed_line_coverage": (0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
    "tightloop_call_cost_usd": (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0, 100.0),
    "tightloop_episode_cost_usd": (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0),
    "tightloop_episode_tokens": (1e3, 1e4, 1e5, 3e5, 1e6, 3e6, 1e7, 1e8),
    "tightloop_episode_minutes": (1.0, 5.0, 15.0, 60.0, 240.0, 480.0, 720.0, 1440.0),
    "tightloop_episode_iterations": (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 15.0, 30.0, 100.0),
    **genai.BUCKETS,
}


def prometheus_name(name: str) -> str:
    """Return a name of OpenTelemetry's conventions as Prometheus takes it."""
    return name.replace(".", "_")


@dataclass(frozen=True)
class Sample:
    """One thing to count (a whole number) or one value to put into a histogram (a float)."""

    name: str
    value: int | float
    labels: dict[str, str] = field(default_factory=dict)


Record = Callable[[Sample], None]


@dataclass(frozen=True)
class Recording:
    """What the workers of a connection record with."""

    record: Record
    tracer: "Tracer | None" = None


def recording_of(client: Client) -> Recording | None:
    """Return what the workers of this connection record with; None where it has no metrics."""
    runtime = client.service_client.config.runtime
    if runtime is None or runtime.metric_meter is MetricMeter.noop:
        return None
    # Known by what they carry: with their class OpenTelemetry would be loaded.
    traced = next((one for one in client.config()["interceptors"] if hasattr(one, "tracer")), None)
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
    """Record with exemplars: a value that is measured within a sampled span names it."""

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
