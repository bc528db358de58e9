"""Settings of services and of what they keep."""

import re
from datetime import time, timedelta
from typing import Annotated, Literal
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, WithJsonSchema, field_serializer, model_validator

from tightloop.ledger.alert import AlertKind
from tightloop.run.routing import ABSENCE_S, Queues, Weight
from tightloop.safety.drift import PromptPrivacy, prompt_privacy_for
from tightloop.value import Document


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern.replace("{project}", "x"))
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


Address = Annotated[str, Field(pattern=r"^[^\s/]+:[0-9]{1,5}$")]
HostRule = Annotated[str, Field(pattern=r"^(?:\*|(?:\*\.)?[\w.-]+|(?:[\w.-]+|\[[\da-fA-F:]+\]):[0-9]{1,5})$")]
Seconds = Annotated[float, Field(gt=0)]
Pattern = Annotated[str, AfterValidator(_compiled)]
Count = Annotated[int, Field(ge=1)]


class Section(Document):
    """A group of settings; infinity and NaN are not numbers here."""

    # YAML has `.inf` and `.nan`: as a bound they would never be reached.
    model_config = ConfigDict(allow_inf_nan=False)


LOOPBACK_HOSTS = ("127.0.0.1", "localhost")
NO_PROFILE = "none"
"""As `temporal.profile`: Temporal's own configuration is not read."""
PEM = "-----BEGIN "
"""How a PEM text begins."""
_METADATA_NAME = re.compile(r"[a-z0-9_.-]+")


class TemporalSettings(Section):
    """Address and namespace of Temporal."""

    profile: str = ""
    """Profile of Temporal's own configuration (`temporal.toml`, `TEMPORAL_*`), which fills what is not set here. Empty:
    `TEMPORAL_PROFILE`, or `default`; `none`: nothing is taken from there."""
    address: Address = "127.0.0.1:7233"
    """Host and port of the frontend."""
    namespace: str = Field(default="default", min_length=1)
    """Namespace of the episodes. `tightloop setup` prepares one."""
    task_queue: str = Field(default="tightloop", min_length=1)
    """Task queue of the episodes."""
    ui_url: str = "http://127.0.0.1:8233"
    """Temporal's Web UI, for links; `tightloop up` serves it there, behind a sign-in."""
    api_key: SecretStr = SecretStr("")
    """Temporal Cloud. Better given as `TIGHTLOOP_TEMPORAL__API_KEY` than in a file."""
    tls: bool | None = None
    """Encrypt the connection. Unset: where `api_key` or one of the settings below is set."""
    tls_ca: str = ""
    """PEM file, or its text, of the authorities that sign the server's certificate. Empty: those of this system."""
    tls_cert: str = ""
    """PEM file, or its text, of the client's certificate, where the server asks for one."""
    tls_key: str = Field(default="", repr=False)
    """PEM file of its private key; or its text, better given as a variable than in a file."""
    tls_server_name: str = ""
    """Name in the server's certificate, where it is not the host of `address`."""
    absence_s: float = Field(default=ABSENCE_S, ge=3, le=3600)
    """How long Temporal may be out of reach without harm to what runs: a restart or a failover. Whether a worker's
    host was lost is known only after this time; a worker process that ends is noticed at once on its own host."""
    metadata: dict[str, SecretStr] = Field(default_factory=dict)
    """gRPC metadata of each call, such as a header that a proxy asks for, by name."""
    authenticate: bool = True
    """Encrypt what Temporal stores, and accept only what clients and workers with this installation's key sent, see
    docs/trust/privacy.md. Off: whoever reaches the server reads all and commands the workers; only for clusters that
    authenticate their users themselves."""

    @property
    def loopback(self) -> bool:
        """Whether the server is on this machine."""
        return self.address.rpartition(":")[0] in LOOPBACK_HOSTS

    @property
    def ui_port(self) -> int:
        """Port of the embedded server's Web UI."""
        return urlsplit(self.ui_url).port or 8233

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        if self.tls is not None:
            return self.tls
        return bool(self.api_key.get_secret_value() or self.tls_files or self.tls_server_name)

    @property
    def tls_files(self) -> dict[str, str]:
        """The files that are set, or their texts, by the name of the setting."""
        given = {"tls_ca": self.tls_ca, "tls_cert": self.tls_cert, "tls_key": self.tls_key}
        return {name: file for name, file in given.items() if file}

    @model_validator(mode="after")
    def _not_in_clear(self) -> "TemporalSettings":
        host = self.address.rpartition(":")[0]
        if not self.encrypted and self.api_key.get_secret_value() and host not in LOOPBACK_HOSTS:
            raise ValueError(f"api_key would be sent in clear to {host}. Remove tls: false")
        useless = [*self.tls_files, *(["tls_server_name"] if self.tls_server_name else [])]
        if not self.encrypted and useless:
            raise ValueError(f"tls is false, so {useless[0]} would not be used. Remove one of them")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key belong together. Set both, or neither")
        for name in self.metadata:
            if not _METADATA_NAME.fullmatch(name):
                raise ValueError(f"metadata has the name {name!r}. Use lower-case letters, digits, - _ and . only")
        return self

    @field_serializer("tls_key")
    def _masked(self, key: str) -> str:
        return "**********" if key.startswith(PEM) else key


class QueueSettings(Section):
    """Task queues of the capabilities. Empty: the same queue as the episode."""

    workspace: str = ""
    """Git, checks and artifacts: the host that has the working tree."""
    llm: str = ""
    """Calls of models, other than those of agents."""
    executor: str = ""
    """Executors, such as coding agents."""

    weights: dict[str, Weight] = Field(default_factory=dict)
    """Shares of projects, by name, where several wait on one queue: 3 gets three steps in while 1 gets one. Those of
    others are 1."""

    def fill(self, asked: Queues, project: str) -> Queues:
        """Return the task queues of a request, with these for those that it leaves out, and its project's share."""
        return asked.evolve(
            workspace=asked.workspace or self.workspace,
            llm=asked.llm or self.llm,
            executor=asked.executor or self.executor,
            weight=self.weights.get(project, 1.0),
        )


class WorkerSettings(Section):
    """Limits of a worker process."""

    # Temporal's default is 10 s: from the kill of a worker to the next call of a model it took 11.8 to 14.2 s, and
    # 2.8 s with 1 s here.
    sticky_timeout_s: float = Field(default=1.0, ge=1, le=10)
    """Time that the workflows of a dead worker wait before another worker takes them."""
    # The bounds are those of the SDK.
    heartbeat_interval_s: float = Field(default=2.0, ge=1, le=60)
    """Interval of worker heartbeats (`temporal worker list`)."""
    graceful_shutdown_s: float = Field(default=10.0, ge=0)
    """Time that activities may go on after a stop signal."""
    max_concurrent_activities: Count = 20
    """Slots of each task queue of the process: steps that run at the same time. Further ones wait for a free slot."""
    host: Annotated[str, Field(pattern=r"^[a-z0-9-]{0,40}$")] = ""
    """Name of this host: of its task queue, and of its projects where several hosts share a database. Empty: the one
    that its state home has had from the start, which is unique and outlives another path, machine or container."""
    start_wait_s: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """How long a worker waits at its start for Temporal, the namespace, and the workers that it needs."""
    no_worker_wait_s: Annotated[float, Field(ge=1, le=86_400)] = 300.0
    """How long a step waits for a worker of its task queue before a person is asked."""
    busy_wait_s: Annotated[float, Field(ge=1, le=30 * 86_400)] = 14_400.0
    """How long a step waits for a free slot where all workers of its task queue are busy, before a person is asked."""
    max_cached_workflows: Annotated[int, Field(ge=0)] = 1000
    """Workflows that a worker keeps in memory. Further ones are replayed from their histories when they go on."""
    health_bind: Annotated[str, Field(pattern=r"^([^\s/]+:[0-9]{1,5})?$")] = ""
    """Host and port at which the process answers `GET /healthz` and `GET /readyz`. Empty: it does not. Anybody who
    reaches it may ask; it tells no content."""
    target_memory: Annotated[float | None, Field(gt=0, le=1)] = None
    """Share of this host's memory up to which a worker takes new activities; `max_concurrent_activities` is then the
    most. Unset, as `target_cpu`: always as many."""
    target_cpu: Annotated[float | None, Field(gt=0, le=1)] = None
    """Likewise the share of its processors."""

    deployment: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,100}$")] = ""
    """Name of the Worker Deployment to which the workers belong: open episodes then stay on the build that they run
    on until a new run follows. Empty: workers have no versions."""
    build_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{0,100}$")] = ""
    """Build of the workers in `deployment`. Empty: the version of tightloop with a digest of the installed code."""

    @property
    def is_tuned(self) -> bool:
        """Whether the resources of the host bound what runs at the same time."""
        return self.target_memory is not None or self.target_cpu is not None


class ServerSettings(Section):
    """The embedded development server; it listens where `temporal` says. Your own server needs none of this."""

    http_port: int = Field(default=0, ge=0, le=65_535)
    """0: a free one. The API behind it is not used by tightloop."""
    retention_days: Count = 30
    """How long the history of a closed episode is kept."""


class CodecSettings(Section):
    """A codec server for a cluster, `python -m gateway.ui`; `tightloop up` needs none of this.

    See docs/operate/web-ui.md.
    """

    listen: Annotated[str, Field(pattern=r"^([^\s/]+:[0-9]{1,5})?$")] = ""
    """Host and port to listen at. Plain HTTP: for other hosts put a proxy with TLS before it."""
    origins: tuple[Annotated[str, Field(pattern=r"^https?://[^/\s]+$")], ...] = ()
    """Web pages that may ask, besides the Temporal UI of `temporal.ui_url`, such as https://temporal.example.com"""


class DatabaseSettings(Section):
    """Where the ledger of several hosts is read. The one of this host, in its state home, is always written."""

    url: SecretStr = SecretStr("")
    """PostgreSQL, such as postgresql://db.example.com/tightloop. Workers bring the rows of their hosts there,
    and the page and the API read there. Empty: the file in the state home. With a password better given as
    `TIGHTLOOP_DATABASE__URL` than in a file."""

    @model_validator(mode="after")
    def _is_postgresql(self) -> "DatabaseSettings":
        url = self.url.get_secret_value()
        if url and not url.startswith(("postgresql://", "postgres://")):
            raise ValueError("url has to begin with postgresql://, such as postgresql://db.example.com/tightloop")
        return self


AFTER_UI = 2
"""The port of the gateway is so far above that of the Temporal Web UI: a second `up` moves both."""
NAME = "tightloop.localhost"
"""Browsers resolve it to this machine, and keep its cookies from the other servers of `localhost`."""


class GatewaySettings(Section):
    """The web page and the HTTP API, which `tightloop up` serves; alone: `python -m gateway`."""

    enabled: bool = True
    """Whether `tightloop up` serves them."""
    listen: Annotated[str, Field(pattern=r"^([^\s/]+:[0-9]{1,5})?$")] = ""
    """Host and port to listen at. Empty: this machine only, two ports above `temporal.ui_url`, so 127.0.0.1:8235.
    Plain HTTP: for other hosts put a proxy with TLS before it and set `url`."""
    url: Annotated[str, Field(pattern=r"^(https?://[^/\s]+)?$")] = ""
    """Under which people open the page, such as https://tightloop.example.com. Empty: http://tightloop.localhost:PORT."""

    def address(self, temporal: TemporalSettings) -> str:
        """Return host and port to listen at."""
        return self.listen or f"127.0.0.1:{temporal.ui_port + AFTER_UI}"

    def page(self, temporal: TemporalSettings) -> str:
        """Return the address of the page, without a slash at its end."""
        host, _, port = self.address(temporal).rpartition(":")
        return self.url or f"http://{NAME if host in LOOPBACK_HOSTS else host}:{port}"

    def link(self, temporal: TemporalSettings, workflow_id: str) -> str:
        """Return the address of an episode or plan on the page; empty where nobody serves it."""
        if not (self.url or self.enabled):
            return ""
        return f"{self.page(temporal)}/workflows/{quote(workflow_id, safe='')}"


KindOfAlert = Annotated[AlertKind, WithJsonSchema({"type": "string", "enum": [kind.value for kind in AlertKind]})]

# In quotes: YAML 1.1 reads 7:30 as the number 450, in base 60.
TimeOfDay = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$", examples=['"07:30", in quotes'])]
# Without a user and a password: an address that is a secret belongs in `url_env`.
_WEB_ADDRESS = re.compile(r"https?://[^\s/@]+(/\S*)?")


class AlertChannel(Section):
    """One way to a person."""

    type: Literal["webhook", "desktop", "log"]
    """A signed HTTP request, a notification on the worker's desktop, or a line in its log."""
    kinds: tuple[KindOfAlert, ...] = ()
    """Kinds of alerts for this channel; empty: all."""
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


class AlertSettings(Section):
    """Notifications when an episode needs a person. See docs/operate/alerts.md."""

    channels: dict[str, AlertChannel] = Field(default_factory=lambda: {"log": AlertChannel(type="log")})
    """By a name of your own, which the timeline shows. Empty: nobody is notified."""
    digest: TimeOfDay | None = None
    """When, as "07:30" in UTC, each project's digest of the day before is sent to the channels; null: never."""

    @property
    def digest_at(self) -> time | None:
        """The time of the digest; None: none is sent."""
        return time.fromisoformat(self.digest) if self.digest else None


PromptPrivacyLevel = Annotated[
    PromptPrivacy, WithJsonSchema({"type": "string", "enum": [level.value for level in PromptPrivacy]})
]


class ProjectPrivacy(Section):
    """Privacy of the workspaces under one folder."""

    prompts: PromptPrivacyLevel = PromptPrivacy.FULL
    """What prompts about these workspaces may contain."""


class PrivacySettings(Section):
    """What Temporal and model services may see. docs/trust/privacy.md lists what is where."""

    encrypt: bool = False
    """Keep content out of the logs of workers, too, and encrypt payloads also where `temporal.authenticate` is off;
    where that is on they are encrypted anyway. The same for all workers and clients of a namespace."""
    keys_file: str = ""
    """Key file, absolute or under the state folder; empty: `keys.json` there. See `tightloop keys`."""
    keys_env: str = ""
    """Name of the environment variable that holds the content of a key file, in place of a file."""
    prompts: PromptPrivacyLevel = PromptPrivacy.FULL
    """What prompts of the planner and the reflector may contain."""
    projects: dict[str, ProjectPrivacy] = Field(default_factory=dict)
    """By an absolute folder, for the workspaces in it; the longest folder that fits wins."""

    alerts: Literal["minimal", "full"] = "minimal"
    """`minimal`: alerts carry ids, kinds and counts; `full`: also goal, reason and paths."""

    @property
    def strictest(self) -> PromptPrivacy:
        """The strictest prompt privacy of any project here."""
        # The enum goes from the most to the least that a prompt may contain.
        order = list(PromptPrivacy)
        return max((self.prompts, *(project.prompts for project in self.projects.values())), key=order.index)

    def prompt_privacy_of(self, workspace: str) -> PromptPrivacy:
        """Return what prompts about a workspace (absolute path) may contain."""
        levels = {folder: project.prompts for folder, project in self.projects.items()}
        return prompt_privacy_for(workspace, levels, default=self.prompts)


class RemoteSettings(Section):
    """A bucket of S3, or of a server like it, with copies of checkpoints. The same for all workers.

    Another host can go on from them when one is lost, see docs/operate/host-loss.md.
    """

    bucket: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?$")] = ""
    """Name of the bucket, which must be there. Empty: checkpoints are on the host of the workspace only."""
    endpoint: Annotated[str, Field(pattern=r"^(https?://[^\s/]+)?$")] = ""
    """Address of the server, such as https://s3.example.com. Empty: AWS."""
    region: str = "us-east-1"
    """Region of the bucket; servers other than AWS mostly ignore it."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$")] = "tightloop"
    """Folder in the bucket; give each namespace of Temporal one of its own."""
    access_key: str = ""
    """Key id. Empty: what the environment or the machine has (`AWS_ACCESS_KEY_ID`, a role)."""
    secret_key: SecretStr = SecretStr("")
    """Secret of the key. Better given as `TIGHTLOOP_REMOTE__SECRET_KEY` than in a file."""
    timeout_s: Annotated[float, Field(gt=0, le=45)] = 30.0
    """Of one request to the server; large objects are sent in parts, each a request."""
    move_after_s: Annotated[float | None, Field(ge=10, le=86_400)] = None
    """How long the host of an episode may be silent before another one goes on with it by itself, once a step waits for
    it. Longer than `worker.heartbeat_interval_s` of all workers, and than restarts and breaks of the network take that
    you would rather sit out. Unset: never, a person moves it."""

    @model_validator(mode="after")
    def _has_both(self) -> "RemoteSettings":
        if bool(self.access_key) != bool(self.secret_key.get_secret_value()):
            raise ValueError("access_key and secret_key belong together. Set both, or neither")
        return self


GB = 1_000_000_000


class RetentionSettings(Section):
    """Collections by a schedule, and bounds of the disk. The age of what goes is `server.retention_days`.

    See docs/operate/files.md.
    """

    every_h: Annotated[float | None, Field(ge=1 / 60, le=24 * 366)] = None
    """Hours between two runs of `tightloop gc` on each host with workspaces, by a schedule of Temporal. Empty: none."""
    max_gb: Annotated[float | None, Field(gt=0)] = None
    """Size that the state home may have. From there on what ended longest ago is freed earlier. Needs `every_h`."""
    min_free_gb: Annotated[float | None, Field(gt=0)] = None
    """Likewise the room that stays free on the disk of the state home."""
    memory_days: Count | None = None
    """How long the memory keeps a failure that did not come again. Empty: up to `memory.max_failures`."""

    @model_validator(mode="after")
    def _collects(self) -> "RetentionSettings":
        if self.is_bounded and self.every_h is None:
            raise ValueError("max_gb and min_free_gb need collections. Set every_h, such as 24")
        return self

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound of the disk."""
        return self.max_gb is not None or self.min_free_gb is not None

    @property
    def every(self) -> timedelta | None:
        """Time between two collections; None: there are none."""
        return None if self.every_h is None else timedelta(hours=self.every_h)

    def used_share(self, *, held_bytes: int, free_bytes: int, disk_bytes: int) -> float:
        """Return how much of the nearer bound is used: 1 where it is reached, 0 without bounds.

        Args:
            held_bytes: size of the state home.
            free_bytes: room on its disk.
            disk_bytes: size of its disk.
        """
        shares = [0.0]
        if self.max_gb is not None:
            shares.append(held_bytes / (self.max_gb * GB))
        if self.min_free_gb is not None:
            shares.append((disk_bytes - free_bytes) / max(disk_bytes - self.min_free_gb * GB, 1.0))
        return max(shares)


class MemorySettings(Section):
    """What is remembered of failures and their solutions, and how it is searched."""

    enabled: bool = True
    """Write to the memory, and let planners and the coder read it."""
    store: Literal["auto", "local"] = "auto"
    """`auto`: the PostgreSQL of `database.url` where that is set (it needs the extension pgvector), else the file
    memory.db in the state home. `local`: the file in any case."""
    embedder: Literal["hashing", "local", "openai"] = "hashing"
    """`hashing` finds alike words and needs nothing. `local`: a model in `folder`. `openai`: `model`, for which the
    lines of failures are sent to the service of `planner`."""
    folder: str = ""
    """Of the local model: model.safetensors and tokenizer.json of a BERT such as all-MiniLM-L6-v2."""
    model: str = Field(default="text-embedding-3-large", min_length=1)
    """Of the embedder `openai`."""
    dimension: Annotated[int, Field(ge=64, le=2_000)] = 1536
    """Of its vectors. pgvector indexes at most 2 000."""
    timeout_s: Seconds = 10.0
    """For one call of the embedder `openai`; without an answer only words are compared."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Least cosine of what counts as alike. Empty (null): as it fits the embedder."""
    shown: Annotated[int, Field(ge=1, le=3)] = 3
    """Solutions in one briefing: more of them distract a planner."""
    max_failures: Count = 20_000
    """Of one project. Beyond it go those that were not seen for longest, unsolved ones first."""
    max_facts: Count = 500
    """Of one project."""

    @model_validator(mode="after")
    def _names_its_folder(self) -> "MemorySettings":
        if self.embedder == "local" and not self.folder:
            raise ValueError("embedder is local, but folder is empty. Name the folder of the model")
        return self
