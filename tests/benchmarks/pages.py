"""200 open pages of 100 running episodes: how long an event takes to be seen, and what the gateway needs for it.

Most pages are clients that do what the page's script does: read the stream, and fetch the page 0.4 s after an event
that concerns it. Some are real ones, in Chromium, whose document is watched.
"""

import asyncio
import contextlib
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

from playwright.async_api import Page, async_playwright

from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.served import Served, gateway_process
from tests.support.browser import ARGUMENTS, program
from tests.support.temporal_server import close_run, connect_to_server, open_run
from tightloop.database.access import Tokens
from tightloop.database.engine import sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.episode.model import EpisodeStatus
from tightloop.ledger.model import ProjectLine, TrailEvent, WorkflowSnapshot
from tightloop.safety.seal import Role

EPISODES, PROJECTS, PEOPLE = 100, 10, 20
EVERY_S = 3.0
"""An event of each episode."""
SECONDS = 24.0
REFRESH_S = 0.4
"""As in `page.js`."""
REAL = ("/", "/episodes", "/workflows/episode-99")
SHARES = (("/", 40), ("/episodes", 20), ("/projects", 20), ("/projects/{project}", 20), ("/workflows/{episode}", 100))
PAGES = sum(count for _, count in SHARES)
AIM_S, AIM_CORE = "p95 <= 1 s", "< 100 %"
_STEP = re.compile(r"episode (\d+), step (\d+)")
_LIVE = re.compile(r'data-live="([^"]*)"')
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)
_WATCH = """() => { window.seen = {}; window.log = [];
  const look = (first) => { for (const [, episode, step] of
      document.getElementById("main").textContent.matchAll(/episode (\\d+), step (\\d+)/g)) {
    if (!(window.seen[episode] >= Number(step))) {
      if (first !== true) window.log.push([Number(episode), Number(step), Date.now() / 1000]);
      window.seen[episode] = Number(step); } } };
  look(true);
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true }); }"""


class Steps:
    """When each step of each episode was written, and how long it took to be seen."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, int], float] = {}

    def write(self, episode: int, step: int) -> None:
        """Note that it is about to be written."""
        self._written[episode, step] = time.time()

    def delays(self, episode: int, before: int, step: int, at: float) -> Iterator[float]:
        """Yield how old the steps are that are seen now, and were not before."""
        for one in range(before + 1, step + 1):
            if (episode, one) in self._written:
                yield at - self._written[episode, one]


class Wire:
    """A connection that is kept, with as little work as can be: 200 readers in Python would need a core themselves."""

    def __init__(self, url: str, token: str) -> None:
        self._host, _, self._port = url.partition("://")[2].partition(":")
        self._head = f"Host: {self._host}:{self._port}\r\nAuthorization: Bearer {token}\r\n"
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str, headers: str = "") -> str:
        """Return the body of an answer."""
        reader, head = await self._ask(path, headers)
        size = re.search(rb"content-length: (\d+)", head)
        assert head.startswith(b"HTTP/1.1 200"), head
        assert size is not None, head
        return (await reader.readexactly(int(size[1]))).decode()

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """Yield what comes, as it comes."""
        reader, _ = await self._ask(path, "")
        while part := await reader.read(1 << 18):
            yield part

    async def _ask(self, path: str, headers: str) -> tuple[asyncio.StreamReader, bytes]:
        if self._open is None:
            self._open = await asyncio.open_connection(self._host, int(self._port), limit=1 << 18)
        reader, writer = self._open
        writer.write(f"GET {path} HTTP/1.1\r\n{self._head}{headers}\r\n".encode())
        return reader, await reader.readuntil(b"\r\n\r\n")


class PageClient:
    """An open page without a browser."""

    def __init__(self, url: str, token: str, path: str, steps: Steps, delays: list[float]) -> None:
        self._wire, self._events = Wire(url, token), Wire(url, token)
        self._path, self._steps, self._delays = path, steps, delays
        self._seen: dict[int, int] = {}
        self._wanted: tuple[bytes, ...] = ()
        self._last = "0"
        self._asked = asyncio.Event()
        self.opened = asyncio.Event()
        self.fetches = 0

    async def run(self) -> None:
        """Show the page, and keep it fresh."""
        live = _LIVE.search(await self._wire.get(self._path))
        assert live is not None
        self._wanted = tuple(b'"' + name.encode() + b'"' if name != "*" else b"trail" for name in live[1].split())
        await asyncio.gather(self._listen(), self._refresh())

    async def _listen(self) -> None:
        async for part in self._events.stream("/api/events"):
            self.opened.set()
            if last := _ID.findall(part):
                self._last = last[-1].decode()
            if any(name in part for name in self._wanted):
                self._asked.set()

    async def _refresh(self) -> None:
        while True:
            await self._asked.wait()
            await asyncio.sleep(REFRESH_S)
            self._asked.clear()
            text = await self._wire.get(self._path, f"Tightloop-Seen: {self._last}\r\n")
            self.fetches += 1
            now = time.time()
            for episode, step in ((int(one), int(two)) for one, two in _STEP.findall(text)):
                before = self._seen.get(episode, step)
                self._delays.extend(self._steps.delays(episode, before, step, now))
                self._seen[episode] = max(step, before)


async def measure() -> Report:
    """Measure the gateway, and how long an event takes to each page."""
    open_run()
    try:
        with tempfile.TemporaryDirectory() as folder:
            address = (await connect_to_server()).service_client.config.target_host
            os.environ["TIGHTLOOP_HOME"] = folder
            ledger = Ledger(sqlite_database(Path(folder) / "ledger.db"))
            tokens = [Tokens(ledger.database).create(f"person-{n}", Role.OPERATOR)[1] for n in range(PEOPLE)]
            with gateway_process(Path(folder), address) as served:
                return await _with(served, ledger, tokens)
    finally:
        os.environ.pop("TIGHTLOOP_HOME", None)
        close_run()


async def _with(served: Served, ledger: Ledger, tokens: list[str]) -> Report:
    steps, delays = Steps(), list[float]()
    for episode in range(EPISODES):
        _write(ledger, steps, episode, 0)
    report = Report(
        f"pages: {PAGES} and {len(REAL)} in Chromium, {EPISODES} episodes with an event every {EVERY_S:g} s each",
        ("what", "median", "p95", "samples", ""),
    )
    async with _real_pages(served.url, tokens[0]) as real:
        pages = [PageClient(served.url, tokens[n % PEOPLE], path, steps, delays) for n, path in enumerate(_paths())]
        running = [asyncio.create_task(page.run()) for page in pages]
        for client in pages:
            await client.opened.wait()
        silent = 100 * await served.busy(asyncio.sleep(SECONDS / 3))
        progress("all pages are open")
        writing = asyncio.create_task(asyncio.to_thread(_work, ledger, steps))
        # The first events meet pages that have nothing to compare with.
        await asyncio.sleep(2 * EVERY_S)
        fetched, load = sum(page.fetches for page in pages), os.getloadavg()[0]
        delays.clear()
        ours = sum(os.times()[:2])
        busy = 100 * await served.busy(asyncio.sleep(SECONDS))
        ours = 100 * (sum(os.times()[:2]) - ours) / SECONDS
        rate = (sum(page.fetches for page in pages) - fetched) / SECONDS
        took = Spread.of(delays)
        await writing
        await asyncio.sleep(3)
        for open_page in running:
            assert not open_page.done(), open_page.exception()
            open_page.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for name, page in real.items():
            seen = [one for entry in await page.evaluate("window.log") for one in _delays_of(steps, *entry)]
            found = Spread.of(seen)
            report.add(f"s to {name} in Chromium", found.median, found.p95, found.samples, aim=AIM_S)
    report.add("s to a page", took.median, took.p95, took.samples, aim=AIM_S)
    report.add("gateway, % of a core", busy, "", "", aim=AIM_CORE)
    report.add("gateway while nothing happens", silent, "", "")
    report.add("this process: clients and writer", ours, "", "")
    report.add("pages fetched a second", rate, "", "")
    report.notes.append(
        f"pages: {', '.join(f'{count} {path}' for path, count in SHARES)}; load {load:.1f} in the middle"
    )
    return report


def _delays_of(steps: Steps, episode: int, step: int, at: float) -> Iterator[float]:
    return steps.delays(episode, step - 1, step, at)


@contextlib.asynccontextmanager
async def _real_pages(url: str, token: str) -> AsyncIterator[dict[str, Page]]:
    """Open pages in Chromium, each with a stream of its own, and watch what they show."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program(), args=list(ARGUMENTS))
        found = {}
        for path in REAL:
            page = await (await browser.new_context()).new_page()
            await page.goto(f"{url.replace('127.0.0.1', 'tightloop.localhost')}/login")
            await page.locator("input[name=token]").fill(token)
            await page.locator("button").click()
            await page.goto(f"{url.replace('127.0.0.1', 'tightloop.localhost')}{path}")
            await page.evaluate(_WATCH)
            found[path] = page
        yield found
        await browser.close()


def _paths() -> Iterator[str]:
    for path, count in SHARES:
        for number in range(count):
            yield path.format(project=f"project-{number % PROJECTS}", episode=f"episode-{number % EPISODES}")


def _work(ledger: Ledger, steps: Steps) -> None:
    """Let each episode come a step further every few seconds, in turns."""
    begun, count = time.perf_counter(), int((SECONDS + 2 * EVERY_S) / EVERY_S * EPISODES)
    for number in range(count):
        _write(ledger, steps, number % EPISODES, 1 + number // EPISODES)
        time.sleep(max(0.0, begun + (number + 1) * EVERY_S / EPISODES - time.perf_counter()))


def _write(ledger: Ledger, steps: Steps, episode: int, step: int) -> None:
    name, goal = f"episode-{episode}", f"episode {episode}, step {step}"
    of = ledger.select_project(ProjectLine(id=f"project-{episode % PROJECTS}", name=f"project {episode % PROJECTS}"))
    status = EpisodeStatus(episode_id=name, goal=goal, workspace="/src/project", iteration=step)
    steps.write(episode, step)
    of.record(
        WorkflowSnapshot(
            id=name,
            kind="episode",
            status="running",
            goal=goal,
            phase="EXECUTING",
            checks="1/3",
            executor="codex",
            iteration=step,
            at=datetime.now(UTC),
            started=datetime(2026, 3, 1, 8, episode % 60, tzinfo=UTC),
            details=status.model_dump(mode="json"),
        )
    )
    of.add_event(TrailEvent(episode_id=name, kind="iteration", text=goal, key=f"step/{step}"))
