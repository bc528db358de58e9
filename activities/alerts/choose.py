"""Builds the alert channels of the settings."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from activities.alerts.log import Log
from activities.alerts.port import Channel, NotDeliveredError, Post
from tightloop.ledger.alert import AlertKind, Notice
from tightloop.settings import AlertChannel, Settings

logger = logging.getLogger("tightloop")


def post_of(settings: Settings, environ: Mapping[str, str]) -> Post:
    """Return where alerts go. A channel that cannot work is kept, so that its failures appear in the timeline."""
    return Post(
        channels=tuple(_channel(name, channel, environ) for name, channel in settings.alerts.channels.items()),
        ui_url=settings.temporal.ui_url,
        namespace=settings.temporal.namespace,
        page_of=partial(settings.gateway.link, settings.temporal),
        full=settings.privacy.alerts == "full",
    )


@dataclass(frozen=True)
class Unusable:
    """A channel that cannot work on this host with its settings."""

    name: str
    reason: str
    kinds: frozenset[AlertKind]

    async def deliver(self, notice: Notice) -> None:  # noqa: ARG002 - the port's signature
        """Refuse with the reason; see the port."""
        raise NotDeliveredError(self.reason, again=False)


def _channel(name: str, channel: AlertChannel, environ: Mapping[str, str]) -> Channel:
    kinds = frozenset(channel.kinds)
    missing = [variable for variable in (channel.url_env, channel.secret_env) if variable and not environ.get(variable)]
    if missing:
        reason = f"the worker has no environment variable {missing[0]}. Set it and start the worker again"
        logger.warning("alerts: the channel %s cannot be used: %s", name, reason)
        return Unusable(name, reason, kinds)
    match channel.type:
        case "webhook":
            from activities.alerts.webhook import Webhook

            url = channel.url or environ[channel.url_env]
            secret = environ[channel.secret_env] if channel.secret_env else ""
            return Webhook(name, url, secret, kinds=kinds, timeout_s=channel.timeout_s)
        case "desktop":
            from activities.alerts.desktop import Desktop

            return Desktop(name, kinds=kinds, timeout_s=channel.timeout_s)
        case "log":
            return Log(name, kinds=kinds)
        case _:
            assert_never(channel.type)
