"""A headless Chromium, driven over the WebDriver protocol (W3C) with nothing but HTTP."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from worker.server import free_port

START_SECONDS = 60.0


class Browser:
    """One session."""

    def __init__(self, driver: str, session: str) -> None:
        self._session = f"{driver}/session/{session}"

    def open(self, url: str) -> None:
        call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        return call("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script: str, *arguments: Any) -> Any:
        """Run a script that calls its last argument with the result."""
        return call("POST", f"{self._session}/execute/async", {"script": script, "args": list(arguments)})

    def text(self) -> str:
        """What a person could read on the page, fields included."""
        fields = "[...document.querySelectorAll('input,textarea')].map(e => e.value).join('\\n')"
        return str(self.run(f"return document.body.innerText + '\\n' + {fields}"))

    def text_with(self, *wanted: str, seconds: float = 90.0) -> str:
        """Wait until all of this can be read; returns the page's text, also when the time is over.

        The Web UI now and then shows an internal error of its own and asks for a reload: that is done.
        """
        deadline = time.monotonic() + seconds
        while not all(part in (seen := self.text()) for part in wanted) and time.monotonic() < deadline:
            time.sleep(0.2)
            if "Uh oh. There's an error." in seen:
                call("POST", f"{self._session}/refresh")
                time.sleep(1)
        return seen

    def close(self) -> None:
        call("DELETE", self._session)


def call(method: str, url: str, body: Any = None) -> Any:
    data = None if method == "GET" or method == "DELETE" else json.dumps(body or {}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{method} {url}: {error.read().decode()[:600]}") from None


@contextmanager
def chromium(folder: Path, *options: str) -> Iterator[Browser]:
    """Start a browser with a profile of its own under `folder`; skips the test where there is none."""
    driver = shutil.which("chromedriver")
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
    if driver is None or program is None:
        pytest.skip("no chromium and chromedriver here (Debian: apt install chromium chromium-driver)")
    port = free_port()
    folder.mkdir(exist_ok=True)
    with (folder / "chromedriver.log").open("wb") as log:
        process = subprocess.Popen([driver, f"--port={port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    browser: Browser | None = None
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url)
        browser = Browser(url, call("POST", f"{url}/session", capabilities(program, folder, options))["sessionId"])
        yield browser
    finally:
        if browser is not None:
            with suppress(AssertionError, OSError):
                browser.close()
        process.terminate()
        process.wait(60)


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            if call("GET", f"{url}/status")["ready"]:
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def capabilities(program: str, folder: Path, more: tuple[str, ...]) -> dict[str, Any]:
    arguments = [
        "--headless=new",
        "--no-sandbox",  # Chromium's own refuses to work as root, as in most containers
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--window-size=1500,2200",
        f"--user-data-dir={folder / 'profile'}",
        *more,
    ]
    options = {"binary": program, "args": arguments}
    return {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}}
