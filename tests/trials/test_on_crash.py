"""kill -9 of a real worker at the exact places of a delivery, under each policy of `on_crash`: what each promises."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from activities.executor.outbox import open_outbox
from tests.support.dying_worker import Place
from tests.support.episodes import eventually
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeResult
from tightloop.errors import ServiceUnavailableError
from tightloop.executor.model import ExecutorStatus
from tightloop.run.question import Question, QuestionKind
from tightloop.settings import Settings

ROOT = Path(__file__).parents[2]
FIRST = "1/1"
"""Iteration and delivery; what a person has delivered again is 1/2, and what the planner plans anew is 2/1."""
EFFECTS = {"effects": "it may push to a remote"}
Start = Callable[[Place], "subprocess.Popen[bytes]"]


@pytest.fixture
def worker(settings: Settings, tmp_path: Path) -> Iterator[Start]:
    """Start workers of which the first dies at a place."""
    (tmp_path / "notes").mkdir()
    started: list[subprocess.Popen[bytes]] = []

    def start(place: Place) -> "subprocess.Popen[bytes]":
        where = (settings.temporal.address, settings.temporal.task_queue, str(tmp_path / "notes"), place.value)
        command = [sys.executable, "-m", "tests.support.dying_worker", *where]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(10)


class Story:
    """An episode whose worker is killed once."""

    def __init__(self, client: TightloopClient, workspace: Path, notes: Path, episode_id: str) -> None:
        self.client, self.workspace, self.notes, self.id = client, workspace, notes, episode_id

    @property
    def calls(self) -> Counter[str]:
        """How often the executor was called for each delivery."""
        file = self.notes / "calls"
        return Counter(file.read_text().split()) if file.exists() else Counter()

    @property
    def first(self) -> ExecutorStatus:
        """How the first delivery ended."""
        [row] = [each for each in open_outbox(self.workspace).deliveries(self.id) if each.key.endswith(FIRST)]
        assert row.report is not None
        return row.report.status

    async def question(self) -> Question:
        """Wait for the question about the crash."""

        async def waiting() -> tuple[Question, ...]:
            # A server does not know at once that a worker was killed.
            with suppress(ServiceUnavailableError):
                return (await self.client.status(self.id)).questions
            return ()

        [question] = await eventually(waiting, seconds=90)
        assert question.kind is QuestionKind.CRASH
        return question

    async def result(self) -> EpisodeResult:
        """Wait for the end."""
        return await self.client.result(self.id)


@pytest.fixture
def killed(client: TightloopClient, request_for, worker: Start, workspace: Path, tmp_path: Path):
    """Run an episode into the death of its worker, and start the next one."""

    async def kill(place: Place, policy: str, options: dict[str, Any] | None = None) -> Story:
        request = request_for(
            executor={"name": "writing", "on_crash": policy, "options": options or {}},
            definition_of_done=["grep -q done log.txt"],
        )
        episode_id = await client.start(request)
        first = worker(place)
        assert await asyncio.to_thread(first.wait, 90) == -signal.SIGKILL
        worker(place)
        return Story(client, workspace, tmp_path / "notes", episode_id)

    return kill


@pytest.mark.parametrize("place", Place)
async def test_retry_delivers_again_what_left_no_trace_and_has_no_effects_elsewhere(killed, place: Place) -> None:
    story = await killed(place, "retry")
    result = await story.result()
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert result.iterations == 1
    again = {Place.CLAIMED: 1, Place.STARTED: 2, Place.WRITTEN: 1, Place.ENDED: 1}
    assert story.calls == {FIRST: again[place]}
    assert (story.workspace / "log.txt").read_text() == "done\n", "it took effect once"
    moved = place in (Place.WRITTEN, Place.ENDED)
    assert story.first is (ExecutorStatus.OUTCOME_UNKNOWN if moved else ExecutorStatus.COMPLETED)


@pytest.mark.parametrize(
    ("place", "policy", "options"),
    [
        (Place.CLAIMED, "retry", EFFECTS),
        (Place.STARTED, "retry", EFFECTS),
        *((place, "verify", {}) for place in Place),
    ],
)
async def test_verify_never_makes_the_same_delivery_twice(killed, place: Place, policy: str, options: Any) -> None:
    story = await killed(place, policy, options)
    result = await story.result()
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert story.first is ExecutorStatus.OUTCOME_UNKNOWN
    assert max(story.calls.values()) == 1, story.calls
    planned_again = place in (Place.CLAIMED, Place.STARTED)
    assert result.iterations == (2 if planned_again else 1)
    assert (story.workspace / "log.txt").read_text() == "done\n"


@pytest.mark.parametrize(
    ("place", "option", "calls"),
    [
        (Place.CLAIMED, "retry", {"1/2": 1}),
        (Place.STARTED, "retry", {FIRST: 1, "1/2": 1}),
        (Place.WRITTEN, "retry", {FIRST: 1, "1/2": 1}),
        (Place.STARTED, "verify", {FIRST: 1, "2/1": 1}),
        (Place.ENDED, "verify", {FIRST: 1}),
        (Place.STARTED, "cancel", {FIRST: 1}),
    ],
)
async def test_ask_shows_the_evidence_and_does_what_is_answered(
    killed, place: Place, option: str, calls: dict[str, int]
) -> None:
    story = await killed(place, "ask")
    question = await story.question()
    moved = place in (Place.WRITTEN, Place.ENDED)
    assert question.evidence[0] == (
        "files have changed since the delivery started" if moved else "no file has changed since the delivery started"
    )
    alive = place in (Place.STARTED, Place.WRITTEN)
    assert question.evidence[1] == (
        "killed 1 process that was still running" if alive else "no process was still running"
    )
    assert question.evidence[2] == "the delivery left no report"
    assert (question.names, question.default) == (("verify", "retry", "cancel"), "verify")
    await story.client.answer(story.id, option, by="ada")
    result = await story.result()
    wanted = EpisodeOutcome.CANCELLED if option == "cancel" else EpisodeOutcome.SUCCEEDED
    assert (result.outcome, dict(story.calls)) == (wanted, calls)
