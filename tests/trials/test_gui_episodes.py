"""Whole episodes through a real window: a real server, workers as processes, and an agent that works in the editor."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from activities.executor.gui.executor import CONTINUE
from tests.support.episodes import Git, eventually
from tests.support.gui.desktop import LiveDesktop, live_desktop, missing
from tests.support.gui.page import ChatPage, chat_page
from tests.support.mcp import SERVE, call
from tests.support.stack.stack import ROOT, Stack, wait_for_port
from tightloop.client import Check, EpisodeRequest, EpisodeResult, ExecutorChoice, TightloopClient
from tightloop.client.setup import connect_and_set_up
from tightloop.episode.model import EpisodeOutcome
from tightloop.errors import ServiceUnavailableError
from tightloop.executor.message import Alignment, PlanRequestMessage, Reflection, parse_plan, render_plan_request
from tightloop.run.core import Queues
from tightloop.run.question import QuestionKind

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(400),
    # python3-xlib leaves the authority file open; pyautogui's helpers use what Python has deprecated.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"),
]
NOTICE = "Note: By default, we stop the agent after 25 tool calls. You can resume the conversation."
QUEUE = "tightloop-gui-linux"
DONE = "test $(cat log.txt | wc -l) -ge 3"


@dataclass
class Stage:
    """Everything that runs."""

    desktop: LiveDesktop
    stack: Stack
    workspace: Path
    transcripts: Path

    @property
    def page(self) -> ChatPage:
        return self.desktop.page

    def plan_of(self, text: str) -> str:
        """Return the plan that a prompt names."""
        return (self.workspace / next(word for word in text.split() if word.startswith(".tightloop/"))).read_text()

    def work(self) -> None:
        with (self.workspace / "log.txt").open("a") as log:
            log.write("line\n" * 3)

    @asynccontextmanager
    async def mcp(self) -> AsyncIterator[Client]:
        """The connection that the editor has, as `tightloop mcp install cursor` writes it."""
        command, *arguments = SERVE
        where = [*arguments, "--workspace", str(self.workspace)]
        environment = {**self.stack.environment, "PYTHONPATH": str(ROOT)}
        async with Client(StdioServerParameters(command=command, args=where, env=environment, cwd=ROOT)) as client:
            yield client

    def report(self, text: str) -> str:
        """Report on a plan by MCP, from a thread of its own."""
        plan = parse_plan(self.plan_of(text))
        message = PlanRequestMessage(
            project=plan.project,
            goal=plan.goal,
            iteration=plan.iteration,
            outcome="completed",
            report="wrote three lines",
            reflection=Reflection(diagnosis="nothing was there", action_items=("see the checks",)),
            alignment=Alignment(rationale="only what the plan says"),
        )

        async def send() -> str:
            async with self.mcp() as client:
                told = await call(client, "send_message", target="planner", message=render_plan_request(message))
                return str(told["ack"])

        return asyncio.run(send())

    async def start(self, client: TightloopClient) -> str:
        request = EpisodeRequest(
            goal="write three lines into log.txt",
            workspace=str(self.workspace),
            definition_of_done=(Check(run=DONE),),
            executor=ExecutorChoice(name="cursor-gui"),
            queues=Queues(executor=QUEUE),
        )
        return await client.start(request)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("episodes")
    home, workspace, transcripts = folder / "home", folder / "demo", folder / "transcripts"
    for each in (home, workspace, transcripts):
        each.mkdir()
    page = ChatPage(hooks=folder / "stack" / "state" / "gui" / "hooks", root=workspace)
    with chat_page(page), live_desktop(page, folder) as desktop:
        own = {
            "HOME": str(home),
            "TIGHTLOOP_WINDOW__TRANSCRIPTS": str(transcripts),
            # One test has no hooks.
            "TIGHTLOOP_WINDOW__ALLOW_UNKNOWN_ROOTS": "true",
        }
        with Stack(folder / "stack", own) as stack:
            stack.tightloop("hooks", "install")
            stack.start_server()
            wait_for_port(stack.settings.temporal.address)
            stack.start_worker()
            yield Stage(desktop, stack, workspace, transcripts)


@pytest.fixture(autouse=True)
def clean(stage: Stage, git: Git) -> None:
    """A repository without work, and an agent at rest."""
    stage.page.submitted, stage.page.leaked, stage.page.shown, stage.page.agent = [], [], "", None
    if not (stage.workspace / ".git").exists():
        (stage.workspace / "notes.txt").write_text("notes\n")
        git(stage.workspace, "init", "--quiet", "--initial-branch=main")
        git(stage.workspace, "add", "--all")
        git(stage.workspace, "commit", "--quiet", "--message", "first")
    (stage.workspace / "log.txt").unlink(missing_ok=True)


@pytest.fixture
async def client(stage: Stage) -> TightloopClient:
    await connect_and_set_up(stage.stack.settings)
    return await TightloopClient.connect(settings=stage.stack.settings)


@pytest.fixture
def screen(stage: Stage) -> Iterator[Callable[[], None]]:
    """A worker at the screen; call it to kill that."""
    process = stage.stack.add_worker("--role", "gui")

    def kill() -> None:
        process.kill()
        process.wait(30)

    yield kill
    with suppress(ProcessLookupError):
        kill()


async def ended(client: TightloopClient, episode_id: str) -> EpisodeResult:
    try:
        async with asyncio.timeout(120):
            return await client.result(episode_id)
    except TimeoutError:
        raise AssertionError(f"{await client.status(episode_id)} {await told(client, episode_id)}") from None


async def told(client: TightloopClient, episode_id: str) -> list[str]:
    return [f"{entry.kind}: {entry.text}" for entry in await client.timeline(episode_id)]


async def test_agent_in_the_window_works_and_answers_by_mcp(
    stage: Stage, client: TightloopClient, screen: Callable[[], None]
) -> None:
    acks: list[str] = []

    def agent(page: ChatPage, text: str) -> None:
        stage.work()
        acks.append(stage.report(text))
        page.stop("I have reported.")

    stage.page.agent = agent
    episode_id = await stage.start(client)
    result = await ended(client, episode_id)
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 1)
    await eventually(lambda: as_done(acks))
    assert acks == ["the answer is 'done', so the episode continues"]
    assert (len(stage.page.taken), stage.page.leaked) == (1, [])
    assert any("wrote three lines" in line for line in await told(client, episode_id))


async def test_window_of_another_checkout_gets_no_plan_and_the_episode_says_so(
    stage: Stage, client: TightloopClient, screen: Callable[[], None], tmp_path: Path
) -> None:
    other = tmp_path / "demo"
    other.mkdir()

    def agent(page: ChatPage, _: str) -> None:
        assert page.root is not None
        (page.root / "log.txt").write_text("line\n" * 3)
        page.stop("Three lines are written.")

    stage.page.agent, stage.page.root = agent, other
    episode_id = await stage.start(client)

    async def asks() -> bool:
        # A query may find a busy worker.
        with suppress(ServiceUnavailableError):
            return [question.kind for question in (await client.status(episode_id)).questions] == [QuestionKind.FATAL]
        return False

    try:
        await eventually(asks, seconds=60)
        (question,) = (await client.status(episode_id)).questions
    finally:
        stage.page.root = stage.workspace
    for words in ("wrong window", str(stage.workspace), str(other)):
        assert words in question.title
    assert (stage.page.taken, stage.page.leaked, list(other.iterdir())) == ([], [], [])
    await client.answer(episode_id, "retry")
    result = await ended(client, episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (len(stage.page.taken), list(other.iterdir())) == (1, [])


async def test_answer_that_is_only_in_the_transcript_is_enough(
    stage: Stage, client: TightloopClient, screen: Callable[[], None]
) -> None:
    hooks, stage.page.hooks = stage.page.hooks, None
    transcript = stage.transcripts / "demo" / "agent-transcripts" / "u-1" / "u-1.jsonl"
    transcript.parent.mkdir(parents=True)

    def agent(_: ChatPage, text: str) -> None:
        for role, words in (("user", text), ("assistant", "Three lines are in log.txt.")):
            with transcript.open("a") as file:
                file.write(json.dumps({"role": role, "message": {"content": [{"type": "text", "text": words}]}}) + "\n")
            if role == "user":
                stage.work()

    stage.page.agent = agent
    try:
        result = await ended(client, await stage.start(client))
    finally:
        stage.page.hooks = hooks
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 1)
    assert (len(stage.page.taken), stage.page.leaked) == (1, [])


async def test_notice_of_25_tool_calls_in_the_window_leads_to_continue(
    stage: Stage, client: TightloopClient, screen: Callable[[], None]
) -> None:
    def agent(page: ChatPage, text: str) -> None:
        if CONTINUE not in text:
            page.shown = f"{text}\nI have read 25 files.\n{NOTICE}"
            time.sleep(1.5)
            page.run_hook("stop", status="completed")
            return
        page.shown = f"{page.shown}\n{text}\nThree lines are written."
        stage.work()
        page.stop("Three lines are written.")

    stage.page.agent = agent
    episode_id = await stage.start(client)
    result = await ended(client, episode_id)
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 1)
    assert [CONTINUE in text for text in stage.page.taken] == [False, True]
    assert stage.page.leaked == []
    [limit] = [line for line in await told(client, episode_id) if line.startswith("limit:")]
    assert "25 tool calls" in limit


async def test_report_reaches_the_episode_though_the_worker_at_the_screen_is_dead(
    stage: Stage, client: TightloopClient, screen: Callable[[], None]
) -> None:
    acks: list[str] = []

    def agent(page: ChatPage, text: str) -> None:
        # The hand-off is acknowledged; the worker would wait for the end now.
        time.sleep(1.0)
        screen()
        stage.work()
        acks.append(stage.report(text))
        page.stop("I have reported.")

    stage.page.agent = agent
    result = await ended(client, await stage.start(client))
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 1)
    await eventually(lambda: as_done(acks))
    assert acks == ["the answer is 'done', so the episode continues"]
    assert (len(stage.page.taken), stage.page.leaked) == (1, [])


async def as_done(acks: list[str]) -> bool:
    return bool(acks)
