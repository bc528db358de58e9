"""Rules of a hand-off: texts as a chat box gives them back, windows by program and title, what follows after Enter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gui.fake import leading_marker
from tightloop.executor.handoff import (
    ACK_S,
    MOST_ENTERS,
    BoxState,
    Message,
    NextStep,
    Target,
    after_enter,
    file_message,
    handoff_id,
    inline_message,
    look_at_box,
    normalise,
)
from tightloop.settings import WindowSettings

TARGET = Target(
    apps=("Cursor",), title=WindowSettings().title, project="demo", root="/src/demo", box="chat", chat_key="mod+l"
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\r\nb\rc\n", "a\nb\nc"),
        ("a\u00a0b\u202fc", "a b c"),
        ("cafe\u0301", "caf\u00e9"),
        ("a\tb\x00\x1b[0m", "a\tb[0m"),
        ("👩‍💻 日本語", "👩‍💻 日本語"),
    ],
)
def test_text_is_pasted_as_the_box_gives_it_back(text: str, kept: str) -> None:
    assert normalise(text) == kept


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


def test_file_message_is_one_ascii_line_whatever_the_plan_holds() -> None:
    message = file_message("e/1/0123abcd", ".tightloop/handoff/x.md", "plan 🚀\nwith lines")
    assert message.text.isascii()
    assert "\n" not in message.text
    assert leading_marker(message.text) == "e/1/0123abcd"


def test_id_is_the_same_for_the_same_delivery_and_another_for_another() -> None:
    first = handoff_id("run/1/1", "episode one", 1)
    assert first == handoff_id("run/1/1", "episode one", 1)
    assert first != handoff_id("run/1/2", "episode one", 1)
    assert leading_marker(inline_message(first, "plan").text) == first


def test_prompt_that_quotes_a_marker_is_no_hand_off() -> None:
    assert leading_marker("what does [tightloop handoff e/1/0123abcd] mean?") == ""


@pytest.mark.parametrize(
    ("title", "matches"),
    [
        ("main.py - demo - Cursor", True),
        ("main.py — demo — Default", True),
        ("● main.py – demo", True),
        ("demo", True),
        ("demo - Cursor", True),
        ("demo ⟦tightloop⟧", True),
        ("main.py - demo - Work - Cursor", True),
        ("a - b.md — demo", True),
        ("demo - notes - Cursor", False),
        ("demo — notes", False),
        ("demo [SSH: host] - Cursor", False),
        ("main.py - demo [WSL: Ubuntu] - Cursor", False),
        ("main.py - demo (Workspace) - Cursor", False),
        ("old demo - Cursor", False),
        ("main.py - other - Cursor", False),
        ("demo.py - other - Cursor", False),
        ("main.py - demo2 - Cursor", False),
        ("", False),
    ],
)
def test_window_is_told_by_its_project(title: str, matches: bool) -> None:
    assert TARGET.matches("Cursor", title) is matches
    assert not TARGET.matches("Slack", title)


@pytest.mark.parametrize("title", ["caf\u00e9", "cafe\u0301"])
@pytest.mark.parametrize("project", ["caf\u00e9", "cafe\u0301"])
def test_composed_and_decomposed_names_are_one(title: str, project: str) -> None:
    assert TARGET.evolve(project=project).matches("Cursor", f"main.py - {title} - Cursor")


@pytest.mark.parametrize(
    "name", ["SSH: host", "WSL: Ubuntu", "Dev Container: x", "Attached Container y", "Codespaces: z"]
)
def test_window_of_another_machine_is_refused_whatever_the_settings_say(name: str) -> None:
    target = TARGET.evolve(title="demo")
    assert target.matches("Cursor", "main.py - demo - Cursor")
    assert not target.matches("Cursor", f"main.py - demo [{name}] - Cursor")


def test_copies_of_a_text_of_ours_may_be_removed_and_nothing_else() -> None:
    message = inline_message("e/1/0123abcd", "a plan")
    assert look_at_box(message.text * 141, message, ()) is BoxState.LEFTOVER
    assert look_at_box(message.text + message.text[:-1], message, ()) is BoxState.FOREIGN
    assert look_at_box(f"{message.text}x{message.text}", message, ()) is BoxState.FOREIGN


def test_name_of_a_project_is_not_read_as_a_pattern() -> None:
    target = TARGET.evolve(project=".*")
    assert not target.matches("Cursor", "main.py - demo - Cursor")
    assert target.matches("Cursor", "main.py - .* - Cursor")


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("", BoxState.EMPTY),
        ("\n \u00a0", BoxState.EMPTY),
        ("a b\n", BoxState.OURS),
        ("earlier", BoxState.LEFTOVER),
        ("a b a b", BoxState.FOREIGN),
        ("a b, and my draft", BoxState.FOREIGN),
    ],
)
def test_box_is_told_by_its_whole_content(text: str, state: BoxState) -> None:
    assert look_at_box(text, Message(id="e/1/0123abcd", text="a b"), ["earlier"]) is state


@given(
    box=st.sampled_from([*BoxState, None]),
    enters=st.integers(0, 9),
    waited_s=st.floats(0, 100),
    guarded=st.booleans(),
)
def test_enter_is_pressed_only_while_the_text_is_in_the_box(
    box: BoxState | None, enters: int, waited_s: float, guarded: bool
) -> None:
    step = after_enter(box, acked=False, enters=enters, waited_s=waited_s, guarded=guarded)
    if step is NextStep.PRESS:
        assert box is BoxState.OURS
        assert enters < MOST_ENTERS
        assert enters == 0 or waited_s >= ACK_S
    assert step is not NextStep.DONE
    assert after_enter(box, acked=True, enters=enters, waited_s=waited_s, guarded=guarded) is NextStep.DONE
