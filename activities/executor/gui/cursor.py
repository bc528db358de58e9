"""Cursor's hooks and transcripts, and the installation of our hook."""

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from activities.artifacts.port import file_stem, replace_file
from activities.executor.gui import cursor_hook
from activities.executor.gui.port import gui_folder
from tightloop.errors import ExecutorError, SettingsError
from tightloop.executor.handoff import MARKER, Message, Receipt, episode_of
from tightloop.host import home_folder, private_folder
from tightloop.value import Value

PATTERN = "*/agent-transcripts/*/*.jsonl"
RECENT_S = 86_400.0
MOST_BYTES = 4_000_000
"""Maximum number of bytes that are read from the end of a transcript."""
MOST_DEPTH = 6


class TranscriptMessage(NamedTuple):
    """A message in a transcript."""

    role: str
    text: str


def find_conversation(root: Path, handoff_id: str) -> Path | None:
    """Return the recent transcript with a user prompt that starts this hand-off, or None if there is none."""
    newest = time.time() - RECENT_S
    for path in root.glob(PATTERN) if root.is_dir() else ():
        try:
            if path.stat().st_mtime > newest and any(_begins(message, handoff_id) for message in read_messages(path)):
                return path
        except OSError:
            continue
    return None


def answer_to(path: Path, handoff_id: str) -> str:
    """Return the agent's last message since a hand-off.

    Return "" if there is no message, or if the agent used a tool after it.
    """
    answer, has_begun = "", False
    for message in read_messages(path):
        if message.role == "user" and has_begun:
            return answer
        has_begun = has_begun or _begins(message, handoff_id)
        if has_begun and message.role == "assistant":
            answer = message.text
    return answer


def read_messages(path: Path) -> Iterator[TranscriptMessage]:
    """Yield the messages at the end of a transcript, skipping other lines."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            start = max(file.tell() - MOST_BYTES, 0)
            file.seek(start)
            lines = file.read(MOST_BYTES).splitlines()
    except OSError:
        return
    # After a seek the first line is most likely cut.
    for line in lines[1 if start else 0 :]:
        try:
            decoded = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(decoded, dict):
            inner = decoded.get("message")
            message: dict[str, Any] = inner if isinstance(inner, dict) else decoded
            role = str(decoded.get("role") or message.get("role") or "")
            yield TranscriptMessage(role, "\n".join(_texts(message.get("content", message.get("text", "")))))


def _texts(content: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list) and depth < MOST_DEPTH:
        for part in content:
            yield from _texts(part, depth + 1)
    elif isinstance(content, dict) and content.get("type", "text") == "text":
        yield from _texts(content.get("text", ""), depth + 1)


def _begins(message: TranscriptMessage, handoff_id: str) -> bool:
    # Cursor may wrap the user's text in a tag; only the first marker counts, as later ones may be quotations.
    return message.role == "user" and MARKER.findall(message.text)[:1] == [handoff_id]


PROMPT, ANSWER, STOP, LIMIT = "beforeSubmitPrompt", "afterAgentResponse", "stop", "limit"
BUSY_S = 3600.0
"""Time in seconds without events after which we stop waiting for an agent. Its editor may have been closed."""
EXPECTED = 200
"""Number of hand-offs whose folders the hook knows about. The ledger keeps the same number."""


class AgentEvent(Value):
    """An event in a conversation."""

    event: str
    handoff_id: str = ""
    text: str = ""
    status: str = ""
    """The status of `stop`: `completed`, `aborted` or `error`."""


class CursorEvents:
    """Reads the files that the hooks write. If no hook has reported, it reads Cursor's transcripts."""

    def __init__(
        self, folder: Path, transcripts: Path, *, guarded: bool = True, allow_unknown_roots: bool = False
    ) -> None:
        self.guarded = guarded
        """True if the hook rejects a hand-off that is repeated."""
        self._folder, self._transcripts = folder, transcripts
        self._allow_unknown_roots = allow_unknown_roots

    def expect(self, message: Message, root: str) -> None:
        """Tell the `beforeSubmitPrompt` hook which folder the message is for. Call this before you paste the message.

        This clears an earlier refusal.

        Raises:
            ExecutorError: the folder does not exist.
        """
        real_path = os.path.realpath(root)
        try:
            status = Path(real_path).stat()
        except OSError as error:
            raise ExecutorError(f"cannot read the project folder {root}: {error.strerror}") from None
        expected = {
            "handoff_id": message.id,
            "root": root,
            "real_path": real_path,
            "device": status.st_dev,
            "inode": status.st_ino,
            "allow_unknown_roots": self._allow_unknown_roots,
        }
        folder, name = private_folder(self._folder / "expected"), f"{file_stem(message.id)}.json"
        replace_file(folder / name, json.dumps(expected).encode())
        (self._folder / "refused" / name).unlink(missing_ok=True)
        for old in sorted(_files(folder), key=mtime_of)[:-EXPECTED]:
            old.unlink(missing_ok=True)

    def refusal(self, handoff_id: str) -> str:
        """Return the reason why the hook rejected a hand-off, or "" if it did not reject it."""
        return str((_read(self._folder / "refused" / f"{file_stem(handoff_id)}.json") or {}).get("reason", ""))

    def find(self, handoff_id: str) -> Receipt | None:
        """Return the receipt for a hand-off, or None if the hand-off has no receipt."""
        ack = _read(self._folder / "acks" / f"{file_stem(handoff_id)}.json")
        if ack is not None:
            return Receipt(
                handoff_id=handoff_id,
                conversation=str(ack.get("conversation", "")),
                transcript=str(ack.get("transcript", "")),
            )
        # Without a hook, nothing has compared the folders.
        path = find_conversation(self._transcripts, handoff_id) if self._allow_unknown_roots else None
        return None if path is None else Receipt(handoff_id=handoff_id, transcript=str(path), source="transcript")

    def busy(self) -> bool:
        """Return whether the agent is known to be working on one of our hand-offs."""
        return next(self._active_conversations(), None) is not None

    def _active_conversations(self) -> Iterator[Sequence[Path]]:
        """Yield the events of each conversation that has not ended."""
        root, newest = self._folder / "events", time.time() - BUSY_S
        for folder in root.iterdir() if root.is_dir() else ():
            files = _files(folder)
            if files and files[-1].stat().st_mtime > newest:
                last = _read(files[-1]) or {}
                if last.get("event") not in (STOP, LIMIT):
                    yield files

    def offer(self, message: Message) -> None:
        """Pass the message to an open conversation of the same episode.

        The conversation's `stop` hook takes the message when the turn ends.
        """
        for files in self._active_conversations():
            records = [_read(path) or {} for path in files]
            handed = [str(record["handoff_id"]) for record in records if record.get("handoff_id")]
            conversation = str(records[-1].get("conversation", ""))
            # Another episode's agent works in another context, and perhaps in another window.
            if handed and conversation and episode_of(handed[-1]) == episode_of(message.id):
                offered = {"handoff_id": message.id, "prompt": message.text, "at": time.time()}
                folder = private_folder(self._folder / "next")
                replace_file(folder / f"{file_stem(conversation)}.json", json.dumps(offered).encode())
                return

    def withdraw_offer(self, handoff_id: str) -> bool:
        """Withdraw an offer. Return True if the hook had already taken the message."""
        folder = self._folder / "next"
        for path in _files(folder):
            if (_read(path) or {}).get("handoff_id") == handoff_id:
                path.unlink(missing_ok=True)
        # After the deletion: the hook renames the offer, so only one of the two can succeed.
        return (folder / f"{file_stem(handoff_id)}.taken").exists()

    def events_since(self, receipt: Receipt) -> tuple[AgentEvent, ...]:
        """Return the events of a conversation since a hand-off."""
        events = [
            AgentEvent.model_validate(event_fields)
            for path in _files(self._events(receipt))
            if (event_fields := _read(path)) is not None
        ]
        starts = [number for number, event in enumerate(events) if event.handoff_id == receipt.handoff_id]
        return tuple(events[starts[0] + 1 :]) if starts else ()

    def note_limit(self, receipt: Receipt) -> None:
        """Record that the agent's turn ended because of a limit. No hook reports this."""
        content = json.dumps({"event": LIMIT, "conversation": receipt.conversation}).encode()
        if receipt.conversation:
            replace_file(private_folder(self._events(receipt)) / f"{time.time_ns():020d}-0.json", content)

    def _events(self, receipt: Receipt) -> Path:
        return self._folder / "events" / file_stem(receipt.conversation)


def _files(folder: Path) -> Sequence[Path]:
    # File names start with the time. Hidden files are incomplete.
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith(".")) if folder.is_dir() else []


def _read(path: Path) -> dict[str, Any] | None:
    try:
        decoded = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return decoded if isinstance(decoded, dict) else None


def mtime_of(path: Path) -> int:
    """Return a file's modification time in nanoseconds, or 0 if the file cannot be read."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


EVENTS = (PROMPT, ANSWER, STOP)
SCRIPT = "cursor_hook.py"
VERSION = 1
"""Version of Cursor's file format."""
INSTALL = "tightloop hooks install"


def hooks_file() -> Path:
    """Return the path of the user's hooks file, which applies to all projects."""
    return home_folder() / ".cursor" / "hooks.json"


def hook_command() -> str:
    """Return the command line that Cursor runs. Both paths are absolute because Cursor has its own PATH."""
    return shlex.join((sys.executable, "-I", str(gui_folder() / SCRIPT), str(gui_folder() / "hooks")))


def hooks_problem() -> str:
    """Return the reason why Cursor does not run our current hook for all events, or "" if it does."""
    try:
        hooks = _read_hooks(hooks_file()).get("hooks")
    except SettingsError as error:
        return error.message
    ours = hook_command()
    lists = hooks if isinstance(hooks, dict) else {}
    lacking = [name for name in EVENTS if {"command": ours} not in _entries(lists.get(name))]
    # A script of an earlier version might accept plans that this one rejects.
    is_current = False
    with suppress(OSError):
        is_current = (gui_folder() / SCRIPT).read_bytes() == Path(cursor_hook.__file__).read_bytes()
    if not lacking and is_current:
        return ""
    what = ", ".join(lacking) or "the script is missing or outdated"
    return f"Cursor's hooks for reporting a hand-off are not installed ({what}). Run: {INSTALL}"


def render_hooks(*, remove: bool = False) -> str:
    """Return the new content of the hooks file as JSON. Entries of other programs are preserved.

    Raises:
        SettingsError: the file does not contain the JSON that Cursor documents.
    """
    content = _read_hooks(hooks_file())
    lists = content.setdefault("hooks", {})
    if not isinstance(lists, dict):
        raise SettingsError(f"'hooks' in {hooks_file()} is not a JSON object. Fix the file by hand")
    content.setdefault("version", VERSION)
    for name in EVENTS:
        # By the script's name: an earlier version, or another Python, has a different command line.
        other_entries = [entry for entry in _entries(lists.get(name)) if SCRIPT not in str(entry.get("command", ""))]
        lists[name] = other_entries if remove else [*other_entries, {"command": hook_command()}]
        if not lists[name]:
            del lists[name]
    return json.dumps(content, indent=2) + "\n"


def install(*, remove: bool = False) -> Path | None:
    """Install our hook script and add it to the hooks file.

    Returns:
        The backup of the previous hooks file, or None if there was none.

    Raises:
        SettingsError: the file cannot be read or written.
    """
    path, content = hooks_file(), render_hooks(remove=remove)
    try:
        folder = private_folder(gui_folder())
        if not remove:
            private_folder(folder / "hooks")
            replace_file(folder / SCRIPT, Path(cursor_hook.__file__).read_bytes())
        backup = None
        if path.exists():
            # Without this, a second run would replace the backup of the user's own file.
            if path.read_text(encoding="utf-8") == content:
                return None
            backup = path.with_name("hooks.json.before-tightloop")
            shutil.copy2(path, backup)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content.encode())
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}. Make the file writable") from None
    return backup


def _entries(entries: object) -> list[dict[str, Any]]:
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _read_hooks(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"cannot read {path} as JSON ({error}). Fix the file by hand or move it out of the way"
        ) from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path} is not a JSON object. Fix the file by hand or move it out of the way")
    return content
