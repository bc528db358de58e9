"""Execution of the checks of a proof, in the working tree and in fresh checkouts."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from temporalio.exceptions import CancelledError

from activities.artifacts.port import ArtifactStore
from activities.checks.activity import CheckView, CommandResult, run_check
from activities.proof import untracked
from activities.proof.port import Files, LockedTrees, UntrackedChanges
from tightloop.episode.budget import check_work
from tightloop.episode.check import Check, CheckResult, CheckStatus
from tightloop.episode.exit_status import check_argv
from tightloop.episode.proof import NAMES_LIMIT, CheckRun, ProofRun, TestReport, TestsFrom
from tightloop.episode.proof.output import add_printed_reports
from tightloop.episode.proof.report import CheckBaseline, InitialState, Observation, missing, names_text
from tightloop.episode.proof.verdict import ObservedRun
from tightloop.run.core import Work
from tightloop.value import Value, clip, shorten
from tightloop.value.scrub import scrub

if TYPE_CHECKING:
    from activities.checks.runner import CheckRunner
    from activities.proof.checkouts import LocalCheckouts, ProofFolder
    from activities.workspace.working_tree import CheckedTree

TAIL_CHARACTERS = 1_200


class CheckedTwice(NamedTuple):
    """Result of a check, which was run a second time if it failed."""

    result: CheckResult
    observation: Observation
    is_flaky: bool


class FirstRun(Value):
    """Trial run of a found check in a throwaway checkout of the original tree."""

    result: CheckResult
    observation: Observation


class FirstRuns(Value):
    """Trial runs of a project's own checks on one tree."""

    tree: str
    runs: tuple[FirstRun, ...] = ()


class Runs:
    """Runs checks on a locked tree on disk."""

    def __init__(
        self,
        tree: "CheckedTree",
        store: ArtifactStore,
        runner: "CheckRunner",
        checkouts: "LocalCheckouts",
        cancelled: Callable[[], bool],
        heartbeat: Callable[[Work], None],
        *,
        twice_limit_s: float = 0.0,
    ) -> None:
        self.tree, self.store, self.checkouts = tree, store, checkouts
        self.twice_limit_s = twice_limit_s
        """Maximum duration in seconds of a check for which its tests also run twice in one process."""
        self._runner, self._cancelled, self._heartbeat = runner, cancelled, heartbeat

    def run_in_place(
        self, checks: tuple[Check, ...], expected_tree: str, earlier: Mapping[str, FirstRun] = MappingProxyType({})
    ) -> list[CheckedTwice]:
        """Run every check in the working tree, and run failing checks a second time.

        A check that passes the second time fails at random, so its failure does not count.

        Args:
            checks: checks to run.
            expected_tree: the tree on disk.
            earlier: runs in a checkout of this tree, by command. A check that passed there is not run again, and one
                that failed
                there is not repeated.

        Raises:
            CancelledError: the activity was cancelled in the meantime.
        """
        results = []
        paths = LockedTrees(self.tree).files(expected_tree)
        with self.checkouts.proof_folder(self.tree.root) as room:
            for number, check in enumerate(checks, start=1):
                first = earlier.get(check.run)
                if first is not None and first.result.passed:
                    results.append(CheckedTwice(first.result.evolve(tree=expected_tree), first.observation, False))
                    continue
                self._heartbeat(check_work(check, number, len(checks), datetime.now(UTC)))
                result, observation = self.run_observed_check(check, room, CheckView(), paths)
                is_flaky = False
                # A missing program stays missing, and a check that ran out of time would cost as much time again.
                if result.status is CheckStatus.FAILED and first is None:
                    self._heartbeat(check_work(check, number, len(checks), datetime.now(UTC), "repeated check"))
                    second, second_observation = self.run_observed_check(check, room, CheckView(), paths)
                    if is_flaky := second.passed:
                        result, observation = second, second_observation
                results.append(CheckedTwice(result.evolve(tree=expected_tree), observation, is_flaky))
        return results

    def run_in_checkout(
        self,
        rooms: ExitStack,
        checks: tuple[Check, ...],
        tests: TestsFrom,
        files: Files,
        moved: UntrackedChanges,
        beginning: InitialState,
    ) -> ObservedRun:
        """Run every check in a fresh checkout of `files`. The checkout is deleted when `rooms` closes.

        A check that fails is repeated once, in another checkout.

        Raises:
            CancelledError: the activity was cancelled in the meantime.
        """
        started = datetime.now(UTC)
        runs: list[CheckRun] = []
        observations: list[Observation] = []
        flaky: list[str] = []
        room = rooms.enter_context(self.checkouts.proof_folder(self.tree.root))
        view = room.checkout(LockedTrees(self.tree), files, moved)
        for number, check in enumerate(checks, start=1):
            kind = f"proof with the tests as {tests.value}, check"
            self._heartbeat(check_work(check, number, len(checks), datetime.now(UTC), kind))
            result, observation = self.run_observed_check(check, room, view, files)
            if result.status is CheckStatus.FAILED:
                # In another checkout, so that what the first run left behind cannot make the second one pass.
                again = rooms.enter_context(self.checkouts.proof_folder(self.tree.root))
                second_view = again.checkout(LockedTrees(self.tree), files, moved)
                second, second_observation = self.run_observed_check(check, again, second_view, files)
                if second.passed:
                    flaky.append(check.title)
                    result, observation = second, second_observation
            runs.append(_check_run(self.store, check, result, observation, beginning.check(check.run)))
            observations.append(observation)
        run = ProofRun(tests=tests, checks=tuple(runs), started=started, ended=datetime.now(UTC))
        return ObservedRun(run, tuple(observations), tuple(flaky))

    def run_variant(
        self,
        rooms: ExitStack,
        checks: Sequence[CheckRun],
        files: Files,
        moved: UntrackedChanges,
        edits: Mapping[str, str | None],
        hollow: Mapping[str, object] | None = None,
        *,
        is_twice: bool = False,
    ) -> list[tuple[CheckRun, CheckResult, Observation]]:
        """Run checks that have passed once more, with changed contents of some files.

        Raises the same errors as `run_in_checkout`.

        Args:
            rooms: keeps the checkout until it closes.
            checks: runs that passed on the delivered tree. The time limit is twice their duration plus half a minute.
            files: the delivered tree.
            moved: changes to untracked files.
            edits: new texts of files, or None to remove a file.
            hollow: instructions for the observer that makes the product's functions do nothing.
            is_twice: make pytest run all passing tests a second time.
        """
        room = rooms.enter_context(self.checkouts.proof_folder(self.tree.root))
        variant = {path: file for path, file in files.items() if path not in edits}
        view = room.checkout(LockedTrees(self.tree), variant, moved)
        if view.content is not None:
            for path, text in edits.items():
                if text is not None:
                    (view.content / path).parent.mkdir(parents=True, exist_ok=True)
                    (view.content / path).write_text(text, "utf-8", newline="")
                    (view.content / path).chmod(files[path].mode & 0o777)
        if hollow is not None:
            folder = room.folder("hollow")
            root = str(self._runner.path_inside(self.tree.root))
            (folder / "instructions.json").write_text(json.dumps({"root": root, **hollow}), "utf-8")
            environment = {**view.environment, "TIGHTLOOP_HOLLOW": str(folder / "instructions.json")}
            view = replace(view, readable=(*view.readable, folder), environment=environment)
        if is_twice:
            view = replace(view, environment={**view.environment, "TIGHTLOOP_TWICE": "1"})
        outcomes = []
        for number, run in enumerate(checks, start=1):
            check = Check(run=run.run, name=run.name, timeout_s=2 * run.duration_s + 30)
            self._heartbeat(check_work(check, number, len(checks), datetime.now(UTC), "proof of what it shows, check"))
            outcomes.append((run, *self.run_observed_check(check, room, view, ())))
        return outcomes

    def run_unrecorded(
        self, check: Check, room: "ProofFolder", view: CheckView, work: Work
    ) -> tuple[CommandResult, Observation]:
        """Run a hidden check without recording anything about it.

        Raises:
            CancelledError: the activity was cancelled in the meantime.
        """
        self._heartbeat(work)
        root, started = self.tree.root, self.tree.own_process
        watched = room.watch(check, view, self._runner.path_inside(root))
        try:
            result = self._runner.run(
                watched.check, root, cancelled=self._cancelled, started=started, view=watched.view
            )
        finally:
            observation = watched.observation()
        if self._cancelled():
            raise CancelledError(f"stopped during the {work.what}")
        return result, observation

    def compare_untracked(self, beginning: InitialState, delivered: Files) -> UntrackedChanges:
        """Return the changes to untracked files since the start. If the working tree is another one, none are known."""
        # In another folder, times and inodes say nothing about the files recorded at the beginning.
        if beginning.ignored is None or beginning.root != str(self.tree.root):
            return UntrackedChanges()
        survey = untracked.read_survey(self.store.get(beginning.ignored))
        return untracked.compare(self.tree.root, survey, delivered)

    def run_observed_check(
        self, check: Check, room: "ProofFolder", view: CheckView, paths: Iterable[str]
    ) -> tuple[CheckResult, Observation]:
        """Run one check with its observers. Raises the same errors as `run_in_place`."""
        watched = room.watch(check, view, self._runner.path_inside(self.tree.root), paths)
        try:
            result = run_check(
                self._runner,
                watched.check,
                self.tree,
                self.store,
                expected_tree="",
                cancelled=self._cancelled,
                view=watched.view,
            )
        finally:
            observation = watched.observation()
        # A container may run in another kernel, such as that of a virtual machine.
        if result.sandbox == "docker" and not observation.opened:
            observation = observation.evolve(is_watched=False)
        if result.output is not None:
            printed = self.store.get(result.output).decode("utf-8", "replace")
            observation = add_printed_reports(observation, printed)
        # Recorded under the command of the definition of done, not the observed variant.
        return result.evolve(run=check.run, name=check.title), observation


def _check_run(
    store: ArtifactStore, check: Check, result: CheckResult, observation: Observation, before: CheckBaseline | None
) -> CheckRun:
    reports: list[TestReport] = []
    for report in observation.reports:
        results = observation.results[report.checker]
        tests_before = before.observation.results.get(report.checker, {}) if before else {}
        may_stay = result.passed and bool(result.exit_code)
        missing_names = missing(tests_before, results, failures_may_stay=may_stay)
        names = store.put(names_text(results).encode("utf-8", "replace"), name="tests", media_type="text/plain")
        shown_names = tuple(shorten(name, 200) for name in missing_names[:NAMES_LIMIT])
        reports.append(report.evolve(missing_names=shown_names, missing_count=len(missing_names), names=names))
    return CheckRun(
        name=shorten(check.title, 200),
        run=check.run,
        argv=check_argv(check.run),
        status=result.status,
        exit_code=result.exit_code,
        duration_s=result.duration_s,
        tail=clip(scrub(result.tail), TAIL_CHARACTERS),
        output=result.output,
        reports=tuple(reports),
        sandbox=result.sandbox,
        not_enforced=result.not_enforced,
        watched=observation.is_watched,
    )
