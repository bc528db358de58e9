"""Links that sign one browser in to the page of the gateway on this host."""

import time
from pathlib import Path
from urllib.parse import urlencode

from tightloop.client.sign_in.ui_session import PARAMETER, check_listener, ticket, token_in
from tightloop.host import state_home
from tightloop.settings import Settings

LINK = "page link"
"""Purpose of the tickets in sign-in links; their time is when they were made."""
LINK_SECONDS = 60
PATH = "/login"
_FILE = "page-key"


def page_key(home: Path | None = None) -> str:
    """Return the key of this host's links and sessions from its file, which is made if missing.

    It is not the token of the Temporal Web UI, which other people may be given to read payloads.

    Raises:
        SettingsError: others could read the file, or the key is too short.
    """
    return token_in((home or state_home()) / _FILE)


def page_link(settings: Settings, path: str = "/") -> str:
    """Return a link to the page that signs one browser in, once and within `LINK_SECONDS`.

    Raises:
        SettingsError: the key cannot be used, or another user has the port.
    """
    check_listener(int(settings.gateway.address(settings.temporal).rpartition(":")[2]))
    made = ticket(page_key(), LINK, time.time_ns() // 1_000_000)
    words = {PARAMETER: made} | ({"next": path} if path != "/" else {})
    return f"{settings.gateway.page(settings.temporal)}{PATH}?{urlencode(words)}"
