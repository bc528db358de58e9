"""Hand-off protocol. Each step is checked, and any deviation before Enter aborts without submitting.

For comparison, blind pasting failed in 2% of measured hand-offs to an idle window, and it sent plans to other
programs.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from activities.executor.gui.agent_s import AgentS
from activities.executor.gui.cursor import CursorEvents
from activities.executor.gui.port import Driver, DriverError, Element, Ledger, NotPressedError, Window
from activities.workspace.ownership import LOCK_WAIT, hold_lock
from tightloop.errors import WorkspaceLockedError
from tightloop.executor.handoff import (
    ACK_S,
    PATIENCE_S,
    BoxState,
    HandOffEnd,
    HandOffResult,
    HandOffState,
    Message,
    NextStep,
    Target,
    after_enter,
    look_at_box,
)
from tightloop.value import shorten

TRIES = 6
"""Maximum number of attempts to paste or look before giving up. Attempts that find another window in front count too.
"""
ACTIVATE_S = 2.0
FOCUS_S = 1.0
PASTE_S = 3.0
"""Time in seconds to wait for a paste. At p95, 10 kB were in VS Code's box after 2.4 s."""
PENDING_S = 1.0
SETTLE_S = 0.15
POLL_S = 0.05
RETRY_WAIT_S = 0.5
TITLES_SHOWN = 5
_REMOVABLE = (BoxState.OURS, BoxState.LEFTOVER)
_UNDECIDED = {
    NextStep.NOT_TAKEN: (
        HandOffEnd.NOT_TAKEN,
        (
            "the text is in the chat box, but the agent did not accept the text. The agent may be busy, or another "
            "window may be in front"
        ),
    ),
    NextStep.AMBIGUOUS: (
        HandOffEnd.AMBIGUOUS,
        "Enter was pressed, but the agent has not acknowledged the plan, and the text is no longer in the chat box",
    ),
}


class HandOffRefusedError(Exception):
    """Raised if a hand-off must end before Enter is pressed."""

    def __init__(self, reason: str, *, retryable: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.retryable = reason, retryable


@dataclass
class HandOff:
    """Submits one message to the agent in one window.

    The message is submitted exactly once. If this cannot be guaranteed, a person is asked.
    """

    driver: Driver
    ledger: Ledger
    receipts: CursorEvents
    target: Target
    lock: Path
    """Lock file that excludes all other hand-offs on this host."""
    cancelled: Callable[[], bool] = lambda: False
    patience_s: float = PATIENCE_S
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    locator: AgentS | None = None
    """The locator, which is asked once per hand-off if keys do not move the focus into the box."""
    _located: str = field(default="", init=False)
    """The locator's error, for use in the message. Empty if the locator was not asked."""
    _blocked: str = field(default="", init=False)
    """The reason why Enter could not be pressed last time."""

    def deliver(self, message: Message) -> HandOffResult:
        """Hand over the message. After a crash, this can be called again with the same message.

        Raises:
            ExecutorError: the ledger cannot be read, or the project has no folder.
        """
        try:
            with hold_lock(self.lock, wait=LOCK_WAIT, what="the screen"):
                return self._deliver(message)
        except WorkspaceLockedError as error:
            return HandOffResult(end=HandOffEnd.REFUSED, reason=error.message, retryable=True)

    def _deliver(self, message: Message) -> HandOffResult:
        # Under the lock: another process may be handing over the same message.
        entry = self.ledger.get(message.id)
        if entry is not None and entry.state is HandOffState.ACKED:
            return HandOffResult(end=HandOffEnd.ACKED, receipt=entry.receipt)
        try:
            self.driver.release_keys()
        except DriverError as error:
            return HandOffResult(end=HandOffEnd.REFUSED, reason=error.message, retryable=True)
        if entry is None or entry.state is HandOffState.PREPARED:
            self.receipts.expect(message, self.target.root)
        # The hook may have given it to the agent at the end of its turn: then it counts as submitted.
        if entry is not None and entry.state is HandOffState.PREPARED and self.receipts.withdraw_offer(message.id):
            entry = self.ledger.record(message, HandOffState.ENTER)
        # Enter may have been pressed before the crash, so from here on nothing is pasted any more.
        if entry is not None and entry.state is HandOffState.ENTER:
            return self._submit(message, enters=1)
        try:
            self._check_host(message)
            self.ledger.record(message, HandOffState.PREPARED)
            clipboard = self.driver.clipboard()
            # A dead attempt may have pasted just now, and the editor may not show it yet.
            self._enter_text(message, pending=entry is not None)
        except HandOffRefusedError as refused:
            return HandOffResult(end=HandOffEnd.REFUSED, reason=refused.reason, retryable=refused.retryable)
        except DriverError as error:
            return HandOffResult(end=HandOffEnd.REFUSED, reason=error.message, retryable=True)
        # Before the key: a crash in between must look like a submission, never like the opposite.
        self.ledger.record(message, HandOffState.ENTER)
        result = self._submit(message, enters=0)
        # Only now: a pending paste would insert this text.
        if result.end in (HandOffEnd.ACKED, HandOffEnd.WRONG_WINDOW) and clipboard is not None:
            # The hand-off is done; losing the old clipboard is no reason to fail.
            with suppress(DriverError):
                self.driver.set_clipboard(clipboard)
        return result

    def _check_host(self, message: Message) -> None:
        health = self.driver.preflight()
        if not health.usable:
            raise HandOffRefusedError("; ".join(health.problems), retryable=True)
        if self.receipts.busy():
            # Before the offer: once it is taken, nothing may be pasted.
            self.ledger.record(message, HandOffState.PREPARED)
            self.receipts.offer(message)
            raise HandOffRefusedError(
                "the agent is still working on an earlier hand-off. Wait until the agent finishes, or stop the agent",
                retryable=True,
            )

    # -- the window and the box -----------------------------------------------------------------------

    def _find(self) -> Window:
        """Find the editor window.

        This searches every time, because the window title changes with the open file.
        """
        windows = self.driver.windows()
        matches = [window for window in windows if self.target.matches(window.app, window.title)]
        if len(matches) == 1:
            return matches[0]
        description = (
            f"a window of {' or '.join(self.target.apps)} with the project {self.target.project!r} in its title"
        )
        if matches:
            titles = ", ".join(repr(shorten(window.title, 80)) for window in matches[:TITLES_SHOWN])
            # Not retryable: the window that is meant does not become clear by waiting.
            raise HandOffRefusedError(f"{len(matches)} windows match the project: {titles}. Leave only one open")
        raise HandOffRefusedError(f"{description} is not open. Open the project folder in the editor", retryable=True)

    def _focus_box(self) -> tuple[Window, Element]:
        """Focus the chat box. Return its window and its element. No key is pressed in any other window."""
        window = self._find()
        if not self._is_active(window):
            self.driver.activate(window)
            if not self._until(lambda: self._is_active(window), ACTIVATE_S):
                raise HandOffRefusedError(
                    f"the window {shorten(window.title, 80)!r} did not come to the front", retryable=True
                )
        # The shortcut may be a toggle: if the first press closes the chat, the second opens it.
        for press in range(3):
            wait_s = FOCUS_S if press else 0.0
            if self._until(lambda: self._box() is not None, wait_s) and (element := self._box()):
                return window, element
            if press < 2:
                self._press(window, self.target.chat_key)
        if element := self._click_box(window):
            return window, element
        focus = self.driver.focused_element()
        what = f"{focus.role} {shorten(focus.label, 60)!r}" if focus else "an unknown element"
        raise HandOffRefusedError(
            f"after {self.target.chat_key} was pressed, the focus was on {what} instead of the chat box. Open the "
            "chat. If it is already open, check the window.box setting, and run tightloop doctor to check the "
            f"accessibility permissions{self._located}",
            retryable=True,
        )

    def _click_box(self, window: Window) -> Element | None:
        """Click the chat box that the locator finds. Return the box if it now has the focus, or None."""
        # Once per hand-off, because each look costs a model call.
        if self.locator is None or self._located or not self._is_active(window):
            return None
        try:
            frame = self.driver.frame(window)
            x, y = self.locator.locate(self.driver.picture(frame), frame)
            # Locating took seconds: another window may be there now.
            if self._is_active(window) and self.driver.frame(window) == frame:
                self.driver.click(x, y)
                self._located = f". A click at ({x}, {y}), where the locator found the chat box, did not help"
                self._until(lambda: self._box() is not None, FOCUS_S)
            else:
                self._located = ". The window moved while the locator searched for the chat box"
        except DriverError as error:
            self._located = f". {error.message}"
        return self._box()

    def _box(self) -> Element | None:
        """Return the chat box if it has the focus, or None."""
        element = self.driver.focused_element()
        is_box = element is not None and self.target.is_box(element.role, element.label, editable=element.editable)
        return element if is_box else None

    def _is_active(self, window: Window) -> bool:
        active = self.driver.active()
        return active is not None and active.id == window.id

    def _read_box(self, window: Window, message: Message) -> BoxState | None:
        """Read the state of the chat box. Return None if the box does not have the focus."""
        if not self._is_active(window) or (element := self._box()) is None:
            return None
        if element.text is None:
            raise HandOffRefusedError(
                "the accessibility tree does not show the text of the chat box, so the text cannot be checked"
            )
        # Checked twice: another window may have come to the front in between.
        return look_at_box(element.text, message, self.ledger.texts()) if self._is_active(window) else None

    # -- before Enter ---------------------------------------------------------------------------------

    def _enter_text(self, message: Message, *, pending: bool) -> None:
        """Replace the content of the chat box with the message.

        Set `pending` if an earlier paste may still arrive.

        Raises:
            HandOffRefusedError: the text could not be entered, or the box contains a person's draft.
        """
        pasted, again = pending, pending
        last = HandOffRefusedError("the text in the chat box differs from the text that was sent", retryable=True)
        for _ in range(TRIES):
            if self.cancelled():
                raise HandOffRefusedError("stopped on request")
            try:
                window, _element = self._focus_box()
            except HandOffRefusedError as refused:
                if not refused.retryable:
                    raise
                last = refused
                self.sleep(RETRY_WAIT_S)
                continue
            state = self._read_box(window, message)
            # After one paste the text is final; only a second one can still arrive and double it.
            if state is BoxState.OURS and (not again or self._is_stable(window, message)):
                return
            again = again or pasted
            pasted = self._correct(state, window, message, pasted=pasted)
        raise last

    def _is_stable(self, window: Window, message: Message) -> bool:
        """Return whether the message stays unchanged in the chat box for a while.

        A second paste of the same message may still arrive.
        """
        self._until(lambda: self._read_box(window, message) is not BoxState.OURS, PENDING_S)
        return self._read_box(window, message) is BoxState.OURS

    def _correct(self, state: BoxState | None, window: Window, message: Message, *, pasted: bool) -> bool:
        """Try once to correct the content of the chat box. Return True if it may now contain our paste."""
        match state:
            case BoxState.EMPTY:
                # A late paste must not collide with another one.
                if pasted and self._until(lambda: self._read_box(window, message) is not BoxState.EMPTY, PASTE_S):
                    return True
                # A paste that came too late stays possible, whatever the new one does.
                return self._paste(window, message) or pasted
            case BoxState.LEFTOVER:
                self._clear(window, message)
                return pasted
            case BoxState.FOREIGN if pasted:
                # Result of a bad paste, such as a doubled text: undo it once, and look again.
                self._press(window, "mod+z")
                self.sleep(SETTLE_S)
                return False
            case BoxState.FOREIGN:
                raise HandOffRefusedError(
                    "the chat box contains a draft that tightloop did not write. Send or remove the draft",
                    retryable=True,
                )
            case _:
                self.sleep(POLL_S)
                return pasted

    def _paste(self, window: Window, message: Message) -> bool:
        """Paste the text and wait until it appears. Return True if the keys were pressed."""
        self.driver.set_clipboard(message.text)
        # The new clipboard owner may need a moment to answer.
        if not self._until(lambda: self.driver.clipboard() == message.text, FOCUS_S):
            return False
        # Editors report long texts in pages, the last of which may be empty: moving back shows the one before.
        if self._read_box(window, message) is not BoxState.EMPTY or not self._press(window, "left"):
            return False
        self.sleep(SETTLE_S)
        if self._read_box(window, message) is not BoxState.EMPTY or not self._press(window, "mod+v"):
            return False
        self.sleep(SETTLE_S)
        self._until(lambda: self._read_box(window, message) not in (BoxState.EMPTY, BoxState.FOREIGN), PASTE_S)
        return True

    def _clear(self, window: Window, message: Message) -> None:
        """Delete our text from the box. Call this only if the box contains nothing else."""
        # A slow box still shows the submitted text, and clears itself.
        if self._until(lambda: self._read_box(window, message) not in _REMOVABLE, PASTE_S):
            return
        # Checked again between the two keys: a person may have begun to type.
        if self._press(window, "mod+a") and self._read_box(window, message) in _REMOVABLE:
            self._press(window, "backspace")
            self.sleep(SETTLE_S)

    def _press(self, window: Window, chord: str) -> bool:
        """Press keys if the window is in front.

        The driver also checks this and refuses if the window does not have the keyboard focus.
        """
        if not self._is_active(window):
            return False
        self.driver.press(chord, window)
        return True

    # -- from Enter on --------------------------------------------------------------------------------

    def _submit(self, message: Message, *, enters: int) -> HandOffResult:
        """Press Enter until the agent has received the text. Nothing is pasted.

        `enters` is the number of times that Enter has already been pressed. Use 1 if the number is unknown.
        """
        box = BoxState.OURS if enters == 0 else None
        since = checked_at = self.now()
        while True:
            receipt = self.receipts.find(message.id)
            step = after_enter(
                box,
                acked=receipt is not None,
                enters=enters,
                waited_s=self.now() - since,
                guarded=self.receipts.guarded,
                patience_s=self.patience_s,
            )
            if step is NextStep.DONE:
                self.ledger.record(message, HandOffState.ACKED, receipt)
                return HandOffResult(end=HandOffEnd.ACKED, receipt=receipt)
            # After the receipt: a hook of the right window may have accepted what another one refused.
            if refusal := self.receipts.refusal(message.id):
                return self._take_back(message, refusal)
            if step in _UNDECIDED:
                end, reason = _UNDECIDED[step]
                return HandOffResult(end=end, reason=f"{reason}{self._blocked}")
            if self.cancelled():
                return HandOffResult(end=HandOffEnd.CANCELLED, reason="stopped on request")
            if step is NextStep.PRESS:
                if self._press_enter(message):
                    enters, since = enters + 1, self.now()
                box = None
            self.sleep(POLL_S)
            # Leave the window alone while the receipt may be on its way.
            if self.now() - since >= (ACK_S if enters else 0) and self.now() - checked_at >= RETRY_WAIT_S:
                box = None
                # If the box cannot be read, its state stays unknown, and no second Enter is pressed.
                with suppress(HandOffRefusedError, DriverError):
                    box = self._read_box(self._focus_box()[0], message)
                checked_at = self.now()

    def _take_back(self, message: Message, refusal: str) -> HandOffResult:
        """Delete the rejected text from the chat box, so that it can be handed over again."""
        with suppress(HandOffRefusedError, DriverError):
            window, _element = self._focus_box()
            if self._read_box(window, message) is BoxState.OURS:
                self._clear(window, message)
        # The hook has blocked the prompt, so another attempt cannot submit it twice.
        self.ledger.record(message, HandOffState.PREPARED)
        return HandOffResult(end=HandOffEnd.WRONG_WINDOW, reason=refusal)

    def _press_enter(self, message: Message) -> bool:
        """Press Enter if the focused box still contains the text. Return whether Enter may have been pressed."""
        try:
            window, _element = self._focus_box()
            if self._read_box(window, message) is not BoxState.OURS or not self._press(window, "right"):
                return False
            # The focus may have moved within the window.
            if self._box() is None or not self._is_active(window):
                return False
        except (HandOffRefusedError, DriverError) as error:
            self._blocked = f". {error}"
            return False
        self._blocked = ""
        try:
            self.driver.press("enter", window)
        except NotPressedError as error:
            self._blocked = f". {error}"
            return False
        except DriverError:
            # It may have been pressed anyway: the receipt or the box will show that.
            return True
        return True

    # -- waiting --------------------------------------------------------------------------------------

    def _until(self, holds: Callable[[], bool], seconds: float) -> bool:
        end = self.now() + seconds
        while not holds():
            if self.now() >= end or self.cancelled():
                return False
            self.sleep(POLL_S)
        return True
