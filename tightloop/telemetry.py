"""Telemetry settings and the filter for span contents.

Telemetry is disabled unless the settings or the environment specify a collector.

Labels and attributes are enums, numbers and ids. For text, only the length and digest are exported.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, model_validator

from tightloop.value import Document, digest
from tightloop.value.scrub import scrub

CHAT, INVOKE_AGENT, EXECUTE_TOOL = "chat", "invoke_agent", "execute_tool"
"""Operations. A span is named after its operation and the model, agent or tool."""
OPERATIONS = (CHAT, INVOKE_AGENT, EXECUTE_TOOL)

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
"""Number of input tokens, including tokens read from a cache."""
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CONVERSATION = "gen_ai.conversation.id"
AGENT = "gen_ai.agent.name"
TOOL = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"
KIND = "gen_ai.token.type"
ERROR = "error.type"

TEXTS = frozenset(
    {OPERATION, PROVIDER, REQUEST_MODEL, RESPONSE_MODEL, RESPONSE_ID, CONVERSATION, AGENT, TOOL, TOOL_CALL}
)
COUNTS = frozenset({INPUT_TOKENS, OUTPUT_TOKENS, CACHED_TOKENS})
# Each value of a label is a time series of its own, so ids are not among them.
LABELS = frozenset({OPERATION, PROVIDER, REQUEST_MODEL, RESPONSE_MODEL, ERROR})
"""Attributes that are also used in metrics: names from settings and services, and error classes."""

DURATION = "gen_ai.client.operation.duration"
USAGE = "gen_ai.client.token.usage"
GENAI_METRICS = {
    DURATION: "Time of a model call, in seconds",
    USAGE: "Tokens of a model call",
}
BUCKETS = {
    DURATION: (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    USAGE: tuple(float(4**power) for power in range(14)),
}
"""Bucket boundaries recommended by the OpenTelemetry conventions."""


ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
SPAN_ATTRIBUTES = TEXTS | {*("temporalWorkflowID", "temporalRunID", "temporalActivityID", "temporalUpdateID", ERROR)}
"""Text attributes allowed on a span: ids from Temporal or a provider, model names and class names."""
UNTRACED = ("QueryWorkflow:", "HandleQuery:")
"""Calls that get no spans, because queries change nothing and `watch` sends two per second."""

METRICS = {
    "tightloop_iterations": "Iterations by probability class and outcome of the delivery",
    "tightloop_tracker_seconds": "Time to evaluate an iteration: diff, class, checkpoint",
    "tightloop_plans": "Planner responses by verdict",
    "tightloop_tokens": "Model tokens by purpose of the call",
    "tightloop_call_cost_usd": "Cost of an activity that used a model, if known",
    "tightloop_alerts": "Alerts by cause, one per channel",
    "tightloop_activity_failures": "Failed activity attempts by error class",
    "tightloop_pauses": "Waits for a person by kind",
    "tightloop_answer_seconds": "Time from a question to its answer, by kind",
    "tightloop_interventions": "Messages from people that episodes accepted, by message",
    "tightloop_safety_findings": "Findings of safety checks by checked object",
    "tightloop_bandit_findings": "New findings of Bandit, one value per scan",
    "tightloop_memory_searches": "Memory searches by whether they found something",
    "tightloop_changed_line_coverage": "Share of the changed lines that tests run, 0 to 1",
    "tightloop_disk_used_share": "Used share of the closer disk limit, where 1 means that the limit is reached",
    "tightloop_freed_bytes": "Bytes freed by scheduled cleanups",
    "tightloop_episodes": "Episodes that ended, by outcome",
    "tightloop_episode_tokens": "Tokens of an episode, input and output, if known",
    "tightloop_episode_cost_usd": "Cost of an episode, if known",
    "tightloop_episode_minutes": "Working time of an episode, without pauses",
    "tightloop_episode_iterations": "Iterations of an episode",
    **GENAI_METRICS,
}
"""tightloop's own metrics with their descriptions. Two descriptions for the same name would create two series."""

# No `@`: the address is printed and logged, and a password would be, too.
_URL = re.compile(r"https?://[^\s/@]+(/\S*)?")
_BIND = re.compile(r"[^\s/]+:\d{1,5}")
_SPAN_NAME = re.compile(rf"[A-Za-z]{{1,40}}:[A-Za-z_]\w{{0,79}}|(?:{'|'.join(OPERATIONS)}) [\w.:/-]{{1,100}}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}")
_CLASS = re.compile(r"[A-Za-z_][\w.]{0,99}", re.ASCII)


class TelemetrySettings(Document):
    """Destinations of traces and metrics. See docs/operate/telemetry.md."""

    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318. If null, the value of
    `OTEL_EXPORTER_OTLP_ENDPOINT` is used, if any.
    """
    prometheus_bind: str | None = None
    """Host and port on which a worker serves its metrics to Prometheus instead of sending them to the collector."""
    service_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")] = "tightloop"
    """Service name for traces and metrics."""

    @model_validator(mode="after")
    def _check_addresses(self) -> "TelemetrySettings":
        if self.otlp_endpoint is not None and not _URL.fullmatch(self.otlp_endpoint):
            raise ValueError("otlp_endpoint must look like http://127.0.0.1:4318, without a username or password")
        if self.prometheus_bind is not None and not _BIND.fullmatch(self.prometheus_bind):
            raise ValueError("prometheus_bind must look like 127.0.0.1:9464")
        return self

    def endpoint(self, environ: Mapping[str, str]) -> str:
        """Return the collector's base URL without a trailing slash, or "" if there is no collector."""
        if self.otlp_endpoint is not None:
            return self.otlp_endpoint.rstrip("/")
        return "" if self.find_ignore_reason(environ) else environ.get(ENDPOINT_VARIABLE, "").strip().rstrip("/")

    def find_ignore_reason(self, environ: Mapping[str, str]) -> str:
        """Return the reason why the collector in the environment is ignored.

        The result is "" if the collector is used, or if none is set.
        """
        if self.otlp_endpoint is not None or not environ.get(ENDPOINT_VARIABLE, "").strip():
            return ""
        # Names and values of the OpenTelemetry specification; the exporter of the `telemetry` extra supports HTTP only.
        if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return "OTEL_SDK_DISABLED is true"
        protocol = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip()
        if protocol not in ("", "http/protobuf"):
            return f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}, but only http/protobuf is supported"
        return ""

    def describe(self, environ: Mapping[str, str]) -> str:
        """Describe the destinations of traces and metrics. Return "" if telemetry is off."""
        endpoint = self.endpoint(environ)
        # Unlike the setting, the environment variable is not validated and may contain a password.
        address = re.sub(r"://[^/@\s]*@", "://**********@", endpoint)
        parts = [f"traces to {address}"] if endpoint else []
        if self.prometheus_bind:
            parts.append(f"metrics at http://{self.prometheus_bind}/metrics")
        elif endpoint:
            parts.append(f"metrics to {address}")
        return ", ".join(parts)


def span_name(name: str) -> str:
    """Return the name of a span.

    Names are only exported if they consist of type and message names. Other names are replaced with a
    digest.
    """
    # Workflow and message types are names that a foreign client can choose.
    return name if _SPAN_NAME.fullmatch(name) and scrub(name) == name else digest(name)


def span_attributes(attributes: Mapping[str, object]) -> dict[str, str | int | tuple[str, ...]]:
    """Return the attributes that may be exported. Values that do not look like IDs are hashed."""
    exported: dict[str, str | int | tuple[str, ...]] = {}
    for name, value in attributes.items():
        if name in SPAN_ATTRIBUTES:
            exported[name] = _id(str(value))
        elif name in COUNTS and isinstance(value, int):
            exported[name] = value
        elif name == FINISH_REASONS and isinstance(value, Sequence):
            exported[name] = tuple(_id(str(reason)) for reason in value)
    return exported


def _id(text: str) -> str:
    return text if _ID.fullmatch(text) and scrub(text) == text else digest(text)


def class_name(text: object) -> str:
    """Return the class name of an error, or `error` if the text does not look like a class name."""
    return text if isinstance(text, str) and _CLASS.fullmatch(text) else "error"


def status_text(description: str) -> str:
    """Keep the class in `Class: message` and replace the message with its digest."""
    kind, _, message = description.partition(": ")
    return f"{class_name(kind)} ({digest(message)})" if message else digest(description)
