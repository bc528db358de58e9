"""OpenAI Codex by its command line: `codex exec --json`, measured with version 0.169.0."""

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from activities.executor.agent.cli.codex_events import CodexReader
from activities.executor.agent.codex_config import ACCESS_VARIABLE, NO_REPOSITORY, QUIET, model_settings, toml
from activities.executor.agent.home import copy_login
from activities.executor.agent.port import EventReader, Launch, ModelAccess
from activities.executor.agent.program import check_program, command_path, find_program
from activities.executor.options import read_options, refuse_questions
from activities.executor.port import Availability
from activities.model.gateway.port import Wire
from activities.process.tree import MARK
from tightloop.executor.model import AgentMode, ResumeToken, WorkOrder
from tightloop.executor.options import CodexOptions
from tightloop.host import state_home, user_file
from tightloop.settings import AgentSettings

NAME = "codex"
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
_HOW_TO_GET = "Install it with: npm install -g @openai/codex@0.169.0"
PLATFORM = {"linux": "unknown-linux", "darwin": "apple-darwin"}.get(sys.platform, sys.platform)
MACHINE = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
_NUMBERS = re.compile(r"(\d+)\.(\d+)")
_SHELL_VARIABLES = (
    "PATH", "HOME", "SHELL", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR", "VIRTUAL_ENV",
    "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PYTHONDONTWRITEBYTECODE", "CODEX_*",
    MARK,
)  # fmt: skip


class CodexAdapter:
    """Starts and reads Codex, which fences what it runs by its own sandbox.

    The commands see no key, no network, none of `SECRET_PLACES` and not the state of tightloop. They write in the
    working tree but for its `.git`, and in a temporary folder of the agent's home.
    """

    name = NAME
    wire = Wire.RESPONSES
    default_base_url = "https://api.openai.com/v1"
    hosts = ("api.openai.com", "auth.openai.com", "chatgpt.com")
    default_key_env = "OPENAI_API_KEY"

    def __init__(self, settings: AgentSettings, writable: tuple[Path, ...] = ()) -> None:
        """Take the settings, and the folders that commands of the host may write."""
        self._settings = settings
        self._writable = writable

    def availability(self) -> Availability:
        """Look for the program and its version."""
        found = check_program(self._program(), repr(self._settings.program or NAME), _HOW_TO_GET)
        numbers = _NUMBERS.match(found.version)
        if numbers is None:
            return found
        if (int(numbers[1]), int(numbers[2])) < OLDEST:
            wanted = ".".join(map(str, OLDEST))
            reason = f"codex {found.version} is too old, {wanted} is needed. {_HOW_TO_GET}@latest"
            return Availability(usable=False, reason=reason, version=found.version)
        return found

    def launch(self, order: WorkOrder, home: Path, access: ModelAccess, resume: ResumeToken | None) -> Launch:
        """Return how to start it.

        Raises:
            ExecutorError: an option is wrong, a person has to be asked, or the login is missing.
        """
        options = read_options(CodexOptions, order.executor, NAME)
        refuse_questions(order.executor, NAME)
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
            # The prompt is on standard input, because other users of the host can read a command line.
            "-",
        )
        return Launch(
            argv=argv,
            environment={
                "HOME": str(home / _OWN),
                "CODEX_HOME": str(home / _HOME),
                "TMPDIR": str(home / _TEMPORARY),
                "RUST_LOG": LOG,
                **NO_REPOSITORY,
            },
            secrets={ACCESS_VARIABLE: access.key} if access.key else {},
            stdin=order.prompt,
            files={f"{_HOME}/config.toml": self._config(order, home, access, options)},
            own_sandbox=not options.network,
            placeholders=PLACEHOLDERS,
        )

    def reader(self, order: WorkOrder) -> EventReader:
        """Return a reader for one run."""
        return CodexReader(resumed=order.resume is not None)

    def _program(self) -> str:
        found = find_program(self._settings.program, NAME)
        return native(Path(found)) if found else ""

    def _config(self, order: WorkOrder, home: Path, access: ModelAccess, options: CodexOptions) -> str:
        top, tables = model_settings(access)
        top |= {
            # `codex exec` has no way to ask.
            "approval_policy": "never",
            "web_search": "disabled",
            # A login shell would put the host's PATH in place of that of the project.
            "allow_login_shell": False,
        }
        if options.effort:
            top["model_reasoning_effort"] = options.effort
        # Only the workflow waits. Measured: without a network it would never end by itself, whatever the bounds of
        # retries are; without these retries it fails after 0.6 s.
        features = {**QUIET["features"], "daemon_auto_start": False, "unbounded_connection_retries": False}
        shell = {
            "inherit": "all",
            "ignore_default_excludes": True,
            "exclude": [ACCESS_VARIABLE],
            "include_only": [*_SHELL_VARIABLES, *self._settings.environment],
            "set": command_path(Path(order.root), (home.parent.parent, *self._writable)),
        }
        if order.executor.mode is AgentMode.FULL or options.network:
            top["sandbox_mode"] = "danger-full-access"
        else:
            top["default_permissions"] = "tightloop"
            tables |= _permissions(order, home)
        fixed = {**QUIET, "features": features, "history": {"persistence": "none"}}
        return toml({"": top, **tables, **fixed, "shell_environment_policy": shell})


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


def _permissions(order: WorkOrder, home: Path) -> dict[str, Mapping[str, object]]:
    writes = order.executor.mode is AgentMode.WORKSPACE
    files = {str(path): "deny" for path in _hidden(order, home) if path.exists()}
    # What is denied is shown again only below a folder that can be written: one with nothing in it comes between.
    files |= {str(home): "write", str(home / _OWN): "read"}
    if (home / _HOME / _LOGIN).exists():
        files[str(home / _HOME / _LOGIN)] = "deny"
    tree = {".": "write" if writes else "read", ".git": "read"}
    profile = "permissions.tightloop"
    return {
        f"{profile}.filesystem": {":root": "read", **files},
        f'{profile}.filesystem.":workspace_roots"': tree,
        f"{profile}.network": {"enabled": False},
    }


def _hidden(order: WorkOrder, home: Path) -> Iterator[Path]:
    """Yield what no command may read: logins of the worker's user, other homes, what tightloop itself keeps."""
    root, homes = Path(order.root), home.parent.parent
    yield from (Path.home() / place for place in SECRET_PLACES)
    yield user_file().parent
    yield homes
    states = [state_home()]
    while states:
        inside = states.pop()
        for path in inside.iterdir() if inside.is_dir() else ():
            # Only what can be written is shown again in a folder that is denied: `projects` with the worktree in it.
            if path in root.parents and order.executor.mode is not AgentMode.WORKSPACE:
                states.append(path)
            elif path not in (root, homes):
                yield path
