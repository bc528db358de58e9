"""Calls of models, agents and tools as spans and metrics of the conventions, within the trace of their activity."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from activities.model.asking import Asker, Question
from activities.model.client import AnswerSchema, ModelService
from activities.model.gateway.wire import Wire
from activities.model.observed import OBSERVER
from gateway.access.site import CallersTrace
from tests.support.fake_model import FakeModel, Fault, say
from tests.support.fake_model.exchange import Tokens
from tests.support.model_gateway_client import PATHS, STREAMS, TEXT, ask, body_of, open_gateway, spec_of
from tightloop.client.tracing import WithoutContent
from tightloop.errors import PlannerError
from tightloop.host.log import Privacy, ScrubbingFormatter, trace_ids
from tightloop.safety.drift import PromptPrivacy
from tightloop.value.scrub import Scrubber
from worker.telemetry import Recording, Sample

TOKENS = Tokens(input=1000, output=100, cached=400)
PROVIDERS = {"responses": "openai", "chat": "openai", "messages": "anthropic", "gemini": "gcp.gemini"}


class Observed(SpanExporter):
    """What leaves the process."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.samples: list[Sample] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS

    def attributes(self, name: str) -> Mapping[str, object]:
        [span] = [span for span in self.spans if span.name == name]
        return span.attributes or {}


@pytest.fixture
def observed() -> Iterator[Observed]:
    with observing() as seen:
        yield seen


@contextmanager
def observing() -> Iterator[Observed]:
    seen, provider = Observed(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(WithoutContent(seen)))
    tracer = provider.get_tracer("tests")
    token = OBSERVER.set(Recording(seen.samples.append, tracer))
    with tracer.start_as_current_span("RunActivity:execute"):
        yield seen
    OBSERVER.reset(token)


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_an_agent_makes_through_its_gateway_is_a_span_of_the_delivery(wire: Wire, stream: bool) -> None:
    path = (STREAMS if stream else PATHS)[wire]
    with (
        observing() as seen,
        FakeModel(say(TEXT), tokens=TOKENS) as model,
        open_gateway(spec_of(model, wire)) as gateway,
    ):
        assert ask(gateway, path, body_of(wire, stream=stream))[0] == 200
    asked = "gemini-x" if wire is Wire.GEMINI else "m"
    [call, delivery] = seen.spans
    assert (call.name, delivery.name) == (f"chat {asked}", "RunActivity:execute")
    assert call.parent is not None
    assert call.parent.span_id == delivery.context.span_id
    said = dict(call.attributes or {})
    assert said.pop("gen_ai.response.id")
    [reason] = said.pop("gen_ai.response.finish_reasons")  # type: ignore[misc]
    assert str(reason).lower() in ("stop", "completed", "end_turn")
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDERS[wire],
        "gen_ai.request.model": asked,
        "gen_ai.response.model": asked,
        "gen_ai.usage.input_tokens": 1000,
        "gen_ai.usage.output_tokens": 100,
        "gen_ai.usage.cache_read.input_tokens": 400,
    }
    kinds = {sample.labels.get("gen_ai.token.type", ""): sample.value for sample in seen.samples}
    assert (kinds.pop("") > 0, kinds) == (True, {"input": 1000.0, "output": 100.0})


def test_a_refused_call_has_its_status_and_no_tokens(observed: Observed) -> None:
    with FakeModel(fault=Fault.unauthorized()) as model, open_gateway(spec_of(model, Wire.CHAT)) as gateway:
        assert ask(gateway, PATHS[Wire.CHAT], body_of(Wire.CHAT))[0] == 401
    assert observed.attributes("chat m")["error.type"] == "401"
    assert [sample.labels["error.type"] for sample in observed.samples] == ["401"]


async def test_a_planners_call_says_which_model_was_asked_and_what_it_used(observed: Observed) -> None:
    schema = AnswerSchema("answer", {"type": "object", "properties": {}, "required": []})
    with FakeModel(say(TEXT), tokens=TOKENS) as model:
        asker = Asker(ModelService(base_url=model.base_url(Wire.CHAT), models=("m1",), corrections=0))
        question = Question("secret system", "secret user", schema, prompt_privacy=PromptPrivacy.FULL)
        await asker.ask(question, dict)
        model.rewrite(fault=Fault.unauthorized())
        with pytest.raises(PlannerError):
            await asker.ask(question, dict)
    good, bad = observed.spans
    assert good.name == bad.name == "chat m1"
    assert (
        dict(good.attributes or {}).items()
        >= {
            "gen_ai.request.model": "m1",
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.input_tokens": 1000,
        }.items()
    )
    assert (bad.attributes or {})["error.type"] == "AuthenticationError"
    assert "secret" not in good.to_json() + bad.to_json()
    assert TEXT not in good.to_json()


async def test_what_a_request_does_belongs_to_the_trace_that_it_names() -> None:
    seen: list[str] = []

    async def app(*_: object) -> None:
        await asyncio.sleep(0)
        seen.append(trace_ids())

    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    for value in (f"00-{trace}-{span}-01", "00-nonsense"):
        headers = [(b"traceparent", value.encode())]
        await CallersTrace(app)({"type": "http", "headers": headers}, None, None)  # type: ignore[arg-type]
    assert seen == [f" trace_id={trace} span_id={span}", ""]
    assert trace_ids() == ""


def test_a_line_of_the_log_names_the_span_in_which_it_was_written() -> None:
    formatter = ScrubbingFormatter(Privacy(Scrubber()))
    record = logging.LogRecord("tightloop", logging.WARNING, "x.py", 1, "room is low", None, None)
    with observing() as seen:
        line = formatter.format(record)
    [span] = seen.spans
    ids = f" trace_id={span.context.trace_id:032x} span_id={span.context.span_id:016x}"
    assert line == f"{formatter.format(record)}{ids}"
