"""What every agent gets from its executor: a home, a fence, bounds, and an outcome that is not its own."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from activities.executor.agent.acp.agents import AcpAgent
from activities.executor.agent.cli import AgentExecutor
from activities.executor.agent.host import AgentHost
from activities.executor.agent.program import agent_home, copy_login, sweep_homes, write_files
from activities.executor.agent.record import EVENTS_FILE, RECORD_BYTES, RUNS_AT_MOST, run_folder, sweep_runs
from activities.model.gateway.server import serve_gateway
from activities.model.gateway.wire import Wire
from activities.sandbox.bubblewrap import BubblewrapAgentSandbox, BubblewrapSandbox
from activities.sandbox.port import AgentSandbox
from tests.support.agents.sample import SampleAdapter
from tests.support.orders import Supervision, order
from tightloop.errors import ExecutorError
from tightloop.executor.model import ErrorKind, ExecutorChoice, ExecutorOutcome, ExecutorStatus, ResumeToken, WorkOrder
from tightloop.host import state_folder
from tightloop.host.identity import host_identity
from tightloop.settings import AgentSettings

SECRET = 's3cr3t-"quoted"-0123456789'

Run = Callable[..., ExecutorOutcome]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def run(root: Path, tmp_path: Path) -> Run:
    """Let the sample agent run this code."""

    def work(
        code: str,
        *,
        adapter: SampleAdapter | None = None,
        control: Supervision | None = None,
        fence: AgentSandbox | None = None,
        settings: AgentSettings | None = None,
        **choice: object,
    ) -> ExecutorOutcome:
        executor = AgentExecutor(
            adapter or SampleAdapter(),
            settings=settings or AgentSettings(),
            homes=tmp_path / "homes",
            agent_sandbox=fence,
            grace_s=1.0,
        )
        made = asked(root, code, **choice)
        return executor.execute(made, control or Supervision(), state_folder(root))

    return work


def asked(root: Path, code: str, *, resume: ResumeToken | None = None, **choice: object) -> WorkOrder:
    fields = {"name": "sample", "wall_limit_s": 30.0, "idle_limit_s": 20.0, **choice}
    change = {"prompt": code, "executor": ExecutorChoice.model_validate(fields), "resume": resume}
    return order(root).evolve(**change)


def events_of(root: Path) -> Path:
    return run_folder(state_folder(root), "run/1/1") / EVENTS_FILE


def test_an_agent_without_a_sandbox_is_not_started_where_there_is_no_fence(run: Run, root: Path) -> None:
    adapter = SampleAdapter(own_sandbox=False)
    outcome = run("open('made.txt', 'w'); tell('done')", adapter=adapter)
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FATAL, ErrorKind.SANDBOX)
    assert "neither this worker nor " in outcome.error
    assert not (root / "made.txt").exists()
    free = run("open('made.txt', 'w'); tell('done')", adapter=adapter, mode="full")
    assert free.status is ExecutorStatus.COMPLETED
    assert free.versions == {"sample": "1.0", "fence": "none"}


@pytest.mark.parametrize("mode", ["workspace", "read_only"])
def test_the_fence_lets_an_agent_write_where_its_mode_says(run: Run, root: Path, tmp_path: Path, mode: str) -> None:
    if problem := BubblewrapSandbox().probe():
        pytest.skip(problem)
    code = f"""
for name in ({str(tmp_path / "outside.txt")!r}, "inside.txt", os.environ["HOME"] + "/mine.txt"):
    try: open(name, "w").write("x"); tell("wrote", name=name)
    except OSError as error: tell("could not", name=name)
tell("done")
"""
    outcome = run(code, adapter=SampleAdapter(own_sandbox=False), fence=BubblewrapAgentSandbox(), mode=mode)
    assert outcome.status is ExecutorStatus.COMPLETED, outcome
    assert outcome.versions["fence"] == "bubblewrap"
    assert not (tmp_path / "outside.txt").exists()
    assert (root / "inside.txt").exists() is (mode == "workspace")
    assert list((tmp_path / "homes").rglob("mine.txt"))


def test_an_agent_sees_what_it_is_given_and_no_secret_is_kept(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "of-the-worker-4711")
    monkeypatch.setenv("PROJECT_TOKEN", "of-the-project-4712")
    code = """
tell("env", names=sorted(os.environ), home=os.environ["HOME"])
secret, other = os.environ["MODEL_KEY"], os.environ["PROJECT_TOKEN"]
line = json.dumps({"type": "said", "secret": secret, "other": other})
sys.stdout.write(line[:30]); sys.stdout.flush(); time.sleep(0.2)
print(line[30:], flush=True)
print("plain", secret, flush=True)
sys.stderr.write("error with " + secret + other); sys.stderr.flush()
tell("failed", text="it failed with " + secret)
sys.exit(3)
"""
    outcome = run(
        code,
        adapter=SampleAdapter(secrets={"MODEL_KEY": SECRET}),
        settings=AgentSettings(environment=("PROJECT_TOKEN",)),
    )
    assert outcome.status is ExecutorStatus.FAILED
    assert outcome.error == "it failed with [secret]"
    assert b'"MODEL_KEY"' in outcome.transcript
    assert b"PROJECT_TOKEN" in outcome.transcript
    assert b"SOME_API_KEY" not in outcome.transcript
    assert b"[standard error]" in outcome.transcript
    kept = outcome.transcript + outcome.model_dump_json().encode() + events_of(root).read_bytes()
    for part in (b"s3cr3t", b"of-the-worker", b"of-the-project"):
        assert part not in kept
    assert kept.count(b"[secret]") >= 6


def test_a_report_names_the_model_that_worked(run: Run) -> None:
    assert run("tell('done')", model="large-2").model == "large-2"


def test_an_exit_code_of_zero_is_no_success(run: Run) -> None:
    outcome = run("tell('session', id='s1'); tell('work')")
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FAILED, ErrorKind.PROTOCOL)
    assert outcome.resume == ResumeToken(adapter="sample", session_id="s1", host=host_identity().name, version="1.0")


def test_an_agent_that_is_done_but_does_not_go_is_sent_away(run: Run) -> None:
    begun = time.monotonic()
    outcome = run("tell('done', text='all of it'); time.sleep(100)", wall_limit_s=100.0, idle_limit_s=90.0)
    assert outcome.status is ExecutorStatus.COMPLETED
    assert outcome.summary == "all of it"
    assert time.monotonic() - begun < 80


def test_silence_and_time_are_bounded_and_the_session_is_kept(run: Run) -> None:
    silent = run("tell('session', id='s1'); time.sleep(60)", idle_limit_s=2.5)
    assert (silent.status, silent.error_kind) == (ExecutorStatus.TIMED_OUT, ErrorKind.TIMEOUT)
    assert "stopped after 2.5 s without any sign of activity" in silent.error
    busy = run("while True: tell('work'); time.sleep(0.05)", wall_limit_s=4.0, idle_limit_s=3.0)
    assert (busy.status, busy.error_kind) == (ExecutorStatus.TIMED_OUT, ErrorKind.TIMEOUT)
    assert "after 4 s" in busy.error
    assert silent.resume is not None
    assert busy.resume is None


class OnceKnown(Supervision):
    """Cancels as soon as the session is known, which an agent tells when it is ready."""

    def is_cancelled(self) -> bool:
        return any(progress.resume is not None for progress in self.told)


def test_what_an_agent_says_after_a_cancel_does_not_count(run: Run) -> None:
    code = """
import signal
def end(*_): tell("done", text="I made it"); sys.exit(0)
signal.signal(signal.SIGINT, end); signal.signal(signal.SIGTERM, end)
tell("session", id="s1"); time.sleep(60)
"""
    outcome = run(code, control=OnceKnown())
    assert outcome.status is ExecutorStatus.CANCELLED
    assert outcome.resume is not None
    assert b"I made it" in outcome.transcript


@pytest.mark.parametrize("bound", ["cancel", "wall", "idle"])
def test_a_success_that_an_agent_tells_when_sent_away_is_believed_neither_now_nor_by_the_next_attempt(
    run: Run, root: Path, tmp_path: Path, bound: str
) -> None:
    code = """
import signal
def end(*_): tell("done", text="all went well"); sys.exit(0)
signal.signal(signal.SIGINT, end); signal.signal(signal.SIGTERM, end)
tell("session", id="s1"); time.sleep(60)
"""
    control = OnceKnown() if bound == "cancel" else Supervision()
    limits = {"wall": {"wall_limit_s": 4.0}, "idle": {"idle_limit_s": 3.0}}.get(bound, {})
    outcome = run(code, control=control, **limits)
    assert outcome.status is (ExecutorStatus.CANCELLED if bound == "cancel" else ExecutorStatus.TIMED_OUT)
    assert b"all went well" in outcome.transcript
    assert b'"s1"' in events_of(root).read_bytes()
    executor = AgentExecutor(SampleAdapter(), settings=AgentSettings(), homes=tmp_path / "homes")
    assert executor.reconcile(asked(root, code), state_folder(root)) is None


@pytest.mark.parametrize("size", [16_000, 64_000])
def test_a_secret_is_not_kept_where_standard_error_is_cut_in_its_middle(run: Run, size: int) -> None:
    code = f"""
sys.stderr.write(os.environ["MODEL_KEY"] + "x" * {size - 12}); sys.stderr.flush()
tell("failed", text="it failed")
"""
    outcome = run(code, adapter=SampleAdapter(secrets={"MODEL_KEY": "sk-first-half-0123456789-rest"}))
    assert b"xxx" in outcome.transcript
    assert b"789-rest" not in outcome.transcript


def test_a_flood_of_events_is_told_seldom_and_ended_at_its_bound(run: Run) -> None:
    control = Supervision()
    outcome = run("for n in range(3000): tell('work', n=n)\ntell('done')", control=control)
    assert outcome.status is ExecutorStatus.COMPLETED
    assert control.told[-1].events == 3001
    assert len(control.told) < 30
    circles = run("while True: tell('work'); time.sleep(0.001)", max_events=200)
    assert (circles.status, circles.error_kind) == (ExecutorStatus.FAILED, ErrorKind.BUDGET)
    assert "after 200 events" in circles.error


def test_the_record_is_bounded_and_still_tells_how_the_run_ended(run: Run, root: Path, tmp_path: Path) -> None:
    code = """
for n in range(4): tell("work", text="x" * 8_000_000)
tell("work", text="y" * 12_000_000)
tell("done", text="yes")
"""
    outcome = run(code)
    assert outcome.status is ExecutorStatus.COMPLETED
    assert len(outcome.transcript) < 1_100_000
    size = events_of(root).stat().st_size
    assert 16_000_000 < size <= RECORD_BYTES + 1000
    executor = AgentExecutor(SampleAdapter(), settings=AgentSettings(), homes=tmp_path / "homes")
    known = executor.reconcile(asked(root, code), state_folder(root))
    assert known is not None
    assert (known.status, known.summary) == (ExecutorStatus.COMPLETED, "yes")


def test_records_of_long_ago_are_removed(run: Run, root: Path) -> None:
    run("tell('done')")
    assert events_of(root).exists()
    then = time.time() - 8 * 86_400
    os.utime(events_of(root).parent, (then, then))
    assert sweep_runs(state_folder(root)) == 1
    assert not events_of(root).exists()


def test_of_too_many_records_the_oldest_are_removed_but_none_that_may_be_at_work(root: Path) -> None:
    now = time.time()
    for number in range(RUNS_AT_MOST + 20):
        folder = run_folder(state_folder(root), f"run/{number}/1")
        folder.mkdir(parents=True)
        age = timedelta(hours=1) if number < 5 else timedelta(days=2, seconds=number)
        os.utime(folder, (now, now - age.total_seconds()))
    assert sweep_runs(state_folder(root)) == 20
    left = [number for number in range(RUNS_AT_MOST + 20) if run_folder(state_folder(root), f"run/{number}/1").exists()]
    assert left == list(range(RUNS_AT_MOST))


def test_an_attempt_that_died_in_the_middle_tells_nothing(run: Run, root: Path, tmp_path: Path) -> None:
    run("tell('session', id='s1'); os.kill(os.getpid(), 9)")
    executor = AgentExecutor(SampleAdapter(), settings=AgentSettings(), homes=tmp_path / "homes")
    assert executor.reconcile(asked(root, ""), state_folder(root)) is None


def test_a_session_of_another_host_is_not_asked_for(run: Run) -> None:
    token = ResumeToken(adapter="sample", session_id="s1", host="elsewhere")
    outcome = run("tell('done', text='fresh')", resume=token)
    assert outcome.summary == "[the session belongs to sample on elsewhere, so the agent started a new one] fresh"


def test_a_program_that_is_not_there_is_fatal(root: Path, tmp_path: Path) -> None:
    class Lost(SampleAdapter):
        def launch(self, *arguments: object) -> object:  # type: ignore[override]
            made = super().launch(*arguments)  # type: ignore[arg-type]
            return type(made)(argv=("no-such-agent",), own_sandbox=True)

    executor = AgentExecutor(Lost(), settings=AgentSettings(), homes=tmp_path / "homes")
    outcome = executor.execute(asked(root, ""), Supervision(), state_folder(root))
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FATAL, ErrorKind.MISSING_PROGRAM)
    assert "no-such-agent" in outcome.error


def test_a_bound_of_model_calls_that_nobody_keeps_is_refused(run: Run) -> None:
    with pytest.raises(ExecutorError, match="max_model_calls is 3, but only the model gateway can enforce this limit"):
        run("tell('done')", max_model_calls=3)


# Homes


def test_a_home_is_the_same_for_an_episode_and_nobody_else_may_look(tmp_path: Path) -> None:
    home = agent_home(tmp_path / "homes", "episode/../1", "codex")
    assert home == agent_home(tmp_path / "homes", "episode/../1", "codex")
    assert home != agent_home(tmp_path / "homes", "episode-2", "codex")
    assert home.parent.parent == tmp_path / "homes"
    assert [folder.stat().st_mode & 0o777 for folder in (home, home.parent, home.parent.parent)] == [0o700] * 3


def test_settings_never_leave_the_home_even_by_a_link_of_the_agents(tmp_path: Path) -> None:
    home = agent_home(tmp_path / "homes", "e", "codex")
    (tmp_path / "victim").mkdir()
    (home / "link").symlink_to(tmp_path / "victim")
    (home / "config.toml").symlink_to(tmp_path / "victim" / "file")
    for name in ("../x", "/tmp/x", "link/x"):
        with pytest.raises(ExecutorError, match="points outside the agent's home"):
            write_files(home, {name: "x"})
    write_files(home, {"config.toml": "ours", "a/b/c.json": "{}"})
    assert list((tmp_path / "victim").iterdir()) == []
    assert (home / "config.toml").read_text() == "ours"
    assert (home / "a/b/c.json").stat().st_mode & 0o777 == 0o600


def test_a_login_is_copied_until_the_agent_renews_it(tmp_path: Path) -> None:
    source, target = tmp_path / "auth.json", tmp_path / "home" / ".codex" / "auth.json"
    with pytest.raises(ExecutorError, match=r"the login file .* is missing"):
        copy_login(source, target)
    source.write_text("first")
    copy_login(source, target)
    assert target.read_text() == "first"
    assert target.stat().st_mode & 0o777 == 0o600
    target.write_text("renewed")
    copy_login(source, target)
    assert target.read_text() == "renewed"
    source.write_text("again")
    later = time.time() + 10
    os.utime(source, (later, later))
    copy_login(source, target)
    assert target.read_text() == "again"


def test_homes_of_long_ago_are_swept(tmp_path: Path) -> None:
    homes = tmp_path / "homes"
    old, young = agent_home(homes, "old", "codex"), agent_home(homes, "young", "codex")
    (old / "session").write_text("x")
    then = time.time() - 40 * 86_400
    os.utime(old.parent, (then, then))
    assert sweep_homes(homes, timedelta(days=30)) == 1
    assert not old.exists()
    assert young.exists()
    assert sweep_homes(tmp_path / "none", timedelta(days=30)) == 0


# Access


def test_the_way_to_the_model_is_chosen_by_key_login_and_service(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    def way(**settings: object) -> tuple[str, str, bool]:
        chosen = AgentSettings.model_validate(settings)
        host = AgentHost(settings=chosen, homes=root.parent / "homes", gateways=serve_gateway)
        with host.open_access(agent, asked(root, "")) as (told, gateway):
            return told.base_url, told.key, gateway is not None

    usual = "https://provider.example/v1"
    agent = AcpAgent(name="sample", wire=Wire.RESPONSES, default_base_url=usual, default_key_env="SAMPLE_KEY")
    monkeypatch.delenv("SAMPLE_KEY", raising=False)
    with pytest.raises(ExecutorError, match=r"does not set SAMPLE_KEY.* executor\.agents\.sample\.login"):
        way()
    with pytest.raises(ExecutorError, match="does not set OTHER_KEY"):
        way(base_url="http://127.0.0.1:9/v1", api_key_env="OTHER_KEY")
    assert way(login=True) == ("", "", False)
    monkeypatch.setenv("SAMPLE_KEY", "the-real-key")
    assert way(gateway=False) == ("https://provider.example/v1", "the-real-key", False)
    assert way(login=True) == ("", "", False)
    address, token, gateway = way()
    assert gateway
    assert address.startswith("http://127.0.0.1:")
    assert address.endswith("/v1")
    assert "the-real-key" not in token
