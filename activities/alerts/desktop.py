"""Alerts on the desktop of the worker's host: notify-send on Linux, osascript on macOS."""

import asyncio
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from activities.alerts.port import NotDeliveredError
from activities.process import ProcessRequest, Reason, run_process
from tightloop.host.programs import TrustedProgram, find_trusted
from tightloop.ledger.alert import AlertKind, Notice
from tightloop.value import clip

SESSION = ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR")
"""Variables by which a program finds the desktop session of the user."""
# The texts are arguments: nothing in them can become a part of the script.
_SCRIPT = ("on run words", "display notification (item 2 of words) with title (item 1 of words)", "end run")


@dataclass(frozen=True)
class Desktop:
    """Shows a notice to the user of the worker's host."""

    name: str
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    """Environment that leads to the session."""
    kinds: frozenset[AlertKind] = frozenset()
    timeout_s: float = 5.0
    platform: str = sys.platform

    def probe(self) -> str:
        """Return why nothing can be shown here and how to fix it; empty where it can."""
        mac = self.platform == "darwin"
        if self._program() is None:
            advice = "" if mac else ". Install the package libnotify-bin (libnotify)"
            return f"{self._name()} is not installed on the worker's host{advice}"
        if not mac and not any(self.environ.get(name) for name in SESSION[:3]):
            return f"the worker runs outside a desktop session: none of {', '.join(SESSION[:3])} is set"
        return ""

    async def deliver(self, notice: Notice) -> None:
        """Show it; see the port."""
        problem = self.probe()
        if problem:
            raise NotDeliveredError(problem, again=False)
        stopped = threading.Event()
        try:
            await asyncio.to_thread(self._show, notice, stopped)
        finally:
            stopped.set()

    def _show(self, notice: Notice, stopped: threading.Event) -> None:
        program = self._program()
        if program is None:
            raise NotDeliveredError(self.probe(), again=False)
        request = ProcessRequest(
            program=program,
            arguments=self._arguments(notice),
            cwd=Path("/"),
            environment={name: self.environ[name] for name in SESSION if self.environ.get(name)},
            wall_limit_s=self.timeout_s,
        )
        done = run_process(request, cancelled=stopped.is_set, started=lambda _pid: None)
        if done.reason is not Reason.EXITED or done.exit_code != 0:
            said = clip(done.output.decode("utf-8", "replace").strip() or done.message or done.reason.value, 100)
            raise NotDeliveredError(f"{program.name} failed ({done.exit_code}): {said}", again=False)

    def _name(self) -> str:
        return "osascript" if self.platform == "darwin" else "notify-send"

    def _program(self) -> TrustedProgram | None:
        return find_trusted(self._name(), self.environ.get("PATH", ""))

    def _arguments(self, notice: Notice) -> tuple[str, ...]:
        title, body = f"tightloop: {notice.kind.value}", notice.text
        if self.platform == "darwin":
            return (*(word for line in _SCRIPT for word in ("-e", line)), title, body)
        # The body of a notification is markup (Desktop Notifications Specification).
        # `--`: a title is never an option.
        urgency = "normal" if notice.kind is AlertKind.DIGEST else "critical"
        return ("--app-name=tightloop", f"--urgency={urgency}", "--", title, escape(body))
