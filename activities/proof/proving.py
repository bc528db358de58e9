"""Proof of a tree, based on its subject, the runs of the checks and the differences from the initial tree."""

import hashlib
import json
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import chain
from typing import NamedTuple

from activities.artifacts.port import ArtifactStore, find_model, get_model, put_model
from activities.proof.difference import Difference
from activities.proof.port import LockedTrees, ProveResult, UntrackedChanges
from activities.proof.runs import Runs, Variants
from activities.workspace.scope import EpisodeScope
from tightloop.episode.check import Check, ProofRule
from tightloop.episode.model import EpisodeRequest
from tightloop.episode.proof import (
    FILES_LIMIT,
    ChangedFile,
    FileChange,
    FileKind,
    Proof,
    ProofVerdict,
    TestsFrom,
)
from tightloop.episode.proof.kept_tests import KeptTests
from tightloop.episode.proof.report import InitialState
from tightloop.episode.proof.verdict import (
    NO_TESTS,
    Changes,
    ObservedRun,
    checks_without_tests,
    evidence_lines,
    findings_of,
    is_kept,
    not_held,
    verdict_of,
    with_acceptance,
)
from tightloop.episode.proof.weakening import find_suppressions, find_weakening
from tightloop.plan.document import StoredPlan
from tightloop.run.core import Evidence
from tightloop.run.outcome import Facts, doubts
from tightloop.run.question import EVIDENCE_LINES
from tightloop.safety.announcement import RequestedChanges, find_requested_changes
from tightloop.safety.approval import Approval
from tightloop.value import ArtifactRef, shorten
from tightloop.value.scrub import scrub


class Subject(NamedTuple):
    """A definition of done, with the title and goal of the work."""

    title: str
    goal: str
    """Goal, which may announce test changes. Written only by people."""
    checks: tuple[Check, ...]


def subject_of(store: ArtifactStore, scope: EpisodeScope, plan: ArtifactRef | None, goal: str = "") -> Subject:
    """Return the subject of a proof. This is the plan or, without a plan, the scope's episode.

    Raises:
        ArtifactMissingError: the store does not contain it. Not retryable.
    """
    if plan is None:
        episode = get_model(store, scope.stored_request, EpisodeRequest)
        return Subject(episode.goal, episode.goal, episode.definition_of_done)
    stored = get_model(store, plan, StoredPlan)
    texts, revision = [goal, stored.words], stored
    # People announced changes of tests in earlier revisions too.
    while (earlier := find_model(store, revision.previous, StoredPlan)) is not None:
        texts.append(earlier.words)
        revision = earlier
    title = stored.plan.title or goal or stored.plan.id
    return Subject(title, "\n".join(filter(None, texts)), stored.plan.definition_of_done)


GOAL_CHARACTERS = 2_000
LINE_CHARACTERS = 200


def store_proof(store: ArtifactStore, proof: Proof) -> ProveResult:
    """Store a proof and return its summary for Temporal."""
    findings = list(proof.open_findings)
    title = ""
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        title = f"the checks pass, but the proof has a finding ({findings[0].rule.value}): {findings[0].text}{more}"
    # The first line is the title.
    lines = [*evidence_lines(proof)[1:], *(f"changed: {file.change.value} {file.path}" for file in proof.changed)]
    is_hidden = all(finding.rule is ProofRule.SCENARIOS_FAILED for finding in findings)
    evidence = tuple(shorten(scrub(line), LINE_CHARACTERS) for line in lines[:EVIDENCE_LINES])
    return ProveResult(
        proof=put_model(store, proof, name="proof"),
        verdict=proof.verdict,
        facts=proof.evidence,
        title=title,
        evidence=evidence,
        only_scenarios=bool(findings) and is_hidden,
    )


def prove_tree(
    use: Runs,
    subject: Subject,
    *,
    workflow_id: str,
    delivered: str,
    beginning: InitialState | None,
    allowed: tuple[ProofRule, ...] = (),
    approvals: tuple[Approval, ...] = (),
    earlier: Proof | None = None,
    evidence: Evidence = Evidence(),
) -> Proof:
    """Prove a locked tree on disk. The proof `earlier` is reused if its inputs are identical.

    The number of changed files is added to `evidence`. So are the answers in `approvals` that affect the
    result.

    Raises:
        CancelledError: the activity was cancelled in the meantime.
    """
    started = datetime.now(UTC)
    beginning = beginning or InitialState(tree=delivered, root=str(use.tree.root))
    checks, commands = subject.checks, [check.run for check in subject.checks]
    change = Difference(LockedTrees(use.tree), beginning.tree, delivered, subject.goal, commands)
    moved = use.compare_untracked(beginning, change.after)
    manifest = beginning.ignored.sha256 if beginning.ignored else ""
    beside_digest = hashlib.sha256(json.dumps([manifest, *moved]).encode()).hexdigest()
    same = earlier is not None and (earlier.base_tree, earlier.beside) == (beginning.tree, beside_digest)
    # A guarded change needs a second run with the original tests, which the earlier proof may lack.
    if earlier is not None and same and not change.guarded and earlier.proves(checks, delivered):
        return earlier.evolve(episode_id=workflow_id, goal=shorten(subject.title, GOAL_CHARACTERS))
    requested = find_requested_changes(subject.goal)
    if ProofRule.TESTS_CHANGED in allowed:
        requested = requested._replace(everything=True, files=(*requested.files, "conftest.py"))
    measured, changes = _measure(use, checks, change, moved, beginning, requested, change.answered(approvals))
    asked = (approval for approval in approvals if approval.asked and change.contains(approval))
    evidence = evidence.evolve(files_changed=change.count, asked=tuple(approval.sentence for approval in asked))
    without_tests = checks_without_tests(measured[-1], beginning, changes)
    if without_tests and len(without_tests) == len(checks):
        measured.pop()
    findings = findings_of(measured, beginning, changes, allowed)
    verdict = verdict_of(findings, proves=not doubts(Facts(**dict(evidence))))
    if verdict is ProofVerdict.ACCEPTED:
        evidence = with_acceptance(evidence, findings)
    return Proof(
        episode_id=workflow_id,
        goal=shorten(subject.title, GOAL_CHARACTERS),
        base_tree=beginning.tree,
        delivered_tree=delivered,
        beside=beside_digest,
        runs=tuple(measurement.run for measurement in measured),
        changed=change.guarded[:FILES_LIMIT],
        changed_count=len(change.guarded),
        announced=changes.covered[:FILES_LIMIT],
        configuration=change.configuration(),
        evidence=evidence,
        verdict=verdict,
        accepted_by=evidence.accepted_by,
        findings=tuple(
            finding.evolve(evidence=tuple(shorten(scrub(line), LINE_CHARACTERS) for line in finding.evidence))
            for finding in findings
        ),
        not_held=(
            *not_held(measured, beginning, moved.left_out, checks),
            *(f"{shorten(run, 100)}: {NO_TESTS}" for run in without_tests),
        ),
        started=started,
        ended=datetime.now(UTC),
    )


def _measure(
    use: Runs,
    checks: tuple[Check, ...],
    change: Difference,
    moved: UntrackedChanges,
    beginning: InitialState,
    requested: RequestedChanges,
    answered: Mapping[str, Approval],
) -> tuple[list[ObservedRun], Changes]:
    """Run the checks on the delivered tree, on the tree with the original tests, and on variants of the tree."""
    commands = [check.run for check in checks]
    # All checkouts stay until the end: file systems are slow at creating many files right after many deletions (ext4:
    # 25 to 900 ms for 3 000).
    with ExitStack() as rooms:
        measured = [use.run_in_checkout(rooms, checks, TestsFrom.DELIVERED, change.after, moved, beginning)]
        change.observe((check.observation for check in beginning.checks), measured[0].observations)
        guarded = tuple(file for file in change.guarded if not is_kept(file, commands))
        tests = change.compare_tests(requested, beginning)
        moved_files = tuple(file for file in guarded if file.path not in tests.kept)
        unannounced = tuple(file for file in moved_files if not _is_announced(file, requested, tests))
        open_files = tuple(file for file in unannounced if file.path not in answered)
        # If everything was announced or answered, the second run is only evidence; otherwise it covers the rest.
        if restored := open_files or moved_files:
            # Changed tests may need the new configuration. It is also sufficient if the checks pass with more of the
            # original files: with all except the announced test data, which may contain what the goal asks for, or with
            # all.
            but_data = tuple(file for file in guarded if file in restored or file.kind is not FileKind.TEST_DATA)
            runs = (
                use.run_in_checkout(rooms, checks, TestsFrom.BEGINNING, change.add_earlier(files), moved, beginning)
                for files in {len(files): files for files in (restored, but_data, guarded)}.values()
            )
            second = next(runs)
            holding = (run for run in chain((second,), runs) if _holds(run, beginning, change.inspections()))
            measured.append(next(holding, second))
        before, after = change.source_texts()
        variants = Variants(use, rooms, change, moved, beginning, measured[0], tests)
        suppressed = variants.find_needed_suppressions(find_suppressions(before, after, change.after))
        empty, unrepeatable = variants.find_empty_tests(), variants.find_unrepeatable_tests()
    weakening = find_weakening(before, after)
    installed = tuple(f"{file.change.value} {file.path}" for file in guarded if file.kind is FileKind.ENVIRONMENT)
    changes = Changes(
        restored=restored,
        unannounced=tuple(file.path for file in restored if file in unannounced),
        covered=tuple(file.path for file in moved_files if file not in open_files),
        requested=requested,
        tests=tests,
        environment=(*moved.changed, *installed),
        suspicious=(*change.suspicious(), *weakening.operators),
        swallowed=weakening.swallowed,
        broken=weakening.broken,
        suppressed=suppressed,
        copied=use.checkouts.find_copies(
            use.tree.root, beginning.later_commits, moved.environments, change.delivered_files()
        ),
        empty_tests=empty,
        unrepeatable=unrepeatable,
        left_out=moved.left_out,
        sources=change.sources,
        answered=answered,
        inspections=change.inspections(),
        named_tests=change.named_tests(requested),
    )
    return measured, changes


def _holds(run: ObservedRun, beginning: InitialState, inspections: Collection[str]) -> bool:
    """Return whether all checks passed. Inspections that already failed at the start are ignored.

    An inspection may look for the text of a new test, which the original tests do not contain.
    """
    return all(
        check.passed or (check.run in inspections and (before := beginning.check(check.run)) and not before.passed)
        for check in run.run.checks
    )


def _is_announced(file: ChangedFile, announcement: RequestedChanges, tests: KeptTests) -> bool:
    if file.path in tests.announced:
        return True
    if file.kind is FileKind.ENVIRONMENT:
        return False
    named = announcement._replace(everything=announcement.everything and file.path not in tests.contested)
    is_test, is_new = file.kind in (FileKind.TEST, FileKind.TEST_DATA), file.change is FileChange.ADDED
    return named.covers(file.path, is_test=is_test, is_new=is_new)
