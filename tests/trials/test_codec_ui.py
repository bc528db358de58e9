"""`up --encrypt` as a person uses it: the Temporal UI in a real browser and the command line, through the codec."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.episodes import eventually
from tests.support.stack.chromium import Browser, chromium
from tests.support.stack.stack import ROOT, wait_for_port
from tightloop.errors import SettingsError
from tightloop.settings import parse_settings
from worker.encryption import turn_on
from worker.server import Owner, free_port, owner_file, server_arguments, temporal_binary

pytestmark = pytest.mark.timeout(600)
PLANTED = "zebra-crossing-42"
EPISODE = "codec-ui-1"
FOLLOW_THE_PAGE = """
const [endpoint] = arguments;
document.querySelector('[data-testid^=data-encoder-status]').click();
const dialog = document.querySelector('#data-encoder-settings');
const labelled = text => [...dialog.querySelectorAll('label')].find(each => each.innerText.includes(text));
const there = find => new Promise(done => {
  const look = () => { const found = find(); found ? done(found) : setTimeout(look, 50); };
  look();
});
labelled('Use my browser setting and ignore Cluster-level setting').click();
return there(() => labelled('Include cross-origin credentials') && dialog.querySelector('textarea')).then(field => {
  field.value = endpoint;
  field.dispatchEvent(new Event('input', {bubbles: true}));
  const credentials = labelled('Include cross-origin credentials').querySelector('input');
  credentials.click();
  return there(() => credentials.checked && dialog.querySelector('[data-testid=confirm-modal-button]:enabled'));
}).then(confirm => new Promise(done => setTimeout(() => { confirm.click(); done(true); }, 300)));
"""
"""What the sign-in page asks a person to do in the UI, with the words of UI 2.54."""


class Installation:
    """The settings and the state of one user, on ports of their own."""

    def __init__(self, folder: Path) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "TIGHTLOOP_"))}
        self.state, self.config = folder / "state", folder / "config" / "tightloop" / "settings.yaml"
        self.address, self.ui, self.codec = (f"127.0.0.1:{free_port()}" for _ in range(3))
        self.environment = {
            **clean,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "TIGHTLOOP_HOME": str(self.state),
            "TIGHTLOOP_TEMPORAL__ADDRESS": self.address,
            "TIGHTLOOP_TEMPORAL__UI_URL": f"http://{self.ui}",
            "TIGHTLOOP_CODEC__LISTEN": self.codec,
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
            while not said or (said[-1] and "Temporal CLI:" not in said[-1]):
                said.append(process.stdout.readline())
            try:
                yield psutil.Process(process.pid), said
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(120)

    @contextmanager
    def running(self, command: list[str], port_of: str, **more: str) -> Iterator[None]:
        """Run one program until the end of the block."""
        environment = {**self.environment, **more}
        with (
            (self.state / "other.log").open("ab") as log,
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            ) as one,
        ):
            try:
                wait_for_port(port_of)
                yield
            finally:
                one.terminate()
                one.wait(90)

    def tightloop(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tightloop.cli.main", *arguments]
        environment = {**self.environment, **more}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)

    def history(self) -> dict[str, Any]:
        """The history as Temporal stores it."""
        command = [str(temporal_binary()), "workflow", "show", "-w", EPISODE, "-o", "json", "--address", self.address]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=150, check=True)
        return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An installation that `up --encrypt` made, where one episode succeeded that the command line started."""
    folder = tmp_path_factory.mktemp("codec")
    made = Installation(folder)
    workspace = folder / "project"
    workspace.mkdir()
    (workspace / "notes.txt").write_text("a\n")
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for arguments in (("init", "--quiet"), ("add", "--all"), (*identity, "commit", "--quiet", "-m", "start")):
        subprocess.run(("git", *arguments), cwd=workspace, check=True, timeout=30)
    steps = json.dumps([{"append": [{"path": f"{PLANTED}.txt", "text": "{n}\n"}]}])
    with made.up("--encrypt") as (_, said):
        assert any("Made key" in line for line in said), said
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


def pages(installation: Installation) -> dict[str, str]:
    """The pages of the UI that show content, each with a few of the characters that Temporal has stored for it."""
    history = installation.history()
    run = history["events"][0]["workflowExecutionStartedEventAttributes"]["originalExecutionRunId"]
    plan = event_of_the_plan(history)
    [start] = history["events"][0]["workflowExecutionStartedEventAttributes"]["input"]["payloads"]
    [answer] = history["events"][plan - 1]["activityTaskCompletedEventAttributes"]["result"]["payloads"]
    where = f"{installation.page}/{run}"
    return {f"{where}/timeline": start["data"][:40], f"{where}/history/events/{plan}": answer["data"][:40]}


def check_readable(browser: Browser, installation: Installation) -> None:
    for page in pages(installation):
        browser.open(page)
        assert PLANTED in (seen := browser.text_with(PLANTED)), f"{page}: {seen}"


def check_unreadable(browser: Browser, installation: Installation) -> None:
    for page, stored in pages(installation).items():
        browser.open(page)
        seen = browser.text_with(stored, "Codec Server could not connect")
        assert stored in seen, f"{page}: {seen}"
        assert PLANTED not in seen


def test_up_encrypt_turns_encryption_on_for_the_commands_of_other_terminals(installation: Installation) -> None:
    assert installation.config.read_text() == "privacy:\n  encrypt: true\n"
    for name in ("keys.json", "codec-token"):
        assert (installation.state / name).stat().st_mode & 0o777 == 0o600
    key = (installation.state / "keys.json").read_text()
    with installation.up("--encrypt") as (_, said):
        assert not any("Made key" in line for line in said)
        assert (installation.state / "keys.json").read_text() == key
        status = installation.tightloop("status", EPISODE, "--json")
        assert PLANTED in status.stdout, status.stderr
        without = installation.tightloop("status", EPISODE, TIGHTLOOP_PRIVACY__ENCRYPT="false")
        assert PLANTED not in without.stdout + without.stderr
        assert PLANTED not in json.dumps(installation.history())
        exported = re.search(r"export (.*?)   \(or", said[-1])
        assert exported is not None
        command = f"{exported[1]} {temporal_binary()} workflow describe -w {EPISODE} --address {installation.address}"
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
        check_unreadable(browser, installation)
        browser.open(f"http://{installation.codec}/")
        assert "Not signed in" in browser.text()
        sign_in = "document.querySelector('#token').value = arguments[0]; document.querySelector('button').click()"
        browser.run(sign_in, (installation.state / "codec-token").read_text())
        assert "This browser is signed in" in browser.text_with("This browser is signed in")
        browser.open(installation.page)
        browser.text_with("Codec Server could not connect")
        browser.run(FOLLOW_THE_PAGE, f"http://{installation.codec}")
        check_readable(browser, installation)


def test_without_a_token_the_ui_reads_at_once_and_only_while_the_codec_server_is_there(
    installation: Installation, tmp_path: Path
) -> None:
    encrypting = {**installation.environment, "TIGHTLOOP_PRIVACY__ENCRYPT": "true"}
    arguments = server_arguments(parse_settings("", encrypting), installation.state / "temporal.db")
    codec = [sys.executable, "-P", "-m", "gateway.codec"]
    with chromium(tmp_path) as browser, installation.running([str(temporal_binary()), *arguments], installation.ui):
        with installation.running(codec, installation.codec, TIGHTLOOP_CODEC__REQUIRE_TOKEN="false"):
            check_readable(browser, installation)
        check_unreadable(browser, installation)


async def test_the_codec_server_is_started_again_when_it_dies_and_ends_with_a_killed_up(
    installation: Installation,
) -> None:
    def is_codec(child: psutil.Process) -> bool:
        # One that was killed is listed until `up` has reaped it, and has no command line.
        with suppress(psutil.Error):
            return "gateway.codec" in child.cmdline()
        return False

    def codec_of(up: psutil.Process) -> psutil.Process | None:
        return next(filter(is_codec, up.children()), None)

    with installation.up() as (up, _):
        first = codec_of(up)
        assert first is not None
        first.kill()

        async def another() -> psutil.Process | None:
            found = codec_of(up)
            return found if found is not None and found.pid != first.pid else None

        second = await eventually(another, seconds=90)
        wait_for_port(installation.codec)
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


@pytest.mark.parametrize("text", ["privacy: {encrypt: false}", "{budget: {max_iterations: 7}}", "budget:\n...\n"])
def test_a_settings_file_that_cannot_be_extended_is_left_alone(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=re.escape(str(file))):
        turn_on(parse_settings(text, {}), file)
    assert file.read_text() == text
