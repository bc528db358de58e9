"""The plan file of a hand-off: in the working tree, where the editor's agent may read it, and ignored by git."""

import os
from contextlib import suppress
from pathlib import Path

from activities.artifacts.durable import replace_file
from tightloop.errors import ExecutorError

FOLDER = (".tightloop", "handoff")
_IGNORE = ".gitignore"


def write_plan(root: Path, name: str, content: str) -> str:
    """Write a plan in place of earlier ones, and return its path, relative to the tree. Idempotent.

    Raises:
        ExecutorError: the folder is a link of the repository that leads elsewhere, or cannot be written.
    """
    folder = root.joinpath(*FOLDER)
    try:
        # A hostile repository may have put a link there.
        if Path(os.path.realpath(folder)) != Path(os.path.realpath(root)).joinpath(*FOLDER):
            raise ExecutorError(f"{folder} is a link that leads out of the working tree. Remove it")
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / _IGNORE, b"*\n")
        replace_file(folder / name, content.encode())
        for earlier in folder.glob("*.md"):
            if earlier.name != name:
                earlier.unlink(missing_ok=True)
    except OSError as error:
        raise ExecutorError(f"the plan cannot be written to {folder}: {error.strerror}. Make it writable") from None
    return "/".join((*FOLDER, name))


def remove_plan(root: Path, name: str) -> None:
    """Remove a plan; with the last one the folders go, too."""
    folder = root.joinpath(*FOLDER)
    with suppress(OSError):
        (folder / name).unlink(missing_ok=True)
        if [entry.name for entry in folder.iterdir()] == [_IGNORE]:
            (folder / _IGNORE).unlink()
            folder.rmdir()
            folder.parent.rmdir()
