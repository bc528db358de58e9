"""Settings for services and their data."""

import re
from datetime import time, timedelta
from typing import Annotated, Literal
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, WithJsonSchema, field_serializer, model_validator

from tightloop.ledger.alert import AlertKind
from tightloop.run.core import ABSENCE_S, Queues, Weight
from tightloop.safety.drift import PromptPrivacy, prompt_privacy_for
from tightloop.value import Document


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern.replace("{project}", "x"))
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression: {error}") from None
    return pattern


Address = Annotated[str, Field(pattern=r"^[^\s/]+:[0-9]{1,5}$")]
HostRule = Annotated[str, Field(pattern=r"^(?:\*|(?:\*\.)?[\w.-]+|(?:[\w.-]+|\[[\da-fA-F:]+\]):[0-9]{1,5})$")]
Seconds = Annotated[float, Field(gt=0)]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
Count = Annotated[int, Field(ge=1)]


class Section(Document):
    """A group of settings. Infinity and NaN are rejected."""

    # YAML has `.inf` and `.nan`, which could never be reached as bounds.
    model_config = ConfigDict(allow_inf_nan=False)


LOOPBACK_HOSTS = ("127.0.0.1", "localhost")
NO_PROFILE = "none"
"""Value of `temporal.profile` that disables Temporal's own configuration."""
PEM = "-----BEGIN "
"""First characters of a PEM text."""
_METADATA_NAME = re.compile(r"[a-z0-9_.-]+")


class TemporalSettings(Section):
    """Temporal address, namespace and connection."""

    profile: str = ""
    """Profile in Temporal's own configuration (`temporal.toml` and `TEMPORAL_*`). It provides the values that are not
    set here. If empty, the profile is taken from `TEMPORAL_PROFILE`, or is `default`. `none` ignores Temporal's
    configuration.
    """
    address: Address = "127.0.0.1:7233"
    """Host and port of the Temporal frontend."""
    namespace: str = Field(default="default", min_length=1)
    """Namespace for episodes. `tightloop setup` creates it."""
    task_queue: str = Field(default="tightloop", min_length=1)
    """Task queue for episodes."""
    ui_url: str = "http://127.0.0.1:8233"
    """URL of Temporal's Web UI, which is used in links. `tightloop up` serves the UI at this URL and requires users to
    sign in.
    """
    api_key: SecretStr = SecretStr("")
    """API key for Temporal Cloud. We recommend setting it with `TIGHTLOOP_TEMPORAL__API_KEY` rather than in a file."""
    tls: bool | None = None
    """Encrypt the connection with TLS. If unset, TLS is used when `api_key` or any of the settings below is set."""
    tls_ca: str = ""
    """PEM file, or PEM text, with the certificate authorities that sign the server's certificate. If empty, this
    system's certificate authorities are used.
    """
    tls_cert: str = ""
    """PEM file, or PEM text, with the client certificate, if the server requires one."""
    tls_key: str = Field(default="", repr=False)
    """PEM file, or PEM text, with the client's private key. We recommend setting PEM text in an environment variable
    rather than in a file.
    """
    tls_server_name: str = ""
    """Name in the server's certificate, if it is different from the host in `address`."""
    absence_s: float = Field(default=ABSENCE_S, ge=3, le=3600)
    """Maximum time that running work continues without a connection to Temporal, for example during a restart or
    failover. If a worker's host fails, this is only detected after this time. If just the worker process ends, its host
    detects this immediately.
    """
    metadata: dict[str, SecretStr] = Field(default_factory=dict)
    """gRPC metadata to send with every call, by name, such as a header that a proxy requires."""
    authenticate: bool = True
    """Encrypt all data that Temporal stores, and only accept messages from clients and workers that have this
    installation's key. See docs/trust/privacy.md. If disabled, anyone who can reach the server can read all data and
    control the workers. Only disable it for clusters that authenticate their users themselves.
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
        """Configured PEM files or PEM strings, by setting name."""
        files = {"tls_ca": self.tls_ca, "tls_cert": self.tls_cert, "tls_key": self.tls_key}
        return {name: file for name, file in files.items() if file}

    @model_validator(mode="after")
    def _not_in_clear(self) -> "TemporalSettings":
        host = self.address.rpartition(":")[0]
        # On this machine nobody can listen on the wire, and a local proxy may add TLS.
        if not self.encrypted and self.api_key.get_secret_value() and host not in LOOPBACK_HOSTS:
            raise ValueError(f"api_key would be sent unencrypted to {host}. Remove tls: false")
        useless = [*self.tls_files, *(["tls_server_name"] if self.tls_server_name else [])]
        if not self.encrypted and useless:
            raise ValueError(f"tls is false, so {useless[0]} would be ignored. Remove one of the two settings")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key must be set together. Set both or neither")
        for name in self.metadata:
            if not _METADATA_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not a valid metadata name. Use only lowercase letters, digits, '-', '_' and '.'"
                )
        return self

    @field_serializer("tls_key")
    def _mask_key(self, key: str) -> str:
        # The field holds either a path, which helps when shown, or the key itself.
        return "**********" if key.startswith(PEM) else key


class QueueSettings(Section):
    """Task queues by capability. If a field is empty, the episode's own task queue is used."""

    workspace: str = ""
    """Queue for git, checks and artifacts, on the host that has the working tree."""
    llm: str = ""
    """Queue for model calls, except for those made by agents."""
    executor: str = ""
    """Queue for executors, including coding agents."""

    weights: dict[str, Weight] = Field(default_factory=dict)
    """Project weights by project name. They apply when several projects are waiting for the same queue. For example, a
    project with weight 3 gets three steps for each step of a project with weight 1. The default is 1.
    """

    def fill(self, requested: Queues, project: str) -> Queues:
        """Fill in the empty queues of a request and set the weight of the project."""
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
    """Time after which another worker takes over the workflows of a worker that has died."""
    # The bounds are the SDK's.
    heartbeat_interval_s: float = Field(default=2.0, ge=1, le=60)
    """Interval between worker heartbeats, which `temporal worker list` shows."""
    graceful_shutdown_s: float = Field(default=10.0, ge=0)
    """Time that activities are allowed to continue after a stop signal."""
    max_concurrent_activities: Count = 20
    """Number of slots per task queue in this process, which limits the number of concurrent steps. Additional steps
    wait for a free slot.
    """
    host: Annotated[str, Field(pattern=r"^[a-z0-9-]{0,40}$")] = ""
    """Name of this host. It is part of the host's task queue name and, if several hosts share a database, of its
    project names. If empty, the name stored in the state home is used. This name is unique, and it stays the same if
    the path, the machine or the container changes.
    """
    start_wait_s: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """Maximum time that a worker waits at startup for Temporal, the namespace and the workers that it needs."""
    no_worker_wait_s: Annotated[float, Field(ge=1, le=86_400)] = 300.0
    """Maximum time that a step waits for a worker on its task queue before a person is asked."""
    busy_wait_s: Annotated[float, Field(ge=1, le=30 * 86_400)] = 14_400.0
    """Maximum time that a step waits for a free slot while all workers on its task queue are busy. After that, a person
    is asked.
    """
    max_cached_workflows: Annotated[int, Field(ge=0)] = 1000
    """Maximum number of workflows that a worker keeps in memory. Other workflows are replayed from their histories when
    they continue.
    """
    health_bind: Annotated[str, Field(pattern=r"^([^\s/]+:[0-9]{1,5})?$")] = ""
    """Host and port for `GET /healthz` and `GET /readyz`. If empty, no health server is started. Requests do not
    require authentication, and responses do not include any content.
    """
    target_memory: Annotated[float | None, Field(gt=0, le=1)] = None
    """Fraction of this host's memory up to which a worker accepts activities. The number of activities is also limited
    by `max_concurrent_activities`, which is the only limit if neither this nor `target_cpu` is set.
    """
    target_cpu: Annotated[float | None, Field(gt=0, le=1)] = None
    """Fraction of this host's CPU capacity up to which a worker accepts activities."""

    deployment: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,100}$")] = ""
    """Worker Deployment to which the workers belong. Open episodes stay on their build until they continue as a new
    run. If empty, worker versioning is disabled.
    """
    build_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{0,100}$")] = ""
    """Build ID of the workers in `deployment`. If empty, it consists of the version of tightloop and a digest of the
    installed code.
    """

    @property
    def is_tuned(self) -> bool:
        """True if concurrency is limited by the host's resources."""
        return self.target_memory is not None or self.target_cpu is not None


class ServerSettings(Section):
    """Embedded development server that listens on the address in `temporal`.

    Not used if you run your own server.
    """

    http_port: int = Field(default=0, ge=0, le=65_535)
    """Port of the server's HTTP API, which tightloop does not use. If 0, a free port is selected."""
    retention_days: Count = 30
    """Number of days to keep the history of a closed episode."""


class CodecSettings(Section):
    """Codec server for a cluster (`python -m gateway.ui`). Not needed with `tightloop up`.

    See docs/operate/web-ui.md.
    """

    listen: Annotated[str, Field(pattern=r"^([^\s/]+:[0-9]{1,5})?$")] = ""
    """Host and port to listen on. The server uses plain HTTP. To make it available to other hosts, put a TLS proxy in
    front of it.
    """
    origins: tuple[Annotated[str, Field(pattern=r"^https?://[^/\s]+$")], ...] = ()
    """Origins that are allowed to call the codec server, in addition to the Temporal UI at `temporal.ui_url`. Example:
    https://temporal.example.com
    """


class DatabaseSettings(Section):
    """Ledger database shared by several hosts. Each host also keeps its own ledger in its state home."""

    url: SecretStr = SecretStr("")
    """PostgreSQL URL, such as postgresql://db.example.com/tightloop. Workers copy their hosts' rows to this database,
    and the web page and the API read from it. If empty, the file in the state home is used. If the URL contains a
    password, we recommend setting it with `TIGHTLOOP_DATABASE__URL` rather than in a file.
    """

    @model_validator(mode="after")
    def _is_postgresql(self) -> "DatabaseSettings":
        url = self.url.get_secret_value()
        if url and not url.startswith(("postgresql://", "postgres://")):
            raise ValueError("url must start with postgresql://, for example postgresql://db.example.com/tightloop")
        return self


AFTER_UI = 2
"""Difference between the gateway's port and the port of the Temporal Web UI. A second `tightloop up` shifts both ports.
"""
NAME = "tightloop.localhost"
"""Host name that browsers resolve to this machine. Its cookies are separate from those of other servers on `localhost`.
"""


class GatewaySettings(Section):
    """Web page and HTTP API, served by `tightloop up` or by `python -m gateway`."""

    enabled: bool = True
    """Serve the page and the API with `tightloop up`."""
    listen: Annotated[str, Field(pattern=r"^([^\s/]+:[0-9]{1,5})?$")] = ""
    """Host and port to listen on. If empty, the gateway is only available on this machine, and its port is the port of
    `temporal.ui_url` plus 2 (by default, it listens on 127.0.0.1:8235). The gateway uses plain HTTP. To make it
    available to other hosts, put a TLS proxy in front of it and set `url`.
    """
    url: Annotated[str, Field(pattern=r"^(https?://[^/\s]+)?$")] = ""
    """Public URL of the page, such as https://tightloop.example.com. If empty, it is http://tightloop.localhost:PORT.
    """

    def address(self, temporal: TemporalSettings) -> str:
        """Return the host and port to listen on."""
        return self.listen or f"127.0.0.1:{temporal.ui_port + AFTER_UI}"

    def page(self, temporal: TemporalSettings) -> str:
        """Return the URL of the page, without a trailing slash."""
        host, _, port = self.address(temporal).rpartition(":")
        return self.url or f"http://{NAME if host in LOOPBACK_HOSTS else host}:{port}"

    def link(self, temporal: TemporalSettings, workflow_id: str) -> str:
        """Return the URL of a run on the page, or "" if the page is not served."""
        if not (self.url or self.enabled):
            return ""
        return f"{self.page(temporal)}/workflows/{quote(workflow_id, safe='')}"


KindOfAlert = Annotated[AlertKind, WithJsonSchema({"type": "string", "enum": [kind.value for kind in AlertKind]})]

# Quotes are needed: YAML 1.1 reads 7:30 as the base-60 number 450.
TimeOfDay = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$", examples=['"07:30", in quotes'])]
# Credentials in the URL are rejected: a secret URL belongs in `url_env`.
_WEB_ADDRESS = re.compile(r"https?://[^\s/@]+(/\S*)?")


class AlertChannel(Section):
    """A channel to which alerts are sent."""

    type: Literal["webhook", "desktop", "log"]
    """Type of channel: a signed HTTP request, a notification on the worker's desktop, or a line in the worker's log."""
    kinds: tuple[KindOfAlert, ...] = ()
    """Kinds of alerts to send to this channel. If empty, all alerts are sent."""
    url: str = ""
    """URL of the webhook."""
    url_env: str = ""
    """Name of the environment variable that contains the URL. Use it for services whose URLs are secret."""
    secret_env: str = ""
    """Name of the environment variable that contains the signing secret of the webhook. If empty, requests are not
    signed.
    """
    timeout_s: Annotated[float, Field(gt=0, le=30)] = 5.0
    """Time limit for one attempt."""

    @model_validator(mode="after")
    def _check_address(self) -> "AlertChannel":
        url_count = bool(self.url) + bool(self.url_env)
        if self.type == "webhook" and url_count != 1:
            raise ValueError("a webhook requires either url or url_env, the name of the variable that contains the URL")
        if self.url and not _WEB_ADDRESS.fullmatch(self.url):
            raise ValueError("url must look like https://host/path, without a username or password")
        if self.type != "webhook" and (url_count or self.secret_env):
            raise ValueError(f"url, url_env and secret_env are only valid for a webhook, not for {self.type}")
        return self


class AlertSettings(Section):
    """Alerts for runs that need a person.

    See docs/operate/alerts.md.
    """

    channels: dict[str, AlertChannel] = Field(default_factory=lambda: {"log": AlertChannel(type="log")})
    """Alert channels by name. You can choose any names. They appear in the timeline. If empty, no alerts are sent."""
    digest: TimeOfDay | None = None
    """UTC time, such as "07:30", at which each project's digest of the last 24 hours is sent to the channels. If null,
    no digest is sent.
    """

    @property
    def digest_at(self) -> time | None:
        """Time of the digest, or None if the digest is disabled."""
        return time.fromisoformat(self.digest) if self.digest else None


PromptPrivacyLevel = Annotated[
    PromptPrivacy, WithJsonSchema({"type": "string", "enum": [level.value for level in PromptPrivacy]})
]


class ProjectPrivacy(Section):
    """Privacy settings for all workspaces in a folder."""

    prompts: PromptPrivacyLevel = PromptPrivacy.FULL
    """Content that prompts about these workspaces may include."""


class PrivacySettings(Section):
    """Settings for the content that Temporal and model services may see.

    See docs/trust/privacy.md.
    """

    encrypt: bool = False
    """Keep content out of worker logs, and encrypt payloads even if `temporal.authenticate` is disabled. If it is
    enabled, payloads are always encrypted. This setting must be the same for all workers and clients of a namespace.
    """
    keys_file: str = ""
    """Path of the key file, either absolute or relative to the state home. If empty, the file is `keys.json` in the
    state home. See `tightloop keys`.
    """
    keys_env: str = ""
    """Name of an environment variable that contains the contents of a key file. It replaces the key file."""
    prompts: PromptPrivacyLevel = PromptPrivacy.FULL
    """Content that the prompts for the planner and the reflector may include."""
    projects: dict[str, ProjectPrivacy] = Field(default_factory=dict)
    """Privacy settings by absolute folder path. They apply to the workspaces in the folder. If several folders match,
    the longest path is used.
    """

    alerts: Literal["minimal", "full"] = "minimal"
    """Content of alerts. `minimal` alerts contain IDs, kinds and counts. `full` alerts also contain the goal, the
    reason and paths.
    """

    @property
    def strictest(self) -> PromptPrivacy:
        """Strictest prompt privacy level across all projects."""
        # The enum is ordered from most to least content.
        order = list(PromptPrivacy)
        return max((self.prompts, *(project.prompts for project in self.projects.values())), key=order.index)

    def prompt_privacy_of(self, workspace: str) -> PromptPrivacy:
        """Return the prompt privacy level of a workspace, given by its absolute path."""
        levels = {folder: project.prompts for folder, project in self.projects.items()}
        return prompt_privacy_for(workspace, levels, default=self.prompts)


class RemoteSettings(Section):
    """An S3-compatible bucket for copies of checkpoints.

    If a host is lost, another host can continue from the copies. All workers must use the same settings.
    See docs/operate/host-loss.md.
    """

    bucket: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?$")] = ""
    """Name of an existing bucket. If empty, checkpoints are only stored on the workspace's host."""
    endpoint: Annotated[str, Field(pattern=r"^(https?://[^\s/]+)?$")] = ""
    """URL of the server, such as https://s3.example.com. If empty, AWS is used."""
    region: str = "us-east-1"
    """Region of the bucket. Most servers other than AWS ignore it."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$")] = "tightloop"
    """Folder in the bucket. Use a separate folder for each Temporal namespace."""
    access_key: str = ""
    """Access key ID. If empty, credentials are taken from the environment (`AWS_ACCESS_KEY_ID`) or the machine's role.
    """
    secret_key: SecretStr = SecretStr("")
    """Secret access key. We recommend setting it with `TIGHTLOOP_REMOTE__SECRET_KEY` rather than in a file."""
    timeout_s: Annotated[float, Field(gt=0, le=45)] = 30.0
    """Time limit for one request. Large objects are uploaded in parts, with one request per part."""
    move_after_s: Annotated[float | None, Field(ge=10, le=86_400)] = None
    """Time without contact with an episode's host after which another host takes over automatically, if a step is
    waiting for the host. Choose a value that is larger than `worker.heartbeat_interval_s` of all workers, and larger
    than the restarts and network outages that should not cause a takeover. If unset, episodes are only moved by a
    person.
    """

    @model_validator(mode="after")
    def _has_both(self) -> "RemoteSettings":
        if bool(self.access_key) != bool(self.secret_key.get_secret_value()):
            raise ValueError("access_key and secret_key must be set together. Set both or neither")
        return self


GB = 1_000_000_000


class ProofSettings(Section):
    """Proofs of success."""

    countersigning_key: str = ""
    """Path of the private SSH key with which `tightloop verify --run --output` countersigns a proof. It must not be in
    a folder that checks can read. In CI, set it with `TIGHTLOOP_PROOF__COUNTERSIGNING_KEY`.
    """


class RetentionSettings(Section):
    """Scheduled garbage collection and disk usage limits.

    The age at which data is deleted is set by `server.retention_days`. See docs/operate/files.md.
    """

    every_h: Annotated[float | None, Field(ge=1 / 60, le=24 * 366)] = None
    """Number of hours between scheduled runs of `tightloop gc` on each host with workspaces. If empty, garbage
    collection is not scheduled.
    """
    max_gb: Annotated[float | None, Field(gt=0)] = None
    """Maximum size of the state home in GB. If it is exceeded, data is deleted early, starting with the runs that ended
    first. Requires `every_h`.
    """
    min_free_gb: Annotated[float | None, Field(gt=0)] = None
    """Minimum free space in GB on the disk that contains the state home. It is enforced in the same way as `max_gb`."""
    memory_days: Count | None = None
    """Number of days that the memory keeps a failure that does not recur. If empty, only `memory.max_failures` limits
    the memory.
    """

    @model_validator(mode="after")
    def _collects(self) -> "RetentionSettings":
        if self.is_bounded and self.every_h is None:
            raise ValueError("max_gb and min_free_gb require scheduled collections. Set every_h, for example to 24")
        return self

    @property
    def is_bounded(self) -> bool:
        """True if a disk limit is set."""
        return self.max_gb is not None or self.min_free_gb is not None

    @property
    def every(self) -> timedelta | None:
        """Interval between scheduled garbage collections, or None if scheduling is disabled."""
        return None if self.every_h is None else timedelta(hours=self.every_h)

    def used_share(self, *, held_bytes: int, free_bytes: int, disk_bytes: int) -> float:
        """Return how much of the tighter disk limit is used, as a fraction.

        The result is 1 if a limit is reached and 0 if there are no limits.

        Args:
            held_bytes: size of the state home.
            free_bytes: free space on the disk of the state home.
            disk_bytes: total size of this disk.
        """
        shares = [0.0]
        if self.max_gb is not None:
            shares.append(held_bytes / (self.max_gb * GB))
        if self.min_free_gb is not None:
            # At least 1: a bound above the size of the disk counts as exceeded instead of dividing by zero.
            shares.append((disk_bytes - free_bytes) / max(disk_bytes - self.min_free_gb * GB, 1.0))
        return max(shares)


class MemorySettings(Section):
    """Settings for storing and searching the memory of failures and their solutions."""

    enabled: bool = True
    """Record failures in the memory, and let planners and the coder read it."""
    store: Literal["auto", "local"] = "auto"
    """Storage location of the memory. `auto` uses PostgreSQL at `database.url` if that is set, which requires the
    pgvector extension. Otherwise, it uses the file memory.db in the state home. `local` always uses the file.
    """
    embedder: Literal["hashing", "local", "openai"] = "hashing"
    """Embedder for similarity search. `hashing` matches similar words and has no requirements. `local` uses the model
    in `folder`. `openai` uses the model named by `model` and sends the text of failures to the `planner` service.
    """
    folder: str = ""
    """Folder of the local model. It must contain model.safetensors and tokenizer.json of a BERT model such as
    all-MiniLM-L6-v2.
    """
    model: str = Field(default="text-embedding-3-large", min_length=1)
    """Model name for the `openai` embedder."""
    dimension: Annotated[int, Field(ge=64, le=2_000)] = 1536
    """Vector length for the `openai` embedder. pgvector can index at most 2 000 dimensions."""
    timeout_s: Seconds = 10.0
    """Time limit for a call to the `openai` embedder. If it does not respond in time, only words are compared."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Minimum cosine similarity of a match. If null, the embedder's default is used."""
    shown: Annotated[int, Field(ge=1, le=3)] = 3
    """Maximum number of solutions in a briefing. A larger number would distract the planner."""
    max_failures: Count = 20_000
    """Maximum number of failures per project. If it is exceeded, the failures that have not been seen for the longest
    time are deleted, starting with unsolved ones.
    """
    max_facts: Count = 500
    """Maximum number of facts per project."""

    @model_validator(mode="after")
    def _names_its_folder(self) -> "MemorySettings":
        if self.embedder == "local" and not self.folder:
            raise ValueError("embedder is local, but folder is empty. Set folder to the path of the model")
        return self
