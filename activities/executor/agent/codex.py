"""Codex: event reader and adapter."""

import os
import platform
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from activities.executor.agent.host import Ending, EventReader, Launch, ModelAccess
from activities.executor.agent.program import (
    ACCESS_VARIABLE,
    NO_REPOSITORY,
    QUIET,
    check_program,
    command_path,
    copy_login,
    decode_event,
    denied_lines,
    event,
    find_program,
    local_now,
    model_settings,
    number,
    part,
    parts,
    toml,
    words,
)
from activities.executor.delivery import read_options, refuse_questions
from activities.executor.port import Availability
from activities.model.gateway.wire import Wire
from activities.process.start import MARK
from tightloop.executor.limit import LimitSignal, detect, limited_outcome
from tightloop.executor.model import (
    SUMMARY_CHARACTERS,
    AgentMode,
    ErrorKind,
    EventKind,
    ExecutorEvent,
    ExecutorOutcome,
    ExecutorStatus,
    ResumeToken,
    Usage,
    WorkOrder,
)
from tightloop.executor.options import CodexOptions
from tightloop.host import state_home, user_file
from tightloop.settings import AgentSettings
from tightloop.value import clip, shorten

# The exit code is 1, as for a failed turn.
NO_SESSION = "no rollout found for thread id"
# Measured: codex survives a kill of the node script that started it, and still holds its thread.
SESSION_IN_USE = "already has an active writer"
DENIED_KEPT = 50
_TOOLS = ("command_execution", "mcp_tool_call", "web_search", "file_change")

_READ_ONLY = re.compile(r"read-only file system|operation not permitted|permission denied", re.IGNORECASE)
_NO_MODEL = re.compile(r"unexpected status 404|model\W.{0,80}\W(?:does not exist|not found|is not supported)")
_VIOLATION = re.compile(r"recorded sandbox violation: (.{1,200})")
"""Log line for a sandbox violation. A command that fails at once in the sandbox produces no event."""
_OFFLINE = "Connection failed"
_CONFIG = ("Error loading config.toml", "error: unexpected argument", "error: invalid value")


class CodexReader(EventReader):
    """Reads the events of one run.

    The events `turn.failed` and `error` are failures. An item of type `error` is only a warning.
    """

    def __init__(self, *, resumed: bool = False, now: Callable[[], datetime] = local_now) -> None:
        """Prepare to read a run.

        Args:
            resumed: whether the thread has earlier runs. If so, its token counts include those runs.
            now: returns the current time, for limits that reset at a time of day.
        """
        self._resumed = resumed
        self._now = now
        self._began = False
        self._completed = False
        self._failed = False
        self._error = ""
        self._message = ""
        self._usage = Usage()
        self._commands = 0
        self._failures = 0
        self._last_failure = ""
        self._changes = 0
        self._denied: deque[str] = deque(maxlen=DENIED_KEPT)

    @property
    def finished(self) -> bool:
        return self._completed or self._failed

    def feed(self, line: str) -> list[ExecutorEvent]:
        decoded = decode_event(line)
        if decoded is None:
            return [event(EventKind.UNKNOWN, line)] if line.strip() else []
        match words(decoded, "type"):
            case "thread.started":
                self._began = True
                return [event(EventKind.SESSION, session_id=words(decoded, "thread_id"))]
            case "turn.started":
                return [event(EventKind.STARTED)]
            case "item.started":
                item = part(decoded, "item")
                return [
                    event(EventKind.TOOL_START if words(item, "type") in _TOOLS else EventKind.UNKNOWN, _name(item))
                ]
            case "item.completed":
                return [self._complete_item(part(decoded, "item"))]
            case "error":
                self._error = words(decoded, "message")
                again = self._error.startswith("Reconnecting")
                return [event(EventKind.RETRYING if again else EventKind.WARNING, self._error)]
            case "turn.completed":
                self._completed, used = True, part(decoded, "usage")
                self._usage = Usage(
                    input_tokens=number(used, "input_tokens"),
                    cached_tokens=number(used, "cached_input_tokens"),
                    output_tokens=number(used, "output_tokens"),
                )
                tokens = f"input {self._usage.input_tokens}, output {self._usage.output_tokens} tokens of the thread"
                return [event(EventKind.USAGE, tokens), event(EventKind.FINISHED, "turn completed")]
            case "turn.failed":
                self._failed = True
                self._error = words(part(decoded, "error"), "message") or self._error
                return [event(EventKind.FINISHED, f"turn failed: {self._error}")]
            case kind:
                return [event(EventKind.UNKNOWN, kind)]

    def unknown_session(self, ending: Ending) -> bool:
        """Return whether codex could not find the thread to resume."""
        return not self._began and NO_SESSION in ending.output_end

    def read_outcome(self, ending: Ending) -> ExecutorOutcome:
        # The log is on standard error, which is complete only now.
        self._denied.extend(f"a command: {match[1]}" for match in _VIOLATION.finditer(ending.output_end))
        denied = denied_lines(self._denied)
        # Measured: in a read-only sandbox the command fails, the model claims success, and codex exits with 0.
        if self._completed and self._denied and not self._changes and self._failures == self._commands:
            error = f"codex did nothing because its sandbox denied these actions: {'; '.join(denied)}"
            outcome = ExecutorOutcome(status=ExecutorStatus.REFUSED, error=clip(error, SUMMARY_CHARACTERS))
        elif self._completed:
            outcome = ExecutorOutcome(status=ExecutorStatus.COMPLETED)
        else:
            outcome = self._judge_error(self._error) if self._failed else self._judge_lines(ending)
        summary = self._message
        if self._failures:
            failed = f"{self._failures} of {self._commands} commands failed, most recently {self._last_failure}"
            summary = f"{shorten(summary, SUMMARY_CHARACTERS - 240)} [{failed}]".strip()
        return outcome.evolve(
            summary=shorten(summary, SUMMARY_CHARACTERS),
            exit_code=ending.exit_code,
            # codex counts the whole thread; the share of this run cannot be told.
            usage=Usage() if self._resumed else self._usage,
            denied=denied,
        )

    def _complete_item(self, item: dict[str, Any]) -> ExecutorEvent:
        match words(item, "type"):
            case "command_execution":
                self._commands += 1
                code, command, status = number(item, "exit_code"), words(item, "command"), words(item, "status")
                if status != "completed" or code != 0:
                    self._failures += 1
                    how = f"exit {code}" if code is not None else status
                    self._last_failure = f"{shorten(command, 160)} ({how})"
                    if status == "declined" or _READ_ONLY.search(words(item, "aggregated_output")):
                        self._denied.append(command)
                return event(EventKind.TOOL_END, f"{command}: {status}", exit_code=code)
            case "file_change":
                paths = ", ".join(words(change, "path") for change in parts(item, "changes"))
                if words(item, "status") == "completed":
                    self._changes += 1
                    return event(EventKind.FILE_CHANGE, paths)
                self._denied.append(f"change {paths}")
                return event(EventKind.TOOL_END, f"change {paths}: {words(item, 'status')}")
            case "agent_message":
                self._message = shorten(words(item, "text"), SUMMARY_CHARACTERS)
                return event(EventKind.MESSAGE, words(item, "text"))
            case "reasoning":
                return event(EventKind.MESSAGE, words(item, "text"))
            case "error":
                return event(EventKind.WARNING, words(item, "message"))
            case "mcp_tool_call" | "web_search":
                return event(EventKind.TOOL_END, _name(item))
            case kind:
                return event(EventKind.UNKNOWN, kind)

    def _judge_error(self, error: str) -> ExecutorOutcome:
        code = "http_connection_failed" if error.startswith(_OFFLINE) else ""
        signal = LimitSignal(text=error, error_code=code, body={"message": error})
        if limit := detect(signal, now=self._now()):
            return limited_outcome(limit, clip(error, SUMMARY_CHARACTERS))
        if _NO_MODEL.search(error):
            advice = "Set a different model or the provider's base_url for the executor codex"
            return _end(ExecutorStatus.FATAL, f"codex cannot use the model: {error}. {advice}", ErrorKind.CONFIG)
        return _end(ExecutorStatus.FAILED, f"the codex turn failed: {error or 'no reason given'}", ErrorKind.PROTOCOL)

    def _judge_lines(self, ending: Ending) -> ExecutorOutcome:
        """Return the outcome of a run that ended without a final event, based on its last output."""
        end = ending.output_end.strip()
        # Once a thread has started, such a phrase may be output of a command.
        if not self._began and any(phrase in end for phrase in _CONFIG):
            return _end(ExecutorStatus.FATAL, f"codex rejected its settings: {end}", ErrorKind.CONFIG)
        if SESSION_IN_USE in end:
            return _end(
                ExecutorStatus.FAILED, f"another codex process is still using this thread: {end}", ErrorKind.CRASHED
            )
        signal = LimitSignal(text=end, body={"message": self._error})
        if limit := detect(signal, now=self._now()):
            return limited_outcome(limit, clip(self._error or end, SUMMARY_CHARACTERS))
        error = self._error or end or "no output"
        return _end(
            ExecutorStatus.FAILED,
            f"codex exited with {ending.exit_code} before it finished its turn: {error}",
            ErrorKind.CRASHED,
        )


def _end(status: ExecutorStatus, error: str, kind: ErrorKind) -> ExecutorOutcome:
    return ExecutorOutcome(status=status, error=shorten(error, SUMMARY_CHARACTERS), error_kind=kind)


def _name(item: dict[str, Any]) -> str:
    values = (words(item, name) for name in ("command", "tool", "query", "type"))
    return next((name for name in values if name), "")


NAME = "codex"
LOG = "error,codex_sandboxing=warn"
"""Log level at which the sandbox's denials are logged. They are not reported anywhere else."""
PLACEHOLDERS = (".agents", ".aws", ".codex")
OLDEST = (0, 138)
"""The oldest supported version. Older ones do not have permission profiles."""
SECRET_PLACES = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials", ".npmrc", ".pypirc",
    ".codex", ".claude", ".claude.json", ".gemini", ".config/gh", ".config/gcloud", ".config/opencode",
    ".config/tightloop", ".local/share/opencode", ".local/share/keyrings",
)  # fmt: skip
"""Paths in the worker user's home that agents' commands may not read. The rest of the disk is readable."""

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
    """Runs Codex, which has its own sandbox for commands.

    The commands cannot see any key, the network, `SECRET_PLACES` or tightloop's state. They can write to the working
    tree, except for its `.git`, and to a temporary folder in the agent's home.
    """

    name = NAME
    wire = Wire.RESPONSES
    default_base_url = "https://api.openai.com/v1"
    hosts = ("api.openai.com", "auth.openai.com", "chatgpt.com")
    default_key_env = "OPENAI_API_KEY"

    def __init__(self, settings: AgentSettings, writable: tuple[Path, ...] = ()) -> None:
        self._settings = settings
        self._writable = writable

    def availability(self) -> Availability:
        availability = check_program(self._program(), repr(self._settings.program or NAME), _HOW_TO_GET)
        numbers = _NUMBERS.match(availability.version)
        if numbers is None:
            return availability
        if (int(numbers[1]), int(numbers[2])) < OLDEST:
            minimum = ".".join(map(str, OLDEST))
            reason = f"codex {availability.version} is too old: {minimum} or newer is required. {_HOW_TO_GET}@latest"
            return Availability(usable=False, reason=reason, version=availability.version)
        return availability

    def launch(self, order: WorkOrder, home: Path, access: ModelAccess, resume: ResumeToken | None) -> Launch:
        """Return the command line, environment, secrets and files for starting the agent.

        Raises:
            ExecutorError: an option is invalid, a person would have to be asked, or the login is missing.
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
            # A working tree need not be a git repository; without this it refuses to start in other folders.
            "--skip-git-repo-check",
            *(("resume", resume.session_id) if resume is not None else ()),
            # The prompt is on standard input, because other users of the host can read command lines.
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
        return CodexReader(resumed=order.resume is not None)

    def _program(self) -> str:
        program = find_program(self._settings.program, NAME)
        return native(Path(program)) if program else ""

    def _config(self, order: WorkOrder, home: Path, access: ModelAccess, options: CodexOptions) -> str:
        top, tables = model_settings(access)
        top |= {
            # `codex exec` cannot ask.
            "approval_policy": "never",
            "web_search": "disabled",
            # A login shell would replace the project's PATH by the host's.
            "allow_login_shell": False,
        }
        if options.effort:
            top["model_reasoning_effort"] = options.effort
        # Only the workflow waits. Measured: without a network codex would retry forever, whatever its retry limits;
        # without these retries it fails after 0.6 s.
        features = {**QUIET["features"], "daemon_auto_start": False, "unbounded_connection_retries": False}
        shell = {
            "inherit": "all",
            "ignore_default_excludes": True,
            "exclude": [ACCESS_VARIABLE],
            # A list of allowed names: the default patterns of codex miss keys with other names.
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
    """Return the path of the codex binary that npm's node script runs.

    Killing only the script would leave codex running.
    """
    script = program.resolve()
    if script.suffix != ".js":
        return str(program)
    package = script.parent.parent
    folders = (package.parent.glob("codex-*/vendor"), package.glob("node_modules/@openai/codex-*/vendor"))
    for vendor in (*folders[0], *folders[1], package / "vendor"):
        for binary in sorted(vendor.glob(f"{MACHINE}-{PLATFORM}*/**/codex")):
            if binary.is_file() and os.access(binary, os.X_OK):
                return str(binary)
    return str(program)


def _permissions(order: WorkOrder, home: Path) -> dict[str, Mapping[str, object]]:
    writes = order.executor.mode is AgentMode.WORKSPACE
    root, homes = Path(order.root), home.parent.parent
    # Not readable for commands: logins of the worker's user, other homes, tightloop's own state.
    hidden = [*(Path.home() / folder for folder in SECRET_PLACES), user_file().parent, homes]
    states = [state_home()]
    while states:
        inside = states.pop()
        for path in inside.iterdir() if inside.is_dir() else ():
            # Only writable paths are restored inside a denied folder: `projects` with the worktree in it.
            if path in root.parents and not writes:
                states.append(path)
            elif path not in (root, homes):
                hidden.append(path)
    files = {str(path): "deny" for path in hidden if path.exists()}
    # Denied paths are restored only below a writable folder, so an empty one is put in between.
    files |= {str(home): "write", str(home / _OWN): "read"}
    # codex itself reads the login outside of its sandbox; only its commands must not.
    if (home / _HOME / _LOGIN).exists():
        files[str(home / _HOME / _LOGIN)] = "deny"
    tree = {".": "write" if writes else "read", ".git": "read"}
    profile = "permissions.tightloop"
    return {
        f"{profile}.filesystem": {":root": "read", **files},
        f'{profile}.filesystem.":workspace_roots"': tree,
        f"{profile}.network": {"enabled": False},
    }
