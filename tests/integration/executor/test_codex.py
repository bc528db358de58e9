"""The real codex against the fake model service: what a delivery comes to, whatever goes wrong."""

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from activities.executor.agent.cli import AgentExecutor
from activities.executor.agent.codex import PLACEHOLDERS, CodexAdapter
from activities.model.gateway.server import serve_gateway
from activities.model.gateway.wire import Wire
from activities.sandbox.bubblewrap import BubblewrapAgentSandbox, BubblewrapSandbox
from activities.sandbox.port import AgentSandbox
from tests.support.agents.install import agent_program
from tests.support.episodes import Git
from tests.support.fake_model import FakeModel, Fault, say, shell, write
from tests.support.fake_model.script import Call, Tool
from tests.support.orders import Supervision, order
from tightloop.errors import ExecutorError, UntrustedProgramError
from tightloop.executor.limit import LimitKind
from tightloop.executor.model import (
    ErrorKind,
    EventKind,
    ExecutorChoice,
    ExecutorOutcome,
    ExecutorStatus,
    Progress,
    ResumeToken,
    WorkOrder,
)
from tightloop.host import private_folder, state_folder
from tightloop.host.identity import host_identity
from tightloop.safety.rubric import Verdict
from tightloop.settings import AgentSettings

KEY = "sk-planted-0123456789abcdef"
OTHER_KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-planted-4567",
    "GITHUB_TOKEN": "ghp_planted_8901",
    "DATABASE_URL": "pg://u:pw-planted@h",
}


def program() -> str:
    """Return codex; a worker of a test was told where it is."""
    return os.environ.get("TIGHTLOOP_TEST_CODEX") or str(agent_program("codex"))


class Waiting(Supervision):
    """Supervision that a test turns from another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = threading.Event()

    def is_cancelled(self) -> bool:
        return self.stop.is_set()


class Bench:
    """One workspace with one codex."""

    def __init__(self, root: Path, state: Path, homes: Path) -> None:
        self.root = root
        self.state = state
        self.homes = homes
        self.fence: AgentSandbox | None = None if BubblewrapSandbox().probe() else BubblewrapAgentSandbox()

    @property
    def walls(self) -> str:
        return "own" if self.fence is None else "bubblewrap+own"

    def executor(self, service: FakeModel, *, gateway: bool = True, **settings: Any) -> AgentExecutor:
        # A model that codex does not know gets plain tools; its own default gets one that runs JavaScript.
        fields = {"model": "gpt-5", "base_url": service.base_url(Wire.RESPONSES), "api_key_env": "OPENAI_API_KEY"}
        chosen = AgentSettings.model_validate({**fields, "program": program(), "gateway": gateway, **settings})
        return AgentExecutor(
            CodexAdapter(chosen),
            settings=chosen,
            homes=self.homes,
            gateways=serve_gateway,
            agent_sandbox=self.fence,
            grace_s=2.0,
        )

    def order(self, *, key: str = "run/1/1", resume: ResumeToken | None = None, **choice: Any) -> WorkOrder:
        made = order(self.root, key=key)
        fields = {"name": "codex", "wall_limit_s": 120.0, "idle_limit_s": 60.0, **choice}
        return made.evolve(executor=ExecutorChoice.model_validate(fields), resume=resume)

    def run(self, model: FakeModel, control: Supervision | None = None, **choice: Any) -> ExecutorOutcome:
        gateway = choice.pop("gateway", True)
        return self.executor(model, gateway=gateway).execute(self.order(**choice), control or Supervision(), self.state)

    def left(self) -> set[str]:
        """Names of what is in the workspace besides git."""
        return {path.name for path in self.root.iterdir()} - {".git", "app.py", "notes.txt"}

    def threads(self) -> str:
        """What codex has written down of its conversations: it does so when it has time for it."""
        return "".join(path.read_text(errors="replace") for path in self.homes.rglob("sessions/**/*.jsonl"))

    def home_bytes(self) -> bytes:
        files = (path for path in self.homes.rglob("*") if path.is_file())
        return b"\n".join(path.read_bytes() for path in files)


@pytest.fixture
def bench(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    agent_program("codex")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name, value in OTHER_KEYS.items():
        monkeypatch.setenv(name, value)
    state = private_folder(state_folder(workspace))
    return Bench(workspace, state, tmp_path / "homes")


@contextlib.contextmanager
def running(work: Callable[[], ExecutorOutcome]) -> Iterator[Callable[[], ExecutorOutcome]]:
    """Run work in a thread; what is yielded waits for its outcome."""
    found: list[ExecutorOutcome] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()

    def outcome() -> ExecutorOutcome:
        thread.join(150)
        assert found, "the executor did not return within 150 s"
        return found[0]

    try:
        yield outcome
    finally:
        thread.join(150)


def until(what: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def living(control: Supervision) -> list[int]:
    """Return the processes of a delivery that are still there."""
    return [pid for leader in control.pids for pid in in_session(leader)]


def conversation(model: FakeModel, call: int) -> str:
    return str(model.requests[call].body["input"])


def test_codex_does_the_work_and_tells_what_it_cost(bench: Bench) -> None:
    control = Supervision()
    with FakeModel(shell("echo hi > made.txt"), write("new.txt", "text\n"), say("I made two files.")) as model:
        outcome = bench.run(model, control)
    assert outcome.status is ExecutorStatus.COMPLETED, outcome.error
    assert bench.left() == {"made.txt", "new.txt"}
    assert outcome.summary == "I made two files."
    assert outcome.usage is not None
    assert outcome.usage.input_tokens == 3000
    assert outcome.usage.output_tokens == 300
    assert outcome.versions["codex"].count(".") == 2
    assert outcome.versions["fence"] == bench.walls
    assert outcome.resume is None
    assert outcome.denied == ()
    assert b"echo hi > made.txt" in outcome.transcript
    assert b"turn.completed" in outcome.transcript
    assert len(model.requests) == 3
    assert "ordentlich aufräumen" in conversation(model, 0)
    last = control.told[-1]
    assert last.last is EventKind.FINISHED
    assert last.events > 4
    assert last.resume is not None
    assert last.resume.host == host_identity().name
    assert not any("prompt" in path.name for path in bench.state.rglob("*"))


def test_the_model_that_codex_takes_by_itself_works_the_same(bench: Bench) -> None:
    script = 'await tools.exec_command({cmd: "echo hi > made.txt; false"})'
    with FakeModel(lambda _tools: Call(Tool("exec", freeform=True), text=script), say("I made it.")) as model:
        outcome = bench.executor(model, model="").execute(bench.order(), Supervision(), bench.state)
        denied = bench.executor(model, model="").execute(
            bench.order(key="run/1/2", mode="read_only"), Supervision(), bench.state
        )
    assert outcome.status is ExecutorStatus.COMPLETED, outcome.error
    assert bench.left() == {"made.txt"}
    assert "[1 of 1 commands failed" in outcome.summary
    assert denied.status is ExecutorStatus.REFUSED


def test_no_key_is_seen_by_what_codex_runs_nor_kept_anywhere(bench: Bench) -> None:
    look = (
        "env > env.txt; cat /proc/*/environ > all.txt 2>/dev/null; ps aux > ps.txt; cat $HOME/.codex/* > home.txt; true"
    )
    with FakeModel(shell(look), say("done")) as model:
        outcome = bench.run(model)
        bearer = model.requests[0].headers["authorization"]
    assert outcome.status is ExecutorStatus.COMPLETED, outcome.error
    assert bearer == f"Bearer {KEY}"
    assert "HOME=" in (bench.root / "env.txt").read_text()
    seen = b"".join((bench.root / name).read_bytes() for name in ("env.txt", "all.txt", "ps.txt", "home.txt"))
    kept = b"".join(path.read_bytes() for path in bench.state.rglob("*") if path.is_file())
    everywhere = seen + kept + bench.home_bytes() + outcome.transcript + outcome.model_dump_json().encode()
    for secret in (KEY, *OTHER_KEYS.values()):
        assert secret.encode() not in everywhere
    assert b"TIGHTLOOP_MODEL_KEY=" not in seen


def test_without_the_gateway_the_key_itself_is_kept_from_the_shells(bench: Bench) -> None:
    with FakeModel(shell("env > env.txt; cat /proc/*/environ >> env.txt 2>/dev/null; true"), say("done")) as model:
        outcome = bench.run(model, gateway=False)
        bearer = model.requests[0].headers["authorization"]
    assert bearer == f"Bearer {KEY}"
    kept = b"".join(path.read_bytes() for path in bench.state.rglob("*") if path.is_file())
    seen = (bench.root / "env.txt").read_bytes()
    assert b"PATH=" in seen
    assert KEY.encode() not in seen + kept + bench.home_bytes() + outcome.transcript
    assert outcome.usage is not None
    assert outcome.usage.input_tokens == 2000


def test_a_key_that_an_unfenced_agent_finds_is_not_kept(bench: Bench) -> None:
    look = shell(
        "tr '\\0' '\\n' < /proc/$(cat worker.pid)/environ | grep -a ^OPENAI_API_KEY; echo ${OPENAI_API_KEY:-none}"
    )
    (bench.root / "worker.pid").write_text(str(os.getpid()))
    with FakeModel(look, shell(f"echo {KEY}"), say(f"It is {KEY}.")) as model:
        # Without the gateway, which would mask it on the way to the agent.
        outcome = bench.run(model, mode="full", gateway=False)
    assert outcome.status is ExecutorStatus.COMPLETED, outcome.error
    assert outcome.summary == "It is [secret]."
    assert b"none" in outcome.transcript
    kept = b"".join(path.read_bytes() for path in bench.state.rglob("*") if path.is_file())
    assert KEY.encode() not in kept + outcome.transcript


def test_the_login_of_codex_is_used_and_its_shells_cannot_read_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "users"))
    with FakeModel(
        shell("cat $CODEX_HOME/auth.json $HOME/.codex/auth.json > got.txt 2> why.txt"), say("done")
    ) as model:
        with pytest.raises(ExecutorError, match=r"the login file .* is missing"):
            bench.executor(model, login=True).execute(bench.order(), Supervision(), bench.state)
        (tmp_path / "users").mkdir()
        (tmp_path / "users" / "auth.json").write_text('{"OPENAI_API_KEY": "sk-of-the-login-0123"}')
        outcome = bench.executor(model, login=True).execute(bench.order(), Supervision(), bench.state)
        bearer = model.requests[0].headers["authorization"]
    assert outcome.status is ExecutorStatus.COMPLETED, outcome.error
    assert bearer == "Bearer sk-of-the-login-0123"
    assert (bench.root / "got.txt").read_text() == ""
    assert "Permission denied" in (bench.root / "why.txt").read_text()


def test_codex_writes_in_the_tree_only_and_does_not_see_our_state(bench: Bench, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    (bench.state / "outbox").write_text("ours")
    tries = (
        f"echo x > {outside}",
        "echo x > .git/hooks/post-commit",
        f"cat {bench.state}/outbox > got.txt",
        f"echo x > {bench.state}/outbox",
        "(echo > /dev/tcp/127.0.0.1/9) 2> net.txt",
        "echo x > $TMPDIR/x && echo x > inside.txt",
    )
    with FakeModel(shell("; ".join(tries)), say("done")) as model:
        outcome = bench.run(model)
    assert outcome.status is ExecutorStatus.COMPLETED
    assert not outside.exists()
    assert not (bench.root / ".git" / "hooks" / "post-commit").exists()
    assert (bench.state / "outbox").read_text() == "ours"
    assert (bench.root / "got.txt").read_text() == ""
    assert "not permitted" in (bench.root / "net.txt").read_text()
    assert bench.left() == {"got.txt", "net.txt", "inside.txt"}


@pytest.mark.parametrize("fenced", [True, False], ids=["fence", "no fence"])
def test_programs_of_the_tree_run_in_the_sandbox_of_codex_only(bench: Bench, tmp_path: Path, fenced: bool) -> None:
    """Codex asks git and lsb_release at its start, and looks for the program of its sandbox on the commands' PATH."""
    if not fenced:
        bench.fence = None
    watch = tmp_path / "watch"
    watch.mkdir()
    for folder in (".venv/bin", "node_modules/.bin", "bin", "."):
        for name in ("git", "lsb_release", "id", "bwrap", "getconf", "ps", "made-up"):
            planted = bench.root / folder / name
            planted.parent.mkdir(parents=True, exist_ok=True)
            planted.write_text(
                f'#!/bin/sh\necho "$0 $*" >> {watch}/outside.txt; echo "$0" >> {bench.root}/inside.txt\n'
            )
            planted.chmod(0o755)
    with FakeModel(shell("git status; made-up; (cd bin && made-up)"), say("done")) as model:
        outcome = bench.run(model)
    assert outcome.status is ExecutorStatus.COMPLETED, outcome
    assert outcome.versions["fence"] == bench.walls
    assert not (watch / "outside.txt").exists(), (watch / "outside.txt").read_text()
    inside = (bench.root / "inside.txt").read_text().split()
    assert inside == [str(bench.root / ".venv/bin" / name) for name in ("git", "made-up", "made-up")]


@pytest.mark.parametrize("fenced", [True, False], ids=["fence", "no fence"])
def test_configuration_of_the_tree_starts_nothing_outside(bench: Bench, tmp_path: Path, git: Git, fenced: bool) -> None:
    if not fenced:
        bench.fence = None
    marker = tmp_path / "outside.txt"
    runs = ["sh", "-c", f"echo $0 $PPID >> {marker}"]
    hook = {"hooks": [{"type": "command", "command": shlex.join(runs)}]}
    events = ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop")
    config = (
        f"notify = {json.dumps(runs)}\n[features]\nhooks = true\n"
        f'[mcp_servers.evil]\ncommand = "sh"\nargs = {json.dumps(runs[1:])}\n'
    )
    files = {
        ".codex/config.toml": config,
        ".codex/hooks.json": json.dumps({"hooks": {event: [hook] for event in events}}),
        ".mcp.json": json.dumps({"mcpServers": {"evil": {"command": "sh", "args": runs[1:]}}}),
        ".gitattributes": "* filter=evil diff=evil\n",
    }
    for name, text in files.items():
        (bench.root / name).parent.mkdir(exist_ok=True)
        (bench.root / name).write_text(text)
    for setting in ("core.fsmonitor", "core.pager", "diff.external", "filter.evil.clean", "diff.evil.textconv"):
        git(bench.root, "config", setting, shlex.join(runs))
    with FakeModel(shell("echo hi > made.txt"), say("done")) as model:
        outcome = bench.run(model)
    assert outcome.status is ExecutorStatus.COMPLETED, outcome
    assert (bench.root / "made.txt").exists()
    assert not marker.exists(), marker.read_text()


def test_a_codex_that_the_tree_brings_along_is_refused(bench: Bench) -> None:
    (bench.root / "codex").symlink_to(program())
    (bench.homes / "codex").mkdir(parents=True)
    (bench.homes / "codex" / "codex").symlink_to(program())
    with FakeModel(say("never")) as model:
        for named, place in (
            (bench.root / "codex", bench.root),
            (bench.homes / "codex" / "codex", bench.homes),
        ):
            with pytest.raises(UntrustedProgramError, match=f"{named} is inside {place}, "):
                bench.executor(model, program=str(named)).execute(bench.order(), Supervision(), bench.state)
        assert model.calls == 0


@pytest.mark.parametrize("listed", [False, True], ids=["own sandbox", "fence"])
def test_what_codex_runs_reaches_nothing_of_the_host_but_what_is_listed(bench: Bench, listed: bool) -> None:
    """With the option `network` its own sandbox, which has no list of hosts, gives way to the fence."""
    if listed and (problem := BubblewrapSandbox().probe()):
        pytest.skip(problem)
    name = f"tightloop-codex-{os.getpid()}"
    with (
        FakeModel(shell("python3 try.py > ways.txt 2>&1"), say("done")) as model,
        socket.create_server(("127.0.0.1", 0)) as service,
        socket.create_server(("127.0.0.1", 0)) as other,
        contextlib.closing(socket.socket(socket.AF_UNIX)) as abstract,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen()
        ports = [one.getsockname()[1] for one in (service, other)]
        code = f"""
import socket
for family, place in [(2, ("127.0.0.1", port)) for port in {ports}] + [(1, chr(0) + "{name}"), (2, ("1.1.1.1", 443))]:
    try:
        with socket.socket(family) as one:
            one.settimeout(3)
            one.connect(place)
            print("reached", place)
    except OSError: print("refused")
"""
        (bench.root / "try.py").write_text(code)
        executor = dataclasses.replace(
            bench.executor(model), agent_sandbox=BubblewrapAgentSandbox((f"127.0.0.1:{ports[0]}",))
        )
        wanted = bench.order(options={"network": True} if listed else {})
        outcome = executor.execute(wanted, Supervision(), bench.state)
    assert outcome.status is ExecutorStatus.COMPLETED, outcome
    assert outcome.versions["fence"] == ("bubblewrap" if listed else bench.walls)
    first = f"reached ('127.0.0.1', {ports[0]})" if listed else "refused"
    assert (bench.root / "ways.txt").read_text().splitlines() == [first, "refused", "refused", "refused"]


@pytest.mark.parametrize("mode", ["workspace", "read_only"])
def test_commands_read_neither_the_state_around_a_worktree_nor_other_homes(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    home = tmp_path / "tightloop home"
    monkeypatch.setenv("TIGHTLOOP_HOME", str(home))
    state = private_folder(state_folder(bench.root))
    tree, other = (state / "worktrees" / name for name in ("one", "two"))
    for folder in (tree, other):
        add = ["git", "-C", str(bench.root), "worktree", "add", "--quiet", "--detach", str(folder)]
        subprocess.run(add, check=True)
    secrets = (
        state / "outbox.db",
        other / "of-another-episode.txt",
        home / "keys.json",
        home / "homes" / "beef" / "claude" / ".claude" / ".credentials.json",
        home / "homes" / "dead" / "codex" / "own" / ".codex" / "auth.json",
    )
    for number, file in enumerate(secrets):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"planted-{number}")
    look = f"cat app.py {' '.join(shlex.quote(str(file)) for file in secrets)}"
    work = Bench(tree, state, home / "homes")
    with FakeModel(shell(look), say("done")) as model:
        outcome = work.run(model, mode=mode)
        seen = conversation(model, 1).split("call_output", 1)[1]
    assert outcome.status in (ExecutorStatus.COMPLETED, ExecutorStatus.REFUSED), outcome.error
    assert (tree / "app.py").read_text().strip()[:20] in seen
    assert "planted-" not in seen


def test_an_agent_that_may_only_read_is_reported_as_refused_whatever_it_says(bench: Bench) -> None:
    with FakeModel(shell("test -e app.py; echo hi > made.txt"), say("All done!")) as model:
        outcome = bench.run(model, mode="read_only")
    assert bench.left() == set()
    assert outcome.status is ExecutorStatus.REFUSED, outcome
    assert "read_only_file_system" in outcome.error
    # Codex tells of the command, too, unless it failed at once.
    assert any("read_only_file_system" in line for line in outcome.denied)


def test_a_short_limit_ends_the_delivery_and_the_next_one_goes_on_with_the_thread(bench: Bench) -> None:
    command = "echo hi > made.txt; while [ ! -e go.txt ]; do sleep 0.1; done"
    work = (shell(command), say("done"))
    with FakeModel(*work) as model:
        with running(lambda: bench.run(model)) as ended:
            until((bench.root / "made.txt").exists)
            model.rewrite(*work, fault=Fault.rate_limited(retry_after_s=1, times=1))
            (bench.root / "go.txt").touch()
            outcome = ended()
        assert outcome.status is ExecutorStatus.LIMIT_HIT, outcome
        assert outcome.limit is not None
        assert outcome.limit.kind == LimitKind.RATE_LIMITED
        assert outcome.limit.retry_after is not None
        assert outcome.limit.retry_after.total_seconds() == 1
        assert outcome.error_kind is ErrorKind.RATE
        assert model.calls == 2
        assert outcome.resume is not None
        assert outcome.resume.session_id
        again = bench.run(model, key="run/1/2", resume=outcome.resume)
        assert again.status is ExecutorStatus.COMPLETED, again.error
        resumed = conversation(model, 2)
    assert "You were stopped in the middle of this work" in resumed
    assert command in resumed, "the first conversation is missing"


def test_a_long_limit_ends_the_delivery_at_once_with_the_time_of_the_provider(bench: Bench) -> None:
    with FakeModel(say("never"), fault=Fault.rate_limited(retry_after_s=3600)) as model:
        outcome = bench.run(model)
    assert outcome.status is ExecutorStatus.LIMIT_HIT
    assert outcome.limit is not None
    assert outcome.limit.retry_after is not None
    assert 3480 <= outcome.limit.retry_after.total_seconds() <= 3600


def test_a_used_up_window_tells_when_it_comes_back(bench: Bench) -> None:
    with FakeModel(say("never"), fault=Fault.usage_limit(resets_in_s=5000)) as model:
        outcome = bench.run(model)
        alone = bench.run(model, gateway=False, key="run/1/2")
    for found in (outcome, alone):
        assert found.status is ExecutorStatus.LIMIT_HIT
        assert found.error_kind is ErrorKind.USAGE_WINDOW
        assert found.limit is not None
        assert found.limit.kind == LimitKind.USAGE_EXHAUSTED
        assert found.limit.retry_after is not None
        # Without the gateway there is only the text, which names the minute.
        assert abs(found.limit.retry_after.total_seconds() - 5000) < 180


def test_a_refused_key_is_fatal_and_needs_a_person(bench: Bench) -> None:
    with FakeModel(say("never"), fault=Fault.unauthorized()) as model:
        outcome = bench.run(model)
    assert outcome.status is ExecutorStatus.FATAL
    assert outcome.error_kind is ErrorKind.AUTH
    assert "key or login" in outcome.error
    assert KEY not in outcome.error


@pytest.mark.parametrize("fault", [Fault.server_error(), Fault.cut_stream(), Fault.bad_request()])
def test_trouble_at_the_provider_is_never_a_success(bench: Bench, fault: Fault) -> None:
    with FakeModel(say("never"), fault=fault) as model:
        outcome = bench.run(model)
    assert outcome.status in (ExecutorStatus.LIMIT_HIT, ExecutorStatus.FAILED), outcome
    assert outcome.error
    assert outcome.resume is not None


@pytest.mark.parametrize("gateway", [True, False])
def test_a_provider_that_cannot_be_reached_fails_the_delivery_soon(bench: Bench, gateway: bool) -> None:
    with FakeModel(say("never")) as model:
        executor = bench.executor(model, gateway=gateway)
    begun = time.monotonic()
    outcome = executor.execute(bench.order(), Supervision(), bench.state)
    assert outcome.status in (ExecutorStatus.LIMIT_HIT, ExecutorStatus.FAILED), outcome
    assert outcome.error_kind in (ErrorKind.OFFLINE, ErrorKind.OVERLOADED), outcome
    assert time.monotonic() - begun < 100


@pytest.mark.parametrize("mode", ["workspace", "full"])
def test_a_cancelled_delivery_leaves_no_process_and_no_late_edit(bench: Bench, mode: str) -> None:
    control = Waiting()
    length = f"300.{uuid4().int % 10**9:09}"
    with FakeModel(shell(f"touch begun.txt; sleep {length}; echo late > late.txt"), say("done")) as model:
        with running(lambda: bench.run(model, control, mode=mode)) as outcome:
            until((bench.root / "begun.txt").exists)
            control.stop.set()
            found = outcome()
        assert found.status is ExecutorStatus.CANCELLED
        assert found.resume is not None
        assert living(control) == []
        assert not any(length in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    assert bench.left() == {"begun.txt"}


def test_a_killed_codex_is_resumed_by_the_next_delivery(bench: Bench) -> None:
    control = Supervision()
    with FakeModel(shell("touch begun.txt; sleep 300"), say("done")) as model:
        with running(lambda: bench.run(model, control)) as outcome:
            until((bench.root / "begun.txt").exists)
            until(lambda: "sleep 300" in bench.threads())
            os.kill(control.pids[0], signal.SIGKILL)
            found = outcome()
        assert (found.status, found.error_kind) == (ExecutorStatus.FAILED, ErrorKind.CRASHED)
        assert living(control) == []
        token = _latest(control.told)
        assert token is not None
        assert found.resume == token
        assert bench.executor(model).reconcile(bench.order(), bench.state) is None
        model.rewrite(shell("echo hi > made.txt"), say("done"))
        again = bench.run(model, key="run/1/2", resume=token)
        assert again.status is ExecutorStatus.COMPLETED, again.error
        assert "sleep 300" in conversation(model, 1)
        assert "You were stopped" in conversation(model, 1)
    assert bench.left() == {"begun.txt", "made.txt"}


def test_a_killed_worker_leaves_no_codex_and_the_next_one_goes_on_with_its_thread(bench: Bench, tmp_path: Path) -> None:
    with FakeModel(shell("touch begun.txt; sleep 300; echo late > late.txt"), say("done")) as model:
        with worker(bench, model, tmp_path) as (process, told):
            until((bench.root / "begun.txt").exists)
            until(lambda: "sleep 300" in bench.threads())
            process.kill()
            process.wait(30)
        progress = [Progress.model_validate_json(line) for line in told.read_text().splitlines()]
        group = progress[0].pid
        assert group is not None
        until(lambda: not in_session(group))
        token = _latest(progress)
        assert token is not None
        assert bench.executor(model).reconcile(bench.order(), bench.state) is None
        model.rewrite(shell("echo hi > made.txt"), say("done"))
        again = bench.run(model, resume=token)
        assert again.status is ExecutorStatus.COMPLETED, again.error
        assert "sleep 300" in conversation(model, 1)
    # Nobody was left to remove the empty folders of its sandbox; git does not see them.
    assert bench.left() - set(PLACEHOLDERS) == {"begun.txt", "made.txt"}


WORKER = """
import sys
from pathlib import Path
from tests.support.fake_model import FakeModel
from tests.support.orders import Supervision
from tests.integration.executor.test_codex import Bench
from tightloop.executor.model import WorkOrder

class Address:
    def base_url(self, wire): return sys.argv[1]

class Telling(Supervision):
    def progress(self, progress):
        with open(sys.argv[5], "a") as file:
            file.write(progress.model_dump_json() + "\\n")

bench = Bench(*map(Path, sys.argv[2:5]))
bench.executor(Address()).execute(bench.order(), Telling(), bench.state)
"""


@contextlib.contextmanager
def worker(bench: Bench, model: FakeModel, folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """Run the delivery in a process of its own; yields it and the file with what it told."""
    told = folder / "told.jsonl"
    paths = (bench.root, bench.state, bench.homes, told)
    agents = str(agent_program("codex"))
    argv = (sys.executable, "-c", WORKER, model.base_url(Wire.RESPONSES), *map(str, paths))
    # Only here: the fixture of all tests hides variables of ours from the others.
    environment = {**os.environ, "TIGHTLOOP_TEST_CODEX": agents}
    process = subprocess.Popen(argv, cwd=Path(__file__).parents[3], env=environment)
    try:
        yield process, told
    finally:
        process.kill()
        process.wait(30)


def in_session(leader: int) -> list[int]:
    """Return the processes of a session that live."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and os.getsid(process.pid) == leader:
                found.append(process.pid)
    return found


def _latest(told: list[Progress]) -> ResumeToken | None:
    return next((progress.resume for progress in reversed(told) if progress.resume), None)


def test_what_a_dead_worker_had_written_down_tells_how_the_delivery_ended(bench: Bench) -> None:
    with FakeModel(shell("echo hi > made.txt"), say("I made it.")) as model:
        bench.run(model)
        known = bench.executor(model).reconcile(bench.order(), bench.state)
        other = bench.executor(model).reconcile(bench.order(key="run/2/1"), bench.state)
    assert known is not None
    assert known.status is ExecutorStatus.COMPLETED
    assert known.summary == "I made it."
    assert other is None


def test_a_session_that_is_not_there_is_begun_anew(bench: Bench) -> None:
    gone = ResumeToken(adapter="codex", session_id="01a1fc25-b446-7542-b1db-ff8232eaed57", host=host_identity().name)
    elsewhere = gone.evolve(host="another")
    with FakeModel(say("done")) as model:
        outcome = bench.run(model, resume=gone)
        moved = bench.run(model, key="run/1/2", resume=elsewhere)
        assert "You were stopped" not in conversation(model, 0) + conversation(model, 1)
    assert outcome.status is ExecutorStatus.COMPLETED
    assert "started a new one" in outcome.summary
    assert moved.status is ExecutorStatus.COMPLETED
    assert "on another, so the agent started a new one" in moved.summary


@pytest.mark.parametrize("gateway", [True, False])
def test_silence_ends_at_the_idle_limit(bench: Bench, gateway: bool) -> None:
    with FakeModel(say("never"), fault=Fault.hang()) as model:
        outcome = bench.run(model, gateway=gateway, idle_limit_s=8.0, wall_limit_s=60.0)
    assert outcome.status is ExecutorStatus.TIMED_OUT
    assert outcome.error_kind is ErrorKind.TIMEOUT
    assert "stopped after 8 s without any sign of activity" in outcome.error
    assert outcome.resume is not None


def test_an_agent_that_runs_in_circles_is_ended(bench: Bench) -> None:
    with FakeModel(fault=Fault.endless_tools("echo again >> circle.txt")) as model:
        outcome = bench.run(model, max_events=20)
    assert outcome.status is ExecutorStatus.FAILED
    assert outcome.error_kind is ErrorKind.BUDGET
    assert "after 20 events" in outcome.error


def test_the_bound_of_model_calls_is_kept(bench: Bench) -> None:
    with FakeModel(fault=Fault.endless_tools("echo again >> circle.txt")) as model:
        outcome = bench.run(model, max_model_calls=4)
        assert model.calls == 4
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FAILED, ErrorKind.BUDGET)
    assert "all of its 4 model calls" in outcome.error
    assert outcome.usage is not None
    assert outcome.usage.input_tokens == 4000


def test_a_long_prompt_reaches_the_model_whole(bench: Bench) -> None:
    text = "".join(f"line {number} of a long plan\n" for number in range(12_000))
    asked = bench.order().evolve(prompt=text)
    with FakeModel(say("done")) as model:
        outcome = bench.executor(model).execute(asked, Supervision(), bench.state)
        sent = model.requests[0].body["input"][-1]["content"][0]["text"]
    assert outcome.status is ExecutorStatus.COMPLETED
    assert len(text) > 300_000
    assert sent.strip() == text.strip()


def test_what_codex_cannot_do_is_refused_before_it_starts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeModel(say("never")) as model:
        executor = bench.executor(model)
        asking = bench.order(permissions=Verdict.ASK)
        with pytest.raises(ExecutorError, match="cannot ask a person"):
            executor.execute(asking, Supervision(), bench.state)
        with pytest.raises(ExecutorError, match="the executor codex has no option 'speed'"):
            executor.execute(bench.order(options={"speed": 3}), Supervision(), bench.state)
        monkeypatch.delenv("OPENAI_API_KEY")
        assert "does not set OPENAI_API_KEY" in executor.availability().reason
        with pytest.raises(ExecutorError, match=r"executor\.agents\.codex\.login"):
            executor.execute(bench.order(), Supervision(), bench.state)
        assert model.calls == 0
    missing = CodexAdapter(AgentSettings(program="no-such-codex")).availability()
    assert not missing.usable
    assert "npm install -g @openai/codex" in missing.reason
