"""Adapter for `porter`, an agent that reads its task from stdin and prints one JSON object per line."""

import json
from pathlib import Path
from typing import Any

from activities.executor.agent.host import Ending, EventReader, Launch, ModelAccess
from activities.executor.agent.program import find_program, version_of
from activities.executor.port import Availability
from activities.model.gateway.wire import Wire
from tightloop.executor.model import EventKind, ExecutorEvent, ExecutorOutcome, ExecutorStatus, ResumeToken, WorkOrder


class PorterReader(EventReader):
    """Parses the events of one run: `{"session": id}`, `{"say": text}`, `{"done": true or false, "summary": text}`."""

    _end: dict[str, Any] | None = None
    finished = property(lambda self: self._end is not None)

    def feed(self, line: str) -> list[ExecutorEvent]:
        """Parse one line."""
        try:
            event = json.loads(line)
        except ValueError:
            return [ExecutorEvent(kind=EventKind.UNKNOWN, text=line[:500])]
        self._end = event if "done" in event else self._end
        kind = EventKind.SESSION if "session" in event else EventKind.FINISHED if "done" in event else EventKind.MESSAGE
        return [ExecutorEvent(kind=kind, text=str(event.get("say", ""))[:500], session_id=event.get("session", ""))]

    def read_outcome(self, ending: Ending) -> ExecutorOutcome:
        """Return the outcome. An exit code alone never means success."""
        if self._end and self._end["done"]:
            return ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary=str(self._end.get("summary", ""))[:500])
        return ExecutorOutcome(status=ExecutorStatus.FAILED, error=ending.output_end[-500:] or "it did not finish")


class PorterAdapter:
    """Detection and start of porter."""

    name, wire = "porter", Wire.CHAT
    default_base_url, default_key_env = "https://api.openai.com/v1", "OPENAI_API_KEY"
    hosts = ("api.openai.com",)

    def availability(self) -> Availability:
        """Return the version of the installed program, or the reason why it is unusable."""
        if program := find_program("", "porter"):
            return Availability(version=version_of(program))
        return Availability(usable=False, reason="porter is not installed: npm install -g porter")

    def launch(self, order: WorkOrder, home: Path, access: ModelAccess, resume: ResumeToken | None) -> Launch:
        """Start porter with its task on stdin. The key is a gateway key, useless elsewhere."""
        argv = (find_program("", "porter"), *(("--session", resume.session_id) if resume else ()))
        secrets = {"OPENAI_API_KEY": access.key, "OPENAI_BASE_URL": access.base_url}
        return Launch(argv=argv, secrets=secrets, stdin=order.prompt)

    def reader(self, order: WorkOrder) -> EventReader:
        """Return a parser for its output."""
        return PorterReader()
