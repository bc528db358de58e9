"""The table of agents: settings, environment and command lines, and where keys are."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from activities.executor.agent.acp.agents import AGENTS, Start
from activities.executor.agent.host import Launch, ModelAccess
from tightloop.errors import ExecutorError
from tightloop.executor.model import AgentMode, ExecutorChoice

HOME = Path("/homes/one")
KEY = "tl-a-token-that-is-long-enough"
ACCESS = ModelAccess(base_url="http://127.0.0.1:4711/v1", key=KEY, model='m"odel')
BY_WIRE = sorted(name for name, agent in AGENTS.items() if agent.wire is not None)


def launched(
    name: str,
    access: ModelAccess,
    *,
    arguments: tuple[str, ...] = (),
    options: dict[str, Any] | None = None,
    **choice: Any,
) -> Launch:
    given = AGENTS[name].options.model_validate(options or {})
    return AGENTS[name].launch(
        Start(home=HOME, access=access, choice=ExecutorChoice(**choice), options=given, arguments=arguments)
    )


@pytest.mark.parametrize("name", sorted(AGENTS))
@pytest.mark.parametrize("mode", AgentMode)
def test_no_key_is_anywhere_but_in_the_secrets(name: str, mode: AgentMode) -> None:
    launch = launched(name, ACCESS, mode=mode)
    seen = json.dumps([launch.argv, dict(launch.environment), dict(launch.files)])
    assert KEY not in seen
    assert KEY not in repr(launch)
    assert (KEY in launch.secrets.values()) is (name != "acp")


@pytest.mark.parametrize("name", BY_WIRE)
def test_an_agent_is_sent_to_the_gateway_and_told_the_model(name: str) -> None:
    launch = launched(name, ACCESS, mode=AgentMode.WORKSPACE)
    seen = " ".join([*launch.argv, *launch.environment.values(), *launch.files.values()])
    assert ACCESS.base_url in seen
    assert "odel" in seen


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_an_agent_with_its_own_login_gets_no_provider(name: str) -> None:
    launch = launched(name, ModelAccess(login=True), mode=AgentMode.WORKSPACE)
    assert not launch.secrets.keys() - {"OPENCODE_SERVER_PASSWORD"}
    assert "http" not in json.dumps([launch.argv, dict(launch.environment), dict(launch.files)])


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_settings_stay_in_the_home(name: str) -> None:
    launch = launched(name, ACCESS, mode=AgentMode.WORKSPACE)
    assert all(not Path(path).is_absolute() and ".." not in Path(path).parts for path in launch.files)
    assert all(not Path(path).is_absolute() for path in AGENTS[name].logins)


def test_settings_files_are_what_their_agents_parse() -> None:
    opencode = launched("opencode", ACCESS, mode=AgentMode.WORKSPACE)
    (text,) = opencode.files.values()
    provider = json.loads(text)["provider"]["tightloop"]
    assert provider["options"] == {"baseURL": ACCESS.base_url, "apiKey": "{env:TIGHTLOOP_MODEL_KEY}"}
    assert json.loads(opencode.environment["OPENCODE_PERMISSION"])["bash"] == "ask"
    (text,) = launched("codex-acp", ACCESS, mode=AgentMode.WORKSPACE).files.values()
    codex = tomllib.loads(text)
    assert (codex["model"], codex["model_provider"]) == (ACCESS.model, "tightloop")
    assert codex["model_providers"]["tightloop"]["base_url"] == ACCESS.base_url
    (text,) = launched("gemini", ACCESS, mode=AgentMode.WORKSPACE).files.values()
    assert json.loads(text)["security"]["auth"]["selectedType"] == "gemini-api-key"


def test_the_server_that_opencode_opens_has_a_new_password_each_time() -> None:
    launches = [launched("opencode", ACCESS, mode=AgentMode.FULL) for _ in range(2)]
    first, second = (launch.secrets["OPENCODE_SERVER_PASSWORD"] for launch in launches)
    assert len(first) >= 32
    assert first != second


def test_opencode_is_told_that_it_needs_a_model() -> None:
    with pytest.raises(ExecutorError, match=r"executor\.agents\.opencode\.model"):
        launched("opencode", ModelAccess(base_url="http://h/v1", key=KEY), mode=AgentMode.FULL)


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_every_agent_is_found_under_its_name(name: str) -> None:
    assert AGENTS[name].name == name
    assert AGENTS[name].program or name == "acp"


def claude(**given: Any) -> dict[str, Any]:
    options: dict[str, Any] = launched("claude", ACCESS, **given).session_meta["claudeCode"]["options"]
    return options


def test_variables_with_the_key_are_taken_from_the_shells_of_claude() -> None:
    launch = launched("claude", ACCESS)
    script = launch.files[Path(launch.environment["CLAUDE_ENV_FILE"]).relative_to(HOME).as_posix()]
    assert script.split()[0] == "unset"
    assert set(launch.secrets) <= set(script.split()[1:])


def test_claude_reads_no_settings_of_the_repository_and_begins_in_its_default_mode() -> None:
    assert claude()["settingSources"] == ["user"]
    assert claude()["extraArgs"] == {"bare": ""}
    assert set(AGENTS["claude"].modes.values()) == {"default"}


def test_smaller_bound_of_calls_counts_for_claude() -> None:
    options = claude(max_model_calls=5, options={"max_turns": 3, "max_budget_usd": 1.5})
    assert (options["maxTurns"], options["maxBudgetUsd"]) == (3, 1.5)
    assert "maxTurns" not in claude()


def test_arguments_of_the_operator_reach_claude() -> None:
    assert claude(arguments=("--effort=low", "--debug"))["extraArgs"] == {"bare": "", "effort": "low", "debug": ""}


def test_claude_gets_a_placeholder_where_a_service_of_ones_own_needs_no_key() -> None:
    assert launched("claude", ModelAccess(base_url="http://127.0.0.1:9")).secrets == {"ANTHROPIC_API_KEY": "none"}
