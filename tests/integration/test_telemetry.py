"""Traces and metrics as a collector and a Prometheus see them, from workers and commands that are processes."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from temporalio.client import Client

from activities.model.gateway.wire import Wire
from tests.support.episodes import TRIES, eventually
from tests.support.fake_model import FakeCoderModel, use
from tests.support.fake_model.exchange import Tokens
from tests.support.otlp_receiver import Collector, collecting, values
from tests.support.stack.stack import ROOT, Stack, wait_for_port
from tightloop.client import TightloopClient
from tightloop.client.keys import new_ring, write_ring
from tightloop.client.setup import connect_and_set_up
from tightloop.client.tracing import WithoutContent
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.episode.planning import PlanVerdict
from tightloop.episode.progress.tracking import ProbabilityClass
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.executor.model import ExecutorChoice, ExecutorStatus
from tightloop.run.question import QuestionKind
from tightloop.settings import parse_settings
from tightloop.telemetry import METRICS, TelemetrySettings
from tightloop.value import digest
from worker.server import free_port

FAILS = {**TRIES, "status": "failed", "error": "broke at balance_of(customer_47)", "summary": "tried"}
LABEL = re.compile(r'(?!le=)\b[\w.]+="([^"]*)"')
KNOWN_LABELS = {
    *("tightloop", "default", "EpisodeWorkflow", "none"),
    *(member.value for kind in (ExecutorStatus, QuestionKind, PlanVerdict) for member in kind),
    *(member.value for kind in (ProbabilityClass, EpisodeOutcome) for member in kind),
    *("change", "plan", "pause", "resume", "hit", "miss"),
}
WORKS = {"write": [{"path": "done.txt"}], "summary": "done"}


async def command_line(stack: Stack, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, env=stack.environment, capture_output=True, text=True, timeout=150
    )


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def one_series(text: str, name: str, **labels: str) -> float:
    """The value of the one series with these labels, whatever else it carries."""
    rows = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    fitting = [row for row in rows if all(f'{label}="{value}"' in row for label, value in labels.items())]
    assert len(fitting) == 1, (name, labels, rows)
    return float(fitting[0].rpartition(" ")[2])


@pytest.mark.timeout(400)
async def test_a_trace_links_whoever_started_an_episode_with_its_workflows_activities_and_calls_of_a_model(
    tmp_path: Path, workspace: Path
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    write = use(("create_file", {"path": "lines.py", "content": "LINES = 3\n", "overwrite": None}))
    finish = use(("finish", {"summary": "written"}))
    with collecting() as collector, FakeCoderModel(write, finish, tokens=Tokens(input=1200, output=80)) as model:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-collector-key=letmein",
            "TIGHTLOOP_TELEMETRY__SERVICE_NAME": "loop-of-the-house",
            "TIGHTLOOP_GATEWAY__LISTEN": listen,
            "TIGHTLOOP_CODER__BASE_URL": model.base_url(Wire.CHAT),
            "TIGHTLOOP_CODER__MODELS": json.dumps(["m1"]),
        }
        with Stack(tmp_path / "stack", variables) as stack:
            stack.start_server()
            wait_for_port(stack.settings.temporal.address)
            stack.start_worker()
            gateway = stack.start_gateway()
            asked = ("start", "make lines", "--workspace", str(workspace), "--done", "true")
            started = await command_line(stack, "tightloop.cli.main", *asked)
            assert started.returncode == 0, started.stdout + started.stderr
            client = await TightloopClient.connect(settings=stack.settings)
            result = await client.result(await client.resolve("last"))
            made = await command_line(stack, "tightloop.cli.main", "token", "create", "anna", "--role", "operator")
            wait_for_port(listen)
            coded = await asyncio.to_thread(posted, listen, made.stdout.strip(), workspace)
            written = await client.result(coded)
            gateway.terminate()
            await asyncio.to_thread(gateway.wait, 60)
            stack.stop_worker()
            log = stack.worker_log()
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert written.outcome is EpisodeOutcome.SUCCEEDED, written.reason
    assert f"telemetry: traces to {collector.url}, metrics to {collector.url}" in log
    check_trace_of_the_command_line(collector.spans)
    check_trace_of_the_caller(collector.spans)
    check_exports(collector)


@pytest.mark.timeout(200)
async def test_gateway_that_is_stopped_sends_what_it_traced_last(tmp_path: Path, workspace: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    with collecting() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "TIGHTLOOP_GATEWAY__LISTEN": listen}
        with Stack(tmp_path / "stack", variables) as stack:
            stack.start_server()
            wait_for_port(stack.settings.temporal.address)
            await connect_and_set_up(stack.settings)
            gateway = stack.start_gateway()
            made = await command_line(stack, "tightloop.cli.main", "token", "create", "anna", "--role", "operator")
            wait_for_port(listen)
            await asyncio.to_thread(posted, listen, made.stdout.strip(), workspace)
            gateway.terminate()
            assert await asyncio.to_thread(gateway.wait, 60) == 0
    [asking] = named(collector.spans, "StartWorkflow:EpisodeWorkflow")
    assert asking.parent_span_id.hex() == CALLER


def check_trace_of_the_command_line(spans: list[Span]) -> None:
    """The start, the workflow and its activities are one trace."""
    [start] = [span for span in named(spans, "StartWorkflow:EpisodeWorkflow") if span.trace_id.hex() != TRACE]
    trace = [span for span in spans if span.trace_id == start.trace_id]
    [run] = named(trace, "RunWorkflow:EpisodeWorkflow")
    [opening] = named(trace, "StartActivity:open_workspace")
    [opened] = named(trace, "RunActivity:open_workspace")
    assert run.parent_span_id == start.span_id
    assert opening.parent_span_id == start.span_id
    assert opened.parent_span_id == opening.span_id
    assert opened.end_time_unix_nano > opened.start_time_unix_nano
    assert values(opened.attributes)["temporalWorkflowID"] == values(start.attributes)["temporalWorkflowID"]
    assert {span.trace_id.hex() for span in spans} == {TRACE, start.trace_id.hex()}


def check_trace_of_the_caller(spans: list[Span]) -> None:
    """What a request with a `traceparent` started goes on with its trace, down to the calls of the model."""
    by_id = {span.span_id: span for span in spans}
    called = [span for span in spans if span.trace_id.hex() == TRACE]
    [asking] = named(called, "StartWorkflow:EpisodeWorkflow")
    assert asking.parent_span_id.hex() == CALLER
    [turn, last] = named(called, "chat m1")
    for call, of in ((turn, "take_turn"), (last, "take_turn"), *((one, "use_tool") for one in tools(called))):
        assert by_id[call.parent_span_id].name == f"RunActivity:{of}"
    assert [call.name for call in tools(called)] == ["execute_tool create_file", "execute_tool finish"]
    coding = {values(call.attributes)["gen_ai.conversation.id"] for call in (turn, last, *tools(called))}
    assert len(coding) == 1
    assert values(turn.attributes)["gen_ai.agent.name"] == "coder"


def check_exports(collector: Collector) -> None:
    """Everything went out before the processes ended, and measurements name their spans."""
    turns = {span.span_id for span in named(collector.spans, "chat m1")}
    assert collector.services == {"loop-of-the-house"}
    assert {export.headers.get("x-collector-key") for export in collector.exports} == {"letmein"}
    ended = [value for (name, _), value in collector.sums.items() if name == "tightloop_episodes"]
    assert sum(ended) == 2, "what was counted last goes out before the worker ends"
    assert any(name.startswith("temporal_") for name, _ in collector.sums)
    assert collector.exemplars["gen_ai.client.operation.duration"] <= turns
    assert collector.exemplars["gen_ai.client.operation.duration"]
    tracking = {span.span_id for span in collector.spans if span.name == "RunActivity:track_iteration"}
    assert collector.exemplars["tightloop_tracker_seconds"] & tracking


TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def tools(spans: list[Span]) -> list[Span]:
    return sorted((one for one in spans if one.name.startswith("execute_tool ")), key=lambda one: one.name)


def posted(listen: str, token: str, workspace: Path) -> str:
    """Start an episode of the coder as a service does that traces its requests; returns its id."""
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "traceparent": f"00-{TRACE}-{CALLER}-01",
    }
    body = {
        "goal": "make lines",
        "workspace": str(workspace),
        "definitionOfDone": [{"run": "test -f lines.py"}],
        "executor": {"name": "coder"},
    }
    request = urllib.request.Request(f"http://{listen}/api/episodes", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        episode_id: str = json.load(answer)["id"]
        return episode_id


@pytest.mark.timeout(400)
async def test_prometheus_reads_at_the_workers_port_what_an_episode_did_and_labels_hold_no_text(
    tmp_path: Path, workspace: Path
) -> None:
    bind = f"127.0.0.1:{free_port()}"
    bounded = {"TIGHTLOOP_RETENTION__EVERY_H": "24", "TIGHTLOOP_RETENTION__MAX_GB": "1000"}
    with Stack(tmp_path / "stack", {"TIGHTLOOP_TELEMETRY__PROMETHEUS_BIND": bind, **bounded}) as stack:
        stack.start_server()
        wait_for_port(stack.settings.temporal.address)
        stack.start_worker()
        client = await TightloopClient.connect(settings=stack.settings)
        request = EpisodeRequest(
            goal="make it right",
            workspace=str(workspace),
            definition_of_done=("test -f done.txt",),
            executor=ExecutorChoice(name="scripted", options={"steps": [FAILS, WORKS]}),
        )
        episode_id = await client.start(request)
        await client.pause(episode_id, "wait for the customer")

        async def paused() -> bool:
            with suppress(ServiceUnavailableError):  # its worker is still starting
                return (await client.status(episode_id)).status == "paused"
            return False

        await eventually(paused, seconds=120)
        await client.resume(episode_id)
        async with asyncio.timeout(150):
            result = await client.result(episode_id)
        text = await asyncio.to_thread(scraped, bind)
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert one_series(text, "tightloop_iterations", executor="failed") == 1
    assert one_series(text, "tightloop_iterations", executor="completed") == 1
    assert one_series(text, "tightloop_pauses", kind="operator") == 1
    assert one_series(text, "tightloop_interventions", message="pause") == 1
    assert one_series(text, "tightloop_interventions", message="resume") == 1
    assert one_series(text, "tightloop_safety_findings", of="change") == 0, "known, and none"
    assert "tightloop_answer_seconds" not in text, "an operator's own pause is not a question"
    assert one_series(text, "tightloop_episodes", outcome="SUCCEEDED") == 1
    assert one_series(text, "tightloop_tracker_seconds_count") == 2
    assert 0 < one_series(text, "tightloop_tracker_seconds_sum") < 60
    assert one_series(text, "tightloop_episode_iterations_sum") == result.iterations == 2
    assert 0 < one_series(text, "tightloop_disk_used_share") < 1e-3
    assert "temporal_activity_execution_latency" in text
    assert 'service_name="tightloop"' in text
    labels = {value for row in text.splitlines() if row.startswith("tightloop_") for value in LABEL.findall(row)}
    assert labels <= KNOWN_LABELS, "names and enums only"


def scraped(bind: str) -> str:
    with urllib.request.urlopen(f"http://{bind}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.timeout(400)
async def test_a_worker_whose_collector_is_not_there_works_complains_once_and_ends_in_time(
    tmp_path: Path, workspace: Path
) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    with Stack(tmp_path / "stack", {"TIGHTLOOP_TELEMETRY__OTLP_ENDPOINT": dead}) as stack:
        stack.start_server()
        wait_for_port(stack.settings.temporal.address)
        stack.start_worker()
        client = await TightloopClient.connect(settings=stack.settings)
        request = EpisodeRequest(goal="x", workspace=str(workspace), definition_of_done=("true",))
        async with asyncio.timeout(150):
            result = await client.result(await client.start(request))

        async def complains() -> bool:
            return "metric export failed" in stack.worker_log()

        await eventually(complains, seconds=120)
        await asyncio.to_thread(stack.stop_worker)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert stack.worker_log().count("metric export failed") == 1
    assert stack.worker_log().count("trace_exporter: ") <= 1
    assert "Traceback" not in stack.worker_log()


async def test_a_port_that_is_taken_is_told_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        with Stack(tmp_path / "stack", {"TIGHTLOOP_TELEMETRY__PROMETHEUS_BIND": bind}) as stack:
            done = await command_line(stack, "worker", "run")
    assert done.returncode == 1
    assert f"error: cannot serve metrics at {bind}: " in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_collector_that_is_not_there_stops_neither_the_command_nor_its_answer(
    tmp_path: Path, temporal_client: Client
) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    address = temporal_client.service_client.config.target_host
    variables = {"TIGHTLOOP_TELEMETRY__OTLP_ENDPOINT": dead, "TIGHTLOOP_TEMPORAL__ADDRESS": address}
    with Stack(tmp_path / "stack", variables) as stack:
        done = await command_line(stack, "tightloop.cli.main", "start", "x", "--workspace", "/tmp", "--done", "true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stderr.splitlines() if "because no worker is polling" not in line] == []
    client = await TightloopClient.connect(settings=stack.settings)
    await client.cancel(re.search(r"episode-\w+", done.stdout)[0])  # nobody works on it


async def test_without_settings_no_part_of_opentelemetry_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys, worker.__main__, tightloop.cli.main;"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'requests'))])"
    )
    with Stack(tmp_path / "stack") as stack:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=stack.environment,
            capture_output=True,
            text=True,
        )
    assert done.stdout.strip() == "[]", done.stderr


class Kept(SpanExporter):
    """What reaches an exporter."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


def test_what_libraries_put_on_a_span_reaches_the_collector_as_classes_and_digests_only() -> None:
    planted = "sk-" + "proj-9f3Kq2Lx71Zb84Tn56Vw of jane.planted@customer.example.com"
    whole, told = Kept(), Kept()
    provider = TracerProvider(shutdown_on_exit=False)
    for exporter in (whole, WithoutContent(told)):
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("tests")
    attributes = {"prompt": planted, "temporalWorkflowID": planted, "temporalRunID": "0199-aa"}

    def think() -> None:
        with tracer.start_as_current_span("RunActivity:next_plan", attributes=attributes) as span:
            span.add_event("message", {"text": planted})
            raise ValueError(f"the model said {planted}")

    with pytest.raises(ValueError, match="jane"):
        think()
    tracer.start_span(f"HandleSignal:{planted}").end()
    tracer.start_span("QueryWorkflow:status").end()
    failing, renamed = told.spans
    assert "jane.planted" in "".join(span.to_json() for span in whole.spans), "the SDK does record it"
    assert "jane.planted" not in "".join(span.to_json() for span in told.spans)
    assert "sk-" not in "".join(span.to_json() for span in told.spans)
    assert failing.context == whole.spans[0].context
    assert failing.attributes["temporalRunID"] == "0199-aa"
    assert failing.attributes["temporalWorkflowID"] == digest(planted)
    assert failing.status.description == f"ValueError ({digest(f'the model said {planted}')})"
    [event] = failing.events
    assert event.attributes == {
        "exception.type": "ValueError", "exception.message": digest(f"the model said {planted}"),
    }  # fmt: skip
    assert renamed.name == digest(f"HandleSignal:{planted}")


@pytest.mark.parametrize(
    ("settings", "environ", "endpoint"),
    [
        ({}, {}, ""),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}, "http://collector:4318"),
        ({"otlp_endpoint": "http://own:1"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, "http://own:1"),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, ""),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ""),
    ],
)
def test_the_collector_of_the_settings_wins_over_the_one_of_the_environment(
    settings: dict[str, str], environ: dict[str, str], endpoint: str
) -> None:
    assert TelemetrySettings(**settings).endpoint(environ) == endpoint


@pytest.mark.parametrize("url", ["collector:4318", "http://user:password@collector", "ftp://collector"])
def test_an_endpoint_that_cannot_work_or_holds_a_password_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="otlp_endpoint"):
        parse_settings(f"telemetry: {{otlp_endpoint: '{url}'}}", {})


def test_every_metric_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "operate" / "telemetry.md").read_text()
    assert [name for name in METRICS if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, {"payloads": (True, "encrypted and authenticated, current key KEY"), "telemetry": (False, "off")}),
        (
            {"TIGHTLOOP_TEMPORAL__AUTHENTICATE": "false"},
            {"payloads": (False, "plain text: anyone with access"), "content in logs": (False, "may contain")},
        ),
        (
            {"TIGHTLOOP_PRIVACY__ENCRYPT": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"},
            {"content in logs": (True, "kept out"), "telemetry": (True, "traces to http://127.0.0.1:4318")},
        ),
        (
            {"TIGHTLOOP_PRIVACY__ENCRYPT": "true", "TIGHTLOOP_PRIVACY__KEYS_FILE": "none.json"},
            {"payloads": (False, "none.json is missing")},
        ),
    ],
)  # fmt: skip
async def test_the_doctor_tells_whether_payloads_are_sealed_with_which_key_and_where_telemetry_goes(
    tmp_path: Path, variables: dict[str, str], found: dict[str, tuple[bool, str]]
) -> None:
    with Stack(tmp_path / "stack", variables) as stack:
        ring = new_ring()
        write_ring(Path(stack.environment["TIGHTLOOP_HOME"]) / "keys.json", ring)
        done = await command_line(stack, "tightloop.cli.main", "doctor", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    for name, (ok, words) in found.items():
        assert rows[name]["ok"] is ok
        assert words.replace("KEY", ring.current) in rows[name]["found"]
    plain = "TIGHTLOOP_TEMPORAL__AUTHENTICATE" in variables
    assert rows["payloads"]["needed"] is not plain, "off is a choice, a missing key is not"
