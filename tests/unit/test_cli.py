"""The command line without a server: what it says, where it says it, and with which exit code."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

import worker.build
from tests.support.git_sample import make_repository
from tightloop.cli.host.server_part import Role
from tightloop.cli.main import app
from tightloop.cli.parameters import complete_id
from tightloop.cli.start import (
    budget_of,
    build_request,
    find_project,
    json_or_text,
    read_pairs,
    read_request_file,
    with_timeout,
)
from tightloop.cli.views import status_line, status_panel, todo_lines
from tightloop.episode.decisions import make_question
from tightloop.episode.model import EpisodeRequest, EpisodeStatus
from tightloop.errors import InvalidRequestError
from tightloop.executor.asking import permission_question, work_question
from tightloop.host import state_folder
from tightloop.run.question import QuestionKind
from tightloop.settings import parse_settings
from tightloop.value import unknown_fields

COMMANDS = (  # noqa: SIM905 - a sentence is easier to read
    "up start list status watch pause resume answer approve reject restore fork respond top-up amend cancel "
    "checkpoints timeline diff export proof verify replay doctor settings plan keys worker"
).split()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address on the loopback interface at which nobody answers."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_help_names_every_command() -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert [name for name in COMMANDS if name not in out] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "Usage" in out


@pytest.mark.parametrize(
    "command", [["list"], ["status", "last"], ["pause", "x"], ["export", "x"], ["top-up", "x", "--iterations", "1"]]
)
def test_silent_server_gives_one_sentence_and_exit_code_1(command: list[str], nobody: str) -> None:
    code, out, error = run("--address", nobody, *command, *(["--json"] if command[0] == "list" else []))
    assert (code, out) == (1, "")
    assert error == f"error: cannot reach Temporal at {nobody} (connection refused). Start it: tightloop up\n"


def test_silent_server_never_ends_the_process_by_a_signal(nobody: str) -> None:
    command = (sys.executable, "-m", "tightloop.cli.main", "--address", nobody, "list")
    codes = {subprocess.run(command, capture_output=True, check=False).returncode for _ in range(5)}
    assert codes == {1}


def test_misspelt_field_in_a_request_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "request.yaml"
    file.write_text("goal: green\nbudget: {max_iteration: 3}\n")
    code, _, error = run("start", "--file", str(file))
    assert code == 2
    assert "budget.max_iteration" in error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"goal: [\n", "is not valid YAML: line 2, column 1: "),
        (b"\xff", "is not valid UTF-8 text (byte 0)"),
        (b"green\n", "is not a valid request. Expected: goal: "),
        (None, ": No such file or directory. Check the path\n"),
    ],
)
def test_request_file_that_cannot_be_read_is_refused_with_the_place(
    text: bytes | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "request.yaml"
    if text is not None:
        file.write_bytes(text)
    code, _, error = run("start", "--file", str(file))
    assert code == 2
    assert error.startswith("error: ")
    assert said in error


def test_each_wrong_setting_is_an_error_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("temporal: {adress: x}\nqueues: {lim: x}\n")
    code, _, error = run("--settings", str(file), "list")
    lines = error.splitlines()
    assert code == 2
    assert [line.startswith(f"error: {file}: ") for line in lines] == [True, True]
    assert ["adress" in lines[0], "lim" in lines[1]] == [True, True]


def test_role_that_there_is_not_is_refused_with_those_that_the_worker_has() -> None:
    code, _, error = run("up", "--role", "x")
    words = " ".join(error.replace("│", " ").split())
    assert code == 2
    assert [role.value for role in worker.build.Role if f"'{role.value}'" not in words] == []
    assert [role.value for role in Role] == [role.value for role in worker.build.Role]


def test_missing_keys_are_called_needed_only_where_encryption_is_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path))
    assert run("keys", "list")[2].startswith("error: the key file ")
    monkeypatch.setenv("TIGHTLOOP_PRIVACY__ENCRYPT", "true")
    assert run("keys", "list")[2].startswith("error: privacy.encrypt is on, but the key file ")


def test_wrong_address_is_refused_with_an_example() -> None:
    code, _, error = run("--address", "nowhere", "list")
    assert code == 2
    assert "127.0.0.1:7233" in error


def test_settings_are_one_json_document_with_secrets_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__API_KEY", "very-secret")
    code, out, _ = run("--namespace", "mine", "settings", "--json")
    assert code == 0
    assert json.loads(out)["temporal"]["namespace"] == "mine"
    assert "very-secret" not in out
    assert "very-secret" not in run("settings")[1]


def test_doctor_reports_a_missing_server_and_fails(
    nobody: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "not" / "there" / "yet"))
    code, out, _ = run("--address", nobody, "doctor", "--json")
    findings = {row["name"]: row for row in json.loads(out)}
    assert code == 1
    assert findings["Temporal server"]["ok"] is False
    assert "tightloop up" in findings["Temporal server"]["fix"]
    assert findings["state folder"]["ok"] is True
    assert (
        f"The state of the current folder is in projects/{state_folder(Path.cwd()).name}"
        in findings["state folder"]["found"]
    )
    assert findings["executor command"]["needed"] is True
    assert {"git", "temporal program"} <= findings.keys()
    assert not {"program git", "program temporal"} & findings.keys(), "a program is listed twice"
    assert findings["executor person"] == {
        "name": "executor person", "ok": True, "found": "", "fix": "", "needed": False,
    }  # fmt: skip
    assert any(name.startswith("sandbox ") for name in findings)
    assert not (tmp_path / "not").exists()


def test_doctor_says_how_to_close_a_state_home_that_others_may_write(
    nobody: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path))
    tmp_path.chmod(0o777)
    (found,) = (
        row for row in json.loads(run("--address", nobody, "doctor", "--json")[1]) if row["name"] == "state folder"
    )
    assert found["ok"] is False
    assert f"chmod 700 {tmp_path}" in found["fix"]


def test_completion_without_a_server_is_silent(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__ADDRESS", nobody)
    assert complete_id("") == []


def test_completion_script_is_offered_for_bash() -> None:
    environment = {**os.environ, "_TIGHTLOOP_COMPLETE": "bash_source"}
    command = (
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'tightloop'; from tightloop.cli.main import main; main()",
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "_tightloop_completion" in done.stdout


def test_options_win_over_the_file_and_the_file_over_the_settings() -> None:
    settings = parse_settings("budget: {max_iterations: 15, max_tokens: 9}", {})
    file = {"goal": "from the file", "workspace": "/w", "definition_of_done": ["true"], "budget": {"max_tokens": 5}}
    request = build_request(settings, file, {"goal": "from the option", "budget": budget_of(5)})
    assert request.goal == "from the option"
    assert (request.budget.max_iterations, request.budget.warn_at_iteration, request.budget.max_tokens) == (5, 4, 5)


def test_a_project_in_a_folder_is_started_in_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = make_repository(tmp_path / "mono", {"svc/api/a.py": ""}).resolve()
    for path, place in (
        (top, {"workspace": str(top)}),
        (top / "svc/api", {"workspace": str(top), "folder": "svc/api"}),
        (tmp_path, {"workspace": str(tmp_path)}),
    ):
        assert find_project(str(path)) == place
    monkeypatch.setenv("HOME", str(top / "svc"))
    assert find_project(str(top / "svc/api")) == {"workspace": str(top / "svc/api")}


def test_request_file_may_be_json(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"goal": "green", "definition_of_done": [{"run": "pytest -q", "timeout_s": 5}]}))
    assert read_request_file(file)["definition_of_done"][0]["run"] == "pytest -q"


def test_unknown_fields_are_found_in_every_part() -> None:
    document = {"gaol": "x", "executor": {"name": "codex", "option": {}}, "definition_of_done": ["true", {"cmd": "x"}]}
    assert list(unknown_fields(EpisodeRequest, document)) == [
        "unknown field 'gaol'. Did you mean 'goal'?",
        "unknown field 'executor.option'. Did you mean 'options'?",
        "unknown field 'definition_of_done.cmd'. Known: known_failures, name, run, timeout_s",
    ]


def test_values_of_options_are_json_or_text() -> None:
    pairs = read_pairs("--executor-option", ["n=3", "model=gpt-5.1", 'argv=["a", "b"]'], "model=gpt-5.1")
    read = {name: json_or_text(value) for name, value in pairs.items()}
    assert read == {"n": 3, "model": "gpt-5.1", "argv": ["a", "b"]}
    with pytest.raises(InvalidRequestError, match="--executor-option 'model' does not have the form name=value"):
        read_pairs("--executor-option", ["model"], "model=gpt-5.1")


def test_paused_episode_shows_the_commands_that_end_the_wait() -> None:
    question = make_question(QuestionKind.BUDGET, "iterations 5 of 5").evolve(id="q1", since=datetime.now(UTC))
    text = "\n".join(todo_lines(EpisodeStatus(episode_id="episode-1", questions=(question,))))
    assert "iterations 5 of 5" in text
    assert "tightloop top-up episode-1 --iterations 5" in text


def test_text_of_agents_cannot_steer_the_terminal() -> None:
    hostile = "\x1b]0;owned\x07 [red]not markup[/red] \x1b[2J"
    status = EpisodeStatus(episode_id="e", goal=hostile, plan=hostile, reason=hostile)
    out = StringIO()
    Console(file=out, width=120, color_system=None).print(status_panel(status))
    shown = out.getvalue() + status_line(status)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[red]not markup[/red]" in shown


@pytest.mark.parametrize(
    ("kind", "commands"),
    [
        ("permission", ["answer episode-1 allow", "answer episode-1 deny WHY"]),
        ("work", ["answer episode-1 done WHAT_I_DID", "answer episode-1 failed WHY", "answer episode-1 refused WHY"]),
    ],
)
def test_question_shows_the_commands_that_answer_it(kind: str, commands: list[str]) -> None:
    asked = {
        "permission": permission_question("rm -rf build", "in the workspace", "f"),
        "work": work_question("rm -rf build", "in the workspace"),
    }
    question = asked[kind].evolve(id="q1")
    text = "\n".join(todo_lines(EpisodeStatus(episode_id="episode-1", questions=(question,))))
    assert f"rm -rf build ({kind})\n  in the workspace" in text
    assert [command for command in commands if f"tightloop {command}" not in text] == []
    assert "NEEDS RESPONSE" in status_line(EpisodeStatus(status="paused", questions=(question,)))


def test_amendment_without_a_change_is_refused_before_anything_is_contacted(nobody: str) -> None:
    code, _, error = run("--address", nobody, "amend", "x", "--done", " ")
    assert code == 2
    assert "nothing to change" in error


def test_fallbacks_of_the_settings_are_used_where_the_request_names_none() -> None:
    settings = parse_settings("executor: {default: codex, fallback: [claude, person]}", {})
    wanted = {"goal": "g", "workspace": "/w", "definition_of_done": ["true"]}
    assert build_request(settings, wanted).executor.fallback == ("claude", "person")
    own = build_request(settings, wanted, {"executor": {"fallback": ["command"]}})
    assert (own.executor.name, own.executor.fallback) == ("codex", ("command",))


def test_check_timeout_holds_for_checks_that_name_none_themselves() -> None:
    checks = with_timeout(["pytest -q", {"run": "make slow", "timeout_s": 5}, {"run": "ruff check"}], 1_800)
    request = build_request(parse_settings("", {}), {"goal": "g", "workspace": "/w", "definition_of_done": checks})
    assert [check.timeout_s for check in request.definition_of_done] == [1_800, 5, 1_800]
    with pytest.raises(InvalidRequestError, match="--check-timeout must be greater than 0"):
        with_timeout(["true"], 0)
