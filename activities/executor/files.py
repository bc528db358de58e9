"""Private files of deliveries, written whole or not at all."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from activities.artifacts.durable import replace_file
from tightloop.host import private_folder


def write_whole(target: Path, content: bytes) -> None:
    """Write a file with mode 0600, durably; its folders are made.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    private_folder(target.parent)
    replace_file(target, content, durable=True)


def remove_old(folder: Path, lasts: Callable[[int], timedelta]) -> int:
    """Remove the folders in a folder that were not changed for too long; return how many.

    Args:
        folder: may be missing; links in it stay.
        lasts: how long a folder is kept, by the number of folders that are newer.
    """
    now, found = time.time(), []
    for entry in folder.iterdir() if folder.is_dir() else ():
        # Another worker of this host may remove the same folder.
        with suppress(OSError):
            if not entry.is_symlink() and entry.is_dir():
                found.append((now - entry.stat().st_mtime, entry))
    removed = 0
    for newer, (age_s, entry) in enumerate(sorted(found)):
        if age_s > lasts(newer).total_seconds():
            with suppress(OSError):
                shutil.rmtree(entry)
                removed += 1
    return removed


@contextmanager
def held_file(path: Path, text: str) -> Iterator[Path]:
    """Hold text in a private file as long as a program may read it."""
    write_whole(path, text.encode("utf-8", "replace"))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
