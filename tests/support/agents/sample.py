"""An agent of the tests' own: it runs the Python that stands in its prompt, and prints events."""

import json
import sys
from pathlib import Path

from activities.executor.agent.host import Ending, EventReader, Launch, ModelAccess
from activities.executor.port import Availability
from activities.model.gateway.wire import Wire
from tightloop.executor.model import EventKind, ExecutorEvent, ExecutorOutcome, ExecutorStatus, ResumeToken, WorkOrder

NAME = "sample"
CODE = "#!code\n"
PRELUDE = """
import json, os, subprocess, sys, time
def tell(kind, **more): print(json.dumps({"type": kind, **more}), flush=True)
"""
_KINDS = {"session": EventKind.SESSION, "done": EventKind.FINISHED, "failed": EventKind.FINISHED}


class SampleAdapter:
    """Starts the sample; it has no sandbox of its own unless told so."""

    def __init__(self, *, secrets: dict[str, str] | None = None, own_sandbox: bool = True) -> None:
        self._secrets = secrets or {}
        self._own_sandbox = own_sandbox

    @property
    def name(self) -> str:
        return NAME

    @property
    def wire(self) -> Wire | None:
        return None

    @property
    def default_base_url(self) -> str:
        return ""

    @property
    def hosts(self) -> tuple[str, ...]:
        return ()

    @property
    def default_key_env(self) -> str:
        return ""

    def availability(self) -> Availability:
        return Availability(version="1.0")

    def launch(self, order: WorkOrder, home: Path, access: ModelAccess, resume: ResumeToken | None) -> Launch:
        del home, access, resume
        run = f"import sys; exec({PRELUDE!r} + sys.stdin.read().split({CODE!r})[-1])"
        return Launch(
            argv=(sys.executable, "-c", run),
            secrets=self._secrets,
            stdin=f"{CODE}{order.prompt}",
            files={"settings/sample.json": "{}"},
            own_sandbox=self._own_sandbox,
        )

    def reader(self, order: WorkOrder) -> EventReader:
        del order
        return SampleReader()


class SampleReader(EventReader):
    """Believes its agent: an exit code of 0 is a success. The executor must not."""

    def __init__(self) -> None:
        self._end: dict[str, str] | None = None

    @property
    def finished(self) -> bool:
        return self._end is not None

    def feed(self, line: str) -> list[ExecutorEvent]:
        try:
            found = json.loads(line)
        except ValueError:
            return [ExecutorEvent(kind=EventKind.UNKNOWN, text=line[:100])]
        kind = _KINDS.get(found["type"], EventKind.MESSAGE)
        if kind is EventKind.FINISHED:
            self._end = found
        return [ExecutorEvent(kind=kind, session_id=found.get("id", ""))]

    def read_outcome(self, ending: Ending) -> ExecutorOutcome:
        end = self._end or {}
        if ending.exit_code == 0 or end.get("type") == "done":
            return ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary=end.get("text", ""))
        return ExecutorOutcome(status=ExecutorStatus.FAILED, error=end.get("text", "") or ending.output_end)
