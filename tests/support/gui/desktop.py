"""A real X11 desktop without a screen: Xvfb, openbox, an accessibility bus, and Chromium showing the chat page."""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from activities.executor.gui.drivers.x11 import X11Driver
from activities.executor.gui.port import DriverError, Window
from tests.support.gui.page import DECOY_TITLE, EDITOR_TITLE, ChatPage

PACKAGES = "xvfb openbox xclip dbus at-spi2-core gir1.2-atspi-2.0 python3-gi chromium"
_PROGRAMS = ("Xvfb", "openbox", "xclip", "dbus-daemon", "chromium")
_LAUNCHERS = ("/usr/libexec/at-spi-bus-launcher", "/usr/lib/at-spi2-core/at-spi-bus-launcher")
_BLANK = "--no-first-run --no-default-browser-check --no-sandbox --disable-gpu --disable-dev-shm-usage --test-type"
_QUIET = (
    "--disable-background-networking --disable-component-update --disable-sync --disable-default-apps "
    "--disable-extensions --disable-breakpad --no-pings --metrics-recording-only --password-store=basic"
)
_FLAGS = (
    *_BLANK.split(),
    *_QUIET.split(),
    "--force-renderer-accessibility",
    "--force-device-scale-factor=1",
    "--disable-features=Translate,MediaRouter,OptimizationHints",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--class=Cursor",
)


def missing() -> str:
    """Return why there can be no desktop here; empty: there can."""
    lacking = [name for name in _PROGRAMS if shutil.which(name) is None]
    lacking += [] if any(Path(path).exists() for path in _LAUNCHERS) else ["at-spi-bus-launcher"]
    return f"no desktop: {', '.join(lacking)} missing (apt install {PACKAGES})" if lacking else ""


@dataclass
class LiveDesktop:
    """What tests need of it."""

    driver: X11Driver
    page: ChatPage
    open: Callable[[str], None]
    """Open one more window with this title."""

    def window(self, title: str) -> Window:
        """Return the window with a title, once it is there."""
        end = time.monotonic() + 40
        while time.monotonic() < end:
            for window in self.driver.windows():
                if window.title == title:
                    return window
            time.sleep(0.1)
        pytest.fail(f"no window {title!r}; there are: {[window.title for window in self.driver.windows()]}")

    @contextmanager
    def thief(self, mean_s: float, seed: int = 1) -> Iterator[None]:
        """Bring a decoy to the front again and again, at random moments."""
        decoy, stop, chance = self.window(DECOY_TITLE), threading.Event(), random.Random(seed)
        own = X11Driver()

        def steal() -> None:
            while not stop.wait(chance.expovariate(1 / mean_s)):
                with suppress(DriverError):
                    own.activate(decoy)

        thread = threading.Thread(target=steal)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(10)
            own.close()


@contextmanager
def live_desktop(page: ChatPage, folder: Path) -> Iterator[LiveDesktop]:
    """Start a desktop with the page and a decoy beside it."""
    with empty_desktop(folder) as (driver, open_address):
        desktop = LiveDesktop(driver, page, lambda title: open_address(page.url(title)))
        for title in (EDITOR_TITLE, DECOY_TITLE):
            desktop.open(title)
            desktop.window(title)
        yield desktop


@contextmanager
def empty_desktop(folder: Path) -> Iterator[tuple[X11Driver, Callable[[str], None]]]:
    """Start everything and end it again; the variables of this process lead to it in between.

    Yields:
        The driver, and what opens a window of Chromium at an address.
    """
    before = dict(os.environ)
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, pipe: bool = False, passing: tuple[int, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipe else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=passing,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    try:
        os.environ["DISPLAY"] = _display(start)
        authority = folder / "xauthority"
        authority.touch()
        os.environ["XAUTHORITY"] = str(authority)
        bus = start("dbus-daemon", "--session", "--nofork", "--print-address=1", pipe=True)
        assert bus.stdout is not None
        os.environ["DBUS_SESSION_BUS_ADDRESS"] = bus.stdout.readline().strip()
        start(next(path for path in _LAUNCHERS if Path(path).exists()), "--launch-immediately", "--a11y=1")
        os.environ |= {"ACCESSIBILITY_ENABLED": "1", "GNOME_ACCESSIBILITY": "1"}
        os.environ.pop("NO_AT_BRIDGE", None)
        start("openbox")
        profile = f"--user-data-dir={folder / 'profile'}"

        def open_address(address: str) -> None:
            start("chromium", f"--app={address}", profile, *_FLAGS)

        driver = X11Driver()
        try:
            _until_managed(driver)
            yield driver, open_address
        finally:
            driver.close()
    finally:
        _end(started)
        os.environ.clear()
        os.environ.update(before)


def _display(start: Callable[..., subprocess.Popen[str]]) -> str:
    """Start an X server, which finds a free number by itself, and return the name of its display."""
    reading, writing = os.pipe()
    try:
        start("Xvfb", "-displayfd", str(writing), "-screen", "0", "1280x800x24", "-nolisten", "tcp", passing=(writing,))
        os.close(writing)
        with os.fdopen(reading) as told:
            number = told.readline().strip()
    except BaseException:
        raise
    if not number:
        pytest.fail("Xvfb did not start")
    return f":{number}"


def _until_managed(driver: X11Driver) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            driver.windows()
            return
        except DriverError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def _end(started: list[subprocess.Popen[str]]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in reversed(started):
            # The whole session: Chromium has children.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        time.sleep(0.3)
    for process in started:
        process.wait(10)
        if process.stdout:
            process.stdout.close()
