"""An agent's program, home folder and configuration files."""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from activities.artifacts.port import file_stem
from activities.executor.agent.host import ModelAccess
from activities.executor.delivery import remove_old
from activities.executor.port import Availability
from activities.process import ProcessRequest, Reason, run_process, search_path
from activities.workspace.ownership import write_atomically
from tightloop.errors import ExecutorError
from tightloop.executor.model import DENIED_CHARACTERS, DENIED_LINES, SUMMARY_CHARACTERS, EventKind, ExecutorEvent
from tightloop.host import private_folder
from tightloop.host.programs import find_trusted_program, trusted_path
from tightloop.value import shorten

VERSION_LIMIT_S = 10.0

_VERSION = re.compile(r"\d+(?:\.\d+)+[\w.+-]*")


def find_program(configured: str, *usual: str) -> str:
    """Return the absolute path of the first program that exists, or "" if none does.

    Args:
        configured: the name or path from the settings. If it is given, `usual` is ignored.
        usual: the names that the agent's installers use, best first.
    """
    names = (configured,) if configured else usual
    return next((str(path) for name in names if (path := find_trusted_program(name))), "")


def command_path(root: Path, outside: tuple[Path, ...]) -> dict[str, str]:
    """Return `PATH` and `VIRTUAL_ENV` for commands in an agent's sandbox.

    The project's programs are found first. Writable folders are excluded from the worker's PATH, because
    Codex searches PATH for its sandbox program. Codex already ignores programs in the working tree.

    Args:
        root: the working tree.
        outside: other folders to exclude.
    """
    project = search_path(root)
    environment_bins = [str(Path(environment, "bin")) for name, environment in project.items() if name == "VIRTUAL_ENV"]
    # The path of the worker comes last: a tool of the project must win over one of the host.
    folders = (*environment_bins, str(Path(sys.executable).parent), trusted_path(root, *outside))
    return {**project, "PATH": os.pathsep.join(folders)}


def check_program(program: str, looked_for: str, get_it: str) -> Availability:
    """Check a program. Return its version, or the reason why the program cannot be used."""
    if not program:
        return Availability(usable=False, reason=f"the program {looked_for} was not found. {get_it}")
    version = version_of(program)
    if not version:
        return Availability(usable=False, reason=f"{program} --version failed. {get_it}")
    return Availability(version=version)


def version_of(program: str) -> str:
    """Return the first version number that `--version` prints, or "" if the program fails.

    This takes at most `VERSION_LIMIT_S`. The result is cached until the program file changes.
    """
    try:
        # The mtime is part of the cache key, so that an update is noticed without a restart.
        return _ask_version(program, Path(program).stat().st_mtime_ns)
    except (OSError, _NoVersionError):
        return ""


class _NoVersionError(Exception):
    """Raised if a program reports no version. A return value would be cached by `lru_cache`."""


@lru_cache(maxsize=32)
def _ask_version(program: str, changed_ns: int) -> str:
    del changed_ns
    trusted = find_trusted_program(program)
    if trusted is None:
        raise _NoVersionError
    request = ProcessRequest(
        program=trusted,
        arguments=("--version",),
        # An agent may read settings of its working folder, or create files in it.
        cwd=Path("/"),
        inherit=False,
        wall_limit_s=VERSION_LIMIT_S,
        grace_s=0.5,
    )
    result = run_process(request, cancelled=lambda: False, started=lambda _: None)
    match = _VERSION.search(result.output.decode("utf-8", "replace"))
    if result.reason is not Reason.EXITED or result.exit_code != 0 or match is None:
        raise _NoVersionError
    return match.group()


def agent_home(homes: Path, episode_id: str, agent: str) -> Path:
    """Create and return the agent's home `homes/<16 hex digits of the episode>/<agent>` with mode 0700.

    All deliveries of an episode share this folder, because it contains the agent's sessions. `homes` must
    be outside the temporary folder, because some agents' sandboxes cannot see their own programs there.
    """
    # Below the temporary folder the sandbox of codex-acp 0.16.0 failed: "execvp codex-linux-sandbox: No such file".
    episode = homes / file_stem(episode_id)
    home = episode / agent
    private_folder(home)
    # `sweep_homes` checks this folder's mtime, which changes deeper in it do not update.
    os.utime(episode)
    return home


def write_files(home: Path, files: Mapping[str, str]) -> None:
    """Write settings files to an agent's home. Each file is written atomically with mode 0600.

    Raises:
        ExecutorError: a file cannot be written, or its path leaves the home, for example through a
            symlink.
    """
    for name, text in files.items():
        relative, target = PurePosixPath(name), home / name
        # The agent can write in its home, also a symlink where our next settings file belongs.
        inside = target.parent.resolve().is_relative_to(home.resolve())
        if relative.is_absolute() or ".." in relative.parts or not inside:
            raise ExecutorError(f"the settings file {name!r} points outside the agent's home. Remove the folder {home}")
        try:
            write_atomically(target, text.encode(), durable=True)
        except OSError as error:
            raise ExecutorError(
                f"cannot write the agent's settings to {target}: {error.strerror}. Free up disk space or remove {home}"
            ) from None


def copy_login(source: Path, target: Path) -> None:
    """Copy an agent's login file to its home with mode 0600, unless the copy is up to date.

    The agent renews its login in the copy, which may invalidate the original. A copy that is newer than
    the source is therefore kept.

    Raises:
        ExecutorError: the login is missing or cannot be read.
    """
    try:
        read = source.stat()
        # A symlink is replaced: the agent could have pointed it at a file of the user.
        if target.is_file() and not target.is_symlink() and target.stat().st_mtime >= read.st_mtime:
            return
        write_atomically(target, source.read_bytes(), durable=True)
        # With the source's mtime, the copy is newer only once the agent has changed it.
        os.utime(target, (read.st_atime, read.st_mtime))
    except FileNotFoundError:
        raise ExecutorError(
            f"the login file {source} is missing. As the user that runs the worker, log in with the agent's own "
            "command, or set executor.agents.<name>.login to false and provide a key"
        ) from None
    except OSError as error:
        raise ExecutorError(f"cannot copy the login file {source} to {target}: {error.strerror}") from None


def sweep_homes(homes: Path, older_than: timedelta) -> int:
    """Remove the homes of episodes without a recent delivery. Return the number of homes removed."""
    return remove_old(homes, lambda _: older_than)


ACCESS_VARIABLE = "TIGHTLOOP_MODEL_KEY"
"""The variable through which codex itself gets the key or the gateway's token. Its shells do not inherit it."""

# At its start and after each turn codex runs git in the repository, whose settings can name programs: a status runs the
# filters of `.gitattributes`, which no option disables. Its commands do not get this variable.
NO_REPOSITORY: Mapping[str, str] = {"GIT_DIR": os.devnull}
# With these disabled neither program contacts other hosts: otherwise codex 0.169.0 looked up github.com,
# api.github.com, chatgpt.com and ab.chatgpt.com.
QUIET: Mapping[str, Mapping[str, object]] = {
    "analytics": {"enabled": False},
    "feedback": {"enabled": False},
    "features": {"plugins": False, "apps": False, "remote_plugin": False, "skill_search": False},
}


def model_settings(access: ModelAccess) -> tuple[dict[str, object], dict[str, Mapping[str, object]]]:
    """Build the settings that select the model and its provider.

    Returns:
        The top-level values of the settings file, and its tables.
    """
    top: dict[str, object] = {"check_for_update_on_startup": False}
    if access.model:
        top["model"] = access.model
    # Without a URL the provider stays built in, and with it the login.
    if not access.base_url:
        return top, {}
    provider: dict[str, object] = {
        "name": "tightloop",
        "base_url": access.base_url,
        "wire_api": "responses",
        # Measured: with retries it sleeps silently through a retry-after of an hour; only the workflow may wait.
        # Request and stream retries multiply: 30 requests for one answer with status 500.
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
    """Format a TOML document. Strings and keys are quoted as in JSON, which is also valid TOML."""
    parts = []
    for name, table in tables.items():
        lines = [f"{_value(key)} = {_value(value)}" for key, value in table.items()]
        parts.append("\n".join([f"[{name}]", *lines] if name else lines))
    return "\n\n".join(parts) + "\n"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_value(key)} = {_value(entry)}" for key, entry in value.items()) + "}"
    # JSON leaves DEL unescaped, which TOML forbids in strings.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def decode_event(line: str) -> dict[str, Any] | None:
    """Parse the event in a line of output. Return None if the line is not a JSON object."""
    try:
        value = json.loads(line)
    # Deeply nested brackets in a line exceed the parser's recursion limit.
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def words(table: Mapping[str, Any], name: str) -> str:
    """Return the text in a field, or "" if the field is missing or has another type."""
    value = table.get(name)
    return value if isinstance(value, str) else ""


def mapping(value: object) -> dict[str, Any]:
    """Return `value` if it is an object, or an empty dict."""
    return value if isinstance(value, dict) else {}


def part(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the object in a field, or an empty dict if the field is missing or has another type."""
    return mapping(table.get(name))


def parts(table: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects from a field that contains a list."""
    value = table.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def number(table: Mapping[str, Any], name: str) -> int | None:
    """Return the integer in a field, or None if the field is missing or has another type."""
    value = table.get(name)
    # In Python, True and False are integers.
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def message_text(message: Mapping[str, Any]) -> str:
    """Join the text blocks of a message with newlines."""
    return "\n".join(text for block in parts(message, "content") if (text := words(block, "text")))


def event(kind: EventKind, text: str = "", *, session_id: str = "", exit_code: int | None = None) -> ExecutorEvent:
    """Create an event. Its texts are truncated to their maximum length."""
    return ExecutorEvent(kind=kind, text=shorten(text, SUMMARY_CHARACTERS), session_id=session_id, exit_code=exit_code)


def denied_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Remove duplicate denied actions, and limit their number and length."""
    return tuple(dict.fromkeys(shorten(" ".join(line.split()), DENIED_CHARACTERS) for line in lines))[:DENIED_LINES]


def local_now() -> datetime:
    """Return the current time in the host's time zone.

    Agents report times of day without a time zone.
    """
    return datetime.now(UTC).astimezone()
