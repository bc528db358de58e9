"""Hand-offs on the real desktop: the protocol with its real ledger and hooks, and the blind one that others use."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from activities.executor.gui.cursor import CursorEvents
from activities.executor.gui.port import Driver, Element, Frame, Health, Ledger, Window
from activities.executor.gui.protocol import HandOff
from tests.support.gui.page import EDITOR_TITLE
from tightloop.executor.handoff import HandOffResult, Message, Target, file_message, inline_message
from tightloop.settings import WindowSettings

T = TypeVar("T")
PARAGRAPH = (
    "Step {n}: rename `größe` to “size” in src/main.py — then\r\n\trun:\u00a0`pytest -q`\n"
    "```py\nx = '日本語 🚀 \U0001f469\u200d\U0001f4bb cafe\u0301' < 3\n```\n"
)


def project_in(folder: Path) -> Path:
    """Return the project whose window the page shows; made where it is not there."""
    project = folder / "demo"
    project.mkdir(exist_ok=True)
    return project


def hand_off(driver: Driver, folder: Path, *, patience_s: float = 20.0, root: Path | None = None) -> HandOff:
    """Return the protocol on a driver, with its files in a folder, for the window of the page.

    `root` is the folder of the project; None: the one of the page.
    """
    settings = WindowSettings()
    target = Target(
        apps=settings.apps,
        title=settings.title,
        project="demo",
        root=str(root or project_in(folder)),
        box=settings.box,
        chat_key=settings.chat_key,
    )
    return HandOff(
        driver=driver,
        ledger=Ledger(folder / "handoffs"),
        receipts=CursorEvents(folder / "hooks", folder / "transcripts"),
        target=target,
        lock=folder / "screen.lock",
        patience_s=patience_s,
    )


def deliver(
    driver: Driver, folder: Path, message: Message, *, seconds: float = 60.0, root: Path | None = None
) -> HandOffResult:
    """Hand over through the window, again while waiting may help: a thief has the focus."""
    end = time.monotonic() + seconds
    until_idle(folder)
    while (result := hand_off(driver, folder, root=root).deliver(message)).retryable and time.monotonic() < end:
        time.sleep(0.2)
    return result


def until_idle(folder: Path, seconds: float = 30.0) -> None:
    """Wait until the agent has ended its turn: before that its hook would take the prompt, and not the window."""
    events, end = CursorEvents(folder / "hooks", folder / "transcripts"), time.monotonic() + seconds
    while events.busy() and time.monotonic() < end:
        time.sleep(0.05)


def plan(number: int, characters: int = 10_240) -> str:
    """Return a plan with everything that chat boxes break: emoji, CRLF, NBSP, tabs, code fences."""
    text = f"Plan {number}\n"
    while len(text) < characters:
        text += PARAGRAPH.replace("{n}", str(len(text)))
    return text[:characters]


def identity(name: str, number: int) -> str:
    return f"{name}/{number}/{hashlib.sha256(f'{name} {number}'.encode()).hexdigest()[:8]}"


def inline(name: str, number: int) -> Message:
    return inline_message(identity(name, number), plan(number))


def by_file(name: str, number: int) -> Message:
    return file_message(identity(name, number), ".tightloop/handoff/plan.md", plan(number))


def deliver_blindly(driver: Driver, message: Message, *, settle_s: float = 0.3) -> None:
    """Do what scripts do: bring the window to the front, paste, press Enter."""
    window = next(window for window in driver.windows() if window.title == EDITOR_TITLE)
    driver.activate(window)
    driver.set_clipboard(message.text)
    driver.press("mod+v")
    driver.press("enter")
    time.sleep(settle_s)


class Interrupted:
    """A driver that calls `strike` before or after its n-th call, or its n-th one of a name such as `enter`."""

    def __init__(self, driver: Driver, number: int, when: str, strike: Callable[[], None], only: str = "") -> None:
        self._driver, self._left, self._when, self._strike, self._only = driver, number, when, strike, only
        self.name = driver.name

    @property
    def left(self) -> int:
        """How many calls until then; 0 or less: it has happened."""
        return self._left

    def _do(self, name: str, call: Callable[[], T]) -> T:
        if self._only not in ("", name):
            return call()
        self._left -= 1
        if self._left == 0 and self._when == "before":
            self._strike()
        value = call()
        if self._left == 0 and self._when == "after":
            self._strike()
        return value

    def preflight(self) -> Health:
        return self._driver.preflight()

    def windows(self) -> tuple[Window, ...]:
        return self._driver.windows()

    def active(self) -> Window | None:
        return self._driver.active()

    def clipboard(self) -> str | None:
        return self._driver.clipboard()

    def texts(self, window: Window) -> tuple[str, ...]:
        return self._driver.texts(window)

    def frame(self, window: Window) -> Frame:
        return self._driver.frame(window)

    def picture(self, frame: Frame) -> bytes:
        return self._driver.picture(frame)

    def click(self, x: int, y: int) -> None:
        self._do("click", lambda: self._driver.click(x, y))

    def activate(self, window: Window) -> None:
        self._do("activate", lambda: self._driver.activate(window))

    def focused_element(self) -> Element | None:
        return self._do("focused", self._driver.focused_element)

    def set_clipboard(self, text: str) -> None:
        self._do("clipboard", lambda: self._driver.set_clipboard(text))

    def press(self, chord: str, window: Window | None = None) -> None:
        self._do(chord, lambda: self._driver.press(chord, window))

    def release_keys(self) -> None:
        self._driver.release_keys()

    def close(self) -> None:
        self._driver.close()
