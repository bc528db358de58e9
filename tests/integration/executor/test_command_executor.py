"""The command executor with real programs."""

import json
import socket
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.executor.choose import executors
from activities.executor.command import PROGRAMS, CommandExecutor, is_outside
from activities.executor.port import Executor, Executors
from activities.sandbox.choose import UnsafeLocal, choose_sandbox
from activities.sandbox.port import Sandbox
from tests.support.orders import Supervision, order, step
from tests.support.sandboxes import sandbox_named
from tightloop.errors import ExecutorError
from tightloop.executor.model import SUMMARY_CHARACTERS, ErrorKind, ExecutorOutcome, ExecutorStatus, LimitHit, WorkOrder
from tightloop.executor.options import OPTIONS
from tightloop.settings import SandboxSettings, Settings
from worker.build import build_executor_dependencies
from worker.composition import host_executors

WALLS = SandboxSettings(unsafe_local=True)
SANDBOX = choose_sandbox(WALLS)
UNTIDY = "import os\nimport sys\nx = {  'a':1 }\nprint(sys.argv)\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "app.py").write_text(UNTIDY)
    (folder / "ruff.toml").write_text('lint.select = ["F"]\n')
    return folder


def execute(work: WorkOrder, control: Supervision | None = None, executor: Executor | None = None) -> ExecutorOutcome:
    chosen = executor or CommandExecutor(SANDBOX, WALLS, grace_s=0.5)
    return chosen.execute(work, control or Supervision(), Path(work.root).parent / "state")


def with_programs(*programs: str) -> CommandExecutor:
    return CommandExecutor(SANDBOX, WALLS, programs=programs, grace_s=0.5)


@pytest.mark.skipif(SANDBOX.name != "bubblewrap", reason="only a sandbox hides files")
def test_a_program_that_the_sandbox_hides_is_named_with_the_option_that_shows_it(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "agent" / "repair.sh"
    script.parent.mkdir()
    script.write_text("echo repaired > app.py\n")
    options = {"argv": ["sh", str(script), "{plan_file}", "{workspace}"]}
    outcome = execute(order(root, options=options))
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FATAL, ErrorKind.CONFIG)
    assert outcome.error.startswith(
        f"the command cannot read {script} in the sandbox. Start again with --executor-option"
    )
    shown = execute(order(root, options={**options, "read": [str(script.parent)]}))
    assert shown.status is ExecutorStatus.COMPLETED
    script.write_text("exit 3\n")
    assert execute(order(root, options={**options, "read": [str(script.parent)]})).status is ExecutorStatus.FAILED


def test_the_steps_of_the_plan_are_run_in_order(root: Path) -> None:
    control = Supervision()
    outcome = execute(order(root, step("ruff", "check", "--fix", "."), step("ruff", "format", ".")), control)
    assert (outcome.status, outcome.exit_code) == (ExecutorStatus.COMPLETED, 0)
    assert (root / "app.py").read_text() == 'import sys\n\nx = {"a": 1}\nprint(sys.argv)\n'
    assert outcome.summary == "ruff check --fix . (exit 0); ruff format . (exit 0)"
    assert b"$ ruff check --fix .\n" in outcome.transcript
    assert b"1 file reformatted" in outcome.transcript
    assert len(control.pids) == 2
    assert outcome.usage is None


def test_findings_that_are_left_are_no_failure(root: Path) -> None:
    (root / "app.py").write_text("import os\nprint(undefined)\n")
    outcome = execute(order(root, step("ruff", "check", "--fix", "."), step("ruff", "format", ".")))
    assert (outcome.status, outcome.exit_code) == (ExecutorStatus.COMPLETED, 1)
    assert "ruff check --fix . (exit 1)" in outcome.summary
    assert (root / "app.py").read_text() == "print(undefined)\n"


def test_a_tool_that_cannot_work_fails_the_order(root: Path) -> None:
    outcome = execute(order(root, step("ruff", "check", "--no-such-option"), step("ruff", "format", ".")))
    assert (outcome.status, outcome.exit_code) == (ExecutorStatus.FAILED, 2)
    assert "no-such-option" in outcome.error
    assert (root / "app.py").read_text() == UNTIDY


def test_a_step_without_a_command_is_named(root: Path) -> None:
    outcome = execute(order(root, step(title="think about it"), step("ruff", "format", ".")))
    assert outcome.status is ExecutorStatus.COMPLETED
    assert outcome.summary.startswith("skipped 'think about it' because it has no command; ruff format .")
    only_words = execute(order(root, step(title="think about it")))
    assert only_words.status is ExecutorStatus.NO_CHANGE


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (("rm", "-rf", "."), "'rm'"),
        (("/usr/bin/ruff", "format"), "'/usr/bin/ruff'"),
        (("./ruff",), "'./ruff'"),
        (("RUFF",), "'RUFF'"),
    ],
)
def test_a_program_that_is_not_allowed_is_refused_before_anything_runs(
    root: Path, run: tuple[str, ...], what: str
) -> None:
    outcome = execute(order(root, step("ruff", "format", "."), step(*run)))
    assert outcome.status is ExecutorStatus.REFUSED
    assert what in outcome.error
    assert "executor.programs" in outcome.error
    assert (root / "app.py").read_text() == UNTIDY


@pytest.mark.parametrize(
    "argument",
    ["/etc/passwd", "../other", "a/../../b", "--config=/etc/ruff.toml", "-I/usr/include", "~/x", "--out=~root",
     "@/etc/x", "a:/etc", "link/secret", "nul\0byte", "..", "..\\other"],
)  # fmt: skip
def test_an_argument_that_leads_out_of_the_tree_is_refused(root: Path, argument: str) -> None:
    (root / "link").symlink_to(root.parent)
    outcome = execute(order(root, step("ruff", "format", argument)))
    assert outcome.status is ExecutorStatus.REFUSED
    assert "points outside the working tree" in outcome.error


@pytest.mark.parametrize(
    "argument",
    [
        ".",
        "app.py",
        "--fix",
        "--select=E,F",
        "src/a..b.py",
        "--line-length=120",
        "-q",
        "a/b/c.py",
        "x" * 5_000,
        "",
        "**/*.py",
    ],
)
def test_an_ordinary_argument_is_accepted(root: Path, argument: str) -> None:
    assert not is_outside(argument, root.resolve())
    assert not is_outside(f"--config={root.resolve()}/ruff.toml", root.resolve())


def test_a_missing_program_is_fatal_before_anything_runs(root: Path) -> None:
    executor = with_programs("ruff", "no-such-program-here")
    outcome = execute(order(root, step("ruff", "format", "."), step("no-such-program-here")), executor=executor)
    assert outcome.status is ExecutorStatus.FATAL
    assert "'no-such-program-here'" in outcome.error
    assert (root / "app.py").read_text() == UNTIDY


def test_the_wall_limit_counts_for_all_steps_together(root: Path) -> None:
    steps = [step("sleep", "0.6")] * 60
    begun = time.monotonic()
    outcome = execute(order(root, *steps, wall_limit_s=1.0), executor=with_programs("sleep"))
    assert outcome.status is ExecutorStatus.TIMED_OUT
    assert "wall_limit_s" in outcome.error
    assert time.monotonic() - begun < 30


def test_idle_limit_and_cancel_have_their_own_endings(root: Path) -> None:
    executor = with_programs("sleep")
    idle = execute(order(root, step("sleep", "60"), idle_limit_s=0.3), executor=executor)
    assert (idle.status, "idle_limit_s" in idle.error) == (ExecutorStatus.TIMED_OUT, True)
    cancelled = execute(order(root, step("sleep", "60")), Supervision(cancel_after=3), executor)
    assert cancelled.status is ExecutorStatus.CANCELLED


def test_a_long_story_is_bounded(root: Path) -> None:
    steps = [step(title="t" * 500), *[step("ruff", "check", "--select=F", "x" * 400)] * 10]
    outcome = execute(order(root, *steps))
    assert len(outcome.summary) <= SUMMARY_CHARACTERS
    assert len(outcome.error) <= SUMMARY_CHARACTERS


AGENT = """
import json, os, sys
file = sys.argv[1]
plan = open(file, encoding="utf-8").read()
print(json.dumps({"argv": sys.argv[1:], "plan": plan, "mode": os.stat(file).st_mode & 0o777, "cwd": os.getcwd()}))
"""


def test_a_template_gets_the_plan_as_a_private_file(root: Path) -> None:
    argv = [sys.executable, "-c", AGENT, "{plan_file}", "{workspace}", "n={iteration}", "{episode}", '{"json": {}}']
    outcome = execute(order(root, step("rm", "never run"), iteration=7, options={"argv": argv}))
    assert (outcome.status, outcome.exit_code) == (ExecutorStatus.COMPLETED, 0)
    said = json.loads(outcome.transcript)
    plan_file, *others = said["argv"]
    assert others == [str(root), "n=7", "episode-1", '{"json": {}}']
    assert said["plan"] == "the plan: ordentlich aufräumen"
    assert said["mode"] == 0o600
    assert said["cwd"] == str(root)
    assert root not in Path(plan_file).parents
    assert not Path(plan_file).exists()


def test_the_template_of_the_settings_is_the_default(root: Path) -> None:
    executor = CommandExecutor(SANDBOX, WALLS, argv=("/bin/sh", "-c", "cp {plan_file} got.md"))
    assert execute(order(root), executor=executor).status is ExecutorStatus.COMPLETED
    assert (root / "got.md").read_text() == "the plan: ordentlich aufräumen"


def test_a_failing_agent_reports_its_last_words(root: Path) -> None:
    outcome = execute(order(root, options={"argv": ["/bin/sh", "-c", "seq 1000; echo no credit left >&2; exit 1"]}))
    assert (outcome.status, outcome.exit_code) == (ExecutorStatus.FAILED, 1)
    assert outcome.error.endswith("no credit left")
    assert len(outcome.error) <= SUMMARY_CHARACTERS
    silent = execute(order(root, options={"argv": ["false"]}))
    assert silent.error == "false exited with 1 without output"


def test_a_limit_in_the_words_of_an_agent_can_be_read(root: Path) -> None:
    def find(text: str) -> LimitHit | None:
        return LimitHit(evidence=text.strip()) if "429" in text else None

    executor = CommandExecutor(SANDBOX, WALLS, find_limit=find)
    outcome = execute(order(root, options={"argv": ["/bin/sh", "-c", "echo 429; exit 1"]}), executor=executor)
    assert (outcome.status, outcome.limit) == (ExecutorStatus.LIMIT_HIT, LimitHit(evidence="429"))


def agent(root: Path, script: str) -> ExecutorOutcome:
    """Run a script as the agent of a worker that is set up as shipped."""
    file = root.parent / "agent.sh"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o700)
    work = order(root, options={"argv": [str(file), "{plan_file}"]})
    return execute(work, executor=executors(build_executor_dependencies(Settings(sandbox=WALLS)))("command"))


def test_a_limit_that_passes_is_waited_for(root: Path) -> None:
    said = "Rate limit reached for gpt-5 in organization o on tokens per min (TPM). Please try again in 11.054s."
    outcome = agent(root, f"echo working; echo 'ERROR: {said}' >&2; exit 1")
    assert (outcome.status, outcome.exit_code) == (ExecutorStatus.LIMIT_HIT, 1)
    assert outcome.limit is not None
    assert (outcome.limit.kind, outcome.limit.evidence) == ("rate_limited", said)
    assert outcome.limit.retry_after == timedelta(seconds=11.054)
    assert outcome.error.endswith(said)


def test_a_time_of_day_is_meant_where_the_worker_is(root: Path) -> None:
    later = (datetime.now(UTC).astimezone() + timedelta(hours=2)).strftime("%I:%M%p")
    outcome = agent(root, f"""echo "You've hit your limit · resets {later}"; exit 1""")
    assert outcome.status is ExecutorStatus.LIMIT_HIT
    assert outcome.limit is not None
    assert outcome.limit.retry_after is not None
    assert timedelta(hours=1, minutes=58) < outcome.limit.retry_after <= timedelta(hours=2)


def test_tool_calls_that_are_used_up_need_no_person(root: Path) -> None:
    outcome = agent(root, "echo 'Note: By default, we stop the agent after 25 tool calls. You can resume.'; exit 3")
    assert (outcome.status, outcome.limit and outcome.limit.kind) == (ExecutorStatus.LIMIT_HIT, "tool_call_limit")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("Not logged in · Please run /login", "the agent's provider rejected the key or login"),
        ("Quota exceeded. Check your plan and billing details.", "which ends at an unknown time"),
        ("Rate limit reached for m in organization o on tokens per min. Try again in 5 days.", "in 5 days"),
    ],
)
def test_a_limit_that_does_not_pass_soon_is_fatal(root: Path, said: str, sentence: str) -> None:
    outcome = agent(root, f"echo '{said}'; exit 1")
    assert outcome.status is ExecutorStatus.FATAL
    assert sentence in outcome.error
    assert said in outcome.error
    assert len(outcome.error) <= SUMMARY_CHARACTERS
    assert outcome.limit is not None


def test_a_full_context_is_a_failure_to_plan_around(root: Path) -> None:
    outcome = agent(root, "echo 'Prompt is too long'; exit 1")
    assert (outcome.status, outcome.limit and outcome.limit.kind) == (ExecutorStatus.FAILED, "context_full")
    assert "Plan smaller steps" in outcome.error


def test_a_limit_that_did_not_stop_the_agent_is_none(root: Path) -> None:
    said = "echo 'Error: Exceeded 25 native tool calls'"
    assert agent(root, said).status is ExecutorStatus.COMPLETED
    outcome = agent(root, f"{said}; seq 20; exit 1")
    assert (outcome.status, outcome.limit) == (ExecutorStatus.FAILED, None)


def test_only_the_end_of_the_output_is_read(root: Path) -> None:
    seen: list[str] = []
    executor = CommandExecutor(SANDBOX, WALLS, find_limit=seen.append)
    execute(order(root, options={"argv": ["/bin/sh", "-c", "seq 1000; echo; exit 1"]}), executor=executor)
    execute(order(root, options={"argv": ["/bin/sh", "-c", "seq 1000"]}), executor=executor)
    assert [text.split() for text in seen] == [[str(n) for n in range(981, 1001)]]


def test_a_missing_agent_is_fatal(root: Path) -> None:
    outcome = execute(order(root, options={"argv": ["no-such-agent", "{plan_file}"]}))
    assert outcome.status is ExecutorStatus.FATAL
    assert "'no-such-agent' was not found" in outcome.error
    assert not list((root.parent / "state" / "plans").iterdir())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"argv": ["agent", "{plan}"]}, "unknown placeholder {plan} in executor.argv"),
        ({"argv": "agent {plan_file}"}, "the options of the executor command are not valid: argv: "),
        ({"argv": ["agent", 3]}, "the options of the executor command are not valid: argv.1: "),
        ({"arg": ["agent"]}, "the executor command has no option 'arg'. Did you mean 'argv'?"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(root: Path, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ExecutorError) as caught:
        execute(order(root, options=options))
    assert sentence in caught.value.message


def test_executors_are_chosen_by_name(root: Path) -> None:
    around = build_executor_dependencies(Settings(sandbox=WALLS))
    choose: Executors = executors(around)
    known = host_executors(Settings(sandbox=WALLS), around).names
    assert sorted(OPTIONS) == sorted(known), "clients refuse names that are close to one of these"
    assert (
        execute(order(root, step("ruff", "format", ".")), executor=choose("command")).status is ExecutorStatus.COMPLETED
    )
    mine = CommandExecutor(SANDBOX, WALLS)
    assert executors(around, {"mine": mine})("mine") is mine
    with pytest.raises(
        ExecutorError, match=r"unknown executor 'nobody'.* Executors on this worker: .*command, .*scripted"
    ):
        choose("nobody")


def test_no_program_of_the_default_list_can_run_anything() -> None:
    assert not {"sh", "bash", "python", "python3", "node", "env", "xargs", "pip", "npx", "make"} & set(PROGRAMS)


def walled() -> Sandbox:
    sandbox = sandbox_named("bubblewrap")
    if problem := sandbox.probe():
        pytest.skip(f"bubblewrap does not work here: {problem}")
    return sandbox


def shell(root: Path, script: str, *, sandbox: Sandbox | None = None, **options: object) -> ExecutorOutcome:
    executor = CommandExecutor(sandbox or SANDBOX, WALLS, grace_s=0.5)
    return execute(order(root, options={"argv": ["/bin/sh", "-c", script], **options}), executor=executor)


def test_the_outcome_names_the_sandbox(root: Path) -> None:
    assert shell(root, "true").versions == {"sandbox": SANDBOX.name}
    assert execute(order(root, step("ruff", "format", "."))).versions == {"sandbox": SANDBOX.name}
    unsafe = CommandExecutor(UnsafeLocal(), WALLS)
    assert execute(order(root, step("ruff", "format", ".")), executor=unsafe).versions == {"sandbox": "unsafe-local"}


def test_the_plan_is_given_as_a_prompt_file_and_on_standard_input_likewise(root: Path) -> None:
    outcome = shell(root, "cat {prompt_file}; echo; cat", stdin=True)
    assert outcome.transcript.decode() == "the plan: ordentlich aufräumen\n" + "the plan: ordentlich aufräumen"
    assert shell(root, "cat").transcript == b""


def test_an_agent_gets_the_variables_that_were_named_and_its_key_is_not_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_API_KEY", "k-31415926535")
    monkeypatch.setenv("AGENT_MODE", "quick")
    script = "echo ${AGENT_API_KEY:-none} ${AGENT_MODE:-none}; test ${#AGENT_API_KEY} = 13"
    named = shell(root, script, environment=["AGENT_API_KEY", "AGENT_MODE"])
    assert (named.status, named.transcript, named.summary) == (
        ExecutorStatus.COMPLETED,
        b"********** quick\n",
        "********** quick",
    )
    unnamed = shell(root, script)
    assert (unnamed.status, unnamed.transcript) == (ExecutorStatus.FAILED, b"none none\n")
    with pytest.raises(ExecutorError, match="lists NOT_SET_ANYWHERE, which is not set in the worker's environment"):
        shell(root, "true", environment=["NOT_SET_ANYWHERE"])


def test_an_agent_reads_and_writes_more_only_where_it_is_named(root: Path) -> None:
    login = root.parent / "login"
    login.mkdir()
    (login / "auth.json").write_text("token")
    script = f"cat {login}/auth.json && echo new > {login}/auth.json"
    assert shell(root, script, sandbox=walled()).status is ExecutorStatus.FAILED
    read = shell(root, script, sandbox=walled(), read=[str(login)])
    assert (read.status, read.transcript[:5]) == (ExecutorStatus.FAILED, b"token")
    assert (login / "auth.json").read_text() == "token"
    assert shell(root, script, sandbox=walled(), write=[str(login)]).status is ExecutorStatus.COMPLETED
    assert (login / "auth.json").read_text() == "new\n"
    with pytest.raises(ExecutorError, match=r"executor\.options\.read .*gone"):
        shell(root, "true", read=[str(login / "gone")])


def test_an_agent_sees_the_network_only_where_it_is_allowed(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 2)\""
        assert shell(root, script, sandbox=walled()).status is ExecutorStatus.FAILED
        assert shell(root, script, sandbox=walled(), network=[f"localhost:{port}"]).status is ExecutorStatus.COMPLETED


def test_a_step_cannot_leave_the_tree_through_what_it_runs(root: Path) -> None:
    """A formatter reads its settings in the tree, and some formatters' settings name programs."""
    tool = root / ".venv" / "bin" / "ruff"
    tool.parent.mkdir(parents=True)
    tool.write_text(f"#!/bin/sh\necho x > {root.parent}/out.txt; echo y > in.txt\n")
    tool.chmod(0o755)
    executor = CommandExecutor(walled(), WALLS)
    execute(order(root, step("ruff", "format", ".")), executor=executor)
    assert (root / "in.txt").exists()
    assert not (root.parent / "out.txt").exists()


def test_without_a_sandbox_the_delivery_is_fatal_and_nothing_is_run(root: Path) -> None:
    other = "sandbox-exec" if sys.platform == "linux" else "bubblewrap"
    closed = SandboxSettings(backend=other)
    executor = CommandExecutor(choose_sandbox(closed), closed)
    assert not executor.availability().usable
    for work in (order(root, step("ruff", "format", ".")), order(root, options={"argv": ["touch", "ran"]})):
        outcome = execute(work, executor=executor)
        assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FATAL, ErrorKind.SANDBOX)
        assert "no sandbox works on this host" in outcome.error
        assert "sandbox.unsafe_local" in outcome.error
    assert (root / "app.py").read_text() == UNTIDY
    assert not (root / "ran").exists()


def test_a_missing_program_of_the_settings_is_seen_before_an_order_comes() -> None:
    assert CommandExecutor(SANDBOX, WALLS).availability().usable
    assert CommandExecutor(SANDBOX, WALLS, argv=("git", "{plan_file}")).availability().usable
    missing = CommandExecutor(SANDBOX, WALLS, argv=("no-such-agent", "{plan_file}")).availability()
    assert not missing.usable
    assert "'no-such-agent' in executor.argv was not found" in missing.reason


def test_endings_have_their_kind(root: Path) -> None:
    slow = execute(order(root, options={"argv": ["sleep", "30"]}, wall_limit_s=0.5))
    assert (slow.status, slow.error_kind) == (ExecutorStatus.TIMED_OUT, ErrorKind.TIMEOUT)
    missing = execute(order(root, options={"argv": ["no-such-agent"]}))
    assert (missing.status, missing.error_kind) == (ExecutorStatus.FATAL, ErrorKind.MISSING_PROGRAM)
    flood = shell(root, "while :; do echo 0123456789012345678901234567890123456789; done")
    assert (flood.status, flood.error_kind) == (ExecutorStatus.FAILED, ErrorKind.SANDBOX)
    assert "of output and was killed" in flood.error
