"""Waits for what the agent in the window has to say: its hooks first, then its transcript, then the screen."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from activities.executor.agent.program import local_now
from activities.executor.delivery import cancelled_outcome, failed_outcome, limited_outcome, timeout_outcome
from activities.executor.gui.cursor.events import ANSWER, PROMPT, STOP, AgentEvent, CursorEvents, answer_to, modified
from activities.executor.gui.port import Driver, DriverError
from activities.executor.port import Control
from tightloop.executor.asking import work_question
from tightloop.executor.handoff import Receipt, Target, marker
from tightloop.executor.limit import LimitKind, LimitSource
from tightloop.executor.limit_rules import detect
from tightloop.executor.model import (
    EventKind,
    ExecutorOutcome,
    ExecutorStatus,
    LimitHit,
    Progress,
    ResumeToken,
    WorkOrder,
)
from tightloop.host.identity import host_identity
from tightloop.value import shorten

NAME = "cursor-gui"
POLL_S = 0.3
QUIET_S = 10.0
"""Without news for so long, the screen is looked at for the notice of a limit."""
HOOKED_QUIET_S = 60.0
"""The same where the hooks tell of the end of a turn: until then the agent may well be at work, on a long command."""
TRANSCRIPT_QUIET_S = 30.0
"""A transcript has no end: this long without a change counts as one."""
SCREEN_TEXTS = 12
"""Last texts of the window, where the hand-off itself has scrolled away."""
SHORTEST_ANSWER = 12
"""Characters of a text in the window that is taken for a part of the agent's answer."""


@dataclass(frozen=True)
class Waiting:
    """One wait for the end of a hand-off."""

    order: WorkOrder
    receipt: Receipt
    cursor: CursorEvents
    driver: Driver
    target: Target
    control: Control
    quiet_s: float = QUIET_S
    transcript_quiet_s: float = TRANSCRIPT_QUIET_S
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def wait(self) -> ExecutorOutcome:
        """Return how the work ended; the agent goes on in its window whatever happens to this process."""
        begun = changed = looked = self.now()
        last: tuple[int, int] | None = None
        while True:
            if self.control.cancelled():
                return cancelled_outcome().evolve(summary="the agent in the window may still be at work: stop it there")
            events = self.cursor.after(self.receipt)
            if outcome := self._told(events):
                return outcome
            transcript = self.receipt.transcript
            news = (len(events), modified(Path(transcript)) if transcript else 0)
            if news != last:
                last, changed = news, self.now()
            quiet = self.now() - changed
            patience = HOOKED_QUIET_S if self.receipt.source == "hook" else self.quiet_s
            if quiet >= patience and self.now() - looked >= self.quiet_s:
                looked = self.now()
                limit = self._limit_on_screen(_answers(events) or [self._transcript()])
                # Only this one ends a turn that nothing tells the end of.
                if limit and limit.kind == LimitKind.TOOL_CALL_LIMIT:
                    return self._limited(limit)
            if quiet >= self.transcript_quiet_s and (answer := self._transcript()):
                return ExecutorOutcome(
                    status=ExecutorStatus.COMPLETED,
                    summary=shorten(f"from the transcript, which has no end: {answer}", 400),
                    transcript=answer.encode(),
                )
            if quiet >= self.order.executor.idle_limit_s:
                return self._ask(quiet)
            if self.now() - begun >= self.order.executor.wall_limit_s:
                return timeout_outcome(self.order.executor)
            self.control.progress(Progress(events=len(events), last=EventKind.MESSAGE if events else None))
            self.sleep(POLL_S)

    def _told(self, events: tuple[AgentEvent, ...]) -> ExecutorOutcome | None:
        """Return what the hooks say; None: the agent is at work, as far as they know."""
        ours: list[AgentEvent] = []
        for event in events:
            # Somebody else's prompt in the same conversation: what comes after it is about something else.
            if event.event == PROMPT:
                break
            ours.append(event)
        answers = _answers(ours)
        stop = next((event for event in ours if event.event == STOP), None)
        if stop is None:
            return None
        # The notice of a limit ends a turn, and no hook names it.
        if limit := self._limit_on_screen(answers):
            return self._limited(limit)
        said = shorten(answers[-1].strip(), 400) if answers else ""
        transcript = "\n\n".join(answers).encode()
        if stop.status in ("completed", ""):
            return ExecutorOutcome(
                status=ExecutorStatus.COMPLETED, summary=said or "the agent says nothing", transcript=transcript
            )
        what = "stopped in the editor" if stop.status == "aborted" else f"the agent's turn ended with {stop.status!r}"
        return failed_outcome(f"{what}{f': {said}' if said else ''}").evolve(transcript=transcript)

    def _transcript(self) -> str:
        """Return the agent's last words where only its transcript tells; empty: none."""
        if self.receipt.source != "transcript":
            return ""
        return answer_to(Path(self.receipt.transcript), self.receipt.handoff_id).strip()

    def _limit_on_screen(self, answers: Sequence[str]) -> LimitHit | None:
        """Return the limit whose notice the window shows below the hand-off, and below what the agent has answered.

        What a tool has read from a repository can look like one: low trust.
        """
        try:
            windows = [window for window in self.driver.windows() if self.target.matches(window.app, window.title)]
            texts = self.driver.texts(windows[0]) if len(windows) == 1 else ()
        except DriverError:
            return None
        name = marker(self.receipt.handoff_id)
        mine = [number for number, text in enumerate(texts) if name in text]
        below = texts[mine[-1] + 1 :] if mine else texts[-SCREEN_TEXTS:]
        answered = " ".join(" ".join(answers).split())
        lines = [" ".join(text.split()) for text in below]
        own = [number for number, line in enumerate(lines) if len(line) >= SHORTEST_ANSWER and line in answered]
        limit = detect("\n".join(below[own[-1] + 1 :] if own else below), now=local_now())
        if limit is None:
            return None
        evidence = f"on the screen (low trust): {limit.evidence}"
        return limit.evolve(source=LimitSource.SCREEN.value, confidence=min(limit.confidence, 0.5), evidence=evidence)

    def _limited(self, limit: LimitHit) -> ExecutorOutcome:
        self.cursor.note_limit(self.receipt)
        token = ResumeToken(adapter=NAME, session_id=self.receipt.conversation or "window", host=host_identity().name)
        return limited_outcome(limit, limit.evidence).evolve(resume=token)

    def _ask(self, quiet_s: float) -> ExecutorOutcome:
        question = work_question(
            f"the agent in the window has had the plan and has told nothing for {quiet_s:.0f} s. Has it done its work?",
            f"Look at the chat of {self.target.project}.\nThe hand-off: {marker(self.receipt.handoff_id)}",
        )
        return ExecutorOutcome(
            status=ExecutorStatus.NEEDS_PERSON, summary="the agent in the window has not reported", question=question
        )


def _answers(events: Sequence[AgentEvent]) -> list[str]:
    return [event.text for event in events if event.event == ANSWER and event.text.strip()]
