"""The drivers of a Mac, as far as this side of one allows: a recorded `osascript`, and no libraries of macOS."""

import json
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from activities.executor.gui.drivers import choose_driver
from activities.executor.gui.drivers import mac as mac_driver
from activities.executor.gui.drivers.mac import AppleScriptDriver, element_of, problems
from activities.executor.gui.port import DriverError, NotPressedError, Window
from tests.support.gui.osascript import FakeMac
from tightloop.settings import WindowSettings

CURSOR = "com.todesktop.230313mzl4w4u92"
HOSTILE = 'a" & (do shell script "touch /tmp/owned") & "'


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMac:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return FakeMac(tmp_path)


def test_windows_and_focus_are_read_as_recorded(mac: FakeMac) -> None:
    windows = [{"id": "7:main.py — demo", "pid": 7, "app": CURSOR, "title": "main.py — demo"}]
    focused = {"role": "AXTextArea", "description": "Chat Input, Type here", "value": "x", "settable": True}
    mac.answer(
        windows={"out": json.dumps(windows)},
        active={"out": json.dumps(windows[0])},
        focused={"out": json.dumps(focused)},
    )
    driver = AppleScriptDriver()
    assert driver.windows() == (Window(id="7:main.py — demo", pid=7, app=CURSOR, title="main.py — demo"),)
    assert driver.active() == driver.windows()[0]
    element = driver.focused_element()
    assert element is not None
    assert (element.role, element.label, element.text, element.editable) == ("text", "Chat Input, Type here", "x", True)


@pytest.mark.parametrize(("name", "script"), [("active", "active"), ("focused_element", "focused")])
def test_nothing_in_front_is_nothing(mac: FakeMac, name: str, script: str) -> None:
    mac.answer(**{script: {"out": "null\n"}})
    assert getattr(AppleScriptDriver(), name)() is None


def test_values_are_arguments_and_never_part_of_a_script(mac: FakeMac) -> None:
    driver = AppleScriptDriver()
    driver.activate(Window(id="7", pid=7, app=CURSOR, title=HOSTILE))
    driver.set_clipboard(HOSTILE)
    activate, copy = mac.calls
    assert activate["argv"][-2:] == ["7", HOSTILE]
    assert HOSTILE not in activate["script"]
    assert (copy["name"], copy["argv"], copy["stdin"]) == ("pbcopy", [], HOSTILE)


@pytest.mark.parametrize(
    ("chord", "arguments"),
    [
        ("mod+v", ["", "v", "command"]),
        ("enter", ["36", "", ""]),
        ("right", ["124", "", ""]),
        ("mod+shift+z", ["", "z", "command,shift"]),
        ("ctrl+l", ["", "l", "control"]),
    ],
)
def test_chords_are_key_codes_or_one_character(mac: FakeMac, chord: str, arguments: list[str]) -> None:
    mac.answer(state={"out": json.dumps({"locked": False})})
    AppleScriptDriver().press(chord)
    looked, pressed = mac.calls
    assert looked["argv"][:2] == ["-l", "JavaScript"]
    assert pressed["argv"][:2] == ["-l", "AppleScript"]
    assert pressed["argv"][3:] == [*arguments, "", ""]


@pytest.mark.parametrize(
    ("state", "words"), [({"locked": True}, "the screen is locked"), ({"secure_input": 42}, "process 42 is using")]
)
def test_no_key_is_pressed_while_another_program_gets_it(mac: FakeMac, state: dict[str, object], words: str) -> None:
    mac.answer(state={"out": json.dumps(state)})
    with pytest.raises(NotPressedError, match=words):
        AppleScriptDriver().press("enter")
    assert len(mac.calls) == 1, "only the look"


def test_key_for_a_window_that_is_not_in_front_is_not_pressed(mac: FakeMac) -> None:
    window = Window(id="7", pid=7, app=CURSOR, title=HOSTILE)
    mac.answer(state={"out": "{}"}, press={"out": "elsewhere\n"})
    with pytest.raises(NotPressedError, match="no longer has keyboard focus"):
        AppleScriptDriver().press("enter", window)
    assert mac.calls[-1]["argv"][-2:] == ["7", HOSTILE]
    assert HOSTILE not in mac.calls[-1]["script"]


@pytest.mark.parametrize("chord", ["hello", "hyper+v", ""])
def test_text_is_never_typed(mac: FakeMac, chord: str) -> None:
    with pytest.raises(DriverError, match="unknown keys"):
        AppleScriptDriver().press(chord)
    assert mac.calls == []


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("execution error: Not authorized to send Apple events to System Events. (-1743)", "Automation"),
        ("System Events got an error: osascript is not allowed to send keystrokes. (1002)", "Accessibility"),
        ("osascript is not allowed assistive access. (-25211)", "Accessibility"),
        ("Can’t get window 1. Invalid index. (-1719)", "check that the window still exists"),
    ],
)
def test_errors_of_macos_say_what_to_do(mac: FakeMac, said: str, advice: str) -> None:
    mac.answer(windows={"err": said, "code": 1})
    with pytest.raises(DriverError, match=advice):
        AppleScriptDriver().windows()


def test_script_that_hangs_is_ended(mac: FakeMac, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mac_driver, "SCRIPT_S", 0.5)
    mac.answer(active={"sleep": 30})
    with pytest.raises(DriverError, match="Is the screen locked"):
        AppleScriptDriver().active()


def test_answer_that_is_not_json_is_an_error(mac: FakeMac) -> None:
    mac.answer(windows={"out": "missing value"})
    with pytest.raises(DriverError, match="not JSON"):
        AppleScriptDriver().windows()


def test_preflight_explains_what_stands_in_the_way(mac: FakeMac) -> None:
    state = {"trusted": False, "may_post": False, "locked": True, "secure_input": 42, "version": "26.1"}
    mac.answer(state={"out": json.dumps(state)})
    health = AppleScriptDriver().preflight()
    assert health.problems == problems(locked=True, secure_input=42, trusted=False, may_post=False)
    assert [word in " ".join(health.problems) for word in ("accessibility", "keys", "locked", "process 42")] == [
        True
    ] * 4
    mac.answer(state={"out": json.dumps({"trusted": True, "may_post": True, "version": "26.1"})})
    assert AppleScriptDriver().preflight().usable


def test_clipboard_keeps_every_character(mac: FakeMac) -> None:
    mac.answer(pbpaste={"out": "日本 🚀\nx"})
    assert AppleScriptDriver().clipboard() == "日本 🚀\nx"
    mac.answer(pbpaste={"out": ""})
    assert AppleScriptDriver().clipboard() is None


@pytest.mark.parametrize(
    ("found", "role", "editable"),
    [
        ({"role": "AXTextField", "value": "", "settable": True}, "text", True),
        ({"role": "AXTextArea", "value": "x", "settable": False}, "text", False),
        ({"role": "AXButton", "value": 1}, "AXButton", False),
        ({"role": None}, "None", False),
    ],
)
def test_elements_are_told_by_their_attributes(found: dict[str, object], role: str, editable: bool) -> None:
    element = element_of(found)
    assert (element.role, element.editable) == (role, editable)


def test_scripts_compile_as_far_as_that_is_possible_here() -> None:
    scripts = resources.files("activities.executor.gui.drivers") / "scripts"
    names = sorted(entry.name for entry in scripts.iterdir())
    assert names == ["activate.js", "active.js", "focused.js", "press.applescript", "state.js", "windows.js"]
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the JavaScript of osascript is not compiled")
    for name in names:
        if name.endswith(".js"):
            done = subprocess.run((node, "--check", str(scripts / name)), capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has these libraries")
def test_driver_of_a_mac_says_elsewhere_what_it_needs() -> None:
    with pytest.raises(DriverError, match=r"pip install pyobjc|applescript"):
        choose_driver(WindowSettings(driver="mac"))


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has windows")
def test_host_without_a_display_has_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises(DriverError, match="DISPLAY"):
        choose_driver(WindowSettings())


def test_drivers_are_imported_without_a_display() -> None:
    code = (
        "import activities.executor.gui.drivers.x11 as x, activities.executor.gui.drivers.mac, sys;"
        "print(x.X11Driver().preflight().problems[0]);"
        "assert not {'pyautogui', 'Xlib', 'AppKit'} & set(sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    done = subprocess.run((sys.executable, "-c", code), env=environment, capture_output=True, text=True, check=False)
    assert "DISPLAY is not set" in done.stdout, done.stderr
