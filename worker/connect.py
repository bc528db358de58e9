"""Connection to Temporal, and its data converter."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode

from tightloop.client.calls import Calls
from tightloop.client.connection import connect as open_connection
from tightloop.client.encryption import PLAIN_CONVERTER, data_converter
from tightloop.client.execution import KINDS, Execution, read_execution
from tightloop.client.keys import key_file, new_ring, write_ring
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.host import load_settings, user_file
from tightloop.settings import Settings
from tightloop.value.documents import load_yaml
from worker.telemetry import Telemetry

logger = logging.getLogger("tightloop")

DATA_CONVERTER = PLAIN_CONVERTER
"""Data converter without seals and encryption. `data_converter(settings)` returns the configured converter."""
LOOK_SECONDS = 1.0
ANSWER_SECONDS = 10.0
"""Timeout of an activity's query about another episode."""


async def connect(settings: Settings, telemetry: Telemetry | None = None, *, wait_s: float = 0.0) -> Client:
    """Connect to Temporal with worker heartbeats, so that `ListWorkers` shows the live workers.

    Args:
        settings: effective settings.
        telemetry: telemetry for the connection. None disables it.
        wait_s: seconds to wait for the server and its namespace. If 0, the connection is checked once and
            the namespace is not checked.

    Raises:
        ServiceUnavailableError: Temporal does not respond.
        SettingsError: the keys cannot be read, or the Prometheus address cannot be bound.
    """
    converter, observed = data_converter(settings, claims=True), telemetry or Telemetry()
    runtime = _runtime(settings, observed)
    clock = asyncio.get_running_loop().time
    until, last_message = clock() + wait_s, ""
    while True:
        try:
            client = await open_connection(settings, converter, observed.interceptors, runtime=runtime)
            if wait_s:
                await _need_namespace(client)
            return client
        except ServiceUnavailableError as error:
            if clock() >= until:
                waited = f" Waited {wait_s:g} s (worker.start_wait_s)" if wait_s else ""
                raise ServiceUnavailableError(f"{error.message}.{waited}" if waited else error.message) from error
            if error.message != last_message:
                logger.info("waiting up to %.0f s: %s", until - clock(), error.message)
            last_message = error.message
        await asyncio.sleep(LOOK_SECONDS)


async def _need_namespace(client: Client) -> None:
    """Check that the namespace exists. Without this check, workers fail later with a less helpful error.

    Raises:
        ServiceUnavailableError: the namespace does not exist, or Temporal does not respond.
    """
    try:
        await Calls(client).check_namespace()
    except SettingsError as error:
        raise ServiceUnavailableError(error.message) from error


def _runtime(settings: Settings, telemetry: Telemetry) -> Runtime:
    try:
        return Runtime(
            telemetry=TelemetryConfig(
                # The SDK's core logs through our logging, which scrubs secrets.
                logging=LoggingConfig(
                    filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
                    forwarding=LogForwardingConfig(logger=logging.getLogger("temporalio.core")),
                ),
                metrics=telemetry.metrics,
                global_tags=telemetry.tags,
                # Set as a tag instead, under the name that the collector or Prometheus expects.
                attach_service_name=False,
            ),
            # The default is 60 s, during which a dead worker would still be listed as running.
            worker_heartbeat_interval=timedelta(seconds=settings.worker.heartbeat_interval_s),
        )
    except ValueError as error:
        raise SettingsError(
            f"cannot serve metrics at {settings.telemetry.prometheus_bind}: {error}. Set telemetry.prometheus_bind to "
            "an address of this host with a free port, for example 127.0.0.1:9464. Each worker process needs its own "
            "port"
        ) from error


async def known_workflows(client: Client, where: str = "") -> tuple[Execution, ...]:
    """Return all episode and plan runs in Temporal that match the optional condition `where`.

    Raises:
        ServiceUnavailableError: Temporal does not respond.
    """
    types = ", ".join(f'"{name}"' for name in KINDS)
    query = f"WorkflowType IN ({types})" + (f" AND {where}" if where else "")
    executions: list[Execution] = []
    token = b""
    while True:
        request = ListWorkflowExecutionsRequest(
            namespace=client.namespace, page_size=1_000, next_page_token=token, query=query
        )
        try:
            # Not `client.list_workflows`, whose descriptions fail for statuses that the SDK does not know.
            page = await client.workflow_service.list_workflow_executions(request, retry=True)
        except RPCError as error:
            raise ServiceUnavailableError(
                f"cannot list the open episodes: {error.message}. Nothing was changed"
            ) from error
        executions += [await read_execution(info, client.data_converter) for info in page.executions]
        token = page.next_page_token
        if not token:
            return tuple(executions)


def ended_episodes(client: Client) -> Callable[[str], bool]:
    """Return a predicate that is true if an episode has closed or is unknown to Temporal.

    Must be called from the client's event loop. The predicate blocks, so use it in activity threads.
    """
    loop = asyncio.get_running_loop()

    async def ask(episode_id: str) -> bool:
        try:
            description = await client.get_workflow_handle(episode_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return True
            raise
        except ValueError:
            # The SDK does not know status 8 (paused by Temporal); such an episode is open.
            return False
        return description.status is not WorkflowExecutionStatus.RUNNING

    return lambda episode_id: asyncio.run_coroutine_threadsafe(ask(episode_id), loop).result(ANSWER_SECONDS)


_LINES = "privacy:\n  encrypt: true\n"


def turn_on(settings: Settings, settings_file: Path | None) -> Settings:
    """Set `privacy.encrypt` in the settings file and create the first key if needed.

    The file also applies to workers and clients in other terminals.

    Args:
        settings: effective settings.
        settings_file: file from which the settings were read. The default is the user's own file.

    Raises:
        SettingsError: the file cannot be changed, or another source turns encryption off.
    """
    if not settings.privacy.encrypt:
        path = settings_file or user_file()
        _write_into(path)
        # Read again, because environment variables take precedence over the file.
        settings = load_settings(settings_file)
        if not settings.privacy.encrypt:
            raise SettingsError(
                f"{path} turns on privacy.encrypt, but a source with higher precedence turns it off. "
                "Check the environment variable TIGHTLOOP_PRIVACY__ENCRYPT"
            )
        print(f"Turned on privacy.encrypt in {path}. From now on, content is kept out of logs")
    path = key_file(settings.privacy)
    if not settings.privacy.keys_env and not path.exists():
        ring = new_ring()
        write_ring(path, ring)
        print(f"Created key {ring.current} in {path}. Back up the key: encrypted histories cannot be read without it")
    return settings


def _write_into(path: Path) -> None:
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        text = _with_encrypt(before)
        # Compare the parsed results: documents in braces or with `encrypt: false` cannot take another line.
        document = _document(before)
        if _document(text) != {**document, "privacy": {**(document.get("privacy") or {}), "encrypt": True}}:
            raise SettingsError(
                f"cannot add privacy.encrypt to {path}. Set privacy.encrypt to true in the file by hand"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"cannot turn on privacy.encrypt in {path}: {error.strerror or error}. "
            "Set TIGHTLOOP_PRIVACY__ENCRYPT=true for workers and clients"
        ) from error


def _with_encrypt(text: str) -> str:
    # Edited as text: writing parsed YAML back would drop the person's comments.
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if line.startswith("privacy:")), None)
    if head is None:
        return f"{text.rstrip()}\n\n{_LINES}" if text.strip() else _LINES
    if "{" in lines[head]:
        lines[head] = lines[head].replace("{", "{encrypt: true, ", 1)
    else:
        first = next((line for line in lines[head + 1 :] if line.strip() and not line.lstrip().startswith("#")), "")
        indent = first[: len(first) - len(first.lstrip())] or "  "
        lines.insert(head + 1, f"{indent}encrypt: true")
    return "\n".join(lines) + "\n"


def _document(text: str) -> Any:
    try:
        return load_yaml(text) or {}
    except yaml.YAMLError:
        return None
