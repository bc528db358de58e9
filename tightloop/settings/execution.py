"""Settings of execution, planning and the coder."""

import posixpath
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator

from tightloop.coder.model import Positive, Role, Temperature, TopP, known_roles, known_tools
from tightloop.episode.budget import Budget
from tightloop.episode.check import Check
from tightloop.episode.progress import classification
from tightloop.episode.progress.classification import Preset
from tightloop.episode.progress.tracking import Thresholds
from tightloop.errors import did_you_mean
from tightloop.safety.code.rules import CodeRule, CodeRules, default_rules
from tightloop.safety.rubric import Rubric
from tightloop.settings.services import Count, HostRule, Pattern, Seconds, Section

if TYPE_CHECKING:
    # The command rules behind this import need a shell parser, which only workers install.
    from tightloop.plan.guard import Caution


class AgentSettings(Section):
    """Start and model connection of a coding agent, on the hosts with these settings."""

    program: str = ""
    """Program name or absolute path; empty: the agent's usual name, looked up in PATH."""
    arguments: tuple[str, ...] = ()
    """Extra command-line arguments."""
    model: str = ""
    """Model name as the agent expects it; empty: the agent's default."""
    base_url: str = ""
    """Base URL of the model provider; empty: the agent's default."""
    api_key_env: str = ""
    """Name of the worker's environment variable that holds the key; empty: the agent's usual one."""
    login: bool = False
    """Use the existing login of the worker's user instead of a key: the login file is copied into the agent's home,
    where
    the agent's tools can read it.
    """
    gateway: bool = True
    """Route the agent's model calls through a loopback gateway, so that the agent never has the key."""
    environment: tuple[str, ...] = ()
    """Names of additional environment variables of the worker that the agent and its commands can see."""


class AgentSSettings(Section):
    """Simular's Agent S, which finds the chat box in a screenshot of the window if `chat_key` does not focus it.

    It only returns a position to click; the focus is verified as always.
    """

    python: str = ""
    """Python of an environment with the package `gui-agents`, set up as in docs/macos.md. Empty: not used."""
    model: str = ""
    """Grounding model, such as UI-TARS, at a service with OpenAI's Chat Completions API."""
    base_url: str = ""
    """Base URL of the service; empty: OpenAI."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the worker's environment variable that holds the key; leave it unset if the service needs no key."""
    grid: tuple[Count, Count] | None = None
    """Width and height of the coordinate grid of the model's answers; null: pixels of the screenshot."""

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        if self.python and not self.model:
            raise ValueError("needs model: name the grounding model that finds the chat box")
        return self


class WindowSettings(Section):
    """Editor window that the executor `cursor-gui` may control, on the hosts with these settings."""

    driver: Literal["auto", "mac", "applescript", "x11"] = "auto"
    """Window driver. `auto`: `mac` if its libraries are installed, else `applescript`; `x11` on Linux."""
    apps: tuple[str, ...] = ("com.todesktop.230313mzl4w4u92", "Cursor")
    """Programs whose windows match: bundle ids on macOS, window classes on X11."""
    title: Pattern = r"^({project}( [-–—] Cursor)?|.+ [-–—] {project}( [-–—] [^-–—]+){0,2})( ⟦[^⟧]*⟧)?$"
    """Regular expression for the window title; `{project}` is replaced by the name of the workspace's folder. If no
    window
    of `apps` matches, nothing is touched. The default expects the project after the file name and before profile and
    program. Windows of remote folders never match.
    """
    allow_unknown_roots: bool = False
    """Also deliver to an editor that does not report its open folder, or that runs no hook. Then only the title
    prevents
    delivery to another folder of the same name.
    """
    box: Pattern = r"^(chat input\b|composer input\b|add a follow-up|plan, )"
    """Regular expression for the accessible name of the chat box, case-insensitive."""
    chat_key: Annotated[str, Field(pattern=r"^[a-z0-9]+(\+[a-z0-9]+)*$")] = "mod+l"
    """Key combination that focuses the chat box; `mod` is Command on macOS, Control elsewhere."""
    agent_s: AgentSSettings = Field(default_factory=AgentSSettings)
    """Fallback that finds the chat box in a screenshot; the screenshot leaves this host."""
    transcripts: str = "~/.cursor/projects"
    """Folder in which the editor stores its agent's conversations."""


class ExecutorSettings(Section):
    """Default executor, and limits of executors."""

    default: str = Field(default="command", min_length=1)
    """Executor of requests that name none: `command`, `person`, or an agent."""
    fallback: tuple[str, ...] = ()
    """Executors to try in order if the chosen one is not installed or has no key."""
    agents: dict[str, AgentSettings] = Field(default_factory=dict)
    """Agent settings by executor name: `codex`, `claude`, `opencode`, `gemini` ..."""
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
    """Programs that the `command` executor may run from plan steps: formatters and linters.
    Interpreters, shells, package managers and test runners would let a plan run anything.
    """
    argv: tuple[str, ...] = ()
    """Command template that receives the whole plan, with `{plan_file}` and `{workspace}`. Empty: the plan's steps are
    run instead.
    """
    wall_limit_s: Seconds = 3600.0
    """Maximum duration of one delivery."""
    idle_limit_s: Seconds = 900.0
    """Maximum time without output."""
    on_crash: Literal["ask", "retry", "verify"] = "retry"
    """Handling of an interrupted delivery with unknown outcome, for example after a worker died.
    `retry`: deliver again if no file changed and the executor has no effects outside the working tree, otherwise as
    `verify`. `verify`: never deliver again, check the current files. `ask`: a person decides.
    """


class WorkspaceSettings(Section):
    """Working tree of an episode or a plan."""

    drift: Literal["ask", "undo"] = "ask"
    """Handling of file changes that others make outside a pause. `ask`: stop and ask a person. `undo`: save and undo
    them; the status and the result name the files and the command that restores them.
    """


class SandboxSettings(Section):
    """Sandbox for the commands of plans and of definitions of done."""

    backend: Literal["auto", "docker", "bubblewrap", "sandbox-exec"] = "auto"
    """`auto`: docker if `image` is set, else bubblewrap (Linux) or sandbox-exec (macOS)."""
    unsafe_local: bool = False
    """Run commands without a sandbox if none is available. Otherwise nothing runs then."""
    image: str = ""
    """Docker image with the project's tools."""
    network: tuple[HostRule, ...] = ()
    """Hosts that commands and agents may reach, besides an agent's model: `example.org`, `*.example.org` (its
    subdomains), `host:port` (only that port, even if private or on this host), `*` (every public host). Empty: none.
    """
    cores: Annotated[float, Field(gt=0, le=256)] = 1.0
    """CPU cores per command."""
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    """Memory limit of a command, including its child processes."""
    processes: Annotated[int, Field(ge=8)] = 256
    """Maximum number of concurrent processes and threads of a command."""
    disk_mb: Annotated[int, Field(ge=64)] = 8192
    """Maximum data that one command, or one delivery to an agent, may add to the working tree and other writable
    folders.
    """
    read: tuple[str, ...] = ()
    """Additional absolute paths that commands may read."""
    write: tuple[str, ...] = ()
    """Additional absolute paths that commands may change."""


class RoleSettings(Section):
    """Overrides for one role of the coder; omitted fields keep the values of the role's file."""

    tools: tuple[str, ...] = ()
    """Tool names, in the order shown to the model; `finish` is always included."""
    models: tuple[str, ...] = ()
    """Model names in order of preference; the first one that the service offers is used."""
    temperature: Temperature | None = None
    """Sampling temperature; ignored for models without it."""
    top_p: TopP | None = None
    """Nucleus sampling threshold; ignored for models without it."""
    max_output_tokens: Positive | None = None
    """Maximum output tokens per response."""
    max_turns: Positive | None = None
    """Maximum model responses per task of the role."""


class CoderSettings(Section):
    """Built-in coder: models and bounds."""

    base_url: str = ""
    """Base URL of an OpenAI-compatible service; empty: that of `planner`."""
    api_key_env: str = ""
    """Name of the environment variable that holds the key, never the key itself. Empty: that of `planner` if `base_url`
    is
    empty too; otherwise no key is sent.
    """
    api: Literal["auto", "responses", "chat"] = "auto"
    """`auto`: that of `planner` if `base_url` is empty; else `responses` for OpenAI itself and `chat` for other
    services.
    """
    models: tuple[str, ...] = ()
    """Models in order of preference; the next one is used if one is rejected or unavailable. Empty: those of `planner`.
    """
    timeout_s: Annotated[float, Field(gt=0, le=840)] = 600.0
    """Time limit of one complete response."""
    # Reasoning models send nothing while they think, at services that do not stream their thoughts.
    silence_s: Seconds = 120.0
    """Maximum pause within a response."""
    max_turns: Count = 60
    """Maximum model responses in one delivery, all roles together."""
    max_tokens: Count = 1_000_000
    """Maximum prompt and output tokens of one delivery, if the service reports them."""
    rounds: Annotated[int, Field(ge=0, le=20)] = 3
    """Maximum number of further rounds after failing checks or tests, each preceded by a reflection."""
    context_tokens: Annotated[int, Field(ge=2_000)] = 40_000
    """Prompt size above which older turns are replaced by a summary."""
    keep_tokens: Annotated[int, Field(ge=500)] = 15_000
    """Size of the newest turns that are then kept unchanged."""
    planning: bool = False
    """Let the role `planner` read the code before the role `coder` changes it."""
    testing: bool = False
    """Let the role `tester` write tests for the change; only tests that can fail count."""
    roles: dict[str, RoleSettings] = Field(default_factory=dict)
    """Overrides by role name: planner, coder, tester, reflector."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.keep_tokens > self.context_tokens / 2:
            raise ValueError(
                f"keep_tokens {self.keep_tokens} must not be above half of context_tokens {self.context_tokens}: "
                "otherwise a new summary, and an uncached prompt, is needed every few turns"
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
        """Return a role from its file with these settings applied.

        Raises:
            KeyError: unknown role.
        """
        role = known_roles()[name]
        over = self.roles.get(name, RoleSettings())
        # Empty means not set, so that a partial override keeps the rest of the role's file.
        overrides = {field: value for field, value in over if value not in (None, ())}
        return Role.model_validate({**dict(role), "models": role.models or self.models, **overrides})


class PlannerSettings(Section):
    """Planner of episodes and its model service."""

    kind: Literal["auto", "openai", "heuristic"] = "auto"
    """`auto`: `openai` if a key is set, else `heuristic`, which needs none."""
    models: tuple[str, ...] = Field(default=("gpt-5.1", "gpt-5-mini"), min_length=1)
    """Models in order of preference; the next one is used if one is rejected or unavailable."""
    base_url: str = ""
    """Base URL of an OpenAI-compatible service; empty: OpenAI."""
    api_key_env: str = Field(default="OPENAI_API_KEY", min_length=1)
    """Name of the environment variable that holds the key, never the key itself."""
    api: Literal["auto", "responses", "chat"] = "auto"
    """`auto`: `responses` for OpenAI itself, `chat` for any other `base_url`."""
    timeout_s: Seconds = 120.0
    """Time limit of one call."""
    # Below the activity's own time limit, which must not end it first: see `workflows/run/activities.py`.
    plan_timeout_s: Annotated[float, Field(gt=0, le=7_000)] = 600.0
    """Time limit of all calls and attempts for one plan, excluding waits that the service requests. A person is asked
    afterwards.
    """
    max_output_tokens: Count = 4000
    """Maximum output tokens per response."""
    corrections: int = Field(default=2, ge=0, le=10)
    """Maximum number of times a response that violates the template is sent back."""
    context_characters: int = Field(default=24_000, ge=8_000)
    """Maximum prompt length in characters."""


HostPattern = Annotated[
    str, Field(pattern=r"^(\*\.)?[^\s/@*]+$", examples=["tracker.example.org", "*.example.org", "127.0.0.1:8080"])
]


class PlanSettings(Section):
    """Secrets that plans may send, and plans written by a model: permission and bounds."""

    secrets: dict[str, tuple[HostPattern, ...]] = Field(default_factory=dict)
    """Environment variables of the worker that `secret_headers` of any plan may use, each with its allowed hosts:
    `{TRACKER_TOKEN: [tracker.example.org]}`. A host means https, `host:port` exactly that port.
    """
    agent_planning: bool = False
    """Allow the model of `planner` to write plans for a goal and to revise plans with failed steps. Plans written by
    people
    always run.
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
    """Commands that plans written by a model may run without approval, besides `executor.programs`; `*` is one word,
    `**`
    any number of words.
    """
    write: tuple[str, ...] = ("**",)
    """Glob patterns of the files that the steps may change."""
    network: tuple[HostPattern, ...] = ()
    """Hosts that `http` steps may call."""
    max_steps: Annotated[int, Field(ge=1, le=2_000)] = 200
    """Maximum number of steps in a plan."""
    max_attempts: Count = 1_000
    """Maximum attempts of all steps together."""
    max_cost_usd: Annotated[float, Field(gt=0)] | None = 5.0
    """Maximum cost of planning and all steps, where prices are known. Empty (null): unbounded."""
    max_tokens: Annotated[int, Field(ge=1)] | None = 1_000_000
    """Maximum tokens of planning and all steps. Empty (null): unbounded."""
    max_wall_hours: Annotated[float, Field(gt=0, le=8_760)] | None = 4.0
    """Maximum working time, excluding waits for a person. Empty (null): unbounded."""
    max_depth: Annotated[int, Field(ge=1, le=16)] = 2
    """Maximum nesting of plans, including the outermost."""
    max_fan_out: Annotated[int, Field(ge=1, le=2_500)] = 25
    """Maximum number of steps that one template may expand to."""
    max_revisions: Count = 5
    """Maximum number of plan revisions, including the first."""
    max_output_tokens: Count = 16_000
    """Maximum output tokens per response; plans are longer than messages to an executor."""

    def caution(self, programs: Iterable[str], rubric: Rubric = Rubric.model_construct()) -> "Caution":
        """Return the bounds for plans written by a model.

        Args:
            programs: further programs that need no approval.
            rubric: its bounds on deletions also apply to plans.
        """
        # Lazy imports, see `Caution` above.
        from tightloop.plan.document import Deletions, PlanBudget
        from tightloop.plan.guard import Caution, policy_for

        allowed = (*self.allow, *(f"{program} **" for program in programs))
        hours = self.max_wall_hours
        budget = PlanBudget(
            max_wall_s=None if hours is None else hours * 3_600,
            max_cost_usd=self.max_cost_usd,
            max_tokens=self.max_tokens,
            max_attempts=self.max_attempts,
            max_depth=self.max_depth,
            max_fan_out=self.max_fan_out,
            max_revisions=self.max_revisions,
        )
        deletions = Deletions(files=rubric.deleted_files, lines=rubric.deleted_lines, share=rubric.deleted_share)
        policy = policy_for(allowed, write=self.write, network=self.network, deletions=deletions)
        return Caution(policy=policy, budget=budget, max_steps=self.max_steps)


class GateSettings(Section):
    """Gates that `verify` runs, in order; without any, they are detected from the project's files."""

    checks: tuple[Check, ...] = ()
    """Gates of every project, such as `pytest -q`, or `{run: pytest -q, name: tests, timeout_s: 900}`."""
    projects: dict[str, tuple[Check, ...]] = Field(default_factory=dict)
    """Gates by absolute project path, instead of `checks`."""

    def for_project(self, workspace: str) -> tuple[Check, ...]:
        """Return the configured gates of a project; empty if they are to be detected."""
        # Compared as text: settings do not access files, and the workspace may be on another host.
        path = posixpath.normpath(workspace)
        checks_by_folder = {posixpath.normpath(folder): checks for folder, checks in self.projects.items()}
        return checks_by_folder.get(path, self.checks)


PresetName = Annotated[Preset, WithJsonSchema({"type": "string", "enum": [preset.value for preset in Preset]})]


class BudgetSettings(Section):
    """Default budget of an episode. Empty (null): unbounded."""

    max_iterations: Count | None = 15
    """Maximum number of iterations; each plans, works and checks once."""
    warn_at_iteration: Count | None = 12
    """Iteration from which the planner is asked to converge."""
    max_executor_failures: Count | None = 6
    """Maximum number of deliveries in the episode that fail, time out or end with an unknown outcome."""
    max_tokens: Count | None = None
    """Maximum tokens of all model calls, excluding agents that do not report theirs."""
    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    """Maximum cost of all model calls with a known price."""
    max_wall_hours: Annotated[float, Field(gt=0, le=8_760)] | None = 12.0
    """Maximum working time, excluding pauses."""

    def as_budget(self) -> Budget:
        """Return the settings as an episode budget."""
        hours = self.max_wall_hours
        fields = self.model_dump(exclude={"max_wall_hours"})
        return Budget(**fields, max_wall_time=None if hours is None else timedelta(hours=hours))


class TrackingSettings(Thresholds, Section):
    """Detection of episodes that deviate or go in circles."""

    preset: PresetName = Preset.NORMAL
    """Default for the other fields of this section: `careful`, `normal` or `bold`."""
    deviation_limit: Count = 2
    """Consecutive iterations of class LOW before an alert; twice as many pause the episode."""
    repeat_error_limit: Count = 3
    """Consecutive iterations with the same error before an alert; twice as many pause the episode."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        return classification.apply_preset(values, classification.TRACKING)

    @model_validator(mode="after")
    def _check_order(self) -> "TrackingSettings":
        if problem := self.problem():
            raise ValueError(problem)
        return self

    def as_thresholds(self) -> Thresholds:
        """Return the thresholds of an episode."""
        return Thresholds.model_validate(self.model_dump())


class AlignmentSettings(Rubric, Section):
    """Bounds of the alignment rubric: findings before a hand-off and after the work that need a person's decision."""

    preset: PresetName = Preset.NORMAL
    """Default for the bounds in this section: `careful`, `normal` or `bold`."""
    judge: bool = True
    """Ask the planner's model about findings that no rule can decide, before a person is asked."""
    code: dict[str, CodeRule] = Field(default_factory=dict)
    """Rules for code that is reviewed before it runs, by name: the given fields of an existing rule are changed
    (`network: {verdict: allow}`), other names add rules.
    """
    dependencies: tuple[str, ...] = ()
    """Packages that such code may use without a question, besides the project's dependencies."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        return classification.apply_preset(values, classification.ALIGNMENT)

    @model_validator(mode="after")
    def _code_is_known(self) -> Self:
        if self.code:
            self.code_rules()
        return self

    def code_rules(self) -> CodeRules:
        """Return the default code rules with the changes of this section."""
        return default_rules().with_changes(
            self.code, off=self.allow, dependencies=self.dependencies, enabled=self.enabled
        )

    @property
    def rubric(self) -> Rubric:
        """The bounds without the settings' own fields."""
        return Rubric(**{name: getattr(self, name) for name in Rubric.model_fields})
