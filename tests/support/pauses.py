"""Lets entries of `tests/data/pauses` run through the product, and counts the pauses that were wrong or missing."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.data.pauses import Entry, entries
from tests.support.doubles import ScriptedPlanner, planned
from tests.support.episodes import Git, Working, scripted
from tightloop.client import TightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeRequest, EpisodeStatus
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.errors import ServiceUnavailableError
from tightloop.run.question import QuestionKind

SELECTED = os.environ.get("TIGHTLOOP_TEST_ENTRY", "")
WITHIN = 5
"""Iterations in which an episode that is stuck has to be noticed."""
AT_ONCE = 4
NOTICED = frozenset({QuestionKind.REPEATED_ERROR, QuestionKind.DEVIATION, QuestionKind.PLANNER_GAVE_UP})
T = TypeVar("T")
LOOKS = 20
_LOOK_S = 0.5
NOTES = "".join(f"line {n}\n" for n in range(200))


@dataclass(frozen=True)
class Pause:
    """One pause that the episode made."""

    iteration: int
    kind: QuestionKind
    title: str

    def __str__(self) -> str:
        return f"iteration {self.iteration}, {self.kind}: {self.title}"


@dataclass(frozen=True)
class Course:
    """How an entry went."""

    entry: Entry
    iterations: int
    pauses: tuple[Pause, ...]
    told: tuple[int, ...] = ()
    """Iterations after which people were told that the checks show no progress, without a pause."""

    @property
    def false(self) -> tuple[Pause, ...]:
        """Pauses while the work was honest; a doubt about a proof or a finding is not about the course."""
        since = self.entry.since
        about_course = (pause for pause in self.pauses if pause.kind in NOTICED)
        return tuple(pause for pause in about_course if since is None or pause.iteration < since)

    @property
    def honest_iterations(self) -> int:
        """Iterations in which a pause is false."""
        return self.iterations if self.entry.since is None else min(self.iterations, self.entry.since - 1)

    @property
    def noticed(self) -> bool:
        """Whether it was noticed in time that the episode is stuck."""
        return any(pause.kind in NOTICED for pause in self._in_time)

    @property
    def seen(self) -> bool:
        """Whether a person was asked anything in time, such as whether tests may be deleted."""
        return bool(self._in_time)

    @property
    def heard(self) -> bool:
        """Whether people were told or asked in time."""
        since = self.entry.since
        return self.seen or any(since is not None and since <= at <= since + WITHIN for at in self.told)

    @property
    def _in_time(self) -> tuple[Pause, ...]:
        since = self.entry.since
        return tuple(p for p in self.pauses if since is not None and since <= p.iteration <= since + WITHIN)


@dataclass(frozen=True)
class Figures:
    """What the entries of one kind came to."""

    courses: tuple[Course, ...]

    @property
    def false_in_200(self) -> float:
        """False pauses in 200 honest iterations."""
        total = sum(course.honest_iterations for course in self.courses)
        return 200 * sum(len(course.false) for course in self.courses) / total if total else 0.0

    @property
    def noticed(self) -> float:
        """Share of the stuck entries that were noticed in time, 0 to 1."""
        return sum(course.noticed for course in self._stuck) / len(self._stuck) if self._stuck else 1.0

    @property
    def seen(self) -> float:
        """Share of the stuck entries in which a person was asked anything in time, 0 to 1."""
        return sum(course.seen for course in self._stuck) / len(self._stuck) if self._stuck else 1.0

    @property
    def heard(self) -> float:
        """Share of the stuck entries in which people were told or asked in time, 0 to 1."""
        return sum(course.heard for course in self._stuck) / len(self._stuck) if self._stuck else 1.0

    @property
    def told_in_200(self) -> float:
        """Alerts without a pause in 200 honest iterations."""
        total = sum(course.honest_iterations for course in self.courses)
        told = sum(at <= course.honest_iterations for course in self.courses for at in course.told)
        return 200 * told / total if total else 0.0

    @property
    def _stuck(self) -> list[Course]:
        return [course for course in self.courses if course.entry.since is not None]

    def __str__(self) -> str:
        lines = []
        for course in self.courses:
            lines += [f"  false pause: {course.entry.name}: {pause}" for pause in course.false]
            if course.entry.since is not None and not course.noticed:
                seen = "; ".join(map(str, course.pauses)) or "no pause"
                lines.append(f"  not noticed: {course.entry.name} (stuck since {course.entry.since}): {seen}")
        honest, stuck = (sum((c.entry.since is None) is kind for c in self.courses) for kind in (True, False))
        total = sum(course.honest_iterations for course in self.courses)
        figures = (
            f"{honest} honest entries, {stuck} stuck ones, {total} honest iterations: "
            f"{self.false_in_200:.2f} false pauses in 200 iterations, "
            f"{self.noticed:.1%} of the stuck noticed within {WITHIN} iterations, {self.seen:.1%} by any question, "
            f"{self.heard:.1%} with what people were told without a pause, which happened {self.told_in_200:.1f} times "
            "in 200 honest iterations"
        )
        return "\n".join((figures, *lines))


def selected(half: str) -> tuple[Entry, ...]:
    """Return the entries of one half, or those of them that the environment names."""
    return tuple(entry for entry in entries(half) if SELECTED in entry.name)


async def courses_of(
    chosen_entries: Sequence[Entry], *, client: TightloopClient, working: Working, folder: Path, git: Git
) -> Figures:
    """Run the entries, a few at once, and return how they went."""
    by_goal = {entry.name: entry for entry in chosen_entries}

    def answer(briefing: Briefing) -> PlannerAnswer:
        found = by_goal[briefing.goal].plan(briefing.iteration)
        return planned(found) if isinstance(found, str) else found

    async def run(number: int, entry: Entry) -> Course:
        async with turn:
            return await _course(entry, client, workspace_of(folder / str(number), entry, git))

    turn = asyncio.Semaphore(AT_ONCE)
    async with working(ScriptedPlanner(answer)):
        return Figures(tuple(await asyncio.gather(*(run(n, entry) for n, entry in enumerate(chosen_entries)))))


async def _course(entry: Entry, client: TightloopClient, workspace: Path) -> Course:
    request = EpisodeRequest(
        goal=entry.name,
        workspace=str(workspace),
        definition_of_done=entry.checks,  # type: ignore[arg-type]
        executor=scripted(*(entry.step(n) for n in range(1, entry.iterations + 1)), repeat=False),
        budget=Budget(max_iterations=entry.iterations, warn_at_iteration=None, max_executor_failures=None),
    )
    episode_id = await client.start(request)
    pauses: list[Pause] = []

    async def look() -> EpisodeStatus:
        status = await client.status(episode_id)
        assert isinstance(status, EpisodeStatus)
        return status

    while (status := await _patiently(look)).status in ("running", "paused"):
        if not status.questions:
            await asyncio.sleep(_LOOK_S)
            continue
        question = status.questions[0]
        if question.kind is QuestionKind.BUDGET:
            break
        pauses.append(Pause(status.iteration, question.kind, question.title))
        if entry.since is not None and status.iteration >= entry.since and question.kind in NOTICED:
            break
        await client.answer(episode_id, question.options[0].name)
    if status.status == "paused":
        await client.cancel(episode_id)
        await client.result(episode_id)
    timeline = await _patiently(lambda: client.timeline(episode_id, limit=1000))
    lines = [event.kind for event in timeline]
    told = tuple(lines[:at].count("iteration") for at, kind in enumerate(lines) if kind == "unmoved")
    return Course(entry=entry, iterations=status.iteration, pauses=tuple(pauses), told=told)


async def _patiently(look: Callable[[], Awaitable[T]]) -> T:
    """Look again where a busy machine let a query time out: only what the episode did is measured here."""
    for _ in range(LOOKS - 1):
        try:
            return await look()
        except ServiceUnavailableError:
            await asyncio.sleep(_LOOK_S)
    return await look()


def workspace_of(folder: Path, entry: Entry, git: Git) -> Path:
    folder.mkdir(parents=True)
    for path, text in {"notes.txt": NOTES, **entry.start}.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text or "")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "start")
    return folder
