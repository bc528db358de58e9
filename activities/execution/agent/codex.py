"""OpenAI Codex by its command line: `codex exec --json`, measured with version 0.169.0."""

import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from activities.execution.agent.codex_events import CodexReader
from activities.execution.agent.home import copy_login
from activities.execution.agent.port import AgentAdapter, EventReader, Launch, ModelAccess
from activities.execution.agent.program import find_program, version_of
from activities.execution.port import Availability
from activities.model_gateway.port import Wire
from activities.process_tree import MARK
from activities.sandbox.visible import STATE_FOLDER
from tightloop.errors import ExecutorError
from tightloop.executor import AgentMode, ExecutorChoice, PermissionRule, ResumeToken, WorkOrder
from tightloop.host import state_home, user_file
from tightloop.settings import AgentSettings
from tightloop.value import Document

NAME = "codex"
BASE_URL = "https://api.openai.com/v1"
KEY_VARIABLE = "OPENAI_API_KEY"
ACCESS_VARIABLE = "TIGHTLOOP_MODEL_KEY"
"""Under this name codex itself gets the key or the gateway's token; the shells that it runs do not get it."""
LOG = "error,codex_sandboxing=warn"
"""What the sandbox did not allow stands nowhere else."""
PLACEHOLDERS = (".agents", ".aws", ".codex")
OLDEST = (0, 138)
"""Versions before this know no permission profiles."""
SECRET_PLACES = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials", ".npmrc", ".pypirc",
    ".codex", ".claude", ".claude.json", ".gemini", ".config/gh", ".config/gcloud", ".config/opencode",
    ".config/tightloop", ".local/share/opencode", ".local/share/keyrings",
)  # fmt: skip
"""In the home of the worker's user: what agents run may not read it. The rest of the disk can be read."""

_OWN = "own"
_HOME = f"{_OWN}/.codex"
_LOGIN = "auth.json"
_TEMPORARY = "tmp"
_HOW_TO_GET = "Install it with: npm install -g @openai/codex"
PLATFORM = {"linux": "unknown-linux", "darwin": "apple-darwin"}.get(sys.platform, sys.platform)
MACHINE = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
_NUMBERS = re.compile(r"(\d+)\.(\d+)")
_SHELL_VARIABLES = (
    "PATH", "HOME", "SHELL", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR", "VIRTUAL_ENV",
    "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PYTHONDONTWRITEBYTECODE", "CODEX_*",
    MARK,
)  # fmt: skip


class CodexOptions(Document):
    """What a request may set in `executor.options`."""

    network: bool = False
    """Let the commands that it runs see the network."""
    effort: str = ""
    """`model_reasoning_effort`, such as `low`, `medium` or `high`; empty: the model's own."""


class CodexAdapter(AgentAdapter):
    """Starts and reads Codex, which fences what it runs by its own sandbox.

    The commands see no key, no network, none of `SECRET_PLACES` and not the state of tightloop. They write in the
    working tree but for its `.git`, and in a temporary folder of the agent's home.
    """

    def __init__(self, settings: AgentSettings) -> None:
        """Take the settings of this agent on this host."""
        self._settings = settings

    @property
    def name(self) -> str:
        """The executor's name."""
        return NAME

    @property
    def wire(self) -> Wire:
        """How it talks to its model."""
        return Wire.RESPONSES

    @property
    def default_base_url(self) -> str:
        """Of its provider."""
        return BASE_URL

    @property
    def default_key_env(self) -> str:
        """Variable of the worker with its key."""
        return KEY_VARIABLE

    def availability(self) -> Availability:
        """Look for the program and its version."""
        program = self._program()
        if not program:
            looked_for = self._settings.program or NAME
            return Availability(usable=False, reason=f"the program {looked_for!r} was not found. {_HOW_TO_GET}")
        version = version_of(program)
        numbers = _NUMBERS.match(version)
        if numbers is None:
            return Availability(usable=False, reason=f"{program} --version does not work. {_HOW_TO_GET}")
        if (int(numbers[1]), int(numbers[2])) < OLDEST:
            wanted = ".".join(map(str, OLDEST))
            reason = f"codex {version} is too old, {wanted} is needed. {_HOW_TO_GET}@latest"
            return Availability(usable=False, reason=reason, version=version)
        return Availability(version=version)

    def launch(self, order: WorkOrder, home: Path, access: ModelAccess, resume: ResumeToken | None) -> Launch:
        """Return how to start it.

        Raises:
            ExecutorError: an option is wrong, a person shall be asked, or there is no login to use.
        """
        options = _options(order.executor)
        if order.executor.permissions is PermissionRule.ASK and order.executor.mode is not AgentMode.READ_ONLY:
            raise ExecutorError(
                f"{NAME} cannot ask a person before it acts. Start anew with one that can, such as opencode, "
                "or with permissions allow or deny"
            )
        if self._settings.login:
            source = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
            copy_login(source / _LOGIN, home / _HOME / _LOGIN)
        (home / _TEMPORARY).mkdir(mode=0o700, exist_ok=True)
        argv = (
            self._program() or self._settings.program or NAME,
            "exec",
            *self._settings.arguments,
            "--json",
            "--skip-git-repo-check",
            *(("resume", resume.session_id) if resume is not None else ()),
            "-",
        )
        return Launch(
            argv=argv,
            environment={
                "HOME": str(home / _OWN),
                "CODEX_HOME": str(home / _HOME),
                "TMPDIR": str(home / _TEMPORARY),
                "RUST_LOG": LOG,
            },
            secrets={ACCESS_VARIABLE: access.key} if access.key else {},
            stdin=order.prompt,
            files={f"{_HOME}/config.toml": self._config(order, home, access, options)},
            own_sandbox=True,
            placeholders=PLACEHOLDERS,
        )

    def reader(self, order: WorkOrder) -> EventReader:
        """Return a reader for one run."""
        return CodexReader(resumed=order.resume is not None)

    def _program(self) -> str:
        found = find_program(self._settings.program, NAME)
        return native(Path(found)) if found else ""

    def _config(self, order: WorkOrder, home: Path, access: ModelAccess, options: CodexOptions) -> str:
        top: dict[str, object] = {
            "approval_policy": "never",
            "check_for_update_on_startup": False,
            "web_search": "disabled",
            # A login shell would put the host's PATH in place of that of the project.
            "allow_login_shell": False,
        }
        if access.model:
            top["model"] = access.model
        if options.effort:
            top["model_reasoning_effort"] = options.effort
        tables: dict[str, Mapping[str, object]] = {
            **_QUIET,
            **self._shells(),
            **_provider(access, login=self._settings.login),
        }
        if access.base_url:
            top["model_provider"] = "tightloop"
        if order.executor.mode is AgentMode.FULL:
            top["sandbox_mode"] = "danger-full-access"
        else:
            top["default_permissions"] = "tightloop"
            tables |= _permissions(order, home, options)
        return toml({"": top, **tables})

    def _shells(self) -> dict[str, Mapping[str, object]]:
        return {
            "shell_environment_policy": {
                "inherit": "all",
                "ignore_default_excludes": True,
                "exclude": [ACCESS_VARIABLE],
                "include_only": [*_SHELL_VARIABLES, *self._settings.environment],
            }
        }


_QUIET: Mapping[str, Mapping[str, object]] = {
    "analytics": {"enabled": False},
    "feedback": {"enabled": False},
    "history": {"persistence": "none"},
    "features": {
        "plugins": False,
        "apps": False,
        "remote_plugin": False,
        "skill_search": False,
        "daemon_auto_start": False,
        # Only the workflow waits: without a network it would never end by itself.
        "unbounded_connection_retries": False,
    },
}


def native(program: Path) -> str:
    """Return codex itself for the node script that npm installs: killed, that would leave codex running."""
    script = program.resolve()
    if script.suffix != ".js":
        return str(program)
    package = script.parent.parent
    folders = (package.parent.glob("codex-*/vendor"), package.glob("node_modules/@openai/codex-*/vendor"))
    for vendor in (*folders[0], *folders[1], package / "vendor"):
        for found in sorted(vendor.glob(f"{MACHINE}-{PLATFORM}*/**/codex")):
            if found.is_file() and os.access(found, os.X_OK):
                return str(found)
    return str(program)


def toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    """Return a TOML document: strings and keys quoted as JSON, which TOML reads the same."""
    parts = []
    for name, table in tables.items():
        lines = [f"{_value(key)} = {_value(value)}" for key, value in table.items()]
        parts.append("\n".join([f"[{name}]", *lines] if name else lines))
    return "\n\n".join(parts) + "\n"


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _provider(access: ModelAccess, *, login: bool) -> dict[str, Mapping[str, object]]:
    if not access.base_url:
        return {}
    provider: dict[str, object] = {
        "name": "tightloop",
        "base_url": access.base_url,
        "wire_api": "responses",
        "request_max_retries": 0,
        "stream_max_retries": 0,
    }
    if access.key:
        provider["env_key"] = ACCESS_VARIABLE
    elif login:
        provider["requires_openai_auth"] = True
    return {"model_providers.tightloop": provider}


def _permissions(order: WorkOrder, home: Path, options: CodexOptions) -> dict[str, Mapping[str, object]]:
    writes = order.executor.mode is AgentMode.WORKSPACE
    files = {str(path): "deny" for path in _hidden(order, home) if path.exists()}
    # What is denied is shown again only below a folder that can be written: one with nothing in it comes between.
    files |= {str(home): "write", str(home / _OWN): "read"}
    if (home / _HOME / _LOGIN).exists():
        files[str(home / _HOME / _LOGIN)] = "deny"
    tree = {".": "write" if writes else "read", ".git": "read"}
    if (Path(order.root) / STATE_FOLDER).is_dir():
        tree[STATE_FOLDER] = "deny"
    profile = "permissions.tightloop"
    return {
        f"{profile}.filesystem": {":root": "read", **files},
        f'{profile}.filesystem.":workspace_roots"': tree,
        f"{profile}.network": {"enabled": options.network},
    }


def _hidden(order: WorkOrder, home: Path) -> Iterator[Path]:
    """Yield what no command may read: logins of the worker's user, other homes, what tightloop itself keeps."""
    root, homes = Path(order.root), home.parent.parent
    yield from (Path.home() / place for place in SECRET_PLACES)
    yield user_file().parent
    yield homes
    around = [folder for folder in root.parents if folder.name == STATE_FOLDER]
    states = [state_home()]
    if order.executor.mode is AgentMode.WORKSPACE:
        yield from around
    else:
        # Only what can be written is shown again in a folder that is denied.
        states += around
    while states:
        inside = states.pop()
        for path in inside.iterdir() if inside.is_dir() else ():
            if path in root.parents and path not in around:
                states.append(path)
            elif path not in (root, homes, *around):
                yield path


def _options(choice: ExecutorChoice) -> CodexOptions:
    try:
        return CodexOptions.model_validate(choice.options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ExecutorError(
            f"option {place!r} of the executor {NAME} is wrong: {first['msg']}. It knows network and effort"
        ) from None
