"""Requests to the proof activities, their results, and access to trees."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from activities.checks.activity import CheckView
from activities.workspace.scope import EpisodeScope
from tightloop.episode.check import Check, ProofRule, Verification
from tightloop.episode.proof import ProofVerdict, Review
from tightloop.episode.proof.report import Observation
from tightloop.episode.scenarios import HiddenScenarios, ScenarioBundle
from tightloop.executor.model import Usage
from tightloop.run.core import Evidence
from tightloop.safety.approval import Approval, ShownChange
from tightloop.safety.drift import Drift
from tightloop.value import ArtifactRef, Value

if TYPE_CHECKING:
    from activities.workspace.working_tree import CheckedTree


class TreeFile(NamedTuple):
    """A file or symlink in a tree."""

    mode: int
    """File mode as in git, which is 0o100644, 0o100755 or 0o120000."""
    blob: str


Files = Mapping[str, TreeFile]
"""A tree's files by path. Bytes that are not valid UTF-8 become surrogate escapes."""


class LockedTrees:
    """Reads trees and file contents through a locked working tree."""

    def __init__(self, tree: "CheckedTree") -> None:
        self._tree = tree

    def files(self, tree: str) -> dict[str, TreeFile]:
        """Return all files in a tree.

        Raises:
            WorkspaceError: the repository does not contain the tree.
        """
        entries = self._tree.entries(tree).items()
        return {os.fsdecode(path): TreeFile(entry.mode, entry.id) for path, entry in entries}

    def read(self, blobs: Iterable[str], most_bytes: int | None = None) -> dict[str, bytes]:
        """Return the contents of files by blob id. Contents larger than `most_bytes` are skipped."""
        selected = (blob for blob in dict.fromkeys(blobs) if most_bytes is None or self._tree.size(blob) <= most_bytes)
        return {blob: self._tree.content(blob) for blob in selected}

    def pieces(self, blob: str) -> Iterator[bytes]:
        """Yield the content of a file in chunks."""
        return self._tree.pieces(blob)


class DeliveredFile(NamedTuple):
    """A changed file, with its content after the work."""

    blob: str
    content: bytes
    before: bytes = b""
    """Initial content of the file. Empty if the file is new."""


class UntrackedChanges(NamedTuple):
    """The changes to untracked files since the start."""

    environments: tuple[str, ...] = ()
    """Folders of installed programs and libraries that existed initially."""
    changed: tuple[str, ...] = ()
    """Changes in these folders, one line each."""
    hidden: tuple[str, ...] = ()
    """Caches in these folders that have been written since the start. Checks must not see them."""
    unchanged: tuple[str, ...] = ()
    """Unchanged files in other folders."""
    left_out: tuple[str, ...] = ()
    """New or changed files and folders, excluding caches."""


class ScenarioSource(Protocol):
    """Hidden scenarios on this host."""

    def load(self, commitment: HiddenScenarios) -> ScenarioBundle:
        """Load the scenarios that a commitment refers to.

        Raises:
            InvalidRequestError: this host does not have the scenarios. Not retryable.
            ArtifactCorruptError: the stored scenarios do not match the commitment. Not retryable.
        """
        ...

    def find(self, digest: str) -> ScenarioBundle | None:
        """Return the scenarios of an earlier commitment, or None if this host no longer has them."""
        ...


class ObservedCheck(NamedTuple):
    """A check with its observers."""

    check: Check
    view: CheckView
    observation: Callable[[], Observation]
    """Returns the observation. Call it once after the run, whether it succeeded or not."""


class FindChecksRequest(Value):
    """A request to derive the definition of done from the project's files."""

    scope: EpisodeScope
    expected_tree: str


class FoundDefinition(Value):
    """A definition of done that was derived from the project's files."""

    request: ArtifactRef
    """Stored request of the episode with these checks."""
    checks: tuple[Check, ...]
    """Checks of the definition of done. Empty if no check of the project can run here."""
    sentences: tuple[str, ...] = ()
    """Explanation for people, as in `ChosenChecks`."""
    first_runs: ArtifactRef | None = None
    """Trial runs of these checks, which the baseline uses."""
    drift: Drift | None = None
    attempt: int = 1


class BeginRequest(Value):
    """A request for a baseline before the first plan of an episode or the first step of a plan."""

    scope: EpisodeScope
    expected_tree: str
    plan: ArtifactRef | None = None
    """Stored plan with the definition of done. If None, the definition comes from the episode's request."""
    base_tree: str = ""
    """Initial tree of the work, if it began before the definition of done existed. In that case, no checks run."""
    inherited: ArtifactRef | None = None
    """Baseline of the episode from which this one was forked. Its tests count as the original ones."""
    scenarios: HiddenScenarios | None = None
    drafts: HiddenScenarios | None = None
    """Drafted scenarios that have not been tried yet."""
    compare_with: ArtifactRef | None = None
    """Previous report."""
    first_runs: ArtifactRef | None = None
    """Trial runs of the checks found in the project, on this tree."""


class BeginResult(Value):
    """The check results and the stored baseline."""

    verification: Verification
    beginning: ArtifactRef
    scenario_failed: bool = False
    """True if a hidden scenario failed on the initial tree, which counts as a check that was seen to fail."""
    drafts: HiddenScenarios | None = None
    """Drafted scenarios that count. None if none were given."""


class ProveRequest(Value):
    """A request to prove a tree that has passed all checks."""

    scope: EpisodeScope
    expected_tree: str
    beginning: ArtifactRef | None = None
    plan: ArtifactRef | None = None
    """Stored plan; see `BeginRequest`."""
    goal: str = ""
    """A person's request, in case the plan does not contain it."""
    allow: tuple[ProofRule, ...] = ()
    """Proof findings to accept without asking."""
    approvals: tuple[Approval, ...] = ()
    """People's answers about changes so far."""
    earlier: ArtifactRef | None = None
    """Earlier proof that may be reused, from a nested episode."""
    failed_before: tuple[str, ...] = ()
    """Keys of the checks that have failed in this run, other than at random."""
    worked: bool = True
    """True if an executor, or a step of a plan, changed a file."""
    flaky: tuple[str, ...] = ()
    """Checks that failed once and passed when they were repeated without a change."""
    scenarios: HiddenScenarios | None = None
    drafts: HiddenScenarios | None = None


class ProveResult(Value):
    """A stored proof, and the findings that a person has to answer."""

    proof: ArtifactRef
    verdict: ProofVerdict
    facts: Evidence = Evidence.model_construct()
    title: str = ""
    """Sentence that describes the first finding. Empty if there are no findings."""
    evidence: tuple[str, ...] = ()
    """Evidence, with at most as many lines as a question can have."""
    change: ShownChange | None = None
    """Change to which the open findings refer. It names no files if a finding refers to something else."""
    only_scenarios: bool = False
    """True if failed hidden scenarios are the only reason for doubt."""
    failed_drafts: tuple[int, ...] = ()
    """Numbers of the failed drafted scenarios, starting at 0. Empty if there is another reason for doubt."""
    drift: Drift | None = None
    attempt: int = 1


class ReviewRequest(Value):
    """A request for a model to review a proven change. The proof must have no open findings."""

    scope: EpisodeScope
    proof: ArtifactRef
    allow: tuple[ProofRule, ...] = ()
    """Proof findings to accept without asking."""
    approvals: tuple[Approval, ...] = ()
    """People's answers about changes so far."""
    earlier: ArtifactRef | None = None
    """Latest proof with a review. It is reused if it refers to the same work."""


class ReviewResult(Value):
    """A stored proof with a review, or the reason why there is no review."""

    proved: ProveResult | None = None
    line: str = ""
    """Sentence for the timeline. Empty if an earlier review was reused."""
    usage: Usage | None = None
    attempt: int = 1


class ReviewAnswer(NamedTuple):
    """A model's review, or the reason why the model did not give a usable answer."""

    review: Review | None
    reason: str = ""
    usage: Usage | None = None
    transcript: bytes = b""


class AcceptRequest(Value):
    """A request to record a person's answer to the findings of a proof."""

    scope: EpisodeScope
    proof: ArtifactRef
    by: str = "operator"
    asked_for: Approval | None = None
    """Set if the person asked for the change. Otherwise they accept the tree even though the findings stand."""


class AcceptResult(Value):
    """A stored proof with a person's answer."""

    proof: ArtifactRef
    facts: Evidence
