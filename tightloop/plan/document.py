"""The plan document, and the stored form of a plan in the state folder of its project."""

import hashlib
import re
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import AliasChoices, Field

from tightloop.episode.check import Check
from tightloop.plan.request import PlanOutcome
from tightloop.plan.step import ID_PATTERN, Step, walk
from tightloop.run.question import Answer
from tightloop.safety.rubric import Verdict
from tightloop.value import ArtifactRef, Document, Value


class CommandRule(Document):
    """Rule for commands that match a word pattern."""

    match: str
    """Word pattern; `*` matches one word, `**` any number: `git push **`."""
    verdict: Verdict = Verdict.DENY
    """Verdict on a matching command; the first matching rule decides."""
    reason: str = ""
    """Explanation, shown with a refusal or a question."""


class Deletions(Document):
    """Deletions since the start of the plan above which the next deleting step needs a person."""

    files: int = Field(default=25, ge=1)
    """Removed files."""
    lines: int = Field(default=500, ge=1)
    """Removed lines."""
    share: float = Field(default=0.5, ge=0, le=1)
    """Share of all lines; it must be reached together with `lines`."""


class Policy(Document):
    """Allowed paths, commands and hosts. Every action is judged before it runs; a refusal names its rule."""

    write: tuple[str, ...] = ("**",)
    """Glob patterns of the paths that steps may change, relative to the root."""
    # Git runs hooks from `.git`.
    protect: tuple[str, ...] = (".git/**", "**/.env", "**/*.pem", "**/id_rsa*")
    """Glob patterns of paths that no step may change; overrides `write`."""
    commands: tuple[CommandRule, ...] = ()
    """Command rules; they take precedence over the built-in ones."""
    network: tuple[str, ...] = ()
    """Hosts that `http` may request (`*.example.org`, `127.0.0.1:8080`); empty: none."""
    shell_network: bool = False
    """Give shell steps network access, if the sandbox settings also allow it."""
    # Matched against kind, capability and labels, so that one word covers all three.
    approve: tuple[str, ...] = ("deploy",)
    """Step kinds, capabilities or labels that need an approval before they start."""
    deletions: Deletions | None = None
    """Deletion limits; None: unlimited. Plans written by a model use the limits of `alignment`."""
    within: "Policy | None" = None
    """Enclosing policy; an action must pass both. Set for subplans and for plans written by a model."""


# Temporal fails the task of a workflow with more than 2 000 pending activities and retries it forever; the workflow
# starts only `max_parallel` of these at once. Measured up to this width: docs/reference/figures.md, Plans.
FAN_OUT_LIMIT = 2_500
"""Hard limit on the steps of one template, regardless of the budget."""


class Hypothesis(Document):
    """A statement that evidence can support or refute."""

    id: str
    """Name for `evidence`, `decision` and `${hypotheses.<id>}`."""
    statement: str = ""
    """The claim, for readers."""
    prior: float = Field(default=0.5, gt=0, lt=1)
    """Probability before any evidence."""


class ArtifactDeclaration(Document):
    """Named output of the plan; `tightloop export ID --out FILE.json` puts its value into `account.artifacts`."""

    name: str
    """Name in the account of the plan."""
    from_step: str
    """Id of the step that produces it."""
    output: str = ""
    """Name of the step's output; empty: same as `name`."""
    type: str = "file"
    """Type for readers, such as `list[url]`."""


class PlanBudget(Document):
    """Circuit breakers. None: unlimited, unless the field has a default."""

    max_wall_s: float | None = Field(default=None, gt=0)
    """Working time in seconds, excluding waits for people."""
    max_cost_usd: float | None = Field(default=None, ge=0)
    """Cost of all model calls, at the configured prices."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Tokens of all model calls."""
    max_api_calls: int | None = Field(default=None, ge=0)
    """Model calls and `http` requests."""
    # Recorded histories hold `max_steps`; plan texts with that name are refused.
    max_attempts: int = Field(default=20_000, ge=1, validation_alias=AliasChoices("max_attempts", "max_steps"))
    """Step attempts of all kinds; at least the number of steps."""
    max_depth: int = Field(default=4, ge=1, le=16)
    """Nesting depth of plans, including this one."""
    max_fan_out: int = Field(default=100, ge=1, le=FAN_OUT_LIMIT)
    """Maximum number of steps per template."""
    max_revisions: int = Field(default=10, ge=1)
    """Revisions of the plan, including the first."""


class OnPlanFailure(StrEnum):
    """Reaction to a failure that no step recovers from."""

    ASK = "ask"
    """Finish all independent steps, then wait for a person."""
    FAIL = "fail"
    """Finish all independent steps, then end as failed; files stay as they are."""
    COMPENSATE = "compensate"
    """Stop, roll back everything possible in reverse order, and end as failed."""


class Plan(Document):
    """A directed acyclic graph of steps."""

    id: str = Field(pattern=ID_PATTERN)
    """Plan id; default: the file name."""
    title: str = ""
    """Short title for readers."""
    description: str = ""
    """For readers."""
    owner: str = ""
    """Responsible person, for readers."""
    created_at: str = ""
    """For readers."""
    labels: tuple[str, ...] = ()
    """For readers."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Default inputs, read as `${plan.<name>}`; a request may override them."""
    assumptions: tuple[str, ...] = ()
    """Assumptions in prose."""
    risks: tuple[str, ...] = ()
    """Risks in prose."""
    steps: tuple[Step, ...] = ()
    """Steps; at least one."""
    artifacts: tuple[ArtifactDeclaration, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    memory: tuple[str, ...] = ()
    """Keys of the memory facts that the plan reads or writes."""
    definition_of_done: tuple[Check, ...] = ()
    """Commands that must pass after the last step for the plan to complete."""
    on_failure: OnPlanFailure = OnPlanFailure.ASK
    """Reaction to a failure that no step recovers from."""
    # More than 100 events buffered during one workflow task make the server fail it; then the run is replayed.
    max_parallel: int = Field(default=8, ge=1, le=100)
    """Maximum number of steps running at the same time."""
    budget: PlanBudget = PlanBudget.model_construct()
    policy: Policy = Policy.model_construct()
    seed: int = 0
    """Seed for random behaviour in steps; `TIGHTLOOP_SEED` in a shell step."""


DRY_RUN = "dry-run"
"""Placeholder for the inputs hash in records of a dry run."""
# A file name may have 255 bytes; suffixes and the names of temporary files need some of them.
LONGEST_NAME = 120
# Lower case only: ids that differ in case would be the same file on macOS and Windows.
_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]*")


def file_name(identity: str) -> str:
    """Return a file and git ref name that is unique per id, also on case-insensitive file systems."""
    fits = _PLAIN.fullmatch(identity) and len(identity) <= LONGEST_NAME
    # Git rejects refs that contain `..` or end in `.` or `.lock`.
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
    """Inputs of the plan merged with those of the request, which take precedence."""
    source: str = ""
    """Original plan text."""
    file: str = ""
    """Path of the plan file, if the text was read from one."""
    rationale: str = ""
    by: str = ""
    diff: str = ""
    """Human-readable difference from the previous revision."""
    previous: ArtifactRef | None = None
    exchange: ArtifactRef | None = None
    """Prompts and replies of the model that wrote it."""
    prompts_sha256: str = ""
    """Version of the prompts."""

    @property
    def words(self) -> str:
        """Text that a person wrote about the work: titles, descriptions and goals, one per line.

        Empty for revisions written by a model.
        """
        # A model must not announce its own test changes.
        if self.exchange is not None or self.prompts_sha256:
            return ""
        lines = [self.plan.title, self.plan.description]
        for step in walk(self.plan.steps):
            lines += [step.title, step.description, step.episode.goal if step.episode is not None else ""]
        return "\n".join(line for line in lines if line)

    def content(self) -> bytes:
        """Return the JSON to store, with the field names of a plan file."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True).encode()


class PlanArchive(Value):
    """Account of a finished plan; readable without tightloop."""

    plan_id: str
    title: str = ""
    outcome: PlanOutcome
    reason: str = ""
    closed: datetime | None = None
    base_tree: str = ""
    tree: str = ""
    counts: dict[str, int] = Field(default_factory=dict)
    """Number of steps by status."""
    statuses: dict[str, str] = Field(default_factory=dict)
    """Status of each step that did not complete."""
    revisions: tuple[ArtifactRef, ...] = ()
    """`StoredPlan`s, oldest first."""
    records: ArtifactRef | None = None
    """All `StepRecord`s as JSON lines, in order of completion."""
    answers: dict[str, tuple[Answer, ...]] = Field(default_factory=dict)
    """Answers from people, by step."""
    checks: ArtifactRef | None = None
    """Final `CheckReport` of the definition of done."""
    artifacts: dict[str, Any] = Field(default_factory=dict)
    """Declared outputs by name: the value, `{"artifact": {...}}`, or `{"missing": reason}`."""
    hand_off: ArtifactRef | None = None
    """Markdown summary: completed work, open work, next steps."""
    postmortem: ArtifactRef | None = None
    """Markdown report of failures and their consequences; None if nothing failed."""
