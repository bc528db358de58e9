"""Telemetry of a worker process: traces and metrics to a collector, or metrics for Prometheus. Off by default."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio.client import Interceptor
from temporalio.runtime import OpenTelemetryConfig, PrometheusConfig

from tightloop.errors import SettingsError
from tightloop.settings import Settings
from tightloop.telemetry import TelemetrySettings
from worker.observing.recording import BUCKETS, prometheus_name

logger = logging.getLogger("tightloop")

METRICS_EVERY = timedelta(seconds=2)
FLUSH_SECONDS = 2.5
"""At the end: until the last metrics went out. The SDK's native part cannot be told to send at once."""


COMPLAIN_SECONDS = 600.0
"""Interval between warnings that a collector does not accept data."""
_EXPORTERS = {
    "temporalio.core": "metric_export",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter": "metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter": "trace_exporter",
}
"""Loggers, and what the names of their records contain when an export failed."""


class _Seldom(logging.Filter):
    """Lets one record in `COMPLAIN_SECONDS` through: while nobody answers there is one every two seconds."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part, self._said = part, -COMPLAIN_SECONDS

    def filter(self, record: logging.LogRecord) -> bool:
        if self._part not in record.name:
            return True
        now = time.monotonic()
        if now - self._said < COMPLAIN_SECONDS:
            return False
        self._said = now
        return True


@dataclass(frozen=True)
class Telemetry:
    """Telemetry of a worker's connection; empty where telemetry is off."""

    interceptors: tuple[Interceptor, ...] = ()
    metrics: OpenTelemetryConfig | PrometheusConfig | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    """On every metric."""


@contextlib.asynccontextmanager
async def observed(settings: Settings) -> AsyncIterator[Telemetry]:
    """Observe a worker while the block runs; what is left at its end has some seconds to go out.

    Raises:
        SettingsError: the packages for it are not installed.
    """
    wanted = settings.telemetry
    endpoint = wanted.endpoint(os.environ)
    if wanted.told(os.environ):
        logger.info("telemetry: %s", wanted.told(os.environ))
    metrics, tags = _metrics(wanted, endpoint)
    if not endpoint:
        yield Telemetry(metrics=metrics, tags=tags)
        return
    for name, part in _EXPORTERS.items():
        logging.getLogger(name).addFilter(_Seldom(part))
    try:
        # Imported here: it loads OpenTelemetry, which is an optional dependency.
        from tightloop.client.tracing import exporting
    except ImportError as error:
        raise SettingsError(
            f"telemetry is on, but a package for it is missing ({error.name}). "
            "Install it: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        ) from None
    with exporting(endpoint, wanted.service_name, measures=isinstance(metrics, OpenTelemetryConfig)) as tracing:
        try:
            yield Telemetry((tracing,), metrics, tags)
        finally:
            if isinstance(metrics, OpenTelemetryConfig):
                await asyncio.sleep(FLUSH_SECONDS)


def _metrics(
    wanted: TelemetrySettings, endpoint: str
) -> tuple[OpenTelemetryConfig | PrometheusConfig | None, dict[str, str]]:
    """Return where metrics go, and the name of the service as each of the two has it."""
    name = os.environ.get("OTEL_SERVICE_NAME") or wanted.service_name
    if wanted.prometheus_bind:
        prometheus = PrometheusConfig(
            bind_address=wanted.prometheus_bind,
            durations_as_seconds=True,
            histogram_bucket_overrides={prometheus_name(metric): bounds for metric, bounds in BUCKETS.items()},
        )
        return prometheus, {"service_name": name}
    if not endpoint:
        return None, {}
    # What the collector wants to see, such as a key; the exporter of traces reads it by itself.
    from opentelemetry.util.re import parse_env_headers

    given = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_HEADERS") or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    collector = OpenTelemetryConfig(
        url=f"{endpoint}/v1/metrics",
        http=True,
        headers=dict(parse_env_headers(given, liberal=True)),
        metric_periodicity=METRICS_EVERY,
        durations_as_seconds=True,
        histogram_bucket_overrides=BUCKETS,
    )
    return collector, {"service.name": name}
