"""The table of agents: settings, environment and command lines, and where keys are."""

import json
import tomllib
from pathlib import Path

import pytest

from activities.execution.agent.acp_agents import AGENTS
from activities.execution.agent.port import ModelAccess
from tightloop.errors import ExecutorError
from tightloop.executor import AgentMode

HOME = Path("/homes/one")
KEY = "tl-a-token-that-is-long-enough"
ACCESS = ModelAccess(base_url="http://127.0.0.1:4711/v1", key=KEY, model='m"odel')
BY_WIRE = sorted(name for name, agent in AGENTS.items() if agent.wire is not None)


@pytest.mark.parametrize("name", sorted(AGENTS))
@pytest.mark.parametrize("mode", AgentMode)
def test_no_key_is_anywhere_but_in_the_secrets(name: str, mode: AgentMode) -> None:
    launch = AGENTS[name].launch(HOME, ACCESS, mode)
    seen = json.dumps([launch.argv, dict(launch.environment), dict(launch.files)])
    assert KEY not in seen
    assert KEY not in repr(launch)
    assert (KEY in launch.secrets.values()) is (name != "acp")


@pytest.mark.parametrize("name", BY_WIRE)
def test_an_agent_is_sent_to_the_gateway_and_told_the_model(name: str) -> None:
    launch = AGENTS[name].launch(HOME, ACCESS, AgentMode.WORKSPACE)
    seen = " ".join([*launch.argv, *launch.environment.values(), *launch.files.values()])
    assert ACCESS.base_url in seen
    assert "odel" in seen


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_an_agent_with_its_own_login_gets_no_provider(name: str) -> None:
    launch = AGENTS[name].launch(HOME, ModelAccess(), AgentMode.WORKSPACE)
    assert not launch.secrets.keys() - {"OPENCODE_SERVER_PASSWORD"}
    assert "http" not in json.dumps([launch.argv, dict(launch.environment), dict(launch.files)])


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_settings_stay_in_the_home(name: str) -> None:
    launch = AGENTS[name].launch(HOME, ACCESS, AgentMode.WORKSPACE)
    assert all(not Path(path).is_absolute() and ".." not in Path(path).parts for path in launch.files)
    assert all(not Path(path).is_absolute() for path in AGENTS[name].logins)


def test_settings_files_are_what_their_agents_parse() -> None:
    opencode = AGENTS["opencode"].launch(HOME, ACCESS, AgentMode.WORKSPACE)
    (text,) = opencode.files.values()
    provider = json.loads(text)["provider"]["tightloop"]
    assert provider["options"] == {"baseURL": ACCESS.base_url, "apiKey": "{env:TIGHTLOOP_MODEL_KEY}"}
    assert json.loads(opencode.environment["OPENCODE_PERMISSION"])["bash"] == "ask"
    (text,) = AGENTS["codex-acp"].launch(HOME, ACCESS, AgentMode.WORKSPACE).files.values()
    codex = tomllib.loads(text)
    assert (codex["model"], codex["model_provider"]) == (ACCESS.model, "tightloop")
    assert codex["model_providers"]["tightloop"]["base_url"] == ACCESS.base_url
    (text,) = AGENTS["gemini"].launch(HOME, ACCESS, AgentMode.WORKSPACE).files.values()
    assert json.loads(text)["security"]["auth"]["selectedType"] == "gemini-api-key"


def test_the_server_that_opencode_opens_has_a_new_password_each_time() -> None:
    launches = [AGENTS["opencode"].launch(HOME, ACCESS, AgentMode.FULL) for _ in range(2)]
    first, second = (launch.secrets["OPENCODE_SERVER_PASSWORD"] for launch in launches)
    assert len(first) >= 32
    assert first != second


def test_opencode_is_told_that_it_needs_a_model() -> None:
    with pytest.raises(ExecutorError, match=r"executor\.agents\.opencode\.model"):
        AGENTS["opencode"].launch(HOME, ModelAccess(base_url="http://h/v1", key=KEY), AgentMode.FULL)


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_every_agent_is_found_under_its_name(name: str) -> None:
    assert AGENTS[name].name == name
    assert AGENTS[name].program or name == "acp"
