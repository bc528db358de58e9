"""The protocol of a hand-off on a desktop in memory: every fault at every step, and death at every step."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from activities.executor.gui.port import Health, Window
from activities.executor.gui.protocol import HandOff
from tests.support.gui.fake import (
    EDITOR,
    Calls,
    Desktop,
    FakeDriver,
    FakeReceipts,
    Fault,
    Killed,
    MemoryLedger,
    fail,
    fail_late,
    kill,
    steal_focus,
)
from tightloop.executor.handoff import HandOffEnd, HandOffResult, HandOffState, Message, Receipt, Target, inline_message

MESSAGE = inline_message("e/1/0123abcd", "line 1\nline 2: café 🚀")
TARGET = Target(
    apps=("Cursor",),
    title=r"(^|[-–—] ){project}( |$)",
    project="demo",
    root="/src/demo",
    box="chat input",
    chat_key="mod+l",
)
Deliver = Callable[..., HandOffResult]


@pytest.fixture
def deliver(tmp_path: Path) -> Deliver:
    def run(
        desktop: Desktop, calls: Calls | None = None, message: Message = MESSAGE, **changes: object
    ) -> HandOffResult:
        driver = FakeDriver(desktop, calls)
        for name, value in changes.items():
            setattr(driver, name, value)
        return HandOff(
            driver=driver,
            ledger=MemoryLedger(desktop, driver),
            receipts=FakeReceipts(desktop),
            target=TARGET,
            lock=tmp_path / "screen.lock",
            sleep=desktop.sleep,
            now=desktop.now,
        ).deliver(message)

    return run


def test_plan_is_submitted_once_and_the_clipboard_is_given_back(deliver: Deliver) -> None:
    desktop = Desktop()
    result = deliver(desktop)
    assert (result.end, desktop.submitted, desktop.leaked) == (HandOffEnd.ACKED, [MESSAGE.text], [])
    assert desktop.clipboard == "what the user copied"
    assert deliver(desktop).end is HandOffEnd.ACKED
    assert len(desktop.submitted) == 1


def clean_calls(deliver: Deliver) -> list[str]:
    calls = Calls()
    assert deliver(Desktop(), calls).end is HandOffEnd.ACKED
    return calls.names


def test_killed_at_every_step_and_started_again_submits_exactly_once(deliver: Deliver) -> None:
    """Each call to the desktop and each write of the ledger, before and after its effect."""
    steps = clean_calls(deliver)
    assert {"record prepared", "activate", "press mod+v", "record enter", "press enter", "record acked"} <= set(steps)
    for number in range(1, len(steps) + 1):
        for when in ("before", "after"):
            for lag in (0, 4):
                desktop = Desktop(lag=lag)
                with pytest.raises(Killed):
                    deliver(desktop, Calls({number: kill(when)}))
                result = deliver(desktop)
                where = f"{when} {steps[number - 1]} ({number}), lag {lag}"
                assert desktop.submitted == [MESSAGE.text], where
                assert result.end is HandOffEnd.ACKED, where
                assert not desktop.leaked, where


def test_killed_twice_submits_exactly_once(deliver: Deliver) -> None:
    steps = len(clean_calls(deliver))
    for seed in range(100):
        chance = random.Random(seed)
        desktop = Desktop(lag=chance.choice((0, 3)), chat_open=chance.random() < 0.5)
        for _ in range(2):
            try:
                deliver(desktop, Calls({chance.randint(1, steps): kill(chance.choice(("before", "after")))}))
            except Killed:
                continue
        assert deliver(desktop).end is HandOffEnd.ACKED
        assert desktop.submitted == [MESSAGE.text]


@pytest.mark.parametrize("fault", [steal_focus, fail, fail_late])
def test_fault_at_any_step_never_submits_twice_nor_leaks(deliver: Deliver, fault: Fault) -> None:
    for number, name in enumerate(clean_calls(deliver), start=1):
        if name.startswith("record"):
            continue
        if fault is steal_focus and name.startswith("press"):
            # Between the last look and the key nothing can be checked: a desktop of its own is required.
            continue
        desktop = Desktop()
        result = deliver(desktop, Calls({number: fault}))
        if result.end is HandOffEnd.REFUSED:
            assert desktop.submitted == []
            assert result.retryable
            result = deliver(desktop)
        assert result.end is HandOffEnd.ACKED, (number, name)
        assert desktop.submitted == [MESSAGE.text], (number, name)
        assert desktop.leaked == [], (number, name)


def test_plan_that_the_hook_refused_is_taken_out_of_the_box_and_may_be_handed_over_again(deliver: Deliver) -> None:
    desktop = Desktop(refuses="the plan is for /a/demo, but this window has /b/demo open")
    result = deliver(desktop)
    assert (result.end, result.reason, result.retryable) == (HandOffEnd.WRONG_WINDOW, desktop.refuses, False)
    assert (desktop.submitted, desktop.box, desktop.clipboard) == ([], "", "what the user copied")
    desktop.refuses = ""
    assert deliver(desktop).end is HandOffEnd.ACKED
    assert desktop.submitted == [MESSAGE.text]


def test_killed_at_every_step_of_a_refused_hand_off_submits_nothing(deliver: Deliver) -> None:
    calls = Calls()
    deliver(Desktop(refuses="not here"), calls)
    for number in range(1, calls.count + 1):
        for when in ("before", "after"):
            desktop = Desktop(refuses="not here")
            with pytest.raises(Killed):
                deliver(desktop, Calls({number: kill(when)}))
            where = f"{when} {calls.names[number - 1]} ({number})"
            assert deliver(desktop).end is HandOffEnd.WRONG_WINDOW, where
            assert (desktop.submitted, desktop.box, desktop.leaked) == ([], "", []), where


def test_no_key_is_pressed_while_another_program_holds_the_keyboard(deliver: Deliver) -> None:
    for number, name in enumerate(clean_calls(deliver), start=1):

        def lock(driver: FakeDriver, moment: str) -> None:
            driver.desktop.locked = driver.desktop.locked or moment == "before"

        desktop = Desktop()
        result = deliver(desktop, Calls({number: lock}))
        if name == "record acked":
            continue
        assert result.end is not HandOffEnd.ACKED or desktop.submitted == [MESSAGE.text], name
        desktop.locked = False
        assert deliver(desktop).end is HandOffEnd.ACKED, name
        assert (desktop.submitted, desktop.leaked) == ([MESSAGE.text], []), name


def test_lock_at_the_last_moment_is_named(deliver: Deliver) -> None:
    desktop = Desktop()

    def lock(driver: FakeDriver, _moment: str) -> None:
        driver.desktop.locked = True

    result = deliver(desktop, Calls(kinds={("press enter", 1): lock}))
    assert (result.end, desktop.box, desktop.submitted) == (HandOffEnd.NOT_TAKEN, MESSAGE.text, [])
    assert "another program or window has the keyboard" in result.reason


def test_keys_of_a_process_that_died_are_released_first(deliver: Deliver) -> None:
    desktop = Desktop(held=["ctrl", "v"], box=MESSAGE.text * 141)
    assert deliver(desktop).end is HandOffEnd.ACKED
    assert (desktop.held, desktop.submitted) == ([], [MESSAGE.text])


def test_chat_shortcut_that_closes_the_chat_is_pressed_again(deliver: Deliver) -> None:
    desktop = Desktop(chat_open=True, chat_focused=False)

    def close_first(driver: FakeDriver, moment: str) -> None:
        if moment == "after":
            driver.desktop.chat_open = driver.desktop.chat_focused = False

    assert deliver(desktop, Calls(kinds={("press mod+l", 1): close_first})).end is HandOffEnd.ACKED
    assert desktop.leaked == []


def test_editor_that_keeps_the_focus_keeps_its_file(deliver: Deliver) -> None:
    desktop = Desktop(keeps_closed=True, chat_open=False)
    result = deliver(desktop)
    assert (result.end, desktop.submitted, desktop.leaked) == (HandOffEnd.REFUSED, [], [])
    assert "instead of the chat box" in result.reason
    assert "main.py" in result.reason
    assert desktop.file == "print('mine')\n"


def test_foreign_draft_stays_and_is_named(deliver: Deliver) -> None:
    desktop = Desktop(box="my own thoughts")
    result = deliver(desktop)
    assert (result.end, desktop.box, desktop.submitted) == (HandOffEnd.REFUSED, "my own thoughts", [])
    assert "draft" in result.reason


def test_leftover_of_an_earlier_hand_off_is_removed(deliver: Deliver) -> None:
    desktop = Desktop(busy=True)
    assert deliver(desktop).end is HandOffEnd.NOT_TAKEN
    desktop.busy = False
    other = inline_message("e/2/0123abce", "the next plan")
    assert deliver(desktop, message=other).end is HandOffEnd.ACKED
    assert desktop.submitted == [other.text]


@pytest.mark.parametrize(
    ("windows", "words", "retryable"),
    [
        ([], "is not open", True),
        ([EDITOR, EDITOR.evolve(id="3", title="other.py - demo - Cursor")], "2 windows match the project", False),
        ([EDITOR.evolve(app="Slack")], "is not open", True),
        ([EDITOR.evolve(title="main.py - another - Cursor")], "is not open", True),
    ],
)
def test_only_the_one_right_window_is_touched(
    deliver: Deliver, windows: list[Window], words: str, retryable: bool
) -> None:
    desktop = Desktop(windows=windows)
    result = deliver(desktop)
    assert (result.end, result.retryable, desktop.submitted, desktop.leaked) == (HandOffEnd.REFUSED, retryable, [], [])
    assert words in result.reason


def paste_twice(desktop: Desktop) -> None:
    desktop.box += (desktop.clipboard or "") * 2


def test_paste_that_arrives_twice_is_taken_back_and_refused_if_it_persists(deliver: Deliver) -> None:
    desktop = Desktop()
    result = deliver(desktop, paste=paste_twice)
    assert (result.end, desktop.submitted, desktop.box) == (HandOffEnd.REFUSED, [], "")


def test_paste_that_gets_lost_is_made_again(deliver: Deliver) -> None:
    desktop, lost = Desktop(), [True, True]

    def paste(desk: Desktop) -> None:
        if not (lost and lost.pop()):
            desk.box += desk.clipboard or ""

    assert deliver(desktop, paste=paste).end is HandOffEnd.ACKED
    assert desktop.submitted == [MESSAGE.text]


def test_paste_of_something_else_is_never_submitted(deliver: Deliver) -> None:
    def paste(desk: Desktop) -> None:
        desk.box += "the previous plan"

    desktop = Desktop()
    assert deliver(desktop, paste=paste).end is HandOffEnd.REFUSED
    assert desktop.submitted == []


def test_clipboard_that_stays_stale_is_never_pasted(deliver: Deliver) -> None:
    def stale(driver: FakeDriver, moment: str) -> None:
        if moment == "after":
            driver.desktop.clipboard = "the previous plan"

    desktop = Desktop()
    result = deliver(desktop, Calls(kinds={("set_clipboard", n): stale for n in range(1, 20)}))
    assert (result.end, desktop.box, desktop.submitted) == (HandOffEnd.REFUSED, "", [])


def test_busy_agent_gets_three_enters_and_a_person_is_asked(deliver: Deliver) -> None:
    desktop, calls = Desktop(busy=True), Calls()
    result = deliver(desktop, calls)
    assert (result.end, desktop.submitted, desktop.box) == (HandOffEnd.NOT_TAKEN, [], MESSAGE.text)
    assert calls.names.count("press enter") == 3
    assert calls.names.count("press mod+v") == 1


def test_agent_known_to_be_at_work_gets_nothing(deliver: Deliver) -> None:
    desktop = Desktop(working=True)
    result = deliver(desktop)
    assert (result.end, result.retryable, desktop.box) == (HandOffEnd.REFUSED, True, "")


@pytest.mark.parametrize("guards", [True, False])
def test_box_that_lags_behind_is_not_submitted_twice(deliver: Deliver, guards: bool) -> None:
    desktop, calls = Desktop(lag=3, guards=guards), Calls()
    assert deliver(desktop, calls).end is HandOffEnd.ACKED
    assert desktop.submitted == [MESSAGE.text]


def test_submission_that_nobody_acknowledges_is_left_to_a_person(deliver: Deliver) -> None:
    desktop = Desktop(acknowledges=False)
    result = deliver(desktop)
    assert (result.end, len(desktop.submitted)) == (HandOffEnd.AMBIGUOUS, 1)
    assert deliver(desktop).end is HandOffEnd.AMBIGUOUS
    assert len(desktop.submitted) == 1
    assert desktop.entries[MESSAGE.id].state is HandOffState.ENTER


def test_late_acknowledgement_is_found_by_the_next_attempt(deliver: Deliver) -> None:
    desktop = Desktop(acknowledges=False)
    assert deliver(desktop).end is HandOffEnd.AMBIGUOUS
    desktop.receipts[MESSAGE.id] = Receipt(handoff_id=MESSAGE.id)
    assert deliver(desktop).end is HandOffEnd.ACKED


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tells_text": False}, "does not show the text of the chat box"),
        ({"tells_focus": False}, "an unknown element"),
        ({"health": Health(problems=("the screen is locked. Unlock it",))}, "the screen is locked"),
    ],
)
def test_what_cannot_be_checked_is_refused(deliver: Deliver, changes: dict[str, object], words: str) -> None:
    desktop = Desktop()
    result = deliver(desktop, **changes)
    assert (result.end, desktop.submitted, desktop.box) == (HandOffEnd.REFUSED, [], "")
    assert words in result.reason


def test_random_faults_never_submit_twice_nor_anything_else(deliver: Deliver) -> None:
    faults: list[Fault] = [fail, fail_late, kill("before"), kill("after")]
    for seed in range(100):
        chance = random.Random(seed)
        desktop = Desktop(lag=chance.choice((0, 0, 3)), chat_open=chance.random() < 0.7, guards=chance.random() < 0.8)
        for _ in range(4):
            at = {chance.randint(1, 30): chance.choice(faults) for _ in range(chance.randint(0, 3))}
            try:
                deliver(desktop, Calls(at))
            except Killed:
                continue
        assert deliver(desktop).end is HandOffEnd.ACKED, seed
        assert desktop.submitted == [MESSAGE.text], seed
        assert desktop.leaked == [], seed


def test_draft_whose_last_page_is_empty_is_found_and_kept(deliver: Deliver) -> None:
    draft = "somebody's line\n" * 500
    desktop = Desktop(box=draft, page_lines=500)
    result = deliver(desktop)
    assert result.end is HandOffEnd.REFUSED
    assert "a draft that tightloop did not write" in result.reason
    assert (desktop.box, desktop.submitted, desktop.leaked) == (draft, [], [])
