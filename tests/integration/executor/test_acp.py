"""The executor for agents that speak the Agent Client Protocol, with an agent of our own that misbehaves."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from activities.executor.agent.acp.agents import AGENTS, AcpAgent
from activities.executor.agent.acp.executor import AcpExecutor
from activities.executor.agent.record import RunRecord
from tests.support.orders import Supervision, order
from tightloop.errors import ExecutorError
from tightloop.executor.asking import permission_question
from tightloop.executor.model import (
    AgentMode,
    ErrorKind,
    EventKind,
    ExecutorOutcome,
    ExecutorStatus,
    Grant,
    ResumeToken,
    WorkOrder,
)
from tightloop.host.identity import host_identity
from tightloop.run.question import QuestionKind
from tightloop.safety.rubric import Verdict
from tightloop.settings import AgentSettings

AGENT = Path(__file__).parents[2] / "support" / "agents" / "acp_fake_agent.py"
REPOSITORY = Path(__file__).resolve().parents[3]
SECRET = "sk-of-the-worker-0123456789"


class Desk:
    """A working tree, and an executor that can be asked again and again."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.root.mkdir()
        (self.root / "app.py").write_text("print('hello')\n")
        self.state = folder / "state"
        self.homes = folder / "homes"
        self.agent: AcpAgent = AGENTS["acp"]
        self.settings = AgentSettings()
        self.grace_s = 0.5

    def executor(self) -> AcpExecutor:
        return AcpExecutor(self.agent, settings=self.settings, homes=self.homes, grace_s=self.grace_s)

    def order(
        self, behaviour: str, sessions: str = "resume", *, resume: ResumeToken | None = None, **choice: Any
    ) -> WorkOrder:
        options = {"argv": [sys.executable, str(AGENT), behaviour, sessions]}
        made = order(
            self.root, options=options, **{"mode": AgentMode.FULL, "name": "acp", "wall_limit_s": 60, **choice}
        )
        return made.evolve(resume=resume)

    def run(self, behaviour: str, sessions: str = "resume", **choice: Any) -> ExecutorOutcome:
        return self.deliver(self.order(behaviour, sessions, **choice))

    def deliver(self, work: WorkOrder, control: Supervision | None = None) -> ExecutorOutcome:
        return self.executor().execute(work, control or Supervision(), self.state)

    def events(self) -> list[dict[str, Any]]:
        (file,) = self.state.glob("runs/*/events.jsonl")
        return [json.loads(line) for line in file.read_text().splitlines()]

    def session(self, session_id: str) -> list[str]:
        """What the agent remembers of a session."""
        (file,) = self.homes.glob(f"*/*/{session_id}.log")
        return file.read_text().split("\n")[1:-1]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


class UntilFile(Supervision):
    """Cancels once a file is there."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def is_cancelled(self) -> bool:
        super().is_cancelled()
        return self.file.exists()


def descendants() -> set[str]:
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found.add(" ".join(process.cmdline()))
    return found


def stays_away(root: Path) -> bool:
    """Whether nobody is left who edits the tree as soon as a file allows it; one who is has a second for it."""
    (root / "go.txt").touch()
    time.sleep(1)
    return not (root / "late.txt").exists()


def token(session_id: str, host: str | None = None) -> ResumeToken:
    return ResumeToken(adapter="acp", session_id=session_id, host=host_identity().name if host is None else host)


def test_an_agent_works_and_is_understood(desk: Desk) -> None:
    control = Supervision()
    outcome = desk.deliver(desk.order("works"), control)
    assert (outcome.status, outcome.summary, outcome.error) == (ExecutorStatus.COMPLETED, "made with allow_once", "")
    assert (desk.root / "made.txt").read_text() == "made\n"
    assert outcome.versions == {"acp": "4.5.6", "fence": "none"}
    assert outcome.usage is not None
    assert (outcome.usage.input_tokens, outcome.usage.cached_tokens, outcome.usage.output_tokens) == (16, 4, 3)
    kinds = [event["kind"] for event in desk.events()]
    assert kinds == ["started", "session", "permission", "tool_start", "tool_end", "message"]
    assert desk.events()[4]["text"] == "echo made > made.txt; env > env.txt"
    assert control.pids
    assert control.told[0].last is EventKind.SESSION
    assert control.told[0].resume == token(desk.events()[1]["session_id"]).evolve(version="4.5.6")
    assert b"the plan: ordentlich aufr" in outcome.transcript


def test_the_agent_sees_its_home_and_nothing_of_the_worker(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    monkeypatch.setenv("DATABASE_URL", "postgres://u:p@h/d")
    assert desk.run("works").status is ExecutorStatus.COMPLETED
    seen = dict(line.partition("=")[::2] for line in (desk.root / "env.txt").read_text().splitlines())
    assert desk.homes in Path(seen["HOME"]).parents
    assert not {"ANTHROPIC_API_KEY", "DATABASE_URL"} & seen.keys()


def test_a_key_that_the_settings_pass_on_is_in_no_record(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_AGENT_KEY", SECRET)
    desk.settings = AgentSettings(environment=("FAKE_AGENT_KEY",))
    outcome = desk.run("tells_its_key")
    assert outcome.summary == "my key is [secret]"
    kept = [path.read_bytes() for path in desk.state.rglob("*") if path.is_file()]
    assert not [data for data in (*kept, outcome.model_dump_json().encode()) if SECRET.encode() in data]
    assert b"debug: key [secret]" in outcome.transcript


def test_what_is_denied_is_told_and_listed(desk: Desk) -> None:
    outcome = desk.run("works", permissions=Verdict.DENY)
    assert (outcome.status, outcome.denied) == (ExecutorStatus.REFUSED, ("echo made > made.txt",))
    assert outcome.error == "the agent did nothing because these actions were denied: echo made > made.txt"
    assert outcome.summary == "it was reject_once"
    assert not (desk.root / "made.txt").exists()


def test_an_agent_that_goes_on_after_a_denial_has_completed(desk: Desk) -> None:
    outcome = desk.run("asks_twice", permissions=Verdict.DENY)
    assert (outcome.status, outcome.denied) == (ExecutorStatus.COMPLETED, ("rm -rf build",))
    assert outcome.summary == "reject_once, allow_once"  # reading is always allowed


@pytest.mark.parametrize("sessions", ["resume", "load"])
def test_a_person_is_asked_and_the_session_goes_on_with_the_answer(desk: Desk, sessions: str) -> None:
    first = desk.run("works", sessions, permissions=Verdict.ASK)
    assert first.status is ExecutorStatus.NEEDS_PERSON
    assert first.question is not None
    assert (first.question.kind, first.question.title) == (QuestionKind.PERMISSION, "echo made > made.txt")
    assert "named by the agent: Run echo made > made.txt" in first.question.evidence
    assert first.resume is not None
    assert not (desk.root / "made.txt").exists()

    grant = Grant(fingerprint=first.question.fingerprint, allowed=True)
    again = desk.order("works", sessions, resume=first.resume, permissions=Verdict.ASK)
    second = desk.deliver(again.evolve(grants=(grant,), key="run/1/2"))
    assert (second.status, second.summary) == (ExecutorStatus.COMPLETED, "made with allow_once")
    assert (desk.root / "made.txt").exists()
    remembered = "\n".join(desk.session(first.resume.session_id))
    assert f"{'loaded' if sessions == 'load' else 'resumed'}\nprompt You were stopped" in remembered
    assert remembered.endswith("the plan: ordentlich aufräumen")


def test_a_person_who_says_no_is_obeyed(desk: Desk) -> None:
    first = desk.run("works", permissions=Verdict.ASK)
    assert first.question is not None
    grant = Grant(fingerprint=first.question.fingerprint, allowed=False)
    again = desk.order("works", resume=first.resume, permissions=Verdict.ASK)
    second = desk.deliver(again.evolve(grants=(grant,)))
    assert (second.status, second.denied) == (ExecutorStatus.REFUSED, ("echo made > made.txt",))


@pytest.mark.parametrize(
    ("sessions", "lost", "said"),
    [
        ("none", False, "cannot resume the earlier session, so a new session is started"),
        ("load_fails", False, "session/load failed: Internal error"),
        ("resume", True, "session/resume failed: Resource not found"),
    ],
)
def test_a_session_that_is_lost_is_begun_anew(desk: Desk, sessions: str, lost: bool, said: str) -> None:
    first = desk.run("works", sessions, permissions=Verdict.ASK)
    assert first.resume is not None
    old = first.resume.evolve(session_id="lost") if lost else first.resume
    second = desk.deliver(desk.order("works", sessions, resume=old))
    assert second.status is ExecutorStatus.COMPLETED
    assert said in second.summary


def test_the_session_of_another_host_is_not_asked_for(desk: Desk) -> None:
    first = desk.run("works", permissions=Verdict.ASK)
    assert first.resume is not None
    desk.deliver(desk.order("works", resume=first.resume.evolve(host="elsewhere")))
    assert "resumed" not in desk.session(first.resume.session_id)


def test_the_past_of_a_loaded_session_is_not_taken_for_work(desk: Desk) -> None:
    first = desk.run("works", "load", permissions=Verdict.ASK)
    outcome = desk.deliver(desk.order("reports_a_limit_as_text", "load", resume=first.resume))
    assert outcome.limit is not None  # with the old tool counted, the text would be read as the words of a model
    assert not [event for event in desk.events() if "past" in event.get("text", "")]


def test_a_turn_that_is_cancelled_ends_at_once(desk: Desk) -> None:
    desk.grace_s = 3.0
    begun = time.monotonic()
    outcome = desk.deliver(desk.order("is_cancelled"), UntilFile(desk.root / "begun.txt"))
    assert (outcome.status, outcome.error) == (ExecutorStatus.CANCELLED, "stopped on request")
    assert outcome.resume is not None
    assert b'"stopReason": "cancelled"' in outcome.transcript
    assert time.monotonic() - begun < 50


def test_an_agent_that_ignores_everything_is_gone_all_the_same(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.executor.agent.acp.client.CANCEL_S", 0.5)
    outcome = desk.deliver(desk.order("is_stubborn"), UntilFile(desk.root / "begun.txt"))
    assert outcome.status is ExecutorStatus.CANCELLED
    assert not [line for line in descendants() if "late.txt" in line or AGENT.name in line]
    assert stays_away(desk.root)


def test_silence_is_bounded(desk: Desk) -> None:
    idle = desk.run("is_silent", idle_limit_s=3.0)
    assert (idle.status, idle.error_kind) == (ExecutorStatus.TIMED_OUT, ErrorKind.TIMEOUT)
    assert "stopped after 3 s without any sign of activity" in idle.error
    assert idle.resume is not None
    wall = desk.run("is_silent", wall_limit_s=1.0)
    assert (wall.status, wall.error_kind) == (ExecutorStatus.TIMED_OUT, ErrorKind.TIMEOUT)
    assert "wall_limit_s" in wall.error
    mute = desk.run("never_answers", idle_limit_s=1.0)
    assert (mute.status, mute.resume) == (ExecutorStatus.TIMED_OUT, None)


def test_an_agent_that_computes_in_silence_is_alive(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.executor.agent.acp.client.LOOK_S", 0.4)
    outcome = desk.run("computes", idle_limit_s=4.0)
    assert (outcome.status, outcome.summary) == (ExecutorStatus.COMPLETED, "computed")


def test_running_in_circles_is_bounded(desk: Desk) -> None:
    outcome = desk.run("circles", max_events=100)
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FAILED, ErrorKind.BUDGET)
    assert "after 100 events" in outcome.error
    assert len(desk.events()) < 5_000


@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        ("crashes", "exited with 7 before it finished its work: Traceback: something broke"),
        ("exits", "exited with 1 before it finished its work: cannot find module 'missing'"),
        ("leaves_a_child", "exited with 3 before it finished its work (no output)"),
    ],
)
def test_a_crash_is_told_with_the_last_words(desk: Desk, behaviour: str, sentence: str) -> None:
    outcome = desk.run(behaviour)
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FAILED, ErrorKind.CRASHED)
    assert sentence in outcome.error
    assert not [line for line in descendants() if line == "sleep 60"]


def test_noise_and_messages_of_the_future_do_no_harm(desk: Desk) -> None:
    outcome = desk.run("babbles")
    assert outcome.status is ExecutorStatus.COMPLETED
    assert outcome.summary.endswith("x and well")
    assert [event["text"] for event in desk.events() if event["kind"] == "unknown"] == ["an_update_of_the_future"]
    assert b"! not json" in outcome.transcript
    assert b'"message":"Method not found"' in outcome.transcript  # it wanted to read /etc/passwd through us
    assert len(outcome.transcript) < 100_000


def test_a_line_that_is_too_long_is_no_message(desk: Desk) -> None:
    outcome = desk.run("floods")
    assert (outcome.status, outcome.summary) == (ExecutorStatus.COMPLETED, "after the flood")
    assert b"! yyyyyyy" in outcome.transcript


def test_a_limit_in_words_counts_only_where_nothing_was_done(desk: Desk) -> None:
    limited = desk.run("reports_a_limit_as_text")
    assert (limited.status, limited.error_kind) == (ExecutorStatus.LIMIT_HIT, ErrorKind.USAGE_WINDOW)
    assert limited.limit is not None
    assert limited.limit.retry_after == timedelta(hours=2, minutes=10)
    assert desk.run("quotes_a_limit").status is ExecutorStatus.COMPLETED
    desk.agent = replace(AGENTS["acp"], reads_text=False)
    assert desk.run("reports_a_limit_as_text").status is ExecutorStatus.COMPLETED


@pytest.mark.parametrize(
    ("behaviour", "status", "kind"),
    [
        ("reports_a_limit", ExecutorStatus.LIMIT_HIT, ErrorKind.RATE),
        ("crashes_at_a_limit", ExecutorStatus.LIMIT_HIT, ErrorKind.USAGE_WINDOW),
        ("has_a_wrong_key", ExecutorStatus.FATAL, ErrorKind.AUTH),
        ("wants_a_login", ExecutorStatus.FATAL, ErrorKind.AUTH),
        ("other_version", ExecutorStatus.FAILED, ErrorKind.PROTOCOL),
        ("refuses", ExecutorStatus.REFUSED, None),
        ("fills_its_context", ExecutorStatus.FAILED, ErrorKind.CONTEXT_FULL),
        ("uses_all_its_turns", ExecutorStatus.LIMIT_HIT, ErrorKind.BUDGET),
        ("stops_oddly", ExecutorStatus.FAILED, ErrorKind.PROTOCOL),
    ],
)
def test_every_ending_has_its_status(
    desk: Desk, behaviour: str, status: ExecutorStatus, kind: ErrorKind | None
) -> None:
    outcome = desk.run(behaviour)
    assert (outcome.status, outcome.error_kind) == (status, kind)
    assert outcome.error


def test_an_agent_is_signed_in_where_that_needs_nobody(desk: Desk) -> None:
    desk.agent = replace(AGENTS["acp"], sign_in=("by_key",), modes={AgentMode.FULL: "agent"})
    outcome = desk.run("signs_in")
    assert (outcome.status, outcome.summary) == (ExecutorStatus.COMPLETED, "signed in")
    session = next(event["session_id"] for event in desk.events() if event["kind"] == "session")
    assert desk.session(session)[0] == "mode https://example.org/modes#agent"


def test_without_a_fence_only_full_mode_runs(desk: Desk) -> None:
    outcome = desk.run("works", mode=AgentMode.WORKSPACE)
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FATAL, ErrorKind.SANDBOX)
    assert "neither this worker nor " in outcome.error
    assert not (desk.root / "made.txt").exists()


def test_what_a_dead_attempt_had_reached_is_known(desk: Desk) -> None:
    work = desk.order("works")
    assert desk.executor().reconcile(work, desk.state) is None
    outcome = desk.deliver(work)
    assert desk.executor().reconcile(work, desk.state) == outcome
    cancelled = desk.order("is_cancelled")
    desk.deliver(cancelled, UntilFile(desk.root / "begun.txt"))
    known = desk.executor().reconcile(cancelled, desk.state)
    assert known is not None
    assert (known.status, bool(known.resume)) == (ExecutorStatus.OUTCOME_UNKNOWN, True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"argv": "agent"}, "the options of the executor acp are not valid: argv: must be a list"),
        ({"arg": ["agent"]}, "the executor acp has no option 'arg'. Did you mean 'argv'"),
    ],
)
def test_wrong_options_are_refused(desk: Desk, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExecutorError, match=sentence):
        desk.deliver(order(desk.root, options=options))


def test_what_is_missing_is_named(desk: Desk) -> None:
    nothing = desk.deliver(order(desk.root))
    assert (nothing.status, nothing.error_kind) == (ExecutorStatus.FATAL, ErrorKind.MISSING_PROGRAM)
    assert "Set the option argv" in nothing.error
    assert desk.executor().availability().usable  # an order may name the program
    desk.agent = replace(AGENTS["opencode"], program="no-such-agent-here")
    availability = desk.executor().availability()
    assert not availability.usable
    assert "'no-such-agent-here' for the executor opencode was not found" in availability.reason
    with pytest.raises(ExecutorError, match=r"has no option .* It has no options"):
        desk.run("works")


def test_a_login_is_copied_into_the_home_of_the_agent(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    user = desk.root.parent / "user"
    (user / ".fake").mkdir(parents=True)
    (user / ".fake" / "login.json").write_text("{}")
    monkeypatch.setenv("HOME", str(user))
    desk.agent = replace(AGENTS["acp"], logins=(".fake/login.json",))
    desk.settings = AgentSettings(login=True)
    assert desk.run("works").status is ExecutorStatus.COMPLETED
    (copy,) = desk.homes.glob("*/acp/.fake/login.json")
    assert copy.stat().st_mode & 0o777 == 0o600


WORKER = """
import sys
from pathlib import Path
from activities.executor.agent.acp.executor import AcpExecutor
from activities.executor.agent.acp.agents import AGENTS
from tests.support.orders import Supervision
from tightloop.executor.model import WorkOrder
from tightloop.settings import AgentSettings

order = WorkOrder.model_validate_json(sys.stdin.read())
executor = AcpExecutor(AGENTS["acp"], settings=AgentSettings(), homes=Path(sys.argv[1]))
executor.execute(order, Supervision(), Path(sys.argv[2]))
"""


def test_nothing_of_the_agent_outlives_a_killed_worker(desk: Desk) -> None:
    work = desk.order("is_stubborn")
    arguments = [sys.executable, "-c", WORKER, str(desk.homes), str(desk.state)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, cwd=REPOSITORY) as worker:
        assert worker.stdin is not None
        worker.stdin.write(work.model_dump_json().encode())
        worker.stdin.close()
        assert_soon(lambda: (desk.root / "begun.txt").exists())
        tree = psutil.Process(worker.pid).children(recursive=True)
        worker.kill()
    assert [process for process in tree if process.pid != worker.pid]
    assert not psutil.wait_procs(tree, timeout=30)[1]
    found = desk.executor().reconcile(work, desk.state)
    assert found is not None
    assert (found.status, bool(found.resume)) == (ExecutorStatus.OUTCOME_UNKNOWN, True)
    assert [event["kind"] for event in desk.events()] == ["started", "session"]
    assert stays_away(desk.root)


def assert_soon(reached: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_no_descriptor_is_left_open(desk: Desk) -> None:
    def count() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    desk.run("works")
    before = count()
    for behaviour in ("works", "crashes", "is_silent"):
        desk.run(behaviour, idle_limit_s=0.5)
    # The client of the session's server may have a connection more for a moment.
    assert_soon(lambda: count() <= before)


def test_what_a_person_is_asked_holds_no_secret_of_the_agent(tmp_path: Path) -> None:
    asked = permission_question(f"curl -H {SECRET}", f"command: {SECRET}", "f")
    record = RunRecord(tmp_path, "run/1/1", [SECRET])
    outcome = record.close(ExecutorOutcome(status=ExecutorStatus.NEEDS_PERSON, question=asked), "", keep=True)
    assert outcome.question is not None
    assert outcome.question.title == "curl -H [secret]"
    assert outcome.question.fingerprint == "f"
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and SECRET in file.read_text()]
