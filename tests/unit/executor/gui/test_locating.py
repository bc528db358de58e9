"""The chat box found in a picture: what a locator may cause, and what not. The desktop is in memory."""

import json
import struct
import sys
from pathlib import Path

import pytest

from activities.executor.gui.agent_s import AgentS, size_of
from activities.executor.gui.drivers import choose_driver
from activities.executor.gui.port import DriverError, Frame
from activities.executor.gui.protocol import HandOff
from tests.support.gui.fake import Desktop, FakeDriver, FakeReceipts, MemoryLedger
from tests.support.gui.pictures import PointsAt, png
from tightloop.errors import SettingsError
from tightloop.executor.handoff import HandOffEnd, HandOffResult, Target, inline_message
from tightloop.settings import AgentSSettings, WindowSettings, parse_settings

MESSAGE = inline_message("e/1/0123abcd", "a plan")
TARGET = Target(
    apps=("Cursor",),
    title=r"(^|[-–—] ){project}( |$)",
    project="demo",
    root="/src/demo",
    box="chat input",
    chat_key="mod+l",
)
FRAME = Frame(x=100, y=50, width=400, height=300)
PICTURE = png(800, 600)
"""Of a display with two pixels a point."""


def hand_off(desktop: Desktop, locator: PointsAt, folder: Path) -> HandOff:
    driver = FakeDriver(desktop)
    return HandOff(
        driver=driver,
        ledger=MemoryLedger(desktop, driver),
        receipts=FakeReceipts(desktop),
        target=TARGET,
        lock=folder / "screen.lock",
        sleep=desktop.sleep,
        now=desktop.now,
        locator=locator,
    )


def deliver(desktop: Desktop, locator: PointsAt, folder: Path) -> HandOffResult:
    return hand_off(desktop, locator, folder).deliver(MESSAGE)


def test_click_into_the_chat_box_lets_the_plan_in(tmp_path: Path) -> None:
    desktop = Desktop(deaf=True)
    locator = PointsAt(desktop.chat_at)
    result = deliver(desktop, locator, tmp_path)
    assert (result.end, desktop.submitted, desktop.leaked) == (HandOffEnd.ACKED, [MESSAGE.text], [])
    assert locator.asked == 1


def test_nobody_is_asked_where_the_keys_reach_the_box(tmp_path: Path) -> None:
    locator = PointsAt((0, 0))
    assert deliver(Desktop(), locator, tmp_path).end is HandOffEnd.ACKED
    assert locator.asked == 0


def test_click_beside_the_box_hands_nothing_over_and_is_not_tried_again(tmp_path: Path) -> None:
    desktop = Desktop(deaf=True)
    locator = PointsAt((110, 60))
    begun = hand_off(desktop, locator, tmp_path)
    for result in (begun.deliver(MESSAGE), begun.deliver(MESSAGE)):
        assert (result.end, result.retryable) == (HandOffEnd.REFUSED, True)
        assert "A click at (110, 60), where the locator found the chat box, did not help" in result.reason
    assert (desktop.submitted, desktop.leaked, desktop.file) == ([], [], "print('mine')\n")
    assert locator.asked == 1


def test_locator_that_fails_says_why(tmp_path: Path) -> None:
    desktop = Desktop(deaf=True)
    result = deliver(desktop, PointsAt(DriverError("the model is not there")), tmp_path)
    assert (result.end, desktop.leaked) == (HandOffEnd.REFUSED, [])
    assert "instead of the chat box" in result.reason
    assert result.reason.endswith("the model is not there")


def test_window_that_moved_meanwhile_is_not_clicked(tmp_path: Path) -> None:
    desktop = Desktop(deaf=True)

    def move() -> None:
        desktop.frame = desktop.frame.evolve(x=900)

    result = deliver(desktop, PointsAt(desktop.chat_at, meanwhile=move), tmp_path)
    assert (result.end, "The window moved" in result.reason) == (HandOffEnd.REFUSED, True)
    assert desktop.leaked == []


def test_window_that_lost_the_front_meanwhile_is_not_clicked(tmp_path: Path) -> None:
    desktop = Desktop(deaf=True)

    def steal() -> None:
        desktop.front = "2"

    deliver(desktop, PointsAt(desktop.chat_at, meanwhile=steal), tmp_path)
    assert (desktop.submitted, desktop.leaked) == ([], [])


def agent_s(folder: Path, code: str, *, locate_s: float = 30.0, **variables: str) -> AgentS:
    """Return Agent S whose Python is a program of the test's: it takes the question, and does something else."""
    program = folder / "python"
    program.write_text(f"#!{sys.executable}\nimport json, os, sys, time\nasked = json.load(sys.stdin)\n{code}\n")
    program.chmod(0o755)
    return AgentS(AgentSSettings(python=str(program), model="ui-tars"), variables, locate_s=locate_s)


def test_pixels_of_the_picture_become_points_of_the_window(tmp_path: Path) -> None:
    found = agent_s(tmp_path, "print(json.dumps({'x': asked['width'] // 2, 'y': 599}))").locate(PICTURE, FRAME)
    assert found == (300, 349)


@pytest.mark.parametrize("point", [(800, 10), (10, 600), (-1, 10), (10, 99_999)])
def test_point_outside_of_the_window_is_refused(tmp_path: Path, point: tuple[int, int]) -> None:
    there = agent_s(tmp_path, f"print(json.dumps({{'x': {point[0]}, 'y': {point[1]}}}))")
    with pytest.raises(DriverError, match="outside the window"):
        there.locate(PICTURE, FRAME)


def test_helper_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="did not respond within"):
        agent_s(tmp_path, "time.sleep(60)", locate_s=0.5).locate(PICTURE, FRAME)


def test_helper_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="did not find the chat box: no such model"):
        agent_s(tmp_path, "sys.exit('no such model')").locate(PICTURE, FRAME)


def test_helper_sees_its_key_and_no_other_secret_and_no_display(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'seen')!r}, 'w').write(json.dumps(dict(os.environ))); print('{{\"x\": 1, \"y\": 1}}')"
    secrets = {"OPENAI_API_KEY": "sk-grounding", "GITHUB_TOKEN": "ghp-secret", "DISPLAY": ":7", "PATH": "/usr/bin"}
    agent_s(tmp_path, code, **secrets).locate(PICTURE, FRAME)
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["AGENT_S_KEY"] == "sk-grounding"
    assert not {"GITHUB_TOKEN", "DISPLAY", "OPENAI_API_KEY"} & set(seen)


def test_what_is_no_picture_is_refused() -> None:
    assert size_of(PICTURE) == (800, 600)
    for wrong in (b"", b"JFIF", struct.pack(">II", 800, 600) * 3):
        with pytest.raises(DriverError, match="not a PNG"):
            size_of(wrong)


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="model is missing"):
        parse_settings("window: {agent_s: {python: python3}}", {})
    asked = WindowSettings(driver="applescript", agent_s=AgentSSettings(python="python3", model="m"))
    with pytest.raises(DriverError, match="but the applescript driver supports neither"):
        choose_driver(asked)
    missing = AgentS(AgentSSettings(python=str(tmp_path / "none"), model="m"), {})
    assert "which is not a program" in missing.problem()
    assert "gui-agents is not installed" in AgentS(AgentSSettings(python=sys.executable, model="m"), {}).problem()
