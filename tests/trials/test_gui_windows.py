"""Plans and keys go where they are meant, or nowhere: projects of one name, programs that hold the keyboard, kills.

`TIGHTLOOP_TEST_ALL=1 pytest -s tests/trials/test_gui_windows.py` runs all of it and prints the figures.
"""

import itertools
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from Xlib import X
from Xlib.display import Display

from activities.executor.gui.cursor import CursorEvents
from activities.executor.gui.drivers.x11 import key_journals
from activities.executor.gui.port import NotPressedError
from tests.support.extent import draw_seed, part
from tests.support.gui.desktop import LiveDesktop, live_desktop, missing
from tests.support.gui.handing import Interrupted, by_file, deliver, hand_off, inline, project_in, until_idle
from tests.support.gui.keyboard import Locker, code_of, each_press, hold, keys_down
from tests.support.gui.page import EDITOR_TITLE, ChatPage, chat_page
from tests.support.stack.stack import ROOT, Stack
from tightloop.executor.handoff import HandOffEnd

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(900),
    # python3-xlib leaves the authority file open; pyautogui's helpers use what Python has deprecated.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"),
]
HAND_OFFS, KILLS = part(8, of=60), part(3, of=20)
RELEASED_S = 2.0


@pytest.fixture(scope="module")
def desktop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDesktop]:
    folder = tmp_path_factory.mktemp("windows")
    page = ChatPage(hooks=folder / "hooks", root=project_in(folder))
    with chat_page(page), live_desktop(page, folder) as running:
        yield running


@pytest.fixture
def folder(desktop: LiveDesktop) -> Path:
    assert desktop.page.hooks is not None
    return desktop.page.hooks.parent


@pytest.fixture(autouse=True)
def clean(desktop: LiveDesktop, folder: Path) -> None:
    until_idle(folder)
    page = desktop.page
    page.submitted, page.leaked, page.refused, page.root, page.agent = [], [], 0, project_in(folder), None


def projects(folder: Path) -> dict[str, Path]:
    """Return three checkouts of one name, a link to the first, its worktree of the same name, and one to be renamed."""
    made = {name: folder / name / "demo" for name in ("first", "second", "third")}
    for root in made.values():
        root.mkdir(parents=True)
        subprocess.run(("git", "init", "--quiet", str(root)), check=True, timeout=60)
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git = ("git", "-C", str(made["first"]), *author)
    made["worktree"], made["link"] = folder / "trees" / "demo", folder / "link"
    subprocess.run((*git, "commit", "--quiet", "--allow-empty", "--message", "x"), check=True, timeout=60)
    subprocess.run((*git, "worktree", "add", "--quiet", str(made["worktree"])), check=True, timeout=60)
    made["link"].symlink_to(made["first"])
    return made


def checkouts(made: dict[str, Path], *, same: bool) -> list[tuple[Path, Path]]:
    """Return the pairs of a project that is meant and one that is open, by whether they are the same folder."""
    pairs = itertools.product(made.values(), repeat=2)
    return [(meant, opened) for meant, opened in pairs if (meant.resolve() == opened.resolve()) is same]


def write_into_the_open_folder(page: ChatPage, _text: str) -> None:
    """Do what an agent does: work in the folder that its window has open."""
    assert page.root is not None
    with (page.root / "done.txt").open("a") as done:
        done.write("done\n")
    page.stop("Done: everything in the plan.")


def test_plans_of_projects_of_one_name_are_run_in_the_right_folder_or_nowhere(
    desktop: LiveDesktop, folder: Path, tmp_path: Path
) -> None:
    page, chance, made = desktop.page, random.Random(seed := draw_seed()), projects(tmp_path)
    page.agent = write_into_the_open_folder
    work, right = dict.fromkeys(map(Path.resolve, made.values()), 0), 0
    for number in range(HAND_OFFS):
        meant, opened = chance.choice(checkouts(made, same=number % 2 == 0))
        is_same, page.root = meant.resolve() == opened.resolve(), opened
        message, before = by_file("checkouts", number), len(page.taken)
        result = deliver(desktop.driver, folder, message, root=meant)
        assert result.end is (HandOffEnd.ACKED if is_same else HandOffEnd.WRONG_WINDOW), (seed, number, result.reason)
        if not is_same:
            assert str(meant) in result.reason
            assert str(opened) in result.reason
        until_idle(folder)
        right += is_same
        work[meant.resolve()] += is_same
        assert len(page.taken) - before == is_same, (seed, number)
    print(f"\n{HAND_OFFS} hand-offs, {right} in the right window, {page.refused} refused by the hook, 0 run elsewhere")
    assert (page.refused, page.leaked) == (HAND_OFFS - right, [])
    written = {root: (root / "done.txt").read_text() if (root / "done.txt").exists() else "" for root in work}
    assert {root: text.count("done") for root, text in written.items()} == work


def test_project_that_is_renamed_while_its_plan_is_pasted_is_still_the_project(
    desktop: LiveDesktop, folder: Path, tmp_path: Path
) -> None:
    root, page = projects(tmp_path)["second"], desktop.page
    page.root = root

    def rename() -> None:
        page.root = root.rename(root.with_name("renamed"))

    message = by_file("renamed", 1)
    assert deliver(Interrupted(desktop.driver, 1, "before", rename, only="enter"), folder, message, root=root).end is (
        HandOffEnd.ACKED
    )
    assert page.taken == [message.text]


def test_same_plan_reaches_the_right_window_after_it_was_refused_in_a_wrong_one(
    desktop: LiveDesktop, folder: Path, tmp_path: Path
) -> None:
    made, page = projects(tmp_path), desktop.page
    page.root, message = made["second"], inline("again", 1)
    assert deliver(desktop.driver, folder, message, root=made["third"]).end is HandOffEnd.WRONG_WINDOW
    page.root = made["third"]
    assert deliver(desktop.driver, folder, message, root=made["third"]).end is HandOffEnd.ACKED
    assert (page.taken, page.leaked) == ([message.text], [])


def test_editor_that_says_nothing_is_refused(desktop: LiveDesktop, folder: Path) -> None:
    desktop.page.root = None
    result = deliver(desktop.driver, folder, by_file("silent", 1))
    assert (result.end, "window.allow_unknown_roots" in result.reason) == (HandOffEnd.WRONG_WINDOW, True)
    assert desktop.page.taken == []


@pytest.mark.parametrize("call", ["start", "mod+v", "right", "enter"])
def test_screen_that_is_locked_gets_no_key(desktop: LiveDesktop, folder: Path, call: str) -> None:
    lockers: list[Locker] = []

    def lock() -> None:
        lockers.append(Locker())

    message, driver = by_file(f"locked-{call.replace('+', '-')}", 1), desktop.driver
    if call == "start":
        lock()
    struck = Interrupted(driver, 1, "before", lock, only=call)
    result = hand_off(struck, folder, patience_s=2).deliver(message)
    assert result.end in (HandOffEnd.REFUSED, HandOffEnd.NOT_TAKEN)
    assert "another program has grabbed the keyboard" in result.reason
    time.sleep(0.3)
    (locker,) = lockers
    assert locker.keys() == []
    assert desktop.page.taken == []
    locker.unlock()
    assert deliver(driver, folder, message).end is HandOffEnd.ACKED
    assert (desktop.page.taken, desktop.page.leaked) == ([message.text], [])


def test_window_that_takes_the_focus_without_the_manager_gets_no_key(desktop: LiveDesktop) -> None:
    window, driver = desktop.window(EDITOR_TITLE), desktop.driver
    driver.activate(window)
    time.sleep(0.5)
    display = Display()
    popup = display.screen().root.create_window(
        0, 0, 50, 50, 0, X.CopyFromParent, override_redirect=True, event_mask=X.KeyPressMask
    )
    popup.map()
    popup.set_input_focus(X.RevertToParent, X.CurrentTime)
    display.sync()
    with pytest.raises(NotPressedError, match="no longer has keyboard focus"):
        driver.press("enter", window)
    popup.destroy()
    display.sync()
    display.close()


def test_keys_are_released_by_the_next_start_and_those_of_a_person_are_not(desktop: LiveDesktop, folder: Path) -> None:
    ours, theirs = [code_of("F7"), code_of("F8")], code_of("F9")
    hold(theirs, down=True)
    dies = (
        "import os, sys\nfrom activities.executor.gui.drivers.x11 import KeyJournal\n"
        "from tests.support.gui.keyboard import hold\n"
        "codes = [int(code) for code in sys.argv[1:]]\n"
        "with KeyJournal(os.environ['DISPLAY']).pressing(codes):\n"
        "    for code in codes: hold(code, down=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    with Stack(folder / "stack") as stack:
        environment = {**stack.environment, "PYTHONPATH": str(ROOT)}
        died = subprocess.run((sys.executable, "-c", dies, *map(str, ours)), env=environment, timeout=60, check=False)
        assert (died.returncode, sorted(keys_down())) == (-9, sorted([*ours, theirs]))
        begun = time.monotonic()
        # No server is there: the keys do not wait for it.
        stack.add_worker("--role", "gui")
        while keys_down() != [theirs] and time.monotonic() < begun + 60:
            time.sleep(0.05)
        print(f"\nreleased {time.monotonic() - begun:.1f} s after the start of the process")
        assert keys_down() == [theirs]
    hold(theirs, down=False)
    assert keys_down() == []


def test_kill_inside_a_key_press_leaves_no_key_down_and_one_prompt(desktop: LiveDesktop, folder: Path) -> None:
    chance, held = random.Random(draw_seed()), 0
    for number in range(KILLS):
        begin_afresh(desktop, folder)
        fatal = code_of(("v", "Return", "Left", "Right")[number % 4])
        command = (sys.executable, "-m", "tests.support.gui.delivering", str(folder), "kills", str(number))
        command = (*command, str(project_in(folder)))
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        delay = chance.choice((0.0, 0.0, 0.001))

        def strike(
            code: int, process: "subprocess.Popen[str]" = process, fatal: int = fatal, delay: float = delay
        ) -> None:
            if code == fatal:
                time.sleep(delay)
                process.kill()

        with each_press(strike):
            assert process.wait(60) == -9
        assert process.stdout is not None
        process.stdout.close()
        again = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        time.sleep(RELEASED_S)
        held += bool(keys_down())
        text, _ = again.communicate(timeout=90)
        message = inline("kills", number)
        # python3-xlib prints a warning first.
        assert text.splitlines()[-1].startswith(HandOffEnd.ACKED), (number, held, text)
        assert (len(desktop.page.taken), desktop.page.taken[0]) == (1, message.text), number
    print(f"\n{KILLS} kills inside key presses: {held} with a key down {RELEASED_S:g} s after the restart")
    assert (held, desktop.page.leaked) == (0, [])
    assert key_journals() == ()


def begin_afresh(desktop: LiveDesktop, folder: Path) -> None:
    """Wait until the agent is idle, and forget what it got."""
    until_idle(folder)
    assert not CursorEvents(folder / "hooks", folder).busy()
    desktop.page.submitted, desktop.page.leaked = [], []
