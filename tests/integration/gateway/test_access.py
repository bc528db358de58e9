"""Who gets in to the page and the API: links, sessions, tokens, hosts and origins, over real HTTP."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from gateway.access.guard import AGAIN_MS
from gateway.server import COOKIE_SECONDS
from tests.support.gateway import NAMES, Gateway, fill, gateway, project_id
from tightloop.client import TightloopClient
from tightloop.client.sign_in import LINK, page_link
from tightloop.database.access import Tokens
from tightloop.host.access import page_key, ticket
from tightloop.safety.seal import Role
from tightloop.settings import Settings

PAGE = {"Accept": "text/html", "Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none"}
FETCH = {"Sec-Fetch-Dest": "empty", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}


def host_of(served: Gateway) -> str:
    """The Host header of a browser."""
    return urlsplit(served.settings.gateway.page(served.settings.temporal)).netloc


async def signed_in(served: Gateway, link: str) -> httpx2.Response:
    parts = urlsplit(link)
    async with served.http(Host=parts.netloc, **PAGE) as http:
        return await http.get(f"{parts.path}?{parts.query}")


async def test_a_link_signs_one_browser_in_once(tmp_path: Path, client: TightloopClient, settings: Settings) -> None:
    async with gateway(tmp_path, client, settings) as served:
        fill(served.ledger, tmp_path)
        link = page_link(served.settings, "/episodes")
        assert link.startswith("http://tightloop.localhost:")
        first = await signed_in(served, link)
        assert (first.status_code, first.headers["location"]) == (303, "/episodes")
        cookie = first.headers["set-cookie"]
        assert f"Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Lax" in cookie
        assert "token" not in first.headers["location"]
        await asyncio.sleep(AGAIN_MS / 1000 + 0.2)
        assert (await signed_in(served, link)).status_code == 401
        session = {"Cookie": cookie.partition(";")[0]}
        async with served.http(Host=host_of(served), **session, **FETCH) as http:
            assert len((await http.get("/api/projects")).json()["items"]) == len(NAMES)
            assert (await http.get("/")).status_code == 200
        async with served.http(Host=served.address, **session, **FETCH) as http:
            assert (await http.get("/api/projects")).status_code == 401, "it is of no use under another name"


async def test_old_and_forged_links_open_nothing(tmp_path: Path, client: TightloopClient, settings: Settings) -> None:
    async with gateway(tmp_path, client, settings) as served:
        page = served.settings.gateway.page(served.settings.temporal)
        for wrong in (
            ticket(page_key(), LINK, 0),
            ticket(page_key(), "link", 2**42),
            ticket("x" * 20, LINK, 2**42),
            "x",
        ):
            refused = await signed_in(served, f"{page}/login?token={wrong}")
            assert refused.status_code == 401
            assert "set-cookie" not in refused.headers
            assert "tightloop open" in refused.text


@pytest.mark.parametrize(
    "path", ["//evil.example/", "/\\evil.example", "https://evil.example/", "/\t/evil.example", "\\\\x"]
)
async def test_a_link_leads_nowhere_else(
    path: str, tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served:
        done = await signed_in(served, page_link(served.settings, path))
        assert done.status_code == 303
        assert not urlsplit(done.headers["location"].replace("\\", "/")).netloc


async def test_a_token_can_be_pasted_and_its_session_ends_with_it(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served:
        fill(served.ledger, tmp_path)
        token = served.token("anna", Role.VIEWER, [project_id(tmp_path, "orders")])
        host = host_of(served)
        async with served.http(Host=host, Origin=f"http://{host}") as http:
            assert (await http.post("/login", data={"token": "x"})).status_code == 401
            done = await http.post("/login", data={"token": token})
        assert done.status_code == 303
        async with served.http(Host=host, Cookie=done.headers["set-cookie"].partition(";")[0], **FETCH) as http:
            assert [one["name"] for one in (await http.get("/api/projects")).json()["items"]] == ["orders"]
            Tokens(served.ledger.database).revoke("anna")
            await asyncio.sleep(2.5)
            assert (await http.get("/api/projects")).status_code == 401


async def test_without_a_token_there_is_nothing_but_readiness(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served:
        async with served.http() as http:
            for path in ("/", "/api/projects", "/api/openapi.json", "/api/events", "/episodes", "/assets/x/page.js"):
                answer = await http.get(path)
                assert answer.status_code == 401, path
                problem = answer.json()
                assert problem["type"] == "urn:tightloop:problem:refused"
                assert "tightloop token create" in problem["detail"]
            ready = await http.get("/ready", headers={"Host": "10.1.2.3:80"})
            assert (ready.status_code, ready.json()) == (200, {"database": True, "temporal": True})
            assert (await http.get("/live")).json() == {"live": True}
        async with served.http("tl_000000000000_wrong") as http:
            assert (await http.get("/api/projects")).status_code == 401


FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "127.0.0.1"},
    {"Host": "tightloop.localhost"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
]


@pytest.mark.parametrize("given", FOREIGN, ids=lambda given: "-".join(given.values()))
async def test_a_page_elsewhere_is_refused_even_with_the_session(
    given: dict[str, str], tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served:
        fill(served.ledger, tmp_path)
        done = await signed_in(served, page_link(served.settings))
        headers = {"Host": host_of(served), "Cookie": done.headers["set-cookie"].partition(";")[0]} | given
        async with served.http(**headers) as http:
            for method, path in (
                ("GET", "/api/projects"),
                ("GET", "/api/events"),
                ("POST", "/api/episodes/orders-episode-1/pause"),
                ("POST", "/workflows/orders-episode-1/pause"),
                ("OPTIONS", "/api/episodes"),
            ):
                answer = await http.request(method, path, json={} if method == "POST" else None)
                assert answer.status_code in (403, 421), f"{method} {path}: {answer.status_code}"
                assert "access-control-allow-origin" not in answer.headers
                assert "orders" not in answer.text


async def test_a_form_without_an_origin_is_refused(tmp_path: Path, client: TightloopClient, settings: Settings) -> None:
    async with gateway(tmp_path, client, settings) as served:
        done = await signed_in(served, page_link(served.settings))
        session = {"Host": host_of(served), "Cookie": done.headers["set-cookie"].partition(";")[0]}
        async with served.http(**session) as http:
            assert (await http.post("/workflows/x/pause", data={})).status_code == 403
        async with served.http(**session, Origin=f"http://{host_of(served)}") as http:
            left = await http.post("/logout")
            assert (left.status_code, "Max-Age=0" in left.headers["set-cookie"]) == (303, True)


async def test_a_body_is_bounded(tmp_path: Path, client: TightloopClient, settings: Settings) -> None:
    async with gateway(tmp_path, client, settings) as served:
        http = served.http(served.token("anna", Role.OPERATOR))
        async with http:
            answer = await http.post(
                "/api/episodes", content=b" " * (3 * 2**20), headers={"Content-Type": "application/json"}
            )
            assert (answer.status_code, answer.json()["title"]) == (413, "Request Entity Too Large")
            wrong = await http.post("/api/episodes", content=b"{", headers={"Content-Type": "application/json"})
            assert wrong.status_code == 422
            text = await http.post("/api/episodes", content=b"{}", headers={"Content-Type": "text/plain"})
            assert text.status_code == 415


async def test_a_page_of_the_session_redirects_to_its_name(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served, served.http(**PAGE) as http:
        moved = await http.get("/episodes?status=paused")
        page = served.settings.gateway.page(served.settings.temporal)
        assert (moved.status_code, moved.headers["location"]) == (307, f"{page}/episodes?status=paused")
