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

# Thousands of results lie in one history, which Temporal ends at 50 MB.
REASON_CHARACTERS = 500
"""Bound of a failure's reason in the history; the record holds all."""


class StepStatus(StrEnum):
    """Where a step stands."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    """For a person."""
    COMPLETED = "completed"
    SKIPPED = "skipped"
    FAILED = "failed"
    RECOVERED = "recovered"
    """It failed, and another step did its work."""
    BLOCKED = "blocked"
    """Something it needs has failed, or is blocked itself."""
    COMPENSATED = "compensated"
    """It completed and was taken back."""
    ABANDONED = "abandoned"
    """The plan ended, or was changed, before it."""


class StepFailure(Value):
    """Why an attempt failed. A failing step is data, not an exception."""

    failure_class: FailureClass
    reason: str
    """At most `REASON_CHARACTERS`, scrubbed."""
    mode: str = ""
    """Name of the failure mode that was recognised."""
    recover: Recovery | None = None
    """What that mode asks for."""
    retry_after_s: float | None = None
    """How long the service asks to wait before the next attempt."""


class EvidenceNote(Value):
    """What a step found out about a hypothesis."""

    hypothesis: str
    verdict: str
    """`supports`, `refutes` or `neutral`."""
    strength: str = "moderate"
    step: str = ""
    note: str = ""
    """At most 200 characters."""


class Belief(Value):
    """How sure the plan is of a hypothesis."""

    hypothesis: str
    confidence: float
    """0 to 1."""
    evidence: int = 0
    """How many notes were counted."""


class StepResult(Sparse):
    """What the workflow learns of an attempt. Bounded to a few kB."""

    status: StepStatus
    """COMPLETED, SKIPPED, FAILED or WAITING."""
    tree: str = ""
    """Tree after a step that may write; empty: it did not look at the tree."""
    failure: StepFailure | None = None
    chosen: tuple[str, ...] | None = None
    """Steps that a decision or an answered gate starts; None: the step decides nothing."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Lengths of the outputs that are lists."""
    evidence: tuple[EvidenceNote, ...] = ()
    question: Question | None = None
    """With WAITING."""
    usage: Usage | None = None
    api_calls: int = 0
    reused: bool = False
    """The work was done before with the same inputs; nothing was done now."""
    drift: Drift | None = None
    """What was found instead of the expected tree; saved and undone."""
    summary: str = ""
    """One line for a person, at most 200 characters."""
    note: dict[str, Any] | None = None
    """A `ProjectNote`: findings of a step of a project's plan."""
    record: str = ""
    """sha256 of the stored `StepRecord`; empty for a milestone."""


class StepRecord(Value):
    """Everything that is known of one attempt: the evidence, the marker of a re-run, and what outputs are read from."""

    plan_id: str
    revision: int
    step: str
    attempt: int
    run: str = ""
    """Workflow run that made the attempt; another run of the same plan has attempts with the same numbers."""
    inputs_sha256: str
    """Over the step's definition, its resolved inputs and, for a step that reads or writes it, the tree before."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    command: str = ""
    """What was done, as a person would write it."""
    result: StepResult
    outputs: dict[str, Any] = Field(default_factory=dict)
    """Values of at most 64 kB each; larger ones are `{"artifact": {...}}`."""
    artifacts: dict[str, ArtifactRef] = Field(default_factory=dict)
    """By name: logs, patches, documents, prompts and answers."""
    tree_before: str = ""
    tree_after: str = ""
    answers: tuple[Answer, ...] = ()
    """What people said before this attempt."""
    started: datetime | None = None
    ended: datetime | None = None
    host: str = ""
    seed: int = 0
    undone: bool = False
    """It was compensated; it is not taken over by a re-run."""


CHILD_NAME_CHARACTERS = 180
"""Bound of a child's id: it becomes part of a git ref, of which a file name bears 255 bytes."""
# Dots part the parts of an id, so none may stand in one.
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
"""What may not stand in a part of an id: git does not allow it in a ref, or it parts the parts."""
_MARKED = re.compile(r"-[0-9a-f]{12}\Z")
"""The end of a name that `_part` changed."""


def child_id(plan_id: str, step: str, attempt: int, alternative: str = "") -> str:
    """Return the workflow id of what an attempt starts: `<plan>.<step>.<attempt>`, and `.<alternative>` of a branch.

    It is different for different steps, attempts and alternatives of a plan. Names of letters, digits, `-` and `_`
    stand in it as they are; in others what git does not allow in a ref is replaced, and a hash of the name follows.
    Ids that are too long end with a hash of all of it.
    """
    parts = [plan_id, _part(step), str(attempt), *([_part(alternative)] if alternative else [])]
    whole = ".".join(parts)
    if len(whole) <= CHILD_NAME_CHARACTERS:
        return whole
    return f"{whole[: CHILD_NAME_CHARACTERS - 13].rstrip('.')}-{_digest(whole)}"


def _part(name: str) -> str:
    readable = _OTHER.sub("_", name)
    # A name that looks like a changed one could be the same as it.
    return name if readable == name and not _MARKED.search(name) else f"{readable}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
