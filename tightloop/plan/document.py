"""The plan document, and the form in which a plan is stored in its project's state folder."""

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
    """Rule for commands that match a pattern of words."""

    match: str
    """Pattern of words, such as `git push **`. `*` matches one word, and `**` matches any number of words."""
    verdict: Verdict = Verdict.DENY
    """Verdict for matching commands. The first rule that matches decides."""
    reason: str = ""
    """Explanation to show when the command is refused or a person is asked."""


class Deletions(Document):
    """Limits for deletions since the start of the plan.

    When a limit is exceeded, the next step that deletes something needs approval.
    """

    files: int = Field(default=25, ge=1)
    """Number of removed files."""
    lines: int = Field(default=500, ge=1)
    """Number of removed lines."""
    share: float = Field(default=0.5, ge=0, le=1)
    """Removed lines as a fraction of all lines. The limit only applies if `lines` is reached too."""


class Policy(Document):
    """Allowed paths, commands and hosts.

    Every action is checked before it runs. Every refusal names the rule that caused it.
    """

    write: tuple[str, ...] = ("**",)
    """Glob patterns for the paths that steps may change, relative to the root."""
    # Git runs hooks from `.git`.
    protect: tuple[str, ...] = (".git/**", "**/.env", "**/*.pem", "**/id_rsa*")
    """Glob patterns for paths that no step may change. They take precedence over `write`."""
    commands: tuple[CommandRule, ...] = ()
    """Rules for commands. They take precedence over the built-in rules."""
    network: tuple[str, ...] = ()
    """Hosts that `http` steps may send requests to, such as `*.example.org` or `127.0.0.1:8080`. If empty, no hosts are
    allowed.
    """
    shell_network: bool = False
    """Allow shell steps to access the network. The sandbox settings must allow it as well."""
    # Matched against kind, capability and labels, so that one word covers all three.
    approve: tuple[str, ...] = ("deploy",)
    """Kinds, actions or labels of steps that need approval. A matching step does not start before it is approved."""
    deletions: Deletions | None = None
    """Limits for deletions. If null, deletions are not limited. Plans written by a model use the limits from
    `alignment`.
    """
    within: "Policy | None" = None
    """Enclosing policy. Actions must satisfy both policies. It is set for subplans and for plans written by a model."""


# Temporal fails the task of a workflow with more than 2 000 pending activities and retries it forever; the workflow
# starts only `max_parallel` of these at once. Measured up to this width: docs/reference/figures.md, Plans.
FAN_OUT_LIMIT = 2_500
"""Hard limit for the number of steps per template, regardless of the budget."""


class Hypothesis(Document):
    """A statement that evidence can support or refute."""

    id: str
    """Name to use in `evidence`, `decision` and `${hypotheses.<id>}`."""
    statement: str = ""
    """The claim itself. For information only."""
    prior: float = Field(default=0.5, gt=0, lt=1)
    """Probability before any evidence is taken into account."""


class ArtifactDeclaration(Document):
    """Named output of the plan.

    `tightloop export ID --out FILE.json` writes the value to `account.artifacts`.
    """

    name: str
    """Name in the plan's account."""
    from_step: str
    """ID of the step that produces the output."""
    output: str = ""
    """Name of the output in that step. If empty, it is the same as `name`."""
    type: str = "file"
    """Type, such as `list[url]`. For information only."""


class PlanBudget(Document):
    """Limits of a plan. A null field means no limit. Some fields have a default."""

    max_wall_s: float | None = Field(default=None, gt=0)
    """Maximum working time in seconds, excluding the time spent waiting for people."""
    max_cost_usd: float | None = Field(default=None, ge=0)
    """Maximum cost of all model calls in USD, based on the configured prices."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Maximum number of tokens for all model calls."""
    max_api_calls: int | None = Field(default=None, ge=0)
    """Maximum number of model calls and `http` requests."""
    # Recorded histories hold `max_steps`; plan texts with that name are refused.
    max_attempts: int = Field(default=20_000, ge=1, validation_alias=AliasChoices("max_attempts", "max_steps"))
    """Maximum number of step attempts of all kinds. It must not be less than the number of steps."""
    max_depth: int = Field(default=4, ge=1, le=16)
    """Maximum nesting depth of plans, including this plan."""
    max_fan_out: int = Field(default=100, ge=1, le=FAN_OUT_LIMIT)
    """Maximum number of steps per template."""
    max_revisions: int = Field(default=10, ge=1)
    """Maximum number of plan revisions, including the first version."""


class OnPlanFailure(StrEnum):
    """The reaction to a failed step that no other step recovers from."""

    ASK = "ask"
    """Finish all independent steps, then wait for a person."""
    FAIL = "fail"
    """Finish all independent steps, then end as failed. The files are left as they are."""
    COMPENSATE = "compensate"
    """Stop, roll back as much as possible in reverse order, and end as failed."""


class Plan(Document):
    """A directed acyclic graph of steps."""

    id: str = Field(pattern=ID_PATTERN)
    """ID of the plan. In a plan file, it defaults to the file name."""
    title: str = ""
    """Short title. For information only."""
    description: str = ""
    """Description. For information only."""
    owner: str = ""
    """Person who is responsible. For information only."""
    created_at: str = ""
    """Time of creation. For information only."""
    labels: tuple[str, ...] = ()
    """Labels. For information only."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Default values of the inputs, which are available as `${plan.<name>}`. A request may override them."""
    assumptions: tuple[str, ...] = ()
    """Assumptions, written as prose."""
    risks: tuple[str, ...] = ()
    """Risks, written as prose."""
    steps: tuple[Step, ...] = ()
    """Steps of the plan. At least one is required."""
    artifacts: tuple[ArtifactDeclaration, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    memory: tuple[str, ...] = ()
    """Keys of the memory facts that the plan reads or writes."""
    definition_of_done: tuple[Check, ...] = ()
    """Commands that must pass after the last step. Otherwise the plan does not complete."""
    on_failure: OnPlanFailure = OnPlanFailure.ASK
    """Reaction to a failed step from which no other step recovers."""
    # More than 100 events buffered during one workflow task make the server fail it; then the run is replayed.
    max_parallel: int = Field(default=8, ge=1, le=100)
    """Maximum number of steps that run at the same time."""
    budget: PlanBudget = PlanBudget.model_construct()
    policy: Policy = Policy.model_construct()
    seed: int = 0
    """Seed for random behaviour in steps. Shell steps receive it as `TIGHTLOOP_SEED`."""


DRY_RUN = "dry-run"
"""Placeholder for the hash of the inputs in the records of a dry run."""
# A file name may have 255 bytes; suffixes and the names of temporary files need some of them.
LONGEST_NAME = 120
# Lower case only: ids that differ in case would be the same file on macOS and Windows.
_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]*")


def file_name(identity: str) -> str:
    """Return a file name for an ID. The file name is also a valid git ref name.

    Different IDs have different file names, even on case-insensitive file systems.
    """
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
    """Inputs of the plan, merged with the inputs of the request. The request takes precedence."""
    source: str = ""
    """Original text of the plan."""
    file: str = ""
    """Path of the plan file, if the text was read from a file."""
    rationale: str = ""
    by: str = ""
    diff: str = ""
    """Human-readable difference from the previous revision."""
    previous: ArtifactRef | None = None
    exchange: ArtifactRef | None = None
    """Prompts and responses of the model that wrote the plan."""
    prompts_sha256: str = ""
    """Version of the prompts."""

    @property
    def words(self) -> str:
        """The titles, descriptions and goals that a person wrote, one per line.

        The text is empty for revisions that a model wrote.
        """
        # A model must not announce its own test changes.
        if self.exchange is not None or self.prompts_sha256:
            return ""
        lines = [self.plan.title, self.plan.description]
        for step in walk(self.plan.steps):
            lines += [step.title, step.description, step.episode.goal if step.episode is not None else ""]
        return "\n".join(line for line in lines if line)

    def content(self) -> bytes:
        """Return the plan as JSON, with the field names used in plan files."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True).encode()


class PlanArchive(Value):
    """A record of a finished plan that can be read without tightloop."""

    plan_id: str
    title: str = ""
    outcome: PlanOutcome
    qualifier: str = ""
    """Reason why a completed plan is not a plain success; otherwise empty."""
    reason: str = ""
    closed: datetime | None = None
    base_tree: str = ""
    tree: str = ""
    counts: dict[str, int] = Field(default_factory=dict)
    """Number of steps by status."""
    statuses: dict[str, str] = Field(default_factory=dict)
    """Status of every step that did not complete."""
    revisions: tuple[ArtifactRef, ...] = ()
    """All `StoredPlan` revisions, oldest first."""
    records: ArtifactRef | None = None
    """All `StepRecord` entries as JSON lines, in order of completion."""
    edits: tuple[str, ...] = ()
    """Sentences about changes by people that were adopted into the plan's files."""
    answers: dict[str, tuple[Answer, ...]] = Field(default_factory=dict)
    """Answers from people, by step."""
    checks: ArtifactRef | None = None
    """Final `CheckReport` for the definition of done."""
    artifacts: dict[str, Any] = Field(default_factory=dict)
    """Declared outputs by name. The value is the output itself, `{"artifact": {...}}`, or `{"missing": reason}`."""
    hand_off: ArtifactRef | None = None
    """Summary in Markdown: completed work, open work and next steps."""
    postmortem: ArtifactRef | None = None
    """Report in Markdown on failures and their consequences, or None if nothing failed."""
