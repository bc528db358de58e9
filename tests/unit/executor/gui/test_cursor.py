"""Cursor's side of a hand-off: the hook script as Cursor runs it, what is read of it, and how it is installed."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from activities.executor.gui import cursor, cursor_hook
from activities.executor.gui.cursor import CursorEvents, answer_to
from tightloop.errors import SettingsError
from tightloop.executor import handoff
from tightloop.executor.handoff import inline_message

MESSAGE = inline_message("e/1/0123abcd", "a plan")


def run(folder: Path, **event: Any) -> Any:
    command = (sys.executable, "-I", cursor_hook.__file__, str(folder))
    done = subprocess.run(command, input=json.dumps(event), capture_output=True, text=True, check=True, timeout=30)
    return json.loads(done.stdout)


def prompt(text: str, conversation: str = "c-1", *roots: Path) -> dict[str, Any]:
    opened = [str(root) for root in roots]
    return {
        "hook_event_name": "beforeSubmitPrompt",
        "conversation_id": conversation,
        "workspace_roots": opened,
        "prompt": text,
    }


def expecting(folder: Path, root: Path, *, allow_unknown_roots: bool = False) -> CursorEvents:
    """Return the events of a folder whose hook expects the message in a project."""
    events = CursorEvents(folder, folder / "none", allow_unknown_roots=allow_unknown_roots)
    events.expect(MESSAGE, str(root))
    return events


def test_hook_knows_the_same_marker_as_the_protocol() -> None:
    assert cursor_hook.MARKER.pattern == handoff.MARKER.pattern


def test_hand_off_is_acknowledged_once_and_its_answer_kept(tmp_path: Path) -> None:
    events = expecting(tmp_path, tmp_path)
    assert events.find(MESSAGE.id) is None
    assert run(tmp_path, **prompt(MESSAGE.text, "c-1", tmp_path)) == {"continue": True}
    receipt = events.find(MESSAGE.id)
    assert receipt is not None
    assert (receipt.conversation, receipt.source) == ("c-1", "hook")
    assert events.busy()
    again = run(tmp_path, **prompt(MESSAGE.text, "c-1", tmp_path))
    assert again["continue"] is False
    assert "already" in again["user_message"]
    run(tmp_path, hook_event_name="afterAgentResponse", conversation_id="c-1", text="done: 日本")
    run(tmp_path, hook_event_name="stop", conversation_id="c-1", status="completed")
    assert [(event.event, event.text, event.status) for event in events.events_since(receipt)] == [
        ("afterAgentResponse", "done: 日本", ""),
        ("stop", "", "completed"),
    ]
    assert not events.busy()


def test_conversations_of_the_user_are_not_recorded(tmp_path: Path) -> None:
    assert run(tmp_path, **prompt("my private question", "private")) == {"continue": True}
    assert run(tmp_path, hook_event_name="afterAgentResponse", conversation_id="private", text="secret") == {}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_of_many_at_once_one_is_let_through(tmp_path: Path) -> None:
    expecting(tmp_path, tmp_path)
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: cursor_hook.handle(tmp_path, prompt(MESSAGE.text, "c-1", tmp_path)), range(40))
        )
    assert sum(answer["continue"] for answer in answers) == 1
    for path in tmp_path.rglob("*.json"):
        json.loads(path.read_text())


@pytest.mark.parametrize("text", ["", "not json", "[1]", '{"prompt": 3}', '{"hook_event_name": null}'])
def test_hook_never_stops_the_user(tmp_path: Path, text: str) -> None:
    command = (sys.executable, "-I", cursor_hook.__file__, str(tmp_path))
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
    assert CursorEvents(tmp_path / "none", tmp_path).find(MESSAGE.id) is None, "it does not tell the folder"
    allowed = CursorEvents(tmp_path / "none", tmp_path, allow_unknown_roots=True)
    receipt = allowed.find(MESSAGE.id)
    assert receipt is not None
    assert (receipt.source, receipt.transcript) == ("transcript", str(path))
    assert answer_to(path, MESSAGE.id) == "All done"
    assert allowed.find("e/2/0123abcd") is None


def test_answer_that_quotes_a_hand_off_is_no_receipt(tmp_path: Path) -> None:
    transcript(tmp_path, ("assistant", MESSAGE.text))
    assert CursorEvents(tmp_path / "none", tmp_path, allow_unknown_roots=True).find(MESSAGE.id) is None


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
    assert "Run: " in cursor.hooks_problem()
    backup = cursor.install()
    assert backup is not None
    assert json.loads(backup.read_text()) == before
    found = json.loads(path.read_text())["hooks"]
    assert found["stop"][0] == {"command": "./mine.sh"}
    assert set(found) == {"beforeSubmitPrompt", "afterAgentResponse", "stop", "sessionStart"}
    assert cursor.hooks_problem() == ""
    assert cursor.install() is None
    cursor.install(remove=True)
    assert json.loads(path.read_text()) == before


def test_installed_command_acknowledges_a_hand_off(home: Path) -> None:
    cursor.install()
    command = json.loads((home / ".cursor" / "hooks.json").read_text())["hooks"]["beforeSubmitPrompt"][0]["command"]
    events = expecting(home / "state" / "gui" / "hooks", home)
    asked = json.dumps(prompt(MESSAGE.text, "c-1", home))
    done = subprocess.run(command, shell=True, input=asked, capture_output=True, text=True, check=True, env={})
    assert json.loads(done.stdout) == {"continue": True}
    assert events.find(MESSAGE.id) is not None


def test_script_of_an_earlier_version_is_no_installation(home: Path) -> None:
    cursor.install()
    script = home / "state" / "gui" / cursor.SCRIPT
    script.write_text(script.read_text().replace("misplacement", "nothing"))
    assert "outdated" in cursor.hooks_problem()
    cursor.install()
    assert cursor.hooks_problem() == ""


def checkouts(folder: Path) -> tuple[Path, Path]:
    """Return two projects of one name."""
    ours, other = folder / "a" / "demo", folder / "b" / "demo"
    for project in (ours, other):
        project.mkdir(parents=True)
    return ours, other


def test_plan_in_another_checkout_of_the_same_name_is_refused_and_both_are_named(tmp_path: Path) -> None:
    ours, other = checkouts(tmp_path)
    events = expecting(tmp_path, ours)
    answer = run(tmp_path, **prompt(MESSAGE.text, "c-1", other))
    assert answer["continue"] is False
    for said in (answer["user_message"], events.refusal(MESSAGE.id)):
        assert str(ours) in said
        assert str(other) in said
    assert events.find(MESSAGE.id) is None
    assert not events.busy(), "the agent there has nothing to do"
    # Once the right window is open, it may be handed over again.
    events.expect(MESSAGE, str(ours))
    assert events.refusal(MESSAGE.id) == ""
    assert run(tmp_path, **prompt(MESSAGE.text, "c-1", ours)) == {"continue": True}


def test_link_to_the_project_and_a_renamed_project_are_the_project(tmp_path: Path) -> None:
    ours, _other = checkouts(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(ours)
    for number, (meant, opened) in enumerate([(ours, link), (link, ours), (link, link)]):
        message = MESSAGE.evolve(id=f"l/{number}/0123abcd", text=f"[tightloop handoff l/{number}/0123abcd]")
        CursorEvents(tmp_path, tmp_path).expect(message, str(meant))
        assert run(tmp_path, **prompt(message.text, "c-1", opened)) == {"continue": True}
    expecting(tmp_path, ours)
    renamed = ours.rename(tmp_path / "renamed")
    ours.mkdir()
    assert run(tmp_path, **prompt(MESSAGE.text, "c-1", renamed)) == {"continue": True}


@pytest.mark.parametrize("part", ["", "src", "..", "../../b/demo"])
def test_only_the_very_folder_alone_is_the_project(tmp_path: Path, part: str) -> None:
    ours, _other = checkouts(tmp_path)
    (ours / "src").mkdir()
    expecting(tmp_path, ours)
    roots = [ours / part, tmp_path / "b" / "demo"] if not part else [ours / part]
    assert run(tmp_path, **prompt(MESSAGE.text, "c-1", *roots))["continue"] is False


@pytest.mark.parametrize("roots", [None, [], "demo", ["demo"], ["ssh-remote+host/a/demo"], [None], ["/no/such/demo"]])
def test_editor_that_does_not_say_what_it_has_open_is_refused(tmp_path: Path, roots: object) -> None:
    expecting(tmp_path, tmp_path)
    assert run(tmp_path, **{**prompt(MESSAGE.text), "workspace_roots": roots})["continue"] is False


def test_owner_may_trust_an_editor_that_says_nothing_but_not_one_that_says_another_folder(tmp_path: Path) -> None:
    ours, other = checkouts(tmp_path)
    events = expecting(tmp_path, ours)
    refused = run(tmp_path, **prompt(MESSAGE.text))
    assert "window.allow_unknown_roots" in refused["user_message"]
    events = expecting(tmp_path, ours, allow_unknown_roots=True)
    assert run(tmp_path, **prompt(MESSAGE.text, "c-1", other))["continue"] is False
    assert run(tmp_path, **prompt(MESSAGE.text)) == {"continue": True}
    assert events.find(MESSAGE.id) is not None


def test_plan_that_nobody_here_expects_or_that_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path, **prompt(MESSAGE.text, "c-1", tmp_path))["continue"] is False
    expecting(tmp_path, tmp_path)
    (tmp_path / "acks").write_text("not a folder")
    assert run(tmp_path, **prompt(MESSAGE.text, "c-1", tmp_path))["continue"] is False
    assert run(tmp_path, **prompt("my own question", "c-1", tmp_path)) == {"continue": True}


def test_hook_gives_the_next_plan_in_its_own_folder_only(tmp_path: Path) -> None:
    ours, other = checkouts(tmp_path)
    events = expecting(tmp_path, ours)
    assert run(tmp_path, **prompt(MESSAGE.text, "c-1", ours)) == {"continue": True}
    following = inline_message("e/2/0123abcd", "the next plan")
    events.expect(following, str(ours))
    events.offer(following)
    stop = {"hook_event_name": "stop", "conversation_id": "c-1", "status": "completed"}
    assert cursor_hook.handle(tmp_path, {**stop, "workspace_roots": [str(other)]}) == {}
    assert cursor_hook.handle(tmp_path, {**stop, "workspace_roots": [str(ours)]}) == {
        "followup_message": following.text
    }


@pytest.mark.parametrize("content", ["{", "[]", '{"hooks": []}'])
def test_damaged_file_of_hooks_stays_as_it_is(home: Path, content: str) -> None:
    path = home / ".cursor" / "hooks.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(SettingsError, match=r"hooks\.json"):
        cursor.install()
    assert path.read_text() == content
