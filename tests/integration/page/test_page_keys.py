"""No key answers a question or sends a form by chance, and a person needs no pointer: with and without JavaScript."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qsl

import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from gateway.server import application
from gateway.web.acting import ACTIONS
from tests.support.browser import base, signed_in
from tests.support.extent import ALL, draw_seed, part, some
from tests.support.seeded_ledger import NOW, ORDERS, RELAY, fill
from tests.support.ui_server import serving
from tightloop.client import TightloopClient
from tightloop.database.engine import sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.ledger.model import WorkflowSnapshot
from tightloop.loop.model import LoopState, LoopStatus, LoopTask
from tightloop.run.question import Option, Question, QuestionKind
from tightloop.settings import Settings

T = TypeVar("T")
SEQUENCES = part(5, of=250)
SIGN_OUT = "/logout"
PAGES = (
    "/",
    "/projects",
    f"/projects/{ORDERS}",
    f"/projects/{RELAY}",
    "/workflows/episode-ask",
    "/workflows/episode-ask?tab=checkpoints",
    "/workflows/episode-work",
    "/workflows/plan-gate",
    "/workflows/plan-refactor",
    "/workflows/plan_draft",
    "/workflows/plan_done",
)
TEXTS = (
    "No: this must not go out, legal has not signed",
    "approve",
    "a",
    "d",
    "r",
    "y",
    " ",
    "yes please ",
    "?",
    "j",
    "4",
)
FOCUSABLE = "form[method=post] :is(input:not([type=hidden]), textarea, button):enabled, summary"
GATE = Question(
    id="q1",
    kind=QuestionKind.GATE,
    title="Release 2.0?",
    options=(Option(name="ship"), Option(name="hold", effect="the plan ends")),
    blocks="release",
    since=NOW,
)


class Sent(NamedTuple):
    """A form that reached the server."""

    path: str
    form: dict[str, str]
    status: int

    @property
    def acted(self) -> bool:
        """Whether something was done: the confirmation is a page, what follows an action is a redirect."""
        return self.status == 303 and self.path != SIGN_OUT


class Recorder:
    """The application, and every form that it was sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.sent: list[Sent] = []
        self.confirmed: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = bytearray()

        async def heard() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.sent.append(Sent(scope["path"], dict(parse_qsl(body.decode())), message["status"]))
            await send(message)

        await self._app(scope, heard, noted)

    def hear(self, form: str) -> None:
        """Note what a browser is about to send."""
        if "confirmed=yes" in form:
            self.confirmed.append(form)

    @property
    def acted(self) -> list[Sent]:
        return [sent for sent in self.sent if sent.acted]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A ledger in which every form of the page can be reached."""
    made = Ledger(sqlite_database(tmp_path_factory.mktemp("page") / "ledger.db"))
    fill(made, tmp_path_factory.mktemp("orders"))
    orders = made.of(ORDERS)
    gate = {"id": "plan-gate", "kind": "plan", "status": "paused", "goal": "Release", "questions": (GATE,)}
    orders.record(WorkflowSnapshot.model_validate({**gate, "at": NOW, "started": NOW}))
    for name, state in (("plan_done", LoopState.RUNNING), ("plan_draft", LoopState.DRAFT)):
        tasks = (LoopTask(task_id="ptask_1", description="Fix it"),)
        ended = NOW if state is LoopState.RUNNING else None
        status = LoopStatus(plan_id=name, status=state, tasks=tasks, completed_at=ended)
        line = {"id": name, "kind": "loop", "status": state.value, "goal": name, "at": NOW, "started": NOW}
        orders.record(WorkflowSnapshot.model_validate({**line, "details": status.model_dump(mode="json")}))
    return made


@pytest.fixture(scope="module")
def recorder(ledger: Ledger, page_settings: Settings, temporal: WorkflowEnvironment) -> Recorder:
    return Recorder(application(ledger, TightloopClient(temporal.client, page_settings), page_settings))


@pytest.fixture(scope="module")
def served(recorder: Recorder, page_settings: Settings) -> Iterator[Settings]:
    with serving(recorder, page_settings.gateway.address(page_settings.temporal)):
        yield page_settings


@pytest.fixture(autouse=True)
def _afresh(recorder: Recorder) -> None:
    recorder.sent.clear()
    recorder.confirmed.clear()


@pytest.fixture
def signals(page_settings: Settings) -> Iterator[Callable[[], list[str]]]:
    """Start a workflow under the id of an episode of the ledger; return the signals in its history."""

    def ask(work: Callable[[Client], Awaitable[T]]) -> T:
        async def connected() -> T:
            return await work(await Client.connect(page_settings.temporal.address))

        # Playwright's own loop runs in this thread.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, connected()).result()

    async def history(client: Client) -> list[str]:
        events = (await client.get_workflow_handle("episode-work").fetch_history()).events
        names = (event.workflow_execution_signaled_event_attributes.signal_name for event in events)
        return [name for name in names if name]

    ask(lambda client: client.start_workflow("EpisodeWorkflow", id="episode-work", task_queue="nobody-polls-this"))
    yield lambda: ask(history)
    ask(lambda client: client.get_workflow_handle("episode-work").terminate())


class Window:
    """A window of a browser that is signed in; another one for each page, so that nothing of the one before goes on."""

    def __init__(self, browser: Browser, settings: Settings, recorder: Recorder, *, scripts: bool) -> None:
        context = signed_in(browser, settings)
        self._browser, self._recorder, self._scripts, self.base = browser, recorder, scripts, base(settings)
        self._state = context.storage_state()
        context.close()

    @contextmanager
    def at(self, path: str) -> Iterator[Page]:
        context = self._browser.new_context(storage_state=self._state, java_script_enabled=self._scripts)
        # Also what a window that is closed at once would not have sent any more.
        context.on("request", lambda sent: self._recorder.hear(sent.post_data or ""))
        page = context.new_page()
        page.goto(f"{self.base}{path}")
        yield page
        # Chromium does not answer when a window is closed in the middle of a navigation.
        page.wait_for_load_state()
        page.wait_for_timeout(200)
        page.wait_for_load_state()
        context.close()


@pytest.fixture(params=[True, False], ids=["scripts", "no scripts"])
def window(request: pytest.FixtureRequest, browser: Browser, served: Settings, recorder: Recorder) -> Window:
    return Window(browser, served, recorder, scripts=request.param)


@pytest.fixture
def scripted(browser: Browser, served: Settings, recorder: Recorder) -> Window:
    return Window(browser, served, recorder, scripts=True)


def draw_keys(draw: random.Random) -> list[str]:
    """Return names of keys, and texts to type."""
    keys = ("Enter",) * 4 + ("Tab",) * 4 + ("Escape", "Shift+Tab", "text", "text")
    drawn = draw.choices(keys, k=draw.randint(6, 20))
    return [draw.choice(TEXTS) if key == "text" else key for key in drawn]


def press(page: Page, keys: list[str]) -> None:
    for key in keys:
        if key in ("Enter", "Tab", "Escape", "Shift+Tab"):
            page.keyboard.press(key)
        else:
            page.keyboard.type(key)
    # What the last key began has left the browser.
    page.wait_for_timeout(50)


@pytest.mark.timeout(3600)
def test_no_sequence_of_typing_enter_escape_and_tab_changes_anything(window: Window, recorder: Recorder) -> None:
    draw = random.Random(draw_seed())
    for number in range(SEQUENCES):
        path, keys = PAGES[number % len(PAGES)], draw_keys(draw)
        with window.at(path) as page:
            fields = page.locator(FOCUSABLE).count()
            where = draw.randrange(-1, fields)
            if where >= 0:
                focus(page, where)
            press(page, keys)
        assert (recorder.acted, recorder.confirmed) == ([], []), (path, where, keys)


@pytest.mark.timeout(600 if ALL else 180)
def test_enter_sends_nothing_from_any_part_of_any_form(window: Window, recorder: Recorder) -> None:
    for path in some(PAGES, 3):
        with window.at(path) as page:
            fields = page.locator(FOCUSABLE).count()
        for number in some(range(fields), 3):
            with window.at(path) as page:
                focus(page, number)
                press(page, ["no", "Enter", "Enter"])
                # Without scripts, a pressed button asks to confirm; nothing there is done by Enter.
                press(page, ["Tab", "Enter"] * 4)
            assert (recorder.acted, recorder.confirmed) == ([], []), f"{path}, field {number}"


def test_every_form_that_changes_something_was_on_these_pages(scripted: Window) -> None:
    actions = set()
    for path in PAGES:
        with scripted.at(path) as page:
            actions |= set(page.evaluate("[...document.forms].map(form => form.getAttribute('action') ?? '')"))
    for pattern in ACTIONS:
        start, _, end = pattern.partition("{id}")
        assert any(action.startswith(start) and action.endswith(end) for action in actions), pattern


def test_a_person_answers_by_keyboard_alone(scripted: Window, recorder: Recorder) -> None:
    with scripted.at("/workflows/episode-ask") as page:
        press(page, ["a"])
        page.keyboard.press("Control+Enter")
        expect(page.locator("[data-hint]").first).to_contain_text("No option is selected yet")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        expect(page.get_by_role("radio", name="deny")).to_be_checked()
        press(page, ["Enter", "Tab", "not", "Enter", "yet", "Tab", "Enter"])
        assert recorder.sent == []
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("status").filter(has_text="episode-ask")).to_be_visible()
    [answer] = recorder.acted
    assert answer.form == {"question": "q1", "option": "deny", "text": "not\r\nyet", "confirmed": "yes"}


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/workflows/episode-ask", "Answer “Allow `npm publish`?” with “allow”: it runs once."),
        ("/workflows/plan-gate", "Answer “Release 2.0?” with “ship”."),
    ],
    ids=["permission", "gate"],
)
def test_an_approval_is_confirmed_by_a_sentence_and_by_keyboard_alone(
    path: str, sentence: str, window: Window, recorder: Recorder
) -> None:
    with window.at(path) as page:
        tab_to(page, "input[type=radio]")
        page.keyboard.press("ArrowDown")
        tab_to(page, "button")
        page.keyboard.press("Space")
        expect(page.get_by_text(sentence)).to_be_visible()
        assert recorder.acted == []
        tab_to(page, "input[type=radio]")
        page.keyboard.press("ArrowDown")
        tab_to(page, "button")
        page.keyboard.press("Space")
        expect(page.get_by_role("status").filter(has_text=path.rpartition("/")[2])).to_be_visible()
    [answer] = recorder.acted
    assert (answer.form["question"], answer.form["confirmed"]) == ("q1", "yes")


def test_cancel_reaches_an_episode_only_when_it_is_confirmed(
    signals: Callable[[], list[str]], scripted: Window
) -> None:
    with scripted.at("/workflows/episode-work") as page:
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("will be ended permanently")).to_be_visible()
        page.get_by_role("button", name="Continue").click()
        expect(page.locator("[data-hint]")).to_contain_text("No option is selected yet")
        before = signals()
        page.get_by_role("radio", name="yes, do it").check()
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("status").filter(has_text="the run will end")).to_be_visible()
    assert (before, signals()) == ([], ["cancel"])


def focus(page: Page, number: int) -> None:
    """Focus a part of a form, and open what it is folded in."""
    part = page.locator(FOCUSABLE).nth(number)
    part.evaluate("part => { part.closest('details')?.setAttribute('open', ''); part.focus(); }")


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until the focus is in the page's content, on what a selector means."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.locator(f"main :is({selector}):focus").count():
            return
    raise AssertionError(f"Tab does not reach {selector}")
