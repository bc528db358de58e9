"""Hand-offs into the real interface of the VS Code family; opt-in: python -m tests.support.gui.vscode.install.

`pytest -s tests/trials/test_gui_vscode.py` prints the figures.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gui import desktop
from tests.support.gui.handing import by_file, deliver, hand_off, identity, plan, until_idle
from tests.support.gui.vscode import Editor, editor, missing
from tightloop.executor.handoff import HandOffEnd, Message, inline_message

pytestmark = [
    pytest.mark.skipif(bool(missing() or desktop.missing()), reason=missing() or desktop.missing()),
    pytest.mark.timeout(900),
    # python3-xlib leaves the authority file open; pyautogui's helpers use what Python has deprecated.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"),
]
COUNT = 60


@pytest.fixture(scope="module")
def vscode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    with editor(tmp_path_factory.mktemp("vscode")) as running:
        yield running


@pytest.fixture(autouse=True)
def clean(vscode: Editor) -> Iterator[None]:
    vscode.works_for(0.3)
    yield
    # The source file is open beside the chat in some tests.
    assert vscode.file.read_text() == "print('mine')\n"


def whole(name: str, number: int) -> Message:
    """A plan of 10 kB in less than 500 lines: of longer texts this editor's accessibility tree has one page only."""
    return inline_message(identity(name, number), plan(number).replace("\n```", " ```"))


def taken_by(vscode: Editor, message: Message) -> list[str]:
    return [text for text in vscode.taken if message.id in text]


def test_sixty_plans_arrive_exactly_and_once(vscode: Editor) -> None:
    messages = [by_file("real", number) if number % 2 else whole("real", number) for number in range(COUNT)]
    took, ends = list[float](), list[HandOffEnd]()
    for message in messages:
        begun = time.monotonic()
        ends.append(deliver(vscode.driver, vscode.folder, message).end)
        took.append(time.monotonic() - begun)
    once = sum(taken_by(vscode, message) == [message.text] for message in messages)
    wrong, median = len(vscode.taken) - once, sorted(took)[COUNT // 2]
    print(f"\n{once} of {COUNT} once and exact, {wrong} wrong submits, median {median:.2f} s")
    assert (once, len(vscode.taken)) == (COUNT, COUNT)
    assert set(ends) == {HandOffEnd.ACKED}


def test_chat_that_is_closed_is_opened_and_not_closed_again(vscode: Editor) -> None:
    until_idle(vscode.folder)
    vscode.driver.activate(vscode.window)
    time.sleep(0.5)
    vscode.driver.press("mod+l")
    time.sleep(1.0)
    message = by_file("closed", 1)
    assert deliver(vscode.driver, vscode.folder, message).end is HandOffEnd.ACKED
    assert taken_by(vscode, message) == [message.text]


def test_open_file_with_the_focus_stays_as_it_is(vscode: Editor) -> None:
    until_idle(vscode.folder)
    vscode.driver.activate(vscode.window)
    vscode.driver.press("mod+p")
    time.sleep(1.0)
    vscode.driver.set_clipboard("main.py")
    time.sleep(0.3)
    vscode.driver.press("mod+v")
    time.sleep(1.0)
    vscode.driver.press("enter")
    time.sleep(1.5)
    focused = vscode.driver.focused_element()
    assert focused is not None
    assert "main.py" in focused.label
    message = whole("editor", 1)
    assert deliver(vscode.driver, vscode.folder, message).end is HandOffEnd.ACKED
    assert taken_by(vscode, message) == [message.text]


def test_draft_of_a_person_stays(vscode: Editor) -> None:
    until_idle(vscode.folder)
    deliver(vscode.driver, vscode.folder, by_file("before-draft", 1))
    until_idle(vscode.folder)
    vscode.driver.set_clipboard("my own words")
    time.sleep(0.3)
    vscode.driver.press("mod+v")
    time.sleep(1.0)
    message = by_file("draft", 1)
    result = hand_off(vscode.driver, vscode.folder).deliver(message)
    assert (result.end, "draft" in result.reason) == (HandOffEnd.REFUSED, True)
    focused = vscode.driver.focused_element()
    assert focused is not None
    assert focused.text == "my own words"
    for chord in ("mod+a", "backspace"):
        vscode.driver.press(chord)
    assert taken_by(vscode, message) == []


def test_agent_at_work_is_waited_for(vscode: Editor) -> None:
    until_idle(vscode.folder)
    vscode.works_for(6.0)
    first, second = by_file("busy", 1), by_file("busy", 2)
    assert deliver(vscode.driver, vscode.folder, first).end is HandOffEnd.ACKED
    refused = hand_off(vscode.driver, vscode.folder).deliver(second)
    assert (refused.end, refused.retryable) == (HandOffEnd.REFUSED, True)
    # The hook takes it at the end of the turn, and the chat submits it.
    end = time.monotonic() + 30
    while (result := hand_off(vscode.driver, vscode.folder).deliver(second)).retryable and time.monotonic() < end:
        time.sleep(0.2)
    assert result.end is HandOffEnd.ACKED
    # The hook acknowledges a moment before the agent has it.
    time.sleep(0.5)
    assert [taken_by(vscode, one) for one in (first, second)] == [[first.text], [second.text]]


def test_ten_plans_of_two_checkouts_reach_only_the_one_that_is_open(vscode: Editor, tmp_path: Path) -> None:
    ours, other = vscode.file.parent, tmp_path / "demo"
    other.mkdir()
    link = tmp_path / "link"
    link.symlink_to(ours)
    wrong = 0
    for number in range(10):
        root = (other, ours, link)[number % 3]
        message = by_file("checkouts", number)
        result = deliver(vscode.driver, vscode.folder, message, root=root)
        expected = HandOffEnd.WRONG_WINDOW if root is other else HandOffEnd.ACKED
        assert result.end is expected, result.reason
        until_idle(vscode.folder)
        assert taken_by(vscode, message) == ([] if root is other else [message.text])
        if root is other:
            wrong += 1
            assert str(ours) in result.reason
            assert str(other) in result.reason
    assert wrong == 4


def test_nothing_of_all_that_is_in_the_folder_of_the_project(vscode: Editor) -> None:
    assert [path.name for path in Path(vscode.file.parent).iterdir()] == ["main.py"]
