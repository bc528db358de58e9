"""The settings of the whole system: their defaults, their bounds, and how they are read.

A YAML document comes first, then environment variables `TIGHTLOOP_<SECTION>__<FIELD>`. A setting that is
misspelt or out of bounds is refused with a sentence that names it and says what is allowed.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Literal

import yaml
from pydantic import ConfigDict, Field, SecretStr, WithJsonSchema, model_validator

from tightloop.alert import AlertKind
from tightloop.alignment import Rubric
from tightloop.budget import Budget
from tightloop.egress import Egress, egress_for
from tightloop.layers import read_layers
from tightloop.plan.model import PlanBudget
from tightloop.plan.rules.caution import Caution, policy_for
from tightloop.telemetry import TelemetrySettings
from tightloop.tracking import HIGH_FROM, MEDIUM_FROM, Thresholds
from tightloop.value import Document

ENVIRONMENT_PREFIX = "TIGHTLOOP_"
"""Variables with this prefix and `__` in the rest are settings; `TIGHTLOOP_HOME` and its like are not."""

Address = Annotated[str, Field(pattern=r"^[^\s/]+:\d{1,5}$")]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]

LOOPBACK_HOSTS = ("127.0.0.1", "localhost")
EgressLevel = Annotated[Egress, WithJsonSchema({"type": "string", "enum": [level.value for level in Egress]})]
KindOfAlert = Annotated[AlertKind, WithJsonSchema({"type": "string", "enum": [kind.value for kind in AlertKind]})]


class _Section(Document):
    model_config = ConfigDict(allow_inf_nan=False)


class TemporalSettings(_Section):
    """Where Temporal is."""

    address: Address = "127.0.0.1:7233"
    """Host and port of the frontend."""
    namespace: str = Field(default="default", min_length=1)
    task_queue: str = Field(default="tightloop", min_length=1)
    """Task queue of the episodes."""
    ui_url: str = "http://127.0.0.1:8233"
    """Temporal UI, for the links that the command line prints."""
    tls: bool = False
    api_key: SecretStr = SecretStr("")
    """Temporal Cloud. Better given as `TIGHTLOOP_TEMPORAL__API_KEY` than in a file."""


class QueueSettings(_Section):
    """Task queues of the capabilities. Empty: the same queue as the episode."""

    workspace: str = ""
    """Git, checks and artifacts: the host that has the working tree."""
    llm: str = ""
    executor: str = ""


class WorkerSettings(_Section):
    """How a worker process behaves."""

    sticky_timeout_s: float = Field(default=2.0, ge=1, le=10)
    """After a worker died its workflows wait so long before another worker takes them."""
    heartbeat_interval_s: float = Field(default=2.0, ge=1, le=60)
    """How often a worker tells Temporal that it lives (`temporal worker list`)."""
    graceful_shutdown_s: float = Field(default=10.0, ge=0)
    """On a stop signal activities may go on for so long."""
    max_concurrent_activities: Count = 20
    max_cached_workflows: Annotated[int, Field(ge=0)] = 1000


class ServerSettings(_Section):
    """The embedded development server; it listens where `temporal` says. Your own server needs none of this."""

    http_port: int = Field(default=0, ge=0, le=65_535)
    """0: a free one. The API behind it is not used by tightloop."""
    retention_days: Count = 30
    """How long the history of a closed episode is kept."""


class PlannerSettings(_Section):
    """Who plans, and what a plan may cost."""

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
    max_output_tokens: Count = 4000
    corrections: int = Field(default=2, ge=0, le=10)
    """How often an answer that does not follow the template is sent back."""
    context_characters: int = Field(default=24_000, ge=8_000)
    """Bound on what is put into one prompt."""


class PlanSettings(_Section):
    """Plans that a model writes: whether it may, and the bounds that none of them can widen."""

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
    network: tuple[str, ...] = ()
    """Hosts that its `http` and `fetch` steps may ask."""
    max_steps: Annotated[int, Field(ge=1, le=2_000)] = 200
    max_attempts: Count = 1_000
    """Attempts of all its steps."""
    max_cost_usd: Annotated[float, Field(ge=0)] | None = 5.0
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    max_wall_hours: Annotated[float, Field(gt=0, le=8_760)] | None = 4.0
    max_depth: Annotated[int, Field(ge=1, le=16)] = 2
    max_fan_out: Annotated[int, Field(ge=1, le=2_500)] = 25
    max_revisions: Count = 5
    max_output_tokens: Count = 16_000
    """For one answer: a plan is longer than a message to an executor."""

    def caution(self, programs: Iterable[str]) -> Caution:
        """Return the bounds.

        Args:
            programs: names of programs that need no approval either.
        """
        allowed = (*self.allow, *(f"{program} **" for program in programs))
        hours = self.max_wall_hours
        budget = PlanBudget(
            max_wall_s=None if hours is None else hours * 3_600,
            max_cost_usd=self.max_cost_usd,
            max_tokens=self.max_tokens,
            max_steps=self.max_attempts,
            max_depth=self.max_depth,
            max_fan_out=self.max_fan_out,
            max_revisions=self.max_revisions,
        )
        policy = policy_for(allowed, write=self.write, network=self.network)
        return Caution(policy=policy, budget=budget, max_steps=self.max_steps)


class AgentSettings(_Section):
    """How one coding agent is started and reaches its model, on the hosts with these settings."""

    program: str = ""
    """Name or absolute path; empty: the agent's usual name, looked up in PATH."""
    arguments: tuple[str, ...] = ()
    """Added to the command line."""
    model: str = ""
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


class ExecutorSettings(_Section):
    """Who does the work, where the request does not say."""

    default: str = Field(default="command", min_length=1)
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
    idle_limit_s: Seconds = 900.0
    """Longest time without any output."""


class SandboxSettings(_Section):
    """Where commands of plans and of definitions of done run."""

    backend: Literal["auto", "docker", "bubblewrap", "sandbox-exec"] = "auto"
    """`auto`: docker where `image` is set, else bubblewrap (Linux) or sandbox-exec (macOS)."""
    unsafe_local: bool = False
    """Where no sandbox works, run commands without one. Without this nothing is run then."""
    image: str = ""
    """Docker image with the tools of the project."""
    network: bool = False
    """Let commands see the network."""
    cores: Annotated[float, Field(gt=0, le=256)] = 1.0
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    processes: Annotated[int, Field(ge=8)] = 256
    read: tuple[str, ...] = ()
    """More absolute paths that commands may read."""
    write: tuple[str, ...] = ()


class BudgetSettings(_Section):
    """What an episode may spend where its request does not say. Empty (null): unbounded."""

    max_iterations: Count | None = 15
    warn_at_iteration: Count | None = 12
    """From here on the planner is asked to converge."""
    max_executor_failures: Count | None = 6
    max_tokens: Count | None = None
    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    max_wall_hours: Annotated[float, Field(gt=0, le=8_760)] | None = 12.0
    """Time spent working; time spent paused does not count."""

    def as_budget(self) -> Budget:
        """Return the budget of an episode."""
        hours = self.max_wall_hours
        return Budget(
            max_iterations=self.max_iterations,
            warn_at_iteration=self.warn_at_iteration,
            max_executor_failures=self.max_executor_failures,
            max_tokens=self.max_tokens,
            max_cost_usd=self.max_cost_usd,
            max_wall_time=None if hours is None else timedelta(hours=hours),
        )


_COURSE = Thresholds()
_RUBRIC = Rubric()


class TrackingSettings(_Section):
    """When an episode left its course, or goes in circles."""

    high_from: Share = HIGH_FROM
    """Similarity of the tree before and after an iteration from which its class is HIGH."""
    medium_from: Share = MEDIUM_FROM
    growth_keeps: Share = _COURSE.growth_keeps
    """A change that keeps this share of the lines before is growth: new files alone are no departure."""
    scope_share_medium: Share = _COURSE.scope_share_medium
    """Share of the changed lines outside of the files that the plan announced."""
    scope_share_low: Share = _COURSE.scope_share_low
    """The same, where no check got better."""
    open_items_medium: Count = _COURSE.open_items_medium
    """Iterations in which nothing was done about an action item."""
    open_items_low: Count = _COURSE.open_items_low
    no_change_low: Count = _COURSE.no_change_low
    """Deliveries in a row that changed nothing."""
    same_error_low: Annotated[int, Field(ge=2)] = _COURSE.same_error_low
    """Iterations in a row with the same failures of the checks."""
    iterations_per_progress: Count | None = _COURSE.iterations_per_progress
    """What may be spent until a check gets better, then the class is MEDIUM. Empty (null): unbounded."""
    tokens_per_progress: Count | None = _COURSE.tokens_per_progress
    cost_usd_per_progress: Annotated[float, Field(gt=0)] | None = _COURSE.cost_usd_per_progress
    hours_per_progress: Annotated[float, Field(gt=0)] | None = _COURSE.hours_per_progress
    cost_low_factor: Annotated[float, Field(ge=1)] = _COURSE.cost_low_factor
    """So many times one of these four bounds is LOW."""
    reasons_low: Annotated[int, Field(ge=2)] = _COURSE.reasons_low
    """So many reasons together that are MEDIUM alone are LOW."""
    deviation_limit: Count = 2
    """Iterations in a row with class LOW before the episode pauses."""
    repeat_error_limit: Count = 3
    """Iterations in a row with the same error before the episode pauses."""

    @model_validator(mode="after")
    def _ordered(self) -> "TrackingSettings":
        problem = self.as_thresholds().problem()
        if problem:
            raise ValueError(problem)
        return self

    def as_thresholds(self) -> Thresholds:
        """Return the thresholds of an episode."""
        return Thresholds.model_validate(self.model_dump())


class AlertChannel(_Section):
    """One way to a person."""

    type: Literal["webhook", "desktop", "log"]
    kinds: tuple[KindOfAlert, ...] = ()
    """What this channel is for; empty: everything."""
    url: str = ""
    """Of a webhook."""
    url_env: str = ""
    """Name of the environment variable that holds the URL, for services whose URL is a secret."""
    secret_env: str = ""
    """Name of the environment variable that holds the secret that signs a webhook; empty: not signed."""
    timeout_s: Annotated[float, Field(gt=0, le=30)] = 5.0
    """For one try."""

    @model_validator(mode="after")
    def _addressed(self) -> "AlertChannel":
        given = bool(self.url) + bool(self.url_env)
        if self.type == "webhook" and given != 1:
            raise ValueError("a webhook needs either url or url_env, the name of the variable that holds the URL")
        if self.url and not _WEB_ADDRESS.fullmatch(self.url):
            raise ValueError("url must be like https://host/path, without a user and a password")
        if self.type != "webhook" and (given or self.secret_env):
            raise ValueError(f"url, url_env and secret_env belong to a webhook, not to {self.type}")
        return self


class AlertSettings(_Section):
    """Who is told when an episode needs a person. See docs/alerts.md."""

    channels: dict[str, AlertChannel] = Field(default_factory=lambda: {"log": AlertChannel(type="log")})
    """By a name of your own, which the timeline shows. None: nobody is told."""


class ProjectPrivacy(_Section):
    """What holds for the workspaces under one folder."""

    egress: EgressLevel = Egress.FULL


class AlignmentSettings(_Section):
    """Bounds of the alignment rubric: what is asked of a person before a plan is handed off and after it was done."""

    enabled: bool = True
    judge: bool = True
    """Ask the planner's model about what a rule cannot tell, before a person is asked."""
    allow: tuple[str, ...] = ()
    """Rules that are off, by the names that pauses show, such as `publishes`."""
    cpu_minutes: Annotated[float, Field(gt=0)] = _RUBRIC.cpu_minutes
    """Processor time of an iteration, where it is known."""
    wall_minutes: Annotated[float, Field(gt=0)] = _RUBRIC.wall_minutes
    """Working time of an iteration."""
    deleted_files: Count = _RUBRIC.deleted_files
    """So many deleted files that the plan did not announce are too many."""
    deleted_share: Share = _RUBRIC.deleted_share
    """So large a part of all lines, from `deleted_lines` on, is too much."""
    deleted_lines: Count = _RUBRIC.deleted_lines
    suppressions: Count = _RUBRIC.suppressions
    """So many new comments that silence a linter are a flood."""

    @property
    def rubric(self) -> Rubric:
        """The bounds as the rules take them."""
        return Rubric(**{name: getattr(self, name) for name in Rubric.model_fields})


class PrivacySettings(_Section):
    """What Temporal and model services may see. docs/privacy.md lists what is where."""

    encrypt: bool = False
    """Encrypt all payloads that Temporal stores. The same for all workers and clients of a namespace."""
    keys_file: str = ""
    """Key file, absolute or under the state folder; empty: `keys.json` there. See `tightloop keys`."""
    keys_env: str = ""
    """Name of the environment variable that holds the content of a key file, in place of a file."""
    egress: EgressLevel = Egress.FULL
    """What prompts of the planner and the reflector may contain."""
    projects: dict[str, ProjectPrivacy] = Field(default_factory=dict)
    """By an absolute folder, for the workspaces in it; the longest folder that fits wins."""

    alerts: Literal["minimal", "full"] = "minimal"
    """`minimal`: alerts carry ids, kinds and counts; `full`: also goal, reason and paths."""

    @property
    def strictest(self) -> Egress:
        """The strictest egress of any project here."""
        order = list(Egress)
        return max((self.egress, *(project.egress for project in self.projects.values())), key=order.index)

    def egress_of(self, workspace: str) -> Egress:
        """Return what prompts about a workspace (absolute path) may contain."""
        levels = {folder: project.egress for folder, project in self.projects.items()}
        return egress_for(workspace, levels, default=self.egress)


class CodecSettings(_Section):
    """The codec server: shows to Temporal's UI and CLI what `privacy.encrypt` encrypted. See docs/codec-server.md."""

    listen: Address = "127.0.0.1:8234"
    """Host and port to listen at. Plain HTTP: for other hosts put a proxy with TLS before it."""
    require_token: bool = True
    """Without it every process of this machine may decrypt what it finds in Temporal; only for loopback."""
    token_env: str = ""
    """Name of the environment variable that holds the token; empty: `codec-token` in the state folder."""
    origins: tuple[Annotated[str, Field(pattern=r"^https?://[^/\s]+$")], ...] = ()
    """Web pages that may ask, besides the Temporal UI of `temporal.ui_url`, such as https://temporal.example.com"""

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.listen.rpartition(":")[0] in LOOPBACK_HOSTS

    @property
    def endpoint(self) -> str:
        """What Temporal's UI and CLI take as their codec endpoint."""
        return f"http://{self.listen}"

    @model_validator(mode="after")
    def _closed(self) -> "CodecSettings":
        if not self.require_token and not self.loopback:
            raise ValueError(f"require_token may be false only on 127.0.0.1, not on {self.listen}")
        return self


class Settings(Document):
    """All settings, in force."""

    temporal: TemporalSettings = TemporalSettings()
    queues: QueueSettings = QueueSettings()
    worker: WorkerSettings = WorkerSettings()
    server: ServerSettings = ServerSettings()
    planner: PlannerSettings = PlannerSettings()
    plans: PlanSettings = PlanSettings()
    executor: ExecutorSettings = ExecutorSettings()
    sandbox: SandboxSettings = SandboxSettings()
    budget: BudgetSettings = BudgetSettings()
    tracking: TrackingSettings = TrackingSettings()
    alignment: AlignmentSettings = AlignmentSettings()
    privacy: PrivacySettings = PrivacySettings()
    codec: CodecSettings = CodecSettings()
    alerts: AlertSettings = AlertSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    def as_yaml(self) -> str:
        """Return the settings as a document, secrets masked."""
        text = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
        return _URL_PASSWORD.sub("://**********@", text)


_WEB_ADDRESS = re.compile(r"https?://[^\s/@]+(/\S*)?")
_URL_PASSWORD = re.compile(r"://[^/@\s]+@")


def parse_settings(text: str, environ: Mapping[str, str]) -> Settings:
    """Read one YAML document, then the environment.

    Raises:
        SettingsError: with one sentence for each setting that is unknown or not allowed.
    """
    return combined_settings([("", text)], environ)


def combined_settings(documents: Iterable[tuple[str, str]], environ: Mapping[str, str]) -> Settings:
    """Read YAML documents, each as its name and its text, then the environment; what comes later wins.

    Raises:
        SettingsError: with one sentence for each setting that is unknown or not allowed, each naming the
            document or the environment variable that it stands in.
    """
    return read_layers(Settings, documents, environ, prefix=ENVIRONMENT_PREFIX)
