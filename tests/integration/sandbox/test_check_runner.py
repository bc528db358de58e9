"""Checks as real processes, behind the walls that this machine has."""

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activities.checks.activity import CommandResult
from activities.checks.runner import CheckRunner
from activities.sandbox.choose import UnsafeLocal, choose_sandbox
from activities.sandbox.port import Sandbox, SandboxUnavailableError
from tests.support.sandboxes import sandbox_named
from tightloop.episode.check import Check, CheckStatus, judge
from tightloop.errors import SettingsError
from tightloop.settings import SandboxSettings


def runner(sandbox: Sandbox | None = None, **settings: Any) -> CheckRunner:
    chosen = SandboxSettings(**{"unsafe_local": True, **settings})
    return CheckRunner(sandbox or choose_sandbox(chosen), chosen, grace_s=0.5)


RUNNER = runner()


def walled() -> Sandbox:
    sandbox = sandbox_named("bubblewrap")
    if problem := sandbox.probe():
        pytest.skip(f"bubblewrap does not work here: {problem}")
    return sandbox


def never() -> bool:
    return False


def ignore(pid: int) -> None:
    """Somebody else's business."""


def run(root: Path, command: str, *, timeout_s: float = 30.0, cancelled: Callable[[], bool] = never) -> CommandResult:
    return RUNNER.run(Check(run=command, timeout_s=timeout_s), root, cancelled=cancelled, started=ignore)


def status_of(root: Path, command: str, timeout_s: float = 30.0) -> CheckStatus:
    check = Check(run=command)
    result = run(root, command, timeout_s=timeout_s)
    return judge(
        check,
        tree="tree",
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        duration_s=result.duration_s,
        output=result.output.decode("utf-8", "replace"),
    ).status


def test_a_check_is_a_shell_command_in_the_tree(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    result = run(tmp_path, "cat *.txt | tr a-z A-Z && exit 4")
    assert (result.exit_code, result.output, result.timed_out) == (4, b"ONE\n", False)


def test_endings_become_the_right_verdict(tmp_path: Path) -> None:
    assert status_of(tmp_path, "true") is CheckStatus.PASSED
    assert status_of(tmp_path, "false") is CheckStatus.FAILED
    assert status_of(tmp_path, "no-such-program-here --version") is CheckStatus.NOT_FOUND
    assert status_of(tmp_path, "kill -9 $$") is CheckStatus.FAILED
    assert status_of(tmp_path, "sleep 60", timeout_s=0.3) is CheckStatus.TIMED_OUT


def test_a_timed_out_check_keeps_its_output(tmp_path: Path) -> None:
    result = run(tmp_path, "echo started; sleep 60", timeout_s=3.0)
    assert (result.exit_code, result.timed_out) == (None, True)
    assert result.output.startswith(b"started\n")
    assert result.duration_s < 40


def test_a_cancelled_check_ends_soon(tmp_path: Path) -> None:
    until = time.monotonic() + 0.3
    result = run(tmp_path, "sleep 60", cancelled=lambda: time.monotonic() > until)
    assert (result.exit_code, result.timed_out) == (None, False)
    assert result.duration_s < 25


def test_a_check_that_cannot_start_says_why(tmp_path: Path) -> None:
    result = run(tmp_path / "gone", "true")
    assert result.exit_code is None
    assert b"gone" in result.output


def test_the_tree_s_own_tool_is_used(tmp_path: Path) -> None:
    tool = tmp_path / ".venv" / "bin" / "ruff"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho the tree s own\n")
    tool.chmod(0o755)
    assert run(tmp_path, "ruff").output == b"the tree s own\n"


def test_a_project_below_the_top_has_its_own_environment(tmp_path: Path) -> None:
    for folder in ("", "services/api"):
        tool = tmp_path / folder / ".venv" / "bin" / "ruff"
        tool.parent.mkdir(parents=True)
        tool.write_text(f"#!/bin/sh\necho tool of {folder or 'the top'}\n")
        tool.chmod(0o755)
    assert run(tmp_path, "cd services/api && ruff").output == b"tool of services/api\n"
    assert run(tmp_path, "cd services && ruff").output == b"tool of the top\n"


def ended(result: CommandResult) -> CheckStatus:
    return judge(
        Check(run="x"),
        tree="tree",
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        duration_s=result.duration_s,
        output=result.output.decode("utf-8", "replace"),
    ).status


HUNGRY = """for n in 1 2 3 4 5; do python3 -c 'b=bytearray(b"x")*(60<<20); import time; time.sleep(5)' & done; wait"""
"""Each of the processes is within the bound, all together are not."""


@pytest.mark.parametrize(
    ("command", "settings", "said"),
    [
        (HUNGRY, {"memory_mb": 100}, b"more than 100 MiB of memory and was killed. Raise sandbox.memory_mb]"),
    ],
)
@pytest.mark.parametrize("walls", [True, False])
def test_a_check_that_is_out_of_bounds_fails_and_says_which(
    tmp_path: Path, command: str, settings: dict[str, Any], said: bytes, walls: bool
) -> None:
    chosen = runner(walled() if walls else UnsafeLocal(), **settings)
    check = Check(run=command, timeout_s=60)
    result = chosen.run(check, tmp_path, cancelled=never, started=ignore)
    assert (result.exit_code, result.timed_out, ended(result)) == (None, False, CheckStatus.FAILED)
    assert said in result.output[-200:]


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("walls", [True, False])
def test_a_check_that_floods_its_output_is_judged_by_its_status_and_its_end(
    tmp_path: Path, code: int, walls: bool
) -> None:
    check = Check(
        run=f"head -c 80000000 /dev/zero | tr '\\0' x; echo; echo REASON: nothing is done; exit {code}", timeout_s=60
    )
    result = runner(walled() if walls else UnsafeLocal()).run(check, tmp_path, cancelled=never, started=ignore)
    assert ended(result) is (CheckStatus.FAILED if code else CheckStatus.PASSED)
    assert result.output.startswith(
        b"[tightloop: the check printed more than 67 MB, so only the start and the end of the output were kept]\n"
    )
    assert result.output.endswith(b"\nREASON: nothing is done\n")
    assert len(result.output) < 1_100_000


def test_a_check_with_too_many_processes_fails_and_says_so(tmp_path: Path) -> None:
    sandbox = walled()
    code = "import os, time\nfor _ in range(200):\n    if os.fork() == 0: time.sleep(30); os._exit(0)"
    (tmp_path / "bomb.py").write_text(code)
    check = Check(run="python3 bomb.py", timeout_s=60)
    result = runner(sandbox, processes=20).run(check, tmp_path, cancelled=never, started=ignore)
    assert ended(result) is CheckStatus.FAILED
    assert b"Resource temporarily unavailable" in result.output


def test_a_check_sees_the_network_only_where_the_settings_say_so(tmp_path: Path) -> None:
    sandbox = walled()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        check = Check(run=f'python3 -c "{code}"')
        assert runner(sandbox).run(check, tmp_path, cancelled=never, started=ignore).exit_code == 1
        listed = runner(sandbox, network=(f"127.0.0.1:{port}",))
        assert listed.run(check, tmp_path, cancelled=never, started=ignore).exit_code == 0
    lookup = Check(run="python3 -c \"import socket; socket.getaddrinfo('example.org', 80)\"")
    result = runner(sandbox).run(lookup, tmp_path, cancelled=never, started=ignore)
    assert (
        b"which can only reach the hosts in sandbox.network. Add the hosts that the check needs to this setting]"
        in result.output
    )


def test_a_program_that_the_sandbox_hides_is_explained(tmp_path: Path) -> None:
    result = runner(walled()).run(Check(run="no-such-program"), tmp_path, cancelled=never, started=ignore)
    assert ended(result) is CheckStatus.NOT_FOUND
    assert b"add the path of the program to sandbox.read]" in result.output


def test_more_folders_may_be_read_and_written_by_the_settings(tmp_path: Path) -> None:
    sandbox = walled()
    root, data, cache = (tmp_path / name for name in ("tree", "data", "cache"))
    for folder in (root, data, cache):
        folder.mkdir()
    (data / "a.txt").write_text("seen")
    check = Check(run=f"cat {data}/a.txt && echo x > {cache}/b.txt && ! echo y > {data}/a.txt")
    assert runner(sandbox).run(check, root, cancelled=never, started=ignore).exit_code != 0
    allowed = runner(sandbox, read=(str(data),), write=(str(cache),))
    assert allowed.run(check, root, cancelled=never, started=ignore).exit_code == 0
    assert ((cache / "b.txt").read_text(), (data / "a.txt").read_text()) == ("x\n", "seen")


def test_a_setting_that_names_no_folder_is_refused_with_its_name(tmp_path: Path) -> None:
    wrong = runner(UnsafeLocal(), read=(str(tmp_path / "gone"),))
    with pytest.raises(SettingsError, match=r"sandbox\.read contains .*gone") as caught:
        wrong.run(Check(run="true"), tmp_path, cancelled=never, started=ignore)
    assert not caught.value.retryable


def test_without_a_sandbox_no_check_is_run_and_a_person_is_told(tmp_path: Path) -> None:
    other = "sandbox-exec" if sys.platform == "linux" else "bubblewrap"
    closed = runner(choose_sandbox(SandboxSettings(backend=other)))
    with pytest.raises(SandboxUnavailableError, match=r"Alternatively, set sandbox\.unsafe_local") as caught:
        closed.run(Check(run="touch ran"), tmp_path, cancelled=never, started=ignore)
    assert not caught.value.retryable
    assert not (tmp_path / "ran").exists()


def test_a_worker_of_root_in_somebody_else_s_tree_is_told_to_change_that(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a tree to somebody else")
    sandbox = walled()
    (tmp_path / "a.txt").write_text("a")
    for path in (tmp_path / "a.txt", tmp_path):
        os.chown(path, 31_415, 31_415)
    result = runner(sandbox).run(Check(run="echo b > a.txt"), tmp_path, cancelled=never, started=ignore)
    assert ended(result) is CheckStatus.FAILED
    assert b"root cannot access the files of user 31415. Run the worker as user 31415]" in result.output


def test_the_evidence_names_the_walls_and_what_they_did_not_hold(tmp_path: Path) -> None:
    behind = runner(walled()).run(Check(run="true"), tmp_path, cancelled=never, started=ignore)
    assert (behind.sandbox, behind.not_enforced) == ("bubblewrap", ())
    bare = runner(UnsafeLocal()).run(Check(run="true"), tmp_path, cancelled=never, started=ignore)
    assert bare.sandbox == "unsafe-local"
    assert {"network", "writes", "reads"} <= set(bare.not_enforced)
