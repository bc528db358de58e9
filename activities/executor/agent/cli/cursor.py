"""Cursor's agent by its command line: `cursor-agent -p --output-format stream-json`.

Written from its documentation and from what its users report: it was never run against the real one, whose
provider cannot be replaced by a server of ours. Over the Agent Client Protocol it is the executor `cursor-acp`.
"""

from pathlib import Path

from activities.executor.agent.cli.cursor_events import CursorReader
from activities.executor.agent.home import copy_login
from activities.executor.agent.port import EventReader, Launch, ModelAccess
from activities.executor.agent.program import check_program, find_program
from activities.executor.options import refuse_questions
from activities.executor.port import Availability
from tightloop.errors import ExecutorError
from tightloop.executor.model import AgentMode, ExecutorChoice, ResumeToken, WorkOrder
from tightloop.safety.verdict import Verdict
from tightloop.settings import AgentSettings

NAME = "cursor"
PROGRAMS = ("cursor-agent", "agent")
LOGIN_FILES = (".config/cursor/auth.json", ".cursor/cli-config.json")
"""Where its versions keep their login on Linux; on macOS it lies in the Keychain and cannot be copied."""

_HOW_TO_GET = "Install Cursor's command line as https://cursor.com/cli says"


class CursorAdapter:
    """Starts and reads Cursor's agent.

    Its model is chosen at Cursor, not through a gateway, so the key itself is in its environment and the tools that it
    runs may see it. Calls of its model can be neither counted nor bounded.
    """

    name = NAME
    wire = None
    default_base_url = ""
    hosts = ("*.cursor.sh", "*.cursor.com")
    default_key_env = "CURSOR_API_KEY"

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings

    def availability(self) -> Availability:
        """Look for the program and its version."""
        looked_for = repr(self._settings.program) if self._settings.program else " or ".join(PROGRAMS)
        return check_program(self._program(), looked_for, _HOW_TO_GET)

    def launch(self, order: WorkOrder, home: Path, access: ModelAccess, resume: ResumeToken | None) -> Launch:
        """Return how to start it. Without a prompt among its arguments it reads the prompt from standard input.

        Raises:
            ExecutorError: an option is given, a person has to be asked, or the login is missing.
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
            there = [name for name in LOGIN_FILES if (Path.home() / name).is_file()]
            for name in there or LOGIN_FILES[:1]:  # without any, copying the first one says what to do
                copy_login(Path.home() / name, home / name)
        return Launch(
            argv=(*argv, *self._settings.arguments),
            environment={"NO_COLOR": "1"},
            secrets={self.default_key_env: access.key} if access.key else {},
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
    if choice.mode is AgentMode.READ_ONLY or choice.permissions is Verdict.DENY:
        # Without --force it still edits files; only this mode leaves them alone.
        return ("--mode=plan",)
    refuse_questions(choice, NAME)
    return ("--force", "--sandbox=disabled")
