"""The fake model server, seen by the `openai` package."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import openai
import pytest

from activities.model.gateway.wire import Wire
from tests.support.fake_model import FakeModel, Fault, say, shell

SHELL_SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
PROMPT = "make the file"
LONG = "A sentence that is long enough for more than one delta of a stream."


def client_of(model: FakeModel) -> openai.OpenAI:
    return openai.OpenAI(base_url=model.base_url(Wire.CHAT), api_key="sk-fake-0123456789", max_retries=0, timeout=20)


@pytest.fixture
def scripted() -> Iterator[FakeModel]:
    with FakeModel(shell("echo hi > a.txt"), say(LONG)) as model:
        yield model


@pytest.fixture
def client(scripted: FakeModel) -> Iterator[openai.OpenAI]:
    with client_of(scripted) as client:
        yield client


RESPONSES_TOOL: Any = {"type": "function", "name": "exec_command", "parameters": SHELL_SCHEMA, "strict": False}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "bash", "parameters": SHELL_SCHEMA}}


def test_the_package_drives_responses_through_a_call_to_the_text(client: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": PROMPT}]
    first = client.responses.create(model="m", input=asked, tools=[RESPONSES_TOOL])
    call = first.output[0]
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"command": "echo hi > a.txt"}
    asked += [call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": ""}]
    second = client.responses.create(model="m", input=asked, tools=[RESPONSES_TOOL])
    assert second.output_text == LONG
    assert second.usage is not None
    assert (second.usage.input_tokens, second.usage.output_tokens) == (1000, 100)


def test_the_package_streams_responses(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input=PROMPT, tools=[RESPONSES_TOOL]) as stream:
        call = stream.get_final_response().output[0]
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"command": "echo hi > a.txt"}
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": ""}
    with client.responses.stream(model="m", input=[{"role": "user", "content": PROMPT}, result]) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert len(deltas) > 1
    assert "".join(deltas) == final.output_text == LONG
    assert final.usage is not None
    assert final.usage.total_tokens == 1100


def test_the_package_drives_chat_through_a_call_to_the_text(client: openai.OpenAI) -> None:
    turns: Any = [{"role": "user", "content": PROMPT}]
    first = client.chat.completions.create(model="m", messages=turns, tools=[CHAT_TOOL])
    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message.to_dict()
    calls: Any = message["tool_calls"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"command": "echo hi > a.txt"}
    turns += [message, {"role": "tool", "tool_call_id": calls[0]["id"], "content": ""}]
    second = client.chat.completions.create(model="m", messages=turns, tools=[CHAT_TOOL])
    assert second.choices[0].message.content == LONG
    assert second.choices[0].finish_reason == "stop"
    assert second.usage is not None
    assert second.usage.completion_tokens == 100


def test_the_package_streams_chat_with_the_usage_at_the_end(client: openai.OpenAI) -> None:
    turns: Any = [{"role": "user", "content": PROMPT}]
    with client.chat.completions.stream(
        model="m", messages=turns, tools=[CHAT_TOOL], stream_options={"include_usage": True}
    ) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert json.loads(calls[0].function.arguments) == {"command": "echo hi > a.txt"}
    assert final.usage is not None
    assert final.usage.prompt_tokens == 1000
    turns.append({"role": "tool", "tool_call_id": calls[0].id, "content": ""})
    chunks = list(client.chat.completions.create(model="m", messages=turns, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == LONG
    assert all(chunk.usage is None for chunk in chunks)


def test_the_package_lists_the_models_and_that_is_no_call(scripted: FakeModel, client: openai.OpenAI) -> None:
    assert "fake-model" in [model.id for model in client.models.list()]
    assert scripted.calls == 0
    assert scripted.others[0].path == "/v1/models"


@pytest.mark.parametrize(
    ("fault", "error", "code"),
    [
        (Fault.unauthorized(), openai.AuthenticationError, "invalid_api_key"),
        (Fault.bad_request(), openai.BadRequestError, "unsupported_parameter"),
        (Fault.context_full(), openai.BadRequestError, "context_length_exceeded"),
        (Fault.rate_limited(retry_after_s=1.5), openai.RateLimitError, "rate_limit_exceeded"),
        (Fault.quota(), openai.RateLimitError, "insufficient_quota"),
        (Fault.server_error(), openai.InternalServerError, None),
        (Fault.overloaded(status=503), openai.InternalServerError, "server_is_overloaded"),
    ],
    ids=lambda value: value.trouble if isinstance(value, Fault) else "",
)
def test_the_package_understands_each_refusal(fault: Fault, error: type[openai.APIStatusError], code: str) -> None:
    with FakeModel(fault=fault) as model, client_of(model) as client:
        with pytest.raises(error) as raised:
            client.responses.create(model="m", input=PROMPT)
        assert raised.value.code == code
        with pytest.raises(error):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": PROMPT}], stream=True)


def test_the_package_obeys_the_retry_time_and_gets_the_answer_then() -> None:
    fault = Fault.rate_limited(retry_after_s=0.2, times=2)
    with FakeModel(say("at last"), fault=fault) as model, client_of(model) as client:
        answer = client.with_options(max_retries=3).responses.create(model="m", input=PROMPT)
        assert answer.output_text == "at last"
        gaps = [later.at - sooner.at for sooner, later in pairwise(model.requests)]
        assert len(gaps) == 2
        assert min(gaps) >= 0.2


def test_the_package_sees_a_stream_that_fails_in_the_middle() -> None:
    turns: Any = [{"role": "user", "content": PROMPT}]
    with FakeModel(say(LONG), fault=Fault.sse_failure()) as model, client_of(model) as client:
        events = list(client.responses.create(model="m", input=PROMPT, stream=True))
        assert events[-1].type == "response.failed"
        with pytest.raises(openai.APIError, match="had an error"):
            list(client.chat.completions.create(model="m", messages=turns, stream=True))
