"""The agent in a window in memory: reads the plan file that it is given, works, and tells how it ended."""

import json
from pathlib import Path
from typing import Any

from activities.executor.gui import cursor_hook
from activities.executor.gui.executor import CONTINUE, CursorGuiExecutor
from tests.support.gui.fake import EDITOR, Desktop, FakeDriver, leading_marker
from tightloop.settings import WindowSettings

NOTICE = "Note: By default, we stop the agent after 25 tool calls. You can resume the conversation."


class Agent:
    """Tells by hooks, in its transcript, or not at all."""

    def __init__(
        self, folder: Path, workspace: Path, *, hooks: bool = True, limits: int = 0, silent: bool = False
    ) -> None:
        self.desktop = Desktop(windows=[EDITOR.evolve(title=f"notes.txt - {workspace.name} - Cursor")])
        self.desktop.on_submit = self.work
        self._folder, self._workspace, self._hooks, self._limits = folder, workspace, hooks, limits
        self._silent = silent
        self.plans: list[str] = []
        if not hooks:
            self.transcript = folder / "transcripts" / "p" / "agent-transcripts" / "u" / "u.jsonl"
            self.transcript.parent.mkdir(parents=True)

    @property
    def executor(self) -> CursorGuiExecutor:
        # Without hooks only its owner's word lets a plan through.
        settings = WindowSettings(transcripts=str(self._folder / "transcripts"), allow_unknown_roots=True)
        return CursorGuiExecutor(
            settings, self._folder, lambda _settings: FakeDriver(self.desktop), transcript_quiet_s=2.0
        )

    def work(self, text: str) -> None:
        assert leading_marker(text)
        self.tell(hook_event_name="beforeSubmitPrompt", prompt=text)
        self.say("user", text)
        if CONTINUE not in text:
            path = next(word for word in text.split() if word.startswith(".tightloop/"))
            self.plans.append((self._workspace / path).read_text())
        self.desktop.shown = (text,)
        if self._limits:
            self._limits -= 1
            self.desktop.shown = (text, "I have read five files.", NOTICE)
            self.tell(hook_event_name="stop", status="completed")
            return
        with (self._workspace / "log.txt").open("a") as log:
            log.write("line\n" * 3)
        if self._silent:
            return
        self.say("assistant", "Three lines are written.")
        self.tell(hook_event_name="afterAgentResponse", text="Three lines are written.")
        self.tell(hook_event_name="stop", status="completed")

    def tell(self, **event: Any) -> dict[str, Any]:
        fields = {"conversation_id": "c-1", "workspace_roots": [str(self._workspace)], **event}
        return cursor_hook.handle(self._folder / "hooks", fields) if self._hooks else {}

    def say(self, role: str, text: str) -> None:
        if not self._hooks:
            with self.transcript.open("a") as file:
                file.write(json.dumps({"role": role, "message": {"content": [{"type": "text", "text": text}]}}) + "\n")
