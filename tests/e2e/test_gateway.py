"""The gateway that `up` starts: how people get in, what a hostile page can do, and how it lives and dies."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.episodes import APPEND, eventually
from tests.support.stack.chromium import chromium
from tests.support.stack.stack import ROOT, wait_for_port
from worker.server import Owner, free_port, owner_file

pytestmark = pytest.mark.timeout(600)
EPISODE = "nightly-1"


class Installation:
    """What `tightloop up` runs in a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "TIGHTLOOP_"))}
        self.state = folder / "state"
        self.port = free_port()
        self.page = f"http://tightloop.localhost:{self.port}"
        self.environment = {
            **clean,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "TIGHTLOOP_HOME": str(self.state),
            "TIGHTLOOP_TEMPORAL__ADDRESS": f"127.0.0.1:{free_port()}",
            "TIGHTLOOP_TEMPORAL__UI_URL": f"http://127.0.0.1:{free_port()}",
            "TIGHTLOOP_GATEWAY__LISTEN": f"127.0.0.1:{self.port}",
            "TIGHTLOOP_SANDBOX__UNSAFE_LOCAL": "true",
        }

    @contextmanager
    def up(self) -> Iterator[tuple[psutil.Process, list[str]]]:
        """Run `up`; yields its process and what it said until it was ready."""
        command = [sys.executable, "-m", "worker", "up"]
        with subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said: list[str] = []
            while not said or (said[-1] and "Start an episode" not in said[-1]):
                said.append(process.stdout.readline())
            try:
                yield psutil.Process(process.pid), said
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(120)

    def tightloop(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "tightloop.cli.main", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def ask(self, token: str, path: str, body: Any = None) -> Any:
        """Send one request to the API; returns the answer's JSON."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("gateway"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace") / "orders"
    folder.mkdir()
    (folder / "notes.txt").write_text("a\n")
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for arguments in (("init", "--quiet"), ("add", "--all"), (*identity, "commit", "--quiet", "-m", "start")):
        subprocess.run(("git", *arguments), cwd=folder, check=True, timeout=30)
    return folder


def test_up_starts_it_and_only_open_tells_who_comes_in(installation: Installation, project: Path) -> None:
    with installation.up() as (_, said):
        told = "".join(said)
        assert f"Page: {installation.page}   (sign in: tightloop open)" in told
        assert "token=" not in told, "a log of ours may be read by others"
        link = installation.tightloop("open", "--print")
        assert link.startswith(f"{installation.page}/login?token=")
        token = installation.tightloop("token", "create", "anna", "--role", "operator")
        assert "anna" in installation.tightloop("token", "list")
        assert token not in installation.tightloop("token", "list", "--json")
        body = {
            "goal": "write a line",
            "workspace": str(project),
            "definitionOfDone": [{"run": "test -s log.txt"}],
            "executor": {"name": "scripted", "options": {"steps": [APPEND]}},
        }
        started = installation.ask(token, f"/api/episodes?id={EPISODE}", body)
        assert started == {"id": EPISODE, "href": f"/api/episodes/{EPISODE}"}
        deadline = time.monotonic() + 90
        while (shown := installation.ask(token, f"/api/episodes/{EPISODE}?fresh=true"))["status"] == "running":
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert shown["status"] == "succeeded"
        installation.tightloop("token", "revoke", "anna")
        time.sleep(2.5)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            installation.ask(token, "/api/projects")
        for name in ("page-key", "ledger.db"):
            assert (installation.state / name).stat().st_mode & 0o077 == 0


ATTACK = """
const done = arguments[arguments.length - 1];
const [base, episode, wait] = arguments;
const tried = {};
const attempt = async (name, path, options) => {
  try {
    const answer = await fetch(base + path, {credentials: 'include', ...options});
    tried[name] = [answer.status, answer.type, (await answer.text()).slice(0, 300)];
  } catch (error) { tried[name] = [0, 'error', String(error)]; }
};
const message = {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{}'};
const stream = () => new Promise(resolve => {
  const source = new EventSource(base + '/api/events', {withCredentials: true});
  const end = word => { tried.stream = [0, word, '']; source.close(); resolve(); };
  source.addEventListener('ready', () => end('ready'));
  source.onopen = () => end('open');
  source.onerror = () => end('refused');
});
const socket = () => new Promise(resolve => {
  const opened = new WebSocket((base || location.origin).replace('http', 'ws') + '/api/events');
  const end = word => { tried.socket = [0, word, '']; resolve(); };
  opened.onopen = () => end('open');
  opened.onerror = () => end('refused');
});
const form = () => new Promise(resolve => {
  const frame = Object.assign(document.createElement('iframe'), {name: 'target'});
  const sent = Object.assign(document.createElement('form'),
    {method: 'POST', action: base + `/workflows/${episode}/pause`, target: 'target'});
  frame.onload = () => { tried.form = [0, 'sent', '']; resolve(); };
  document.body.append(frame, sent);
  sent.submit();
  setTimeout(() => { tried.form = tried.form || [0, 'no answer', '']; resolve(); }, wait);
});
(async () => {
  await attempt('list', '/api/episodes');
  await attempt('status', `/api/episodes/${episode}`);
  await attempt('page', '/');
  await attempt('fetch', `/api/episodes/${episode}/pause`, message);
  await attempt('no-cors', `/api/episodes/${episode}/pause`, {method: 'POST', mode: 'no-cors', body: '{}'});
  await attempt('simple', `/workflows/${episode}/pause`,
    {method: 'POST', mode: 'no-cors', body: new URLSearchParams({reason: 'x'})});
  await stream(); await socket(); await form();
  done(tried);
})();
"""
NOTHING = {"list", "status", "page", "fetch", "no-cors", "simple"}


def test_a_page_elsewhere_reads_and_changes_nothing(installation: Installation, project: Path, tmp_path: Path) -> None:
    """The browser is signed in; the page of another port, or of a name that points here, tries everything."""
    mapped = "--host-resolver-rules=MAP attacker.test 127.0.0.1"
    with installation.up(), chromium(tmp_path, mapped) as browser, preview() as elsewhere:
        token = installation.tightloop("token", "create", "boris", "--role", "operator")
        body = {"goal": "x", "workspace": str(project), "definitionOfDone": [{"run": "false"}]}
        body |= {"executor": {"name": "person"}}
        victim = installation.ask(token, "/api/episodes?id=victim", body)["id"]
        browser.open(installation.tightloop("open", "--print"))
        assert "token" not in browser.run("return location.href")
        own = browser.run_async(ATTACK, "", victim, 3_000)
        assert (own["list"][0], own["fetch"][0], own["stream"][1]) == (200, 202, "open"), "it works where it may"
        assert own["socket"][1] == "refused"
        assert victim in own["status"][2]
        before = installation.ask(token, f"/api/episodes/{victim}/timeline")["items"]
        for origin in (elsewhere, f"http://127.0.0.1:{installation.port}/live"):
            browser.open(origin)
            tried = browser.run_async(ATTACK, installation.page, victim, 3_000)
            assert {name: tried[name][2] for name in NOTHING if victim in tried[name][2]} == {}
            assert all(tried[name][0] == 0 or tried[name][0] >= 400 for name in NOTHING), tried
            assert (tried["stream"][1], tried["socket"][1]) == ("refused", "refused")
        browser.open(f"http://attacker.test:{installation.port}/live")
        tried = browser.run_async(ATTACK, "", victim, 3_000)
        assert {tried[name][0] for name in NOTHING - {"no-cors", "simple"}} == {421}
        assert (tried["stream"][1], tried["socket"][1]) == ("refused", "refused")
        after = installation.ask(token, f"/api/episodes/{victim}/timeline")["items"]
        assert [one["text"] for one in after] == [one["text"] for one in before]


def test_another_server_of_this_machine_is_not_sent_the_session(installation: Installation, tmp_path: Path) -> None:
    """Cookies ignore ports: an agent's own preview would be sent one of 127.0.0.1 or localhost."""
    with installation.up(), chromium(tmp_path) as browser, preview() as elsewhere:
        browser.open(installation.tightloop("open", "--print"))
        port = elsewhere.rstrip("/").rpartition(":")[2]
        for host in ("127.0.0.1", "localhost"):
            browser.open(f"http://{host}:{port}/")
        assert Preview.cookies == [""] * len(Preview.cookies)


class Preview(BaseHTTPRequestHandler):
    """One page that remembers which cookies it was sent."""

    cookies: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.cookies.append(self.headers.get("Cookie", ""))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Preview</title><p>A preview</p>")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def preview() -> Iterator[str]:
    """A web server of somebody else on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Preview) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join(10)


async def test_it_is_started_again_when_it_dies_and_ends_with_a_killed_up(installation: Installation) -> None:
    def gateway_of(up: psutil.Process) -> psutil.Process | None:
        for child in up.children():
            # One that was killed is listed until `up` has reaped it, and has no command line.
            with suppress(psutil.Error):
                if child.cmdline()[-2:] == ["gateway", "--embedded"]:
                    return child
        return None

    with installation.up() as (up, _):
        first = gateway_of(up)
        assert first is not None
        first.kill()

        async def another() -> psutil.Process | None:
            found = gateway_of(up)
            return found if found is not None and found.pid != first.pid else None

        second = await eventually(another, seconds=90)
        wait_for_port(f"127.0.0.1:{installation.port}")
        up.kill()

        async def gone() -> bool:
            with suppress(psutil.NoSuchProcess):
                return second.status() == psutil.STATUS_ZOMBIE
            return True

        await eventually(gone, seconds=90)
    psutil.Process(Owner.model_validate_json(owner_file(installation.state).read_text()).server.pid).terminate()
