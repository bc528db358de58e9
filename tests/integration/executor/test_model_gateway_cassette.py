"""Recordings of model calls, their replay, and what must not be in them; with Codex where it is installed."""

import json
import logging
import socket
import subprocess
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from activities.model.gateway.server import GatewayServer
from activities.model.gateway.wire import Cassette, GatewaySpec, Wire
from tests.support.agents.install import agent_program
from tests.support.fake_model import FakeModel, Fault, say, shell
from tests.support.model_gateway_client import KEY, STREAMS, TEXT, ask, body_of, open_gateway, provider, spec_of


def test_a_key_that_the_provider_repeats_reaches_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    content = json.dumps(
        {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    ).encode()

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(401)
        request.send_header("content-length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    recording = tmp_path / "cassette.jsonl"
    with provider(answer) as url:
        spec = GatewaySpec(wire=Wire.CHAT, upstream=url, key=KEY, cassette=Cassette.RECORD, recording=recording)
        with open_gateway(spec) as gateway:
            status, _, body = ask(gateway, "/chat/completions", body_of(Wire.CHAT))
            seen = gateway.read_counters()
    assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
    assert seen.limit is not None
    for place in (body.decode(), repr(seen), recording.read_text(), caplog.text, repr(gateway), *capfd.readouterr()):
        assert KEY not in place
        assert gateway.token not in place


@pytest.mark.parametrize("wire", Wire)
def test_a_recording_answers_in_place_of_the_provider(wire: Wire, tmp_path: Path) -> None:
    path, recording = STREAMS[wire], tmp_path / "tapes" / "cassette.jsonl"
    body = body_of(wire, stream=True)
    with FakeModel(say(TEXT), fault=Fault.rate_limited(retry_after_s=20, times=1)) as model:
        spec = spec_of(model, wire, cassette=Cassette.RECORD, recording=recording)
        with open_gateway(spec) as gateway:
            first = [ask(gateway, path, body) for _ in range(2)]
            lived = gateway.read_counters()
    assert recording.stat().st_mode & 0o777 == 0o600
    assert KEY not in recording.read_text()
    spec = spec_of(model, wire, key="", cassette=Cassette.REPLAY, recording=recording)
    with open_gateway(spec) as gateway:
        again = [ask(gateway, path, body) for _ in range(2)]
        replayed = gateway.read_counters()
        third = ask(gateway, path, body)
        other = ask(gateway, path, body_of(wire, stream=True, text="something else"))
    assert [(status, content) for status, _, content in again] == [(status, content) for status, _, content in first]
    assert [status for status, _, _ in again] == [429, 200]
    assert again[0][1].get("retry-after") == first[0][1].get("retry-after")
    assert (replayed.usage, replayed.statuses, replayed.calls) == (lived.usage, lived.statuses, lived.calls)
    assert (third[0], other[0]) == (409, 409)
    assert "was sent more often than in the recording" in third[2].decode()
    assert "is not in the recording cassette.jsonl (2 of 2 recorded exchanges were replayed)" in other[2].decode()


def test_a_replay_puts_its_own_folders_in_place_of_the_recorded_ones(tmp_path: Path) -> None:
    recording, old, new = tmp_path / "cassette.jsonl", "/old/tree", "/new/home/tree"
    with FakeModel(say(f"look into {old}/a.py")) as model:
        spec = spec_of(model, cassette=Cassette.RECORD, recording=recording, volatile=("/old", old))
        with open_gateway(spec) as gateway:
            ask(gateway, "/responses", body_of(Wire.RESPONSES, text=f"I am in {old}"))
    assert old not in recording.read_text()
    spec = spec_of(model, cassette=Cassette.REPLAY, recording=recording, volatile=("/new/home", new))
    with open_gateway(spec) as gateway:
        status, _, body = ask(gateway, "/responses", body_of(Wire.RESPONSES, text=f"I am in {new}"))
    assert status == 200
    assert f"look into {new}/a.py" in body.decode()


def test_a_provider_that_was_silent_is_silent_in_the_replay(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    fields: dict[str, Any] = {"wire": Wire.CHAT, "upstream": f"http://127.0.0.1:{port}/v1", "recording": tmp_path / "c"}
    seen = []
    for cassette in (Cassette.RECORD, Cassette.REPLAY):
        with open_gateway(GatewaySpec(cassette=cassette, **fields)) as gateway:
            assert ask(gateway, "/chat/completions", body_of(Wire.CHAT))[0] == 502
            seen.append(gateway.read_counters())
    assert seen[0] == seen[1]
    assert seen[0].statuses == {0: 1}


CODEX_CONFIG = """
model = "gpt-5"
model_provider = "door"
check_for_update_on_startup = false
[model_providers.door]
name = "door"
base_url = "{base_url}"
env_key = "DOOR_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
[feedback]
enabled = false
[features]
plugins = false
apps = false
remote_plugin = false
skill_search = false
"""


def run_codex(gateway: GatewayServer, folder: Path, *, sandbox: str = "danger-full-access") -> list[dict[str, Any]]:
    """Let Codex work in `folder`/tree with a home of its own, and return its events."""
    home, tree = folder / "home", folder / "tree"
    (home / ".codex").mkdir(parents=True)
    tree.mkdir()
    (home / ".codex" / "config.toml").write_text(CODEX_CONFIG.format(base_url=gateway.base_url))
    done = subprocess.run(
        (str(agent_program("codex")), "exec", "--json", "--skip-git-repo-check", "-s", sandbox, "-"),
        cwd=tree,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "CODEX_HOME": str(home / ".codex"), "DOOR_KEY": gateway.token},
        input=b"make the file",
        capture_output=True,
        timeout=150,
        check=False,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]


def volatile(folder: Path) -> tuple[str, ...]:
    return (str(folder / "home"), str(folder / "tree"))


def test_codex_works_through_the_door_and_again_from_the_recording(tmp_path: Path) -> None:
    agent_program("codex")
    recording, live, again = tmp_path / "cassette.jsonl", tmp_path / "live", tmp_path / "again"
    with FakeModel(shell("pwd > where.txt; echo hi > a.txt; cat where.txt"), say("done")) as model:
        spec = spec_of(model, cassette=Cassette.RECORD, recording=recording, volatile=volatile(live))
        with open_gateway(spec) as gateway:
            first = run_codex(gateway, live)
            lived = gateway.read_counters()
    assert (live / "tree" / "a.txt").read_text() == "hi\n"
    assert (lived.calls, lived.statuses, lived.usage.input_tokens) == (2, {200: 2}, 2000)
    spec = spec_of(model, cassette=Cassette.REPLAY, recording=recording, volatile=volatile(again))
    with open_gateway(spec) as gateway:
        second = run_codex(gateway, again)
        replayed = gateway.read_counters()
    assert (again / "tree" / "a.txt").read_text() == "hi\n", second
    assert [event["type"] for event in second] == [event["type"] for event in first], (first, second)
    assert second[-1]["type"] == "turn.completed"
    assert (replayed.calls, replayed.usage) == (lived.calls, lived.usage)


def test_codex_ends_at_once_on_a_spent_budget(tmp_path: Path) -> None:
    agent_program("codex")
    with (
        FakeModel(fault=Fault.endless_tools("true")) as model,
        open_gateway(spec_of(model, max_calls=3)) as gateway,
    ):
        events = run_codex(gateway, tmp_path / "run")
        assert (model.calls, gateway.read_counters().budget_spent) == (3, True)
    assert events[-1]["type"] == "turn.failed"
