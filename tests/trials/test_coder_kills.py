"""Workers of coders are killed with SIGKILL, at random moments and at those before and after each journal write."""

import asyncio
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.model.gateway.wire import Wire
from tests.support.dying.coder_worker import LAST
from tests.support.dying.deaths import ask_for_death, died_at
from tests.support.episodes import Git
from tests.support.extent import part
from tests.support.fake_model.script import Step, use
from tests.support.fake_model.turns import FakeCoderModel
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.settings import Settings, WorkerSettings

KILLS = part(2, of=40)
KILLS_A_RUN = 4
ANSWER_S = 0.15
"""How long an answer takes, so that kills come in the middle of one."""
ROUNDS = 4
MOMENTS = [
    f"{name}.{when}"
    for name in ("begin_coding", "take_turn", "reply", "use_tool", "check_work", "conclude")
    for when in ("before", "after")
]


def slowly(step: Step) -> Step:
    def answer(tools):  # type: ignore[no-untyped-def]
        time.sleep(ANSWER_S)
        return step(tools)

    return answer


def script() -> Sequence[Step]:
    """Reads, edits that would be seen twice, and commands that would be seen twice."""
    steps = [use(("read_file", {"path": "log.txt", "start": None, "end": None}))]
    for n in range(ROUNDS):
        steps += [
            use(("edit_file", {"path": "log.txt", "old": "end\n", "new": f"line {n}\nend\n"})),
            use(("run_command", {"command": f"echo {n} >> effects.txt", "timeout_s": None})),
            use(*(("read_file", {"path": name, "start": n + 1, "end": None}) for name in ("log.txt", "app.py"))),
        ]
    return [slowly(step) for step in [*steps, use(("finish", {"summary": "done"}))]]


@asynccontextmanager
async def workers(document: str, folder: Path, count: int) -> AsyncIterator[None]:
    """Keep workers alive; one that is killed is started again."""

    async def keep() -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.support.dying.coder_worker",
                document,
                str(folder),
                start_new_session=True,
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                assert process.stdout is not None
                await process.stdout.readline()
                started.release()
                if await process.wait() != -signal.SIGKILL:
                    return  # it cannot work at all
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    started = asyncio.Semaphore(0)
    keeping = [asyncio.create_task(keep()) for _ in range(count)]
    for _ in range(count):
        await asyncio.wait_for(started.acquire(), 60)
    try:
        yield
        assert not any(task.done() for task in keeping), "a worker ended by itself"
    finally:
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)


@pytest.fixture
def moments(tmp_path: Path) -> Path:
    folder = tmp_path / "moments"
    folder.mkdir()
    return folder


def settings_of(settings: Settings, fake: FakeCoderModel) -> str:
    coder = settings.coder.evolve(
        base_url=fake.base_url(Wire.CHAT), models=("fake",), planning=False, testing=False, rounds=0
    )
    # As it is delivered: the tests' own wait is longer.
    worker = settings.worker.evolve(sticky_timeout_s=WorkerSettings().sticky_timeout_s)
    return settings.evolve(coder=coder, worker=worker).as_yaml()


async def kill_last(folder: Path) -> float:
    """Kill the worker that did something last, and return when."""
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(int((folder / LAST).read_text()), signal.SIGKILL)
    return time.monotonic()


def check(project: Path, fake: FakeCoderModel, kills: int) -> None:
    """Compare with a run that nobody touched: nothing twice, and no more turns paid twice than workers died."""
    assert (project / "log.txt").read_text() == "".join(f"line {n}\n" for n in range(ROUNDS)) + "end\n"
    effects = (project / "effects.txt").read_text().split() if (project / "effects.txt").exists() else []
    assert len(effects) == len(set(effects)), effects
    assert sum(fake.paid) - len(fake.paid) <= kills, fake.paid


def make_project(folder: Path, git: Git) -> Path:
    folder.mkdir()
    (folder / "log.txt").write_text("end\n")
    (folder / "app.py").write_text("".join(f"x{n} = {n}\n" for n in range(20)))
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "start")
    return folder


async def run(client: TightloopClient, project: Path) -> None:
    request = EpisodeRequest(
        goal="four lines",
        workspace=str(project),
        executor={"name": "coder"},
        definition_of_done=["grep -q 'line 3' log.txt"],
    )
    result = await client.result(await client.start(request))
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert result.iterations == 1


@pytest.mark.timeout(1200)
async def test_workers_killed_at_random_moments(
    plans: TightloopClient, settings: Settings, tmp_path: Path, git: Git, moments: Path, temporal_client: Client
) -> None:
    chance, waits = random.Random(20261126), list[float]()
    with FakeCoderModel(*script()) as probe:
        async with workers(settings_of(settings, probe), moments, 2):
            await run(plans, make_project(tmp_path / "untouched", git))
    assert set(probe.paid) == {1}
    for number in range(-(-KILLS // KILLS_A_RUN)):
        project = make_project(tmp_path / f"project{number}", git)
        with FakeCoderModel(*script()) as fake:
            async with workers(settings_of(settings, fake), moments, 2):
                running = asyncio.create_task(run(plans, project))
                killed = 0
                while killed < KILLS_A_RUN and not running.done():
                    seen = len(fake.prompts)
                    await wait_for_turn(fake, seen, running)
                    await asyncio.sleep(chance.uniform(0, 0.6))
                    if running.done():
                        break
                    before = fake.calls
                    at = await kill_last(moments)
                    killed += 1
                    while fake.calls == before and not running.done():
                        await asyncio.sleep(0.02)
                    waits.append(time.monotonic() - at)
                await asyncio.wait_for(running, 120)
        check(project, fake, killed)
    p95 = statistics.quantiles(waits, n=20)[-1]
    print(f"{len(waits)} kills; next call of a model after {statistics.median(waits):.1f} s, p95 {p95:.1f} s")


async def wait_for_turn(fake: FakeCoderModel, seen: int, running: asyncio.Task[None]) -> None:
    while len(fake.prompts) == seen and not running.done():
        await asyncio.sleep(0.02)


@pytest.mark.timeout(900)
async def test_workers_killed_before_and_after_each_journal_write(
    plans: TightloopClient, settings: Settings, tmp_path: Path, git: Git, moments: Path, temporal_client: Client
) -> None:
    project = make_project(tmp_path / "project", git)
    with FakeCoderModel(*script()) as fake:
        for moment in MOMENTS:
            ask_for_death(moments, moment)
        async with workers(settings_of(settings, fake), moments, 2):
            await asyncio.wait_for(run(plans, project), 400)
    assert died_at(moments) == sorted(MOMENTS)
    check(project, fake, len(MOMENTS))
    # Once an answer is in the journal it is never paid for again.
    assert sum(fake.paid) - len(fake.paid) <= 1, fake.paid
