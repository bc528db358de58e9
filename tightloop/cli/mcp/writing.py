"""Changes files of the user: shown first, backed up, all of it or nothing."""

import difflib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tightloop.errors import SettingsError
from tightloop.host import private_folder, state_home

LARGEST_BYTES = 4 * 2**20


class Change(NamedTuple):
    """One file, as it is and as it is to be."""

    path: Path
    old: str | None
    """None: there is none yet."""
    new: str

    @property
    def is_needed(self) -> bool:
        """Whether anything is different."""
        return self.old != self.new

    def lines(self) -> Iterator[str]:
        """Yield the unified diff."""
        old, new = (self.old or "").splitlines(), self.new.splitlines()
        return difflib.unified_diff(old, new, str(self.path), str(self.path), lineterm="")


def change(path: Path, make: Callable[[Path, str], str], *, within: Path | None = None) -> Change:
    """Return how a file changes; nothing is written.

    Args:
        path: the file; a link is followed.
        make: makes the new text from the path and the old text, empty where there is no file.
        within: the file has to be in this folder; links of a repository may lead elsewhere.

    Raises:
        SettingsError: it cannot be read, or is outside.
    """
    real = Path(os.path.realpath(path))
    if within is not None and not real.is_relative_to(os.path.realpath(within)):
        raise SettingsError(f"{path} leads to {real}, outside of {within}. Remove the link, then install again")
    try:
        if real.exists() and (not real.is_file() or real.stat().st_size > LARGEST_BYTES):
            raise SettingsError(f"{path} is not a file, or too large. Move it away, then install again")
        old = None
        if real.exists():
            # As it is: line ends of Windows stay.
            with real.open(encoding="utf-8", newline="") as file:
                old = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}. Correct it, then install again") from None
    return Change(real, old, make(path, old or ""))


def write(wanted: Change) -> Path | None:
    """Write a file; return where the one that was there is kept, None where there was none.

    Raises:
        SettingsError: it cannot be written; what was there stays.
    """
    path, backup = wanted.path, None
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        if wanted.old is not None:
            folder = private_folder(state_home() / "backups")
            backup = folder / f"{path.parent.name}-{path.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            _write_new(backup, wanted.old, 0o600)
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if wanted.old is not None else 0o644
        _write_new(fresh, wanted.new, mode)
        fresh.replace(path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror or error}. Make its folder writable") from None
    finally:
        fresh.unlink(missing_ok=True)
    return backup


def _write_new(path: Path, text: str, mode: int) -> None:
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8", newline=""
    ) as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
