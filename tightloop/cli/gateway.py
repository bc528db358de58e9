"""The gateway of this host over HTTP: what it shows is read without models and without the SDK of Temporal."""

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
"""A look that takes longer goes to Temporal, which says why."""
_SESSION_MS = 60_000
_TIMES = frozenset({"at", "as_of", "closed", "next_attempt", "since", "started", "waiting_since"})
_LENGTHS = frozenset({"wall_time", "max_wall_time"})
_MAPPINGS = frozenset({"counts"})


class Document:
    """An object of the API, whose fields have the names and the types that they have in our models."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        """Return a field.

        Raises:
            AttributeError: there is none.
        """
        words = name.split("_")
        try:
            value = self.fields[words[0] + "".join(map(str.title, words[1:]))]
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
    """Return a JSON value of the API under the names of our models."""
    if isinstance(value, list):
        return [plain_names(item) for item in value]
    if isinstance(value, dict):
        return {re.sub("([A-Z])", r"_\1", name).lower(): plain_names(item) for name, item in value.items()}
    return value


class Gateway(NamedTuple):
    """The gateway of this host, and a session of its owner."""

    address: str
    host: str
    cookie: str

    def get(self, *path: str, **query: object) -> dict[str, Any] | None:
        """Return an answer; None where it has none, or none of use."""
        connection = http.client.HTTPConnection(self.address, timeout=SECONDS)
        target = "/".join(("/api", *(quote(part, safe="") for part in path)))
        try:
            headers = {"Host": self.host, "Cookie": self.cookie}
            connection.request("GET", f"{target}?{urlencode(query)}", headers=headers)
            answer = connection.getresponse()
            content = answer.read()
            found: Any = json.loads(content) if answer.status == http.client.OK else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return found if isinstance(found, dict) else None


def gateway_here(options: dict[str, Any] | None) -> Gateway | None:
    """Return the gateway of this host, where it works with the settings that hold for this command.

    Args:
        options: the global ones; a gateway does not know of them.
    """
    if any((options or {}).values()):
        return None
    try:
        note = read_note()
        if note is None or note["settings"] != settings_mark():
            return None
        check_listener(int(note["address"].rpartition(":")[2]))
        expires = time.time_ns() // 1_000_000 + _SESSION_MS
        session = session_of(page_key(), note["host"], "owner", expires)
        return Gateway(note["address"], note["host"], f"{cookie_name(note['host'])}={session}")
    except (TightloopError, OSError, KeyError, ValueError):
        return None
