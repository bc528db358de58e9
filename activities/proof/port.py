"""Requests and values of the proof, and trees that are read for it."""

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
    """A file or a link of a tree."""

    mode: int
    """As in git: 0o100644, 0o100755 or 0o120000."""
    blob: str


Files = Mapping[str, TreeFile]
"""A tree by path; bytes that are not UTF-8 are surrogate escapes."""


class HeldTrees:
    """Reads trees and contents by the working tree that is held."""

    def __init__(self, tree: WorkingTree) -> None:
        self._tree = tree

    def files(self, tree: str) -> dict[str, TreeFile]:
        """Return all files of a tree.

        Raises:
            WorkspaceError: the repository does not hold it.
        """
        found = self._tree.entries(tree).items()
        return {os.fsdecode(path): TreeFile(entry.mode, entry.id) for path, entry in found}

    def read(self, blobs: Iterable[str], most_bytes: int | None = None) -> dict[str, bytes]:
        """Return contents by id; larger ones than `most_bytes` are left out."""
        wanted = (blob for blob in dict.fromkeys(blobs) if most_bytes is None or self._tree.size(blob) <= most_bytes)
        return {blob: self._tree.content(blob) for blob in wanted}

    def pieces(self, blob: str) -> Iterator[bytes]:
        """Yield the content of a file, a large one in pieces."""
        return self._tree.pieces(blob)


class Moved(NamedTuple):
    """What lies beside the tree, compared with the beginning."""

    environments: tuple[str, ...] = ()
    """Folders of installed programs and libraries that were there."""
    changed: tuple[str, ...] = ()
    """What changed in these, a line each."""
    hidden: tuple[str, ...] = ()
    """Folders in these with caches that were written since: a check must not see them."""
    unchanged: tuple[str, ...] = ()
    """Other files that are as they were."""
    left_out: tuple[str, ...] = ()
    """Files and folders that are new or changed, without caches."""


class Watched(NamedTuple):
    """How a check has to be run so that it is seen what its checkers do."""

    check: Check
    view: CheckView
    observation: Callable[[], Observation]
    """To be called after the run."""


class BeginRequest(Value):
    """The tree before the first plan of an episode, or before the first step of a plan."""

    scope: EpisodeScope
    expected_tree: str
    plan: ArtifactRef | None = None
    """The stored plan that has the definition of done; None: the request of the episode has it."""
    base_tree: str = ""
    """Set where the definition of done came later than the work: the tree that this began with. No check is run."""
    inherited: ArtifactRef | None = None
    """The beginning of the episode that this one was forked from: its tests count."""
    compare_with: ArtifactRef | None = None
    """The report before this one."""


class Begun(Value):
    """What the checks say, and what is kept to compare with."""

    verification: Verification
    beginning: ArtifactRef


class ProveRequest(Value):
    """A tree on which all checks passed."""

    scope: EpisodeScope
    expected_tree: str
    beginning: ArtifactRef | None = None
    plan: ArtifactRef | None = None
    """As in `BeginRequest`."""
    goal: str = ""
    """What a person asked for, where the plan does not say it."""
    allow: tuple[ProofRule, ...] = ()
    """What may speak against the proof without a question."""
    earlier: ArtifactRef | None = None
    """A proof that may say the same already: of an episode within the plan."""


class Proved(Value):
    """A stored proof, and what a person has to know of it."""

    proof: ArtifactRef
    verdict: ProofVerdict
    title: str = ""
    """What speaks against it, in a sentence; empty where nothing does."""
    evidence: tuple[str, ...] = ()
    """At most as many lines as a question has."""
    drift: Drift | None = None
    attempt: int = 1


class AcceptRequest(Value):
    """A person's word on a doubted proof."""

    scope: EpisodeScope
    proof: ArtifactRef
    by: str = "operator"
