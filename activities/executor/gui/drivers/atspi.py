"""Helper process that answers questions about the accessibility tree, one JSON object per line.

It is a separate process, run by a Python with GObject bindings. The bindings come only with the system's Python, and a
call to a program that hangs would otherwise hang the caller too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gi  # pyright: ignore[reportMissingImports]

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi  # noqa: E402  # pyright: ignore[reportMissingImports]

MOST_NODES = 6000
MOST_TEXTS = 400
MOST_CHARACTERS = 2000
TEXT_ROLES = ("entry", "text", "text box", "password text")
OBJECT = "\ufffc"
LAST: dict[int, tuple[Any, Any]] = {}


def applications(pid: int) -> Iterator[Any]:
    """Yield the accessibility trees that belong to a process."""
    desktop = Atspi.get_desktop(0)
    for number in range(desktop.get_child_count()):
        application = desktop.get_child_at_index(number)
        if application is not None and application.get_process_id() == pid:
            # Events fill the cache, but this process does not handle events.
            application.clear_cache()
            yield application


def walk(root: Any) -> Iterator[Any]:
    """Yield the nodes below `root` in reading order."""
    pending, visited = [root], 0
    while pending and visited < MOST_NODES:
        node = pending.pop()
        if node is None:
            continue
        visited += 1
        yield node
        try:
            pending.extend(node.get_child_at_index(n) for n in reversed(range(node.get_child_count())))
        except Exception:  # noqa: BLE001, S112 - nodes vanish while they are looked at
            continue


def has(node: Any, state: Any) -> bool:
    """Return whether a node has the given state."""
    try:
        return bool(node.get_state_set().contains(state))
    except Exception:  # noqa: BLE001 - nodes vanish while they are looked at
        return False


def content(node: Any, depth: int = 0) -> str | None:
    """Return the text of a node. Each embedded object is replaced with its text on a separate line."""
    iface = node.get_text_iface()
    text = Atspi.Text.get_text(iface, 0, -1) if iface is not None else None
    if text is None or OBJECT not in text or depth > 8:
        return text
    parts = [content(node.get_child_at_index(n), depth + 1) or "" for n in range(node.get_child_count())]
    return "\n".join(parts) if not text.replace(OBJECT, "").strip() else text


def frames(pid: int) -> list[Any]:
    """Return the active windows of a process, or all of the process's trees if no window is active."""
    trees = list(applications(pid))
    windows = [tree.get_child_at_index(n) for tree in trees for n in range(tree.get_child_count())]
    return [window for window in windows if window and has(window, Atspi.StateType.ACTIVE)] or trees


def describe_focus(pid: int) -> dict[str, Any] | None:
    """Return the role, label and text of the focused element, or None."""
    frame, node = LAST.get(pid, (None, None))
    # Usually the focus has not moved: this takes two requests instead of hundreds.
    if node is None or not (is_now(frame, Atspi.StateType.ACTIVE) and is_now(node, Atspi.StateType.FOCUSED)):
        frame, node = find_focus(pid)
        LAST[pid] = (frame, node)
    if node is None:
        return None
    role = node.get_role_name()
    return {
        "role": "text" if role in TEXT_ROLES else role,
        "label": node.get_name() or "",
        "text": content(node),
        "editable": has(node, Atspi.StateType.EDITABLE),
    }


def is_now(node: Any, state: Any) -> bool:
    """Return whether a node has the given state. The cache is not used."""
    try:
        node.clear_cache()
    except Exception:  # noqa: BLE001 - nodes vanish while they are looked at
        return False
    return has(node, state)


def find_focus(pid: int) -> tuple[Any, Any]:
    """Return the focused window and node.

    Editable nodes are preferred, because their ancestors may be marked as focused too.
    """
    result = (None, None)
    for frame in frames(pid):
        for node in walk(frame):
            if has(node, Atspi.StateType.FOCUSED):
                result = (frame, node)
                if has(node, Atspi.StateType.EDITABLE):
                    return result
    return result


def texts(pid: int) -> list[str]:
    """Return the visible text of the active window."""
    lines: list[str] = []
    for frame in frames(pid):
        for node in walk(frame):
            if has(node, Atspi.StateType.SHOWING) and not has(node, Atspi.StateType.EDITABLE):
                text = (content(node) or node.get_name() or "").replace(OBJECT, " ").strip()
                if text and (not lines or lines[-1] != text[-MOST_CHARACTERS:]):
                    lines.append(text[-MOST_CHARACTERS:])
    return lines[-MOST_TEXTS:]


def say(line: str) -> None:
    """Write one line to standard output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer questions from standard input until it is closed."""
    Atspi.init()
    commands: dict[str, Callable[[int], Any]] = {"focused": describe_focus, "texts": texts}
    say(json.dumps({"ready": True}))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = {"answer": commands[request["do"]](request["pid"])}
        except Exception as error:  # noqa: BLE001 - an edge: the caller is told
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(json.dumps(answer))


if __name__ == "__main__":
    main()
