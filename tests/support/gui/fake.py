"""A desktop in memory: windows, an editor with a chat that is a toggle, a clipboard, and faults at chosen calls."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from activities.executor.gui.port import DriverError, Element, Entry, Frame, Health, NotPressedError, Window
from tightloop.executor.handoff import MARKER, HandOffState, Message, Receipt

EDITOR = Window(id="1", pid=7, app="Cursor", title="main.py - demo - Cursor")
DECOY = Window(id="2", pid=8, app="Slack", title="general - Slack")


def leading_marker(text: str) -> str:
    """Return the id of the hand-off that a prompt is; empty: none. One that quotes a marker further on is none."""
    match = MARKER.match(text.lstrip())
    return match[1] if match else ""


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Desktop:
    """What survives the death of a worker."""

    windows: list[Window] = field(default_factory=lambda: [EDITOR, DECOY])
    front: str = DECOY.id
    chat_open: bool = True
    chat_focused: bool = False
    box: str = ""
    file: str = "print('mine')\n"
    decoy: str = ""
    clipboard: str | None = "what the user copied"
    submitted: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    """What reached anything but the chat box."""
    busy: bool = False
    """The agent takes no prompt: Enter does nothing."""
    lag: int = 0
    """Looks at the box after which a submitted text is gone."""
    acknowledges: bool = True
    guards: bool = True
    lagging: int = 0
    page_lines: int = 0
    """Lines of a page in which the text of the box is told, as VS Code does; 0: all of it. The caret is at the end."""
    stepped: int = 0
    """Characters that the caret was moved back from the end."""
    clock: float = 0.0
    undo: list[str] = field(default_factory=list)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    refuses: str = ""
    """Why the hook refuses what is submitted, and leaves it in the box; empty: it does not."""
    refusals: dict[str, str] = field(default_factory=dict)
    locked: bool = False
    """Another program holds the keyboard."""
    held: list[str] = field(default_factory=list)
    """Keys that a process which died left down."""
    entries: dict[str, Entry] = field(default_factory=dict)
    working: bool = False
    shown: tuple[str, ...] = ()
    """What the window shows."""
    on_submit: Callable[[str], None] | None = None
    keeps_closed: bool = False
    """The chat does not open."""
    deaf: bool = False
    """The keys for the chat do nothing."""
    frame: Frame = field(default_factory=lambda: Frame(x=100, y=50, width=400, height=300))
    chat_at: tuple[int, int] = (300, 300)
    """Where a click brings the focus into the chat."""

    def now(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def submit(self) -> None:
        text = self.box
        if self.busy or not text or self.lagging:
            return
        identity = leading_marker(text)
        if self.guards and identity in self.receipts:
            return
        if self.refuses:
            self.refusals[identity] = self.refuses
            return
        self.submitted.append(text)
        if self.on_submit:
            self.on_submit(text)
        if self.acknowledges:
            self.receipts[identity] = Receipt(handoff_id=identity, conversation="c-1")
        if self.lag:
            self.lagging = self.lag
        else:
            self.box = ""


class FakeReceipts:
    """What the agent's side of the desktop says."""

    def __init__(self, desktop: Desktop) -> None:
        self._desktop = desktop

    @property
    def guarded(self) -> bool:
        return self._desktop.guards

    def find(self, handoff_id: str) -> Receipt | None:
        return self._desktop.receipts.get(handoff_id)

    def expect(self, message: Message, root: str) -> None:
        self._desktop.refusals.pop(message.id, None)

    def refusal(self, handoff_id: str) -> str:
        return self._desktop.refusals.get(handoff_id, "")

    def busy(self) -> bool:
        return self._desktop.working

    def offer(self, message: Message) -> None:
        """No hook takes anything here."""

    def withdraw_offer(self, handoff_id: str) -> bool:
        return False


Fault = Callable[["FakeDriver", str], None]
"""Called with the driver and `before` or `after`."""


class Calls:
    """Counts what a process does to its surroundings, and lets faults happen there."""

    def __init__(self, at: dict[int, Fault] | None = None, kinds: dict[tuple[str, int], Fault] | None = None) -> None:
        self.count = 0
        self.names: list[str] = []
        self.at, self.kinds, self._seen = at or {}, kinds or {}, Counter[str]()

    def begin(self, name: str, driver: "FakeDriver") -> Fault | None:
        self.count += 1
        self.names.append(name)
        self._seen[name] += 1
        fault = self.at.get(self.count) or self.kinds.get((name, self._seen[name]))
        if fault:
            fault(driver, "before")
        return fault


def _page(desktop: Desktop) -> str:
    """Return the page that has the caret."""
    if not desktop.page_lines:
        return desktop.box
    line = desktop.box[: len(desktop.box) - desktop.stepped].count("\n")
    first = line - line % desktop.page_lines
    return "".join(desktop.box.splitlines(keepends=True)[first : first + desktop.page_lines])


class FakeDriver:
    """Drives a desktop in memory."""

    name = "fake"

    def __init__(self, desktop: Desktop, calls: Calls | None = None) -> None:
        self.desktop, self.calls = desktop, calls or Calls()
        self.health = Health()
        self.tells_text = self.tells_focus = True
        self.paste: Callable[[Desktop], None] | None = None

    def _do(self, name: str, effect: Callable[[], object]) -> object:
        fault = self.calls.begin(name, self)
        value = effect()
        if fault:
            fault(self, "after")
        return value

    def preflight(self) -> Health:
        return self.health

    def windows(self) -> tuple[Window, ...]:
        return tuple(self.desktop.windows)

    def activate(self, window: Window) -> None:
        def effect() -> None:
            self.desktop.front = window.id

        self._do("activate", effect)

    def active(self) -> Window | None:
        return next((window for window in self.desktop.windows if window.id == self.desktop.front), None)

    def focused_element(self) -> Element | None:
        return self._do("focused", self._focused)  # type: ignore[return-value]

    def _focused(self) -> Element | None:
        desktop = self.desktop
        if not self.tells_focus:
            return None
        if desktop.front != EDITOR.id:
            return Element(role="text", label="Message general", text=desktop.decoy, editable=True)
        if not (desktop.chat_open and desktop.chat_focused):
            return Element(role="text", label="main.py", text=desktop.file, editable=True)
        if desktop.lagging:
            desktop.lagging -= 1
            if not desktop.lagging:
                desktop.box = ""
        text = _page(desktop) if self.tells_text else None
        return Element(role="text", label="Chat Input, type here", text=text, editable=True)

    def clipboard(self) -> str | None:
        return self.desktop.clipboard

    def set_clipboard(self, text: str) -> None:
        def effect() -> None:
            self.desktop.clipboard = text

        self._do("set_clipboard", effect)

    def press(self, chord: str, window: Window | None = None) -> None:
        self._do(f"press {chord}", lambda: self._press(chord, window))

    def release_keys(self) -> None:
        self.desktop.held.clear()

    def _press(self, chord: str, window: Window | None) -> None:  # noqa: C901 - a key each
        desktop = self.desktop
        if desktop.locked or (window is not None and window.id != desktop.front):
            raise NotPressedError("another program or window has the keyboard")
        if chord == "mod+l":
            if desktop.front == EDITOR.id and not desktop.deaf:
                desktop.chat_open = not (desktop.chat_open and desktop.chat_focused) and not desktop.keeps_closed
                desktop.chat_focused = desktop.chat_open
            return
        if desktop.front != EDITOR.id or not (desktop.chat_open and desktop.chat_focused):
            if chord in ("mod+v", "enter", "backspace", "mod+z"):
                desktop.leaked.append(f"{chord} {desktop.clipboard if chord == 'mod+v' else ''}".strip())
            return
        if chord == "left":
            desktop.stepped = min(desktop.stepped + 1, len(desktop.box))
        if chord == "mod+v":
            desktop.undo.append(desktop.box)
            if self.paste:
                self.paste(desktop)
            else:
                desktop.box += desktop.clipboard or ""
        elif chord == "mod+z" and desktop.undo:
            desktop.box = desktop.undo.pop()
        elif chord == "backspace":
            desktop.box = ""
        elif chord == "enter":
            desktop.submit()

    def frame(self, window: Window) -> Frame:
        return self.desktop.frame

    def picture(self, frame: Frame) -> bytes:
        return b"a picture"

    def click(self, x: int, y: int) -> None:
        self._do("click", lambda: self._click(x, y))

    def _click(self, x: int, y: int) -> None:
        desktop, place = self.desktop, self.desktop.frame
        inside = 0 <= x - place.x < place.width and 0 <= y - place.y < place.height
        if desktop.front != EDITOR.id or not inside:
            desktop.leaked.append(f"click {x} {y}")
        else:
            desktop.chat_focused = (x, y) == desktop.chat_at

    def texts(self, window: Window) -> tuple[str, ...]:
        return self.desktop.shown

    def close(self) -> None:
        """Nothing was started."""


class MemoryLedger:
    """A ledger on the fake desktop; its writes can be interrupted, too."""

    def __init__(self, desktop: Desktop, driver: FakeDriver) -> None:
        self._desktop, self._driver = desktop, driver

    def get(self, handoff_id: str) -> Entry | None:
        return self._desktop.entries.get(handoff_id)

    def record(self, message: Message, state: HandOffState, receipt: Receipt | None = None) -> Entry:
        entry = Entry(id=message.id, state=state, text=message.text, receipt=receipt)

        def effect() -> None:
            self._desktop.entries[message.id] = entry

        self._driver._do(f"record {state}", effect)
        return entry

    def texts(self) -> Iterator[str]:
        return (entry.text for entry in list(self._desktop.entries.values()))


def kill(when: str) -> Fault:
    """The process dies before or after the call."""

    def fault(_driver: FakeDriver, moment: str) -> None:
        if moment == when:
            raise Killed

    return fault


def steal_focus(_driver: FakeDriver, moment: str) -> None:
    """Another window comes to the front before the call."""
    if moment == "before":
        _driver.desktop.front = DECOY.id


def fail(driver: FakeDriver, moment: str) -> None:
    """A call to the desktop fails without effect."""
    if moment == "before" and not driver.calls.names[-1].startswith("record"):
        raise DriverError("the desktop did not answer within 5 s")


def fail_late(driver: FakeDriver, moment: str) -> None:
    """A call to the desktop has its effect, and fails."""
    if moment == "after" and not driver.calls.names[-1].startswith("record"):
        raise DriverError("the desktop did not answer within 5 s")
