"""HTTP client for this host's gateway, which does not need the models or Temporal's SDK."""

import http.client
import json
import re
import time
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from tightloop.errors import TightloopError
from tightloop.host import settings_mark
from tightloop.host.access import check_listener, cookie_name, page_key, read_note, session_of

SECONDS = 10.0
"""Timeout in seconds. If a request takes longer, the command falls back to Temporal, which reports the reason."""
_SESSION_MS = 60_000
_TIMES = frozenset({"at", "as_of", "closed", "next_attempt", "since", "started", "waiting_since"})
_LENGTHS = frozenset({"wall_time", "max_wall_time"})
_MAPPINGS = frozenset({"counts"})


class Document:
    """Object from an API response, with the field names and types of tightloop's models."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        """Return a field by its name in tightloop's models.

        Raises:
            AttributeError: the field does not exist.
        """
        parts = name.split("_")
        try:
            # The API uses camelCase, the models snake_case.
            value = self.fields[parts[0] + "".join(map(str.title, parts[1:]))]
        except KeyError:
            raise AttributeError(name) from None
        if value is None:
            return None
        if name in _TIMES:
            return datetime.fromisoformat(value)
        if name in _MAPPINGS:
            return value
        return timedelta(seconds=value) if name in _LENGTHS else _documents(value)


def _documents(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_documents, value))
    return Document(value) if isinstance(value, dict) else value


def plain_names(value: Any) -> Any:
    """Convert the field names of an API value to the models' field names."""
    if isinstance(value, list):
        return [plain_names(item) for item in value]
    if isinstance(value, dict):
        return {re.sub("([A-Z])", r"_\1", name).lower(): plain_names(item) for name, item in value.items()}
    return value


class Gateway(NamedTuple):
    """Connection data of this host's gateway, with a session for its owner."""

    address: str
    host: str
    cookie: str

    def get(self, *path: str, **query: object) -> dict[str, Any] | None:
        """Send a GET request to the gateway and return its JSON object. Return None if the request failed."""
        # The standard library's client: importing another one would take longer than the request.
        connection = http.client.HTTPConnection(self.address, timeout=SECONDS)
        target = "/".join(("/api", *(quote(part, safe="") for part in path)))
        try:
            # The gateway refuses unknown host names, against DNS rebinding.
            headers = {"Host": self.host, "Cookie": self.cookie}
            connection.request("GET", f"{target}?{urlencode(query)}", headers=headers)
            answer = connection.getresponse()
            content = answer.read()
            document: Any = json.loads(content) if answer.status == http.client.OK else None
        # Every failure falls back to Temporal, whose error explains the problem.
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return document if isinstance(document, dict) else None


def gateway_here(options: dict[str, Any] | None) -> Gateway | None:
    """Return the gateway of this host if it uses the same settings as this command.

    Args:
        options: global options, which the gateway does not know about.
    """
    # These options may select a different installation than the gateway's.
    if any((options or {}).values()):
        return None
    try:
        note = read_note()
        if note is None or note["settings"] != settings_mark():
            return None
        # The port in the note may have been taken by another user since; a session must not be sent there.
        check_listener(int(note["address"].rpartition(":")[2]))
        # Signed here with the page's key, which only this user can read. The session expires after a short time.
        expires = time.time_ns() // 1_000_000 + _SESSION_MS
        session = session_of(page_key(), note["host"], "owner", expires)
        return Gateway(note["address"], note["host"], f"{cookie_name(note['host'])}={session}")
    except (TightloopError, OSError, KeyError, ValueError):
        return None
