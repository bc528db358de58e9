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
    # The rules about commands behind it need a parser of shell scripts, which only workers do.
    from tightloop.plan.guard import Caution


class AgentSettings(Section):
    """How one coding agent is started and reaches its model, on the hosts with these settings."""

    program: str = ""
    """Name or absolute path; empty: the agent's usual name, looked up in PATH."""
    arguments: tuple[str, ...] = ()
    """Added to the command line."""
    model: str = ""
    """Name of the model, as the agent wants it; empty: the agent's own default."""
    base_url: str = ""
    """Of the model provider; empty: the agent's own default."""
    api_key_env: str = ""
    """Name of the variable of the worker that holds the key; empty: the agent's usual one."""
    login: bool = False
    """Use the agent's own login of the worker's user in place of a key: its login file is copied into the agent's
    home, where the agent's tools could read it."""
    gateway: bool = True
    """The agent talks to its provider through a loopback gateway and never has the key itself."""
    environment: tuple[str, ...] = ()
    """Names of more variables of the worker that the agent, and what it runs, may see."""


class AgentSSettings(Section):
    """Simular's Agent S, which looks for the chat box in a picture of the window where `chat_key` does not reach it.

    It only says where to click; whether the focus is in the chat box then is checked as always.
    """

    python: str = ""
    """Python of an environment that has the package `gui-agents`, as docs/macos.md sets it up. Empty: not used."""
    model: str = ""
    """Grounding model, such as UI-TARS, at a service that speaks OpenAI's Chat Completions."""
    base_url: str = ""
    """Of that service; empty: OpenAI's."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the variable of the worker that holds the key; unset where the service needs none."""
    grid: tuple[Count, Count] | None = None
    """Width and height that the model's answers refer to; none: the pixels of the picture."""

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        if self.python and not self.model:
            raise ValueError("needs model: name the grounding model that looks at the window")
        return self


class WindowSettings(Section):
    """The editor's window that the executor `cursor-gui` may touch, on the hosts with these settings."""

    driver: Literal["auto", "mac", "applescript", "x11"] = "auto"
    """Who moves the window. `auto`: `mac` where its libraries are installed, else `applescript`; `x11` on Linux."""
    apps: tuple[str, ...] = ("com.todesktop.230313mzl4w4u92", "Cursor")
    """Programs whose windows count: bundle ids on macOS, window classes on X11."""
    title: Pattern = r"^({project}( [-–—] Cursor)?|.+ [-–—] {project}( [-–—] [^-–—]+){0,2})( ⟦[^⟧]*⟧)?$"
    """Regular expression that the title has to contain; `{project}` stands for the name of the workspace's folder.
    Without a window that has both, nothing is touched. The default finds the project after the file, and before the
    profile and the program. Windows of remote folders never count."""
    allow_unknown_roots: bool = False
    """Hand over to an editor that does not say which folder its window has open, also one that runs no hook. Then only
    the title keeps a plan from another folder of the same name."""
    box: Pattern = r"^(chat input\b|composer input\b|add a follow-up|plan, )"
    """Regular expression for the accessible name of the chat box, in any case of letters."""
    chat_key: Annotated[str, Field(pattern=r"^[a-z0-9]+(\+[a-z0-9]+)*$")] = "mod+l"
    """Keys that bring the focus into the chat box; `mod` is Command on macOS, Control elsewhere."""
    agent_s: AgentSSettings = Field(default_factory=AgentSSettings)
    """Who finds the chat box in a picture where the keys do not reach it; a picture of the window leaves this host."""
    transcripts: str = "~/.cursor/projects"
    """Folder where the editor keeps the conversations of its agent."""


class ExecutorSettings(Section):
    """Default executor, and what executors may do."""

    default: str = Field(default="command", min_length=1)
    """Who does the work where a request names nobody: `command`, `person`, or an agent."""
    fallback: tuple[str, ...] = ()
    """Executors to use, in this order, where the chosen one is not installed or has no key."""
    agents: dict[str, AgentSettings] = Field(default_factory=dict)
    """By the name of the executor: `codex`, `claude`, `opencode`, `gemini` ..."""
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
    """Programs that the `command` executor may run from the steps of a plan: formatters and linters.
    Interpreters, shells, package managers and test runners would let a plan run anything."""
    argv: tuple[str, ...] = ()
    """Template of a command that takes the whole plan, with `{plan_file}` and `{workspace}`. Empty: the steps
    are run."""
    wall_limit_s: Seconds = 3600.0
    """Longest time of one delivery."""
    idle_limit_s: Seconds = 900.0
    """Longest time without any output."""
    on_crash: Literal["ask", "retry", "verify"] = "retry"
    """What is done about a delivery that broke off, as with a worker that died, and whose outcome nothing tells.
    `retry`: deliver it again if no file changed and the executor has no effects outside the working tree, else
    `verify`: never deliver it again, let the checks look at what is there. `ask`: a person decides."""


class WorkspaceSettings(Section):
    """The working tree of an episode or a plan."""

    drift: Literal["ask", "undo"] = "ask"
    """What is done about files that somebody else changes outside a pause. `ask`: stop, and ask a person. `undo`: save
    and undo them; status and the end name the files and the command that brings them back."""


class SandboxSettings(Section):
    """Sandbox for the commands of plans and of definitions of done."""

    backend: Literal["auto", "docker", "bubblewrap", "sandbox-exec"] = "auto"
    """`auto`: docker where `image` is set, else bubblewrap (Linux) or sandbox-exec (macOS)."""
    unsafe_local: bool = False
    """Run commands without a sandbox where none works. Otherwise nothing is run there."""
    image: str = ""
    """Docker image with the tools of the project."""
    network: tuple[HostRule, ...] = ()
    """Hosts that commands and agents may reach, besides the model of an agent: `example.org`, `*.example.org` (those
    below it), `host:port` (that one, also where it is private or on this host), `*` (every public one). Empty: none."""
    cores: Annotated[float, Field(gt=0, le=256)] = 1.0
    """Processor cores of one command."""
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    """Memory of one command, with everything that it starts."""
    processes: Annotated[int, Field(ge=8)] = 256
    """Processes and threads of one command at the same time."""
    disk_mb: Annotated[int, Field(ge=64)] = 8192
    """What one command, or one delivery to an agent, may add to the working tree and the other writable folders."""
    read: tuple[str, ...] = ()
    """More absolute paths that commands may read."""
    write: tuple[str, ...] = ()
    """More absolute paths that commands may change."""


class RoleSettings(Section):
    """What one role of the coder does differently; whatever is left out stays as in the role's file."""

    tools: tuple[str, ...] = ()
    """Names of tools, in the order in which a model is shown them; `finish` is always among them."""
    models: tuple[str, ...] = ()
    """The first that the service has is used."""
    temperature: Temperature | None = None
    """How freely a model chooses its words; left out where the model takes none."""
    top_p: TopP | None = None
    """Part of the likeliest words that a model chooses from; left out where the model takes none."""
    max_output_tokens: Positive | None = None
    """For one answer."""
    max_turns: Positive | None = None
    """Answers for one part of the work."""


class CoderSettings(Section):
    """The built-in coder: which models it asks, and its bounds."""

    base_url: str = ""
    """Of an OpenAI-compatible service; empty: that of `planner`."""
    api_key_env: str = ""
    """Name of the environment variable that holds the key, never the key. Empty: that of `planner` where `base_url` is
    empty too; a service of its own is asked without a key."""
    api: Literal["auto", "responses", "chat"] = "auto"
    """`auto`: that of `planner` where `base_url` is empty; else `responses` at OpenAI itself, `chat` elsewhere."""
    models: tuple[str, ...] = ()
    """The first is used; the next ones where it is refused or not available. Empty: those of `planner`."""
    timeout_s: Annotated[float, Field(gt=0, le=840)] = 600.0
    """For one answer, to its last word."""
    # Models that think before they speak send nothing meanwhile, at services that do not stream their thoughts.
    silence_s: Seconds = 120.0
    """Longest silence within an answer."""
    max_turns: Count = 60
    """Answers of models in one delivery, of all roles together."""
    max_tokens: Count = 1_000_000
    """Tokens of one delivery, prompts and answers together, where the service reports them."""
    rounds: Annotated[int, Field(ge=0, le=20)] = 3
    """How often the coder tries again, after a reflection, when the checks or the tests do not pass."""
    context_tokens: Annotated[int, Field(ge=2_000)] = 40_000
    """Size of a prompt above which older turns are replaced by a digest."""
    keep_tokens: Annotated[int, Field(ge=500)] = 15_000
    """Newest turns that stay as they are then."""
    planning: bool = False
    """Let the role `planner` read the code before the role `coder` changes it."""
    testing: bool = False
    """Let the role `tester` write tests for the change; only those that can fail count."""
    roles: dict[str, RoleSettings] = Field(default_factory=dict)
    """By the name of a role: planner, coder, tester, reflector."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.keep_tokens > self.context_tokens / 2:
            raise ValueError(
                f"keep_tokens {self.keep_tokens} must not be above half of context_tokens {self.context_tokens}: "
                "otherwise every few turns pay for a new prompt"
            )
        for name, role in self.roles.items():
            if name not in known_roles():
                raise ValueError(f"unknown role {name!r} (coder.roles.{name}). {did_you_mean(name, known_roles())}")
            for tool in role.tools:
                if tool not in known_tools():
                    near = did_you_mean(tool, known_tools())
                    raise ValueError(f"unknown tool {tool!r} (coder.roles.{name}.tools). {near}")
        return self

    def role(self, name: str) -> Role:
        """Return a role as its file and these settings say.

        Raises:
            KeyError: there is no such role.
        """
        role = known_roles()[name]
        over = self.roles.get(name, RoleSettings())
        given = {field: value for field, value in over if value not in (None, ())}
        return Role.model_validate({**dict(role), "models": role.models or self.models, **given})


class PlannerSettings(Section):
    """Planner of episodes and its model service."""

    kind: Literal["auto", "openai", "heuristic"] = "auto"
    """`auto`: `openai` where a key is present, else `heuristic`, which needs none."""
    models: tuple[str, ...] = Field(default=("gpt-5.1", "gpt-5-mini"), min_length=1)
    """The first is used; the next ones where it is refused or not available."""
    base_url: str = ""
    """Of an OpenAI-compatible service; empty: OpenAI itself."""
    api_key_env: str = Field(default="OPENAI_API_KEY", min_length=1)
    """Name of the environment variable that holds the key; never the key."""
    api: Literal["auto", "responses", "chat"] = "auto"
    """`auto`: `responses` against OpenAI itself, `chat` for any other `base_url`."""
    timeout_s: Seconds = 120.0
    """For one call."""
    plan_timeout_s: Annotated[float, Field(gt=0, le=7_000)] = 600.0
    """For all calls and attempts at one plan together, without the waits that the service asks for. After that a person
    is asked."""
    max_output_tokens: Count = 4000
    """For one answer."""
    corrections: int = Field(default=2, ge=0, le=10)
    """Maximum number of times an answer that does not follow the template is sent back."""
    context_characters: int = Field(default=24_000, ge=8_000)
    """Bound on what is put into one prompt."""


HostPattern = Annotated[
    str, Field(pattern=r"^(\*\.)?[^\s/@*]+$", examples=["tracker.example.org", "*.example.org", "127.0.0.1:8080"])
]


class PlanSettings(Section):
    """Plans: which secrets they may send where; and whether a model may write some, and its bounds."""

    secrets: dict[str, tuple[HostPattern, ...]] = Field(default_factory=dict)
    """Variables of the worker that `secret_headers` of any plan may name, each with the hosts that it may be sent to:
    `{TRACKER_TOKEN: [tracker.example.org]}`. A host stands for https, `host:port` for exactly that port."""
    agent_planning: bool = False
    """Let the model of `planner` write plans for a goal, and change plans whose steps failed. Plans that people write
    run in any case."""
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
    """Commands of such a plan that need no approval, besides `executor.programs`; `*` is a word, `**` any number."""
    write: tuple[str, ...] = ("**",)
    """Glob patterns of what its steps may change."""
    network: tuple[HostPattern, ...] = ()
    """Hosts that its `http` steps may ask."""
    max_steps: Annotated[int, Field(ge=1, le=2_000)] = 200
    """Steps of one plan."""
    max_attempts: Count = 1_000
    """Attempts of all its steps."""
    max_cost_usd: Annotated[float, Field(gt=0)] | None = 5.0
    """Of the planning itself and of all its steps, as they are priced. Empty (null): unbounded."""
    max_tokens: Annotated[int, Field(ge=1)] | None = 1_000_000
    """Of the planning itself and of all its steps."""
    max_wall_hours: Annotated[float, Field(gt=0, le=8_760)] | None = 4.0
    """Time spent working; time spent waiting for a person does not count. Empty (null): unbounded."""
    max_depth: Annotated[int, Field(ge=1, le=16)] = 2
    """Plans within plans, this one included."""
    max_fan_out: Annotated[int, Field(ge=1, le=2_500)] = 25
    """Steps that one template may become."""
    max_revisions: Count = 5
    """Revisions of the plan, the first included."""
    max_output_tokens: Count = 16_000
    """For one answer: a plan is longer than a message to an executor."""

    def caution(self, programs: Iterable[str], rubric: Rubric = Rubric.model_construct()) -> "Caution":
        """Return the bounds.

        Args:
            programs: names of programs that need no approval either.
            rubric: its bounds of deletions hold for the plans, too.
        """
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
        gone = Deletions(files=rubric.deleted_files, lines=rubric.deleted_lines, share=rubric.deleted_share)
        policy = policy_for(allowed, write=self.write, network=self.network, deletions=gone)
        return Caution(policy=policy, budget=budget, max_steps=self.max_steps)


class GateSettings(Section):
    """What `verify` runs, in this order; without any it is detected from the project's files."""

    checks: tuple[Check, ...] = ()
    """Commands for every project, such as `pytest -q`, or `{run: pytest -q, name: tests, timeout_s: 900}`."""
    projects: dict[str, tuple[Check, ...]] = Field(default_factory=dict)
    """By absolute path of a project, in place of `checks`."""

    def for_project(self, workspace: str) -> tuple[Check, ...]:
        """Return the gates of a project; empty: they are detected."""
        path = posixpath.normpath(workspace)
        own = {posixpath.normpath(folder): checks for folder, checks in self.projects.items()}
        return own.get(path, self.checks)


PresetName = Annotated[Preset, WithJsonSchema({"type": "string", "enum": [preset.value for preset in Preset]})]


class BudgetSettings(Section):
    """Default budget of an episode. Empty (null): unbounded."""

    max_iterations: Count | None = 15
    """Plan, work and check: one iteration."""
    warn_at_iteration: Count | None = 12
    """From here on the planner is asked to converge."""
    max_executor_failures: Count | None = 6
    """Deliveries in the whole episode that failed, timed out or ended with an unknown outcome."""
    max_tokens: Count | None = None
    """Of all calls of models; agents that do not report theirs are not counted."""
    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    """Of all calls of models, as they are priced."""
    max_wall_hours: Annotated[float, Field(gt=0, le=8_760)] | None = 12.0
    """Time spent working; time spent paused does not count."""

    def as_budget(self) -> Budget:
        """Return the budget of an episode."""
        hours = self.max_wall_hours
        fields = self.model_dump(exclude={"max_wall_hours"})
        return Budget(**fields, max_wall_time=None if hours is None else timedelta(hours=hours))


class TrackingSettings(Thresholds, Section):
    """When an episode left its course, or goes in circles."""

    preset: PresetName = Preset.NORMAL
    """Sets the other values here that are not given: `careful`, `normal` or `bold`."""
    deviation_limit: Count = 2
    """Iterations in a row with class LOW until people are told; as many again pause."""
    repeat_error_limit: Count = 3
    """Iterations in a row with the same error until people are told; as many again pause."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        return classification.under(given, classification.TRACKING)

    @model_validator(mode="after")
    def _ordered(self) -> "TrackingSettings":
        if problem := self.problem():
            raise ValueError(problem)
        return self

    def as_thresholds(self) -> Thresholds:
        """Return the thresholds of an episode."""
        return Thresholds.model_validate(self.model_dump())


class AlignmentSettings(Rubric, Section):
    """Bounds of the alignment rubric: what is asked of a person before a plan is handed off and after it was done."""

    preset: PresetName = Preset.NORMAL
    """Sets the bounds here that are not given: `careful`, `normal` or `bold`."""
    judge: bool = True
    """Ask the planner's model about what a rule cannot tell, before a person is asked."""
    code: dict[str, CodeRule] = Field(default_factory=dict)
    """Rules about code that is reviewed before it is run, by name: what is given of a known rule is changed
    (`network: {verdict: allow}`), other rules are added."""
    dependencies: tuple[str, ...] = ()
    """Packages that such code may use without a question, besides what the project depends on."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        return classification.under(given, classification.ALIGNMENT)

    @model_validator(mode="after")
    def _code_is_known(self) -> Self:
        if self.code:
            self.code_rules()
        return self

    def code_rules(self) -> CodeRules:
        """Return the rules about code with what is changed here."""
        return default_rules().changed(self.code, off=self.allow, dependencies=self.dependencies, enabled=self.enabled)

    @property
    def rubric(self) -> Rubric:
        """The bounds as the rules take them."""
        return Rubric(**{name: getattr(self, name) for name in Rubric.model_fields})
