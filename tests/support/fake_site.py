"""A small web site on loopback: ETags, redirects, busy, slow, huge and endless answers, over real HTTP."""

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from typing import Any

from tests.support.loopback import Loopback


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a path answers with."""

    body: bytes = b""
    media_type: str = "text/html; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    etag: bool = True
    wait_s: float = 0.0
    """Before the answer."""
    drip_s: float = 0.0
    """Between single bytes of the body."""
    fails_first: int = 0
    """So many requests are answered with 429 and `Retry-After: 2` before."""
    endless: bool = False
    """The body is repeated until the client goes; no length is told."""
    hangs_up: bool = False


def html(title: str, text: str) -> Page:
    """A document with a title, a script that is no text, and paragraphs."""
    paragraphs = "".join(f"<p>{part}</p>" for part in text.split("\n"))
    page = (
        f"<html><head><title>{title}</title><script>var x = 1;</script></head><body><h1>{title}</h1>{paragraphs}</body>"
    )
    return Page(body=page.encode())


def redirect(location: str, status: int = 302) -> Page:
    """An answer that points elsewhere."""
    return Page(status=status, headers={"location": location}, etag=False)


@dataclass(frozen=True)
class Visit:
    """A request that was made."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int


class FakeSite(Loopback):
    """The site; use it as a context manager. `visits` holds what was asked."""

    def __init__(self, pages: Mapping[str, Page] | None = None, tls: SSLContext | None = None) -> None:
        """Take the pages by path, which may be changed later, and what makes it speak TLS."""
        self.pages: dict[str, Page] = dict(pages or {})
        self.visits: list[Visit] = []
        server = _Server(self)
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        super().__init__(server)

    @property
    def authority(self) -> str:
        """Host and port, as a policy lists them."""
        return f"127.0.0.1:{self.port}"

    def url(self, path: str) -> str:
        """The address of a path."""
        return f"http://{self.authority}{path}"

    def paths(self) -> list[str]:
        """The paths that were asked for, in order."""
        return [visit.path for visit in self.visits]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, site: FakeSite) -> None:
        self.site = site
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes, or does not trust the certificate, is no news; anything else is."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        site = self.server.site
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        page = site.pages.get(path) or Page(body=b"not here", status=404, etag=False)
        busy = page.fails_first > sum(visit.path.partition("?")[0] == path for visit in site.visits)
        mark = f'"{sha256(page.body).hexdigest()[:16]}"'
        same = page.etag and self.headers.get("if-none-match") == mark
        status = 429 if busy else 304 if same else page.status
        headers = {name.lower(): value for name, value in self.headers.items()}
        site.visits.append(Visit(self.command, self.path, headers, body, status))
        site.closing.wait(page.wait_s)
        if page.hangs_up:
            self.close_connection = True
            return
        self._answer(page, status, {"etag": mark} if page.etag else {})

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve  # noqa: N815

    def _answer(self, page: Page, status: int, extra: Mapping[str, str]) -> None:
        content = page.body if status not in (304, 429) else b""
        busy = {"retry-after": "2"} if status == 429 else {}
        length = {"connection": "close"} if page.endless else {"content-length": str(len(content))}
        self.send_response(status)
        for name, value in {"content-type": page.media_type, **extra, **page.headers, **busy, **length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):
                self._send(page, content)
        self.close_connection = self.close_connection or page.endless

    def _send(self, page: Page, content: bytes) -> None:
        closing = self.server.site.closing
        if not page.drip_s and not page.endless:
            self.wfile.write(content)
        for byte in content if page.drip_s else b"":
            self.wfile.write(bytes([byte]))
            if closing.wait(page.drip_s):
                return
        until = time.monotonic() + 10
        while page.endless and not closing.is_set() and time.monotonic() < until:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the output of the tests clean."""
