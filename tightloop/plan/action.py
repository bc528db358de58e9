"""The actions of a step: one model for each capability. Text may hold references such as `${collect.sources}`."""

from typing import Any

from pydantic import Field

from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.value import Document

TREE_PATTERN = r"^[0-9a-f]{40}$"
"""Id of a git tree."""


class ShellAction(Document):
    """A command in the sandbox. References in it are quoted for the shell."""

    run: str
    """For `/bin/sh`. References are quoted for it; a list becomes one word for each item, within quotes its JSON."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables for the command; nothing of the worker is passed on."""
    folder: str = ""
    """Below the root of the tree."""


class FileEdit(Document):
    """One change of one file: exactly one of the ways below."""

    path: str
    """Below the root of the tree."""
    search: str = ""
    """Text that must occur exactly once (or be there already as `replace`)."""
    replace: str = ""
    """What stands in place of `search`."""
    content: str | None = None
    """The whole new file."""
    delete: bool = False
    """Remove the file; one that is gone already is fine."""


class EditAction(Document):
    """Changes of files: search and replace, whole files, or a unified diff. All or nothing; idempotent."""

    files: tuple[FileEdit, ...] = ()
    """Changes one by one, instead of `diff`."""
    diff: str = ""
    """Unified diff with paths below the root, as `git diff` writes it, or one reference to such a text.

    No other references are replaced in it: `${x}` there is the content of a file.
    """


class GitAction(Document):
    """What is done with git, in this order: branch, commit, pull request text."""

    branch: str = ""
    """Created from HEAD unless it exists, and checked out."""
    commit: str = ""
    """Message; may hold `${step}`, `${title}`, `${kind}` and `${plan}`. Nothing to commit is fine."""
    paths: tuple[str, ...] = ()
    """What is committed; empty: all that is not ignored."""
    pull_request: str = ""
    """Title; the text is generated from the plan's steps and becomes the output `pull_request`."""


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class HttpAction(Document):
    """Requests to hosts that the policy allows: either `url`, for one answer, or `urls`, for documents."""

    url: str = ""
    """Asked once, by `method`; results: `status`, `url`, `headers`, `body`, `size` and `json`."""
    method: str = "GET"
    """Of the request to `url`."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Sent with the request to `url`."""
    secret_headers: dict[str, str] = Field(default_factory=dict)
    """Header -> environment variable of the worker that holds its value; `plans.secrets` says where each may go."""
    body: Any = None
    """Text is sent as it is, everything else as JSON."""
    expect_status: tuple[int, ...] = (200, 201, 202, 204)
    """Every other status is a failure."""
    urls: str | tuple[str, ...] = ()
    """Documents for the cache, or a reference to a list of them; results: `documents`, each with time, hash and where
    it came from, `texts`, `duplicates` and `failed`."""
    max_age_s: float = Field(default=86_400.0, ge=0)
    """A cached copy that is younger is used instead of a request."""
    at_least: int = Field(default=1, ge=0)
    """Documents that must be had for the step to complete."""


class SearchAction(Document):
    """Ranked passages from the project and from cached documents. Result: `hits` (list)."""

    query: str
    """Words, not a pattern."""
    where: str = Field(default="both", pattern="^(project|cache|both)$")
    """The tree, the documents that were fetched, or both."""
    paths: tuple[str, ...] = ()
    """Glob patterns below the root; empty: all text files that are not ignored."""
    limit: int = Field(default=10, ge=1, le=200)
    """Number of passages."""


class ModelAction(Document):
    """One question to a model. With a schema the answer is checked JSON: its fields are results."""

    prompt: str
    """What is asked."""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """JSON schema of an object."""
    model: str = ""
    """Default: the planner's first."""
    max_output_tokens: int | None = None
    """Default: the planner's bound."""


class DiffReview(Document):
    """Bounds of the change since a step or since the plan began."""

    since: str = ""
    """Step id; empty: since the plan began."""
    max_files: int | None = None
    """Changed files."""
    max_lines: int | None = None
    """Added and removed lines."""
    only: tuple[str, ...] = ()
    """Glob patterns: every changed path must match one."""
    never: tuple[str, ...] = ()
    """Glob patterns: no changed path may match one."""


class GateCheck(Document):
    """One automatic check of a gate: exactly one of the ways below; `name` is what a person reads."""

    name: str = ""
    """For readers; default: the check itself."""
    command: str = ""
    """Passes with exit code 0, in the sandbox."""
    invariant: str = ""
    """Expression."""
    artifact: str = ""
    """`${step.output}` that must fit `schema`, or whose claims `confirmations` counts."""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """JSON schema."""
    confirmations: int = 0
    """Every claim in `artifact` has at least this many sources of different hosts (or reproducible tests)."""
    diff: DiffReview | None = None
    prose: str = ""
    """Nothing can check it but a person: the gate asks for approval."""


class Option(Document):
    """One answer that a person can give, with what speaks for and against it."""

    name: str
    """What is typed to choose it; unique."""
    pros: tuple[str, ...] = ()
    """For readers."""
    cons: tuple[str, ...] = ()
    """For readers."""
    cost: str = ""
    """For readers."""
    to: tuple[str, ...] = ()
    """Steps that start only if this option is chosen."""


class Approval(Document):
    """A person's yes."""

    role: str = ""
    """Who should decide, for readers and for `approve --role`."""
    count: int = Field(default=1, ge=1, le=10)
    """Different people."""
    question: str = ""
    """What is asked; default: whether it may go on."""
    options: tuple[Option, ...] = ()
    """Answers to choose from; default: yes or no."""


class GateAction(Document):
    """Checks, then a person where one is asked for. A gate that does not open is a failure of class policy."""

    checks: tuple[GateCheck, ...] = ()
    """All of them must pass."""
    approval: Approval | None = None
    """Whom to ask when the checks pass."""
    window: str = ""
    """Gates with the same window are approved together."""
    evidence: tuple[str, ...] = ()
    """References that the person sees."""


class Rule(Document):
    """One row of a decision table."""

    when: str
    """Expression; the first row that holds decides."""
    to: tuple[str, ...] = ()
    """Steps that start; the steps of other rows are skipped."""
    note: str = ""
    """For readers; the name of the way that is taken."""


class DecisionAction(Document):
    """Which of several paths is taken: by rules, by the best supported hypothesis, or by a model.

    `${id.chosen}` is the list of the ids of the steps that start, `${id.option}` the name of the option or hypothesis.
    """

    rules: tuple[Rule, ...] = ()
    """The first that holds decides."""
    otherwise: tuple[str, ...] = ()
    """Steps that start where nothing else decides."""
    hypotheses: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Hypothesis -> steps that start if it is the best supported one."""
    min_confidence: float = Field(default=0.6, ge=0, le=1)
    """Below it, or with two equally good, no hypothesis is taken."""
    question: str = ""
    """Asked of a model, with the options."""
    options: tuple[Option, ...] = ()
    """What a model chooses from."""


class CheckpointAction(Document):
    """Keeps the tree and the outputs under a name."""

    name: str = ""
    """Default: the id of the step."""


class MergeStart(Document):
    """A change that could not be merged, for the episode that resolves it."""

    base: str = Field(pattern=TREE_PATTERN)
    """Tree that the change began with."""
    tree: str = Field(pattern=TREE_PATTERN)
    """Tree that it left."""


class EpisodeAction(Document):
    """A coding agent works on a goal until the checks are green: a child episode."""

    goal: str
    """What is to be true in the end."""
    definition_of_done: tuple[Check, ...] = ()
    """Commands that must pass; default: those of the plan."""
    executor: str = ""
    """Default: that of the worker's settings."""
    planner: str = ""
    """Default: that of the worker's settings."""
    budget: Budget | None = None
    """Default: that of the settings."""
    worktree: bool = False
    """Work in a git worktree that begins with the files of now, beside other steps that do so; a three-way merge takes
    the changes over in the order of the plan. A conflict fails the step, and its tree is kept."""
    merge: MergeStart | None = None
    """With `worktree`: begin with this change merged in, its conflicts between markers."""
