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
"""Maximum length of a failure reason in the history; the record holds the full text."""


class StepStatus(StrEnum):
    """Status of a step."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    """Waiting for a person."""
    COMPLETED = "completed"
    SKIPPED = "skipped"
    FAILED = "failed"
    RECOVERED = "recovered"
    """Failed, and its alternate completed the work."""
    BLOCKED = "blocked"
    """A step it needs has failed or is itself blocked."""
    COMPENSATED = "compensated"
    """Completed and rolled back."""
    ABANDONED = "abandoned"
    """Never ran, because the plan ended or was changed."""


class StepFailure(Value):
    """Failure of an attempt. A failing step is data, not an exception."""

    failure_class: FailureClass
    reason: str
    """Scrubbed reason, at most `REASON_CHARACTERS`."""
    mode: str = ""
    """Name of the matching failure mode; empty if none matched."""
    recover: Recovery | None = None
    """Recovery that the failure mode requests."""
    retry_after_s: float | None = None
    """Delay requested by the service before the next attempt, in seconds."""


class EvidenceNote(Value):
    """Evidence for or against a hypothesis, found by a step."""

    hypothesis: str
    verdict: str
    """`supports`, `refutes` or `neutral`."""
    strength: str = "moderate"
    step: str = ""
    note: str = ""
    """Explanation, at most 200 characters."""


class Belief(Value):
    """Confidence of the plan in a hypothesis."""

    hypothesis: str
    confidence: float
    """0 to 1."""
    evidence: int = 0
    """Number of notes counted so far."""


class StepResult(Sparse):
    """Result of an attempt as seen by the workflow. Bounded to a few kB."""

    status: StepStatus
    """COMPLETED, SKIPPED, FAILED or WAITING."""
    tree: str = ""
    """Tree after the step; empty if the step did not inspect it."""
    failure: StepFailure | None = None
    chosen: tuple[str, ...] | None = None
    """Steps started by a decision or an answered gate; None: not a decision."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Lengths of the outputs that are lists."""
    evidence: tuple[EvidenceNote, ...] = ()
    question: Question | None = None
    """Question to a person; set if the status is WAITING."""
    usage: Usage | None = None
    api_calls: int = 0
    reused: bool = False
    """True if an earlier result with the same inputs was reused and nothing ran."""
    drift: Drift | None = None
    """Drift found instead of the expected tree; it was saved and undone."""
    summary: str = ""
    """One line for people, at most 200 characters."""
    note: dict[str, Any] | None = None
    """`ProjectNote` with the findings of a step in a project's plan."""
    record: str = ""
    """sha256 of the stored `StepRecord`; empty for a milestone."""


class StepRecord(Value):
    """Full record of one attempt: evidence, re-run marker, and the source of output values."""

    plan_id: str
    revision: int
    step: str
    attempt: int
    run: str = ""
    """Workflow run that made the attempt; attempt numbers repeat across runs of the same plan."""
    inputs_sha256: str
    """Hash of the step definition, its resolved inputs and, if the step reads or writes the tree, the tree before it.

    """
    inputs: dict[str, Any] = Field(default_factory=dict)
    command: str = ""
    """Action in the form a person would write it."""
    result: StepResult
    outputs: dict[str, Any] = Field(default_factory=dict)
    """Values of at most 64 kB each; larger ones are `{"artifact": {...}}`."""
    artifacts: dict[str, ArtifactRef] = Field(default_factory=dict)
    """Artifacts by name: logs, patches, documents, prompts and replies."""
    tree_before: str = ""
    tree_after: str = ""
    answers: tuple[Answer, ...] = ()
    """Answers that people gave before this attempt."""
    started: datetime | None = None
    ended: datetime | None = None
    host: str = ""
    seed: int = 0
    undone: bool = False
    """True if compensated; a re-run does not reuse it."""


CHILD_NAME_CHARACTERS = 180
"""Maximum length of a child's id: it becomes part of a git ref, whose file name is limited to 255 bytes."""
# Dots separate the parts of an id, so a part must not contain one.
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
"""Characters not allowed in a part of an id: git forbids them in a ref, or they are the separator."""
# `\Z`, because `$` also matches before a final line break.
_MARKED = re.compile(r"-[0-9a-f]{12}\Z")
"""Hash suffix added by `_part`."""


def child_id(plan_id: str, step: str, attempt: int, alternative: str = "") -> str:
    """Return the workflow id of a child: `<plan>.<step>.<attempt>`, plus `.<alternative>` for a branch.

    The id is unique per step, attempt and alternative of a plan. Names of letters, digits, `-` and `_` are kept; in
    others, characters that git forbids in a ref are replaced and a hash is appended. An id that is too long is cut and
    ends with a hash of the whole.
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
