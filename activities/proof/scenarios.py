"""Execution of hidden scenarios for a proof. The only result that is kept or shown is whether a scenario passed.

There is one exception: the last line printed by a failing drafted scenario is kept, encrypted, for the owner.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from activities.checks.activity import CommandResult
from activities.proof import untracked
from activities.proof.port import Files, LockedTrees, ScenarioSource, UntrackedChanges
from activities.proof.runs import Runs
from tightloop.episode.check import CheckStatus, ProofRule
from tightloop.episode.proof import CheckRun, ProofRun, TestsFrom
from tightloop.episode.proof.report import InitialState, Observation
from tightloop.episode.proof.verdict import Changes, ObservedRun, findings_of, known_checkers
from tightloop.episode.scenarios import (
    PRINTS_CHARACTERS,
    HiddenScenarios,
    Scenario,
    ScenarioBaseline,
    ScenarioBundle,
    ScenarioResult,
    last_line,
    seen_before,
)
from tightloop.errors import WorkspaceError
from tightloop.host.access import write_over
from tightloop.run.core import Work
from tightloop.value import shorten

if TYPE_CHECKING:
    from tightloop.client.scenarios import ScenarioStore

_ODD = frozenset({ProofRule.NO_REPORT, ProofRule.ENDED_EARLY})


class _Outcome(NamedTuple):
    passed: bool
    is_odd: bool
    """True if the outcome is odd; see `ScenarioBaseline.odd`."""
    has_run: bool
    """True if the command exited with 0, regardless of its output."""
    printed: str
    """Last line of the command's output."""


def baseline_of(use: Runs, source: ScenarioSource, hidden: HiddenScenarios, tree: str) -> ScenarioBaseline:
    """Run the scenarios on the initial tree.

    Raises:
        CancelledError: the activity was cancelled while the scenarios were running.
        InvalidRequestError: this host does not have the scenarios. See `ScenarioSource`.
    """
    files = LockedTrees(use.tree).files(tree)
    outcomes = _run(use, source.load(hidden), files, untracked.present(use.tree.root, files))
    return ScenarioBaseline(
        digest=hidden.digest,
        failed=tuple(number for number, outcome in enumerate(outcomes) if not outcome.passed),
        odd=tuple(number for number, outcome in enumerate(outcomes) if outcome.is_odd),
    )


def result_of(
    use: Runs, source: ScenarioSource, hidden: HiddenScenarios, beginning: InitialState, delivered: str
) -> ScenarioResult:
    """Run the hidden scenarios on the delivered tree. Raises the same errors as `baseline_of`."""
    if not hidden.count:
        return ScenarioResult(digest="", total=0, changes=hidden.changes)
    bundle, baseline = source.load(hidden), beginning.scenarios
    initial = source.find(baseline.digest) if baseline is not None else None
    seen = seen_before(bundle, initial, baseline)
    files = LockedTrees(use.tree).files(delivered)
    outcomes = _run(use, bundle, files, use.compare_untracked(beginning, files), seen.odd)
    return ScenarioResult(
        digest=hidden.digest,
        total=len(outcomes),
        passed=sum(outcome.passed for outcome in outcomes),
        failed_before=sum(outcomes[number].passed for number in seen.failed),
        changes=hidden.changes,
    )


def choose_drafts(use: Runs, source: "ScenarioStore", drafts: HiddenScenarios, tree: str) -> HiddenScenarios:
    """Run the drafted scenarios on the initial tree, and commit to the valid ones.

    A draft is valid if its command exits with 0 and does not print the expected output. A draft that
    describes existing behaviour to keep (`Scenario.keep`) is valid if it prints the expected output. A
    draft that fails with an import or syntax error is never valid. Raises the same errors as `baseline_of`.
    """
    bundle = source.load(drafts)
    files = LockedTrees(use.tree).files(tree)
    outcomes = _run(use, bundle, files, untracked.present(use.tree.root, files))
    used = tuple(
        scenario
        for scenario, outcome in zip(bundle.scenarios, outcomes, strict=True)
        if outcome.has_run and not outcome.is_odd and outcome.passed == scenario.keep
    )
    if not used:
        return HiddenScenarios()
    names = {path for path in bundle.files if any(path in scenario.run for scenario in used)}
    used_files = {path: content for path, content in bundle.files.items() if path in names}
    return source.store(ScenarioBundle(scenarios=used, files=used_files, salt=bundle.salt))


def add_drafts(
    use: Runs,
    source: "ScenarioStore",
    drafts: HiddenScenarios,
    beginning: InitialState,
    delivered: str,
    result: ScenarioResult,
) -> tuple[ScenarioResult, tuple[int, ...]]:
    """Run the drafted scenarios on the delivered tree, and add their outcomes to a result.

    Return the result and the numbers of the drafts that failed. Withdrawn drafts are not run. If the drafts
    are not on this host, because the episode has moved here, they are all withdrawn.
    """
    bundle = source.find(drafts.digest) if len(drafts.withdrawn) < drafts.count else None
    if bundle is None:
        missing = drafts.withdraw("not on this host")
        return result.with_drafts(missing, ()), ()
    numbers = [number for number in range(drafts.count) if number not in drafts.withdrawn]
    chosen = bundle.evolve(scenarios=tuple(bundle.scenarios[number] for number in numbers))
    files = LockedTrees(use.tree).files(delivered)
    outcomes = _run(use, chosen, files, use.compare_untracked(beginning, files))
    failed = {number: outcome for number, outcome in zip(numbers, outcomes, strict=True) if not outcome.passed}
    source.store_answers(drafts.digest, {number: outcome.printed for number, outcome in failed.items()})
    pairs = zip(chosen.scenarios, (outcome.passed for outcome in outcomes), strict=True)
    return result.with_drafts(drafts, pairs), tuple(failed)


def _run(
    use: Runs, bundle: ScenarioBundle, files: Files, moved: UntrackedChanges, odd: Sequence[int] = ()
) -> list[_Outcome]:
    # The same for all of them: names are hidden, and so is the time that each scenario takes.
    work = Work(what="hidden scenarios", since=datetime.now(UTC), limit_s=bundle.commitment.limit_s, ends_early=True)
    outcomes = []
    for number, scenario in enumerate(bundle.scenarios):
        # A folder for each, so that code under test cannot pass on to the next scenario what it found in this one.
        with use.checkouts.proof_folder(use.tree.root) as room:
            try:
                view = room.checkout(LockedTrees(use.tree), files, moved)
                assert view.content is not None
                write_over(view.content, bundle.file_contents)
            except OSError as error:
                # Not the path, which may be that of a hidden file.
                reason = os.strerror(error.errno or 0)
                raise WorkspaceError(
                    f"cannot write the hidden scenarios to a fresh checkout of the project: {reason}"
                ) from None
            alone = replace(view, network=False, shared_folders=False)
            ran, observation = use.run_unrecorded(scenario.command, room, alone, work)
        outcomes.append(_judge(scenario, ran, observation, is_odd=number in odd))
    return outcomes


def _judge(scenario: Scenario, ran: CommandResult, observation: Observation, *, is_odd: bool) -> _Outcome:
    now = datetime.now(UTC)
    output = ran.output.decode("utf-8", "replace")
    passed = ran.exit_code == 0 and scenario.accepts_output(output)
    status = CheckStatus.PASSED if passed else CheckStatus.FAILED
    check = CheckRun(name="", run=scenario.run, status=status, reports=observation.reports)
    run = ProofRun(tests=TestsFrom.DELIVERED, checks=(check,), started=now, ended=now)
    # Exit status 0 alone says little: code under test may end the program before it tests anything.
    findings = findings_of([ObservedRun(run, (observation,))], InitialState(tree=""), Changes())
    accepted = _ODD if is_odd else frozenset[ProofRule]()
    missing = set(known_checkers(scenario.run)) - set(observation.checkers)
    return _Outcome(
        passed=passed and all(finding.rule in accepted for finding in findings),
        is_odd=bool(observation.cut_short or missing),
        has_run=ran.exit_code == 0,
        printed=shorten(last_line(output), PRINTS_CHARACTERS),
    )
