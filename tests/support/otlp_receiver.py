"""A loopback receiver of OTLP over HTTP: keeps every request as raw bytes, and reads it with the published messages."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class Export:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes
    """Without its compression."""


class Collector:
    """What came, and what it says."""

    def __init__(self) -> None:
        self.port = 0
        self.exports: list[Export] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _came(self, path: str) -> list[bytes]:
        with self.lock:
            return [export.body for export in self.exports if export.path == path]

    @property
    def raw(self) -> bytes:
        """Every byte of every request: paths, headers and bodies."""
        with self.lock:
            return b"\n".join(f"{one.path} {one.headers}\n".encode() + one.body for one in self.exports)

    @property
    def spans(self) -> list[Span]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self._came("/v1/traces")]
        return [
            span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def services(self) -> set[str]:
        """The names under which spans came."""
        requests = [ExportTraceServiceRequest.FromString(body) for body in self._came("/v1/traces")]
        resources = [group.resource.attributes for request in requests for group in request.resource_spans]
        return {values(attributes)["service.name"] for attributes in resources}

    @property
    def sums(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """The newest value of each series of a counter, or the count of a histogram, by name and labels."""
        found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for body in self._came("/v1/metrics"):
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                    for point in metric.sum.data_points:
                        found[metric.name, frozenset(values(point.attributes).items())] = (
                            point.as_int or point.as_double
                        )
                    for point in metric.histogram.data_points:
                        found[metric.name, frozenset(values(point.attributes).items())] = point.count
        return found

    @property
    def exemplars(self) -> dict[str, set[bytes]]:
        """The spans that histograms name, by the name of the metric."""
        found: dict[str, set[bytes]] = {}
        for body in self._came("/v1/metrics"):
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                    named = {one.span_id for point in metric.histogram.data_points for one in point.exemplars}
                    found.setdefault(metric.name, set()).update(named)
        return found


def values(attributes: "list[KeyValue]") -> dict[str, str]:
    """Return attributes as texts."""
    return {pair.key: pair.value.string_value for pair in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Receive on a free port of the loopback interface."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            with collector.lock:
                collector.exports.append(Export(self.path, dict(self.headers.items()), body))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
