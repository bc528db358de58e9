"""Claude Code by its command line: `claude -p --output-format stream-json`, measured with version 2.1.197."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from uuid import UUID, uuid5

from pydantic import Field, ValidationError

from activities.execution.agent.claude_events import ClaudeReader
from activities.execution.agent.home import copy_login
from activities.execution.agent.port import AgentAdapter, EventReader, Launch, ModelAccess
from activities.execution.agent.program import find_program, version_of
from activities.execution.agent.stream_json import decoded, words
from activities.execution.port import Availability
from activities.model_gateway.port import Wire
from tightloop.errors import ExecutorError
from tightloop.executor import AgentMode, ExecutorChoice, PermissionRule, ResumeToken, WorkOrder
from tightloop.settings import AgentSettings
from tightloop.value import Document

NAME = "claude"
BASE_URL = "https://api.anthropic.com"
KEY_VARIABLE = "ANTHROPIC_API_KEY"
LOGIN_VARIABLE = "CLAUDE_CODE_OAUTH_TOKEN"
"""What `claude setup-token` prints. Claude itself keeps it from the tools it runs."""
RETRIES = 2
"""Only the workflow waits for long; its own default are ten, with growing delays."""
ALLOWED_TOOLS = ("Bash", "Edit", "Write", "NotebookEdit", "WebFetch", "WebSearch")

SESSIONS_TRIED = 10

_CONFIG = ".claude"
_CREDENTIALS = ".credentials.json"
_TOOL_ENVIRONMENT = "tool-environment.sh"
_SESSIONS = UUID("7d0c3a52-4a0e-5b0f-9c39-2f1b8f5d9f10")
_HOW_TO_GET = "Install it with: npm install -g @anthropic-ai/claude-code"


class ClaudeOptions(Document):
    """What a request may set in `executor.options`."""

    max_turns: Annotated[int, Field(ge=1)] | None = None
    """Calls of the model in one delivery; the smaller one of it and of `max_model_calls` counts."""
    max_budget_usd: Annotated[float, Field(gt=0)] | None = None
    """By Claude Code's own price list; it notices after the call that passes it."""


class ClaudeAdapter(AgentAdapter):
    """Starts and reads Claude Code.

    The shells that it runs do not have the model's key in their environment. They run as the same user, though, and
    can read it out of the agent's process unless the fence hides that: let the gateway hand out a token that is worth
    nothing elsewhere.

    Settings, hooks and `CLAUDE.md` of the repository are not read: they could change what is allowed.
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
        return Wire.MESSAGES

    @property
    def default_base_url(self) -> str:
        """Of its provider; Claude adds `/v1/messages`."""
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
        if not version:
            return Availability(usable=False, reason=f"{program} --version does not work. {_HOW_TO_GET}")
        return Availability(version=version)

    def launch(self, order: WorkOrder, home: Path, access: ModelAccess, resume: ResumeToken | None) -> Launch:
        """Return how to start it; the session's id follows from the order's key, so a second start goes on.

        Raises:
            ExecutorError: an option is wrong, a person shall be asked, or there is no login to use.
        """
        options = _options(order.executor)
        argv = [
            self._program() or self._settings.program or NAME,
            # Its login is not read with --bare; --safe-mode leaves out what a repository could bring along.
            "--safe-mode" if self._settings.login else "--bare",
            "-p",
            "--output-format=stream-json",
            "--verbose",
            "--setting-sources=user",
            *_permissions(order.executor),
            *_session(order, home, resume),
            *_bounds(order.executor, options),
        ]
        if access.model:
            argv.append(f"--model={access.model}")
        return Launch(
            argv=(*argv, *self._settings.arguments),
            environment=_environment(order.executor, home, access),
            secrets=self._secrets(home, access),
            stdin=order.prompt,
            bounds_calls=order.executor.max_model_calls is not None,
            files={_TOOL_ENVIRONMENT: f"unset {KEY_VARIABLE} {LOGIN_VARIABLE}\n"},
        )

    def reader(self, order: WorkOrder) -> EventReader:
        """Return a reader for one run."""
        del order
        return ClaudeReader()

    def _program(self) -> str:
        return find_program(self._settings.program, NAME)

    def _secrets(self, home: Path, access: ModelAccess) -> Mapping[str, str]:
        if not self._settings.login:
            # A service of one's own may need no key, but Claude does not start without one.
            return {KEY_VARIABLE: access.key or "none"}
        if token := os.environ.get(LOGIN_VARIABLE):
            return {LOGIN_VARIABLE: token}
        copy_login(Path.home() / _CONFIG / _CREDENTIALS, home / _CONFIG / _CREDENTIALS)
        return {}


def _options(choice: ExecutorChoice) -> ClaudeOptions:
    try:
        return ClaudeOptions.model_validate(choice.options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ExecutorError(
            f"option {place!r} of the executor {NAME} is wrong: {first['msg']}. It knows max_turns and max_budget_usd"
        ) from None


def _permissions(choice: ExecutorChoice) -> tuple[str, ...]:
    """Return the flags for what it may do; in print mode whatever it would have to ask for is denied."""
    if choice.mode is AgentMode.READ_ONLY:
        return ("--permission-mode=plan",)
    if choice.permissions is PermissionRule.ASK:
        raise ExecutorError(
            f"{NAME} cannot ask a person before it acts. Start anew with one that can, such as claude-acp, "
            "or with permissions allow or deny"
        )
    if choice.permissions is PermissionRule.DENY:
        return ("--permission-mode=default",)
    if choice.mode is AgentMode.FULL:
        return ("--dangerously-skip-permissions",)
    # The option takes any number of values: without "=" it would swallow what follows.
    return ("--permission-mode=acceptEdits", f"--allowedTools={','.join(ALLOWED_TOOLS)}")


def _session(order: WorkOrder, home: Path, resume: ResumeToken | None) -> tuple[str, ...]:
    """Return the flag for its session: `--session-id` refuses an id that has a file, `--resume` one that has none."""
    if resume is not None:
        try:
            return (f"--resume={UUID(resume.session_id)}",)
        except ValueError:
            raise ExecutorError(
                f"{resume.session_id!r} is not the id of a session of {NAME}. Deliver without a resume token"
            ) from None
    for number in range(SESSIONS_TRIED):
        session_id = str(uuid5(_SESSIONS, f"{order.episode_id}\n{order.key}\n{number}"))
        files = list((home / _CONFIG / "projects").glob(f"*/{session_id}.jsonl"))
        if not files:
            return (f"--session-id={session_id}",)
        # The attempt before this one died: its conversation goes on, unless it was found to be unusable.
        if order.resume is None and any(_has_conversation(file) for file in files):
            return (f"--resume={session_id}",)
    raise ExecutorError(f"{SESSIONS_TRIED} sessions of {NAME} in {home} cannot be read. Remove that folder")


def _has_conversation(file: Path) -> bool:
    """Tell whether a whole message was saved: a file without one can neither be resumed nor begun again."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        return any(words(decoded(line) or {}, "type") in ("user", "assistant") for line in lines)


def _bounds(choice: ExecutorChoice, options: ClaudeOptions) -> tuple[str, ...]:
    bounds = [bound for bound in (options.max_turns, choice.max_model_calls) if bound is not None]
    flags = [f"--max-turns={min(bounds)}"] if bounds else []
    if options.max_budget_usd is not None:
        flags.append(f"--max-budget-usd={options.max_budget_usd:g}")
    return tuple(flags)


def _environment(choice: ExecutorChoice, home: Path, access: ModelAccess) -> Mapping[str, str]:
    environment = {
        "CLAUDE_CONFIG_DIR": str(home / _CONFIG),
        "CLAUDE_ENV_FILE": str(home / _TOOL_ENVIRONMENT),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": str(RETRIES),
    }
    if access.base_url:
        environment["ANTHROPIC_BASE_URL"] = access.base_url
    if choice.mode is AgentMode.FULL and os.geteuid() == 0:
        # As root it skips no permission check without being told that the host is a throw-away.
        environment["IS_SANDBOX"] = "1"
    return environment
