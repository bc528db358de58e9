"""Writes `config.toml` of Codex, which its command line and `codex-acp` read alike."""

import json
import os
from collections.abc import Mapping

from activities.executor.agent.port import ModelAccess

ACCESS_VARIABLE = "TIGHTLOOP_MODEL_KEY"
"""Under this name codex itself gets the key or the gateway's token; the shells that it runs do not get it."""

# At its start and after each turn codex asks git about the repository, whose settings name programs: a status runs the
# filters of `.gitattributes`, which no option turns off. Its commands do not get this variable.
NO_REPOSITORY: Mapping[str, str] = {"GIT_DIR": os.devnull}
# With these off neither program looks up a name outside of the host: without them codex 0.169.0 asked for github.com,
# api.github.com, chatgpt.com and ab.chatgpt.com.
QUIET: Mapping[str, Mapping[str, object]] = {
    "analytics": {"enabled": False},
    "feedback": {"enabled": False},
    "features": {"plugins": False, "apps": False, "remote_plugin": False, "skill_search": False},
}


def model_settings(access: ModelAccess) -> tuple[dict[str, object], dict[str, Mapping[str, object]]]:
    """Return what says which model is used and through which provider: the top of the file, and its tables."""
    top: dict[str, object] = {"check_for_update_on_startup": False}
    if access.model:
        top["model"] = access.model
    if not access.base_url:
        return top, {}
    provider: dict[str, object] = {
        "name": "tightloop",
        "base_url": access.base_url,
        "wire_api": "responses",
        # Measured: with retries it sleeps through a retry-after of an hour without a word; only the workflow waits.
        # Retries of requests and of streams multiply: 30 requests for one answer with status 500.
        "request_max_retries": 0,
        "stream_max_retries": 0,
    }
    if access.key:
        provider["env_key"] = ACCESS_VARIABLE
    elif access.login:
        provider["requires_openai_auth"] = True
    top["model_provider"] = "tightloop"
    return top, {"model_providers.tightloop": provider}


def toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    """Return a TOML document: strings and keys quoted as JSON, which TOML reads the same."""
    parts = []
    for name, table in tables.items():
        lines = [f"{_value(key)} = {_value(value)}" for key, value in table.items()]
        parts.append("\n".join([f"[{name}]", *lines] if name else lines))
    return "\n\n".join(parts) + "\n"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_value(key)} = {_value(entry)}" for key, entry in value.items()) + "}"
    # JSON leaves DEL as it is, which TOML does not allow in a string.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
