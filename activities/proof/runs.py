"""Runs of the definition of done under observation: in the working tree, and in fresh checkouts."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime

from activities.artifacts.port import ArtifactStore
from activities.checks.activity import run_check
from activities.checks.port import CheckRunner, CheckView
from activities.proof.port import Bench, Files, Moved, Room
from activities.proof.trees import HeldTrees
from activities.workspace.port import WorkingTree
from tightloop.episode.check import Check, CheckResult
from tightloop.episode.proof import CheckRun, ProofRun, TestReport, TestsFrom
from tightloop.episode.proof.beginning import Beginning, CheckBaseline
from tightloop.episode.proof.model import NAMES_LIMIT
from tightloop.episode.proof.report import Observation, missing, names_text
from tightloop.episode.proof.verdict import Measured
from tightloop.episode.work import Work, check_work
from tightloop.value import clip, shorten
from tightloop.value.scrub import scrub

TAIL_CHARACTERS = 1_200


class Runs:
    """Runs checks for a tree that is on disk and held."""

    def __init__(
        self,
        tree: WorkingTree,
        store: ArtifactStore,
        runner: CheckRunner,
        bench: Bench,
        cancelled: Callable[[], bool],
        heartbeat: Callable[[Work], None],
    ) -> None:
        self.tree, self.store, self.bench = tree, store, bench
        self._runner, self._cancelled, self._heartbeat = runner, cancelled, heartbeat

    def in_place(self, checks: tuple[Check, ...], expected_tree: str) -> list[tuple[CheckResult, Observation]]:
        """Run every check in the working tree.

        Raises:
            CancelledError: the activity was cancelled meanwhile.
        """
        done = []
        with self.bench.room(self.tree.root) as room:
            for number, check in enumerate(checks, start=1):
                self._heartbeat(check_work(check, number, len(checks), datetime.now(UTC)))
                result, seen = self._observed(check, room, CheckView())
                done.append((result.evolve(tree=expected_tree), seen))
        return done

    def in_checkout(
        self,
        rooms: ExitStack,
        checks: tuple[Check, ...],
        tests: TestsFrom,
        files: Files,
        moved: Moved,
        beginning: Beginning,
    ) -> Measured:
        """Run every check in a fresh checkout of `files`, which is removed when `rooms` closes.

        Raises:
            CancelledError: the activity was cancelled meanwhile.
        """
        started = datetime.now(UTC)
        runs: list[CheckRun] = []
        observations: list[Observation] = []
        room = rooms.enter_context(self.bench.room(self.tree.root))
        view = room.checkout(HeldTrees(self.tree), files, moved)
        for number, check in enumerate(checks, start=1):
            kind = f"proof with the tests as {tests.value}, check"
            self._heartbeat(check_work(check, number, len(checks), datetime.now(UTC), kind))
            result, seen = self._observed(check, room, view)
            runs.append(_check_run(self.store, check, result, seen, beginning.check(check.run)))
            observations.append(seen)
        run = ProofRun(tests=tests, checks=tuple(runs), started=started, ended=datetime.now(UTC))
        return Measured(run, tuple(observations))

    def _observed(self, check: Check, room: Room, view: CheckView) -> tuple[CheckResult, Observation]:
        watched = room.watch(check, view)
        result = run_check(
            self._runner,
            watched.check,
            self.tree,
            self.store,
            expected_tree="",
            cancelled=self._cancelled,
            view=watched.view,
        )
        # Known by the command that the definition of done has, not by the one that was watched.
        return result.evolve(run=check.run, name=check.title), watched.observation()


def _check_run(
    store: ArtifactStore, check: Check, result: CheckResult, seen: Observation, before: CheckBaseline | None
) -> CheckRun:
    reports: list[TestReport] = []
    for report in seen.reports:
        results = seen.results[report.checker]
        gone = missing(before.observation.results.get(report.checker, {}), results) if before else ()
        names = store.put(names_text(results).encode("utf-8", "replace"), name="tests", media_type="text/plain")
        shown_names = tuple(shorten(name, 200) for name in gone[:NAMES_LIMIT])
        reports.append(report.evolve(missing_names=shown_names, missing_count=len(gone), names=names))
    return CheckRun(
        name=shorten(check.title, 200),
        run=check.run,
        argv=("/bin/sh", "-c", check.run),
        status=result.status,
        exit_code=result.exit_code,
        duration_s=result.duration_s,
        tail=clip(scrub(result.tail), TAIL_CHARACTERS),
        output=result.output,
        reports=tuple(reports),
        sandbox=result.sandbox,
        not_enforced=result.not_enforced,
    )
