"""What is peculiar to each agent that speaks the Agent Client Protocol.

Run: opencode 1.18.33, gemini 0.61.0, claude-agent-acp 0.49.0, copilot 1.0.102. Never run with this table: codex-acp,
from measurements of 0.16.0, and Cursor's `agent acp`, from its documentation.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from activities.execution.agent.port import Launch, ModelAccess
from activities.model_gateway.port import Wire
from tightloop.errors import ExecutorError
from tightloop.executor import AgentMode

Launcher = Callable[[Path, ModelAccess, AgentMode], Launch]
"""From the home, the access to the model and the mode to what is started; `argv` without the program."""

_KEY = "TIGHTLOOP_MODEL_KEY"
_OPENCODE_FILE = ".config/tightloop/opencode.json"


@dataclass(frozen=True, kw_only=True)
class AcpAgent:
    """One row of the table."""

    name: str
    """Of the executor."""
    program: str = ""
    """Looked up in PATH; empty: the settings or the order must name it."""
    get_it: str = ""
    """How to install it, as the end of a sentence."""
    launch: Launcher
    wire: Wire | None = None
    """None: its provider cannot be chosen, there is no gateway."""
    base_url: str = ""
    """Of its usual provider."""
    key_env: str = ""
    tells_version: bool = True
    """It knows `--version`; one that does not begins to talk."""
    modes: Mapping[AgentMode, str] = field(default_factory=dict)
    """Ids of session modes that carry ours; without one the agent stays in its own, which asks before it acts."""
    sign_in: tuple[str, ...] = ()
    """Ways to sign in that need nobody."""
    logins: tuple[str, ...] = ()
    """Login files, relative to the user's home and to the agent's."""
    reads_text: bool = False
    """It reports limits as the last message of a turn that ended well."""
    ends_at_eof: bool = True
    own_sandbox: bool = False


def _json(value: object) -> str:
    return json.dumps(value, indent=2)


def _opencode(home: Path, access: ModelAccess, mode: AgentMode) -> Launch:
    del mode
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "model",
        "options": {"baseURL": access.base_url, "apiKey": f"{{env:{_KEY}}}"},
        "models": {access.model: {"name": access.model}},
    }
    if access.base_url and not access.model:
        raise ExecutorError(
            "opencode needs the name of a model. Set executor.agents.opencode.model or give one with the order"
        )
    config: dict[str, object] = {"autoupdate": False, "share": "disabled"}
    if access.base_url:
        chosen = f"tightloop/{access.model}"
        config |= {"provider": {"tightloop": provider}, "model": chosen, "small_model": chosen}
    elif access.model:
        config["model"] = access.model
    asked = dict.fromkeys(("edit", "bash", "webfetch", "websearch", "external_directory"), "ask")
    return Launch(
        argv=("acp", "--pure"),
        environment={
            "OPENCODE_CONFIG": str(home / _OPENCODE_FILE),
            "OPENCODE_PERMISSION": json.dumps(asked),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_SHARE": "1",
            "OPENCODE_DISABLE_TERMINAL_TITLE": "1",
        },
        # It opens an HTTP server on loopback, through which any user of the host could drive it.
        secrets={"OPENCODE_SERVER_PASSWORD": secrets.token_urlsafe(24), **({_KEY: access.key} if access.key else {})},
        files={_OPENCODE_FILE: _json(config)},
    )


def _gemini(home: Path, access: ModelAccess, mode: AgentMode) -> Launch:
    del home, mode
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key" if access.key else "oauth-personal"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    }
    return Launch(
        argv=("--acp", *(("-m", access.model) if access.model else ())),
        environment={"GOOGLE_GEMINI_BASE_URL": access.base_url} if access.base_url else {},
        secrets={"GEMINI_API_KEY": access.key} if access.key else {},
        files={".gemini/settings.json": _json(settings)},
    )


def _claude(home: Path, access: ModelAccess, mode: AgentMode) -> Launch:
    del mode
    environment = {
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    if access.base_url:
        environment["ANTHROPIC_BASE_URL"] = access.base_url
    if access.model:
        environment["ANTHROPIC_MODEL"] = access.model
    return Launch(argv=(), environment=environment, secrets={"ANTHROPIC_API_KEY": access.key} if access.key else {})


def _copilot(home: Path, access: ModelAccess, mode: AgentMode) -> Launch:
    """It replaces the value of its key wherever it prints: a short one would garble its messages."""
    del mode
    environment = {"COPILOT_HOME": str(home / ".copilot"), "COPILOT_AUTO_UPDATE": "false"}
    if access.base_url:
        environment |= {
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_BASE_URL": access.base_url,
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_WIRE_API": "completions",
        }
    if access.model:
        environment["COPILOT_MODEL"] = access.model
    return Launch(
        argv=("--acp",),
        environment=environment,
        secrets={"COPILOT_PROVIDER_API_KEY": access.key} if access.key else {},
    )


def _codex(home: Path, access: ModelAccess, mode: AgentMode) -> Launch:
    """Never run. Strings of JSON are strings of TOML."""
    del mode
    lines = ["check_for_update_on_startup = false"]
    if access.model:
        lines.append(f"model = {json.dumps(access.model)}")
    if access.base_url:
        lines.append('model_provider = "tightloop"')
    lines += ["[analytics]", "enabled = false", "[feedback]", "enabled = false"]
    lines += ["[features]", *(f"{name} = false" for name in ("plugins", "apps", "remote_plugin", "skill_search"))]
    lines += ["[shell_environment_policy]", 'inherit = "core"']
    if access.base_url:
        lines += [
            "[model_providers.tightloop]",
            'name = "tightloop"',
            f"base_url = {json.dumps(access.base_url)}",
            f"env_key = {json.dumps(_KEY)}",
            'wire_api = "responses"',
            "request_max_retries = 0",
            "stream_max_retries = 0",
        ]
    return Launch(
        argv=(),
        environment={"CODEX_HOME": str(home / ".codex")},
        secrets={_KEY: access.key} if access.key else {},
        files={".codex/config.toml": "\n".join(lines) + "\n"},
    )


def _cursor(home: Path, access: ModelAccess, mode: AgentMode) -> Launch:
    """Never run; from Cursor's documentation. What it may do without asking stands in its own settings."""
    del mode
    return Launch(
        argv=("acp",),
        environment={"CURSOR_CONFIG_DIR": str(home / ".cursor")},
        secrets={"CURSOR_API_KEY": access.key} if access.key else {},
    )


def _any(home: Path, access: ModelAccess, mode: AgentMode) -> Launch:
    """Any agent: its command line comes from the order or the settings, its keys from `environment` of the settings."""
    del home, access, mode
    return Launch(argv=())


AGENTS: Mapping[str, AcpAgent] = {
    agent.name: agent
    for agent in (
        AcpAgent(
            name="opencode",
            program="opencode",
            get_it="npm install -g opencode-ai@1.18.33",
            launch=_opencode,
            wire=Wire.CHAT,
            base_url="https://api.openai.com/v1",
            key_env="OPENAI_API_KEY",
            logins=(".local/share/opencode/auth.json",),
        ),
        AcpAgent(
            name="gemini",
            program="gemini",
            get_it="npm install -g @google/gemini-cli@0.61.0",
            launch=_gemini,
            wire=Wire.GEMINI,
            base_url="https://generativelanguage.googleapis.com",
            key_env="GEMINI_API_KEY",
            sign_in=("gemini-api-key",),
            logins=(".gemini/oauth_creds.json",),
            ends_at_eof=False,
        ),
        AcpAgent(
            name="claude-acp",
            program="claude-agent-acp",
            get_it="npm install -g @agentclientprotocol/claude-agent-acp@0.49.0",
            launch=_claude,
            wire=Wire.MESSAGES,
            base_url="https://api.anthropic.com",
            key_env="ANTHROPIC_API_KEY",
            tells_version=False,
            logins=(".claude/.credentials.json",),
        ),
        AcpAgent(
            name="copilot",
            program="copilot",
            get_it="npm install -g @github/copilot@1.0.102",
            launch=_copilot,
            wire=Wire.CHAT,
            base_url="https://api.openai.com/v1",
            key_env="OPENAI_API_KEY",
            modes=dict.fromkeys(AgentMode, "agent"),
            reads_text=True,
        ),
        AcpAgent(
            name="codex-acp",
            program="codex-acp",
            get_it="from github.com/zed-industries/codex-acp",
            launch=_codex,
            wire=Wire.RESPONSES,
            base_url="https://api.openai.com/v1",
            key_env="OPENAI_API_KEY",
            tells_version=False,
            modes={
                AgentMode.READ_ONLY: "read-only",
                AgentMode.WORKSPACE: "auto",
                AgentMode.FULL: "full-access",
            },
            logins=(".codex/auth.json",),
            ends_at_eof=False,
            own_sandbox=True,
        ),
        AcpAgent(
            name="cursor-acp",
            program="agent",
            get_it="as cursor.com/cli says",
            launch=_cursor,
            key_env="CURSOR_API_KEY",
            sign_in=("cursor_login",),
        ),
        AcpAgent(name="acp", launch=_any, tells_version=False, reads_text=True),
    )
}
