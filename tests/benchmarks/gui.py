"""Hand-offs into a chat on a real X11 desktop: what arrives, what goes wrong, and pasting blindly beside it."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from activities.executor.gui.port import DriverError
from tests.benchmarks.figures import Report, Spread, progress
from tests.support.gui.desktop import LiveDesktop, live_desktop, missing
from tests.support.gui.handing import by_file, deliver, deliver_blindly, inline, project_in, until_idle
from tests.support.gui.page import EDITOR_TITLE, ChatPage, chat_page
from tightloop.executor.handoff import HandOffEnd, Message

LIMIT_S = 2_400
IDLE = 200
STOLEN = 40
KILLS = 80
THIEF_S = 0.8
BLIND_SETTLE_S = 0.3
COLUMNS = ("", "once and exact", "wrong submits", "keys in decoys", "stopped before Enter", "ms (10 to 90 %)", "aim")


async def measure() -> Report:
    """Return what came of each way of handing over."""
    return await asyncio.to_thread(_measure)


def _measure() -> Report:
    report = Report("gui: hand-offs into Chromium under Xvfb, 10 kB plans", COLUMNS)
    if reason := missing():
        report.notes.append(reason)
        return report
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page = ChatPage(hooks=folder / "hooks", root=project_in(folder))
        with chat_page(page), live_desktop(page, folder) as desktop:
            stage = _Stage(desktop, folder, report)
            stage.run("inline", [inline("idle-inline", n) for n in range(IDLE)])
            stage.run("file", [by_file("idle-file", n) for n in range(IDLE)])
            stage.run("inline, thief at 0.8 s", [inline("thief", n) for n in range(STOLEN)], thief=True)
            stage.run("file, thief at 0.8 s", [by_file("thief-file", n) for n in range(STOLEN)], thief=True)
            stage.kills()
            page.hooks = None
            stage.run("blind", [inline("blind", n) for n in range(IDLE)], blind=True)
            stage.run(
                "blind, thief at 0.8 s", [inline("blind-thief", n) for n in range(STOLEN)], blind=True, thief=True
            )
    return report


class _Stage:
    def __init__(self, desktop: LiveDesktop, folder: Path, report: Report) -> None:
        self._desktop, self._folder, self._report = desktop, folder, report
        self._page = desktop.page

    def run(self, name: str, messages: Sequence[Message], *, blind: bool = False, thief: bool = False) -> None:
        """Hand all of them over, one after the other."""
        progress(name)
        self._clear()
        took, stopped = [], 0
        driver = self._desktop.driver
        with self._desktop.thief(THIEF_S) if thief else nullcontext():
            for message in messages:
                if blind:
                    begun = time.perf_counter()
                    try:
                        deliver_blindly(driver, message, settle_s=BLIND_SETTLE_S)
                    except DriverError:
                        stopped += 1
                    took.append((time.perf_counter() - begun - BLIND_SETTLE_S) * 1000)
                    continue
                until_idle(self._folder)
                begun = time.perf_counter()
                result = deliver(driver, self._folder, message, seconds=30)
                took.append((time.perf_counter() - begun) * 1000)
                stopped += result.end is not HandOffEnd.ACKED
        if blind:
            time.sleep(2)
        self._add(name, messages, stopped, took, aim="" if blind else f"{len(messages)}, 0, 0")

    def kills(self) -> None:
        """Kill a process at one call after the other, and hand over again in this one."""
        progress("kills")
        self._clear()
        messages, took, stopped, died = [], [], 0, 0
        call, when = 1, "before"
        for number in range(KILLS):
            until_idle(self._folder)
            message = inline("kill", number)
            messages.append(message)
            words = (str(self._folder), "kill", str(number), str(call), when)
            command = (sys.executable, "-W", "ignore", "-m", "tests.support.gui.dying", *words)
            done = subprocess.run(command, capture_output=True, timeout=120, check=False)
            died += done.returncode == 9
            begun = time.perf_counter()
            result = deliver(self._desktop.driver, self._folder, message, seconds=30)
            took.append((time.perf_counter() - begun) * 1000)
            stopped += result.end is not HandOffEnd.ACKED
            if when == "before":
                when = "after"
            else:
                # From the beginning again where there was no such call any more.
                call, when = (call + 1, "before") if done.returncode == 9 else (1, "before")
        self._add(f"killed {died} times, and again", messages, stopped, took, aim=f"{KILLS}, 0, 0")

    def _add(self, name: str, messages: Sequence[Message], stopped: int, took: list[float], aim: str) -> None:
        sent = self._page.taken
        right = sum(sent.count(message.text) == 1 for message in messages)
        wrong = len(sent) - right
        self._report.add(
            name, f"{right} of {len(messages)}", wrong, len(self._page.leaked), stopped, Spread.of(took), aim=aim
        )

    def _clear(self) -> None:
        self._page.submitted, self._page.leaked, self._page.refused = [], [], 0
        driver = self._desktop.driver
        driver.activate(self._desktop.window(EDITOR_TITLE))
        time.sleep(0.5)
        for chord in ("mod+a", "backspace"):
            driver.press(chord)
        time.sleep(0.5)
        self._page.leaked = []
