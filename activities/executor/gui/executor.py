"""Executor that hands a plan to an agent in the window of an editor."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from activities.artifacts.port import file_stem, replace_file
from activities.executor.delivery import cancelled_outcome, fatal_outcome, read_options
from activities.executor.gui.answer import NAME, TRANSCRIPT_QUIET_S, Waiting
from activities.executor.gui.cursor.events import CursorEvents
from activities.executor.gui.cursor.installation import hooks_problem
from activities.executor.gui.port import Driver, FileLedger, Locator
from activities.executor.gui.protocol import HandOff
from activities.executor.port import Availability, Control, Executor
from tightloop.errors import ExecutorError
from tightloop.executor.asking import hand_off_question
from tightloop.executor.handoff import (
    PATIENCE_S,
    HandOffEnd,
    HandOffResult,
    HandOffState,
    Message,
    Target,
    file_message,
    handoff_id,
    inline_message,
)
from tightloop.executor.model import ErrorKind, ExecutorOutcome, ExecutorStatus, WorkOrder
from tightloop.executor.options import CursorGuiOptions
from tightloop.settings import WindowSettings

FOLDER = (".tightloop", "handoff")
_IGNORE = ".gitignore"


def write_plan(root: Path, name: str, content: str) -> str:
    """Write a plan in place of earlier ones, and return its path, relative to the tree. Idempotent.

    Raises:
        ExecutorError: the folder is a link of the repository that leads elsewhere, or cannot be written.
    """
    folder = root.joinpath(*FOLDER)
    try:
        # A hostile repository may have put a link there.
        if Path(os.path.realpath(folder)) != Path(os.path.realpath(root)).joinpath(*FOLDER):
            raise ExecutorError(f"{folder} is a link that leads out of the working tree. Remove it")
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / _IGNORE, b"*\n")
        replace_file(folder / name, content.encode())
        for earlier in folder.glob("*.md"):
            if earlier.name != name:
                earlier.unlink(missing_ok=True)
    except OSError as error:
        raise ExecutorError(f"the plan cannot be written to {folder}: {error.strerror}. Make it writable") from None
    return "/".join((*FOLDER, name))


def remove_plan(root: Path, name: str) -> None:
    """Remove a plan; with the last one the folders go, too."""
    folder = root.joinpath(*FOLDER)
    with suppress(OSError):
        (folder / name).unlink(missing_ok=True)
        if [entry.name for entry in folder.iterdir()] == [_IGNORE]:
            (folder / _IGNORE).unlink()
            folder.rmdir()
            folder.parent.rmdir()


RETRY_S = 2.0
REFUSED_S = 120.0
"""How long a window that is not there, a locked screen or a draft is waited for before a person is asked."""
CONTINUE = "Continue where you stopped, and carry the plan out to its end."


@dataclass(frozen=True)
class CursorGuiExecutor(Executor):
    """One window at a time; what is in it is checked before every key."""

    settings: WindowSettings
    folder: Path
    """Where ledger, lock and the records of the hooks are."""
    open_driver: Callable[[WindowSettings], Driver]
    refused_s: float = REFUSED_S
    patience_s: float = PATIENCE_S
    transcript_quiet_s: float = TRANSCRIPT_QUIET_S
    locator: Locator | None = None
    shows: Callable[[str], bool] = lambda _workspace: True
    """Whether the locator's model may see the window of a workspace."""

    def availability(self) -> Availability:
        try:
            driver = self.open_driver(self.settings)
        except ExecutorError as error:
            return Availability(usable=False, reason=error.message)
        try:
            health = driver.preflight()
        finally:
            driver.close()
        problems = (*health.problems, *self._no_way_back())
        version = f"{driver.name}, {health.version}".strip(", ")
        if self.locator is not None:
            problems, version = (*problems, *filter(None, (self.locator.problem(),))), f"{version}, with Agent S"
        return Availability(usable=not problems, reason="; ".join(problems), version=version)

    def effects_outside(self, order: WorkOrder) -> str:
        del order
        return "the agent in the editor's window works without a fence of ours"

    def continues(self, order: WorkOrder, state_folder: Path) -> bool:
        """Return whether the hand-off has begun: its ledger says how to go on, without a second one. See the port."""
        del state_folder
        return self._ledger.get(self._identity(order)) is not None

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Hand the plan over exactly once, and wait; see the port.

        Raises:
            ExecutorError: the options are wrong, the ledger cannot be read, or there is no desktop.
        """
        del state_folder
        options = read_options(CursorGuiOptions, order.executor, NAME)
        if problems := self._no_way_back():
            return fatal_outcome("; ".join(problems), ErrorKind.CONFIG)
        root = Path(order.root)
        # The same for all deliveries of a plan: one that goes on after a limit finds it where it was.
        name = f"{file_stem(f'{order.episode_id}/{order.iteration}/{order.prompt}')}.md"
        driver = self.open_driver(self.settings)
        try:
            message = self._message(order, root, name, inline=options.inline)
            outcome = self._deliver(order, message, driver, control)
        finally:
            driver.close()
        # Who stops waiting, such as a worker that ends, leaves the agent at work: the next plan takes it away.
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
        chosen = self.settings
        target = Target(
            apps=chosen.apps,
            title=chosen.title,
            project=Path(order.root).name,
            root=order.root,
            box=chosen.box,
            chat_key=chosen.chat_key,
        )
        hand_off = HandOff(
            driver=driver,
            ledger=self._ledger,
            receipts=cursor,
            target=target,
            lock=self.folder / "screen.lock",
            cancelled=control.cancelled,
            patience_s=self.patience_s,
            locator=self.locator if self.shows(order.root) else None,
        )
        result = self._hand_over(hand_off, message, control)
        match result.end:
            case HandOffEnd.ACKED if result.receipt is not None:
                wait = Waiting(order, result.receipt, cursor, driver, target, control)
                return replace(wait, transcript_quiet_s=self.transcript_quiet_s).wait()
            case HandOffEnd.CANCELLED:
                return cancelled_outcome()
            case HandOffEnd.WRONG_WINDOW:
                return fatal_outcome(
                    f"the plan was submitted in a wrong window, where Cursor's hook refused it: {result.reason}. The "
                    f"agent there did not get it. Open {order.root} in the editor, and close the other window",
                    ErrorKind.CONFIG,
                )
            case HandOffEnd.NOT_TAKEN | HandOffEnd.AMBIGUOUS:
                question = hand_off_question(result.reason, order.plan.goal, message.id)
                return ExecutorOutcome(
                    status=ExecutorStatus.NEEDS_PERSON, summary=result.reason, error=result.reason, question=question
                )
            case _:
                return fatal_outcome(f"nothing was handed over: {result.reason}", ErrorKind.CONFIG)

    def _hand_over(self, hand_off: HandOff, message: Message, control: Control) -> HandOffResult:
        """Try until it is handed over or waiting does not help."""
        end = time.monotonic() + self.refused_s
        while True:
            result = hand_off.deliver(message)
            over = control.cancelled() or not result.retryable or time.monotonic() >= end
            # What is still offered must not be taken after the end.
            if over and result.end is HandOffEnd.REFUSED and hand_off.receipts.taken(message.id):
                continue
            if control.cancelled():
                return result if result.end is HandOffEnd.ACKED else HandOffResult(end=HandOffEnd.CANCELLED)
            if over:
                return result
            time.sleep(RETRY_S)

    @property
    def _ledger(self) -> FileLedger:
        return FileLedger(self.folder / "handoffs")

    @staticmethod
    def _identity(order: WorkOrder) -> str:
        return handoff_id(order.key, order.episode_id, order.iteration)

    def _no_way_back(self) -> tuple[str, ...]:
        """Return why nothing would tell that the agent has a plan, and in which folder; empty: something does."""
        if self.settings.allow_unknown_roots and Path(self.settings.transcripts).expanduser().is_dir():
            return ()
        problem = hooks_problem()
        return (problem,) if problem else ()
