"""Rules of a hand-off to an editor's chat: message, target window, and next step by observation."""

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable
from enum import StrEnum

from tightloop.value import Value

MARKER = re.compile(r"\[tightloop handoff ([\w.:-]{1,120}/\d{1,9}/[0-9a-f]{8})\]")
ACK_S = 1.5
"""An agent that accepts a prompt runs its hook at once; measured with VS Code: 0.3 to 0.9 s."""
PATIENCE_S = 20.0
"""Maximum wait for an unconfirmed prompt before a person is asked, in seconds."""
MOST_ENTERS = 3

_REMOTE = re.compile(r"\[(SSH|WSL|(Attached )?Container|Dev Container|Codespaces|Tunnel)\b[^\]]*\]", re.IGNORECASE)
"""Suffix that an editor adds to the project name if the folder is on another machine."""
_MARKS = "●•* "
"""Prefixes that an editor adds to the title of an unsaved file."""
_CHARACTERS: dict[int, str | None] = {
    **dict.fromkeys([*range(9), *range(11, 32), 0x7F, 0xFEFF]),
    **dict.fromkeys([0xA0, 0x2007, 0x202F], " "),
}


class HandOffState(StrEnum):
    """State of a hand-off in its ledger."""

    PREPARED = "prepared"
    """Enter was not pressed, so it may be restarted."""
    ENTER = "enter"
    """Enter may have been pressed, so it is never pasted again."""
    ACKED = "acked"
    """The agent confirmed it."""


class HandOffEnd(StrEnum):
    """End of a hand-off attempt."""

    ACKED = "acked"
    REFUSED = "refused"
    """Nothing was submitted."""
    WRONG_WINDOW = "wrong_window"
    """Submitted in a window with another or an unknown folder; the hook refused it before the agent saw it."""
    NOT_TAKEN = "not_taken"
    """The text is in the box, but the agent does not accept it."""
    AMBIGUOUS = "ambiguous"
    """Enter was pressed, but there is no sign whether the agent has it."""
    CANCELLED = "cancelled"


class Message(Value):
    """Text of one hand-off."""

    id: str
    """`<episode>/<iteration>/<8 hex digits>`."""
    text: str

    @property
    def sha256(self) -> str:
        """SHA-256 of the text."""
        return digest(self.text)


class Receipt(Value):
    """The agent's confirmation of a hand-off."""

    handoff_id: str
    conversation: str = ""
    transcript: str = ""
    """Path of the conversation file."""
    source: str = "hook"


class HandOffResult(Value):
    """End of an attempt, with its reason."""

    end: HandOffEnd
    reason: str = ""
    """Sentence for a person: observation and advice."""
    retryable: bool = False
    """True if waiting may help."""
    receipt: Receipt | None = None


class Target(Value):
    """The only window, and the only box in it, that may be operated."""

    apps: tuple[str, ...]
    """Bundle ids on macOS, window classes on X11."""
    title: str
    """Regular expression for the title; `{project}` is the name of the project folder.

    Folder names are not unique, so it only narrows the search; the hook decides by `root`.
    """
    project: str
    root: str
    """Absolute path of the folder that the window must have open."""
    box: str
    """Regular expression for the accessible name of the chat box."""
    chat_key: str
    """Chord that focuses the box; it may be a toggle."""

    def matches(self, app: str, title: str) -> bool:
        """Return whether program and title of a window both match."""
        # File systems compose or decompose names, and editors show either form.
        window_title, project = (unicodedata.normalize("NFC", text) for text in (title.lstrip(_MARKS), self.project))
        if app not in self.apps or _REMOTE.search(window_title):
            return False
        return re.search(self.title.replace("{project}", re.escape(project)), window_title) is not None

    def is_box(self, role: str, label: str, *, editable: bool) -> bool:
        """Return whether the focused element is the chat box."""
        # An editor pane is named after its file, whose name may resemble that of the chat.
        named = re.search(self.box, label, re.IGNORECASE) and not re.search(r"\beditor group\b", label, re.IGNORECASE)
        return editable and role == "text" and bool(named)


class BoxState(StrEnum):
    """Content of the chat box."""

    EMPTY = "empty"
    OURS = "ours"
    """Exactly the text of this hand-off."""
    LEFTOVER = "leftover"
    """Exactly the text of an earlier hand-off, or several copies of one."""
    FOREIGN = "foreign"


class NextStep(StrEnum):
    """Next step after Enter may have been pressed."""

    DONE = "done"
    PRESS = "press"
    WAIT = "wait"
    NOT_TAKEN = "not_taken"
    AMBIGUOUS = "ambiguous"


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def handoff_id(key: str, episode_id: str, iteration: int) -> str:
    """Return the hand-off id of a delivery; equal for equal keys."""
    # Only characters that `MARKER` accepts; the hash of the key keeps shortened ids apart.
    episode = re.sub(r"[^\w.:-]", "-", episode_id, flags=re.ASCII)[:100] or "episode"
    return f"{episode}/{iteration}/{digest(key)[:8]}"


def episode_of(identity: str) -> str:
    """Return the episode of a hand-off."""
    return identity.partition("/")[0]


def marker(identity: str) -> str:
    """Return the marker of a hand-off in its text."""
    return f"[tightloop handoff {identity}]"


def normalise(text: str) -> str:
    """Return the text in the form in which a chat box returns it: LF, no NBSP, NFC, no control characters.

    Chromium turns CRLF into LF and NBSP into a space; after this the comparison with the pasted text is exact.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return unicodedata.normalize("NFC", lines.translate(_CHARACTERS)).rstrip("\n")


def inline_message(identity: str, prompt: str) -> Message:
    """Return a message that contains the whole prompt."""
    return Message(id=identity, text=normalise(f"{marker(identity)}\n{prompt}"))


def file_message(identity: str, path: str, content: str) -> Message:
    """Return one short line with the path and hash of the prompt file, which no size or character can break."""
    text = f"{marker(identity)} Read {path} (sha256 {digest(content)[:16]}) and carry it out to its end."
    return Message(id=identity, text=text)


def look_at_box(text: str, message: Message, earlier: Iterable[str]) -> BoxState:
    """Classify the box by its whole content."""
    content = normalise(text)
    if not content.strip():
        return BoxState.EMPTY
    if content == message.text:
        return BoxState.OURS
    # Read lazily: usually none is needed. A repeated paste leaves several copies.
    texts = itertools.chain((message.text,), earlier)
    is_ours = any(text and content == text * (len(content) // len(text)) for text in texts)
    return BoxState.LEFTOVER if is_ours else BoxState.FOREIGN


def after_enter(
    box: BoxState | None, *, acked: bool, enters: int, waited_s: float, guarded: bool, patience_s: float = PATIENCE_S
) -> NextStep:
    """Return the next step after Enter may have been pressed; the text is never pasted again.

    Args:
        box: content of the box; None: not inspected, or not visible.
        acked: the agent confirmed the text.
        enters: number of times Enter was pressed; 1 after a crash, because it may have been.
        waited_s: seconds since the last one.
        guarded: the agent's side refuses a hand-off that it already has.
        patience_s: maximum wait for an undecidable state.
    """
    if acked:
        return NextStep.DONE
    patient = waited_s < patience_s
    # Bounded, because a box that never changes would otherwise be pressed and watched for ever.
    if box is BoxState.OURS and waited_s < 2 * patience_s:
        # A lagging box still shows submitted text: without the guard only waiting can tell.
        settled = enters == 0 or waited_s >= (ACK_S if guarded else patience_s)
        if enters < MOST_ENTERS:
            return NextStep.PRESS if settled else NextStep.WAIT
        return NextStep.WAIT if patient else NextStep.NOT_TAKEN
    if patient:
        return NextStep.WAIT
    # Only a visible text, or an Enter that was never pressed, proves that nothing was submitted.
    untouched = box is BoxState.OURS or (box is None and enters == 0)
    return NextStep.NOT_TAKEN if untouched else NextStep.AMBIGUOUS
