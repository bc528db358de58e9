"""Runs hidden scenarios for a proof. Nothing of a run is kept or shown except whether the scenario passed."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from activities.proof import untracked
from activities.proof.port import Files, LockedTrees, ScenarioSource, UntrackedChanges
from activities.proof.runs import Runs
from tightloop.episode.check import Check, CheckStatus, ProofRule
from tightloop.episode.proof import CheckRun, ProofRun, TestsFrom
from tightloop.episode.proof.report import InitialState, Observation
from tightloop.episode.proof.verdict import Changes, ObservedRun, findings_of, known_checkers
from tightloop.episode.scenarios import (
    HiddenScenarios,
    ScenarioBaseline,
    ScenarioBundle,
    ScenarioResult,
    seen_before,
)
from tightloop.errors import WorkspaceError
from tightloop.host.access import write_over
from tightloop.run.core import Work

_ODD = frozenset({ProofRule.NO_REPORT, ProofRule.ENDED_EARLY})


class _Outcome(NamedTuple):
    passed: bool
    is_odd: bool
    """See `ScenarioBaseline.odd`."""


def baseline_of(use: Runs, source: ScenarioSource, hidden: HiddenScenarios, tree: str) -> ScenarioBaseline:
    """Run the scenarios on the initial tree.

    Raises:
        CancelledError: the activity was cancelled meanwhile.
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
    """Run the scenarios on the delivered tree. Raises as `baseline_of` does."""
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
                raise WorkspaceError(f"the hidden scenarios could not be written to a checkout: {reason}") from None
            alone = replace(view, network=False, shared_folders=False)
            passed, observation = use.run_unrecorded(scenario, room, alone, work)
        outcomes.append(_judge(scenario, passed, observation, is_odd=number in odd))
    return outcomes


def _judge(scenario: Check, passed: bool, observation: Observation, *, is_odd: bool) -> _Outcome:
    now = datetime.now(UTC)
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
    )
