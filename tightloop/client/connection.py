"""The connection to Temporal: made within a bound, or refused with a sentence."""

import asyncio
import atexit
import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client, Interceptor
from temporalio.converter import DataConverter
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RetryConfig, RPCError, TLSConfig

from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.host import load_settings
from tightloop.settings import Settings, TemporalSettings

CONNECT_TIMEOUT = timedelta(seconds=5)
RETRY_SECONDS = 3
"""So long a call is tried again where the server cannot be reached."""
# Fewer retries than the SDK's default: it logs from the fifth on, and `watch` has patience of its own.
_RETRY = RetryConfig(max_retries=4, max_elapsed_time_millis=RETRY_SECONDS * 1_000)
_EXIT_SECONDS = 0.1
_forked = threading.Event()
"""This process was forked from one that may have used the SDK."""
_STARTING = "not healthy yet"
"""A server that has just started says so."""
_STARTING_WAIT = timedelta(milliseconds=100)


def settings_for(target: Any, namespace: str | None, settings: Settings | None) -> Settings:
    """Return the settings in force, or others, for an address and a namespace.

    Raises:
        SettingsError: a setting is wrong; or settings were given in place of an address.
    """
    if isinstance(target, Settings):
        raise SettingsError(
            "the settings were given in place of the address. Leave them out: connect() uses those in force; "
            "Settings() reads neither file nor environment. For others write connect(settings=...)"
        )
    return (settings or load_settings()).at(target, namespace)


async def connect(
    settings: Settings,
    data_converter: DataConverter,
    interceptors: Sequence[Interceptor] = (),
    *,
    runtime: Runtime | None = None,
    identity: str | None = None,
) -> Client:
    """Connect to Temporal, within `CONNECT_TIMEOUT`; with a runtime of its own for workers.

    Raises:
        ServiceUnavailableError: nobody answers at the address, or not as Temporal.
        SettingsError: a file of `temporal.tls_*` cannot be used.
    """
    temporal = settings.temporal
    tls = tls_of(temporal)
    if _forked.is_set():
        _forked.clear()
        _renew_runtime()
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
                        runtime=runtime,
                        identity=identity,
                        interceptors=interceptors,
                    )
                except RuntimeError as error:
                    if _STARTING not in str(error):
                        raise
                await asyncio.sleep(_STARTING_WAIT.total_seconds())
    except (RuntimeError, ValueError, TimeoutError, RPCError) as error:
        if temporal.encrypted:
            _check_tls(temporal.address, str(error))
        raise no_answer(temporal.address, _reason(error)) from error


def _renew_runtime() -> None:
    """Give a process that was forked a runtime of its own: the SDK refuses that of the parent."""
    Runtime.set_default(Runtime(telemetry=TelemetryConfig()), error_if_already_set=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked.set)


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
