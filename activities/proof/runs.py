"""Execution of the checks of a proof, in the working tree, in fresh checkouts and on variants of the delivered tree."""

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
from activities.proof.difference import Difference
from activities.proof.port import Files, LockedTrees, UntrackedChanges
from tightloop.episode.budget import check_work
from tightloop.episode.check import Check, CheckResult, CheckStatus
from tightloop.episode.exit_status import check_argv
from tightloop.episode.proof import NAMES_LIMIT, CheckRun, ProofRun, TestReport, TestsFrom
from tightloop.episode.proof.kept_tests import KeptTests
from tightloop.episode.proof.report import (
    PASSED,
    CheckBaseline,
    InitialState,
    Observation,
    add_printed_reports,
    missing,
    names_text,
)
from tightloop.episode.proof.verdict import ObservedRun
from tightloop.episode.proof.weakening import Suppressions, find_empty_tests
from tightloop.run.core import Work
from tightloop.value import Value, clip, shorten
from tightloop.value.scrub import scrub

if TYPE_CHECKING:
    from activities.checks.runner import CheckRunner
    from activities.proof.checkouts import LocalCheckouts, ProofFolder
    from activities.workspace.working_tree import CheckedTree

TAIL_CHARACTERS = 1_200


class CheckedTwice(NamedTuple):
    """The result of a check. A failing check is run a second time."""

    result: CheckResult
    observation: Observation
    is_flaky: bool


class FirstRun(Value):
    """The trial run of a check in a temporary checkout of the original tree."""

    result: CheckResult
    observation: Observation


class FirstRuns(Value):
    """The trial runs of a project's own checks on one tree."""

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

        A check that passes the second time is flaky, so its failure is ignored.

        Args:
            checks: checks to run.
            expected_tree: the tree on disk.
            earlier: trial runs on this tree, by command. A check that passed there is not run again, and a check
                that failed there is run only one more time.

        Raises:
            CancelledError: the activity was cancelled while the checks were running.
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
                    self._heartbeat(check_work(check, number, len(checks), datetime.now(UTC), "once more: check"))
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

        A failing check is repeated once in another checkout.

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
        """Repeat checks that have already passed, with some of the files changed.

        Raises the same errors as `run_in_checkout`.

        Args:
            rooms: the checkout is deleted when this stack closes.
            checks: runs that passed on the delivered tree. The time limit is twice their duration plus half a
                minute.
            files: the delivered tree.
            moved: changes to untracked files.
            edits: new contents of files, or None to remove a file.
            hollow: instructions for the observer that makes the product's functions do nothing.
            is_twice: whether pytest runs all passing tests a second time.
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
            self._heartbeat(check_work(check, number, len(checks), datetime.now(UTC), "check what the tests show"))
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
        """Return the changes to untracked files since the start.

        If the start was recorded in a different working tree, no changes are returned.
        """
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
    return CheckRun.of(
        result,
        name=shorten(check.title, 200),
        run=check.run,
        argv=check_argv(check.run),
        tail=clip(scrub(result.tail), TAIL_CHARACTERS),
        reports=tuple(reports),
        watched=observation.is_watched,
    )


class Variants:
    """Repeats the checks that passed on the delivered tree under different conditions."""

    def __init__(
        self,
        use: Runs,
        rooms: ExitStack,
        change: Difference,
        moved: UntrackedChanges,
        beginning: InitialState,
        delivered: ObservedRun,
        tests: KeptTests,
    ) -> None:
        self._use, self._rooms, self._change, self._moved = use, rooms, change, moved
        self._beginning, self._delivered, self._tests = beginning, delivered, tests

    def find_needed_suppressions(self, added: Suppressions) -> tuple[str, ...]:
        """Return the added suppression comments that a check needs to pass.

        If the check also passed on the initial tree, only blanket suppressions are considered, because
        suppressing a single rule is ordinary work.
        """
        if not added.lines:
            return ()
        for lines, was_green in ((added.lines, False), (added.blanket, True)):
            runs = [
                run
                for run in self._delivered.run.checks
                if run.passed
                and lines
                and (added.of_tests or not run.reports)
                and ((before := self._beginning.check(run.run)) is not None and before.passed) is was_green
            ]
            edits = added.files
            if runs and any(
                result.status is CheckStatus.FAILED
                for _, result, _ in self._use.run_variant(self._rooms, runs, self._change.after, self._moved, edits)
            ):
                return lines
        return ()

    def find_empty_tests(self) -> tuple[str, ...]:
        """Return the new tests that pass even if the product does nothing.

        Return an empty tuple if fewer than half of the new tests are empty.
        """
        texts, new = self._change.new_test_texts(), self._new_tests()
        runs = [run for run, names in zip(self._delivered.run.checks, new, strict=True) if names]
        survivors = all_new = frozenset[str]().union(*new)
        for is_none in (True, False):
            if not survivors:
                return ()
            hollow = self._change.hollow(survivors, is_none=is_none)
            survivors &= {
                name
                for observation in self._observe(runs, self._change.after, hollow=hollow)
                for results in observation.results.values()
                for name, result in results.items()
                if result == PASSED
            }
        empty = find_empty_tests(texts, survivors, self._change.modules())
        return empty if 2 * len(empty) >= len(all_new) else ()

    def find_unrepeatable_tests(self) -> tuple[str, ...]:
        """Return existing pytest tests that pass once but fail an assertion when repeated in the same process.

        A test must fail in two processes that share a checkout. This rules out files that the test leaves
        behind. A test is skipped if it also failed when repeated on the initial tree. A test that failed on the
        initial tree is also skipped if another test in its file failed when repeated there.
        """
        sources = {path for path in self._change.sources.files if path.endswith(".py")}
        runs = [
            run
            for run, observation in zip(self._delivered.run.checks, self._delivered.observations, strict=True)
            if "pytest" in observation.checkers
            and run.passed
            and run.duration_s <= self._use.twice_limit_s
            and not sources.isdisjoint(observation.loads)
        ]
        if not runs:
            return ()

        def unrepeatable(checks: Sequence[CheckRun], files: Files) -> list[frozenset[str]]:
            return [frozenset(seen.unrepeatable) for seen in self._observe(checks, files, is_twice=True)]

        tests = frozenset[str]().union(*unrepeatable(runs, self._change.after)).difference(*self._new_tests())
        if tests:
            rounds = unrepeatable([*runs, *runs], self._change.after)
            first, second = rounds[: len(runs)], rounds[len(runs) :]
            tests &= frozenset[str]().union(*(one & two for one, two in zip(first, second, strict=True)))
        if tests:
            before = frozenset[str]().union(*unrepeatable(runs, self._change.before))
            # What failed at the start could not fail a second time. Where other tests of the file did, it is the
            # tests that leave something behind, such as a language.
            excused = {_file_of(test) for test in before}
            passed = self._tests_passed_before(runs)
            tests = frozenset(test for test in tests - before if test in passed or _file_of(test) not in excused)
        return tuple(sorted(tests))

    def _tests_passed_before(self, runs: Sequence[CheckRun]) -> frozenset[str]:
        """Return the names of the pytest tests that passed on the initial tree."""
        beginnings = filter(None, (self._beginning.check(run.run) for run in runs))
        return frozenset(
            test
            for before in beginnings
            for test, result in before.observation.results.get("pytest", {}).items()
            if result == PASSED
        )

    def _new_tests(self) -> list[frozenset[str]]:
        """Return the names of the new Python tests that pass, as one set per check."""
        texts = self._change.new_test_texts()
        new = []
        for run, observation in zip(self._delivered.run.checks, self._delivered.observations, strict=True):
            before = self._beginning.check(run.run)
            names = [
                self._tests.find_new(
                    before.observation.results.get(checker, {}) if before else {}, observation.results[checker], texts
                )
                for checker in ({"pytest", "unittest"} & observation.results.keys() if texts else ())
            ]
            new.append(frozenset[str]().union(*names))
        return new

    def _observe(
        self,
        checks: Sequence[CheckRun],
        files: Files,
        *,
        hollow: Mapping[str, object] | None = None,
        is_twice: bool = False,
    ) -> list[Observation]:
        outcomes = self._use.run_variant(self._rooms, checks, files, self._moved, {}, hollow, is_twice=is_twice)
        return [observation for _, _, observation in outcomes]


def _file_of(test: str) -> str:
    return test.partition("::")[0]
