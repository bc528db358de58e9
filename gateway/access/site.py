"""Where a door is, and which senders of requests it refuses whoever they are.

Rules: https://cheatsheetseries.owasp.org/cheatsheets/Cross-Site_Request_Forgery_Prevention_Cheat_Sheet.html
(Fetch metadata, Origin), and the Host header against DNS rebinding.
"""

from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.requests import Request

from gateway.access.body import RefusedError

FORM = "application/x-www-form-urlencoded"
# Browsers leave these ports out of the Host and Origin headers.
_USUAL_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Site:
    """The addresses of one door, and the pages elsewhere that may use a part of it."""

    page: str
    """Origin under which people open this server. `localhost` and `127.0.0.1` differ for a browser."""
    hosts: frozenset[str] | None
    """Allowed values of the Host header, against DNS rebinding; None: any, since only a proxy knows its names."""
    origins: frozenset[str] = frozenset()
    """Pages elsewhere that may use the paths below `shared`."""
    shared: str = ""
    """Prefix of the paths that `origins` may use."""
    origins_setting: str = ""
    """The setting that names `origins`."""

    @property
    def host(self) -> str:
        """The Host header of people's browsers."""
        return self.page.partition("://")[2]

    def names(self, host: str) -> bool:
        """Tell whether a Host header means this server."""
        return self.hosts is None or host.lower() in self.hosts

    def cors(self, request: Request) -> dict[str, str]:
        """Return the headers that let a page elsewhere use what is shared; none for all other requests."""
        origin = request.headers.get("origin", "")
        if origin.lower() not in self.origins or not request.url.path.startswith(self.shared):
            return {}
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true"}

    def check_sender(self, request: Request) -> None:
        """Refuse what a page of another site, or a name that somebody let point here, may have sent.

        Raises:
            RefusedError: it may have.
        """
        if not self.names(host_of(request)):
            raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST, f"ask for {self.page}, under that name")
        if not request.scope["raw_path"].startswith(b"/"):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "ask for a path")
        origin, site = request.headers.get("origin", ""), request.headers.get("sec-fetch-site", "")
        if self.cors(request):
            return
        is_own = origin.partition("://")[2].lower() == host_of(request)
        if origin and not is_own:
            advice = f". Add it to {self.origins_setting}, if it is a page of yours" if self.origins else ""
            raise RefusedError(HTTPStatus.FORBIDDEN, f"pages of {origin[:200]!r} may not ask here{advice}")
        if site in ("cross-site", "same-site") and not (request.method == "GET" and is_page(request)):
            raise RefusedError(HTTPStatus.FORBIDDEN, "pages of other sites may not ask here")
        is_safe = request.method in ("GET", "HEAD", "OPTIONS")
        if not (is_safe or is_own or site == "same-origin" or "authorization" in request.headers):
            # Without a session, and not a form, it is a program that lacks its token.
            from_browser = "cookie" in request.headers or request.headers.get("content-type", "").startswith(FORM)
            status = HTTPStatus.FORBIDDEN if from_browser else HTTPStatus.UNAUTHORIZED
            raise RefusedError(status, "send an Origin header, or a token as a bearer")


def host_of(request: Request) -> str:
    """Return the Host header in lower case."""
    return request.headers.get("host", "").lower()


def is_page(request: Request) -> bool:
    """Tell whether a browser opens a page, in a tab and not in a frame."""
    destination = request.headers.get("sec-fetch-dest", "")
    return destination == "document" or (not destination and "text/html" in request.headers.get("accept", ""))


def origin_of(url: str) -> str:
    """Return the origin of a URL as browsers write it."""
    parts = urlsplit(url.lower())
    port = "" if parts.port in (None, _USUAL_PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}"
