"""Executor that hands a plan to the agent in an editor window and waits for the agent's answer."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from activities.artifacts.port import file_stem, replace_file
from activities.executor.agent.program import local_now
from activities.executor.delivery import (
    cancelled_outcome,
    failed_outcome,
    fatal_outcome,
    read_options,
    timeout_outcome,
)
from activities.executor.gui.agent_s import AgentS
from activities.executor.gui.cursor import (
    ANSWER,
    PROMPT,
    STOP,
    AgentEvent,
    CursorEvents,
    answer_to,
    hooks_problem,
    mtime_of,
)
from activities.executor.gui.port import Driver, DriverError, Ledger
from activities.executor.gui.protocol import HandOff
from activities.executor.port import Availability, Control, Executor
from tightloop.errors import ExecutorError
from tightloop.executor.asking import hand_off_question, work_question
from tightloop.executor.handoff import (
    PATIENCE_S,
    HandOffEnd,
    HandOffResult,
    HandOffState,
    Message,
    Receipt,
    Target,
    file_message,
    handoff_id,
    inline_message,
    marker,
)
from tightloop.executor.limit import LimitKind, LimitSource, detect, limited_outcome
from tightloop.executor.model import (
    ErrorKind,
    EventKind,
    ExecutorOutcome,
    ExecutorStatus,
    LimitHit,
    Progress,
    ResumeToken,
    WorkOrder,
)
from tightloop.executor.options import CursorGuiOptions
from tightloop.host.identity import host_identity
from tightloop.settings import WindowSettings
from tightloop.value import shorten

NAME = "cursor-gui"
POLL_S = 0.3
QUIET_S = 10.0
"""Time in seconds without events after which the screen is checked for a limit notice."""
HOOKED_QUIET_S = 60.0
"""Like `QUIET_S`, but used if hooks report the end of a turn, because the agent may be running a long command."""
TRANSCRIPT_QUIET_S = 30.0
"""Time in seconds without a change after which a transcript counts as ended, because it has no end marker."""
SCREEN_TEXTS = 12
"""Number of texts to read from the end if the hand-off itself has scrolled out of the window."""
SHORTEST_ANSWER = 12
"""Minimum length of a window text for matching it with the agent's answer."""


@dataclass(frozen=True)
class OutcomeWaiter:
    """Waits until a hand-off has finished."""

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
        """Wait until the work has finished and return its outcome.

        If this process dies, the agent keeps working in its window.
        """
        started_at = changed = checked_at = self.now()
        last: tuple[int, int] | None = None
        while True:
            if self.control.is_cancelled():
                return cancelled_outcome().evolve(
                    summary="the agent in the window may still be working. Stop it in its window"
                )
            events = self.cursor.events_since(self.receipt)
            if outcome := self._outcome_by_events(events):
                return outcome
            transcript = self.receipt.transcript
            news = (len(events), mtime_of(Path(transcript)) if transcript else 0)
            if news != last:
                last, changed = news, self.now()
            quiet = self.now() - changed
            patience = HOOKED_QUIET_S if self.receipt.source == "hook" else self.quiet_s
            # Reading the screen is slow and of low trust, so it is done only when nothing else happens.
            if quiet >= patience and self.now() - checked_at >= self.quiet_s:
                checked_at = self.now()
                limit = self._limit_on_screen(_answers(events) or [self._transcript()])
                # Only this limit ends a turn without any event.
                if limit and limit.kind == LimitKind.TOOL_CALL_LIMIT:
                    return self._limit_outcome(limit)
            if quiet >= self.transcript_quiet_s and (answer := self._transcript()):
                return ExecutorOutcome(
                    status=ExecutorStatus.COMPLETED,
                    summary=shorten(
                        f"read from the transcript, which does not mark the end of the turn: {answer}", 400
                    ),
                    transcript=answer.encode(),
                )
            # A person is asked instead of a failure: the agent may be at work where we cannot see it.
            if quiet >= self.order.executor.idle_limit_s:
                return self._ask(quiet)
            if self.now() - started_at >= self.order.executor.wall_limit_s:
                return timeout_outcome(self.order.executor)
            self.control.progress(Progress(events=len(events), last=EventKind.MESSAGE if events else None))
            self.sleep(POLL_S)

    def _outcome_by_events(self, events: tuple[AgentEvent, ...]) -> ExecutorOutcome | None:
        """Return the outcome according to the hooks' events, or None if the agent is still working."""
        ours: list[AgentEvent] = []
        for event in events:
            # Another user's prompt in the same conversation: everything after it is unrelated.
            if event.event == PROMPT:
                break
            ours.append(event)
        answers = _answers(ours)
        stop = next((event for event in ours if event.event == STOP), None)
        if stop is None:
            return None
        # A limit notice ends a turn, but no hook reports it.
        if limit := self._limit_on_screen(answers):
            return self._limit_outcome(limit)
        summary = shorten(answers[-1].strip(), 400) if answers else ""
        transcript = "\n\n".join(answers).encode()
        if stop.status in ("completed", ""):
            return ExecutorOutcome(
                status=ExecutorStatus.COMPLETED, summary=summary or "the agent did not reply", transcript=transcript
            )
        what = "stopped in the editor" if stop.status == "aborted" else f"the agent's turn ended with {stop.status!r}"
        return failed_outcome(f"{what}{f': {summary}' if summary else ''}").evolve(transcript=transcript)

    def _transcript(self) -> str:
        """Return the agent's last message from the transcript, or "" if a hook has already reported it."""
        if self.receipt.source != "transcript":
            return ""
        return answer_to(Path(self.receipt.transcript), self.receipt.handoff_id).strip()

    def _limit_on_screen(self, answers: Sequence[str]) -> LimitHit | None:
        """Return the limit that the window shows below the hand-off and the agent's answers, or None.

        The confidence is low, because a tool may have printed text from the repository that looks the same.
        """
        try:
            windows = [window for window in self.driver.windows() if self.target.matches(window.app, window.title)]
            # With two matching windows it is unknown which one the agent works in.
            texts = self.driver.texts(windows[0]) if len(windows) == 1 else ()
        except DriverError:
            return None
        name = marker(self.receipt.handoff_id)
        mine = [number for number, text in enumerate(texts) if name in text]
        below = texts[mine[-1] + 1 :] if mine else texts[-SCREEN_TEXTS:]
        answered = " ".join(" ".join(answers).split())
        # The window wraps and indents an answer, so both sides are compared without layout.
        lines = [" ".join(text.split()) for text in below]
        answer_lines = [
            number for number, line in enumerate(lines) if len(line) >= SHORTEST_ANSWER and line in answered
        ]
        limit = detect("\n".join(below[answer_lines[-1] + 1 :] if answer_lines else below), now=local_now())
        if limit is None:
            return None
        evidence = f"on the screen (low confidence): {limit.evidence}"
        return limit.evolve(source=LimitSource.SCREEN.value, confidence=min(limit.confidence, 0.5), evidence=evidence)

    def _limit_outcome(self, limit: LimitHit) -> ExecutorOutcome:
        self.cursor.note_limit(self.receipt)
        # With a token the next delivery sends only "continue" to the same conversation.
        token = ResumeToken(adapter=NAME, session_id=self.receipt.conversation or "window", host=host_identity().name)
        return limited_outcome(limit, limit.evidence).evolve(resume=token)

    def _ask(self, quiet_s: float) -> ExecutorOutcome:
        question = work_question(
            f"the agent in the window received the plan but has reported nothing for {quiet_s:.0f} s. Has it finished?",
            f"Check the chat in {self.target.project}.\nHand-off: {marker(self.receipt.handoff_id)}",
        )
        return ExecutorOutcome(
            status=ExecutorStatus.NEEDS_PERSON,
            summary="the agent in the window has not reported yet",
            question=question,
        )


def _answers(events: Sequence[AgentEvent]) -> list[str]:
    return [event.text for event in events if event.event == ANSWER and event.text.strip()]


FOLDER = (".tightloop", "handoff")
_IGNORE = ".gitignore"


def write_plan(root: Path, name: str, content: str) -> str:
    """Write a plan to the working tree and return its relative path. Idempotent.

    Earlier plans are deleted.

    Raises:
        ExecutorError: the plan folder cannot be written, or is a symlink that points elsewhere.
    """
    folder = root.joinpath(*FOLDER)
    try:
        # A hostile repository may contain a symlink here.
        if Path(os.path.realpath(folder)) != Path(os.path.realpath(root)).joinpath(*FOLDER):
            raise ExecutorError(f"{folder} is a symlink that points outside the working tree. Remove the symlink")
        folder.mkdir(parents=True, exist_ok=True)
        # Keeps the plan out of `git status` and of the user's commits.
        replace_file(folder / _IGNORE, b"*\n")
        replace_file(folder / name, content.encode())
        for earlier in folder.glob("*.md"):
            if earlier.name != name:
                earlier.unlink(missing_ok=True)
    except OSError as error:
        raise ExecutorError(f"cannot write the plan to {folder}: {error.strerror}. Make the folder writable") from None
    return "/".join((*FOLDER, name))


def remove_plan(root: Path, name: str) -> None:
    """Delete a plan from the working tree. Also delete its folders if they contain no other plan."""
    folder = root.joinpath(*FOLDER)
    with suppress(OSError):
        (folder / name).unlink(missing_ok=True)
        if [entry.name for entry in folder.iterdir()] == [_IGNORE]:
            (folder / _IGNORE).unlink()
            folder.rmdir()
            folder.parent.rmdir()


RETRY_S = 2.0
REFUSED_S = 120.0
"""Maximum time in seconds to wait while a window is missing, the screen is locked or a draft is present, before a
person is asked.
"""
CONTINUE = "Continue where you stopped and complete the plan."


@dataclass(frozen=True)
class CursorGuiExecutor(Executor):
    """Hands plans to Cursor by controlling its window.

    Only one window is used at a time. The window is checked before every key press.
    """

    settings: WindowSettings
    folder: Path
    """The folder for the ledger, the lock and the hooks' records."""
    open_driver: Callable[[WindowSettings], Driver]
    refused_s: float = REFUSED_S
    patience_s: float = PATIENCE_S
    transcript_quiet_s: float = TRANSCRIPT_QUIET_S
    locator: AgentS | None = None
    may_see_window: Callable[[str], bool] = lambda _workspace: True
    """Returns whether the locator's model may see a workspace's window."""

    def availability(self) -> Availability:
        try:
            driver = self.open_driver(self.settings)
        except ExecutorError as error:
            return Availability(usable=False, reason=error.message)
        try:
            health = driver.preflight()
        finally:
            driver.close()
        problems = (*health.problems, *self._receipt_problems())
        version = f"{driver.name}, {health.version}".strip(", ")
        if self.locator is not None:
            problems, version = (*problems, *filter(None, (self.locator.problem(),))), f"{version}, with Agent S"
        return Availability(usable=not problems, reason="; ".join(problems), version=version)

    def effects_outside(self, order: WorkOrder) -> str:
        del order
        return "the agent in the editor window runs outside the sandbox"

    def continues(self, order: WorkOrder, state_folder: Path) -> bool:
        """Return whether the hand-off has started.

        If so, the attempt can continue from the ledger without handing over the plan twice.
        """
        del state_folder
        return self._ledger.get(self._identity(order)) is not None

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Hand over the plan exactly once and wait for the outcome.

        Raises:
            ExecutorError: the options are invalid, the ledger cannot be read or there is no desktop.
        """
        del state_folder
        options = read_options(CursorGuiOptions, order.executor, NAME)
        if problems := self._receipt_problems():
            return fatal_outcome("; ".join(problems), ErrorKind.CONFIG)
        root = Path(order.root)
        # The same for all deliveries of a plan: one that resumes after a limit finds the file in place.
        name = f"{file_stem(f'{order.episode_id}/{order.iteration}/{order.prompt}')}.md"
        driver = self.open_driver(self.settings)
        try:
            message = self._message(order, root, name, inline=options.inline)
            outcome = self._deliver(order, message, driver, control)
        finally:
            driver.close()
        # When waiting ends early, as on worker shutdown, the agent continues: the next plan replaces the file.
        if outcome.status not in (ExecutorStatus.LIMIT_HIT, ExecutorStatus.NEEDS_PERSON, ExecutorStatus.CANCELLED):
            remove_plan(root, name)
        return outcome

    def _message(self, order: WorkOrder, root: Path, name: str, *, inline: bool) -> Message:
        identity = self._identity(order)
        entry = self._ledger.get(identity)
        if order.resume is not None and order.resume.adapter == NAME:
            return inline_message(identity, CONTINUE)
        if inline:
            return inline_message(identity, order.prompt)
        # An agent that has the plan may be reading the file at this moment.
        if entry is None or entry.state is not HandOffState.ACKED:
            write_plan(root, name, order.prompt)
        return file_message(identity, f".tightloop/handoff/{name}", order.prompt)

    def _deliver(self, order: WorkOrder, message: Message, driver: Driver, control: Control) -> ExecutorOutcome:
        cursor = CursorEvents(
            self.folder / "hooks",
            Path(self.settings.transcripts).expanduser(),
            guarded=not hooks_problem(),
            allow_unknown_roots=self.settings.allow_unknown_roots,
        )
        settings = self.settings
        target = Target(
            apps=settings.apps,
            title=settings.title,
            project=Path(order.root).name,
            root=order.root,
            box=settings.box,
            chat_key=settings.chat_key,
        )
        hand_off = HandOff(
            driver=driver,
            ledger=self._ledger,
            receipts=cursor,
            target=target,
            lock=self.folder / "screen.lock",
            cancelled=control.is_cancelled,
            patience_s=self.patience_s,
            locator=self.locator if self.may_see_window(order.root) else None,
        )
        result = self._hand_over(hand_off, message, control)
        match result.end:
            case HandOffEnd.ACKED if result.receipt is not None:
                wait = OutcomeWaiter(order, result.receipt, cursor, driver, target, control)
                return replace(wait, transcript_quiet_s=self.transcript_quiet_s).wait()
            case HandOffEnd.CANCELLED:
                return cancelled_outcome()
            case HandOffEnd.WRONG_WINDOW:
                return fatal_outcome(
                    f"the plan was submitted in the wrong window, so Cursor's hook rejected it: {result.reason}. "
                    f"The agent in that window did not receive the plan. Open {order.root} in the editor and "
                    "close the other window",
                    ErrorKind.CONFIG,
                )
            case HandOffEnd.NOT_TAKEN | HandOffEnd.AMBIGUOUS:
                question = hand_off_question(result.reason, order.plan.goal, message.id)
                return ExecutorOutcome(
                    status=ExecutorStatus.NEEDS_PERSON, summary=result.reason, error=result.reason, question=question
                )
            case _:
                return fatal_outcome(f"the plan was not handed over: {result.reason}", ErrorKind.CONFIG)

    def _hand_over(self, hand_off: HandOff, message: Message, control: Control) -> HandOffResult:
        """Try to hand over the plan until this succeeds or further attempts are pointless."""
        end = time.monotonic() + self.refused_s
        while True:
            result = hand_off.deliver(message)
            over = control.is_cancelled() or not result.retryable or time.monotonic() >= end
            # An open offer must not be taken after the end.
            if over and result.end is HandOffEnd.REFUSED and hand_off.receipts.withdraw_offer(message.id):
                continue
            if control.is_cancelled():
                return result if result.end is HandOffEnd.ACKED else HandOffResult(end=HandOffEnd.CANCELLED)
            if over:
                return result
            time.sleep(RETRY_S)

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.folder / "handoffs")

    @staticmethod
    def _identity(order: WorkOrder) -> str:
        return handoff_id(order.key, order.episode_id, order.iteration)

    def _receipt_problems(self) -> tuple[str, ...]:
        """Return the reasons why neither the hooks nor the transcripts report the agent's work.

        Return an empty tuple if at least one of them does.
        """
        if self.settings.allow_unknown_roots and Path(self.settings.transcripts).expanduser().is_dir():
            return ()
        problem = hooks_problem()
        return (problem,) if problem else ()
