"""Settings of Temporal, its codec server, task queues and workers."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_serializer, model_validator

from tightloop.episode.model import ABSENCE_S, Queues
from tightloop.episode.share import Weight
from tightloop.settings.section import Address, Count, Section

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
