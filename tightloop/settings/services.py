"""Settings of services and their data."""

import re
from datetime import time, timedelta
from typing import Annotated, Literal
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, WithJsonSchema, field_serializer, model_validator

from tightloop.ledger.alert import AlertKind
from tightloop.run.routing import ABSENCE_S, Queues, Weight
from tightloop.safety.drift import PromptPrivacy, prompt_privacy_for
from tightloop.value import Document


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern.replace("{project}", "x"))
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


Address = Annotated[str, Field(pattern=r"^[^\s/]+:[0-9]{1,5}$")]
HostRule = Annotated[str, Field(pattern=r"^(?:\*|(?:\*\.)?[\w.-]+|(?:[\w.-]+|\[[\da-fA-F:]+\]):[0-9]{1,5})$")]
Seconds = Annotated[float, Field(gt=0)]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
Count = Annotated[int, Field(ge=1)]


class Section(Document):
    """Group of settings; rejects infinity and NaN."""

    # YAML has `.inf` and `.nan`, which could never be reached as bounds.
    model_config = ConfigDict(allow_inf_nan=False)


LOOPBACK_HOSTS = ("127.0.0.1", "localhost")
NO_PROFILE = "none"
"""Value of `temporal.profile` that ignores Temporal's own configuration."""
PEM = "-----BEGIN "
"""First characters of PEM text."""
_METADATA_NAME = re.compile(r"[a-z0-9_.-]+")


class TemporalSettings(Section):
    """Address and namespace of Temporal."""

    profile: str = ""
    """Profile of Temporal's own configuration (`temporal.toml`, `TEMPORAL_*`), which provides values that are not set
    here.
    Empty: `TEMPORAL_PROFILE`, or `default`; `none`: ignore that configuration.
    """
    address: Address = "127.0.0.1:7233"
    """Host and port of the frontend."""
    namespace: str = Field(default="default", min_length=1)
    """Namespace of the episodes; `tightloop setup` creates it."""
    task_queue: str = Field(default="tightloop", min_length=1)
    """Task queue of the episodes."""
    ui_url: str = "http://127.0.0.1:8233"
    """URL of Temporal's Web UI, for links; `tightloop up` serves it there, behind a sign-in."""
    api_key: SecretStr = SecretStr("")
    """API key of Temporal Cloud. Preferably set as `TIGHTLOOP_TEMPORAL__API_KEY` instead of in a file."""
    tls: bool | None = None
    """Encrypt the connection. Unset: if `api_key` or one of the settings below is set."""
    tls_ca: str = ""
    """PEM file, or PEM text, of the authorities that sign the server's certificate. Empty: those of this system."""
    tls_cert: str = ""
    """PEM file, or PEM text, of the client certificate, if the server requires one."""
    tls_key: str = Field(default="", repr=False)
    """PEM file of the client's private key; or PEM text, preferably set as a variable instead of in a file."""
    tls_server_name: str = ""
    """Name in the server's certificate, if it differs from the host of `address`."""
    absence_s: float = Field(default=ABSENCE_S, ge=3, le=3600)
    """Maximum time without Temporal that running work survives: a restart or a failover. The loss of a worker's host is
    detected only after this time; its own host detects the end of a worker process at once.
    """
    metadata: dict[str, SecretStr] = Field(default_factory=dict)
    """gRPC metadata of each call by name, such as a header that a proxy requires."""
    authenticate: bool = True
    """Encrypt everything that Temporal stores, and accept only messages from clients and workers with this
    installation's
    key, see docs/trust/privacy.md. Off: anyone who can reach the server can read everything and command the workers;
    only
    for clusters that authenticate their users themselves.
    """

    @property
    def loopback(self) -> bool:
        """True if the server is on this machine."""
        return self.address.rpartition(":")[0] in LOOPBACK_HOSTS

    @property
    def ui_port(self) -> int:
        """Port of the embedded server's Web UI."""
        return urlsplit(self.ui_url).port or 8233

    @property
    def encrypted(self) -> bool:
        """True if the connection uses TLS."""
        if self.tls is not None:
            return self.tls
        return bool(self.api_key.get_secret_value() or self.tls_files or self.tls_server_name)

    @property
    def tls_files(self) -> dict[str, str]:
        """Configured PEM files or texts, by setting name."""
        files = {"tls_ca": self.tls_ca, "tls_cert": self.tls_cert, "tls_key": self.tls_key}
        return {name: file for name, file in files.items() if file}

    @model_validator(mode="after")
    def _not_in_clear(self) -> "TemporalSettings":
        host = self.address.rpartition(":")[0]
        # On this machine nobody can listen on the wire, and a local proxy may add TLS.
        if not self.encrypted and self.api_key.get_secret_value() and host not in LOOPBACK_HOSTS:
            raise ValueError(f"api_key would be sent in clear text to {host}. Remove tls: false")
        useless = [*self.tls_files, *(["tls_server_name"] if self.tls_server_name else [])]
        if not self.encrypted and useless:
            raise ValueError(f"tls is false, so {useless[0]} would be ignored. Remove one of the two")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key belong together. Set both, or neither")
        for name in self.metadata:
            if not _METADATA_NAME.fullmatch(name):
                raise ValueError(f"metadata name {name!r} is invalid. Use only lower-case letters, digits, - _ and .")
        return self

    @field_serializer("tls_key")
    def _mask_key(self, key: str) -> str:
        # The field holds either a path, which helps when shown, or the key itself.
        return "**********" if key.startswith(PEM) else key


class QueueSettings(Section):
    """Task queues by capability. Empty: the same queue as the episode."""

    workspace: str = ""
    """Queue for git, checks and artifacts, on the host with the working tree."""
    llm: str = ""
    """Queue for model calls, other than those of agents."""
    executor: str = ""
    """Queue for executors, such as coding agents."""

    weights: dict[str, Weight] = Field(default_factory=dict)
    """Weights of projects by name, used when several wait on one queue: weight 3 gets three steps for each step of
    weight 1. Default: 1.
    """

    def fill(self, requested: Queues, project: str) -> Queues:
        """Fill the empty queues of a request and set the project's weight."""
        return requested.evolve(
            workspace=requested.workspace or self.workspace,
            llm=requested.llm or self.llm,
            executor=requested.executor or self.executor,
            weight=self.weights.get(project, 1.0),
        )


class WorkerSettings(Section):
    """Limits of a worker process."""

    # Temporal's default is 10 s: the next model call started 11.8 to 14.2 s after a worker was killed, and 2.8 s after
    # it with 1 s here.
    sticky_timeout_s: float = Field(default=1.0, ge=1, le=10)
    """Time until another worker takes over the workflows of a dead worker."""
    # The bounds are the SDK's.
    heartbeat_interval_s: float = Field(default=2.0, ge=1, le=60)
    """Interval of worker heartbeats (`temporal worker list`)."""
    graceful_shutdown_s: float = Field(default=10.0, ge=0)
    """Time that activities may continue after a stop signal."""
    max_concurrent_activities: Count = 20
    """Slots per task queue of the process, which limit concurrent steps. Further steps wait for a free slot."""
    host: Annotated[str, Field(pattern=r"^[a-z0-9-]{0,40}$")] = ""
    """Name of this host, used in its task queue and, if several hosts share a database, in its projects. Empty: the
    name
    stored in the state home, which is unique and survives changes of path, machine or container.
    """
    start_wait_s: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """Time that a starting worker waits for Temporal, the namespace and the workers it needs."""
    no_worker_wait_s: Annotated[float, Field(ge=1, le=86_400)] = 300.0
    """Time that a step waits for a worker on its task queue before a person is asked."""
    busy_wait_s: Annotated[float, Field(ge=1, le=30 * 86_400)] = 14_400.0
    """Time that a step waits for a free slot while all workers on its task queue are busy, before a person is asked."""
    max_cached_workflows: Annotated[int, Field(ge=0)] = 1000
    """Maximum number of workflows in a worker's memory. Others are replayed from their histories when they continue."""
    health_bind: Annotated[str, Field(pattern=r"^([^\s/]+:[0-9]{1,5})?$")] = ""
    """Host and port of `GET /healthz` and `GET /readyz`. Empty: no health server. Requests need no authentication;
    responses contain no content.
    """
    target_memory: Annotated[float | None, Field(gt=0, le=1)] = None
    """Memory share of this host up to which a worker accepts activities, at most `max_concurrent_activities`. If
    neither
    this nor `target_cpu` is set, that number is always accepted.
    """
    target_cpu: Annotated[float | None, Field(gt=0, le=1)] = None
    """CPU share of this host up to which a worker accepts activities."""

    deployment: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,100}$")] = ""
    """Worker Deployment of the workers: open episodes stay on their build until they continue as a new run. Empty: no
    worker versioning.
    """
    build_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{0,100}$")] = ""
    """Build id of the workers in `deployment`. Empty: version of tightloop with a digest of the installed code."""

    @property
    def is_tuned(self) -> bool:
        """True if the host's resources limit concurrency."""
        return self.target_memory is not None or self.target_cpu is not None


class ServerSettings(Section):
    """Embedded development server; it listens at the address in `temporal`. Not used with a server of your own."""

    http_port: int = Field(default=0, ge=0, le=65_535)
    """Port of its HTTP API, which tightloop does not use; 0: a free one."""
    retention_days: Count = 30
    """Days that the history of a closed episode is kept."""


class CodecSettings(Section):
    """Codec server for a cluster, `python -m gateway.ui`; not needed with `tightloop up`.

    See docs/operate/web-ui.md.
    """

    listen: Annotated[str, Field(pattern=r"^([^\s/]+:[0-9]{1,5})?$")] = ""
    """Host and port to listen at. Plain HTTP: to serve other hosts, add a proxy with TLS."""
    origins: tuple[Annotated[str, Field(pattern=r"^https?://[^/\s]+$")], ...] = ()
    """Origins allowed to call it, besides the Temporal UI at `temporal.ui_url`, such as https://temporal.example.com"""


class DatabaseSettings(Section):
    """Shared ledger database of several hosts. Each host also writes its own ledger in its state home."""

    url: SecretStr = SecretStr("")
    """PostgreSQL URL, such as postgresql://db.example.com/tightloop. Workers copy the rows of their hosts there, and
    the
    page and the API read from it. Empty: the file in the state home. If it contains a password, preferably set it as
    `TIGHTLOOP_DATABASE__URL` instead of in a file.
    """

    @model_validator(mode="after")
    def _is_postgresql(self) -> "DatabaseSettings":
        url = self.url.get_secret_value()
        if url and not url.startswith(("postgresql://", "postgres://")):
            raise ValueError("url must begin with postgresql://, such as postgresql://db.example.com/tightloop")
        return self


AFTER_UI = 2
"""Offset of the gateway's port from that of the Temporal Web UI, so that a second `up` moves both."""
NAME = "tightloop.localhost"
"""Browsers resolve it to this machine, and keep its cookies apart from other servers at `localhost`."""


class GatewaySettings(Section):
    """Web page and HTTP API, served by `tightloop up`, or alone by `python -m gateway`."""

    enabled: bool = True
    """Let `tightloop up` serve them."""
    listen: Annotated[str, Field(pattern=r"^([^\s/]+:[0-9]{1,5})?$")] = ""
    """Host and port to listen at. Empty: this machine only, two ports above `temporal.ui_url`, by default
    127.0.0.1:8235.
    Plain HTTP: to serve other hosts, add a proxy with TLS and set `url`.
    """
    url: Annotated[str, Field(pattern=r"^(https?://[^/\s]+)?$")] = ""
    """Public URL of the page, such as https://tightloop.example.com. Empty: http://tightloop.localhost:PORT."""

    def address(self, temporal: TemporalSettings) -> str:
        """Return the host and port to listen at."""
        return self.listen or f"127.0.0.1:{temporal.ui_port + AFTER_UI}"

    def page(self, temporal: TemporalSettings) -> str:
        """Return the URL of the page, without a trailing slash."""
        host, _, port = self.address(temporal).rpartition(":")
        return self.url or f"http://{NAME if host in LOOPBACK_HOSTS else host}:{port}"

    def link(self, temporal: TemporalSettings, workflow_id: str) -> str:
        """Return the URL of a run on the page; empty if the page is not served."""
        if not (self.url or self.enabled):
            return ""
        return f"{self.page(temporal)}/workflows/{quote(workflow_id, safe='')}"


KindOfAlert = Annotated[AlertKind, WithJsonSchema({"type": "string", "enum": [kind.value for kind in AlertKind]})]

# Quotes are needed: YAML 1.1 reads 7:30 as the base-60 number 450.
TimeOfDay = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$", examples=['"07:30", in quotes'])]
# Credentials in the URL are rejected: a secret URL belongs in `url_env`.
_WEB_ADDRESS = re.compile(r"https?://[^\s/@]+(/\S*)?")


class AlertChannel(Section):
    """Alert channel."""

    type: Literal["webhook", "desktop", "log"]
    """Signed HTTP request, notification on the worker's desktop, or line in its log."""
    kinds: tuple[KindOfAlert, ...] = ()
    """Alert kinds for this channel; empty: all."""
    url: str = ""
    """URL of a webhook."""
    url_env: str = ""
    """Name of the environment variable that holds the URL, for services with secret URLs."""
    secret_env: str = ""
    """Name of the environment variable that holds the signing secret of a webhook; empty: not signed."""
    timeout_s: Annotated[float, Field(gt=0, le=30)] = 5.0
    """Time limit of one attempt."""

    @model_validator(mode="after")
    def _check_address(self) -> "AlertChannel":
        url_count = bool(self.url) + bool(self.url_env)
        if self.type == "webhook" and url_count != 1:
            raise ValueError("a webhook needs either url or url_env, the name of the variable that holds the URL")
        if self.url and not _WEB_ADDRESS.fullmatch(self.url):
            raise ValueError("url must be like https://host/path, without a user and a password")
        if self.type != "webhook" and (url_count or self.secret_env):
            raise ValueError(f"url, url_env and secret_env belong to a webhook, not to {self.type}")
        return self


class AlertSettings(Section):
    """Alerts when a run needs a person. See docs/operate/alerts.md."""

    channels: dict[str, AlertChannel] = Field(default_factory=lambda: {"log": AlertChannel(type="log")})
    """Channels under names of your choice, which the timeline shows. Empty: no alerts."""
    digest: TimeOfDay | None = None
    """UTC time, such as "07:30", at which the channels get each project's digest of the previous day; null: never."""

    @property
    def digest_at(self) -> time | None:
        """Parsed time of the digest; None if it is disabled."""
        return time.fromisoformat(self.digest) if self.digest else None


PromptPrivacyLevel = Annotated[
    PromptPrivacy, WithJsonSchema({"type": "string", "enum": [level.value for level in PromptPrivacy]})
]


class ProjectPrivacy(Section):
    """Privacy settings of the workspaces in a folder."""

    prompts: PromptPrivacyLevel = PromptPrivacy.FULL
    """Content allowed in prompts about these workspaces."""


class PrivacySettings(Section):
    """Content that Temporal and model services may see. See docs/trust/privacy.md."""

    encrypt: bool = False
    """Also keep content out of worker logs, and encrypt payloads even if `temporal.authenticate` is off; if it is on,
    they
    are always encrypted. Must be equal for all workers and clients of a namespace.
    """
    keys_file: str = ""
    """Key file, absolute or relative to the state home; empty: `keys.json` there. See `tightloop keys`."""
    keys_env: str = ""
    """Name of the environment variable that holds the content of a key file, instead of a file."""
    prompts: PromptPrivacyLevel = PromptPrivacy.FULL
    """Content allowed in prompts of the planner and the reflector."""
    projects: dict[str, ProjectPrivacy] = Field(default_factory=dict)
    """Settings by absolute folder, applied to the workspaces in it; the longest matching folder wins."""

    alerts: Literal["minimal", "full"] = "minimal"
    """`minimal`: alerts contain ids, kinds and counts; `full`: also goal, reason and paths."""

    @property
    def strictest(self) -> PromptPrivacy:
        """Strictest prompt privacy of all projects."""
        # The enum is ordered from most to least content.
        order = list(PromptPrivacy)
        return max((self.prompts, *(project.prompts for project in self.projects.values())), key=order.index)

    def prompt_privacy_of(self, workspace: str) -> PromptPrivacy:
        """Return the prompt privacy of a workspace (absolute path)."""
        levels = {folder: project.prompts for folder, project in self.projects.items()}
        return prompt_privacy_for(workspace, levels, default=self.prompts)


class RemoteSettings(Section):
    """S3-compatible bucket for copies of checkpoints. Must be equal for all workers.

    Another host can continue from the copies if one is lost, see docs/operate/host-loss.md.
    """

    bucket: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?$")] = ""
    """Name of an existing bucket. Empty: checkpoints stay on the workspace's host only."""
    endpoint: Annotated[str, Field(pattern=r"^(https?://[^\s/]+)?$")] = ""
    """URL of the server, such as https://s3.example.com. Empty: AWS."""
    region: str = "us-east-1"
    """Region of the bucket; most servers other than AWS ignore it."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$")] = "tightloop"
    """Folder in the bucket; use a separate one for each Temporal namespace."""
    access_key: str = ""
    """Access key id. Empty: from the environment or the machine (`AWS_ACCESS_KEY_ID`, a role)."""
    secret_key: SecretStr = SecretStr("")
    """Secret access key. Preferably set as `TIGHTLOOP_REMOTE__SECRET_KEY` instead of in a file."""
    timeout_s: Annotated[float, Field(gt=0, le=45)] = 30.0
    """Time limit of one request; large objects are uploaded in parts, one request each."""
    move_after_s: Annotated[float | None, Field(ge=10, le=86_400)] = None
    """Silence of an episode's host after which another one takes over automatically, once a step waits for it. Choose
    more
    than `worker.heartbeat_interval_s` of all workers, and more than the restarts and network outages you want to wait
    out. Unset: only a person moves episodes.
    """

    @model_validator(mode="after")
    def _has_both(self) -> "RemoteSettings":
        if bool(self.access_key) != bool(self.secret_key.get_secret_value()):
            raise ValueError("access_key and secret_key belong together. Set both, or neither")
        return self


GB = 1_000_000_000


class RetentionSettings(Section):
    """Scheduled garbage collection and disk limits. `server.retention_days` sets the age of deleted data.

    See docs/operate/files.md.
    """

    every_h: Annotated[float | None, Field(ge=1 / 60, le=24 * 366)] = None
    """Hours between scheduled runs of `tightloop gc` on each host with workspaces. Empty: no schedule."""
    max_gb: Annotated[float | None, Field(gt=0)] = None
    """Maximum size of the state home. Above it, data is freed early, longest-ended runs first. Needs `every_h`."""
    min_free_gb: Annotated[float | None, Field(gt=0)] = None
    """Minimum free space on the disk of the state home, enforced like `max_gb`."""
    memory_days: Count | None = None
    """Days that the memory keeps a failure that does not recur. Empty: limited only by `memory.max_failures`."""

    @model_validator(mode="after")
    def _collects(self) -> "RetentionSettings":
        if self.is_bounded and self.every_h is None:
            raise ValueError("max_gb and min_free_gb need scheduled collections. Set every_h, such as 24")
        return self

    @property
    def is_bounded(self) -> bool:
        """True if a disk limit is set."""
        return self.max_gb is not None or self.min_free_gb is not None

    @property
    def every(self) -> timedelta | None:
        """Interval of scheduled collections; None if there are none."""
        return None if self.every_h is None else timedelta(hours=self.every_h)

    def used_share(self, *, held_bytes: int, free_bytes: int, disk_bytes: int) -> float:
        """Return the used share of the tighter limit: 1 when it is reached, 0 without limits.

        Args:
            held_bytes: size of the state home.
            free_bytes: free space on its disk.
            disk_bytes: size of its disk.
        """
        shares = [0.0]
        if self.max_gb is not None:
            shares.append(held_bytes / (self.max_gb * GB))
        if self.min_free_gb is not None:
            # At least 1: a bound above the size of the disk counts as exceeded instead of dividing by zero.
            shares.append((disk_bytes - free_bytes) / max(disk_bytes - self.min_free_gb * GB, 1.0))
        return max(shares)


class MemorySettings(Section):
    """Memory of failures and their solutions: storage and search."""

    enabled: bool = True
    """Write to the memory, and let planners and the coder read it."""
    store: Literal["auto", "local"] = "auto"
    """`auto`: PostgreSQL at `database.url` if that is set (needs the extension pgvector), otherwise the file memory.db
    in
    the state home. `local`: always the file.
    """
    embedder: Literal["hashing", "local", "openai"] = "hashing"
    """`hashing`: matches similar words, needs nothing. `local`: the model in `folder`. `openai`: the model in `model`;
    the
    lines of failures are sent to the service of `planner`.
    """
    folder: str = ""
    """Folder of the local model: model.safetensors and tokenizer.json of a BERT such as all-MiniLM-L6-v2."""
    model: str = Field(default="text-embedding-3-large", min_length=1)
    """Model name of the embedder `openai`."""
    dimension: Annotated[int, Field(ge=64, le=2_000)] = 1536
    """Vector length of the embedder `openai`. pgvector indexes at most 2 000."""
    timeout_s: Seconds = 10.0
    """Time limit of a call to the embedder `openai`; without a response only words are compared."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Minimum cosine of a match. Empty (null): the embedder's default."""
    shown: Annotated[int, Field(ge=1, le=3)] = 3
    """Maximum number of solutions in a briefing; more distract a planner."""
    max_failures: Count = 20_000
    """Maximum number of failures per project. Beyond it, those not seen for longest are dropped, unsolved ones first.
    """
    max_facts: Count = 500
    """Maximum number of facts per project."""

    @model_validator(mode="after")
    def _names_its_folder(self) -> "MemorySettings":
        if self.embedder == "local" and not self.folder:
            raise ValueError("embedder is local, but folder is empty. Name the folder of the model")
        return self
