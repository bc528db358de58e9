"""Settings for execution, planning and the coder."""

import posixpath
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator

from tightloop.coder.model import Positive, Role, Temperature, TopP, known_roles, known_tools
from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.episode.scenarios import DRAFTS_LIMIT
from tightloop.errors import did_you_mean
from tightloop.safety.code.rules import CodeRule, CodeRules, default_rules
from tightloop.safety.rubric import Rubric
from tightloop.settings.services import Count, HostRule, Pattern, Seconds, Section

if TYPE_CHECKING:
    # The command rules behind this import need a shell parser, which only workers install.
    from tightloop.plan.guard import Caution


class AgentSettings(Section):
    """A coding agent's startup options and model connection on the hosts that use these settings."""

    program: str = ""
    """Program name or absolute path. If empty, the agent's usual program is looked up in PATH."""
    arguments: tuple[str, ...] = ()
    """Extra command-line arguments."""
    model: str = ""
    """Model name in the form that the agent expects. If empty, the agent's default is used."""
    base_url: str = ""
    """Base URL of the model provider. If empty, the agent's default is used."""
    api_key_env: str = ""
    """Name of the worker's environment variable that contains the API key. If empty, the agent's usual variable is
    used.
    """
    login: bool = False
    """Use the existing login of the worker's user instead of an API key. The login file is copied to the agent's home,
    where the agent's tools can read it.
    """
    gateway: bool = True
    """Route the agent's model calls through a gateway on the loopback interface, so that the agent never sees the API
    key.
    """
    environment: tuple[str, ...] = ()
    """Names of additional worker environment variables to pass to the agent and its commands."""


class AgentSSettings(Section):
    """Settings for Simular's Agent S, which finds the chat box in a screenshot of the window.

    Agent S is used if `chat_key` does not focus the chat box. It only returns the position to click.
    Afterwards, the focus is verified as usual.
    """

    python: str = ""
    """Python interpreter of an environment with the package `gui-agents`, set up as described in docs/macos.md. If
    empty, Agent S is not used.
    """
    model: str = ""
    """Grounding model, such as UI-TARS, served through OpenAI's Chat Completions API."""
    base_url: str = ""
    """Base URL of the service. If empty, OpenAI is used."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the worker's environment variable that contains the API key. Leave the variable unset if the service does
    not need a key.
    """
    grid: tuple[Count, Count] | None = None
    """Width and height of the coordinate grid that the model uses in its responses. If null, coordinates are screenshot
    pixels.
    """

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        if self.python and not self.model:
            raise ValueError("model is missing. Set model to the grounding model that finds the chat box")
        return self


class WindowSettings(Section):
    """The editor window that the `cursor-gui` executor may control, on the hosts that use these settings."""

    driver: Literal["auto", "mac", "applescript", "x11"] = "auto"
    """Window driver. On macOS, `auto` selects `mac` if its libraries are installed, otherwise `applescript`. On Linux,
    it selects `x11`.
    """
    apps: tuple[str, ...] = ("com.todesktop.230313mzl4w4u92", "Cursor")
    """Programs whose windows match, given as bundle IDs on macOS and as window classes on X11."""
    title: Pattern = r"^({project}( [-–—] Cursor)?|.+ [-–—] {project}( [-–—] [^-–—]+){0,2})( ⟦[^⟧]*⟧)?$"
    """Regular expression that the window title must match. `{project}` is replaced by the name of the workspace folder.
    If no window of `apps` matches, no window is touched. The default expects the project name after the file name and
    before the profile and program names. Windows with remote folders never match.
    """
    allow_unknown_roots: bool = False
    """Also deliver to an editor that does not report which folder is open, or that does not run hooks. In this case,
    only the title prevents a delivery to another folder with the same name.
    """
    box: Pattern = r"^(chat input\b|composer input\b|add a follow-up|plan, )"
    """Regular expression that matches the accessible name of the chat box. It is case-insensitive."""
    chat_key: Annotated[str, Field(pattern=r"^[a-z0-9]+(\+[a-z0-9]+)*$")] = "mod+l"
    """Key combination that focuses the chat box. `mod` is Command on macOS and Control elsewhere."""
    agent_s: AgentSSettings = Field(default_factory=AgentSSettings)
    """Fallback that locates the chat box in a screenshot. The screenshot leaves this host."""
    transcripts: str = "~/.cursor/projects"
    """Folder in which the editor stores its agent's conversations."""


class ExecutorSettings(Section):
    """Default executor and executor limits."""

    default: str = Field(default="command", min_length=1)
    """Executor for requests that do not specify one: `command`, `person`, or the name of an agent."""
    fallback: tuple[str, ...] = ()
    """Executors to try in order if the selected one is not installed or has no API key."""
    agents: dict[str, AgentSettings] = Field(default_factory=dict)
    """Agent settings by executor name, such as `codex`, `claude`, `opencode` or `gemini`."""
    programs: tuple[str, ...] = (
        "ruff",
        "black",
        "isort",
        "autoflake",
        "pyupgrade",
        "prettier",
        "eslint",
        "stylelint",
        "gofmt",
        "goimports",
        "rustfmt",
        "clang-format",
        "shfmt",
    )
    """Programs that the `command` executor may run from plan steps. Only list formatters and linters here:
    interpreters, shells, package managers and test runners would allow a plan to run anything.
    """
    argv: tuple[str, ...] = ()
    """Command template that receives the whole plan. The placeholders are `{plan_file}`, `{workspace}`,
    `{iteration}` and `{episode}`. If empty, the steps of the plan are run instead.
    """
    wall_limit_s: Seconds = 3600.0
    """Maximum duration of one delivery."""
    idle_limit_s: Seconds = 900.0
    """Maximum time without output before a delivery is stopped."""
    retries: Count = 12
    """Number of consecutive deliveries that may fail immediately (within a minute, and without changing a file) or hit
    a limit before a person is asked. They do not count as iterations.
    """
    retry_for_s: Seconds = 7200.0
    """Maximum time to wait between such deliveries before a person is asked. Waits until a time that the provider named
    do not count.
    """
    on_crash: Literal["ask", "retry", "verify"] = "retry"
    """Handling of an interrupted delivery whose outcome is unknown, for example after a worker crash. `retry` delivers
    again if no file has changed and the executor has no effects outside the working tree. Otherwise, it behaves like
    `verify`. `verify` never delivers again and checks the current files instead. `ask` lets a person decide.
    """


class WorkspaceSettings(Section):
    """The working tree of an episode or a plan."""

    drift: Literal["ask", "undo"] = "ask"
    """Handling of file changes that others make while the run is not paused. `ask` stops the run and asks a person.
    `undo` saves the changes and reverts them. The status and the result then list the files and the command that
    restores them.
    """
    env_files: bool = True
    """Copy ignored `.env*` files from the workspace into worktrees. Snapshots never contain them."""
    include: tuple[str, ...] = ()
    """Patterns, as in `.gitignore`, for further small ignored files to copy. The workspace's `.worktreeinclude` can
    list more.
    """
    environments: Literal["mount", "copy"] = "mount"
    """Source of a worktree's folders of installed packages, such as `.venv` and `node_modules`. `mount` shows the
    workspace's folders read-only. `copy` suits checks that write into them.
    """
    environments_mb: Annotated[int, Field(ge=0)] = 2048
    """Maximum size of these copies per worktree in MB. Larger folders are mounted."""
    setup_hosts: tuple[HostRule, ...] = (
        "registry.npmjs.org",
        "registry.yarnpkg.com",
        "pypi.org",
        "files.pythonhosted.org",
    )
    """Package indexes that setup commands may connect to, as in `sandbox.network`."""
    cached_environments_mb: Annotated[int, Field(ge=0)] = 20_480
    """Maximum total size in MB of the package folders that setup commands have installed on this host. The least
    recently used ones are removed first.
    """
    history: Literal["all", "past"] = "all"
    """Commits that commands and agents see in a worktree. `past` hides all commits that are not ancestors of the
    checked-out commit, such as later commits and commits on other branches. It copies the history, so creating a
    worktree takes longer.
    """


class SandboxSettings(Section):
    """The sandbox for commands in plans and definitions of done."""

    backend: Literal["auto", "docker", "bubblewrap", "sandbox-exec"] = "auto"
    """Sandbox backend. `auto` selects `docker` if `image` is set, otherwise `bubblewrap` on Linux or `sandbox-exec` on
    macOS.
    """
    unsafe_local: bool = False
    """Run commands without a sandbox if none is available. By default, commands are not run in this case."""
    image: str = ""
    """Docker image that contains the project's tools."""
    network: tuple[HostRule, ...] = ()
    """Hosts that commands and agents may connect to, in addition to the agent's model provider. Entries have the form
    `example.org`, `*.example.org` (subdomains of example.org), `host:port` (only this port, even if the host is private
    or is this machine) or `*` (all public hosts). If empty, no hosts are allowed.
    """
    cores: Annotated[float, Field(gt=0, le=256)] = 1.0
    """Number of CPU cores per command."""
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    """Memory limit per command in MB, including its child processes."""
    processes: Annotated[int, Field(ge=8)] = 256
    """Maximum number of concurrent processes and threads per command."""
    disk_mb: Annotated[int, Field(ge=64)] = 8192
    """Maximum amount of data in MB that a command, or a delivery to an agent, may add to the working tree and other
    writable folders.
    """
    read: tuple[str, ...] = ()
    """Additional absolute paths that commands may read."""
    write: tuple[str, ...] = ()
    """Additional absolute paths that commands may change."""


class RoleSettings(Section):
    """Overrides for a coder role. Omitted fields keep the values from the role's file."""

    tools: tuple[str, ...] = ()
    """Tool names, in the order in which the model sees them. `finish` is always included."""
    models: tuple[str, ...] = ()
    """Model names in order of preference. The first one that the service offers is used."""
    temperature: Temperature | None = None
    """Sampling temperature. It is ignored for models that do not support it."""
    top_p: TopP | None = None
    """Nucleus sampling threshold. It is ignored for models that do not support it."""
    max_output_tokens: Positive | None = None
    """Maximum number of output tokens per response."""
    max_turns: Positive | None = None
    """Maximum number of model responses per task of this role."""


class CoderSettings(Section):
    """Models and limits of the built-in coder."""

    base_url: str = ""
    """Base URL of an OpenAI-compatible service. If empty, the value from `planner` is used."""
    api_key_env: str = ""
    """Name of the environment variable that contains the API key. Do not enter the key itself. If both this and
    `base_url` are empty, the value from `planner` is used. If only this is empty, no key is sent.
    """
    api: Literal["auto", "responses", "chat"] = "auto"
    """API to use. If `base_url` is empty, `auto` uses the value from `planner`. Otherwise, it selects `responses` for
    OpenAI and `chat` for other services.
    """
    models: tuple[str, ...] = ()
    """Models in order of preference. If a model is rejected or unavailable, the next one is used. If empty, the models
    from `planner` are used.
    """
    timeout_s: Annotated[float, Field(gt=0, le=840)] = 600.0
    """Time limit for a complete response."""
    # Reasoning models send nothing while they think, at services that do not stream their thoughts.
    silence_s: Seconds = 120.0
    """Maximum pause while a response is being received."""
    max_turns: Count = 60
    """Maximum number of model responses per delivery, across all roles."""
    max_tokens: Count = 1_000_000
    """Maximum number of prompt and output tokens per delivery, if the service reports them."""
    rounds: Annotated[int, Field(ge=0, le=20)] = 3
    """Maximum number of additional rounds after failed checks or tests. Each round starts with a reflection."""
    context_tokens: Annotated[int, Field(ge=2_000)] = 40_000
    """Prompt size in tokens above which older turns are replaced by a summary."""
    keep_tokens: Annotated[int, Field(ge=500)] = 15_000
    """Size in tokens of the most recent turns, which are kept unchanged when older turns are summarised."""
    planning: bool = False
    """Let the role `planner` read the code before the role `coder` changes it."""
    testing: bool = False
    """Let the role `tester` write tests for the change. Only tests that are able to fail count."""
    roles: dict[str, RoleSettings] = Field(default_factory=dict)
    """Overrides by role name: `planner`, `coder`, `tester` or `reflector`."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.keep_tokens > self.context_tokens / 2:
            raise ValueError(
                f"keep_tokens must be at most half of context_tokens ({self.context_tokens}), got {self.keep_tokens}: "
                "otherwise every few turns would need a new summary and an uncached prompt"
            )
        for name, role in self.roles.items():
            if name not in known_roles():
                raise ValueError(f"unknown role {name!r} (coder.roles.{name}). {did_you_mean(name, known_roles())}")
            for tool in role.tools:
                if tool not in known_tools():
                    hint = did_you_mean(tool, known_tools())
                    raise ValueError(f"unknown tool {tool!r} (coder.roles.{name}.tools). {hint}")
        return self

    def role(self, name: str) -> Role:
        """Return a role from its file, with these settings applied.

        Raises:
            KeyError: the role is unknown.
        """
        role = known_roles()[name]
        over = self.roles.get(name, RoleSettings())
        # Empty means not set, so that a partial override keeps the rest of the role's file.
        overrides = {field: value for field, value in over if value not in (None, ())}
        return Role.model_validate({**dict(role), "models": role.models or self.models, **overrides})


class PlannerSettings(Section):
    """The episode planner and its model service."""

    kind: Literal["auto", "openai", "heuristic"] = "auto"
    """Planner to use. `auto` selects `openai` if an API key is set, otherwise `heuristic`, which does not need a key.
    """
    models: tuple[str, ...] = Field(default=("gpt-5.1", "gpt-5-mini"), min_length=1)
    """Models in order of preference. If a model is rejected or unavailable, the next one is used."""
    base_url: str = ""
    """Base URL of an OpenAI-compatible service. If empty, OpenAI is used."""
    api_key_env: str = Field(default="OPENAI_API_KEY", min_length=1)
    """Name of the environment variable that contains the API key. Do not enter the key itself."""
    api: Literal["auto", "responses", "chat"] = "auto"
    """API to use. `auto` selects `responses` for OpenAI and `chat` for any other `base_url`."""
    timeout_s: Seconds = 120.0
    """Time limit for one call."""
    # Below the activity's own time limit, which must not end it first: see `workflows/run/activities.py`.
    plan_timeout_s: Annotated[float, Field(gt=0, le=7_000)] = 600.0
    """Time limit for all calls and attempts for one plan, excluding waiting times requested by the service. When it is
    exceeded, a person is asked.
    """
    max_output_tokens: Count = 4000
    """Maximum number of output tokens per response."""
    corrections: int = Field(default=2, ge=0, le=10)
    """Maximum number of times that a response is sent back because it does not follow the template."""
    context_characters: int = Field(default=24_000, ge=8_000)
    """Maximum prompt length in characters."""


HostPattern = Annotated[
    str, Field(pattern=r"^(\*\.)?[^\s/@*]+$", examples=["tracker.example.org", "*.example.org", "127.0.0.1:8080"])
]


class PlanSettings(Section):
    """Secrets that plans may send, and limits for plans written by a model."""

    secrets: dict[str, tuple[HostPattern, ...]] = Field(default_factory=dict)
    """Worker environment variables that any plan may use in `secret_headers`, each with its allowed hosts, such as
    `{TRACKER_TOKEN: [tracker.example.org]}`. If a host has no port, the secret is only sent over https. `host:port`
    allows exactly this port.
    """
    agent_planning: bool = False
    """Allow the model from `planner` to write plans for a goal and to revise plans with failed steps. Plans written by
    people can always run.
    """
    allow: tuple[str, ...] = (
        "cat **",
        "diff **",
        "echo **",
        "git diff **",
        "git log **",
        "git show **",
        "git status **",
        "grep **",
        "head **",
        "ls **",
        "tail **",
        "test **",
        "true",
        "wc **",
    )
    """Commands that plans written by a model may run without approval, in addition to `executor.programs`. `*` matches
    one word, and `**` matches any number of words.
    """
    write: tuple[str, ...] = ("**",)
    """Glob patterns for the files that steps may change."""
    network: tuple[HostPattern, ...] = ()
    """Hosts that `http` steps may send requests to."""
    max_steps: Annotated[int, Field(ge=1, le=2_000)] = 200
    """Maximum number of steps in a plan."""
    max_attempts: Count = 1_000
    """Maximum total number of attempts across all steps."""
    max_cost_usd: Annotated[float, Field(gt=0)] | None = 5.0
    """Maximum cost in USD of planning and all steps, counting only calls whose price is known. Null means no limit."""
    max_tokens: Annotated[int, Field(ge=1)] | None = 1_000_000
    """Maximum number of tokens for planning and all steps. Null means no limit."""
    max_wall_hours: Annotated[float, Field(gt=0, le=8_760)] | None = 4.0
    """Maximum working time in hours, excluding the time spent waiting for a person. Null means no limit."""
    max_depth: Annotated[int, Field(ge=1, le=16)] = 2
    """Maximum nesting depth of plans, including the outermost plan."""
    max_fan_out: Annotated[int, Field(ge=1, le=2_500)] = 25
    """Maximum number of steps that a template may expand to."""
    max_revisions: Count = 5
    """Maximum number of plan revisions, including the first version."""
    max_output_tokens: Count = 16_000
    """Maximum number of output tokens per response. Plans are longer than messages to an executor."""

    def caution(self, programs: Iterable[str], rubric: Rubric = Rubric.model_construct()) -> "Caution":
        """Return the limits for plans written by a model.

        Args:
            programs: additional programs that do not need approval.
            rubric: rubric whose deletion limits also apply to plans.
        """
        # Lazy imports, see `Caution` above.
        from tightloop.plan.document import Deletions, PlanBudget
        from tightloop.plan.guard import Caution, policy_for

        allowed = (*self.allow, *(f"{program} **" for program in programs))
        hours = self.max_wall_hours
        budget = PlanBudget.of(self, max_wall_s=None if hours is None else hours * 3_600)
        deletions = Deletions(files=rubric.deleted_files, lines=rubric.deleted_lines, share=rubric.deleted_share)
        policy = policy_for(allowed, write=self.write, network=self.network, deletions=deletions)
        return Caution(policy=policy, budget=budget, max_steps=self.max_steps)


class GateSettings(Section):
    """Gates that `verify` runs in order. By default, `verify` runs the project's checks."""

    checks: tuple[Check, ...] = ()
    """Gates for all projects, such as `pytest -q` or `{run: pytest -q, name: tests, timeout_s: 900}`."""
    projects: dict[str, tuple[Check, ...]] = Field(default_factory=dict)
    """Gates by absolute project path. They replace `checks` for that project."""

    def for_project(self, workspace: str) -> tuple[Check, ...]:
        """Return the configured gates of a project. The result is empty if none are configured."""
        # Compared as text: settings do not access files, and the workspace may be on another host.
        path = posixpath.normpath(workspace)
        checks_by_folder = {posixpath.normpath(folder): checks for folder, checks in self.projects.items()}
        return checks_by_folder.get(path, self.checks)


class BudgetSettings(Section):
    """The default budget of an episode. Null means unlimited."""

    max_iterations: Count | None = 15
    """Maximum number of iterations. Each iteration plans, works and checks once."""
    warn_at_iteration: Count | None = 12
    """Iteration from which the planner is asked to converge on a solution."""
    max_executor_failures: Count | None = 6
    """Maximum number of deliveries per episode that fail, time out or end with an unknown outcome."""
    max_tokens: Count | None = None
    """Maximum number of tokens for all model calls, excluding agents that do not report their token usage."""
    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    """Maximum cost in USD of all model calls whose price is known."""
    max_wall_hours: Annotated[float, Field(gt=0, le=8_760)] | None = 12.0
    """Maximum working time in hours, excluding pauses."""

    def as_budget(self) -> Budget:
        """Return the settings as an episode budget."""
        hours = self.max_wall_hours
        fields = self.model_dump(exclude={"max_wall_hours"})
        return Budget(**fields, max_wall_time=None if hours is None else timedelta(hours=hours))


class TrackingSettings(Section):
    """Settings for detecting stuck episodes."""

    pause_after: Count = 4
    """Number of consecutive iterations without progress after which an episode pauses."""
    unattended: bool = False
    """Send an alert instead of pausing if the work is stuck. Only the budget stops such a run."""
    scenario_reports: int = Field(default=3, ge=0, le=100)
    """Number of times to tell the planner how many hidden scenarios fail. After that, a person decides."""
    tests_twice_s: float = Field(default=60.0, ge=0, le=3_600)
    """Maximum duration in seconds of a pytest check for which the proof also runs the tests twice in one process. 0
    turns this off.
    """
    drafts: int = Field(default=0, ge=0, le=DRAFTS_LIMIT)
    """Maximum number of hidden scenarios that the planner's model drafts for an episode before the work starts, such as
    5. 0 turns this off. It costs two model calls.
    """
    review: bool = False
    """Have the planner's model review each proven change of an episode. If the model doubts that the change solves the
    task in general, and quotes lines that show it, a person is asked. Each review costs one model call.
    """


class Preset(StrEnum):
    """Strictness of the alignment rubric."""

    CAREFUL = "careful"
    """About half the tolerance of `normal`. Intended for critical code."""
    NORMAL = "normal"
    """Calibrated on `tests/data/alignment`."""
    BOLD = "bold"
    """About twice the tolerance of `normal`. Intended for experiments and long refactorings."""


PresetName = Annotated[Preset, WithJsonSchema({"type": "string", "enum": [preset.value for preset in Preset]})]
ALIGNMENT: Mapping[Preset, Mapping[str, float]] = {
    Preset.CAREFUL: {
        "cpu_minutes": 5.0,
        "wall_minutes": 45.0,
        "deleted_files": 10,
        "deleted_share": 0.25,
        "deleted_lines": 250,
        "suppressions": 2,
    },
    Preset.NORMAL: {},
    Preset.BOLD: {
        "cpu_minutes": 20.0,
        "wall_minutes": 180.0,
        "deleted_files": 50,
        "deleted_share": 0.8,
        "deleted_lines": 1_000,
        "suppressions": 10,
    },
}
"""Limits of the rubric that differ from its defaults."""


class AlignmentSettings(Rubric, Section):
    """Limits of the alignment rubric.

    The limits determine which findings need a person's decision before a hand-off and after the work.
    """

    preset: PresetName = Preset.NORMAL
    """Default for the limits in this section: `careful`, `normal` or `bold`."""
    judge: bool = True
    """Before asking a person, ask the planner's model about findings that no rule can decide."""
    code: dict[str, CodeRule] = Field(default_factory=dict)
    """Rules for code that is reviewed before it runs, by name. For an existing rule, only the given fields are changed
    (`network: {verdict: allow}`). Other names add new rules.
    """
    dependencies: tuple[str, ...] = ()
    """Packages that this code may use without asking, in addition to the project's dependencies."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        # An unknown preset is left to the validation, which names the known ones.
        if not isinstance(values, Mapping) or values.get("preset") not in list(Preset):
            return values
        return {**ALIGNMENT[Preset(values["preset"])], **values}

    @model_validator(mode="after")
    def _code_is_known(self) -> Self:
        if self.code:
            self.code_rules()
        return self

    def code_rules(self) -> CodeRules:
        """Return the default code rules with the changes from this section."""
        return default_rules().with_changes(
            self.code, off=self.allow, dependencies=self.dependencies, enabled=self.enabled
        )

    @property
    def rubric(self) -> Rubric:
        """The limits of this section as a rubric, without the other fields."""
        return Rubric(**{name: getattr(self, name) for name in Rubric.model_fields})
