"""Turns with the real client against a fake service on loopback: what is sent, what comes back, every fault."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from activities.coder.model import OpenAIModel, request_options
from activities.coder.turns import TurnTaker
from activities.model.client import ModelService
from activities.model.gateway.wire import Wire
from tests.support.coder_turns import TASK, TOOLS, Conversing, conversing, service_at, settings_for
from tests.support.fake_model import FakeCoderModel, Fault, use
from tests.support.fake_model.exchange import Tokens
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.executor.model import Usage
from tightloop.safety.drift import PromptPrivacy
from tightloop.settings import PrivacySettings

WIRES = pytest.mark.parametrize("wire", [Wire.CHAT, Wire.RESPONSES])
READ = ("read_file", {"path": "src/shop.py", "start": None})
FINISH = ("finish", {"summary": "The tax is added once."})
KEY = "sk-proj-" + "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA1bC2dE3f"


@WIRES
async def test_calls_come_back_with_their_arguments_and_the_usage(workspace: Path, wire: Wire) -> None:
    tokens = Tokens(input=1200, output=80, cached=1000)
    with FakeCoderModel(use(READ, ("run_tests", {"names": []}), text="I look."), tokens=tokens) as model:
        session = conversing(workspace, model, wire)
        turn = await session.turn()
    assert [(call.tool, call.reads, call.runs) for call in turn.calls] == [
        ("read_file", True, False),
        ("run_tests", False, True),
    ]
    assert turn.problem == ""
    assert turn.usage == Usage(input_tokens=1200, cached_tokens=1000, output_tokens=80)
    assert (turn.model, turn.number) == ("m1", 1)
    stored = TurnTaker.read(session.folder, 1)
    assert [(call.tool, json.loads(call.arguments)) for call in stored.calls] == [READ, ("run_tests", {"names": []})]
    assert len({call.id for call in stored.calls}) == 2


@WIRES
async def test_conversation_is_sent_with_results_messages_and_corrections(workspace: Path, wire: Wire) -> None:
    with FakeCoderModel(use(READ, READ), use(("nothing", {})), use(FINISH)) as model:
        session = conversing(workspace, model, wire)
        await session.turn()
        wrong = await session.turn("line 1", "line 2", said=("Mind the rounding.",))
        done = await session.turn(correction=wrong.problem)
    assert wrong.problem.startswith("Unknown tool 'nothing'.")
    assert [call.tool for call in done.calls] == ["finish"]
    sent = json.dumps(model.requests[-1].body)
    for text in (TASK, "line 1", "line 2", "Mind the rounding.", "Unknown tool 'nothing'."):
        assert sent.count(json.dumps(text)[1:-1]) == 1
    assert model.shared == [1.0, 1.0]


async def test_chat_request_has_tools_with_strict_schemas_and_asks_for_usage(workspace: Path) -> None:
    with FakeCoderModel(use(READ)) as model:
        await conversing(workspace, model).turn()
    body = model.requests[0].body
    assert [tool["function"]["name"] for tool in body["tools"]] == TOOLS
    assert all(tool["function"]["strict"] for tool in body["tools"])
    assert body["parallel_tool_calls"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert (body["temperature"], body["max_tokens"]) == (0.2, 8000)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


async def test_nothing_is_stored_at_the_service(workspace: Path) -> None:
    with FakeCoderModel(use(READ)) as model:
        await conversing(workspace, model, Wire.RESPONSES).turn()
    body = model.requests[0].body
    assert (body["store"], body["stream"], body["max_output_tokens"]) == (False, True, 8000)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.openai.com/v1", {"tool_choice": "required", "prompt_cache_key": "s1"}),
        ("http://127.0.0.1:1/v1", {}),
    ],
)
def test_openai_itself_is_told_the_session_and_to_call_a_tool(url: str, expected: dict[str, str]) -> None:
    options = request_options(ModelService(base_url=url, api="chat"), settings_for().coder.role("coder"), "s1")
    assert {name: options[name] for name in options if name in ("tool_choice", "prompt_cache_key")} == expected
    assert ("max_tokens" in options) is not bool(expected)


@WIRES
async def test_cut_off_answer_is_a_problem_and_nothing_of_it_is_done(workspace: Path, wire: Wire) -> None:
    with FakeCoderModel(use(("edit_file", '{"path": "a", "old": "x'), cut=True)) as model:
        turn = await conversing(workspace, model, wire).turn()
    assert turn.calls == ()
    assert turn.problem.startswith("Your answer was cut off at the output limit")


@WIRES
async def test_broken_arguments_are_repaired_before_they_are_kept(workspace: Path, wire: Wire) -> None:
    with FakeCoderModel(use(("read_file", "{path: 'a.py', start: '7',}")), use(FINISH)) as model:
        session = conversing(workspace, model, wire)
        await session.turn()
        await session.turn("text")
    assert json.loads(TurnTaker.read(session.folder, 1).calls[0].arguments) == {"path": "a.py", "start": 7}
    assert "{path:" not in json.dumps(model.requests[-1].body)


@WIRES
async def test_next_model_answers_where_one_is_missing_and_is_remembered(workspace: Path, wire: Wire) -> None:
    with FakeCoderModel(use(READ), use(FINISH), fault=Fault.unknown_model(times=1)) as model:
        session = conversing(workspace, model, wire)
        first, second = await session.turn(), await session.turn("text")
    assert (first.model, second.model) == ("m2", "m2")
    assert [seen.body["model"] for seen in model.requests] == ["m1", "m2", "m2"]


async def test_error_names_the_setting_where_no_model_is_there(workspace: Path) -> None:
    said = r"none of the models m1 \(404\), m2 \(404\). Set coder.models to models that this key can access"
    with FakeCoderModel(fault=Fault.unknown_model()) as model, pytest.raises(PlannerError, match=said):
        await conversing(workspace, model).turn()


@WIRES
async def test_parameter_that_a_model_does_not_take_is_left_out(workspace: Path, wire: Wire) -> None:
    with FakeCoderModel(use(READ), use(FINISH), fault=Fault.bad_request(parameter="temperature", times=1)) as model:
        session = conversing(workspace, model, wire)
        await session.turn()
        await session.turn("text")
    assert ["temperature" in seen.body for seen in model.requests] == [True, False, False]


async def test_wait_that_the_service_asks_for_is_passed_on(workspace: Path) -> None:
    with (
        FakeCoderModel(fault=Fault.rate_limited(retry_after_s=17)) as model,
        pytest.raises(PlannerUnavailableError) as failed,
    ):
        await conversing(workspace, model).turn()
    assert failed.value.retry_after is not None
    assert failed.value.retry_after.total_seconds() == 17
    assert model.calls == 1


@WIRES
@pytest.mark.parametrize(
    ("fault", "kind", "sentence"),
    [
        (Fault.unauthorized(), PlannerError, "the key is not valid"),
        (Fault.quota(), PlannerError, "the key's quota is used up"),
        (Fault.context_full(), PlannerError, "too long for model m1 .* lower coder.context_tokens"),
        (Fault.server_error(), PlannerUnavailableError, "model m1 is busy or down"),
        (Fault.cut_stream(), PlannerUnavailableError, "the model service cannot be reached"),
        (Fault.sse_failure(), PlannerUnavailableError, "model"),
        (Fault.bad_json(), PlannerUnavailableError, "model m1 sent an event that is not JSON"),
    ],
)
async def test_fault_of_the_service_is_told_from_a_bad_answer(
    workspace: Path, wire: Wire, fault: Fault, kind: type[Exception], sentence: str
) -> None:
    with FakeCoderModel(use(READ), fault=fault) as model:
        session = conversing(workspace, model, wire)
        with pytest.raises(kind, match=sentence):
            await session.turn()
    assert not session.folder.exists()


@WIRES
@pytest.mark.parametrize("fault", [Fault.stalled_stream(), Fault.hang()])
async def test_silence_is_noticed_long_before_the_time_of_the_answer_is_up(
    workspace: Path, wire: Wire, fault: Fault
) -> None:
    with FakeCoderModel(use(READ), fault=fault) as model:
        session = Conversing(
            workspace, OpenAIModel(service_at(model, wire, silence_s=0.3, timeout_s=60)), settings_for()
        )
        begun = time.monotonic()
        with pytest.raises(PlannerUnavailableError, match=r"model m1 sent nothing for 0.3 s"):
            await session.turn()
    assert time.monotonic() - begun < 10


async def test_answer_that_never_ends_is_stopped(workspace: Path) -> None:
    with FakeCoderModel(use(READ), fault=Fault.stalled_stream()) as model:
        session = Conversing(workspace, OpenAIModel(service_at(model, silence_s=60, timeout_s=0.3)), settings_for())
        with pytest.raises(PlannerUnavailableError, match=r"m1 did not finish its answer within 0.3 s"):
            await session.turn()


@WIRES
async def test_cancelled_turn_closes_its_connection_at_once(workspace: Path, wire: Wire) -> None:
    pieces: list[float] = []
    with FakeCoderModel(use(READ), fault=Fault.stalled_stream()) as model:
        session = conversing(workspace, model, wire)
        task = asyncio.create_task(session.take(session.request(), beat=lambda: pieces.append(time.monotonic())))
        while not pieces:
            await asyncio.sleep(0.01)
        begun = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begun < 1
    assert not session.folder.exists()


@WIRES
async def test_every_piece_of_an_answer_is_a_heartbeat(workspace: Path, wire: Wire) -> None:
    pieces: list[None] = []
    with FakeCoderModel(use(READ, text="word " * 100)) as model:
        session = conversing(workspace, model, wire)
        await session.take(session.request(), beat=lambda: pieces.append(None))
    assert len(pieces) > 20


@pytest.mark.parametrize(("level", "is_sent"), [(PromptPrivacy.FULL, True), (PromptPrivacy.REDACTED, False)])
async def test_secrets_are_taken_out_where_prompts_are_redacted(
    workspace: Path, level: PromptPrivacy, is_sent: bool
) -> None:
    edit = ("edit_file", {"path": "a", "old": "key", "new": f'key = "{KEY}"'})
    with FakeCoderModel(use(edit), use(FINISH)) as model:
        session = conversing(workspace, model)
        session.settings = settings_for().evolve(privacy=PrivacySettings(prompts=level))
        await session.turn()
        await session.turn(f"OPENAI_API_KEY={KEY}")
    sent: Any = model.requests[-1].body["messages"]
    assert (KEY in json.dumps(sent)) is is_sent
    assert json.loads(sent[2]["tool_calls"][0]["function"]["arguments"])["path"] == "a"


async def test_project_that_keeps_its_code_to_itself_is_not_sent(workspace: Path) -> None:
    with FakeCoderModel(use(READ)) as model:
        session = conversing(workspace, model)
        session.settings = settings_for().evolve(privacy=PrivacySettings(prompts=PromptPrivacy.SUMMARY))
        with pytest.raises(PlannerError, match=r"Set privacy.prompts to 'redacted'"):
            await session.turn()
    assert model.calls == 0
