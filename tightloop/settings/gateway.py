"""Settings of the gateway: the page and the HTTP API."""

from typing import Annotated
from urllib.parse import quote

from pydantic import Field

from tightloop.settings.section import Section
from tightloop.settings.services import LOOPBACK_HOSTS, TemporalSettings

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
