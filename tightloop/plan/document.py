"""The plan document, and what is stored of a plan in the state folder of its project."""

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
    """A pattern over the words of a command and what it means."""

    match: str
    """Words; `*` stands for one word, `**` for any number: `git push **`."""
    verdict: Verdict = Verdict.DENY
    """The first rule that matches decides."""
    reason: str = ""
    """Shown to whoever is refused or asked."""


class Deletions(Document):
    """How much may be gone since the plan began before a step that removes more waits for a person."""

    files: int = Field(default=25, ge=1)
    """Removed files."""
    lines: int = Field(default=500, ge=1)
    """Removed lines."""
    share: float = Field(default=0.5, ge=0, le=1)
    """Of all lines; both this and `lines` have to be reached."""


class Policy(Document):
    """Scopes, commands and hosts. An act is judged before it is done; a refusal names its rule."""

    write: tuple[str, ...] = ("**",)
    """Glob patterns below the root that steps may change."""
    # Git runs hooks from `.git`.
    protect: tuple[str, ...] = (".git/**", "**/.env", "**/*.pem", "**/id_rsa*")
    """Glob patterns that no step may change; stronger than `write`."""
    commands: tuple[CommandRule, ...] = ()
    """Rules for commands, before those for every project."""
    network: tuple[str, ...] = ()
    """Hosts (`*.example.org`, `127.0.0.1:8080`) that `http` may ask; empty: none."""
    shell_network: bool = False
    """Shell steps see the network, where the sandbox's settings allow it too."""
    # Matched against kind, capability and labels, so that one word covers all three.
    approve: tuple[str, ...] = ("deploy",)
    """Step kinds, capabilities or labels that wait for a person before they start."""
    deletions: Deletions | None = None
    """None: unbounded. Plans that a model wrote have the bounds of `alignment`."""
    within: "Policy | None" = None
    """A policy around this one: an act must pass both. Set for plans within plans and for plans that a model wrote."""


# Temporal fails the task of a workflow with more than 2 000 pending activities and retries it forever; the workflow
# starts only `max_parallel` of these at once. Measured up to this width: docs/reference/figures.md, Plans.
FAN_OUT_LIMIT = 2_500
"""Steps that a template may become, whatever the budget says."""


class Hypothesis(Document):
    """A statement that evidence can refute."""

    id: str
    """Name for `evidence`, `decision` and `${hypotheses.<id>}`."""
    statement: str = ""
    """What is claimed, for readers."""
    prior: float = Field(default=0.5, gt=0, lt=1)
    """How likely it is before there is evidence."""


class ArtifactDeclaration(Document):
    """A named output of the plan: `account.artifacts` of `tightloop export ID --out FILE.json` has its value."""

    name: str
    """Its name in the account of the plan."""
    from_step: str
    """Id of the step."""
    output: str = ""
    """Name of the step's output; empty: the same name."""
    type: str = "file"
    """For readers, such as `list[url]`."""


class PlanBudget(Document):
    """Circuit breakers. None: unbounded, but for those that have a default."""

    max_wall_s: float | None = Field(default=None, gt=0)
    """Time of work; waiting for people is not counted."""
    max_cost_usd: float | None = Field(default=None, ge=0)
    """Of all calls of models, as they are priced."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Of all calls of models."""
    max_api_calls: int | None = Field(default=None, ge=0)
    """Calls of models, and requests of `http`."""
    # `max_steps` is what recorded histories hold; texts with that name are refused.
    max_attempts: int = Field(default=20_000, ge=1, validation_alias=AliasChoices("max_attempts", "max_steps"))
    """Attempts of steps, of all kinds; at least as many as the plan has steps."""
    max_depth: int = Field(default=4, ge=1, le=16)
    """Plans within plans, this one included."""
    max_fan_out: int = Field(default=100, ge=1, le=FAN_OUT_LIMIT)
    """Steps that one template may become."""
    max_revisions: int = Field(default=10, ge=1)
    """Revisions of the plan, the first included."""


class OnPlanFailure(StrEnum):
    """What follows a failure that no step recovers from."""

    ASK = "ask"
    """Go on with what does not depend on it, then wait for a person."""
    FAIL = "fail"
    """Go on with what does not depend on it, then end as failed; files stay as they are."""
    COMPENSATE = "compensate"
    """Stop, take back all that can be taken back in reverse order, and end as failed."""


class Plan(Document):
    """A directed acyclic graph of steps."""

    id: str = Field(pattern=ID_PATTERN)
    """Default: the name of the file."""
    title: str = ""
    """For readers, in a few words."""
    description: str = ""
    """For readers."""
    owner: str = ""
    """Who answers for it; for readers."""
    created_at: str = ""
    """For readers."""
    labels: tuple[str, ...] = ()
    """For readers."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Read as `${plan.<name>}`; a request may give other values."""
    assumptions: tuple[str, ...] = ()
    """Prose: what it takes for granted."""
    risks: tuple[str, ...] = ()
    """Prose: what may go wrong."""
    steps: tuple[Step, ...] = ()
    """At least one."""
    artifacts: tuple[ArtifactDeclaration, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    memory: tuple[str, ...] = ()
    """Keys of facts that the plan reads or leaves."""
    definition_of_done: tuple[Check, ...] = ()
    """Commands that must pass after the last step; the plan is not completed without them."""
    on_failure: OnPlanFailure = OnPlanFailure.ASK
    """What follows a failure that no step recovers from."""
    # More than 100 events buffered during one workflow task make the server fail it; then the run is replayed.
    max_parallel: int = Field(default=8, ge=1, le=100)
    """Steps at the same time."""
    budget: PlanBudget = PlanBudget.model_construct()
    policy: Policy = Policy.model_construct()
    seed: int = 0
    """For everything that is random in a step: `TIGHTLOOP_SEED` in a shell step."""


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
