"""Continues the trace of whoever sent a request (https://www.w3.org/TR/trace-context).

Import it only where telemetry is on: it loads OpenTelemetry.
"""

from opentelemetry import context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send


class CallersTrace:
    """ASGI application around another one: what a request does in Temporal belongs to the trace that it names."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # What is malformed is left out, as the specification wants it.
        token = context.attach(self._propagator.extract(Headers(scope=scope)))
        try:
            await self._app(scope, receive, send)
        finally:
            context.detach(token)
