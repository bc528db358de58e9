"""Connects workers to Temporal: converter, runtime, search attributes."""

import asyncio
import logging
import os
import socket
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client import registration_command
from tightloop.client.connection import connect as open_connection
from tightloop.client.encryption import PLAIN_CONVERTER, data_converter
from tightloop.client.execution import SEALS, SEARCH_ATTRIBUTES
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.settings import Settings
from worker.telemetry import Telemetry

DATA_CONVERTER = PLAIN_CONVERTER
"""Seals nothing; `data_converter(settings)` is the one in force."""
ANSWER_SECONDS = 10.0
"""Timeout of an activity that asks Temporal about another episode."""


async def connect(settings: Settings, telemetry: Telemetry | None = None) -> Client:
    """Connect with worker heartbeats on, so that `ListWorkers` shows who is alive.

    Args:
        settings: those in force.
        telemetry: how the connection and its workers are observed; None: not at all.

    Raises:
        ServiceUnavailableError: Temporal does not answer.
        SettingsError: the keys of payloads cannot be read; or Prometheus cannot be served.
    """
    converter, observed = data_converter(settings, claims=True), telemetry or Telemetry()
    # As the SDK makes it, and what clients have to know before they send anything.
    identity = f"{os.getpid()}@{socket.gethostname()}{SEALS if settings.seals_payloads else ''}"
    runtime = _runtime(settings, observed)
    return await open_connection(settings, converter, observed.interceptors, runtime=runtime, identity=identity)


def _runtime(settings: Settings, telemetry: Telemetry) -> Runtime:
    try:
        return Runtime(
            telemetry=TelemetryConfig(
                # The SDK's native part writes its warnings through our logging, where they are scrubbed.
                logging=LoggingConfig(
                    filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
                    forwarding=LogForwardingConfig(logger=logging.getLogger("temporalio.core")),
                ),
                metrics=telemetry.metrics,
                global_tags=telemetry.tags,
                # The tags have it, under the name that the collector or Prometheus expects.
                attach_service_name=False,
            ),
            # 60 s by default: so long a worker that has died would be shown as running.
            worker_heartbeat_interval=timedelta(seconds=settings.worker.heartbeat_interval_s),
        )
    except ValueError as error:
        raise SettingsError(
            f"metrics cannot be served at {settings.telemetry.prometheus_bind}: {error}. Set telemetry.prometheus_bind "
            "to a free port on an address of this host, such as 127.0.0.1:9464; each worker process needs its own"
        ) from error


async def register_search_attributes(client: Client) -> None:
    """Make the search attributes known to the namespace, where that is allowed. Idempotent.

    Raises:
        ServiceUnavailableError: the server refuses; the message says how to add them by hand.
    """
    try:
        types = {
            name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}")
            for name, kind in SEARCH_ATTRIBUTES.items()
        }
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=types)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise ServiceUnavailableError(
                f"the search attributes cannot be registered ({error.message}). Add them once: {registration_command()}"
            ) from error


class EndedEpisodes:
    """Tells whether an episode that holds a workspace has ended."""

    def __init__(self, client: Client) -> None:
        """Remember the event loop that the client belongs to: call it from there."""
        self._client = client
        self._loop = asyncio.get_running_loop()

    def has_ended(self, episode_id: str) -> bool:
        """Return True if the episode is closed or unknown to Temporal. Blocking; for activity threads."""
        return asyncio.run_coroutine_threadsafe(self._ask(episode_id), self._loop).result(ANSWER_SECONDS)

    async def _ask(self, episode_id: str) -> bool:
        try:
            description = await self._client.get_workflow_handle(episode_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return True
            raise
        except ValueError:
            # The SDK does not know status 8 (paused by Temporal itself): such an episode is open.
            return False
        return description.status is not WorkflowExecutionStatus.RUNNING
