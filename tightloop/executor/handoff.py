"""Rules for a hand-off to an editor's chat: the message, the target window, and the next step for each observation."""

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable
from enum import StrEnum

from tightloop.value import Value

MARKER = re.compile(r"\[tightloop handoff ([\w.:-]{1,120}/\d{1,9}/[0-9a-f]{8})\]")
ACK_S = 1.5
"""Time within which an agent that accepts a prompt runs its hook. With VS Code, 0.3 to 0.9 s were measured."""
PATIENCE_S = 20.0
"""Maximum time in seconds to wait for the confirmation of a prompt before a person is asked."""
MOST_ENTERS = 3

_REMOTE = re.compile(r"\[(SSH|WSL|(Attached )?Container|Dev Container|Codespaces|Tunnel)\b[^\]]*\]", re.IGNORECASE)
"""Suffix that an editor adds to the project name if the folder is on a different machine."""
_MARKS = "●•* "
"""Prefixes that an editor adds to the title of a file that has not been saved."""
_CHARACTERS: dict[int, str | None] = {
    **dict.fromkeys([*range(9), *range(11, 32), 0x7F, 0xFEFF]),
    **dict.fromkeys([0xA0, 0x2007, 0x202F], " "),
}


class HandOffState(StrEnum):
    """State of a hand-off, as recorded in its ledger."""

    PREPARED = "prepared"
    """Enter has not been pressed yet, so the hand-off may be restarted."""
    ENTER = "enter"
    """Enter may have been pressed, so the text is never pasted again."""
    ACKED = "acked"
    """The agent has confirmed the hand-off."""


class HandOffEnd(StrEnum):
    """Outcome of an attempt to hand off a message."""

    ACKED = "acked"
    REFUSED = "refused"
    """Nothing was submitted."""
    WRONG_WINDOW = "wrong_window"
    """The text was submitted in a window whose folder is wrong or unknown. The hook refused it before the agent saw it.
    """
    NOT_TAKEN = "not_taken"
    """The text is in the chat box, but the agent does not accept it."""
    AMBIGUOUS = "ambiguous"
    """Enter was pressed, but nothing shows whether the agent received the text."""
    CANCELLED = "cancelled"


class Message(Value):
    """Text that is handed off to an agent."""

    id: str
    """ID in the form `<episode>/<iteration>/<8 hex digits>`."""
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
    """Result of a hand-off attempt, with the reason."""

    end: HandOffEnd
    reason: str = ""
    """Sentence for a person that describes the observation and the next step."""
    retryable: bool = False
    """True if waiting may help."""
    receipt: Receipt | None = None


class Target(Value):
    """The only window and chat box that the executor may operate."""

    apps: tuple[str, ...]
    """Bundle IDs on macOS, window classes on X11."""
    title: str
    """Regular expression for the title, in which `{project}` stands for the name of the project folder.

    Folder names are not unique, so the title only narrows the search. The hook decides by `root`.
    """
    project: str
    root: str
    """Absolute path of the folder that must be open in the window."""
    box: str
    """Regular expression for the accessible name of the chat box."""
    chat_key: str
    """Key combination that focuses the chat box. It may be a toggle."""

    def matches(self, app: str, title: str) -> bool:
        """Return whether the program and the title of a window both match."""
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
    """The box contains exactly the text of this hand-off."""
    LEFTOVER = "leftover"
    """The box contains exactly the text of an earlier hand-off, or several copies of it."""
    FOREIGN = "foreign"


class NextStep(StrEnum):
    """The next action when Enter may have been pressed."""

    DONE = "done"
    PRESS = "press"
    WAIT = "wait"
    NOT_TAKEN = "not_taken"
    AMBIGUOUS = "ambiguous"


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def handoff_id(key: str, episode_id: str, iteration: int) -> str:
    """Return the ID of a delivery's hand-off. Equal keys have equal IDs."""
    # Only characters that `MARKER` accepts; the hash of the key keeps shortened ids apart.
    episode = re.sub(r"[^\w.:-]", "-", episode_id, flags=re.ASCII)[:100] or "episode"
    return f"{episode}/{iteration}/{digest(key)[:8]}"


def episode_of(identity: str) -> str:
    """Return the ID of the episode that a hand-off belongs to."""
    return identity.partition("/")[0]


def marker(identity: str) -> str:
    """Return the marker that identifies a hand-off in its text."""
    return f"[tightloop handoff {identity}]"


def normalise(text: str) -> str:
    """Normalise text for comparison with the contents of a chat box.

    The result uses LF line endings and NFC, and contains no NBSP or control characters. Chromium converts
    CRLF to LF and NBSP to a space, so the pasted text can be compared exactly only after normalisation.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return unicodedata.normalize("NFC", lines.translate(_CHARACTERS)).rstrip("\n")


def inline_message(identity: str, prompt: str) -> Message:
    """Return a message that contains the whole prompt."""
    return Message(id=identity, text=normalise(f"{marker(identity)}\n{prompt}"))


def file_message(identity: str, path: str, content: str) -> Message:
    """Return a short message with the path and hash of the prompt file.

    The message is a single line, regardless of the size and content of the prompt.
    """
    text = f"{marker(identity)} Read {path} (sha256 {digest(content)[:16]}) and carry it out to its end."
    return Message(id=identity, text=text)


def look_at_box(text: str, message: Message, earlier: Iterable[str]) -> BoxState:
    """Compare the content of the chat box to the message, and return the state of the box."""
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
    """Return the next step when Enter may have been pressed. The text is never pasted again.

    Args:
        box: content of the chat box. None if it was not inspected or is not visible.
        acked: True if the agent has confirmed the text.
        enters: number of times that Enter was pressed. After a crash it is 1, because Enter may have been
            pressed.
        waited_s: seconds since Enter was last pressed.
        guarded: True if the agent's side refuses a hand-off that it has already received.
        patience_s: maximum time in seconds to wait if the state cannot be determined.
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
