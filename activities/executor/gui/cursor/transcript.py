"""Reads Cursor's transcripts, which it documents nowhere: JSON lines with the messages of a conversation."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tightloop.executor.handoff import find_markers

PATTERN = "*/agent-transcripts/*/*.jsonl"
RECENT_S = 86_400.0
MOST_BYTES = 4_000_000
"""Only the end of a transcript is read."""
MOST_DEPTH = 6


class Said(NamedTuple):
    """One message."""

    role: str
    text: str


def find_conversation(root: Path, handoff_id: str) -> Path | None:
    """Return the transcript in which a prompt of the user begins this hand-off; None: no recent one has it."""
    newest = time.time() - RECENT_S
    for path in root.glob(PATTERN) if root.is_dir() else ():
        try:
            if path.stat().st_mtime > newest and any(_begins(said, handoff_id) for said in read_messages(path)):
                return path
        except OSError:
            continue
    return None


def answer_to(path: Path, handoff_id: str) -> str:
    """Return the agent's last words since a hand-off; empty while there are none, or a tool was used last."""
    answer, begun = "", False
    for said in read_messages(path):
        if said.role == "user" and begun:
            return answer
        begun = begun or _begins(said, handoff_id)
        if begun and said.role == "assistant":
            answer = said.text
    return answer


def read_messages(path: Path) -> Iterator[Said]:
    """Return the messages at the end of a transcript; what is not one is left out."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            start = max(file.tell() - MOST_BYTES, 0)
            file.seek(start)
            lines = file.read(MOST_BYTES).splitlines()
    except OSError:
        return
    for line in lines[1 if start else 0 :]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            inner = found.get("message")
            message: dict[str, Any] = inner if isinstance(inner, dict) else found
            role = str(found.get("role") or message.get("role") or "")
            yield Said(role, "\n".join(_texts(message.get("content", message.get("text", "")))))


def _texts(content: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list) and depth < MOST_DEPTH:
        for part in content:
            yield from _texts(part, depth + 1)
    elif isinstance(content, dict) and content.get("type", "text") == "text":
        yield from _texts(content.get("text", ""), depth + 1)


def _begins(said: Said, handoff_id: str) -> bool:
    # Cursor may put a tag around what the user wrote; the first marker counts, not one that is quoted further on.
    return said.role == "user" and find_markers(said.text)[:1] == (handoff_id,)
