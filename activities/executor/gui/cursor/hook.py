"""Run by Cursor for each of its events: acknowledges hand-offs, refuses a repeated one, and keeps the agent's answers.

Copied into the state home and run there by any Python from 3.8 on: the standard library only. It prints one JSON object
and never stops a prompt of the user: what it cannot do it leaves. Conversations without a hand-off are not recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# As in tightloop.executor.handoff; a test compares them.
MARKER = re.compile(r"\[tightloop handoff ([\w.:-]{1,120}/\d{1,9}/[0-9a-f]{8})\]")
OFFER_S = 30.0
"""What was left for the agent longer ago may be out of date: whoever left it looks every few seconds."""
MOST_FOLLOW_UPS = 5
"""Cursor's own `loop_limit`: it ignores more of them in a row."""
MOST_BYTES = 8_000_000
MOST_TEXT = 200_000
PROMPT, STOP = "beforeSubmitPrompt", "stop"
REFUSAL = "tightloop: the agent has had this plan already, so it is not run a second time."


def stem(name: str) -> str:
    """Return the name of a file for an id."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]


def write_new(target: Path, content: dict[str, Any]) -> bool:
    """Write a file whole; return False where it is there already."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename it fails where the name is taken: of two at once, one is refused.
        os.link(temporary, target)
    except FileExistsError:
        return False
    finally:
        Path(temporary).unlink()
    return True


def handle(folder: Path, event: dict[str, Any]) -> dict[str, Any]:
    """Record one event and return the answer to Cursor."""
    kind, conversation = str(event.get("hook_event_name", "")), str(event.get("conversation_id", ""))
    events = folder / "events" / stem(conversation)
    record = {"event": kind, "conversation": conversation, "generation": str(event.get("generation_id", ""))}
    record["transcript"] = str(event.get("transcript_path") or "")
    match = MARKER.match(str(event.get("prompt", "")).lstrip()) if kind == PROMPT else None
    if match:
        record["handoff_id"] = match[1]
        version = str(event.get("cursor_version", ""))
        if not write_new(folder / "acks" / f"{stem(match[1])}.json", {**record, "version": version}):
            return {"continue": False, "user_message": REFUSAL}
    if match or events.is_dir():
        record["text"] = str(event.get("text", ""))[-MOST_TEXT:]
        record["status"] = str(event.get("status", ""))
        # One file for each: two hooks that append to one file at the same time damage it.
        write_new(events / f"{time.time_ns():020d}-{os.getpid()}.json", record)
    if kind == STOP and record.get("status") == "completed" and int(event.get("loop_count") or 0) < MOST_FOLLOW_UPS:
        return follow_up(folder / "next", stem(conversation))
    return {"continue": True} if kind == PROMPT else {}


def follow_up(folder: Path, name: str) -> dict[str, Any]:
    """Return what the agent is to do next, if it was left here a moment ago."""
    try:
        found = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        if time.time() - float(found["at"]) > OFFER_S:
            return {}
        # Either this succeeds, or taking it back does.
        (folder / f"{name}.json").replace(folder / f"{stem(found['handoff_id'])}.taken")
    except (OSError, ValueError, KeyError):
        return {}
    return {"followup_message": str(found["prompt"])}


def main() -> None:
    """Answer one event on standard input."""
    os.umask(0o077)
    answer: dict[str, Any] = {"continue": True}
    try:
        event = json.loads(sys.stdin.buffer.read(MOST_BYTES).decode("utf-8", "replace"))
        answer = handle(Path(sys.argv[1]), event)
    # An edge: the user's prompt must go through.
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
