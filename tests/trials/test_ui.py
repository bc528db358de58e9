"""The Web UI of `up` as a person uses it, and as a hostile page does: in a real browser, and from the CLI."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.episodes import eventually
from tests.support.stack.chromium import Browser, chromium
from tests.support.stack.stack import ROOT, wait_for_port
from tightloop.errors import SettingsError
from tightloop.settings import parse_settings
from worker.connect import turn_on
from worker.server import Owner, free_port, owner_file, temporal_binary

pytestmark = pytest.mark.timeout(600)
WITHOUT_KEYS = {"TIGHTLOOP_PRIVACY__ENCRYPT": "false", "TIGHTLOOP_TEMPORAL__AUTHENTICATE": "false"}
"""Whoever has the keys reads what is encrypted, also where they encrypt nothing themselves."""
PLANTED = "zebra-crossing-42"
EPISODE = "codec-ui-1"


class Installation:
    """The settings and the state of one user, on ports of their own."""

    def __init__(self, folder: Path) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "TIGHTLOOP_"))}
        self.state, self.config = folder / "state", folder / "config" / "tightloop" / "settings.yaml"
        self.address, self.ui = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.environment = {
            **clean,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "TIGHTLOOP_HOME": str(self.state),
            "TIGHTLOOP_TEMPORAL__ADDRESS": self.address,
            "TIGHTLOOP_TEMPORAL__UI_URL": f"http://{self.ui}",
            "TIGHTLOOP_GATEWAY__ENABLED": "false",
            "TIGHTLOOP_SANDBOX__UNSAFE_LOCAL": "true",
        }

    @property
    def page(self) -> str:
        return f"http://{self.ui}/namespaces/default/workflows/{EPISODE}"

    @contextmanager
    def up(self, *options: str) -> Iterator[tuple[psutil.Process, list[str]]]:
        """Run `up`; yields its process and what it said until it was ready."""
        command = [sys.executable, "-m", "worker", "up", *options]
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

    def tightloop(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tightloop.cli.main", *arguments]
        environment = {**self.environment, **more}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)

    def link(self) -> str:
        return self.tightloop("ui").stdout.strip()

    def history(self) -> dict[str, Any]:
        """The history as Temporal stores it."""
        command = [str(temporal_binary()), "workflow", "show", "-w", EPISODE, "-o", "json", "--address", self.address]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=150, check=True)
        return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An installation that `up` made, where one episode succeeded that the command line started."""
    folder = tmp_path_factory.mktemp("codec")
    made = Installation(folder)
    workspace = folder / "project"
    workspace.mkdir()
    (workspace / "notes.txt").write_text("a\n")
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for arguments in (("init", "--quiet"), ("add", "--all"), (*identity, "commit", "--quiet", "-m", "start")):
        subprocess.run(("git", *arguments), cwd=workspace, check=True, timeout=30)
    steps = json.dumps([{"append": [{"path": f"{PLANTED}.txt", "text": "{n}\n"}]}])
    with made.up() as (_, said):
        assert any("Payloads are encrypted with key" in line for line in said), said
        done = made.tightloop(
            *("start", f"write {PLANTED}", "--done", f"test -f {PLANTED}.txt", "--workspace", str(workspace)),
            *("--planner", "heuristic", "--executor", "scripted", "--executor-option", f"steps={steps}"),
            *("--id", EPISODE, "--watch"),
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return made


def event_of_the_plan(history: dict[str, Any]) -> int:
    """The number of the event that holds the planner's answer."""
    plan = next(
        int(event["eventId"])
        for event in history["events"]
        if event.get("activityTaskScheduledEventAttributes", {}).get("activityType", {}).get("name") == "next_plan"
    )
    completed = "activityTaskCompletedEventAttributes"
    return next(
        int(event["eventId"])
        for event in history["events"]
        if int(event.get(completed, {}).get("scheduledEventId", 0)) == plan
    )


def run_of(history: dict[str, Any]) -> str:
    return str(history["events"][0]["workflowExecutionStartedEventAttributes"]["originalExecutionRunId"])


def pages(installation: Installation) -> list[str]:
    """The pages of the UI that show content."""
    history = installation.history()
    where = f"{installation.page}/{run_of(history)}"
    return [f"{where}/timeline", f"{where}/history/events/{event_of_the_plan(history)}"]


def check_readable(browser: Browser, installation: Installation) -> None:
    for page in pages(installation):
        browser.open(page)
        assert PLANTED in (seen := browser.text_with(PLANTED)), f"{page}: {seen}"


def test_payloads_are_read_with_the_key_alone(installation: Installation) -> None:
    assert not installation.config.exists()
    for name in ("keys.json", "ui-token"):
        assert (installation.state / name).stat().st_mode & 0o777 == 0o600
    key = (installation.state / "keys.json").read_text()
    with installation.up() as (_, said):
        assert json.loads(key)["current"] in "".join(said)
        assert (installation.state / "keys.json").read_text() == key
        status = installation.tightloop("status", EPISODE, "--json")
        assert PLANTED in status.stdout, status.stderr
        without = installation.tightloop("status", EPISODE, **WITHOUT_KEYS)
        assert PLANTED not in without.stdout + without.stderr
        assert PLANTED not in json.dumps(installation.history())
        variables = installation.tightloop("env").stdout
        command = f"{variables} {temporal_binary()} workflow describe -w {EPISODE}"
        shown = subprocess.run(
            ["sh", "-c", f"{command} -o json"], env=installation.environment, capture_output=True, text=True, timeout=60
        )
        assert PLANTED in shown.stdout, shown.stdout + shown.stderr
    for file in installation.state.glob("temporal.db*"):
        assert PLANTED.encode() not in file.read_bytes()


def test_the_ui_shows_plan_and_input_after_the_sign_in_and_nothing_before(
    installation: Installation, tmp_path: Path
) -> None:
    with chromium(tmp_path) as browser, installation.up():
        browser.open(installation.page)
        assert "Not signed in" in browser.text()
        link = installation.link()
        browser.open(link)
        # Where it leads once signed in.
        browser.text_with("Workflows", EPISODE)
        assert "token" not in browser.run("return location.href")
        check_readable(browser, installation)
        with chromium(tmp_path / "second") as other:
            other.open(link)
            assert "This link was already used or has expired" in other.text()
            paste = "document.querySelector('#token').value = arguments[0]; document.querySelector('button').click()"
            other.run(paste, "not the token of this user")
            assert "This token is not valid" in other.text_with("This token is not valid")
            other.open(installation.page)
            other.run(paste, (installation.state / "ui-token").read_text())
            assert EPISODE in other.text_with("Workflows", EPISODE)


ATTACK = """
const done = arguments[arguments.length - 1];
const [episode, id] = arguments;
const api = '/api/v1/namespaces/default';
const tried = {};
const attempt = async (name, path, options) => {
  try {
    const answer = await fetch(path, {credentials: 'include', ...options});
    tried[name] = [answer.status, (await answer.text()).slice(0, 400)];
  } catch (error) { tried[name] = [0, String(error)]; }
};
const csrf = (document.cookie.match(/_csrf=([^;]*)/) || [])[1] || 'none';
const headers = {'Content-Type': 'application/json', 'X-CSRF-TOKEN': csrf};
const write = body => ({method: 'POST', headers, body: JSON.stringify(body)});
const start = {workflowId: id, workflowType: {name: 'EpisodeWorkflow'}, taskQueue: {name: 'tightloop'}};
(async () => {
  await attempt('list', `${api}/workflows`);
  await attempt('history', `${api}/workflows/${episode}/history`);
  await attempt('start', `${api}/workflows/${id}`, write(start));
  await attempt('signal', `${api}/workflows/${episode}/signal/cancel`, write({}));
  await attempt('encode', '/codec/encode', write({payloads: [{data: 'e30='}]}));
  await attempt('decode', '/codec/decode', write({payloads: [{data: 'e30='}]}));
  await attempt('metrics', '/metrics');
  await attempt('pprof', '/debug/pprof/');
  done(tried);
})();
"""


def test_a_page_that_rebinds_its_name_reads_and_starts_nothing(installation: Installation, tmp_path: Path) -> None:
    """The browser is signed in; then the attacker's name is made to point to this machine."""
    port = installation.ui.rpartition(":")[2]
    mapped = "--host-resolver-rules=MAP attacker.test 127.0.0.1"
    with installation.up() as (_, said), chromium(tmp_path, mapped) as browser:
        browser.open(installation.link())
        browser.text_with("Workflows", EPISODE)
        own = browser.run_async(ATTACK, EPISODE, "by-its-own-page")
        assert (own["list"][0], own["start"][0]) == (200, 200), "the attack works where it may"
        assert not any("go_goroutines" in text or "goroutine profile" in text for _, text in own.values())
        browser.open(f"http://attacker.test:{port}/")
        tried = browser.run_async(ATTACK, EPISODE, "by-an-attacker")
        assert set(tried) == {"list", "history", "start", "signal", "encode", "decode", "metrics", "pprof"}
        for name, (status, text) in tried.items():
            assert status == 421, f"{name}: {status} {text}"
        command = [str(temporal_binary()), "workflow", "list", "--address", installation.address, "-o", "json"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert "by-its-own-page" in listed
        assert "by-an-attacker" not in listed
        assert not any("127." in line.replace(installation.ui, "") for line in said)


def test_a_page_of_another_port_of_this_machine_reaches_nothing(installation: Installation, tmp_path: Path) -> None:
    """Cookies go to every port of a host: such as an agent's own preview, which is same-site here."""
    with installation.up(), chromium(tmp_path) as browser, preview() as other:
        browser.open(installation.link())
        browser.text_with("Workflows", EPISODE)
        browser.open(other)
        forged = """
        const done = arguments[arguments.length - 1];
        const [ui] = arguments;
        const form = {method: 'POST', mode: 'no-cors', credentials: 'include', body: 'token=x'};
        Promise.allSettled([
          fetch(`${ui}/api/v1/namespaces/default/workflows`, {credentials: 'include'}).then(r => r.text()),
          fetch(`${ui}/codec/encode`, form).then(r => r.type + r.status),
        ]).then(all => done(all.map(each => each.status + (each.value || ''))));
        """
        assert browser.run_async(forged, f"http://{installation.ui}") == ["rejected", "rejected"]
        frame = "const f = document.createElement('iframe'); f.src = arguments[0]; document.body.append(f);"
        browser.run(frame, f"http://{installation.ui}/render?content=x")
        assert EPISODE not in browser.text()


class Preview(BaseHTTPRequestHandler):
    """One page."""

    def do_GET(self) -> None:
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


async def test_the_sign_in_is_started_again_when_it_dies_and_ends_with_a_killed_up(
    installation: Installation,
) -> None:
    def is_sign_in(child: psutil.Process) -> bool:
        # One that was killed is listed until `up` has reaped it, and has no command line.
        with suppress(psutil.Error):
            return "gateway.ui" in child.cmdline()
        return False

    def sign_in_of(up: psutil.Process) -> psutil.Process | None:
        return next(filter(is_sign_in, up.children()), None)

    with installation.up() as (up, _):
        first = sign_in_of(up)
        assert first is not None
        first.kill()

        async def another() -> psutil.Process | None:
            found = sign_in_of(up)
            return found if found is not None and found.pid != first.pid else None

        second = await eventually(another, seconds=90)
        wait_for_port(installation.ui)
        up.kill()

        async def gone() -> bool:
            with suppress(psutil.NoSuchProcess):
                return second.status() == psutil.STATUS_ZOMBIE
            return True

        await eventually(gone, seconds=90)
    psutil.Process(Owner.model_validate_json(owner_file(installation.state).read_text()).server.pid).terminate()


def test_turning_it_on_keeps_what_stands_in_the_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "state"))
    file = tmp_path / "mine.yaml"
    file.write_text("# mine\nbudget:\n  max_iterations: 7")
    settings = turn_on(parse_settings(file.read_text(), {}), file)
    assert (settings.privacy.encrypt, settings.budget.max_iterations) == (True, 7)
    assert file.read_text() == "# mine\nbudget:\n  max_iterations: 7\n\nprivacy:\n  encrypt: true\n"


@pytest.mark.parametrize(
    "text",
    [
        "privacy:\n    prompts: summary\nbudget: {}\n",
        "budget: {}\nprivacy: {prompts: summary}\n",
        "privacy:   # ours\n  prompts: summary\n",
        "privacy: # ours\n\n  # more\n  prompts: summary",
    ],
)
def test_turning_it_on_extends_a_section_that_is_there(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    settings = turn_on(parse_settings(text, {}), file)
    assert (settings.privacy.encrypt, settings.privacy.prompts) == (True, "summary")
    assert parse_settings(file.read_text(), {}).privacy.encrypt


@pytest.mark.parametrize("text", ["privacy: {encrypt: false}", "{budget: {max_iterations: 7}}", "budget:\n...\n"])
def test_a_settings_file_that_cannot_be_extended_is_left_alone(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=re.escape(str(file))):
        turn_on(parse_settings(text, {}), file)
    assert file.read_text() == text
