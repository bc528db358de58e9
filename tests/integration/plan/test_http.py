"""The capability `http` against a real server."""

import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from activities.artifacts.stores import open_local_store
from activities.plan.outputs import collect_outputs
from activities.plan.port import RunnerResult
from activities.plan.runners.http import HttpRunner
from activities.sandbox.proxy import Resolve, system_addresses
from tests.support.fake_site import FakeSite, Page, html, redirect
from tests.support.plan.work import work_for
from tests.support.stored import content_of
from tightloop.host import state_folder
from tightloop.plan.commands import judge_url
from tightloop.plan.failing import FailureClass
from tightloop.plan.step import Step

SECRET = "tok-4711-very-secret"


@pytest.fixture
def site() -> Iterator[FakeSite]:
    with FakeSite() as running:
        yield running


def ask(
    tmp_path: Path,
    site: FakeSite,
    http: dict[str, Any],
    *,
    network: tuple[str, ...] | None = None,
    resolve: Resolve = system_addresses,
    secrets: dict[str, tuple[str, ...]] | None = None,
    **step: Any,
) -> RunnerResult:
    allowed = (site.authority,) if network is None else network
    work = work_for(
        tmp_path, {"http": http, **step}, plan={"policy": {"network": allowed}}, values={"plan.page": "facts"}
    )
    return HttpRunner(
        {"SITE_TOKEN": (site.authority,), "OTHER_TOKEN": (site.authority,)} if secrets is None else secrets,
        {"SITE_TOKEN": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET},
        resolve,
    ).run(work)


def test_answer_is_kept_with_status_text_and_json(tmp_path: Path, site: FakeSite) -> None:
    site.pages["/facts"] = Page(body=b'{"n": 3}', media_type="application/json")
    done = ask(tmp_path, site, {"url": site.url("/${plan.page}")})
    assert done.failure is None
    assert (done.outputs["status"], done.outputs["json"], done.outputs["body"]) == (200, {"n": 3}, '{"n": 3}')
    assert done.api_calls == 1
    assert done.command == f"GET {site.url('/facts')}"
    assert open_local_store(tmp_path).get(done.artifacts["answer"]) == b'{"n": 3}'


def test_json_of_an_answer_and_what_is_in_it_can_be_given_names(tmp_path: Path, site: FakeSite) -> None:
    site.pages["/facts"] = Page(body=b'{"n": 3}', media_type="application/json")
    http = {"url": site.url("/facts")}
    step = Step.model_validate({"id": "ask", "http": http, "outputs": {"facts": "json", "number": "json.n"}})
    outputs = collect_outputs(step, ask(tmp_path, site, http).outputs, tmp_path)
    assert (outputs["facts"], outputs["number"]) == ({"n": 3}, 3)


def test_body_and_headers_are_sent_as_written(tmp_path: Path, site: FakeSite) -> None:
    site.pages["/items"] = Page(status=201, etag=False)
    done = ask(
        tmp_path,
        site,
        {
            "method": "post",
            "url": site.url("/items"),
            "headers": {"X-A": "1", "Host": "behind.example"},
            "body": {"k": ["${plan.page}"]},
        },
    )
    assert done.failure is None
    (visit,) = site.visits
    assert (visit.method, json.loads(visit.body)) == ("POST", {"k": ["facts"]})
    assert visit.headers["x-a"] == "1"
    assert visit.headers["content-type"] == "application/json"
    assert visit.headers["host"] == site.authority


def test_secret_is_sent_but_appears_nowhere_else(tmp_path: Path, site: FakeSite) -> None:
    site.pages["/me"] = Page(body=f"you are {SECRET}".encode(), headers={"x-echo": SECRET}, media_type="text/plain")
    done = ask(tmp_path, site, {"url": site.url("/me"), "secret_headers": {"X-Key": "SITE_TOKEN"}})
    assert site.visits[0].headers["x-key"] == SECRET
    assert SECRET not in repr(done)
    assert "X-Key from $SITE_TOKEN" in done.command
    folders = (tmp_path, state_folder(tmp_path))
    written = b"".join(content_of(path) for folder in folders for path in folder.rglob("*") if path.is_file())
    assert b"you are [secret:known]" in written
    assert SECRET.encode() not in written


def test_missing_secret_says_which_variable_to_set(tmp_path: Path, site: FakeSite) -> None:
    done = ask(tmp_path, site, {"url": site.url("/"), "secret_headers": {"X-Key": "OTHER_TOKEN"}})
    assert done.failure is not None
    assert "OTHER_TOKEN" in done.failure.reason
    assert site.visits == []


def test_host_that_is_not_listed_is_never_asked(tmp_path: Path, site: FakeSite) -> None:
    for network in ((), ("example.org",), ("127.0.0.1",), ("*",)):
        done = ask(tmp_path, site, {"url": site.url("/")}, network=network)
        assert done.failure is not None
        assert done.failure.failure_class is FailureClass.POLICY
        assert site.authority in done.failure.reason
    assert site.visits == []


def test_name_with_a_private_address_behind_it_needs_its_port_listed(tmp_path: Path, site: FakeSite) -> None:
    done = ask(tmp_path, site, {"url": "http://localhost/"}, network=("localhost",))
    assert done.failure is not None
    assert done.failure.failure_class is FailureClass.POLICY
    assert "'localhost:80'" in done.failure.reason


def test_redirect_is_followed_only_to_listed_hosts(tmp_path: Path, site: FakeSite) -> None:
    site.pages["/new"] = html("New", "here")
    site.pages["/old"] = redirect("/new", 301)
    site.pages["/out"] = redirect("http://203.0.113.9/steal")
    moved = ask(tmp_path, site, {"url": site.url("/old")})
    assert moved.failure is None
    assert moved.outputs["url"] == site.url("/new")
    assert moved.api_calls == 2
    refused = ask(tmp_path, site, {"url": site.url("/out")})
    assert refused.failure is not None
    assert refused.failure.failure_class is FailureClass.POLICY
    assert "203.0.113.9" in refused.failure.reason


def test_secret_does_not_follow_a_redirect_to_another_origin(tmp_path: Path, site: FakeSite) -> None:
    with FakeSite({"/in": html("In", "there")}) as other:
        site.pages["/out"] = redirect(other.url("/in"), 307)
        done = ask(
            tmp_path,
            site,
            {
                "url": site.url("/out"),
                "secret_headers": {"X-Key": "SITE_TOKEN"},
                "headers": {"Authorization": "Basic x"},
            },
            network=(site.authority, other.authority),
        )
        assert done.failure is None
        assert "x-key" in site.visits[0].headers
        assert {"x-key", "authorization"}.isdisjoint(other.visits[0].headers)


def test_redirects_without_end_are_a_failure(tmp_path: Path, site: FakeSite) -> None:
    site.pages["/loop"] = redirect("/loop")
    done = ask(tmp_path, site, {"url": site.url("/loop")})
    assert done.failure is not None
    assert "more than 5 times" in done.failure.reason
    assert done.api_calls == len(site.visits) == 6


@pytest.mark.parametrize(
    ("status", "failure_class"),
    [
        (404, FailureClass.LOGIC),
        (401, FailureClass.LOGIC),
        (500, FailureClass.TRANSIENT),
        (503, FailureClass.TRANSIENT),
    ],
)
def test_status_decides_whether_trying_again_helps(
    tmp_path: Path, site: FakeSite, status: int, failure_class: FailureClass
) -> None:
    site.pages["/x"] = Page(status=status, etag=False)
    done = ask(tmp_path, site, {"url": site.url("/x?key=hidden")})
    assert done.failure is not None
    assert done.failure.failure_class is failure_class
    assert f"returned {status}" in done.failure.reason
    assert "hidden" not in done.failure.reason


def test_expected_status_is_no_failure(tmp_path: Path, site: FakeSite) -> None:
    done = ask(tmp_path, site, {"url": site.url("/none"), "expect_status": [404]})
    assert (done.failure, done.outputs["status"]) == (None, 404)


def test_busy_service_tells_how_long_to_wait(tmp_path: Path, site: FakeSite) -> None:
    site.pages["/busy"] = Page(body=b"ok", fails_first=1)
    first, second = (ask(tmp_path, site, {"url": site.url("/busy")}) for _ in range(2))
    assert first.failure is not None
    assert (first.failure.failure_class, first.failure.retry_after_s) == (FailureClass.TRANSIENT, 2.0)
    assert second.failure is None


def test_huge_answers_end_at_the_bound(tmp_path: Path, site: FakeSite) -> None:
    site.pages["/huge"] = Page(body=b"x" * 6_000_000)
    site.pages["/endless"] = Page(body=b"x" * 100_000, endless=True)
    for path in ("/huge", "/endless"):
        done = ask(tmp_path, site, {"url": site.url(path)})
        assert done.failure is not None
        assert "more than 5000000 bytes" in done.failure.reason


def test_slow_silent_and_broken_answers_are_transient_and_bounded(tmp_path: Path, site: FakeSite) -> None:
    site.pages |= {
        "/drip": Page(body=b"x" * 1000, drip_s=0.05),
        "/silent": Page(wait_s=20),
        "/broken": Page(hangs_up=True),
    }
    for path in ("/drip", "/silent", "/broken"):
        done = ask(tmp_path, site, {"url": site.url(path)}, timeout_s=0.4)
        assert done.failure is not None
        assert done.failure.failure_class is FailureClass.TRANSIENT


def test_nobody_listening_is_transient(tmp_path: Path, site: FakeSite) -> None:
    with FakeSite() as gone:
        url, network = gone.url("/"), (gone.authority,)
    done = ask(tmp_path, site, {"url": url}, network=network)
    assert done.failure is not None
    assert done.failure.failure_class is FailureClass.TRANSIENT
    assert "cannot reach" in done.failure.reason


def certificate(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """Return a file to trust, and a server's side of TLS for this name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    trusted, private = folder / f"{name}.pem", folder / f"{name}.key"
    trusted.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, private)
    return trusted, context


@pytest.mark.parametrize(("name", "valid"), [("localhost", True), ("other.example", False)])
def test_certificate_has_to_be_that_of_the_name(
    tmp_path: Path, name: str, valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, tls = certificate(tmp_path, name)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with FakeSite({"/": html("Safe", "words")}, tls) as safe:
        port = safe.authority.partition(":")[2]
        done = ask(tmp_path, safe, {"url": f"https://localhost:{port}/"}, network=(f"localhost:{port}",))
    if valid:
        assert done.failure is None
        assert safe.visits[0].headers["host"] == f"localhost:{port}"
    else:
        assert done.failure is not None
        assert "certificate" in done.failure.reason
        assert safe.visits == []


@pytest.mark.parametrize(
    ("url", "network", "allowed"),
    [
        ("https://example.org/a", ("example.org",), True),
        ("https://EXAMPLE.org./a", ("example.org",), True),
        ("https://api.example.org/a", ("example.org",), False),
        ("https://api.example.org/a", ("*.example.org",), True),
        ("https://example.org/a", ("*.example.org",), False),
        ("https://evilexample.org/a", ("*.example.org",), False),
        ("https://example.org.evil.net/a", ("example.org",), False),
        ("https://example.org:8443/a", ("example.org",), False),
        ("https://example.org:8443/a", ("example.org:8443",), True),
        ("https://example.org@evil.net/", ("example.org",), False),
        ("https://me:pw@example.org/", ("example.org",), False),
        ("ftp://example.org/", ("example.org",), False),
        ("file:///etc/passwd", ("*",), False),
        ("http://[::1]:80/", ("[::1]:80",), True),
        ("//example.org/", ("example.org",), False),
        ("http://2130706433/", ("127.0.0.1:80",), False),
    ],
)
def test_allowlist_means_hosts_not_texts(url: str, network: tuple[str, ...], allowed: bool) -> None:
    assert (judge_url(url, network).refusal == "") is allowed


def known(*addresses: str) -> Resolve:
    """A name server that knows one name."""

    async def found(_name: str, _port: int) -> list[str]:
        return list(addresses)

    return found


def test_next_address_of_a_name_is_tried_where_one_does_not_answer(tmp_path: Path, site: FakeSite) -> None:
    port = site.authority.partition(":")[2]
    site.pages["/"] = html("Here", "words")
    done = ask(
        tmp_path,
        site,
        {"url": f"http://twice.test:{port}/"},
        network=(f"twice.test:{port}",),
        resolve=known("127.0.0.2", "127.0.0.1"),
    )
    assert done.failure is None
    assert site.visits[0].headers["host"] == f"twice.test:{port}"


def test_name_that_turns_out_to_be_private_is_refused_although_it_is_listed(tmp_path: Path, site: FakeSite) -> None:
    done = ask(
        tmp_path,
        site,
        {"url": "http://rebound.test/"},
        network=("rebound.test",),
        resolve=known("93.184.216.34", "10.0.0.7"),
    )
    assert done.failure is not None
    assert done.failure.failure_class is FailureClass.POLICY
    assert "10.0.0.7" in done.failure.reason


@pytest.mark.parametrize("address", ["64:ff9b::a00:7", "2002:a00:7::1", "::10.0.0.7", "::ffff:10.0.0.7", "fec0::7"])
def test_name_that_carries_a_private_address_in_ipv6_is_refused(tmp_path: Path, site: FakeSite, address: str) -> None:
    done = ask(
        tmp_path,
        site,
        {"url": "http://rebound.test/"},
        network=("rebound.test",),
        resolve=known(address),
    )
    assert done.failure is not None
    assert done.failure.failure_class is FailureClass.POLICY
    assert address in done.failure.reason
