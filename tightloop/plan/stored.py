"""What is stored of a plan in the state folder of its project, and under which names."""

import hashlib
import re
from datetime import datetime
from typing import Any

from pydantic import Field

from tightloop.plan.document.plan import Plan
from tightloop.plan.document.step import walk
from tightloop.plan.request import PlanOutcome
from tightloop.run.question import Answer
from tightloop.value import Value
from tightloop.value.artifact import ArtifactRef

DRY_RUN = "dry-run"
"""Stands for the inputs of a record that only shows what would be done."""
# A file name may have 255 bytes; suffixes and the names of temporary files need some of them.
LONGEST_NAME = 120
_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]*")


def file_name(identity: str) -> str:
    """Return a name for files and references of git that is different for different ids, also where case is ignored."""
    fits = _PLAIN.fullmatch(identity) and len(identity) <= LONGEST_NAME
    # Git has no references with these.
    if fits and ".." not in identity and not identity.endswith((".", ".lock")):
        return identity
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", identity)[:60].strip("-")
    return f"{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


class StoredPlan(Value):
    """One immutable revision of a plan."""

    plan_id: str
    revision: int = 1
    plan: Plan
    inputs: dict[str, Any] = Field(default_factory=dict)
    """The plan's own and those of the request; the request's win."""
    source: str = ""
    """The text as it was given."""
    file: str = ""
    """Where the text came from, if from a file."""
    rationale: str = ""
    by: str = ""
    diff: str = ""
    """What is different from the revision before, in words."""
    previous: ArtifactRef | None = None
    exchange: ArtifactRef | None = None
    """Prompts and answers of the model that wrote it."""
    prompts_sha256: str = ""
    """Version of the prompts."""

    @property
    def words(self) -> str:
        """What a person says in this revision about the work: titles, descriptions and goals, a line each.

        Empty where a model wrote it: it must not announce its own changes of tests.
        """
        if self.exchange is not None or self.prompts_sha256:
            return ""
        lines = [self.plan.title, self.plan.description]
        for step in walk(self.plan.steps):
            lines += [step.title, step.description, step.episode.goal if step.episode is not None else ""]
        return "\n".join(line for line in lines if line)

    def content(self) -> bytes:
        """Return the JSON that is stored. Fields have the names that a person writes, as in a plan file."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True).encode()


class PlanArchive(Value):
    """The account of a plan that has ended; everything in it can be read without tightloop."""

    plan_id: str
    title: str = ""
    outcome: PlanOutcome
    reason: str = ""
    closed: datetime | None = None
    base_tree: str = ""
    tree: str = ""
    counts: dict[str, int] = Field(default_factory=dict)
    """Steps by status."""
    statuses: dict[str, str] = Field(default_factory=dict)
    """Of the steps that are not completed."""
    revisions: tuple[ArtifactRef, ...] = ()
    """`StoredPlan`s, oldest first."""
    records: ArtifactRef | None = None
    """All `StepRecord`s, one JSON object a line, in the order of their ends."""
    answers: dict[str, tuple[Answer, ...]] = Field(default_factory=dict)
    """What people said, by step."""
    checks: ArtifactRef | None = None
    """The last `CheckReport` of the definition of done."""
    artifacts: dict[str, Any] = Field(default_factory=dict)
    """Declared outputs by name: the value, or `{"artifact": {...}}`, or `{"missing": why}`."""
    hand_off: ArtifactRef | None = None
    """Markdown: what was done, what is open, how to go on."""
    postmortem: ArtifactRef | None = None
    """Markdown: what failed and what followed; None where nothing failed."""
