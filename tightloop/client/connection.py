"""Connection to Temporal, with TLS, retry policy and error messages."""

import asyncio
import atexit
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from temporalio.client import Client, Interceptor
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import RetryConfig, RPCError, TLSConfig

from tightloop.errors import ServiceUnavailableError, SettingsError

if TYPE_CHECKING:
    from tightloop.settings import Settings, TemporalSettings

CONNECT_TIMEOUT = timedelta(seconds=5)
CALL_TIMEOUT = timedelta(seconds=10)
RETRY_SECONDS = 3
"""Maximum time for which a call is retried while the server is unreachable."""
# Fewer retries than the SDK's default, because `watch` retries by itself.
_RETRY = RetryConfig(max_retries=4, max_elapsed_time_millis=RETRY_SECONDS * 1_000)
_EXIT_SECONDS = 0.1
_runtimes: dict[int, Runtime] = {}
"""Runtimes by process id. After a fork, the SDK rejects the parent's runtime."""
_STARTING = "not healthy yet"
"""Message from a server that has just started."""
_CUT_OFF = ("connection closed", "broken pipe", "ConnectionReset")
"""Error texts of a connection that was cut off. A server that rejects a TLS 1.3 client may close the connection before
the reason can be read.
"""
_STARTING_WAIT = timedelta(milliseconds=100)

Bounded = Callable[[str, timedelta], AbstractAsyncContextManager[None]]
"""Limits the duration of a call about a workflow and translates its errors."""


def trace_calls(settings: "Settings", seconds: float) -> AbstractContextManager[Interceptor | None]:
    """Trace a client's calls if telemetry is enabled. Missing packages are reported by `doctor`.

    Args:
        settings: current settings.
        seconds: time limit for exporting the remaining spans at the end of the block.
    """
    endpoint = settings.telemetry.endpoint(os.environ)
    if not endpoint:
        return nullcontext()
    try:
        from tightloop.client.tracing import exporting
    except ImportError:
        return nullcontext()
    # Suppress warnings about an unreachable collector in the terminal.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    return exporting(endpoint, settings.telemetry.service_name, seconds=seconds)


async def connect(
    settings: "Settings",
    data_converter: DataConverter,
    interceptors: Sequence[Interceptor] = (),
    *,
    runtime: Runtime | None = None,
) -> Client:
    """Connect to Temporal within `CONNECT_TIMEOUT`. Workers pass their own runtime.

    Raises:
        ServiceUnavailableError: no Temporal server responds at the address. Retryable.
        SettingsError: a file in `temporal.tls_*` cannot be used.
    """
    temporal = settings.temporal
    tls, refused = tls_of(temporal), ""
    # Registered once, however many connections are opened: each registration would add its own wait.
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
                        rpc_metadata={name: text.get_secret_value() for name, text in temporal.metadata.items()},
                        retry_config=_RETRY if runtime is None else _patience(temporal),
                        runtime=runtime or _quiet_runtime(),
                        interceptors=interceptors,
                    )
                except RuntimeError as error:
                    # With TLS only: a server that requires TLS closes a plain connection, and a retry does not help.
                    again = (_STARTING, *(_CUT_OFF if tls else ()))
                    refused = str(error)
                    if not any(phrase in refused for phrase in again):
                        raise
                await asyncio.sleep(_STARTING_WAIT.total_seconds())
    except (RuntimeError, ValueError, TimeoutError, RPCError) as error:
        # After a timeout, the last connection error is more informative.
        text = refused if isinstance(error, TimeoutError) and _STARTING not in refused else str(error)
        _check_known(temporal.address, text, encrypted=temporal.encrypted)
        raise no_answer(temporal.address, _reason(error)) from error


def _patience(temporal: "TemporalSettings") -> RetryConfig:
    """Return the retry policy for workers.

    Workers retry a call for `absence_s`, because an undelivered result would have to be computed again.
    """
    # 0 means unlimited retries. The interval is short, because cancellations arrive with heartbeat responses.
    return RetryConfig(
        max_retries=0, max_interval_millis=1_000, max_elapsed_time_millis=int(temporal.absence_s * 1_000)
    )


def _quiet_runtime() -> Runtime:
    """Return the runtime for this process's clients. It does not log a warning for every retry."""
    process = os.getpid()
    if process not in _runtimes:
        _runtimes[process] = Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="ERROR")))
    return _runtimes[process]


def _wait_for_threads() -> None:
    """Wait until the SDK's threads have released their Python objects before the interpreter exits.

    With SDK 1.35, 3 of 25 connected programs aborted at exit without this wait. With the wait, none did.
    """
    time.sleep(_EXIT_SECONDS)


def tls_of(temporal: "TemporalSettings") -> TLSConfig | bool:
    """Load the TLS files and return the TLS configuration, or False if TLS is not used.

    Raises:
        SettingsError: a file cannot be read or is not in PEM format.
    """
    if not temporal.encrypted:
        return False
    from tightloop.settings import PEM

    read: dict[str, bytes] = {}
    for name, file in temporal.tls_files.items():
        # Temporal's configuration may contain the certificate itself instead of a path.
        if file.startswith(PEM):
            read[name] = file.encode()
            continue
        try:
            read[name] = Path(file).expanduser().read_bytes()
        except OSError as error:
            raise SettingsError(
                f"temporal.{name} {file} cannot be read: {error.strerror or error}. "
                "Fix the path in the settings or in Temporal's own configuration"
            ) from error
        if PEM.encode() not in read[name]:
            raise SettingsError(f"temporal.{name} {file} is not a PEM file. Set it to a PEM file")
    return TLSConfig(
        server_root_ca_cert=read.get("tls_ca"),
        client_cert=read.get("tls_cert"),
        client_private_key=read.get("tls_key"),
        domain=temporal.tls_server_name or None,
    )


def converter_for(client: Client, workflow_id: str) -> DataConverter:
    """Return the data converter to use for a workflow's payloads."""
    context = WorkflowSerializationContext(namespace=client.namespace, workflow_id=workflow_id)
    return client.data_converter.with_context(context)


def no_answer(address: str, why: str) -> ServiceUnavailableError:
    """Return the error for an unreachable Temporal server."""
    from tightloop.settings import LOOPBACK_HOSTS

    is_local = address.rpartition(":")[0] in LOOPBACK_HOSTS
    advice = "Start it: tightloop up" if is_local else "Change temporal.address, or ask Temporal's operator"
    return ServiceUnavailableError(f"cannot reach Temporal at {address} ({why}). {advice}")


# Error texts of rustls 0.23, tonic 0.14 and hyper 1, which the SDK passes on, with advice. Measured with Temporal 1.32,
# nginx 1.22 and Python's TLS as proxy.
_TLS_FAILURES = {
    "UnknownIssuer": (
        "this host does not trust the authority that signed the server certificate. Set temporal.tls_ca to the CA file"
    ),
    "NotValidForName": "the server certificate is for a different name. Set temporal.tls_server_name to that name",
    "KeyMismatch": "temporal.tls_key does not match temporal.tls_cert. Set both to files from the same key pair",
    "PrivateKeyParseError": "temporal.tls_key contains no private key. Set it to the private key file",
    "parse private key": (
        "temporal.tls_key contains a private key that cannot be read. Use an RSA, ECDSA or Ed25519 key"
    ),
    "BadEncoding": "a certificate in temporal.tls_cert or tls_ca cannot be read. Use a PEM file of certificates",
    "InvalidCertificate": "the server certificate is not valid. Check its dates and temporal.tls_ca",
    "CertificateRequired": "the server requires a client certificate. Set temporal.tls_cert and temporal.tls_key",
    "UnknownCA": (
        "the server does not trust the authority that signed temporal.tls_cert. Ask Temporal's operator for a "
        "certificate"
    ),
    "close_notify": (
        "the server closed the connection. If it requires a client certificate, set temporal.tls_cert and tls_key"
    ),
    "status: 400": (
        "the server returned HTTP 400. If it requires a different client certificate, set temporal.tls_cert and tls_key"
    ),
    "InvalidContentType": (
        "the server does not use TLS, but this client does, because an API key or a certificate is set. Set "
        "temporal.tls: false, or tls.disabled = true in the profile"
    ),
}
_FAILURES = {
    "code: Unauthenticated": "denied access. Set a valid temporal.api_key or TEMPORAL_API_KEY",
    "code: PermissionDenied": "denied access. Ask Temporal's operator which permissions this key or certificate has",
    "status: 401": (
        "or a proxy in front of it denied access (HTTP 401). Set a valid temporal.api_key or TEMPORAL_API_KEY"
    ),
    "status: 403": (
        "or a proxy in front of it denied access (HTTP 403). Ask the operator which permissions this connection has"
    ),
}
_PLAIN_FAILURES = ("FRAME_SIZE_ERROR", "connection closed")
"""Errors of a connection without TLS to a server that requires it."""


def _check_known(address: str, text: str, *, encrypted: bool) -> None:
    """Raise a more specific error if the cause of a failed connection is known.

    Raises:
        SettingsError: the error text shows the cause.
    """
    # Before the TLS failures: these statuses show that TLS itself worked.
    for phrase, problem in _FAILURES.items():
        if phrase in text:
            raise SettingsError(f"Temporal at {address} {problem}")
    for phrase, problem in _TLS_FAILURES.items():
        if encrypted and phrase in text:
            raise SettingsError(f"Temporal at {address} cannot be used over TLS: {problem}")
    if not encrypted and any(phrase in text for phrase in _PLAIN_FAILURES):
        raise SettingsError(
            f"Temporal at {address} closed the unencrypted connection. If Temporal requires TLS, set temporal.tls: true"
        )


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {CONNECT_TIMEOUT.total_seconds():g} s"
    text = str(error)
    for cause in ("Connection refused", "dns error", "tls handshake", "Network is unreachable"):
        if cause.lower() in text.lower():
            return cause.lower()
    return text.removeprefix("Failed client connect: ")[:160]
