"""The connection to Temporal: made within a bound, or refused with a sentence."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from temporalio.client import Client, Interceptor
from temporalio.converter import DataConverter
from temporalio.runtime import Runtime
from temporalio.service import RetryConfig, RPCError

from tightloop.errors import ServiceUnavailableError
from tightloop.settings import Settings

CONNECT_TIMEOUT = timedelta(seconds=5)
RETRY_SECONDS = 3
"""So long a call is tried again where the server cannot be reached."""
# Fewer retries than the SDK's default: it logs from the fifth on, and `watch` has patience of its own.
_RETRY = RetryConfig(max_retries=4, max_elapsed_time_millis=RETRY_SECONDS * 1_000)
_STARTING = "not healthy yet"
"""A server that has just started says so."""
_STARTING_WAIT = timedelta(milliseconds=100)


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
    """
    temporal = settings.temporal
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT.total_seconds()):
            while True:
                try:
                    return await Client.connect(
                        temporal.address,
                        namespace=temporal.namespace,
                        data_converter=data_converter,
                        tls=temporal.tls,
                        api_key=temporal.api_key.get_secret_value() or None,
                        # Workers keep the SDK's own patience: they outlast a restart of the server.
                        retry_config=_RETRY if runtime is None else None,
                        runtime=runtime,
                        interceptors=interceptors,
                    )
                except RuntimeError as error:
                    if _STARTING not in str(error):
                        raise
                await asyncio.sleep(_STARTING_WAIT.total_seconds())
    except (RuntimeError, ValueError, TimeoutError, RPCError) as error:
        raise no_answer(temporal.address, _reason(error)) from error


def no_answer(address: str, why: str) -> ServiceUnavailableError:
    """Return the error for a Temporal that cannot be reached."""
    return ServiceUnavailableError(f"Temporal does not answer at {address} ({why}). Start it: tightloop up")


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT.total_seconds():g} s"
    text = str(error)
    for known in ("Connection refused", "dns error", "tls handshake", "Network is unreachable"):
        if known.lower() in text.lower():
            return known.lower()
    return text.removeprefix("Failed client connect: ")[:160]
