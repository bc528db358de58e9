"""Connecting workers to Temporal: converter, runtime, search attributes."""

import logging
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client.encryption import PLAIN_CONVERTER, data_converter
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.settings import Settings
from worker.telemetry import Telemetry

SEARCH_ATTRIBUTES = {
    "TightloopStatus": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "TightloopPauseKind": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "TightloopIteration": IndexedValueType.INDEXED_VALUE_TYPE_INT,
}
DATA_CONVERTER = PLAIN_CONVERTER
"""Without encryption; `data_converter(settings.privacy)` is the one in force."""


async def connect(settings: Settings, telemetry: Telemetry | None = None) -> Client:
    """Connect with worker heartbeats on, so that `ListWorkers` shows who is alive.

    Args:
        settings: those in force.
        telemetry: how the connection and its workers are observed; None: not at all.

    Raises:
        ServiceUnavailableError: Temporal does not answer.
        SettingsError: payload encryption is on, and its keys cannot be read; or Prometheus cannot be served.
    """
    temporal = settings.temporal
    converter = data_converter(settings.privacy)
    observed = telemetry or Telemetry()
    runtime = _runtime(settings, observed)
    try:
        return await Client.connect(
            temporal.address,
            namespace=temporal.namespace,
            data_converter=converter,
            runtime=runtime,
            interceptors=observed.interceptors,
            tls=temporal.tls,
            api_key=temporal.api_key.get_secret_value() or None,
        )
    except RuntimeError as error:
        raise ServiceUnavailableError(
            f"Temporal does not answer at {temporal.address}. Start one with: tightloop up, "
            "or name another with TIGHTLOOP_TEMPORAL__ADDRESS"
        ) from error


def _runtime(settings: Settings, telemetry: Telemetry) -> Runtime:
    try:
        return Runtime(
            telemetry=TelemetryConfig(
                logging=_core_logs(),
                metrics=telemetry.metrics,
                global_tags=telemetry.tags,
                attach_service_name=False,
            ),
            worker_heartbeat_interval=timedelta(seconds=settings.worker.heartbeat_interval_s),
        )
    except ValueError as error:
        raise SettingsError(
            f"metrics cannot be served at {settings.telemetry.prometheus_bind}: {error}. Set telemetry.prometheus_bind "
            "to a free port on an address of this host, such as 127.0.0.1:9464; each worker process needs its own"
        ) from error


def _core_logs() -> LoggingConfig:
    """Let the SDK's native part write its warnings through our logging, where they are scrubbed."""
    return LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
        forwarding=LogForwardingConfig(logger=logging.getLogger("temporalio.core")),
    )


async def register_search_attributes(client: Client) -> None:
    """Make the search attributes known to the namespace, where that is allowed. Idempotent.

    Raises:
        ServiceUnavailableError: the server refuses; the message says how to add them by hand.
    """
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=SEARCH_ATTRIBUTES)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            names = " ".join(f"--name {name}" for name in SEARCH_ATTRIBUTES)
            raise ServiceUnavailableError(
                f"the search attributes cannot be registered ({error.message}). "
                f"Add them once: temporal operator search-attribute create {names} --type Keyword "
                "(TightloopIteration: --type Int)"
            ) from error
