"""Names of the sessions of the coder."""

import hashlib
import re

from tightloop.errors import InvalidRequestError

_SESSION = re.compile(r"[0-9a-f]{32}")


def session_of(key: str) -> str:
    """Return the id of the session that a delivery begins."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def place_of(session: str) -> str:
    """Return where a session lies in the state folder of its project.

    Raises:
        InvalidRequestError: the id is not one of ours; the path could leave the folder.
    """
    if not _SESSION.fullmatch(session):
        raise InvalidRequestError(f"{session[:80]!r} is not the id of a coder's session")
    return f"coder/{session}"
