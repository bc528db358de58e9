"""Cursor's side of a hand-off: the hook script as Cursor runs it, what is read of it, and how it is installed."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from activities.executor.gui.cursor import hook, installation
from activities.executor.gui.cursor.events import CursorEvents
from activities.executor.gui.cursor.transcript import answer_to
from tightloop.errors import SettingsError
from tightloop.executor import handoff
from tightloop.executor.handoff import inline_message

MESSAGE = inline_message("e/1/0123abcd", "a plan")


def run(folder: Path, **event: Any) -> Any:
    command = (sys.executable, "-I", hook.__file__, str(folder))
    done = subprocess.run(command, input=json.dumps(event), capture_output=True, text=True, check=True, timeout=30)
    return json.loads(done.stdout)


def prompt(text: str, conversation: str = "c-1") -> dict[str, Any]:
    return {"hook_event_name": "beforeSubmitPrompt", "conversation_id": conversation, "prompt": text}


def test_hook_knows_the_same_marker_as_the_protocol() -> None:
    assert hook.MARKER.pattern == handoff.MARKER.pattern


def test_hand_off_is_acknowledged_once_and_its_answer_kept(tmp_path: Path) -> None:
    events = CursorEvents(tmp_path, tmp_path / "none")
    assert events.find(MESSAGE.id) is None
    assert run(tmp_path, **prompt(MESSAGE.text)) == {"continue": True}
    receipt = events.find(MESSAGE.id)
    assert receipt is not None
    assert (receipt.conversation, receipt.source) == ("c-1", "hook")
    assert events.busy()
    again = run(tmp_path, **prompt(MESSAGE.text))
    assert again["continue"] is False
    assert "already" in again["user_message"]
    run(tmp_path, hook_event_name="afterAgentResponse", conversation_id="c-1", text="done: 日本")
    run(tmp_path, hook_event_name="stop", conversation_id="c-1", status="completed")
    assert [(event.event, event.text, event.status) for event in events.after(receipt)] == [
        ("afterAgentResponse", "done: 日本", ""),
        ("stop", "", "completed"),
    ]
    assert not events.busy()


def test_conversations_of_the_user_are_not_recorded(tmp_path: Path) -> None:
    assert run(tmp_path, **prompt("my private question", "private")) == {"continue": True}
    assert run(tmp_path, hook_event_name="afterAgentResponse", conversation_id="private", text="secret") == {}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_of_many_at_once_one_is_let_through(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: hook.handle(tmp_path, prompt(MESSAGE.text)), range(40)))
    assert sum(answer["continue"] for answer in answers) == 1
    for path in tmp_path.rglob("*.json"):
        json.loads(path.read_text())


@pytest.mark.parametrize("text", ["", "not json", "[1]", '{"prompt": 3}', '{"hook_event_name": null}'])
def test_hook_never_stops_the_user(tmp_path: Path, text: str) -> None:
    command = (sys.executable, "-I", hook.__file__, str(tmp_path))
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=30)
    assert json.loads(done.stdout).get("continue", True) is True


def transcript(root: Path, *entries: tuple[str, str]) -> Path:
    path = root / "slug" / "agent-transcripts" / "u" / "u.jsonl"
    path.parent.mkdir(parents=True)
    lines = [json.dumps({"role": role, "message": {"content": [{"type": "text", "text": t}]}}) for role, t in entries]
    path.write_text("\n".join(["{broken", *lines]) + "\n")
    return path


def test_transcript_tells_where_no_hook_does(tmp_path: Path) -> None:
    path = transcript(
        tmp_path,
        ("assistant", "earlier"),
        ("user", f"<user_query>\n{MESSAGE.text}\n</user_query>"),
        ("assistant", "I begin"),
        ("assistant", "All done"),
        ("user", "thanks"),
        ("assistant", "welcome"),
    )
    receipt = CursorEvents(tmp_path / "none", tmp_path).find(MESSAGE.id)
    assert receipt is not None
    assert (receipt.source, receipt.transcript) == ("transcript", str(path))
    assert answer_to(path, MESSAGE.id) == "All done"
    assert CursorEvents(tmp_path / "none", tmp_path).find("e/2/0123abcd") is None


def test_answer_that_quotes_a_hand_off_is_no_receipt(tmp_path: Path) -> None:
    transcript(tmp_path, ("assistant", MESSAGE.text))
    assert CursorEvents(tmp_path / "none", tmp_path).find(MESSAGE.id) is None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "state"))
    return tmp_path


def test_hooks_are_put_beside_those_of_others_and_taken_out_again(home: Path) -> None:
    path = home / ".cursor" / "hooks.json"
    path.parent.mkdir()
    before = {"version": 1, "hooks": {"stop": [{"command": "./mine.sh"}], "sessionStart": [{"command": "x"}]}}
    path.write_text(json.dumps(before))
    assert "Run: " in installation.hooks_problem()
    backup = installation.install()
    assert backup is not None
    assert json.loads(backup.read_text()) == before
    found = json.loads(path.read_text())["hooks"]
    assert found["stop"][0] == {"command": "./mine.sh"}
    assert set(found) == {"beforeSubmitPrompt", "afterAgentResponse", "stop", "sessionStart"}
    assert installation.hooks_problem() == ""
    assert installation.install() is None
    installation.install(remove=True)
    assert json.loads(path.read_text()) == before


def test_installed_command_acknowledges_a_hand_off(home: Path) -> None:
    installation.install()
    command = json.loads((home / ".cursor" / "hooks.json").read_text())["hooks"]["beforeSubmitPrompt"][0]["command"]
    done = subprocess.run(
        command, shell=True, input=json.dumps(prompt(MESSAGE.text)), capture_output=True, text=True, check=True, env={}
    )
    assert json.loads(done.stdout) == {"continue": True}
    assert CursorEvents(home / "state" / "gui" / "hooks", home / "none").find(MESSAGE.id) is not None


@pytest.mark.parametrize("content", ["{", "[]", '{"hooks": []}'])
def test_damaged_file_of_hooks_stays_as_it_is(home: Path, content: str) -> None:
    path = home / ".cursor" / "hooks.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(SettingsError, match=r"hooks\.json"):
        installation.install()
    assert path.read_text() == content
