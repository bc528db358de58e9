"""The files that browsers keep: style sheet, scripts, icon, each under an address that changes with its content."""

import hashlib
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

PREFIX = "/assets/"
_FOLDER = Path(__file__).parent
_FILES = {
    "page.css": ("static/page.css", "text/css"),
    "page.js": ("static/page.js", "text/javascript"),
    "icon.svg": ("static/icon.svg", "image/svg+xml"),
    "htmx.min.js": ("vendor/htmx-4.0.1/htmx.min.js", "text/javascript"),
}


@cache
def content(name: str) -> bytes:
    """Return a file."""
    return (_FOLDER / _FILES[name][0]).read_bytes()


@cache
def address(name: str) -> str:
    """Return the path of a file, with a digest of its content."""
    return f"{PREFIX}{hashlib.sha256(content(name)).hexdigest()[:16]}/{name}"


async def serve(request: Request) -> Response:
    """Answer with a file; its address never means another content."""
    name = request.path_params["name"]
    if name not in _FILES or request.url.path != address(name):
        raise HTTPException(404)
    return Response(
        content(name), media_type=_FILES[name][1], headers={"Cache-Control": "public, max-age=31536000, immutable"}
    )
