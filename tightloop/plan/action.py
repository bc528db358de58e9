"""Actions of a step, with one model per capability. Texts may contain references such as `${collect.sources}`."""

from typing import Any

from pydantic import Field

from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.value import Document

TREE_PATTERN = r"^[0-9a-f]{40}$"
"""ID of a git tree."""


class ShellAction(Document):
    """Run a command in the sandbox. References in the command are quoted for the shell."""

    run: str
    """Script for `/bin/sh`. References are quoted. A list becomes one word per item, or JSON if the reference is inside
    quotes.
    """
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables for the command. It does not inherit any variables from the worker."""
    folder: str = ""
    """Working directory, relative to the root of the tree."""


class FileEdit(Document):
    """Change to one file. Set exactly one of `search`, `content` and `delete`."""

    path: str
    """Path relative to the root of the tree."""
    search: str = ""
    """Text to search for. It must occur exactly once, unless the file already contains `replace`."""
    replace: str = ""
    """Text that replaces `search`."""
    content: str | None = None
    """Complete new content of the file."""
    delete: bool = False
    """Remove the file. It is not an error if the file does not exist."""


class EditAction(Document):
    """Change files by search and replace, by whole files, or by a unified diff.

    Either all changes are applied or none, and the action is idempotent.
    """

    files: tuple[FileEdit, ...] = ()
    """Changes per file. Set either this or `diff`."""
    diff: str = ""
    """Unified diff with paths relative to the root, as printed by `git diff`, or a single reference to such a diff.
    References inside a diff are not resolved: `${x}` is treated as file content.
    """


class GitAction(Document):
    """Perform git operations in this order: branch, commit, pull request text."""

    branch: str = ""
    """Branch to check out. If it does not exist, it is created from HEAD."""
    commit: str = ""
    """Commit message. It may contain `${step}`, `${title}`, `${kind}` and `${plan}`. If there is nothing to commit, the
    commit is skipped without an error.
    """
    paths: tuple[str, ...] = ()
    """Paths to commit. If empty, all files that are not ignored are committed."""
    pull_request: str = ""
    """Pull request title. The text of the pull request is generated from the steps of the plan and becomes the output
    `pull_request`.
    """


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class HttpAction(Document):
    """Send HTTP requests to hosts that the policy allows.

    Use `url` for a single response, or `urls` for documents.
    """

    url: str = ""
    """URL of a single request that uses `method`. The results are `status`, `url`, `headers`, `body`, `size` and
    `json`.
    """
    method: str = "GET"
    """HTTP method of the request to `url`."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of the request to `url`."""
    secret_headers: dict[str, str] = Field(default_factory=dict)
    """Mapping of header names to the worker's environment variables that contain the values. `plans.secrets` limits the
    hosts to which each variable may be sent.
    """
    body: Any = None
    """Request body. Text is sent unchanged, and any other value is sent as JSON."""
    expect_status: tuple[int, ...] = (200, 201, 202, 204)
    """Accepted status codes. With any other status code, the step fails."""
    urls: str | tuple[str, ...] = ()
    """URLs to fetch into the document cache, or a reference to a list of URLs. The results are `documents` (each with
    its time, hash and origin), `texts`, `duplicates` and `failed`.
    """
    max_age_s: float = Field(default=86_400.0, ge=0)
    """Maximum age of a cached copy that may be reused, in seconds."""
    at_least: int = Field(default=1, ge=0)
    """Minimum number of documents that are required for the step to succeed."""


class SearchAction(Document):
    """Search for passages in the project and in cached documents. The result `hits` is a ranked list."""

    query: str
    """Words to search for. Patterns are not supported."""
    where: str = Field(default="both", pattern="^(project|cache|both)$")
    """Source to search: the tree (`project`), the fetched documents (`cache`), or `both`."""
    paths: tuple[str, ...] = ()
    """Glob patterns relative to the root. If empty, all text files that are not ignored are searched."""
    limit: int = Field(default=10, ge=1, le=200)
    """Maximum number of passages to return."""


class ModelAction(Document):
    """Ask a model a single question.

    If there is a schema, the response is validated as JSON, and its fields become results.
    """

    prompt: str
    """Text of the prompt."""
    # pydantic's models have a method `schema`, hence the underscore and the alias; also in `GateCheck`.
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """JSON schema of the response. It must describe an object."""
    model: str = ""
    """Model to ask. The default is the planner's first model."""
    max_output_tokens: int | None = None
    """Maximum number of output tokens. The default is the planner's limit."""


class DiffReview(Document):
    """Limits for the changes since a step, or since the start of the plan."""

    since: str = ""
    """ID of the step to compare with. If empty, the start of the plan is used."""
    max_files: int | None = None
    """Maximum number of changed files."""
    max_lines: int | None = None
    """Maximum number of added and removed lines, taken together."""
    only: tuple[str, ...] = ()
    """Glob patterns. Every changed path must match at least one of them."""
    never: tuple[str, ...] = ()
    """Glob patterns. No changed path may match any of them."""


class GateCheck(Document):
    """Each check of a gate sets exactly one of `command`, `invariant`, `artifact`, `diff` and `prose`."""

    name: str = ""
    """Name to show to people. The default is the check itself."""
    command: str = ""
    """Shell command. The check passes if the command exits with code 0 in the sandbox."""
    invariant: str = ""
    """Expression that must be true."""
    artifact: str = ""
    """Reference `${step.output}` to a value that is validated against `schema`, or whose claims are counted for
    `confirmations`.
    """
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """JSON schema for `artifact`."""
    confirmations: int = 0
    """Minimum number of sources on different hosts (or of reproducible tests) for each claim in `artifact`."""
    diff: DiffReview | None = None
    prose: str = ""
    """Condition that only a person can check. The gate asks for approval."""


class Option(Document):
    """An answer that a person can choose, with its pros and cons."""

    name: str
    """Text that selects the option. It must be unique."""
    pros: tuple[str, ...] = ()
    """Arguments for the option. For information only."""
    cons: tuple[str, ...] = ()
    """Arguments against the option. For information only."""
    cost: str = ""
    """Expected cost. For information only."""
    to: tuple[str, ...] = ()
    """Steps that only start if this option is chosen."""


class Approval(Document):
    """Approval by a person."""

    role: str = ""
    """Role that should decide. People see it, and `approve --role` rejects others. It is not enforced otherwise."""
    count: int = Field(default=1, ge=1, le=10)
    """Number of different people who have to approve."""
    question: str = ""
    """Question to ask. By default, the question is whether the plan may continue."""
    options: tuple[Option, ...] = ()
    """Options to choose from. The default options are to approve or reject."""


class GateAction(Document):
    """Run checks, then optionally request an approval.

    A gate that does not open fails with the failure class `policy`.
    """

    checks: tuple[GateCheck, ...] = ()
    """Checks, all of which must pass."""
    approval: Approval | None = None
    """Approval to request after all checks have passed."""
    window: str = ""
    """Name of an approval window. Gates with the same window are approved together."""
    evidence: tuple[str, ...] = ()
    """References to show to the approver."""


class Rule(Document):
    """Row of a decision table."""

    when: str
    """Condition of this row, as an expression. The first row whose condition is true decides."""
    to: tuple[str, ...] = ()
    """Steps to start. The steps of all other rows are skipped."""
    note: str = ""
    """Name of this path. For information only."""


class DecisionAction(Document):
    """Choose one of several paths by rules, by the best-supported hypothesis, or by asking a model.

    `${id.chosen}` lists the IDs of the steps that are started. `${id.option}` is the name of the chosen
    option or hypothesis.
    """

    rules: tuple[Rule, ...] = ()
    """Decision table. The first row whose condition is true decides."""
    otherwise: tuple[str, ...] = ()
    """Steps to start if no path is chosen in another way."""
    hypotheses: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Mapping of hypotheses to the steps to start if that hypothesis is the best supported one."""
    min_confidence: float = Field(default=0.6, ge=0, le=1)
    """Minimum confidence. If the confidence is lower, or if there is a tie, no hypothesis is chosen."""
    question: str = ""
    """Question to ask a model. Requires `options`."""
    options: tuple[Option, ...] = ()
    """Options that the model can choose from."""


class CheckpointAction(Document):
    """Save the tree and the outputs as a named checkpoint."""

    name: str = ""
    """Name of the checkpoint. The default is the ID of the step."""


class MergeStart(Document):
    """A change that could not be merged. An episode starts from it to resolve the conflict."""

    base: str = Field(pattern=TREE_PATTERN)
    """Tree before the change."""
    tree: str = Field(pattern=TREE_PATTERN)
    """Tree after the change."""


class EpisodeAction(Document):
    """Run a child episode. A coding agent works on the goal until the checks pass."""

    goal: str
    """Goal of the episode."""
    definition_of_done: tuple[Check, ...] = ()
    """Commands that must pass. The default is the plan's definition of done."""
    folder: str = ""
    """Folder of the project, relative to the root of the working tree, such as `services/api`. Commands start there."""
    executor: str = ""
    """Executor to use. The default is taken from the worker's settings."""
    planner: str = ""
    """Planner to use. The default is taken from the worker's settings."""
    budget: Budget | None = None
    """Budget of the episode. The default is taken from the settings."""
    worktree: bool = False
    """Work in a separate git worktree, in parallel with other steps that do so. The worktree starts with the current
    files. Changes are merged (three-way) in plan order. If there is a conflict, the step fails and its tree is kept.
    """
    merge: MergeStart | None = None
    """Start with this change merged in, with conflict markers around its conflicts. Requires `worktree`."""
