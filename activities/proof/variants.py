"""Runs of the checks on variants of the delivered tree, which show how meaningful a passing check is."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from activities.proof.difference import Difference
from activities.proof.port import Files, UntrackedChanges
from activities.proof.runs import Runs
from tightloop.episode.check import CheckStatus
from tightloop.episode.proof import CheckRun
from tightloop.episode.proof.kept_tests import KeptTests
from tightloop.episode.proof.report import PASSED, InitialState, Observation
from tightloop.episode.proof.verdict import ObservedRun
from tightloop.episode.proof.weakening import Suppressions, find_empty_tests


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
        """Return the added suppressions of findings if a check fails without them.

        For checks that passed from the start, only blanket suppressions count; suppressing single rules is ordinary
        work there.
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

        The result is empty if they are less than half of the new tests.
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
        """Return original pytest tests that pass once, but fail an assertion when they run again in the same process.

        Files that a test leaves behind are ruled out as the cause, because the test must fail in two processes in one
        checkout. A test that already did so on the initial tree does not count. Neither does a test that failed on the
        initial tree if another test of its file did so there.
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
        """Return the names of the new Python tests that pass, for each check."""
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
