"""Verdicts on tests, based on static findings and observed runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tightloop.testing import (
    NODES_LIMIT,
    SURVIVORS_LIMIT,
    TESTS_LIMIT,
    TEXT_CHARACTERS,
    AcceptedTest,
    ChangedCoverage,
    Collection,
    GateReport,
    Item,
    Outcome,
    RefusedTest,
    Run,
    Session,
    can_fail,
)
from tightloop.testing.claims import JudgedTests
from tightloop.testing.mutants import Mutant
from tightloop.value import format_count, shorten
from tightloop.value.scrub import scrub

_NOT_RUN = {
    Outcome.SKIPPED: "The test is skipped ({text}). Only tests that run count.",
    Outcome.XFAIL: "The test is marked as expected to fail. A test of the change must pass on the changed code.",
    Outcome.TIMEOUT: "The test takes longer than {limit:g} s. Make the test smaller.",
    Outcome.CRASHED: "The test ends Python before it finishes.",
    Outcome.FAILED: "The test fails on the tree with the change: {text}. Fix the test or the code.",
}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The static findings and test runs for the tests in a change."""

    after: Session
    before: Session | None = None
    readings: Mapping[str, JudgedTests] = field(default_factory=dict)
    """Static findings by id without parameters."""
    changed: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Changed lines by file."""
    bodies: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Body lines of changed functions, by file."""
    mutants: Sequence[Mutant] = ()
    tests: Sequence[str] = ()
    """Test files."""
    test_limit_s: float = 0.0


def judge(evidence: Evidence) -> GateReport:
    """Decide which tests count, and report the mutants that no test detects."""
    collected = evidence.after.collected or Collection()
    functions: dict[str, list[Item]] = {}
    for item in collected.items:
        functions.setdefault(item.function, []).append(item)
    accepted, refused = [], list(_list_uncollected_files(evidence, collected))
    for name, items in functions.items():
        verdict = _Test(evidence, name, items).verdict()
        if isinstance(verdict, AcceptedTest):
            accepted.append(verdict)
        else:
            refused.append(verdict)
    counting = {item.id for accepted_test in accepted for item in functions[accepted_test.test]}
    # Mutants with which every counting test passes, including those that no test executes.
    survived = []
    for number in sorted(_list_tried_mutants(evidence) - evidence.after.broken):
        runs = [run for run in evidence.after.mutated.get(number, ()) if run.id in counting]
        if all(run.outcome is Outcome.PASSED for run in runs):
            survived.append(evidence.mutants[number])
    return GateReport(
        accepted=tuple(accepted[:TESTS_LIMIT]),
        refused=tuple(refused[:TESTS_LIMIT]),
        survived=tuple(mutant.label for mutant in survived[:SURVIVORS_LIMIT]),
        survived_count=len(survived),
        mutants=len(_list_tried_mutants(evidence)),
        coverage=_coverage(evidence, collected, counting),
        notes=tuple(_notes(evidence, collected, len(accepted), len(refused))),
    )


class _Test:
    """A test with all of its parameterised cases."""

    def __init__(self, evidence: Evidence, name: str, items: Sequence[Item]) -> None:
        self._evidence, self._name, self._items = evidence, name, items
        self._reading = evidence.readings.get(name, JudgedTests(asserts=True))
        self._runs = evidence.after.runs(item.id for item in items)
        self._green = {
            key: runs[0] for key, runs in self._runs.items() if all(run.outcome is Outcome.PASSED for run in runs)
        }

    def verdict(self) -> AcceptedTest | RefusedTest:
        if reason := self._unusable():
            return self._make_refusal(reason)
        before, killed = self._before(), self._find_killed_mutants()
        if not before and not killed:
            return self._make_refusal(self._explain_missing_proof())
        nodes = tuple(item.id for item in self._items if item.id != self._name)
        return AcceptedTest(
            test=shorten(self._name, TEXT_CHARACTERS),
            nodes=tuple(shorten(node, TEXT_CHARACTERS) for node in nodes[:NODES_LIMIT]),
            fails_before=bool(before),
            killed=len(killed),
            example=shorten(scrub((before or [run for run, _ in killed.values()])[0].text), TEXT_CHARACTERS),
        )

    def _make_refusal(self, reason: str) -> RefusedTest:
        # The reason may quote output of the test, and with it a secret.
        return RefusedTest(
            test=shorten(self._name, TEXT_CHARACTERS), reason=shorten(scrub(reason), TEXT_CHARACTERS + 100)
        )

    def _unusable(self) -> str:
        """Return the reason why the test cannot count, or ""."""
        if self._reading.refused:
            return self._reading.refused
        if not self._runs:
            return "There was no time to run the test. Make the test smaller, or run fewer tests at once."
        runs = [run for test_runs in self._runs.values() for run in test_runs]
        skips = [run for run in runs if run.outcome is Outcome.SKIPPED]
        bad = [run for run in runs if run.outcome not in (Outcome.PASSED, Outcome.SKIPPED)]
        if any(len({run.outcome for run in test_runs}) > 1 for test_runs in self._runs.values()):
            return (
                "The outcome of the test varies between runs: "
                f"{next((run.text for run in bad), 'it was skipped once')}."
            )
        if bad or (skips and not self._green):
            first = (bad or skips)[0]
            return _NOT_RUN[first.outcome].format(text=first.text.rstrip("."), limit=self._evidence.test_limit_s)
        if not all(run.honest for run in runs):
            return "Hooks of the project alter test results, so its tests do not count."
        return ""

    def _before(self) -> list[Run]:
        """Return the test's failures from before the change."""
        evidence = self._evidence
        if evidence.before is None or self._reading.names_only:
            return []
        # `assert hasattr(module, "f")` executes no changed function.
        if any(evidence.bodies.values()):
            executes = any(not lines.isdisjoint(evidence.bodies.get(path, ())) for path, lines in self._lines())
        else:
            executes = not evidence.mutants
        if not executes:
            return []
        failures, expecting = [], self._reading.expecting
        for key, runs in evidence.before.runs(self._green).items():
            # In both of its runs, so that a flaky failure proves nothing.
            if len(runs) > 1 and all(can_fail(run, self._green[key], expecting) for run in runs):
                failures.append(runs[0])
        return failures

    def _lines(self) -> list[tuple[str, frozenset[int]]]:
        return [entry for run in self._green.values() for entry in run.lines.items()]

    def _find_killed_mutants(self) -> dict[int, tuple[Run, Run]]:
        """Return the killed mutants, each with the failing run and the passing run."""
        if self._reading.weak:
            return {}
        killed: dict[int, tuple[Run, Run]] = {}
        for number, runs in self._evidence.after.mutated.items():
            for run in runs:
                green = self._green.get(run.id)
                if green is not None and can_fail(run, green, self._reading.expecting):
                    killed.setdefault(number, (run, green))
        return killed

    def _explain_missing_proof(self) -> str:
        """Return the reason why there is no proof that the test can fail."""
        evidence, reading = self._evidence, self._reading
        if reading.weak:
            return reading.weak
        reaches = any(not lines.isdisjoint(evidence.changed.get(path, ())) for path, lines in self._lines())
        if not reading.asserts:
            return (
                "The test asserts nothing: it passes as long as nothing is raised. Assert what the code "
                "returns or does."
            )
        earlier = evidence.before.runs(self._green).values() if evidence.before else ()
        if any(len({run.outcome for run in runs}) > 1 for runs in earlier):
            return "The outcome of the test varies between runs before the change, which proves nothing."
        tried = [run for runs in evidence.after.mutated.values() for run in runs if run.id in self._green]
        tried += [run for runs in earlier for run in runs[:1]]
        crashes = [run for run in tried if run.outcome not in (Outcome.PASSED, Outcome.SKIPPED)]
        if not crashes and not reaches and any(evidence.changed.values()):
            return (
                "The test executes none of the changed lines. Call the changed code, and assert what it returns "
                "or does."
            )
        mutants = {number for number, runs in evidence.after.mutated.items() if any(r.id in self._green for r in runs)}
        if crashes:
            what = crashes[0].text or crashes[0].outcome.value
            return (
                "The test fails only with an error, never with its own assertion "
                f"({shorten(what, 120).rstrip('.')}). Assert what the code returns or does."
            )
        where = [*(["before the change"] if evidence.before and evidence.before.collected else [])]
        where += (
            [f"with each of {format_count(len(mutants), 'mutant')} in the lines that it executes"] if mutants else []
        )
        if not where:
            return "Nothing shows that the test can fail: it reaches no mutants in the changed lines."
        return (
            f"The test passes {' and '.join(where)}, so it would not notice a fault. Assert the behavior of "
            "those lines."
        )


def why_none_fails(session: Session, readings: Mapping[str, JudgedTests], path: str) -> str:
    """Explain why a new test file does not show that something is missing.

    Return "" if a test fails in its own assertion. `session` contains the runs on the tree before any
    work. On this tree, each test must either pass or fail. A test that breaks, for example because of a
    wrong import, would still break after the work.
    """
    if refused := _list_uncollected_files(Evidence(after=session, tests=(path,)), session.collected or Collection()):
        return refused[0].reason
    items = session.collected.items if session.collected else ()
    runs_by_id, failing = session.runs(item.id for item in items), False
    for item in items:
        reading, runs = readings.get(item.function, JudgedTests(asserts=True)), runs_by_id.get(item.id, [])
        if problem := reading.refused or reading.weak:
            return problem
        # A flaky test proves nothing, and neither does an assertion of the code under test.
        fails = len(runs) > 1 and all(run.assertion and run.place == "test" and run.honest for run in runs)
        if not fails and any(run.outcome is not Outcome.PASSED for run in runs):
            text = next((run.text for run in runs if run.text), "it did not run")
            return f"{item.function} does not fail by its own assertion: {shorten(scrub(text), TEXT_CHARACTERS)}."
        if fails and reading.names_only:
            return f"{item.function} only asserts that names exist. Assert what the code returns or does."
        failing = failing or fails
    return "" if failing else f"Every test in {path} passes before any work, so none shows what is missing."


def _list_uncollected_files(evidence: Evidence, collected: Collection) -> list[RefusedTest]:
    """Return the test files that contain no tests, each with a reason."""
    after = evidence.after
    collected_paths = {item.path for item in collected.items}
    problems = dict(collected.problems)
    refused = []
    for path in evidence.tests:
        if after.missing:
            reason = f"{after.missing}. Install pytest in the project's .venv to have tests judged."
        elif path in problems or (path not in collected_paths and "" in problems):
            lines = (problems.get(path) or problems[""]).strip().splitlines() or ["pytest reported no reason"]
            # After an error in its options, pytest prints their location.
            line = next((line for line in reversed(lines) if "rror" in line), lines[-1])
            reason = f"The test could not be collected: {line.strip().rstrip('.')}."
        elif path not in collected_paths and after.collected is None:
            reason = f"No tests could be run: {after.output.strip() or 'the test runner printed nothing'}."
        elif path not in collected_paths:
            reason = "No tests were collected from this file. pytest collects functions and methods named test_..."
        else:
            continue
        refused.append(RefusedTest(test=path, reason=shorten(scrub(reason), TEXT_CHARACTERS + 100)))
    return refused


def _list_tried_mutants(evidence: Evidence) -> set[int]:
    after = evidence.after
    return {*after.mutated, *after.unreached, *after.broken}


def _coverage(evidence: Evidence, collected: Collection, counting: set[str]) -> ChangedCoverage:
    total, covered, missing = 0, 0, []
    for path, changed in sorted(evidence.changed.items()):
        lines = changed & collected.executable.get(path, frozenset())
        # Importing alone covers nothing: some test has to count.
        executed = set(collected.imported.get(path, ())) if counting else set[int]()
        for run in evidence.after.plain:
            if run.id in counting:
                executed |= run.lines.get(path, frozenset())
        total += len(lines)
        covered += len(lines & executed)
        missing += [f"{path}:{line}" for line in sorted(lines - executed)]
    return ChangedCoverage(covered=covered, total=total, missing=tuple(missing[:SURVIVORS_LIMIT]))


def _notes(evidence: Evidence, collected: Collection, accepted: int, refused: int) -> list[str]:
    notes = []
    if collected.more:
        notes.append(f"{format_count(collected.more, 'test')} beyond the limit did not run.")
    left = len(evidence.mutants) - len(_list_tried_mutants(evidence))
    if left > 0 and collected.items:
        notes.append(
            f"There was only time to test {len(_list_tried_mutants(evidence))} of "
            f"{format_count(len(evidence.mutants), 'mutant')}."
        )
    if evidence.before is not None and not evidence.before.collected:
        notes.append("The tests could not be run on the tree before the change.")
    if evidence.after.collected is not None and not evidence.after.ended:
        notes.append("The run was stopped before it finished.")
    if accepted > TESTS_LIMIT or refused > TESTS_LIMIT:
        notes.append(
            f"The list shows {TESTS_LIMIT} tests of each kind, out of {accepted} accepted and {refused} rejected."
        )
    return notes
