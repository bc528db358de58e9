"""The connection to Temporal: made within a bound, or refused with a sentence."""

import asyncio
import atexit
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client, Interceptor
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import RetryConfig, RPCError, TLSConfig

from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.host import load_settings
from tightloop.settings import Settings, TemporalSettings

CONNECT_TIMEOUT = timedelta(seconds=5)
CALL_TIMEOUT = timedelta(seconds=10)
RETRY_SECONDS = 3
"""So long a call is tried again where the server cannot be reached."""
# Fewer retries than the SDK's default: `watch` has patience of its own.
_RETRY = RetryConfig(max_retries=4, max_elapsed_time_millis=RETRY_SECONDS * 1_000)
_EXIT_SECONDS = 0.1
_runtimes: dict[int, Runtime] = {}
"""By process: after a fork the SDK refuses that of the parent."""
_STARTING = "not healthy yet"
"""A server that has just started says so."""
_CUT_OFF = ("connection closed", "broken pipe", "ConnectionReset")
"""A server that refuses a client over TLS 1.3 may end the connection before its reason is read."""
_STARTING_WAIT = timedelta(milliseconds=100)

Bounded = Callable[[str, timedelta], AbstractAsyncContextManager[None]]
"""Bounds a call about a workflow in time, and translates its failure."""


def settings_for(target: str | None, namespace: str | None, settings: Settings | None) -> Settings:
    """Return the settings in force, or others, for an address and a namespace.

    Raises:
        SettingsError: a setting is wrong.
    """
    return (settings or load_settings()).at(target, namespace)


async def connect(
    settings: Settings,
    data_converter: DataConverter,
    interceptors: Sequence[Interceptor] = (),
    *,
    runtime: Runtime | None = None,
) -> Client:
    """Connect to Temporal, within `CONNECT_TIMEOUT`; with a runtime of its own for workers.

    Raises:
        ServiceUnavailableError: nobody answers at the address, or not as Temporal.
        SettingsError: a file of `temporal.tls_*` cannot be used.
    """
    temporal = settings.temporal
    tls = tls_of(temporal)
    atexit.unregister(_wait_for_threads)
    atexit.register(_wait_for_threads)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT.total_seconds()):
            while True:
                try:
                    return await Client.connect(
                        temporal.address,
                        namespace=temporal.namespace,
                        data_converter=data_converter,
                        tls=tls,
                        api_key=temporal.api_key.get_secret_value() or None,
                        # Workers keep the SDK's own patience: they outlast a restart of the server.
                        retry_config=_RETRY if runtime is None else None,
                        runtime=runtime or _quiet_runtime(),
                        interceptors=interceptors,
                    )
                except RuntimeError as error:
                    again = (_STARTING, *(_CUT_OFF if tls else ()))
                    if not any(word in str(error) for word in again):
                        raise
                await asyncio.sleep(_STARTING_WAIT.total_seconds())
    except (RuntimeError, ValueError, TimeoutError, RPCError) as error:
        if temporal.encrypted:
            _check_tls(temporal.address, str(error))
        raise no_answer(temporal.address, _reason(error)) from error


def _quiet_runtime() -> Runtime:
    """Return this process's runtime for clients, which does not print a warning for each repeated call."""
    process = os.getpid()
    if process not in _runtimes:
        _runtimes[process] = Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="ERROR")))
    return _runtimes[process]


def _wait_for_threads() -> None:
    """Let the threads of the SDK (1.35) let go of Python objects before the interpreter ends.

    Else 3 of 25 programs that had connected ended in an abort after all their work was done, and none of them with it.
    """
    time.sleep(_EXIT_SECONDS)


def tls_of(temporal: TemporalSettings) -> TLSConfig | bool:
    """Return how the connection is encrypted, with the content of the files; False: not at all.

    Raises:
        SettingsError: a file cannot be read, or is not PEM.
    """
    if not temporal.encrypted:
        return False
    read: dict[str, bytes] = {}
    for name, file in temporal.tls_files.items():
        try:
            read[name] = Path(file).expanduser().read_bytes()
        except OSError as error:
            raise SettingsError(f"temporal.{name} {file} cannot be read: {error.strerror or error}") from error
        if b"-----BEGIN " not in read[name]:
            raise SettingsError(f"temporal.{name} {file} is not a PEM file")
    return TLSConfig(
        server_root_ca_cert=read.get("tls_ca"),
        client_cert=read.get("tls_cert"),
        client_private_key=read.get("tls_key"),
        domain=temporal.tls_server_name or None,
    )


def converter_for(client: Client, workflow_id: str) -> DataConverter:
    """Return the data converter for what belongs to a workflow."""
    place = WorkflowSerializationContext(namespace=client.namespace, workflow_id=workflow_id)
    return client.data_converter.with_context(place)


def no_answer(address: str, why: str) -> ServiceUnavailableError:
    """Return the error for a Temporal that cannot be reached."""
    return ServiceUnavailableError(f"Temporal does not answer at {address} ({why}). Start it: tightloop up")


# Words of rustls 0.23 and tonic 0.14, which the SDK shows, and what can be done.
_TLS_FAILURES = {
    "UnknownIssuer": "no authority that is trusted here signed its certificate. Name its file in temporal.tls_ca",
    "NotValidForName": "its certificate is for another name. Give that one in temporal.tls_server_name",
    "InvalidCertificate": "its certificate is not valid. See its dates, and temporal.tls_ca",
    "CertificateRequired": "it asks for a client's certificate. Give it in temporal.tls_cert and temporal.tls_key",
    "close_notify": "it ends the connection. Does it ask for a client's certificate (temporal.tls_cert and tls_key)?",
}


def _check_tls(address: str, text: str) -> None:
    for word, told in _TLS_FAILURES.items():
        if word in text:
            raise SettingsError(f"Temporal at {address} cannot be used over TLS: {told}")


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT.total_seconds():g} s"
    text = str(error)
    for known in ("Connection refused", "dns error", "tls handshake", "Network is unreachable"):
        if known.lower() in text.lower():
            return known.lower()
    return text.removeprefix("Failed client connect: ")[:160]
