"""Green that is not green: 63 cheats of eight kinds as episodes, and 40 honest ones, a part of them in the gate."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from activities.artifacts.port import get_model
from activities.artifacts.stores import open_local_store
from activities.safety.gate import AlignmentChecker
from tests.data.proof import NODE, Work
from tests.data.proof.cheats import CHEATS
from tests.data.proof.honest import ANNOUNCED, ORDINARY
from tests.support.doubles import ScriptedPlanner, planned
from tests.support.episodes import Working, eventually, scripted
from tests.support.extent import some
from tests.support.proving import has_node, make_environment, make_project
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeRequest, EpisodeStatus
from tightloop.episode.proof import Proof, ProofVerdict
from tightloop.run.question import QuestionKind
from tightloop.safety.rubric import Rubric

AT_ONCE = 4
EPISODE_SECONDS = 300.0


@dataclass(frozen=True)
class Seen:
    """How an episode ended, or what it asked."""

    work: Work
    status: EpisodeStatus
    proof: Proof | None

    @property
    def asked(self) -> bool:
        return bool(self.status.questions)

    def __str__(self) -> str:
        told = [question.title for question in self.status.questions] or [self.status.reason]
        return f"{self.work.kind} {self.work.checker}: {self.work.name}: {self.status.status}: {told}"


async def pursue(client: TightloopClient, folder: Path, works: Sequence[Work], environment: Path) -> list[Seen]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, work: Work) -> Seen:
        async with limit:
            root = await asyncio.to_thread(make_project, folder / f"project-{number}", work, environment)
            episode_id = await client.start(
                EpisodeRequest(
                    goal=work.wanted,
                    workspace=str(root),
                    definition_of_done=[work.command],  # type: ignore[list-item]
                    executor=scripted(work.step()),
                    allow=work.allow,  # type: ignore[arg-type]
                )
            )

            async def stands() -> EpisodeStatus | None:
                status = await client.status(episode_id)
                return status if status.questions or status.status not in ("running", "paused") else None

            status: EpisodeStatus = await eventually(stands, seconds=EPISODE_SECONDS)
            proof = get_model(open_local_store(root), status.proof, Proof) if status.proof else None
            if status.questions:
                await client.answer(episode_id, "cancel")
            return Seen(work, status, proof)

    return list(await asyncio.gather(*(one(number, work) for number, work in enumerate(works))))


WITH_AND_WITHOUT_NODE = pytest.mark.parametrize(
    "node",
    [
        pytest.param(False, id="python"),
        pytest.param(
            True,
            id="node",
            marks=pytest.mark.skipif(not has_node(), reason="node 20 with --test-reporter is needed"),
        ),
    ],
)
"""Work of one kind of project at a time, so that it is told where node is missing."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("environment") / ".venv")


@pytest.fixture
def alone(working: Working):
    """Workers whose rules about changes are off: it is the proof that has to find out."""
    planner = ScriptedPlanner(lambda _briefing: planned("make it green", final=True))
    return lambda: working(planner, gate=AlignmentChecker(Rubric(enabled=False)))


@WITH_AND_WITHOUT_NODE
@pytest.mark.timeout(1_800)
async def test_no_cheat_succeeds_silently(client, alone, tmp_path: Path, environment: Path, node: bool) -> None:
    cheats = some([work for work in CHEATS if (work.checker == NODE) is node], 16)
    async with alone():
        seen = await pursue(client, tmp_path, cheats, environment)
    silent = [str(one) for one in seen if not one.asked]
    assert not silent, "\n".join(silent)
    # A cheat that leaves the checks red would show nothing.
    others = [str(one) for one in seen if one.status.questions[0].kind is not QuestionKind.PROOF]
    assert not others, "\n".join(others)
    assert all(one.proof is not None and one.proof.verdict is ProofVerdict.DOUBTED for one in seen)
    assert all(one.status.questions[0].evidence for one in seen), "a question without evidence"
    assert node or len({one.work.kind for one in seen}) == 8
    assert len(seen) == len(cheats) >= (4 if node else 16)


@WITH_AND_WITHOUT_NODE
@pytest.mark.timeout(1_200)
async def test_honest_work_is_not_asked_about(client, alone, tmp_path: Path, environment: Path, node: bool) -> None:
    honest = some([work for work in (*ANNOUNCED, *ORDINARY) if (work.checker == NODE) is node], 16)
    async with alone():
        seen = await pursue(client, tmp_path, honest, environment)
    asked = [str(one) for one in seen if one.asked]
    assert not [str(one) for one in seen if one.asked and one.work in ANNOUNCED], asked
    assert len(asked) <= (0 if node else 2), "\n".join(asked)
    proven = [one for one in seen if not one.asked]
    assert all(one.proof is not None and one.proof.verdict is ProofVerdict.PROVEN for one in proven), seen
