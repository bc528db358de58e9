"""Puts our hook into Cursor's own file of hooks, beside those that are there, and takes it out again."""

import json
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from activities.artifacts.port import replace_file
from activities.executor.gui.cursor import hook
from activities.executor.gui.cursor.events import ANSWER, PROMPT, STOP
from activities.executor.gui.port import gui_folder
from tightloop.errors import SettingsError
from tightloop.host import home_folder, private_folder

EVENTS = (PROMPT, ANSWER, STOP)
SCRIPT = "cursor_hook.py"
VERSION = 1
"""Of the format of Cursor's file."""
INSTALL = "tightloop hooks install"


def hooks_file() -> Path:
    """Return the user's own file of hooks: it holds for all projects, and is in none of them."""
    return home_folder() / ".cursor" / "hooks.json"


def hook_command() -> str:
    """Return the command line that Cursor runs; it has a PATH of its own, so both paths are absolute."""
    return shlex.join((sys.executable, "-I", str(gui_folder() / SCRIPT), str(gui_folder() / "hooks")))


def hooks_problem() -> str:
    """Return what keeps Cursor from running our hook, of this version, for every event; empty: nothing."""
    try:
        found = _read(hooks_file()).get("hooks")
    except SettingsError as error:
        return error.message
    ours = hook_command()
    lists = found if isinstance(found, dict) else {}
    lacking = [name for name in EVENTS if {"command": ours} not in _entries(lists.get(name))]
    # A script of an earlier version would let plans through that this one refuses.
    is_current = False
    with suppress(OSError):
        is_current = (gui_folder() / SCRIPT).read_bytes() == Path(hook.__file__).read_bytes()
    if not lacking and is_current:
        return ""
    what = ", ".join(lacking) or "its script is missing or of another version"
    return f"Cursor has not the hooks that tell of a hand-off ({what}). Run: {INSTALL}"


def planned(*, remove: bool = False) -> str:
    """Return what the file would hold: JSON, with what others have put there unchanged.

    Raises:
        SettingsError: the file is not the JSON that Cursor documents.
    """
    content = _read(hooks_file())
    lists = content.setdefault("hooks", {})
    if not isinstance(lists, dict):
        raise SettingsError(f"'hooks' in {hooks_file()} is not an object. Correct it by hand")
    content.setdefault("version", VERSION)
    for name in EVENTS:
        others = [entry for entry in _entries(lists.get(name)) if SCRIPT not in str(entry.get("command", ""))]
        lists[name] = others if remove else [*others, {"command": hook_command()}]
        if not lists[name]:
            del lists[name]
    return json.dumps(content, indent=2) + "\n"


def install(*, remove: bool = False) -> Path | None:
    """Write the file and our script; return the copy of what was there before, if anything was.

    Raises:
        SettingsError: the file cannot be read or written.
    """
    path, content = hooks_file(), planned(remove=remove)
    try:
        folder = private_folder(gui_folder())
        if not remove:
            private_folder(folder / "hooks")
            replace_file(folder / SCRIPT, Path(hook.__file__).read_bytes())
        backup = None
        if path.exists():
            if path.read_text(encoding="utf-8") == content:
                return None
            backup = path.with_name("hooks.json.before-tightloop")
            shutil.copy2(path, backup)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content.encode())
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}. Make it writable") from None
    return backup


def _entries(found: object) -> list[dict[str, Any]]:
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read as JSON ({error}). Correct it by hand, or move it away") from None
    if not isinstance(found, dict):
        raise SettingsError(f"{path} is not a JSON object. Correct it by hand, or move it away")
    return found
