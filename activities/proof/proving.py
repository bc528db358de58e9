"""The proof of a tree: what changed, the definition of done in fresh checkouts, and what speaks against it."""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from activities.artifacts.port import ArtifactStore, put_model
from activities.proof.difference import Difference
from activities.proof.port import Moved, TreeFile
from activities.proof.requests import Proved
from activities.proof.runs import Runs
from activities.proof.subject import Subject
from activities.proof.trees import HeldTrees
from tightloop.episode.proof import ChangedFile, FileKind, Proof, ProofFinding, ProofRule, TestsFrom
from tightloop.episode.proof.beginning import Beginning
from tightloop.episode.proof.files import announcement_of
from tightloop.episode.proof.limits import NO_TESTS, not_held
from tightloop.episode.proof.model import FILES_LIMIT
from tightloop.episode.proof.verdict import (
    Changes,
    Measured,
    evidence_lines,
    findings_of,
    had_no_tests,
    is_kept,
    verdict_of,
)
from tightloop.question import EVIDENCE_LINES
from tightloop.value import shorten
from tightloop.value.scrub import scrub

GOAL_CHARACTERS = 2_000
LINE_CHARACTERS = 200


def proved(store: ArtifactStore, proof: Proof) -> Proved:
    """Store a proof and return what of it travels through Temporal."""
    found = list(proof.open_findings)
    title = ""
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        title = f"the checks are green, but: {found[0].text}{more}"
    lines = [*evidence_lines(proof), *(f"changed: {file.change.value} {file.path}" for file in proof.changed)]
    shown = tuple(shorten(scrub(line), LINE_CHARACTERS) for line in lines[:EVIDENCE_LINES])
    return Proved(proof=put_model(store, proof, name="proof"), verdict=proof.verdict, title=title, evidence=shown)


def prove_tree(
    use: Runs,
    subject: Subject,
    *,
    workflow_id: str,
    delivered: str,
    beginning: Beginning | None,
    allowed: tuple[ProofRule, ...] = (),
    earlier: Proof | None = None,
) -> Proof:
    """Return the proof of a tree that is on disk and held; `earlier` is taken where it says exactly the same.

    Raises:
        CancelledError: the activity was cancelled meanwhile.
    """
    started = datetime.now(UTC)
    beginning = beginning or Beginning(tree=delivered, root=str(use.tree.root))
    checks, commands = subject.checks, [check.run for check in subject.checks]
    change = Difference(HeldTrees(use.tree), beginning.tree, delivered, subject.goal, commands)
    announcement = announcement_of(subject.goal)
    if ProofRule.TESTS_CHANGED in allowed:
        announcement = announcement._replace(everything=True, files=(*announcement.files, "conftest.py"))
    moved = _moved(use, beginning, change.after)
    beside = _digest(beginning, moved)
    same = earlier is not None and (earlier.base_tree, earlier.beside) == (beginning.tree, beside)
    if earlier is not None and same and not change.guarded and earlier.proves(checks, delivered):
        return earlier.evolve(episode_id=workflow_id, goal=shorten(subject.title, GOAL_CHARACTERS))
    own = tuple(file for file in change.guarded if not is_kept(file, commands))
    asked = tuple(file for file in own if not announcement.covers(file))
    # Where everything was announced, the second run is evidence; otherwise it is about what was not.
    restored = asked or own
    installed = tuple(f"{file.change.value} {file.path}" for file in own if file.kind is FileKind.ENVIRONMENT)
    changes = Changes(
        restored=restored,
        environment=(*moved.changed, *installed),
        suspicious=change.suspicious(),
        left_out=moved.left_out,
    )
    measured = _measured(use, subject, change, moved, beginning, restored)
    without_tests = [one for one in measured if had_no_tests(one, beginning, changes)]
    measured = [one for one in measured if one not in without_tests]
    findings = findings_of(measured, beginning, changes, announcement, allowed)
    return Proof(
        episode_id=workflow_id,
        goal=shorten(subject.title, GOAL_CHARACTERS),
        base_tree=beginning.tree,
        delivered_tree=delivered,
        beside=beside,
        runs=tuple(one.run for one in measured),
        changed=change.guarded[:FILES_LIMIT],
        changed_count=len(change.guarded),
        configuration=change.configuration(),
        verdict=verdict_of(findings),
        findings=tuple(_scrubbed(findings)),
        not_held=(*not_held(measured, beginning, moved.left_out, checks), *(NO_TESTS for _ in without_tests)),
        started=started,
        ended=datetime.now(UTC),
    )


def _measured(
    use: Runs,
    subject: Subject,
    change: Difference,
    moved: Moved,
    beginning: Beginning,
    restored: tuple[ChangedFile, ...],
) -> list[Measured]:
    """Run the checks with the tests as delivered, and once more with `restored` as at the beginning, if that is any."""
    # Both stay until the end: a file system is slow to make many files where many were just removed (ext4: 25 to 900 ms
    # for 3 000).
    with contextlib.ExitStack() as rooms:
        measured = [use.in_checkout(rooms, subject.checks, TestsFrom.DELIVERED, change.after, moved, beginning)]
        if restored:
            old_tests = change.with_earlier(restored)
            measured.append(use.in_checkout(rooms, subject.checks, TestsFrom.BEGINNING, old_tests, moved, beginning))
    return measured


def _scrubbed(findings: Iterable[ProofFinding]) -> Iterator[ProofFinding]:
    for finding in findings:
        yield finding.evolve(evidence=tuple(shorten(scrub(line), LINE_CHARACTERS) for line in finding.evidence))


def _moved(use: Runs, beginning: Beginning, delivered: Mapping[str, TreeFile]) -> Moved:
    if beginning.ignored is None or beginning.root != str(use.tree.root):
        return Moved()
    return use.bench.compare(use.tree.root, use.store.get(beginning.ignored), delivered)


def _digest(beginning: Beginning, moved: Moved) -> str:
    """Return a digest of what lay beside the tree at the beginning, and of what became of it."""
    manifest = beginning.ignored.sha256 if beginning.ignored else ""
    return hashlib.sha256(json.dumps([manifest, *moved]).encode()).hexdigest()
