"""Actions of a step: one model per capability. Text may hold references such as `${collect.sources}`."""

from typing import Any

from pydantic import Field

from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.value import Document

TREE_PATTERN = r"^[0-9a-f]{40}$"
"""Id of a git tree."""


class ShellAction(Document):
    """Run a command in the sandbox. References in it are quoted for the shell."""

    run: str
    """Script for `/bin/sh`. A reference is quoted; a list becomes one word per item, or JSON within quotes."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables for the command; it inherits none from the worker."""
    folder: str = ""
    """Working directory, relative to the root of the tree."""


class FileEdit(Document):
    """Change of one file: exactly one of `search`, `content` and `delete`."""

    path: str
    """Path relative to the root of the tree."""
    search: str = ""
    """Text to find. It must occur exactly once, unless `replace` is already in the file."""
    replace: str = ""
    """Replacement for `search`."""
    content: str | None = None
    """Complete new content of the file."""
    delete: bool = False
    """Remove the file. Not an error if it is already gone."""


class EditAction(Document):
    """File changes: search and replace, whole files, or a unified diff. All or nothing; idempotent."""

    files: tuple[FileEdit, ...] = ()
    """Changes per file; use either this or `diff`."""
    diff: str = ""
    """Unified diff with paths relative to the root, as `git diff` prints it, or a single reference to one.

    References inside a diff are not replaced: `${x}` there is file content.
    """


class GitAction(Document):
    """Git operations, in this order: branch, commit, pull request text."""

    branch: str = ""
    """Branch to check out; created from HEAD if it does not exist."""
    commit: str = ""
    """Commit message; may hold `${step}`, `${title}`, `${kind}` and `${plan}`.

    An empty commit is skipped without an error.
    """
    paths: tuple[str, ...] = ()
    """Paths to commit; empty: everything that is not ignored."""
    pull_request: str = ""
    """Pull request title. The text is generated from the steps of the plan and becomes the output `pull_request`."""


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class HttpAction(Document):
    """HTTP requests to hosts that the policy allows: `url` for one response, or `urls` for documents."""

    url: str = ""
    """URL of a single request with `method`; results: `status`, `url`, `headers`, `body`, `size` and `json`."""
    method: str = "GET"
    """HTTP method of the request to `url`."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of the request to `url`."""
    secret_headers: dict[str, str] = Field(default_factory=dict)
    """Header -> environment variable of the worker with its value; `plans.secrets` limits the hosts that may get it."""
    body: Any = None
    """Request body: text is sent unchanged, anything else as JSON."""
    expect_status: tuple[int, ...] = (200, 201, 202, 204)
    """Accepted status codes; any other fails the step."""
    urls: str | tuple[str, ...] = ()
    """URLs to fetch into the document cache, or a reference to a list of them.

    Results: `documents` (each with time, hash and origin), `texts`, `duplicates` and `failed`.
    """
    max_age_s: float = Field(default=86_400.0, ge=0)
    """Reuse a cached copy up to this age, in seconds."""
    at_least: int = Field(default=1, ge=0)
    """Minimum number of documents for the step to succeed."""


class SearchAction(Document):
    """Ranked passages from the project and from cached documents. Result: `hits` (list)."""

    query: str
    """Search words, not a pattern."""
    where: str = Field(default="both", pattern="^(project|cache|both)$")
    """Source to search: the tree (`project`), the fetched documents (`cache`), or both."""
    paths: tuple[str, ...] = ()
    """Glob patterns relative to the root; empty: all text files that are not ignored."""
    limit: int = Field(default=10, ge=1, le=200)
    """Maximum number of passages."""


class ModelAction(Document):
    """A single question to a model. With a schema, the reply is validated JSON and its fields become results."""

    prompt: str
    """Prompt text."""
    # pydantic's models have a method `schema`, hence the underscore and the alias; also in `GateCheck`.
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """JSON schema of the reply; it must describe an object."""
    model: str = ""
    """Model to ask; default: the first of the planner's models."""
    max_output_tokens: int | None = None
    """Limit of output tokens; default: the planner's."""


class DiffReview(Document):
    """Limits for the change since a step, or since the start of the plan."""

    since: str = ""
    """Id of the step to compare with; empty: the start of the plan."""
    max_files: int | None = None
    """Maximum number of changed files."""
    max_lines: int | None = None
    """Maximum number of added and removed lines."""
    only: tuple[str, ...] = ()
    """Glob patterns; every changed path must match at least one."""
    never: tuple[str, ...] = ()
    """Glob patterns; no changed path may match any."""


class GateCheck(Document):
    """One automatic check of a gate: exactly one of `command`, `invariant`, `artifact`, `diff` and `prose`."""

    name: str = ""
    """Name shown to people; default: the check itself."""
    command: str = ""
    """Shell command; passes with exit code 0 in the sandbox."""
    invariant: str = ""
    """Expression that must hold."""
    artifact: str = ""
    """`${step.output}` to validate against `schema`, or with claims to count by `confirmations`."""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """JSON schema for `artifact`."""
    confirmations: int = 0
    """Minimum number of sources on different hosts (or reproducible tests) for each claim in `artifact`."""
    diff: DiffReview | None = None
    prose: str = ""
    """Condition that only a person can check: the gate asks for approval."""


class Option(Document):
    """One answer a person can choose, with its pros and cons."""

    name: str
    """Text that selects the option; unique."""
    pros: tuple[str, ...] = ()
    """Arguments for it; for readers."""
    cons: tuple[str, ...] = ()
    """Arguments against it; for readers."""
    cost: str = ""
    """Expected cost; for readers."""
    to: tuple[str, ...] = ()
    """Steps that start only if this option is chosen."""


class Approval(Document):
    """Approval by a person."""

    role: str = ""
    """Role that should decide; shown to people and checked by `approve --role`."""
    count: int = Field(default=1, ge=1, le=10)
    """Number of different people who must approve."""
    question: str = ""
    """Question to ask; default: whether the plan may continue."""
    options: tuple[Option, ...] = ()
    """Options to choose from; default: approve or reject."""


class GateAction(Document):
    """Checks, followed by an approval if one is configured. A closed gate is a failure of class `policy`."""

    checks: tuple[GateCheck, ...] = ()
    """Checks that must all pass."""
    approval: Approval | None = None
    """Approval to request once the checks pass."""
    window: str = ""
    """Name of an approval window; gates with the same window are approved together."""
    evidence: tuple[str, ...] = ()
    """References shown to the approver."""


class Rule(Document):
    """Row of a decision table."""

    when: str
    """Expression; the first row that holds decides."""
    to: tuple[str, ...] = ()
    """Steps to start; the steps of all other rows are skipped."""
    note: str = ""
    """Name of this path, for readers."""


class DecisionAction(Document):
    """Choose one of several paths: by rules, by the best supported hypothesis, or by a model.

    `${id.chosen}` is the list of ids of the started steps, `${id.option}` the name of the option or hypothesis.
    """

    rules: tuple[Rule, ...] = ()
    """Decision table; the first row that holds decides."""
    otherwise: tuple[str, ...] = ()
    """Steps to start if nothing else decides."""
    hypotheses: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Hypothesis -> steps to start if it is the best supported one."""
    min_confidence: float = Field(default=0.6, ge=0, le=1)
    """Minimum confidence. Below it, or on a tie, no hypothesis is chosen."""
    question: str = ""
    """Question for a model, asked together with `options`."""
    options: tuple[Option, ...] = ()
    """Options for the model to choose from."""


class CheckpointAction(Document):
    """Save the tree and the outputs under a name."""

    name: str = ""
    """Checkpoint name; default: the step id."""


class MergeStart(Document):
    """A change that failed to merge, as input for the episode that resolves the conflict."""

    base: str = Field(pattern=TREE_PATTERN)
    """Tree before the change."""
    tree: str = Field(pattern=TREE_PATTERN)
    """Tree after the change."""


class EpisodeAction(Document):
    """Run a child episode: a coding agent works on a goal until the checks pass."""

    goal: str
    """Goal that must be reached."""
    definition_of_done: tuple[Check, ...] = ()
    """Commands that must pass; default: those of the plan."""
    executor: str = ""
    """Executor; default: from the worker's settings."""
    planner: str = ""
    """Planner; default: from the worker's settings."""
    budget: Budget | None = None
    """Budget; default: from the settings."""
    worktree: bool = False
    """Work in a separate git worktree, in parallel with other such steps.

    The worktree starts from the current files. Changes are merged (three-way) in plan order; a conflict fails the step
    and its tree is kept.
    """
    merge: MergeStart | None = None
    """With `worktree`: start with this change merged in and its conflicts between markers."""
