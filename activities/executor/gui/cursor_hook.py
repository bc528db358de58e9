"""Cursor hook that accepts each hand-off once, in its own folder, and records the agent's answers.

The script is copied into the state home and run from there by any Python 3.8 or later, so it uses only the standard
library. It prints one JSON object and never blocks a user's prompt, even on errors. Only hand-offs that have not been
checked are blocked. Conversations without a hand-off are not recorded.
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
"""Maximum age of an offer in seconds. Older ones may be outdated, because the process that makes an offer polls every
few seconds.
"""
MOST_FOLLOW_UPS = 5
"""Maximum number of consecutive follow-ups. It equals Cursor's own `loop_limit`; further ones are ignored."""
MOST_BYTES = 8_000_000
MOST_TEXT = 200_000
MOST_ROOTS = 5
PROMPT, STOP = "beforeSubmitPrompt", "stop"
REFUSAL = "tightloop: the agent already received this plan, so the plan was not run again."
UNCHECKED = "tightloop: this plan could not be checked, so the plan was not run. Check the output of Cursor's hooks."


def stem(name: str) -> str:
    """Return the file name for an id."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]


def write_new(target: Path, content: dict[str, Any]) -> bool:
    """Atomically write a new file. Return False if it already exists."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            # A receipt lost in a power failure would allow a second run of the plan.
            os.fsync(file.fileno())
        # Unlike a rename this fails if the name is taken: of two concurrent hooks, one is rejected.
        os.link(temporary, target)
    except FileExistsError:
        return False
    finally:
        Path(temporary).unlink()
    return True


def is_folder(root: Any, expected: dict[str, Any]) -> bool:
    """Return whether a root folder of the editor is the folder that the hand-off expects."""
    if not isinstance(root, str) or not Path(root).is_absolute():
        return False
    try:
        # Must exist here: a window on another machine may have the same path.
        status = Path(root).stat()
    except (OSError, ValueError):
        return False
    # A symlink shares the real path; a renamed or doubly mounted folder shares the inode.
    same_path = os.path.realpath(root) == expected["real_path"]
    return same_path or (status.st_dev, status.st_ino) == (expected["device"], expected["inode"])


def misplacement(folder: Path, identity: str, event: dict[str, Any]) -> str:
    """Return the reason why a hand-off must not run in this window, or "" if it may run there."""
    try:
        expected = json.loads((folder / "expected" / f"{stem(identity)}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"this host has no record of which folder the plan {identity} is for"
    roots = event.get("workspace_roots")
    if not isinstance(roots, list) or not roots:
        if expected.get("allow_unknown_roots"):
            return ""
        return (
            f"the plan is for {expected['root']}, but the editor does not report which folder this window has open. "
            "To hand over the plan anyway, set window.allow_unknown_roots: true"
        )
    # All roots: the agent of a multi-folder window may work in any of them.
    if all(is_folder(root, expected) for root in roots):
        return ""
    opened = " and ".join(str(root) for root in roots[:MOST_ROOTS])
    return f"the plan is for {expected['root']}, but this window has {opened} open"


def handle(folder: Path, event: dict[str, Any]) -> dict[str, Any]:
    """Record one event and return the response that Cursor expects."""
    kind, conversation = str(event.get("hook_event_name", "")), str(event.get("conversation_id", ""))
    events = folder / "events" / stem(conversation)
    record = {"event": kind, "conversation": conversation, "generation": str(event.get("generation_id", ""))}
    record["transcript"] = str(event.get("transcript_path") or "")
    match = MARKER.match(str(event.get("prompt", "")).lstrip()) if kind == PROMPT else None
    if match:
        record["handoff_id"] = match[1]
        receipt = folder / "acks" / f"{stem(match[1])}.json"
        # An accepted plan that is submitted again must get the answer about repetition, not one about folders.
        if not receipt.exists() and (problem := misplacement(folder, match[1], event)):
            write_new(folder / "refused" / f"{stem(match[1])}.json", {"handoff_id": match[1], "reason": problem})
            return {"continue": False, "user_message": f"tightloop: {problem}. The plan was not run here."}
        version = str(event.get("cursor_version", ""))
        if not write_new(receipt, {**record, "version": version}):
            return {"continue": False, "user_message": REFUSAL}
    # A conversation becomes ours with its first hand-off; others are private.
    if match or events.is_dir():
        record["text"] = str(event.get("text", ""))[-MOST_TEXT:]
        record["status"] = str(event.get("status", ""))
        # One file per event: two hooks that append to the same file at once would corrupt it.
        write_new(events / f"{time.time_ns():020d}-{os.getpid()}.json", record)
    if kind == STOP and record.get("status") == "completed" and int(event.get("loop_count") or 0) < MOST_FOLLOW_UPS:
        return follow_up(folder, stem(conversation), event)
    return {"continue": True} if kind == PROMPT else {}


def follow_up(folder: Path, name: str, event: dict[str, Any]) -> dict[str, Any]:
    """Return the agent's next prompt if one was recently offered for this window's folder."""
    offer = folder / "next" / f"{name}.json"
    try:
        decoded = json.loads(offer.read_text(encoding="utf-8"))
        if time.time() - float(decoded["at"]) > OFFER_S or misplacement(folder, decoded["handoff_id"], event):
            return {}
        # Atomic: either this or the withdrawal of the offer succeeds.
        offer.replace(offer.with_name(f"{stem(decoded['handoff_id'])}.taken"))
    except (OSError, ValueError, KeyError):
        return {}
    return {"followup_message": str(decoded["prompt"])}


def main() -> None:
    """Read one event from standard input and respond to it."""
    os.umask(0o077)
    answer: dict[str, Any] = {"continue": True}
    text = ""
    try:
        text = sys.stdin.buffer.read(MOST_BYTES).decode("utf-8", "replace")
        answer = handle(Path(sys.argv[1]), json.loads(text))
    # Top level: the user's prompt must pass in any case.
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        # The event could not be parsed, so the raw text has to show whether it is a hand-off.
        if PROMPT in text and MARKER.search(text):
            answer = {"continue": False, "user_message": UNCHECKED}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
