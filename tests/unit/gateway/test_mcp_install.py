"""`tightloop mcp install`: what it writes, and what it never loses."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tightloop.cli.main import app
from tightloop.cli.mcp import BEGIN, block_with, json_with, toml_with
from tightloop.executor.message import parse_plan_request

ENTRY = {"command": "tightloop", "args": ["mcp", "serve"]}
CODEX = """model = "gpt-5"   # mine

[mcp_servers.github]
command = "gh"
env = { TOKEN = "secret" }

[mcp_servers.tightloop]
command = "old"

[mcp_servers.tightloop.env]
A = "1"

[profiles."a b"]
model = "x"
"""

Install = Callable[..., Result]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("CODEX_HOME", raising=False)
    (tmp_path / "project").mkdir()
    (tmp_path / "state").mkdir(0o700)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["mcp", "install", *arguments, "--workspace", str(tmp_path / "project")])

    return run


def test_other_servers_stay_and_a_backup_is_kept(install: Install, tmp_path: Path) -> None:
    config = tmp_path / "project" / ".cursor" / "mcp.json"
    config.parent.mkdir()
    before = json.dumps({"mcpServers": {"github": {"url": "https://x", "headers": {"k": "s"}}}, "other": [1]})
    config.write_text(before)
    config.chmod(0o600)
    shown = install("cursor", "--dry-run")
    assert '+    "tightloop": {' in shown.output
    assert config.read_text() == before, "a preview writes nothing"
    done = install("cursor")
    assert done.exit_code == 0, done.output
    after = json.loads(config.read_text())
    server = after["mcpServers"].pop("tightloop")
    assert after == json.loads(before)
    assert server["args"][-2:] == ["--workspace", str(tmp_path / "project")]
    assert server["env"] == {"TIGHTLOOP_HOME": str(tmp_path / "state")}
    assert config.stat().st_mode & 0o777 == 0o600
    [backup] = (tmp_path / "state" / "backups").iterdir()
    assert (backup.read_text(), backup.stat().st_mode & 0o777) == (before, 0o600)
    rules = (tmp_path / "project/.cursor/rules/tightloop.mdc").read_text()
    assert "alwaysApply: true" in rules
    assert parse_plan_request(rules.split("```")[1]).outcome == "completed", "the template of the rules is a right one"
    again = install("cursor")
    assert again.output.count("is already up to date") == 2
    assert len(list((tmp_path / "state" / "backups").iterdir())) == 1


@pytest.mark.parametrize(
    ("client", "config", "text"),
    [
        ("cursor", "project/.cursor/mcp.json", '{"mcpServers": {'),
        ("cursor", "project/.cursor/mcp.json", '{"mcpServers": []}'),
        ("claude", "project/.mcp.json", "[1]"),
        ("codex", "home/.codex/config.toml", "[mcp_servers\nx = 1"),
        ("codex", "home/.codex/config.toml", 'mcp_servers = { tightloop = { command = "x" } }'),
        ("claude", "project/CLAUDE.md", f"{BEGIN}\nhalf"),
    ],
)
def test_a_damaged_file_is_refused_and_stays(
    install: Install, tmp_path: Path, client: str, config: str, text: str
) -> None:
    path = tmp_path / config
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    done = install(client)
    assert (done.exit_code, "and install again" in done.output.replace("\n", " ")) == (2, True), done.output
    files = {each for each in tmp_path.rglob("*") if each.is_file()}
    assert (path.read_text(), files) == (text, {path}), "nothing is written, also not the other file"


def test_a_link_of_a_repository_leads_nowhere_else(install: Install, tmp_path: Path) -> None:
    victim = tmp_path / "bashrc"
    victim.write_text("{}")
    (tmp_path / "project" / ".cursor").symlink_to(tmp_path)
    (tmp_path / "mcp.json").write_text("{}")
    assert "which is outside" in install("cursor").output.replace("\n", " ")
    (tmp_path / "project" / "CLAUDE.md").symlink_to(victim)
    assert "which is outside" in install("claude").output.replace("\n", " ")
    assert victim.read_text() == "{}"
    assert not (tmp_path / "project" / ".mcp.json").exists()


def test_over_http_the_token_stays_in_a_variable(install: Install, tmp_path: Path) -> None:
    for client in ("cursor", "claude", "codex"):
        assert install(client, "--http", "--episode", "nightly-1").exit_code == 0
    cursor = json.loads((tmp_path / "project/.cursor/mcp.json").read_text())["mcpServers"]["tightloop"]
    assert cursor["url"].endswith("/mcp?episode=nightly-1")
    assert cursor["headers"] == {"Authorization": "Bearer ${env:TIGHTLOOP_TOKEN}"}
    codex = tomllib.loads((tmp_path / "home/.codex/config.toml").read_text())["mcp_servers"]["tightloop"]
    assert codex["bearer_token_env_var"] == "TIGHTLOOP_TOKEN"
    assert "determines the role" in install("cursor", "--http", "--role", "operator").output.replace("\n", " ")


def test_codex_keeps_every_other_line() -> None:
    made = toml_with(Path("config.toml"), CODEX, ENTRY)
    ours = '\n[mcp_servers.tightloop]\ncommand = "tightloop"\nargs = ["mcp", "serve"]\n'
    assert made.endswith(ours)
    kept = CODEX.replace('[mcp_servers.tightloop]\ncommand = "old"\n\n[mcp_servers.tightloop.env]\nA = "1"\n\n', "")
    assert made == kept + ours
    assert toml_with(Path("config.toml"), made, ENTRY) == made


def test_rules_of_the_user_stay() -> None:
    made = block_with(Path("AGENTS.md"), "# Mine\n\nBe kind.\n", "ours")
    assert made.startswith("# Mine\n\nBe kind.\n\n")
    assert block_with(Path("AGENTS.md"), f"{made}after\n", "new").endswith("-->\nafter\n")


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=5)))
def test_no_content_of_a_json_configuration_is_lost(document: dict[str, object]) -> None:
    document.pop("mcpServers", None)
    made = json_with(Path("mcp.json"), json.dumps(document), ENTRY)
    assert json.loads(made) == {**document, "mcpServers": {"tightloop": ENTRY}}
    assert json_with(Path("mcp.json"), made, ENTRY) == made
