"""The fake model server over plain HTTP; what the `openai` package makes of it is in `test_fake_model_openai.py`."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from activities.model.gateway.wire import Wire
from tests.support.fake_model import FakeModel, Fault, say, shell, write
from tests.support.fake_model.exchange import Tokens

SHELL_SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
PROMPT = "make the file"
LONG = "A sentence that is long enough for more than one delta of a stream."


@pytest.fixture
def scripted() -> Iterator[FakeModel]:
    with FakeModel(shell("echo hi > a.txt"), say(LONG)) as model:
        yield model


RESPONSES_TOOL: Any = {"type": "function", "name": "exec_command", "parameters": SHELL_SCHEMA, "strict": False}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "bash", "parameters": SHELL_SCHEMA}}


PATHS = {
    Wire.RESPONSES: "/responses",
    Wire.CHAT: "/chat/completions",
    Wire.MESSAGES: "/v1/messages?beta=true",
    Wire.GEMINI: "/v1beta/models/m:generateContent",
}
STREAM_PATHS = {**PATHS, Wire.GEMINI: "/v1beta/models/m:streamGenerateContent?alt=sse"}


def body_for(wire: Wire, *, results: int = 0, stream: bool = False, earlier_turn: bool = False) -> dict[str, Any]:
    """A request as agents of this format make it, `results` tool results after the prompt."""
    if wire is Wire.RESPONSES:
        user: Any = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": PROMPT}]}]
        result: Any = [{"type": "function_call"}, {"type": "function_call_output", "output": "ok"}]
        options = {"model": "m", "tools": [RESPONSES_TOOL], "stream": stream}
        return {"input": _conversation(user, result, results, earlier_turn), **options}
    if wire is Wire.CHAT:
        user = [{"role": "user", "content": PROMPT}]
        result = [{"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "ok"}]
        options = {"model": "m", "tools": [CHAT_TOOL], "stream": stream}
        return {"messages": _conversation(user, result, results, earlier_turn), **options}
    if wire is Wire.MESSAGES:
        user = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
        reminder = {"type": "text", "text": "<system-reminder>"}
        back = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}, reminder]}
        result = [{"role": "assistant", "content": [{"type": "tool_use"}]}, back]
        tools = [{"name": "Bash", "input_schema": SHELL_SCHEMA}]
        turns = _conversation(user, result, results, earlier_turn)
        return {"model": "m", "max_tokens": 9, "messages": turns, "tools": tools, "stream": stream}
    user = [{"role": "user", "parts": [{"text": PROMPT}]}]
    result = [{"role": "model", "parts": [{}]}, {"role": "user", "parts": [{"functionResponse": {}}]}]
    functions = [{"name": "run_shell_command", "parametersJsonSchema": SHELL_SCHEMA}]
    turns = _conversation(user, result, results, earlier_turn)
    return {"contents": turns, "tools": [{"functionDeclarations": functions}]}


def _conversation(user: list[Any], result: list[Any], results: int, earlier_turn: bool) -> list[Any]:
    before = [*user, *result, *result, *result] if earlier_turn else []
    return [*before, *user, *result * results]


class Answered:
    """What came back over plain HTTP."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.text = response.read().decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def events(self) -> list[Any]:
        """The data of the server-sent events."""
        lines = [line.removeprefix("data: ") for line in self.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


def send(model: FakeModel, method: str, path: str, body: Any = None, *, seconds: float = 10) -> Answered:
    connection = http.client.HTTPConnection("127.0.0.1", model.port, timeout=seconds)
    try:
        headers = {"content-type": "application/json", "X-Test-Key": "seen"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        return Answered(connection.getresponse())
    finally:
        connection.close()


def ask(model: FakeModel, wire: Wire, *, stream: bool = False, seconds: float = 10, **options: Any) -> Answered:
    url = model.base_url(wire) + (STREAM_PATHS if stream else PATHS)[wire]
    path = url.removeprefix(f"http://127.0.0.1:{model.port}")
    return send(model, "POST", path, body_for(wire, stream=stream, **options), seconds=seconds)


def said(wire: Wire, answered: Answered) -> str:
    """What was answered: the arguments of the call, or the text."""
    return str(_said(wire, answered))


def _said(wire: Wire, answered: Answered) -> Any:
    if wire is Wire.RESPONSES:
        item = answered.json["output"][0]
        return item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
    if wire is Wire.CHAT:
        message = answered.json["choices"][0]["message"]
        return message["content"] or message["tool_calls"][0]["function"]["arguments"]
    if wire is Wire.MESSAGES:
        block = answered.json["content"][0]
        return block["text"] if block["type"] == "text" else json.dumps(block["input"])
    part = answered.json["candidates"][0]["content"]["parts"][0]
    return part["text"] if "text" in part else json.dumps(part["functionCall"]["args"])


every_wire = pytest.mark.parametrize("wire", list(Wire))


@every_wire
def test_the_step_is_the_number_of_tool_results_since_the_last_prompt(wire: Wire, scripted: FakeModel) -> None:
    call, text = '{"command": "echo hi > a.txt"}', LONG
    assert said(wire, ask(scripted, wire)) == call
    assert said(wire, ask(scripted, wire)) == call, "a retry gets the same answer"
    assert said(wire, ask(scripted, wire, results=1)) == text
    assert said(wire, ask(scripted, wire, results=2)) == "done"
    assert said(wire, ask(scripted, wire, earlier_turn=True)) == call, "a resumed session begins anew"
    assert said(wire, ask(scripted, wire, results=1, earlier_turn=True)) == text


@every_wire
def test_equal_requests_get_byte_for_byte_equal_answers(wire: Wire, scripted: FakeModel) -> None:
    assert ask(scripted, wire, stream=True).text == ask(scripted, wire, stream=True).text
    assert ask(scripted, wire).text != ask(scripted, wire, results=1).text


def test_messages_stream_has_the_events_of_the_service_in_their_order(scripted: FakeModel) -> None:
    events = ask(scripted, Wire.MESSAGES, stream=True).events
    kinds = [event["type"] for event in events]
    assert list(dict.fromkeys(kinds)) == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    arguments = "".join(e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta")
    assert json.loads(arguments) == {"command": "echo hi > a.txt"}
    assert events[0]["message"]["usage"]["input_tokens"] == 1000
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["output_tokens"] == 100


def test_gemini_streams_as_events_or_as_a_list_as_it_is_asked(scripted: FakeModel) -> None:
    events = ask(scripted, Wire.GEMINI, stream=True, results=1).events
    assert "".join(event["candidates"][0]["content"]["parts"][0]["text"] for event in events) == LONG
    assert len(events) > 1
    assert events[-1]["candidates"][0]["finishReason"] == "STOP"
    assert events[-1]["usageMetadata"]["totalTokenCount"] == 1100
    listed = send(scripted, "POST", "/v1beta/models/m:streamGenerateContent", body_for(Wire.GEMINI, results=1))
    assert listed.json[0]["candidates"][0]["content"]["parts"][0]["text"] == LONG


def test_tokens_are_counted_and_models_listed_where_agents_ask_for_it(scripted: FakeModel) -> None:
    assert send(scripted, "POST", "/v1/messages/count_tokens", {"messages": []}).json == {"input_tokens": 1000}
    assert send(scripted, "POST", "/v1beta/models/m:countTokens", {"contents": []}).json["totalTokens"] == 1000
    assert send(scripted, "GET", "/v1beta/models").json["models"][0]["name"] == "models/fake-model"
    assert send(scripted, "HEAD", "/").status == 200
    assert send(scripted, "POST", "/v1/embeddings", {}).status == 404
    assert scripted.calls == 0
    assert len(scripted.others) == 5


def test_what_was_asked_is_kept(scripted: FakeModel) -> None:
    before = time.monotonic()
    ask(scripted, Wire.CHAT, stream=True)
    ask(scripted, Wire.MESSAGES)
    first, second = scripted.requests
    assert (first.wire, first.path) == (Wire.CHAT, "/v1/chat/completions")
    assert first.headers["x-test-key"] == "seen"
    assert first.body["messages"][0]["content"] == PROMPT
    assert (second.wire, second.path) == (Wire.MESSAGES, "/v1/messages?beta=true")
    assert before <= first.at <= second.at <= time.monotonic()


def test_usage_and_script_can_be_chosen(scripted: FakeModel) -> None:
    with FakeModel(say("x"), tokens=Tokens(input=70, output=7, cached=30)) as model:
        usage = ask(model, Wire.MESSAGES).json["usage"]
        assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (40, 30, 7)
        assert ask(model, Wire.RESPONSES).json["usage"]["input_tokens_details"]["cached_tokens"] == 30
        model.rewrite(say("y"), fault=Fault.server_error(times=1))
        assert ask(model, Wire.CHAT).status == 500
        assert said(Wire.CHAT, ask(model, Wire.CHAT)) == "y"


@every_wire
def test_a_file_is_written_with_the_shell_where_there_is_no_tool_for_it(wire: Wire) -> None:
    with FakeModel(write("notes/a b.txt", "it's\n")) as model:
        command = json.loads(said(wire, ask(model, wire)))["command"]
    assert command == "mkdir -p notes && printf %s 'it'\"'\"'s\n' > 'notes/a b.txt'"


def test_the_write_tool_of_an_agent_gets_what_its_schema_requires() -> None:
    properties = {"filePath": {"type": "string"}, "content": {"type": "string"}, "overwrite": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["filePath", "content", "overwrite"]}
    tools = [CHAT_TOOL, {"type": "function", "function": {"name": "write", "parameters": schema}}]
    with FakeModel(write("a.txt", "hi\n")) as model:
        answer = send(model, "POST", "/v1/chat/completions", {**body_for(Wire.CHAT), "tools": tools})
    assert json.loads(said(Wire.CHAT, answer)) == {"filePath": "a.txt", "content": "hi\n", "overwrite": False}


def test_a_tool_that_takes_a_text_gets_a_patch_with_the_file() -> None:
    asked = {**body_for(Wire.RESPONSES), "tools": [RESPONSES_TOOL, {"type": "custom", "name": "apply_patch"}]}
    with FakeModel(write("a.txt", "one\ntwo\n"), say("end")) as model:
        item = send(model, "POST", "/v1/responses", asked).json["output"][0]
        asked["input"] += [item, {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "ok"}]
        assert said(Wire.RESPONSES, send(model, "POST", "/v1/responses", asked)) == "end"
    assert (item["type"], item["name"]) == ("custom_tool_call", "apply_patch")
    assert item["input"] == "*** Begin Patch\n*** Add File: a.txt\n+one\n+two\n*** End Patch\n"


def test_a_call_without_tools_gets_a_text(scripted: FakeModel) -> None:
    titled = {**body_for(Wire.MESSAGES), "tools": []}
    assert said(Wire.MESSAGES, send(scripted, "POST", "/v1/messages", titled)) == "done"


def test_each_service_says_in_its_own_way_when_to_come_back() -> None:
    with FakeModel(fault=Fault.rate_limited(retry_after_s=90)) as model:
        openai_says = ask(model, Wire.CHAT, stream=True)
        anthropic_says = ask(model, Wire.MESSAGES, stream=True)
        google_says = ask(model, Wire.GEMINI, stream=True)
    assert {openai_says.status, anthropic_says.status, google_says.status} == {429}
    assert openai_says.headers["retry-after"] == "90"
    assert openai_says.headers["x-ratelimit-reset-tokens"] == "1m30s"
    assert anthropic_says.headers["retry-after"] == "90"
    assert anthropic_says.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert anthropic_says.json["error"]["type"] == "rate_limit_error"
    assert "retry-after" not in google_says.headers
    quota, retry = google_says.json["error"]["details"]
    assert "PerMinute" in quota["violations"][0]["quotaId"]
    assert retry["retryDelay"] == "90s"


def test_a_window_that_is_used_up_says_when_it_opens_again() -> None:
    with FakeModel(fault=Fault.usage_limit(resets_in_s=7200)) as model:
        codex = ask(model, Wire.RESPONSES, stream=True)
        claude = ask(model, Wire.MESSAGES)
        gemini = ask(model, Wire.GEMINI)
    error = codex.json["error"]
    assert error["type"] == "usage_limit_reached"
    assert error["resets_in_seconds"] == 7200
    assert abs(error["resets_at"] - time.time() - 7200) < 60
    assert codex.headers["x-codex-primary-used-percent"] == "100"
    assert claude.headers["anthropic-ratelimit-unified-status"] == "rejected"
    assert abs(int(claude.headers["anthropic-ratelimit-unified-reset"]) - time.time() - 7200) < 60
    assert "PerDay" in gemini.json["error"]["details"][0]["violations"][0]["quotaId"]


@every_wire
@pytest.mark.parametrize(
    ("fault", "status"), [(Fault.unauthorized(), 401), (Fault.server_error(), 500), (Fault.overloaded(), 529)]
)
def test_refusals_carry_their_status_and_a_message(wire: Wire, fault: Fault, status: int) -> None:
    with FakeModel(fault=fault) as model:
        answer = ask(model, wire)
    assert answer.status == status
    assert answer.json["error"]["message"]


@every_wire
@pytest.mark.parametrize("stream", [True, False])
def test_a_cut_answer_ends_the_connection_before_its_end(wire: Wire, stream: bool) -> None:
    with FakeModel(say(LONG), fault=Fault.cut_stream(times=1)) as model:
        with pytest.raises(http.client.IncompleteRead) as cut:
            ask(model, wire, stream=stream)
        good = ask(model, wire, stream=stream)
    assert 0 < len(cut.value.partial) < len(good.text.encode())


@every_wire
def test_what_is_no_json_is_sent_with_status_200(wire: Wire) -> None:
    with FakeModel(say(LONG), fault=Fault.bad_json()) as model:
        for stream in (True, False):
            answer = ask(model, wire, stream=stream)
            assert answer.status == 200
            with pytest.raises(json.JSONDecodeError):
                _ = answer.events if stream else answer.json


@every_wire
def test_a_failure_inside_a_stream_comes_after_its_beginning(wire: Wire) -> None:
    with FakeModel(say(LONG), fault=Fault.sse_failure()) as model:
        events = ask(model, wire, stream=True).events
        assert ask(model, wire).status == 500
    assert len(events) >= 2
    assert "rror" in json.dumps(events[-1])
    assert '"error": {' not in json.dumps(events[0])


@every_wire
def test_endless_tools_call_the_shell_at_every_step(wire: Wire) -> None:
    with FakeModel(say("never"), fault=Fault.endless_tools("true")) as model:
        assert {said(wire, ask(model, wire, results=n)) for n in range(5)} == {'{"command": "true"}'}


@every_wire
@pytest.mark.parametrize("fault", [Fault.hang(), Fault.stalled_stream()], ids=["hang", "stalled"])
def test_the_fake_ends_at_once_though_requests_wait(wire: Wire, fault: Fault) -> None:
    ended: list[type[Exception]] = []

    def wait_for_it() -> None:
        try:
            ask(model, wire, stream=True, seconds=60)
        except (http.client.HTTPException, OSError) as error:
            ended.append(type(error))

    threads = [threading.Thread(target=wait_for_it) for _ in range(3)]
    with FakeModel(say(LONG), fault=fault) as model:
        for thread in threads:
            thread.start()
        model.wait_for_calls(3)
        assert not ended
        began = time.monotonic()
    for thread in threads:
        thread.join(60)
    assert time.monotonic() - began < 50
    assert len(ended) == 3


def test_nothing_listens_after_the_end(scripted: FakeModel) -> None:
    with FakeModel() as model:
        idle = http.client.HTTPConnection("127.0.0.1", model.port, timeout=10)
        idle.request("GET", "/v1/models")
        idle.getresponse().read()
    with pytest.raises(OSError, match="refused"):
        ask(model, Wire.CHAT)
    assert idle.sock.recv(1) == b"", "a kept connection is ended too"
    idle.close()


def test_waiting_for_calls_that_do_not_come_fails_with_both_numbers(scripted: FakeModel) -> None:
    ask(scripted, Wire.CHAT)
    scripted.wait_for_calls(1, seconds=5)
    with pytest.raises(TimeoutError, match="1 of 2 calls"):
        scripted.wait_for_calls(2, seconds=0.05)
