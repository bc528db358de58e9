"""Settings of telemetry and what spans may contain. Off unless settings or environment name a collector.

Labels and attributes are enums, numbers and ids; a text goes out as its length and digest only.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, model_validator

from tightloop.value import Document, digest
from tightloop.value.scrub import scrub

CHAT, INVOKE_AGENT, EXECUTE_TOOL = "chat", "invoke_agent", "execute_tool"
"""Operations; the name of a span is its operation and the name of the model, the agent or the tool."""
OPERATIONS = (CHAT, INVOKE_AGENT, EXECUTE_TOOL)

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
"""With those that came from a cache."""
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
LABELS = frozenset({OPERATION, PROVIDER, REQUEST_MODEL, RESPONSE_MODEL, ERROR})
"""What metrics carry, too: names that the settings and the services give, and classes of errors."""

DURATION = "gen_ai.client.operation.duration"
USAGE = "gen_ai.client.token.usage"
GENAI_METRICS = {
    DURATION: "Time of a call of a model, in seconds",
    USAGE: "Tokens of a call of a model",
}
BUCKETS = {
    DURATION: (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    USAGE: tuple(float(4**power) for power in range(14)),
}
"""Those of the conventions."""


ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
SPAN_ATTRIBUTES = TEXTS | {*("temporalWorkflowID", "temporalRunID", "temporalActivityID", "temporalUpdateID", ERROR)}
"""Texts that may stand on a span; ids that Temporal or a provider gave, names of models, and class names."""
UNTRACED = ("QueryWorkflow:", "HandleQuery:")
"""Reading changes nothing, and `watch` reads twice a second."""

METRICS = {
    "tightloop_iterations": "Iterations by probability class and by how the delivery ended",
    "tightloop_tracker_seconds": "Time to look at an iteration: diff, class, checkpoint",
    "tightloop_plans": "Answers of planners by verdict",
    "tightloop_tokens": "Tokens of models by who used them",
    "tightloop_call_cost_usd": "Cost of an activity that used a model, where it is known",
    "tightloop_alerts": "Alerts by cause, one for each channel",
    "tightloop_activity_failures": "Attempts of activities that failed, by the class of the error",
    "tightloop_pauses": "Waits for a person by kind",
    "tightloop_answer_seconds": "Time from a question to its answer, by kind",
    "tightloop_interventions": "Messages of people that episodes accepted, by message",
    "tightloop_safety_findings": "Findings of safety checks, by what was checked",
    "tightloop_bandit_findings": "New findings of Bandit, one value for each scan",
    "tightloop_memory_searches": "Searches of the memory, by whether they found something",
    "tightloop_changed_line_coverage": "Share of the changed lines that tests run, 0 to 1",
    "tightloop_disk_used_share": "How much of the nearer bound of the disk is used; 1: it is reached",
    "tightloop_freed_bytes": "Bytes that collections of schedules freed",
    "tightloop_episodes": "Episodes that ended, by outcome",
    "tightloop_episode_tokens": "Tokens of an episode, input and output, where they are known",
    "tightloop_episode_cost_usd": "Cost of an episode, where it is known",
    "tightloop_episode_minutes": "Working time of an episode, pauses left out",
    "tightloop_episode_iterations": "Iterations of an episode",
    **GENAI_METRICS,
}
"""Our own metrics and what they say. Two descriptions of one name would be two series."""

_URL = re.compile(r"https?://[^\s/@]+(/\S*)?")
_BIND = re.compile(r"[^\s/]+:\d{1,5}")
_SPAN_NAME = re.compile(rf"[A-Za-z]{{1,40}}:[A-Za-z_]\w{{0,79}}|(?:{'|'.join(OPERATIONS)}) [\w.:/-]{{1,100}}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}")
_CLASS = re.compile(r"[A-Za-z_][\w.]{0,99}", re.ASCII)


class TelemetrySettings(Document):
    """Where traces and metrics go. See docs/operate/telemetry.md."""

    otlp_endpoint: str | None = None
    """Base URL of a collector that speaks OTLP over HTTP, such as http://127.0.0.1:4318. Empty (null): the one of
    `OTEL_EXPORTER_OTLP_ENDPOINT`, else none."""
    prometheus_bind: str | None = None
    """Host and port at which a worker shows its metrics to Prometheus, in place of sending them to the collector."""
    service_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")] = "tightloop"
    """Name under which traces and metrics are stored."""

    @model_validator(mode="after")
    def _addressed(self) -> "TelemetrySettings":
        if self.otlp_endpoint is not None and not _URL.fullmatch(self.otlp_endpoint):
            raise ValueError("otlp_endpoint must be like http://127.0.0.1:4318, without a user and a password")
        if self.prometheus_bind is not None and not _BIND.fullmatch(self.prometheus_bind):
            raise ValueError("prometheus_bind must be like 127.0.0.1:9464")
        return self

    def endpoint(self, environ: Mapping[str, str]) -> str:
        """Return the base URL of the collector, without a slash at its end; empty without a collector."""
        if self.otlp_endpoint is not None:
            return self.otlp_endpoint.rstrip("/")
        return "" if self.ignored(environ) else environ.get(ENDPOINT_VARIABLE, "").strip().rstrip("/")

    def ignored(self, environ: Mapping[str, str]) -> str:
        """Return why the collector of the environment is not used; empty where it is used or not named."""
        if self.otlp_endpoint is not None or not environ.get(ENDPOINT_VARIABLE, "").strip():
            return ""
        # Names and values of the OpenTelemetry specification; the exporter of the extra `telemetry` speaks HTTP only.
        if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return "OTEL_SDK_DISABLED is true"
        protocol = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip()
        if protocol not in ("", "http/protobuf"):
            return f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}, but only http/protobuf is spoken here"
        return ""

    def told(self, environ: Mapping[str, str]) -> str:
        """Return in a few words what goes where; empty where telemetry is off."""
        endpoint = self.endpoint(environ)
        # The variable of the environment is not validated as the setting is: it may hold a password.
        shown = re.sub(r"://[^/@\s]*@", "://**********@", endpoint)
        parts = [f"traces to {shown}"] if endpoint else []
        if self.prometheus_bind:
            parts.append(f"metrics at http://{self.prometheus_bind}/metrics")
        elif endpoint:
            parts.append(f"metrics to {shown}")
        return ", ".join(parts)


def span_name(name: str) -> str:
    """Return the name of a span, made of the names of types and messages; anything else becomes its digest."""
    return name if _SPAN_NAME.fullmatch(name) and scrub(name) == name else digest(name)


def span_attributes(attributes: Mapping[str, object]) -> dict[str, str | int | tuple[str, ...]]:
    """Return those attributes that may go out; a value that is not like an id becomes its digest."""
    known: dict[str, str | int | tuple[str, ...]] = {}
    for name, value in attributes.items():
        if name in SPAN_ATTRIBUTES:
            known[name] = _id(str(value))
        elif name in COUNTS and isinstance(value, int):
            known[name] = value
        elif name == FINISH_REASONS and isinstance(value, Sequence):
            known[name] = tuple(_id(str(reason)) for reason in value)
    return known


def _id(text: str) -> str:
    return text if _ID.fullmatch(text) and scrub(text) == text else digest(text)


def class_name(text: object) -> str:
    """Return the name of an error's class; what is not like one becomes `error`."""
    return text if isinstance(text, str) and _CLASS.fullmatch(text) else "error"


def status_text(description: str) -> str:
    """Return the class in `Class: message`, with the digest of the message."""
    kind, _, message = description.partition(": ")
    return f"{class_name(kind)} ({digest(message)})" if message else digest(description)
