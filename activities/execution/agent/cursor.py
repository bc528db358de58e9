"""Cursor's agent by its command line: `cursor-agent -p --output-format stream-json`.

Written from its documentation and from what its users report: it was never run against the real one, whose
provider cannot be replaced by a server of ours. Over the Agent Client Protocol it is the executor `cursor-acp`.
"""

from pathlib import Path

from activities.execution.agent.cursor_events import CursorReader
from activities.execution.agent.home import copy_login
from activities.execution.agent.port import AgentAdapter, EventReader, Launch, ModelAccess
from activities.execution.agent.program import find_program, version_of
from activities.execution.port import Availability
from tightloop.errors import ExecutorError
from tightloop.executor import AgentMode, ExecutorChoice, PermissionRule, ResumeToken, WorkOrder
from tightloop.settings import AgentSettings

NAME = "cursor"
PROGRAMS = ("cursor-agent", "agent")
KEY_VARIABLE = "CURSOR_API_KEY"
LOGIN_FILES = (".config/cursor/auth.json", ".cursor/cli-config.json")
"""Where its versions keep their login on Linux; on macOS it lies in the Keychain and cannot be copied."""

_HOW_TO_GET = "Install Cursor's command line as https://cursor.com/cli says"


class CursorAdapter(AgentAdapter):
    """Starts and reads Cursor's agent.

    Its model is chosen at Cursor: there is no gateway, so the key itself is in its environment and the tools that it
    runs may see it. Calls of its model can be neither counted nor bounded.
    """

    def __init__(self, settings: AgentSettings) -> None:
        """Take the settings of this agent on this host."""
        self._settings = settings

    @property
    def name(self) -> str:
        """The executor's name."""
        return NAME

    @property
    def wire(self) -> None:
        """Its provider cannot be chosen."""
        return

    @property
    def default_base_url(self) -> str:
        """None that could be set."""
        return ""

    @property
    def default_key_env(self) -> str:
        """Variable of the worker with its key."""
        return KEY_VARIABLE

    def availability(self) -> Availability:
        """Look for the program and its version."""
        program = self._program()
        if not program:
            looked_for = self._settings.program or " or ".join(PROGRAMS)
            return Availability(usable=False, reason=f"no program {looked_for} was found. {_HOW_TO_GET}")
        version = version_of(program)
        if not version:
            return Availability(usable=False, reason=f"{program} --version does not work. {_HOW_TO_GET}")
        return Availability(version=version)

    def launch(self, order: WorkOrder, home: Path, access: ModelAccess, resume: ResumeToken | None) -> Launch:
        """Return how to start it. Without a prompt among its arguments it reads the prompt from standard input.

        Raises:
            ExecutorError: an option is given, a person shall be asked, or there is no login to use.
        """
        if order.executor.options:
            raise ExecutorError(f"the executor {NAME} has no options, but got {', '.join(order.executor.options)}")
        argv = [
            self._program() or self._settings.program or PROGRAMS[0],
            "-p",
            "--output-format=stream-json",
            # In a folder that it does not know it refuses to work, with exit code 0.
            "--trust",
            *_permissions(order.executor),
        ]
        if access.model:
            argv.append(f"--model={access.model}")
        if resume is not None and resume.adapter == NAME:
            argv.append(f"--resume={resume.session_id}")
        if self._settings.login:
            _copy_logins(home)
        return Launch(
            argv=(*argv, *self._settings.arguments),
            environment={"NO_COLOR": "1"},
            secrets={KEY_VARIABLE: access.key} if access.key else {},
            stdin=order.prompt,
        )

    def reader(self, order: WorkOrder) -> EventReader:
        """Return a reader for one run."""
        del order
        return CursorReader()

    def _program(self) -> str:
        return find_program(self._settings.program, *PROGRAMS)


def _permissions(choice: ExecutorChoice) -> tuple[str, ...]:
    """Return the flags for what it may do. Its own sandbox is off: the fence stands around it."""
    if choice.mode is AgentMode.READ_ONLY or choice.permissions is PermissionRule.DENY:
        # Without --force it still edits files; only this mode leaves them alone.
        return ("--mode=plan",)
    if choice.permissions is PermissionRule.ASK:
        raise ExecutorError(
            f"{NAME} cannot ask a person before it acts. Start anew with one that can, such as cursor-acp, "
            "or with permissions allow or deny"
        )
    return ("--force", "--sandbox=disabled")


def _copy_logins(home: Path) -> None:
    there = [name for name in LOGIN_FILES if (Path.home() / name).is_file()]
    for name in there or LOGIN_FILES[:1]:
        copy_login(Path.home() / name, home / name)
