"""Hand-offs on a real X11 desktop, through Chromium's accessibility tree, into a page that behaves like a chat."""

import base64
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.executor.gui.agent_s import AgentS, size_of
from activities.executor.gui.cursor import CursorEvents
from activities.executor.gui.port import Frame
from tests.support.gui.agent_s import agent_s_python
from tests.support.gui.desktop import LiveDesktop, live_desktop, missing
from tests.support.gui.handing import Interrupted, by_file, deliver, hand_off, inline, project_in
from tests.support.gui.page import EDITOR_TITLE, ChatPage, chat_page
from tests.support.gui.pictures import PointsAt
from tests.support.model_server import ModelServer, says
from tightloop.executor.handoff import HandOffEnd
from tightloop.settings import AgentSSettings

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(300),
    # python3-xlib leaves the authority file open; pyautogui's helpers use what Python has deprecated.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"),
]


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def desktop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDesktop]:
    folder = tmp_path_factory.mktemp("desktop")
    page = ChatPage(hooks=folder / "hooks", root=project_in(folder))
    with chat_page(page), live_desktop(page, folder) as running:
        yield running


@pytest.fixture(autouse=True)
def clean(desktop: LiveDesktop) -> Iterator[None]:
    page = desktop.page
    page.submitted, page.leaked, page.refused = [], [], 0
    assert desktop.page.hooks is not None
    end = time.monotonic() + 20
    while CursorEvents(desktop.page.hooks, desktop.page.hooks).busy() and time.monotonic() < end:
        time.sleep(0.1)
    yield
    page.lag_s, page.busy = 0.0, False


@pytest.fixture
def folder(desktop: LiveDesktop) -> Path:
    assert desktop.page.hooks is not None
    return desktop.page.hooks.parent


def test_plans_arrive_exactly_and_once(desktop: LiveDesktop, folder: Path) -> None:
    messages = [make(f"exact-{make.__name__}", number) for make in (inline, by_file) for number in range(2)]
    for message in messages:
        result = deliver(desktop.driver, folder, message)
        assert result.end is HandOffEnd.ACKED, result.reason
    assert desktop.page.taken == [message.text for message in messages]
    assert desktop.page.leaked == []


def test_thief_of_the_focus_gets_nothing(desktop: LiveDesktop, folder: Path) -> None:
    messages = [inline("thief", number) for number in range(3)]
    with desktop.thief(0.8):
        for message in messages:
            result = deliver(desktop.driver, folder, message)
            assert result.end is HandOffEnd.ACKED, result.reason
    assert desktop.page.taken == [message.text for message in messages]
    assert desktop.page.leaked == []


@pytest.mark.parametrize(
    ("call", "when"),
    [("clipboard", "after"), ("mod+v", "before"), ("mod+v", "after"), ("enter", "before"), ("enter", "after")],
)
def test_killed_and_started_again_submits_once(desktop: LiveDesktop, folder: Path, call: str, when: str) -> None:
    def strike() -> None:
        raise Killed

    message = inline(f"killed-{when}-{call.replace('+', '-')}", 1)
    with pytest.raises(Killed):
        deliver(Interrupted(desktop.driver, 1, when, strike, only=call), folder, message)
    assert deliver(desktop.driver, folder, message).end is HandOffEnd.ACKED
    assert (desktop.page.taken, desktop.page.leaked) == ([message.text], [])


def test_open_file_stays_as_it_is_where_the_chat_has_not_the_focus(desktop: LiveDesktop, folder: Path) -> None:
    desktop.driver.activate(desktop.window(EDITOR_TITLE))
    time.sleep(0.3)
    desktop.driver.press("mod+l")
    time.sleep(0.3)
    focused = desktop.driver.focused_element()
    assert focused is not None
    assert focused.label == "main.py, Editor Group 1"
    message = by_file("editor", 1)
    assert deliver(desktop.driver, folder, message).end is HandOffEnd.ACKED
    assert (desktop.page.taken, desktop.page.leaked) == ([message.text], [])


def test_box_that_lags_is_submitted_once(desktop: LiveDesktop, folder: Path) -> None:
    desktop.page.lag_s = 1.0
    messages = [by_file("lag", number) for number in range(2)]
    for message in messages:
        assert deliver(desktop.driver, folder, message).end is HandOffEnd.ACKED
    assert desktop.page.taken == [message.text for message in messages]


def test_busy_agent_and_a_draft_leave_everything_in_the_box(desktop: LiveDesktop, folder: Path) -> None:
    desktop.page.busy = True
    message = by_file("busy", 1)
    assert hand_off(desktop.driver, folder, patience_s=3).deliver(message).end is HandOffEnd.NOT_TAKEN
    desktop.driver.set_clipboard(" and my own words")
    desktop.driver.press("mod+v")
    time.sleep(0.3)
    result = hand_off(desktop.driver, folder).deliver(by_file("busy", 2))
    assert (result.end, "draft" in result.reason) == (HandOffEnd.REFUSED, True)
    focused = desktop.driver.focused_element()
    assert focused is not None
    assert focused.text == f"{message.text} and my own words"
    assert (desktop.page.taken, desktop.page.leaked) == ([], [])
    for chord in ("mod+a", "backspace"):
        desktop.driver.press(chord)


def test_click_reaches_the_chat_that_no_key_opens(desktop: LiveDesktop, folder: Path) -> None:
    frame = focus_editor(desktop)
    # The chat is at the bottom of the right half of the page.
    box, file = ((frame.x + frame.width * part // 4, frame.y + frame.height - 20) for part in (3, 1))
    message = by_file("clicked", 1)
    for where, end in ((file, HandOffEnd.REFUSED), (box, HandOffEnd.ACKED)):
        found = hand_off(desktop.driver, folder)
        found.target, found.locator = found.target.evolve(chat_key="f9"), PointsAt(where)
        result = found.deliver(message)
        assert result.end is end, result.reason
    assert (desktop.page.taken, desktop.page.leaked) == ([message.text], [])


def test_agent_s_sees_the_window_and_its_point_is_clicked(desktop: LiveDesktop, folder: Path) -> None:
    python = agent_s_python()
    frame = focus_editor(desktop)
    message = by_file("agent-s", 1)
    with ModelServer(says(f"({frame.width * 3 // 4}, {frame.height - 20})")) as server:
        found = hand_off(desktop.driver, folder)
        found.target = found.target.evolve(chat_key="f9")
        found.locator = AgentS(AgentSSettings(python=python, model="ui-tars", base_url=server.url), {})
        result = found.deliver(message)
    assert result.end is HandOffEnd.ACKED, result.reason
    assert (desktop.page.taken, desktop.page.leaked) == ([message.text], [])
    (asked,) = server.requests
    (picture,) = re.findall(r"data:image/png;base64,([\w+/=]+)", str(asked.body["messages"]))
    assert size_of(base64.b64decode(picture)) == (frame.width, frame.height)


def focus_editor(desktop: LiveDesktop) -> Frame:
    """Bring the focus into the open file, and return where the window is."""
    window = desktop.window(EDITOR_TITLE)
    desktop.driver.activate(window)
    end = time.monotonic() + 20
    while (focused := desktop.driver.focused_element()) is None or focused.label != "main.py, Editor Group 1":
        assert time.monotonic() < end
        frame = desktop.driver.frame(window)
        desktop.driver.click(frame.x + frame.width // 4, frame.y + frame.height // 2)
        time.sleep(0.3)
    return desktop.driver.frame(window)


def test_second_window_of_the_project_stops_everything(desktop: LiveDesktop, folder: Path) -> None:
    desktop.open(EDITOR_TITLE)
    end = time.monotonic() + 20
    while sum(window.title == EDITOR_TITLE for window in desktop.driver.windows()) < 2:
        assert time.monotonic() < end
        time.sleep(0.1)
    result = hand_off(desktop.driver, folder).deliver(by_file("two", 1))
    assert (result.end, desktop.page.taken, desktop.page.leaked) == (HandOffEnd.REFUSED, [], [])
    assert "2 windows match the project" in result.reason
