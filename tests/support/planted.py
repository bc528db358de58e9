"""A tree that carries a program under each name that may be looked up by whoever works in it."""

import os
from pathlib import Path

FOLDERS = (".venv/bin", "node_modules/.bin", "bin", ".")
NAMES = (
    "bwrap", "prlimit", "docker", "podman", "sandbox-exec", "git", "git-upload-pack", "ssh", "ssh-keygen", "gpg",
    "op-ssh-sign", "rg", "grep", "notify-send", "osascript", "screencapture", "launchctl", "xclip", "xdg-open", "open",
    "firefox", "temporal", "python", "python3", "python3.11", "pip", "uv", "node", "npm", "npx", "bun", "deno", "sh",
    "bash", "zsh", "env", "setsid", "setpriv", "ps", "cat", "ls", "id", "uname", "which", "true", "tar", "gzip", "curl",
    "ruff", "pytest", "claude", "codex", "opencode", "gemini", "cursor-agent", "qwen", "goose", "tightloop", "ld.so",
    "pbcopy", "pbpaste",
)  # fmt: skip


def program_text(marker: Path) -> str:
    """A program that leaves its name and what it ran as beside `marker`, which no sandbox can write, and goes on."""
    # Only what a shell has built in: the other names are planted, too.
    return f'#!/bin/sh\n{{ echo "$0 ran as $PPID in $PWD" >> {marker}; }} 2>/dev/null\nexit 0\n'


def plant(root: Path, marker: Path, names: tuple[str, ...] = NAMES) -> None:
    """Write every program into every folder."""
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            place = root / folder / name
            place.write_text(program_text(marker))
            place.chmod(0o755)


def planting_script(marker: Path) -> str:
    """The same as a script for Python, for who writes the tree from inside a sandbox; in the working folder."""
    return (
        f"import os\nfor folder in {FOLDERS!r}:\n os.makedirs(folder, exist_ok=True)\n for name in {NAMES!r}:\n"
        f"  place = os.path.join(folder, name)\n  open(place, 'w').write({program_text(marker)!r})\n"
        "  os.chmod(place, 0o755)\n"
    )


def ran(marker: Path) -> str:
    """Return what the planted programs left; empty where none ran outside of a sandbox."""
    return marker.read_text() if os.path.lexists(marker) else ""
