"""Settings of the remote store: a bucket with a copy of each checkpoint."""

from typing import Annotated

from pydantic import Field, SecretStr, model_validator

from tightloop.settings.section import Section


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
