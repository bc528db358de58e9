"""Agents that speak the Agent Client Protocol (`agents.toml`), and the special cases that need code."""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass

from activities.executor.agent.host import Launch, ModelAccess
from activities.executor.agent.program import NO_REPOSITORY, QUIET, model_settings, toml
from activities.model.gateway.wire import Wire
from tightloop.errors import ExecutorError
from tightloop.executor.model import AgentMode, ExecutorChoice
from tightloop.executor.options import OPTIONS, ClaudeOptions
from tightloop.value import Document
from tightloop.value.toml import read_toml


@dataclass(frozen=True, kw_only=True)
class Start:
    """Parameters for starting an agent."""

    home: Path
    access: ModelAccess
    command_path: Mapping[str, str] = field(default_factory=dict)
    """`PATH` and `VIRTUAL_ENV` for commands that an agent runs in its own sandbox."""
    choice: ExecutorChoice = field(default_factory=ExecutorChoice)
    options: Document = field(default_factory=Document)
    """An instance of `AcpAgent.options`."""
    arguments: tuple[str, ...] = ()
    """Arguments from the operator's settings, to which the executor adds those of its own command line."""


@checked_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class AcpAgent:
    """One table in `agents.toml`."""

    name: str
    """The executor's name."""
    program: str = ""
    """The program to look up in PATH. If empty, the settings or the order must name it."""
    get_it: str = ""
    """Installation hint, used as the end of a sentence."""
    wire: Wire | None = None
    """Wire format. None if the provider is fixed, so that there is no gateway."""
    default_base_url: str = ""
    """The usual provider's base URL."""
    hosts: tuple[str, ...] = ()
    """Hosts of the provider; see `ModelUser`."""
    default_key_env: str = ""
    """The worker variable that contains the key, unless the settings name another."""
    tells_version: bool = True
    """True if the agent supports `--version`. Other agents would start a conversation."""
    modes: Mapping[AgentMode, str] = field(default_factory=dict)
    """The agent's session mode for each of our modes. Without an entry, the agent stays in its own mode, which asks
    before it acts."""
    sign_in: tuple[str, ...] = ()
    """Sign-in methods that do not need a person."""
    logins: tuple[str, ...] = ()
    """Login files, relative to both the user's home and the agent's home."""
    login_env: str = ""
    """A worker variable that contains a login and replaces the files."""
    options: type[Document] = Document
    bounds_calls: bool = False
    """True if the agent enforces `max_model_calls` itself. Otherwise, only the gateway can."""
    asks: bool = True
    """True if the agent asks before it acts, unless its own settings allow the action."""
    reads_text: bool = False
    """True if the agent reports limits as the last message of a successful turn."""
    ends_at_eof: bool = True
    own_sandbox: bool = False
    argv: tuple[str, ...] = ()
    """Arguments after the program name."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables. `{home}` is replaced with the agent's home."""
    provider: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that select a different provider. `{base_url}` is replaced with its URL."""
    model_variable: str = ""
    key_variable: str = ""

    def launch(self, start: Start) -> Launch:
        """Return the command line, environment, secrets and files for starting the agent.

        Raises:
            ExecutorError: the agent needs a model and none is configured.
        """
        access = start.access
        environment = {name: value.replace("{home}", str(start.home)) for name, value in self.environment.items()}
        if access.base_url:
            environment |= {name: value.replace("{base_url}", access.base_url) for name, value in self.provider.items()}
        if access.model and self.model_variable:
            environment[self.model_variable] = access.model
        keys = {self.key_variable: access.key} if access.key and self.key_variable else {}
        launch = Launch(argv=self.argv, environment=environment, secrets=keys, own_sandbox=self.own_sandbox)
        complete = _COMPLETE.get(self.name)
        return complete(start, launch) if complete else launch


def _complete_opencode(start: Start, launch: Launch) -> Launch:
    base_url, model = start.access.base_url, start.access.model
    config: dict[str, object] = {"autoupdate": False, "share": "disabled"}
    if base_url and not model:
        raise ExecutorError(
            "opencode requires a model name. Set executor.agents.opencode.model, or specify the model in the request"
        )
    if base_url:
        provider = {
            # Part of opencode, so nothing is downloaded for it.
            "npm": "@ai-sdk/openai-compatible",
            "name": "model",
            "options": {"baseURL": base_url, "apiKey": "{env:TIGHTLOOP_MODEL_KEY}"},
            "models": {model: {"name": model}},
        }
        model_ref = f"tightloop/{model}"
        # It uses a small model for titles: unset, that call would go to its default provider.
        config |= {"provider": {"tightloop": provider}, "model": model_ref, "small_model": model_ref}
    elif model:
        config["model"] = model
    return replace(
        launch,
        # It opens an HTTP server on loopback, through which any user of the host could control it.
        secrets={"OPENCODE_SERVER_PASSWORD": secrets.token_urlsafe(24), **launch.secrets},
        files={".config/tightloop/opencode.json": json.dumps(config, indent=2)},
    )


def _complete_gemini(start: Start, launch: Launch) -> Launch:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key" if start.access.key else "oauth-personal"}},
        # Without these it contacts play.googleapis.com.
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    }
    # Without a model it makes an extra call to choose one.
    model = ("-m", start.access.model) if start.access.model else ()
    return replace(launch, argv=(*launch.argv, *model), files={".gemini/settings.json": json.dumps(settings, indent=2)})


def _complete_claude(start: Start, launch: Launch) -> Launch:
    """Add `claudeCode.options`, which the adapter passes to the Agent SDK.

    The SDK passes `extraArgs` to `claude`. The repository's settings, hooks and `CLAUDE.md` are ignored
    because they could change permissions.
    """
    access, options = start.access, start.options
    # --bare shortens a request from about 88 kB to 5 kB, but ignores the login.
    extra = {"safe-mode" if access.login else "bare": ""}
    # On the adapter's own command line the operator's arguments would not reach `claude`.
    extra |= {
        name.removeprefix("--"): value for name, _, value in (argument.partition("=") for argument in start.arguments)
    }
    sdk_options: dict[str, Any] = {"settingSources": ["user"], "extraArgs": extra}
    assert isinstance(options, ClaudeOptions)
    turns = [bound for bound in (options.max_turns, start.choice.max_model_calls) if bound is not None]
    if turns:
        sdk_options["maxTurns"] = min(turns)
    if options.max_budget_usd is not None:
        sdk_options["maxBudgetUsd"] = options.max_budget_usd
    return replace(
        launch,
        # A self-hosted service may need no key, but Claude Code does not start without one.
        secrets={} if access.login else {"ANTHROPIC_API_KEY": access.key or "none"},
        # Keeps its key out of the shells that it starts.
        files={"tool-environment.sh": "unset ANTHROPIC_API_KEY CLAUDE_CODE_OAUTH_TOKEN\n"},
        session_meta={"claudeCode": {"options": sdk_options}},
    )


def _complete_codex(start: Start, launch: Launch) -> Launch:
    top, tables = model_settings(start.access)
    # Keeps its key out of the shells that it starts.
    shell = {"inherit": "core", "set": start.command_path}
    config = {"": top, **tables, **QUIET, "shell_environment_policy": shell}
    environment = {**launch.environment, **NO_REPOSITORY}
    return replace(launch, environment=environment, files={".codex/config.toml": toml(config)})


_COMPLETE: Mapping[str, Callable[[Start, Launch], Launch]] = {
    "opencode": _complete_opencode,
    "gemini": _complete_gemini,
    "claude": _complete_claude,
    "codex-acp": _complete_codex,
}
AGENTS: Mapping[str, AcpAgent] = {
    name: AcpAgent(name=name, options=OPTIONS[name], **table)
    for name, table in read_toml("activities.executor.agent.acp", "agents.toml").items()
}
