"""Rules of a hand-off to an editor's chat: what is pasted, into which window, and what follows from what is seen."""

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable
from enum import StrEnum

from tightloop.value import Value

MARKER = re.compile(r"\[tightloop handoff ([\w.:-]{1,120}/\d{1,9}/[0-9a-f]{8})\]")
ACK_S = 1.5
"""An agent that takes a prompt runs its hook at once; measured with VS Code: 0.3 to 0.9 s."""
PATIENCE_S = 20.0
"""How long a prompt that may have been taken is waited for before a person is asked."""
MOST_ENTERS = 3

_REMOTE = re.compile(r"\[(SSH|WSL|(Attached )?Container|Dev Container|Codespaces|Tunnel)\b[^\]]*\]", re.IGNORECASE)
"""An editor puts one after the project's name where the folder is on another machine."""
_MARKS = "●•* "
"""An editor puts one before the title of a file that is not saved."""
_CHARACTERS: dict[int, str | None] = {
    **dict.fromkeys([*range(9), *range(11, 32), 0x7F, 0xFEFF]),
    **dict.fromkeys([0xA0, 0x2007, 0x202F], " "),
}


class HandOffState(StrEnum):
    """How far a hand-off has come, as its ledger has it."""

    PREPARED = "prepared"
    """Enter was not pressed: it may be begun again."""
    ENTER = "enter"
    """Enter may have been pressed: it is never pasted again."""
    ACKED = "acked"
    """The agent has it."""


class HandOffEnd(StrEnum):
    """How an attempt to hand over ended."""

    ACKED = "acked"
    REFUSED = "refused"
    """Nothing was submitted."""
    WRONG_WINDOW = "wrong_window"
    """It was submitted where another folder is open, or nothing says which; the hook refused it before the agent."""
    NOT_TAKEN = "not_taken"
    """The text is in the box, and the agent does not take it."""
    AMBIGUOUS = "ambiguous"
    """Enter was pressed, and nothing tells whether the agent has it."""
    CANCELLED = "cancelled"


class Message(Value):
    """What one hand-off pastes."""

    id: str
    """`<episode>/<iteration>/<8 hex digits>`."""
    text: str

    @property
    def sha256(self) -> str:
        """Digest of the text."""
        return digest(self.text)


class Receipt(Value):
    """The agent's own word that it has a hand-off."""

    handoff_id: str
    conversation: str = ""
    transcript: str = ""
    """Path of the conversation's file."""
    source: str = "hook"


class HandOffResult(Value):
    """How an attempt ended, and why."""

    end: HandOffEnd
    reason: str = ""
    """A sentence for a person: what was seen, and what to do."""
    retryable: bool = False
    """Waiting may help."""
    receipt: Receipt | None = None


class Target(Value):
    """The one window, and the one box in it, that may be touched."""

    apps: tuple[str, ...]
    """Bundle ids on macOS, classes of windows on X11."""
    title: str
    """Regular expression; `{project}` stands for the name of the project's folder. Other folders may be called the
    same, so it only says where to look: the hook decides, see `root`."""
    project: str
    root: str
    """Absolute path of the folder that the window must have open."""
    box: str
    """Regular expression that is found in the accessible name of the chat box."""
    chat_key: str
    """Chord that brings the focus into the box; it may be a toggle."""

    def matches(self, app: str, title: str) -> bool:
        """Return whether a window may be the one that is meant; both the program and the title must be right."""
        # File systems give names composed or decomposed, and editors pass on either.
        shown, project = (unicodedata.normalize("NFC", text) for text in (title.lstrip(_MARKS), self.project))
        if app not in self.apps or _REMOTE.search(shown):
            return False
        return re.search(self.title.replace("{project}", re.escape(project)), shown) is not None

    def is_box(self, role: str, label: str, *, editable: bool) -> bool:
        """Return whether the element that has the focus is the chat box."""
        # An editor is named after its file, which may be called like the chat.
        named = re.search(self.box, label, re.IGNORECASE) and not re.search(r"\beditor group\b", label, re.IGNORECASE)
        return editable and role == "text" and bool(named)


class BoxState(StrEnum):
    """What is in the chat box."""

    EMPTY = "empty"
    OURS = "ours"
    """Exactly the text of this hand-off."""
    LEFTOVER = "leftover"
    """Exactly the text of an earlier hand-off, or several copies of one."""
    FOREIGN = "foreign"


class NextStep(StrEnum):
    """What to do once Enter may have been pressed."""

    DONE = "done"
    PRESS = "press"
    WAIT = "wait"
    NOT_TAKEN = "not_taken"
    AMBIGUOUS = "ambiguous"


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def handoff_id(key: str, episode_id: str, iteration: int) -> str:
    """Return the id of the hand-off of a delivery; the same for the same key."""
    episode = re.sub(r"[^\w.:-]", "-", episode_id, flags=re.ASCII)[:100] or "episode"
    return f"{episode}/{iteration}/{digest(key)[:8]}"


def episode_of(identity: str) -> str:
    """Return the episode that a hand-off belongs to."""
    return identity.partition("/")[0]


def marker(identity: str) -> str:
    """Return how a hand-off is named in its own text."""
    return f"[tightloop handoff {identity}]"


def normalise(text: str) -> str:
    """Return the text as a chat box gives it back: LF, no NBSP, composed (NFC), no control characters.

    Chromium turns CRLF into LF and NBSP into a space; the comparison with what was pasted is exact after this.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return unicodedata.normalize("NFC", lines.translate(_CHARACTERS)).rstrip("\n")


def inline_message(identity: str, prompt: str) -> Message:
    """Return a message that holds the whole prompt."""
    return Message(id=identity, text=normalise(f"{marker(identity)}\n{prompt}"))


def file_message(identity: str, path: str, content: str) -> Message:
    """Return one short line that names a file with the prompt, and its hash: no size and no character can break it."""
    text = f"{marker(identity)} Read {path} (sha256 {digest(content)[:16]}) and carry it out to its end."
    return Message(id=identity, text=text)


def look_at_box(text: str, message: Message, earlier: Iterable[str]) -> BoxState:
    """Return what is in the box, by its whole content."""
    found = normalise(text)
    if not found.strip():
        return BoxState.EMPTY
    if found == message.text:
        return BoxState.OURS
    # Read one by one: mostly none is needed. A paste that was repeated leaves several copies.
    texts = itertools.chain((message.text,), earlier)
    is_ours = any(text and found == text * (len(found) // len(text)) for text in texts)
    return BoxState.LEFTOVER if is_ours else BoxState.FOREIGN


def after_enter(
    box: BoxState | None, *, acked: bool, enters: int, waited_s: float, guarded: bool, patience_s: float = PATIENCE_S
) -> NextStep:
    """Return what to do once the ledger says that Enter may have been pressed; nothing is ever pasted again.

    Args:
        box: what is in the box; None: it was not looked at, or could not be seen.
        acked: the agent has said that it has the text.
        enters: how often Enter was pressed; after a crash 1, because it may have been.
        waited_s: since the last one.
        guarded: the agent's side refuses a hand-off that it has already.
        patience_s: how long to wait for what cannot be decided.
    """
    if acked:
        return NextStep.DONE
    patient = waited_s < patience_s
    if box is BoxState.OURS and waited_s < 2 * patience_s:
        # A box that lags still shows what was submitted: without the guard only time tells.
        settled = enters == 0 or waited_s >= (ACK_S if guarded else patience_s)
        if enters < MOST_ENTERS:
            return NextStep.PRESS if settled else NextStep.WAIT
        return NextStep.WAIT if patient else NextStep.NOT_TAKEN
    if patient:
        return NextStep.WAIT
    untouched = box is BoxState.OURS or (box is None and enters == 0)
    return NextStep.NOT_TAKEN if untouched else NextStep.AMBIGUOUS
