"""The built-in coder within an episode: the real client of the SDK, a fake model on the other side of the wire."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activities.model.gateway.wire import Wire
from tests.support.episodes import Git, Working, asked
from tests.support.fake_model.fault import Fault
from tests.support.fake_model.script import use
from tests.support.fake_model.turns import FakeCoderModel
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.run.question import QuestionKind
from tightloop.settings import Settings

BUGGY = "def total(prices):\n    return sum(prices[1:])\n"
TEST = "from shop import total\n\nassert total([1, 2, 3]) == 6\n"
CHECK = "python3 check_shop.py"


@pytest.fixture
def shop(workspace: Path, git: Git) -> Path:
    (workspace / "shop.py").write_text(BUGGY)
    (workspace / "check_shop.py").write_text(TEST)
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "a shop")
    return workspace


@pytest.fixture
def coding(settings: Settings) -> Callable[..., Any]:
    """Settings with the coder alone, at a fake model."""

    def build(fake: FakeCoderModel, **changes: Any) -> Settings:
        alone = {"base_url": fake.base_url(Wire.CHAT), "models": ("fake",), "planning": False, "testing": False}
        coder = settings.coder.evolve(**{**alone, **changes})
        return settings.evolve(coder=coder)

    return build


READ = use(("read_file", {"path": "shop.py", "start": None, "end": None}))
FIX = use(("edit_file", {"path": "shop.py", "old": "sum(prices[1:])", "new": "sum(prices)"}))
TESTS = use(("run_tests", {"tests": None}))
FINISH = use(("finish", {"summary": "the first price was left out"}))


async def test_coder_fixes_a_program(
    working: Working, client: TightloopClient, request_for: Callable[..., EpisodeRequest], shop: Path, coding: Any
) -> None:
    with FakeCoderModel(READ, FIX, TESTS, FINISH) as fake:
        async with working(under=coding(fake)):
            started = await client.start(request_for(executor="coder", definition_of_done=[CHECK]))
            result = await client.result(started)
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert (shop / "shop.py").read_text() == BUGGY.replace("[1:]", "")
    assert fake.paid == (1, 1, 1, 1)


async def test_coder_reports_that_a_check_contradicts_the_task(
    working: Working, client: TightloopClient, request_for: Callable[..., EpisodeRequest], shop: Path, coding: Any
) -> None:
    stop = use(("report_impossible", {"reason": "two checks contradict\neach other", "left_red": True}))
    with FakeCoderModel(READ, stop) as fake:
        async with working(under=coding(fake)):
            started = await client.start(request_for(executor="coder", definition_of_done=[CHECK]))
            status = await asked(client, started)
            await client.cancel(started)
            await client.result(started)
    [question] = status.questions
    assert (question.kind, status.iteration) == (QuestionKind.IMPOSSIBLE, 1)
    assert question.title == "the executor stopped: left red on purpose: two checks contradict each other"


async def test_coder_asks_a_person_and_goes_on_with_the_answer(
    working: Working, client: TightloopClient, request_for: Callable[..., EpisodeRequest], shop: Path, coding: Any
) -> None:
    ask = use(("ask_person", {"question": "Is the first price a deposit?", "detail": None}))
    with FakeCoderModel(READ, ask, FIX, FINISH) as fake:
        async with working(under=coding(fake)):
            started = await client.start(request_for(executor="coder", definition_of_done=[CHECK]))
            waiting = await asked(client, started)
            assert waiting.questions[0].title == "Is the first price a deposit?"
            await client.answer(started, "answer", "no, sum all")
            result = await client.result(started)
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    # The session goes on: nothing is paid twice, and the model reads the answer.
    assert fake.paid == (1, 1, 1, 1)
    assert "the person answered: no, sum all" in str(fake.requests[2].body)


async def test_paused_coder_goes_on_where_it_was(
    working: Working, client: TightloopClient, request_for: Callable[..., EpisodeRequest], shop: Path, coding: Any
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def held(tools: Any) -> Any:
        reached.set()
        go_on.wait(20)
        return FIX(tools)

    with FakeCoderModel(READ, held, FINISH) as fake:
        async with working(under=coding(fake)):
            started = await client.start(request_for(executor="coder", definition_of_done=[CHECK]))
            await asyncio.to_thread(reached.wait, 20)
            status = await client.status(started)
            assert status.work is not None
            assert "coder: step 1: CODING, turn 1 of at most" in status.work.what
            await client.pause(started, "lunch")
            await asyncio.sleep(0.3)
            go_on.set()
            waiting = await asked(client, started)
            assert waiting.questions[0].title == "lunch"
            assert fake.calls == 2
            (shop / "note.txt").write_text("from lunch\n")
            await client.resume(started)
            result = await client.result(started)
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert fake.paid == (1, 1, 1)
    assert (shop / "note.txt").read_text() == "from lunch\n"


async def test_red_checks_bring_a_reflection_and_another_round(
    working: Working, client: TightloopClient, request_for: Callable[..., EpisodeRequest], shop: Path, coding: Any
) -> None:
    diagnosis = use(("finish", {"summary": "Diagnosis: the slice drops the first price"}))
    with FakeCoderModel(READ, FINISH, diagnosis, FIX, FINISH) as fake:
        async with working(under=coding(fake)):
            started = await client.start(request_for(executor="coder", definition_of_done=[CHECK]))
            result = await client.result(started)
            lines = [line.text for line in await client.timeline(started) if line.kind == "coder"]
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert result.iterations == 1
    assert lines == [
        "CODING (2 turns) > TESTING > REFLECTING (1 turn) > CODING (2 turns) > TESTING > SUCCESS",
    ]
    assert "check_shop.py` failed" in str(fake.requests[2].body)
    assert "the slice drops the first price" in str(fake.requests[3].body)


async def test_planner_reads_first_and_the_coder_gets_its_plan(
    working: Working, client: TightloopClient, request_for: Callable[..., EpisodeRequest], shop: Path, coding: Any
) -> None:
    plan = use(("finish", {"summary": "Steps: sum the whole list in shop.py"}))
    with FakeCoderModel(READ, plan, FIX, FINISH) as fake:
        async with working(under=coding(fake, planning=True)):
            started = await client.start(request_for(executor="coder", definition_of_done=[CHECK]))
            result = await client.result(started)
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert "Steps: sum the whole list in shop.py" in str(fake.requests[2].body)
    offered = [{tool["function"]["name"] for tool in seen.body["tools"]} for seen in fake.requests]
    assert "edit_file" not in offered[0]
    assert "edit_file" in offered[2]


async def test_cancelled_episode_ends_the_turn_at_once(
    working: Working, client: TightloopClient, request_for: Callable[..., EpisodeRequest], shop: Path, coding: Any
) -> None:
    reached, over = threading.Event(), threading.Event()

    def held(tools: Any) -> Any:
        reached.set()
        over.wait(60)
        return READ(tools)

    with FakeCoderModel(held) as fake:
        async with working(under=coding(fake)):
            started = await client.start(request_for(executor="coder", definition_of_done=[CHECK]))
            await asyncio.to_thread(reached.wait, 20)
            await client.cancel(started, "enough")
            async with asyncio.timeout(15):
                result = await client.result(started)
            over.set()
    assert result.outcome is EpisodeOutcome.CANCELLED
    assert (shop / "shop.py").read_text() == BUGGY


async def test_coder_without_a_model_gives_way_to_the_fallback(
    working: Working, client: TightloopClient, request_for: Callable[..., EpisodeRequest], workspace: Path
) -> None:
    executor = {"name": "coder", "fallback": ["command"], "options": {}}
    async with working():
        started = await client.start(request_for(executor=executor, definition_of_done=["false"]))
        await asked(client, started)
        lines = [line.text for line in await client.timeline(started) if line.kind == "fallback"]
        await client.cancel(started)
    assert lines
    assert "coder: no model is available: set OPENAI_API_KEY" in lines[0]


async def test_what_a_person_mended_goes_on_in_the_same_session(
    working: Working, client: TightloopClient, request_for: Callable[..., EpisodeRequest], shop: Path, coding: Any
) -> None:
    with FakeCoderModel(READ, FIX, FINISH, fault=Fault.unauthorized(times=1)) as fake:
        async with working(under=coding(fake)):
            started = await client.start(request_for(executor="coder", definition_of_done=[CHECK]))
            waiting = await asked(client, started)
            assert "returned status 401" in waiting.questions[0].title
            await client.resume(started)
            result = await client.result(started)
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert fake.paid == (1, 1, 1)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import forex_python\n", "forex"),
        ("import urllib.request\nurllib.request.urlopen('https://e.org')\n", "urllib"),
    ],
    ids=["dependency", "network"],
)
async def test_wish_reaches_a_person_and_goes_on_after_the_answer(
    code: str,
    shown: str,
    working: Working,
    client: TightloopClient,
    request_for: Callable[..., EpisodeRequest],
    shop: Path,
    coding: Any,
) -> None:
    wish = use(("create_file", {"path": "rates.py", "content": code, "overwrite": None}))
    with FakeCoderModel(READ, FIX, wish, TESTS, FINISH) as fake:
        async with working(under=coding(fake)):
            started = await client.start(request_for(executor="coder", definition_of_done=[CHECK]))
            waiting = await asked(client, started)
            assert shown in str(waiting.questions[0])
            await client.answer(started, "allow")
            result = await client.result(started)
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert fake.paid == (1, 1, 1, 1, 1)


async def test_forbidden_code_is_told_to_the_model_and_never_run(
    working: Working, client: TightloopClient, request_for: Callable[..., EpisodeRequest], shop: Path, coding: Any
) -> None:
    evil = "getattr(__builtins__, 'ev' + 'al')('1')\n"
    write = use(("create_file", {"path": "evil.py", "content": evil, "overwrite": None}))
    run = use(("run_command", {"command": "python3 evil.py", "timeout_s": None}))
    drop = use(("delete_file", {"path": "evil.py"}))
    with FakeCoderModel(write, run, drop, FIX, FINISH) as fake:
        async with working(under=coding(fake)):
            started = await client.start(request_for(executor="coder", definition_of_done=[CHECK]))
            result = await client.result(started)
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    told = str(fake.requests[2].body)
    assert "Nothing was run" in told
    assert "forbidden" in told


async def test_tests_of_the_tester_count_once_they_can_fail(
    working: Working, client: TightloopClient, request_for: Callable[..., EpisodeRequest], shop: Path, coding: Any
) -> None:
    real = "from shop import total\n\n\ndef test_the_first_price_counts():\n    assert total([1, 2, 3]) == 6\n"
    empty = "from shop import total\n\n\ndef test_it_runs():\n    total([1])\n"
    write = use(
        ("create_file", {"path": "test_shop.py", "content": real, "overwrite": None}),
        ("create_file", {"path": "test_idle.py", "content": empty, "overwrite": None}),
    )
    with FakeCoderModel(FIX, FINISH, write, FINISH, FINISH) as fake:
        async with working(under=coding(fake, testing=True)):
            started = await client.start(request_for(executor="coder", definition_of_done=[CHECK]))
            result = await client.result(started)
            lines = [line.text for line in await client.timeline(started) if line.kind == "coder"]
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert lines[0].startswith("CODING (2 turns) > TESTING (2 turns) > ")
    assert lines[0].endswith("TESTING > SUCCESS")
    assert (shop / "test_shop.py").read_text() == real
    assert not (shop / "test_idle.py").exists()
