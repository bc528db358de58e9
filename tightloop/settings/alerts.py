"""Settings of alert channels."""

import re
from datetime import time
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema, model_validator

from tightloop.ledger.alert import AlertKind
from tightloop.settings.section import Section

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
