"""Results of plans and of their children."""

import hashlib
import re
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from tightloop.executor.model import Usage
from tightloop.plan.failing import FailureClass, Recovery
from tightloop.run.question import Answer, Question
from tightloop.safety.drift import Drift
from tightloop.value import ArtifactRef, Sparse, Value

# A history holds thousands of results, and Temporal terminates it at 50 MB.
REASON_CHARACTERS = 500
"""Maximum length of a failure reason in the history. The record contains the full text."""


class StepStatus(StrEnum):
    """Status of a step."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    """The step is waiting for a person."""
    COMPLETED = "completed"
    SKIPPED = "skipped"
    FAILED = "failed"
    RECOVERED = "recovered"
    """The step failed, and its alternate completed the work."""
    BLOCKED = "blocked"
    """A step that this step needs has failed or is blocked."""
    COMPENSATED = "compensated"
    """The step completed and was rolled back."""
    ABANDONED = "abandoned"
    """The step never ran because the plan ended or was changed."""


class StepFailure(Value):
    """Failure of an attempt. Failed steps are represented as data, not as exceptions."""

    failure_class: FailureClass
    reason: str
    """Scrubbed failure reason, at most `REASON_CHARACTERS` long."""
    mode: str = ""
    """Name of the failure mode that matched, or "" if none matched."""
    recover: Recovery | None = None
    """Recovery that the failure mode requests."""
    retry_after_s: float | None = None
    """Delay in seconds that the service requested before the next attempt."""


class EvidenceNote(Value):
    """Evidence for or against a hypothesis, found by a step."""

    hypothesis: str
    verdict: str
    """`supports`, `refutes` or `neutral`."""
    strength: str = "moderate"
    step: str = ""
    note: str = ""
    """Explanation of at most 200 characters."""


class Belief(Value):
    """The plan's confidence in a hypothesis."""

    hypothesis: str
    confidence: float
    """Confidence from 0 to 1."""
    evidence: int = 0
    """Number of pieces of evidence that have been counted so far."""


class StepResult(Sparse):
    """The result of an attempt, as returned to the workflow. The size is limited to a few kB."""

    status: StepStatus
    """COMPLETED, SKIPPED, FAILED or WAITING."""
    tree: str = ""
    """Tree after the step. It is empty if the step did not inspect the tree."""
    failure: StepFailure | None = None
    chosen: tuple[str, ...] | None = None
    """Steps that a decision or an answered gate starts. None if the step is not a decision."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Lengths of the outputs that are lists."""
    evidence: tuple[EvidenceNote, ...] = ()
    question: Question | None = None
    """Question for a person. It is set if the status is WAITING."""
    usage: Usage | None = None
    unpriced_calls: int = 0
    """Number of model calls of children whose cost is unknown. `usage` contains the known cost."""
    api_calls: int = 0
    reused: bool = False
    """True if nothing was run because an earlier result with the same inputs was reused."""
    drift: Drift | None = None
    """Drift that was found instead of the expected tree. The drift was saved and undone."""
    summary: str = ""
    """Summary for people: one line of at most 200 characters."""
    note: dict[str, Any] | None = None
    """`ProjectNote` with a step's findings, if the step belongs to a project plan."""
    qualifier: str = ""
    """Reason why the success of the step's child workflow is not a plain success. Otherwise empty."""
    record: str = ""
    """SHA-256 of the stored `StepRecord`. It is empty for a milestone."""


class StepRecord(Value):
    """The full record of an attempt.

    It contains the evidence, the output values and the marker that later runs look for.
    """

    plan_id: str
    revision: int
    step: str
    attempt: int
    run: str = ""
    """Workflow run that made the attempt. Attempt numbers are repeated in other runs of the same plan."""
    inputs_sha256: str
    """Hash of the step's definition, its resolved inputs and, if the step reads or writes the tree, the tree before the
    step.
    """
    inputs: dict[str, Any] = Field(default_factory=dict)
    command: str = ""
    """The action in the form in which a person would write it."""
    result: StepResult
    outputs: dict[str, Any] = Field(default_factory=dict)
    """Output values of at most 64 kB each. Larger values are stored as `{"artifact": {...}}`."""
    artifacts: dict[str, ArtifactRef] = Field(default_factory=dict)
    """Artifacts by name: logs, patches, documents, prompts and responses."""
    tree_before: str = ""
    tree_after: str = ""
    answers: tuple[Answer, ...] = ()
    """Answers that people gave before this attempt."""
    started: datetime | None = None
    ended: datetime | None = None
    host: str = ""
    seed: int = 0
    undone: bool = False
    """True if the attempt was compensated. A later run does not reuse its result."""


CHILD_NAME_CHARACTERS = 180
"""Maximum length of a child's ID. The ID becomes part of a git ref, whose file name is limited to 255 bytes."""
# Dots separate the parts of an id, so a part must not contain one.
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
"""Characters that are not allowed in a part of an ID, because git does not allow them in refs or because they separate
the parts.
"""
# `\Z`, because `$` also matches before a final line break.
_MARKED = re.compile(r"-[0-9a-f]{12}\Z")
"""Hash suffix that `_part` appends."""


def child_id(plan_id: str, step: str, attempt: int, alternative: str = "") -> str:
    """Return the workflow ID of a child.

    The ID is `<plan>.<step>.<attempt>`, followed by `.<alternative>` for a branch. It is unique for each
    step, attempt and alternative of a plan. Names that consist of letters, digits, `-` and `_` are used
    unchanged. In other names, characters that git does not allow in refs are replaced, and a hash is
    appended. An ID that is too long is truncated and ends with a hash of the full ID.
    """
    parts = [plan_id, _part(step), str(attempt), *([_part(alternative)] if alternative else [])]
    whole = ".".join(parts)
    if len(whole) <= CHILD_NAME_CHARACTERS:
        return whole
    # 13 for the dash and the 12 digits of the hash; a dot before the dash would look like an empty part.
    return f"{whole[: CHILD_NAME_CHARACTERS - 13].rstrip('.')}-{_digest(whole)}"


def _part(name: str) -> str:
    readable = _OTHER.sub("_", name)
    # A name that already ends like a hashed one is hashed too, so that the two cannot collide.
    return name if readable == name and not _MARKED.search(name) else f"{readable}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
