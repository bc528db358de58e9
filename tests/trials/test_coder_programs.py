"""The coder fixes eight small programs, alone, in an episode and as a step of a plan.

The client of the SDK is the real one; the model on the other side of the wire follows a script.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from activities.model.gateway.wire import Wire
from tests.support.coder_programs import CHECK, PROGRAMS, Program
from tests.support.episodes import Git, Working
from tests.support.extent import ALL, some
from tests.support.fake_model.script import use
from tests.support.fake_model.turns import FakeCoderModel
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.settings import Settings

SOME = some(PROGRAMS, 2)
ONE = None if ALL else 1
"""The other ways lead through the same coder."""
PLAN = """
id: fixing
steps:
  - id: fix
    episode: {{goal: "{goal}", executor: coder, definition_of_done: ["{check}"]}}
"""


@pytest.fixture
def project(tmp_path: Path, git: Git) -> Callable[[Program], Path]:
    def make(program: Program) -> Path:
        folder = tmp_path / program.name
        for name, content in program.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        git(folder, "init", "--quiet", "--initial-branch=main")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "-m", "start")
        return folder

    return make


def coding(settings: Settings, fake: FakeCoderModel, wire: Wire) -> Settings:
    api = "responses" if wire is Wire.RESPONSES else "chat"
    coder = settings.coder.evolve(
        base_url=fake.base_url(wire), models=("fake",), api=api, planning=False, testing=False
    )
    return settings.evolve(coder=coder)


def model_of(program: Program) -> FakeCoderModel:
    return FakeCoderModel(*(use(*calls) for calls in program.turns))


@pytest.mark.parametrize(
    ("program", "wire"),
    [*((program, Wire.CHAT) for program in SOME), *((program, Wire.RESPONSES) for program in SOME[:ONE])],
    ids=lambda given: given.name,
)
async def test_coder_fixes_the_program_in_an_episode(
    program: Program,
    wire: Wire,
    project: Callable[[Program], Path],
    working: Working,
    client: TightloopClient,
    settings: Settings,
) -> None:
    folder = project(program)
    before = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder, stdout=asyncio.subprocess.DEVNULL
    )
    assert await before.wait() == pytest.ExitCode.TESTS_FAILED
    with model_of(program) as fake:
        async with working(under=coding(settings, fake, wire)):
            request = EpisodeRequest(
                goal=program.bug, workspace=str(folder), executor={"name": "coder"}, definition_of_done=[CHECK]
            )
            result = await client.result(await client.start(request))
    assert result.outcome is EpisodeOutcome.SUCCEEDED, result.reason
    assert result.iterations == 1
    assert fake.paid == (1,) * len(program.turns)


@pytest.mark.parametrize("program", SOME[:ONE], ids=lambda program: program.name)
async def test_coder_fixes_the_program_as_a_step_of_a_plan(
    program: Program, project: Callable[[Program], Path], working: Working, client: TightloopClient, settings: Settings
) -> None:
    folder = project(program)
    with model_of(program) as fake:
        async with working(under=coding(settings, fake, Wire.CHAT)):
            source = PLAN.format(goal=program.bug, check=CHECK)
            plan_id = await client.start(PlanRequest(workspace=str(folder), source=source))
            async with asyncio.timeout(90):
                result = await client.result(plan_id)
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert fake.paid == (1,) * len(program.turns)


@pytest.mark.parametrize("program", SOME[:ONE], ids=lambda program: program.name)
async def test_coder_fixes_the_program_by_one_command(
    program: Program,
    project: Callable[[Program], Path],
    working: Working,
    settings: Settings,
    cli: Callable[..., Awaitable[tuple[int, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = project(program)
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__TASK_QUEUE", settings.temporal.task_queue)
    with model_of(program) as fake:
        async with working(under=coding(settings, fake, Wire.CHAT)):
            code, told = await cli("code", program.bug, "--workspace", str(folder), "--done", CHECK, "--watch")
    assert code == 0, told
    assert "SUCCEEDED" in told
    assert fake.paid == (1,) * len(program.turns)
