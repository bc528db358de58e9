"""Requests and results of the proof, and access to trees."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from activities.checks.activity import CheckView
from activities.workspace.port import WorkingTree
from activities.workspace.scope import EpisodeScope
from tightloop.episode.check import Check, ProofRule, Verification
from tightloop.episode.proof import ProofVerdict
from tightloop.episode.proof.report import Observation
from tightloop.safety.drift import Drift
from tightloop.value import ArtifactRef, Value


class TreeFile(NamedTuple):
    """A file or symlink of a tree."""

    mode: int
    """As in git: 0o100644, 0o100755 or 0o120000."""
    blob: str


Files = Mapping[str, TreeFile]
"""A tree by path; bytes that are not UTF-8 are surrogate escapes."""


class LockedTrees:
    """Reads trees and contents through a locked working tree."""

    def __init__(self, tree: WorkingTree) -> None:
        self._tree = tree

    def files(self, tree: str) -> dict[str, TreeFile]:
        """Return all files of a tree.

        Raises:
            WorkspaceError: the repository does not contain it.
        """
        entries = self._tree.entries(tree).items()
        return {os.fsdecode(path): TreeFile(entry.mode, entry.id) for path, entry in entries}

    def read(self, blobs: Iterable[str], most_bytes: int | None = None) -> dict[str, bytes]:
        """Return contents by id, skipping those larger than `most_bytes`."""
        selected = (blob for blob in dict.fromkeys(blobs) if most_bytes is None or self._tree.size(blob) <= most_bytes)
        return {blob: self._tree.content(blob) for blob in selected}

    def pieces(self, blob: str) -> Iterator[bytes]:
        """Yield the content of a file in chunks."""
        return self._tree.pieces(blob)


class UntrackedChanges(NamedTuple):
    """Untracked files compared with the initial state."""

    environments: tuple[str, ...] = ()
    """Initial folders of installed programs and libraries."""
    changed: tuple[str, ...] = ()
    """Changes in these folders, one line each."""
    hidden: tuple[str, ...] = ()
    """Cache folders in these that were written since; checks must not see them."""
    unchanged: tuple[str, ...] = ()
    """Unchanged files elsewhere."""
    left_out: tuple[str, ...] = ()
    """New or changed files and folders, without caches."""


class ObservedCheck(NamedTuple):
    """A check with its observers."""

    check: Check
    view: CheckView
    observation: Callable[[], Observation]
    """Call it after the run."""


class BeginRequest(Value):
    """Request for a baseline before the first plan of an episode, or the first step of a plan."""

    scope: EpisodeScope
    expected_tree: str
    plan: ArtifactRef | None = None
    """Stored plan with the definition of done; None: taken from the episode's request."""
    base_tree: str = ""
    """Initial tree of the work, if it began before the definition of done existed. Then no check runs."""
    inherited: ArtifactRef | None = None
    """Baseline of the episode that this one was forked from, whose tests count."""
    compare_with: ArtifactRef | None = None
    """Previous report."""


class BeginResult(Value):
    """Check results, and the stored baseline."""

    verification: Verification
    beginning: ArtifactRef


class ProveRequest(Value):
    """Request to prove a tree on which all checks passed."""

    scope: EpisodeScope
    expected_tree: str
    beginning: ArtifactRef | None = None
    plan: ArtifactRef | None = None
    """As in `BeginRequest`."""
    goal: str = ""
    """A person's request, if the plan does not contain it."""
    allow: tuple[ProofRule, ...] = ()
    """Proof findings to accept without asking."""
    earlier: ArtifactRef | None = None
    """Earlier proof that may be reused: of an episode within the plan."""


class ProveResult(Value):
    """Stored proof, with its findings for a person."""

    proof: ArtifactRef
    verdict: ProofVerdict
    title: str = ""
    """Sentence about the first finding; empty if there is none."""
    evidence: tuple[str, ...] = ()
    """At most as many lines as a question has."""
    drift: Drift | None = None
    attempt: int = 1


class AcceptRequest(Value):
    """Request to accept a doubtful proof."""

    scope: EpisodeScope
    proof: ArtifactRef
    by: str = "operator"
