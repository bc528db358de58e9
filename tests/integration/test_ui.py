"""The sign-in in front of a Web UI: who gets in, and what goes through, over real HTTP."""

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from gateway.access.guard import AGAIN_MS, Sessions, now_ms
from gateway.access.site import LARGEST_BYTES, origin_of
from gateway.ui import COOKIE_SECONDS, Access, application, ui_access
from tests.support.ui_server import Served, ask, serving
from tightloop.client.sign_in import (
    UI_LINK,
    UI_LINK_SECONDS,
    signed_in,
    temporal_variables,
    ticket,
    token_file,
)
from tightloop.errors import SettingsError
from tightloop.host.access import ticket_time
from tightloop.settings import parse_settings
from worker.server import free_port

TOKEN = "t0ken-of-the-tests-0123456789"
PAGE = {"Accept": "text/html", "Sec_Fetch_Dest": "document", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Site": "none"}
FETCH = {"Sec_Fetch_Dest": "empty", "Sec_Fetch_Mode": "cors", "Sec_Fetch_Site": "same-origin"}


class FakeUi(BaseHTTPRequestHandler):
    """Answers with what it was asked, as a UI that knows nothing of a sign-in."""

    protocol_version = "HTTP/1.1"
    release = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/api/v1/stream":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\nfirst\r\n")
            self.wfile.flush()
            self.release.wait(30)
            self.wfile.write(b"4\r\nlast\r\n0\r\n\r\n")
            return
        if self.path == "/api/v1/broken":
            self.connection.close()
            self.close_connection = True
            return
        length = int(self.headers.get("Content-Length", "0"))
        said = {
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": self.rfile.read(length).decode(),
        }
        content = json.dumps(said).encode()
        self.send_response(200)
        for name, value in (
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(content))),
            ("Set-Cookie", "_csrf=abc; Path=/; SameSite=Strict"),
            ("Connection", "keep-alive, X-Hop"),
            ("X-Hop", "1"),
            ("Keep-Alive", "timeout=5"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeUi) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(10)


def access_at(address: str) -> Access:
    return ui_access(parse_settings(f"temporal: {{ui_url: 'http://{address}'}}", {}), TOKEN)


def sessions_at(address: str) -> Sessions:
    return access_at(address).sessions


def has_session(sessions: Sessions, cookies: str, host: str) -> bool:
    return sessions.subject_of(cookies, host) is not None


@pytest.fixture(scope="module")
def server(upstream: str) -> Iterator[Served]:
    address = f"127.0.0.1:{free_port()}"
    with serving(application(access_at(address), None, upstream), address) as served:
        yield served


@pytest.fixture(scope="module")
def cookie(server: Served) -> str:
    return sessions_at(server.address).cookie(server.address).partition(";")[0]


def link() -> str:
    return ticket(TOKEN, UI_LINK, now_ms())


# -- who gets in --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/api/v1/namespaces", "/codec/decode", "/metrics", "/debug/pprof/", "/_app/x.js"]
)
def test_without_a_session_there_is_nothing(server: Served, path: str) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"):
        answer = ask(server, path, method=method, Origin=server.url, **FETCH)
        assert answer.status == 401
        assert "first" not in answer.text
    page = ask(server, path, **PAGE)
    assert (page.status, "Not signed in" in page.text) == (401, True)
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]


def test_a_link_signs_in_once_and_leaves_the_address_bar(server: Served) -> None:
    there = f"/namespaces/default/workflows?{urlencode({'token': link()})}"
    done = ask(server, there, **PAGE)
    assert (done.status, done.headers["location"]) == (303, "/namespaces/default/workflows")
    attributes = done.headers["set-cookie"]
    assert f"Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Strict" in attributes
    assert TOKEN not in attributes
    mine = attributes.partition(";")[0]
    assert ask(server, "/api/v1/namespaces", Cookie=mine, **FETCH).status == 200
    again = ask(server, there, Cookie=mine, **PAGE)
    assert again.status == 303, "who is signed in may click it again"


def test_a_link_is_refused_when_it_was_used_or_is_old_or_older_than_the_server() -> None:
    now = [now_ms()]
    sessions = replace(sessions_at("127.0.0.1:1"), clock=lambda: now[0], opened_ms=now[0])
    used, kept = (ticket(TOKEN, UI_LINK, now[0] + 1) for _ in range(2))
    assert sessions.redeem(used)
    now[0] += AGAIN_MS + 1
    assert not sessions.redeem(used)
    now[0] += UI_LINK_SECONDS * 1_000
    assert not sessions.redeem(kept)
    assert not sessions.redeem(ticket(TOKEN, UI_LINK, sessions.opened_ms - 1))
    assert sessions.redeem(ticket(TOKEN, UI_LINK, now[0]))


@pytest.mark.parametrize("wrong", ["", "x", "zz.zz.zz", "..", "1.2.ü", "٣.a.b", TOKEN, "0.0." + "0" * 32])
def test_what_nobody_made_opens_nothing(server: Served, wrong: str) -> None:
    sessions = sessions_at(server.address)
    assert not sessions.redeem(wrong)
    assert not has_session(sessions, f"tightloop_{server.address.rpartition(':')[2]}={wrong}", server.address)
    assert ask(server, f"/?{urlencode({'token': wrong})}", **PAGE).status == 401


def test_tickets_are_for_one_purpose_one_host_and_one_time(server: Served) -> None:
    sessions = sessions_at(server.address)
    mine = sessions.cookie(server.address).partition(";")[0]
    assert has_session(sessions, mine, server.address)
    assert not has_session(sessions, mine, f"localhost:{server.address.rpartition(':')[2]}")
    late = replace(sessions, clock=lambda: now_ms() + COOKIE_SECONDS * 1_000 + 1)
    assert not has_session(late, mine, server.address)
    name, _, value = mine.partition("=")
    assert not sessions.redeem(value)
    assert not has_session(sessions, f"{name}={link()}", server.address)
    alone = ask(server, "/api/v1/namespaces", Cookie=mine, Authorization="Bearer wrong", **FETCH)
    assert alone.status == 401, "a bearer is judged alone"
    assert ticket_time("another token 0123456789", UI_LINK, link()) is None


def test_the_token_can_be_pasted(server: Served) -> None:
    form = {"Origin": server.url, "Content_Type": "application/x-www-form-urlencoded"}
    right, wrong = (urlencode({"token": token}).encode() for token in (f" {TOKEN}\n", "x" * 20))
    done = ask(server, "//evil.example/x", right, method="POST", **form)
    assert (done.status, done.headers["location"]) == (303, "/evil.example/x")
    assert "set-cookie" in done.headers
    for body, headers in (
        (wrong, form),
        (right, {**form, "Origin": "http://evil.example"}),
        (right, {**form, "Origin": ""}),
    ):
        refused = ask(server, "/", body, method="POST", **headers)
        assert refused.status in (401, 403)
        assert "set-cookie" not in refused.headers
    assert ask(server, "/", b"token=" + b"x" * 5_000, method="POST", **form).status == 413


@pytest.mark.parametrize("host", ["attacker.test:{port}", "127.0.0.1:1", "127.0.0.1", "[::1]:{port}", "attacker.test"])
def test_a_name_that_somebody_let_point_here_is_refused_on_every_path(server: Served, cookie: str, host: str) -> None:
    given = {"Host": host.format(port=server.address.rpartition(":")[2]), "Cookie": cookie}
    for path in ("/", "/api/v1/namespaces", "/codec/decode", f"/?token={link()}"):
        for method in ("GET", "POST", "OPTIONS"):
            for more in ({}, {"Authorization": f"Bearer {TOKEN}"}, {"Origin": f"http://{given['Host']}"}):
                answer = ask(server, path, method=method, **given, **more)
                assert answer.status == 421
                assert "set-cookie" not in answer.headers


def test_localhost_is_sent_to_the_name_that_has_the_session(server: Served) -> None:
    other = f"localhost:{server.address.rpartition(':')[2]}"
    answer = ask(server, "/namespaces?x=1", Host=other, **PAGE)
    assert (answer.status, answer.headers["location"]) == (307, f"{server.url}/namespaces?x=1")


def test_a_name_of_its_own_keeps_the_cookie_from_other_servers_of_127_0_0_1(upstream: str) -> None:
    port = free_port()
    settings = parse_settings(f"temporal: {{ui_url: 'http://tightloop.localhost:{port}'}}", {})
    with serving(application(ui_access(settings, TOKEN), None, upstream), f"127.0.0.1:{port}") as named:
        own = {"Host": f"tightloop.localhost:{port}"}
        done = ask(named, f"/?{urlencode({'token': link()})}", **own, **PAGE)
        mine = done.headers["set-cookie"].partition(";")[0]
        assert ask(named, "/", **own, Cookie=mine, **PAGE).status == 200
        assert ask(named, "/", Cookie=mine, **PAGE).headers["location"] == f"http://tightloop.localhost:{port}/"
        assert ask(named, "/api/v1/x", Cookie=mine, **FETCH).status == 401
    assert temporal_variables(settings)["TEMPORAL_CODEC_ENDPOINT"] == f"http://127.0.0.1:{port}/codec"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_and_other_ports_reach_nothing_with_the_session(
    server: Served, cookie: str, site: str
) -> None:
    fetched = {**FETCH, "Sec_Fetch_Site": site, "Cookie": cookie}
    for headers in (fetched, {**fetched, "Sec_Fetch_Dest": "iframe"}, {**fetched, "Origin": "http://127.0.0.1:3000"}):
        for method in ("GET", "POST", "OPTIONS"):
            answer = ask(server, "/api/v1/namespaces", method=method, **headers)
            assert answer.status == 403
            assert not [name for name in answer.headers if name.startswith("access-control")]
    assert ask(server, "/", method="POST", Cookie=cookie).status == 403, "a write needs a sign of where it comes from"
    assert ask(server, "/", Cookie=cookie, **PAGE | {"Sec_Fetch_Site": site}).status == 200, "a link may lead here"


# -- what goes through --------------------------------------------------------------------------


def test_requests_go_through_without_what_is_ours_or_of_one_connection(server: Served, cookie: str) -> None:
    sent = {
        **FETCH, "Cookie": f"{cookie}; _csrf=abc; other=1", "Origin": server.url,
        "Referer": server.url, "X_CSRF_TOKEN": "abc", "Content_Type": "application/json", "Connection": "X-Private",
        "X_Private": "1", "X_Forwarded_For": "1.2.3.4",
        "TE": "trailers", "X_Namespace": "default",
    }  # fmt: skip
    answer = ask(server, "/api/v1/namespaces/a%2Fb?q=%20x", {"a": "ü"}, method="POST", **sent)
    assert answer.status == 200
    assert (answer.json["path"], answer.json["method"]) == ("/api/v1/namespaces/a%2Fb?q=%20x", "POST")
    assert json.loads(answer.json["body"]) == {"a": "ü"}
    passed = answer.json["headers"]
    assert (passed["x-csrf-token"], passed["cookie"], passed["x-namespace"]) == ("abc", "_csrf=abc", "default")
    assert not passed.keys() & {"origin", "referer", "authorization", "x-private", "te", "x-forwarded-for"}
    assert TOKEN not in answer.text
    assert cookie not in answer.text
    assert answer.headers["set-cookie"] == "_csrf=abc; Path=/; SameSite=Strict"
    assert not answer.headers.keys() & {"x-hop", "keep-alive", "server"}
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path", ["/metrics", "/debug/pprof/heap", "/%61pi/v1/x", "//api/v1/x", "/healthz", "/namespaces/x"]
)
def test_everything_but_the_interface_and_its_files_is_the_one_page(server: Served, cookie: str, path: str) -> None:
    assert ask(server, f"{path}?x=1", Cookie=cookie, **PAGE).json["path"] == "/"
    assert ask(server, path, b"x", method="POST", Cookie=cookie, Origin=server.url).status == 405


@pytest.mark.parametrize(
    "path",
    ["/api/../metrics", "/api/%2e%2e/metrics", "/_app/..%2f..%2fmetrics", "/api/./x", "/api/v1/..", "/api/..%5cx"],
)
def test_no_path_leads_out_of_where_it_begins(server: Served, cookie: str, path: str) -> None:
    assert ask(server, path, Cookie=cookie, **FETCH).status == 404


def test_answers_are_passed_on_while_they_come(server: Served, cookie: str) -> None:
    host, _, port = server.address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request("GET", "/api/v1/stream", headers={"Cookie": cookie})
        answer = connection.getresponse()
        assert answer.read(5) == b"first"
        FakeUi.release.set()
        assert answer.read() == b"last"
    finally:
        FakeUi.release.set()
        connection.close()


def test_bodies_are_bounded_and_failures_are_sentences(server: Served, cookie: str) -> None:
    sent = {"Cookie": cookie, "Origin": server.url}
    assert ask(server, "/api/v1/x", b" " * (LARGEST_BYTES + 1), method="POST", **sent).status == 413
    assert ask(server, "/api/v1/x", b"{}", method="POST", **sent, Content_Length="-1").status == 400
    broken = ask(server, "/api/v1/broken", Cookie=cookie, **FETCH)
    assert (broken.status, "closed the connection" in broken.json["error"]) == (502, True)
    address = f"127.0.0.1:{free_port()}"
    with serving(application(access_at(address), None, f"127.0.0.1:{free_port()}"), address) as alone:
        mine = sessions_at(address).cookie(address).partition(";")[0]
        gone = ask(alone, "/", Cookie=mine, **PAGE)
    assert (gone.status, "is not responding yet" in gone.json["error"]) == (503, True)


# -- links and variables ------------------------------------------------------------------------


def test_links_are_made_for_the_embedded_server_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path))
    cluster = parse_settings("temporal: {address: 'temporal.example.com:7233', ui_url: 'https://ui.example.com'}", {})
    assert signed_in(cluster, "https://ui.example.com/x") == "https://ui.example.com/x"
    assert not token_file().exists()
    for url in ("http://127.0.0.1:8233", "http://127.0.0.1:8233/"):
        assert signed_in(parse_settings("", {}), url).startswith("http://127.0.0.1:8233/?token=")


def test_variables_for_the_temporal_cli_hold_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "a b"))
    local = temporal_variables(parse_settings("", {}))
    assert local["TEMPORAL_CODEC_ENDPOINT"] == "http://127.0.0.1:8233/codec"
    assert local["TEMPORAL_CODEC_AUTH"] == f"\"Bearer $(cat '{tmp_path / 'a b' / 'ui-token'}')\""
    cloud = "temporal: {address: 'x.tmprl.cloud:7233', api_key: hush, tls_cert: c.pem, tls_key: k.pem}"
    found = temporal_variables(parse_settings(cloud, {}))
    assert found["TEMPORAL_TLS_CLIENT_CERT_PATH"] == str(Path("c.pem").absolute())
    assert (found["TEMPORAL_TLS"], found["TEMPORAL_API_KEY"]) == ("true", '"$TIGHTLOOP_TEMPORAL__API_KEY"')
    assert "hush" not in str(found)
    assert "TEMPORAL_CODEC_ENDPOINT" not in found


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://127.0.0.1:8233", "http://127.0.0.1:8233"),
        ("https://Ui.Example.com:443/x", "https://ui.example.com"),
        ("http://ui.example.com:80", "http://ui.example.com"),
    ],
)
def test_origins_are_written_as_browsers_write_them(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root can act as two users")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_no_secret_is_sent_to_a_port_that_another_user_took(host: str) -> None:
    """While `up` does not run, anybody may listen where it would."""
    port, family = free_port(), "AF_INET6" if ":" in host else "AF_INET"
    code = (
        f"import socket; s = socket.create_server(({host!r}, {port}), family=socket.{family}); "
        "print('listens', flush=True); input()"
    )
    settings = parse_settings(f"temporal: {{ui_url: 'http://127.0.0.1:{port}'}}", {})
    assert signed_in(settings, settings.temporal.ui_url)
    assert temporal_variables(settings)
    with subprocess.Popen(
        [sys.executable, "-I", "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", user=12_345, group=12_345, extra_groups=[],
    ) as neighbour:  # fmt: skip
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "listens\n"
        for send in (lambda: signed_in(settings, settings.temporal.ui_url), lambda: temporal_variables(settings)):
            with pytest.raises(SettingsError, match=rf"\(uid 12345\) is listening on port {port}"):
                send()
        neighbour.communicate("\n", timeout=30)
