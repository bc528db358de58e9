"""Files that only this user may read: keys and tokens."""

import os
import secrets
import stat
from pathlib import Path

from tightloop.errors import SettingsError
from tightloop.host import private_folder


def read_private(path: Path, what: str, fix: str) -> str:
    """Return the text of a private file.

    Args:
        path: the file.
        what: it is, for messages.
        fix: what to do where others can read it.

    Raises:
        FileNotFoundError: the file is missing.
        SettingsError: it cannot be read, is another user's, or others can read it.
    """
    try:
        # The open file is examined, not its name: that could mean another one a moment later.
        with path.open(encoding="utf-8") as file:
            found, text = os.fstat(file.fileno()), file.read()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the {what} {path} cannot be read: {error}") from None
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        raise SettingsError(f"the {what} {path} belongs to another user. Use one of your own")
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise SettingsError(f"the {what} {path} can be read by others (mode {mode:04o}). {fix}")
    return text


def write_private(path: Path, text: str, *, replace: bool = False) -> None:
    """Write a file so that only this user can read it; all of it or nothing.

    Raises:
        FileExistsError: there is one already and `replace` is not set.
        OSError: it cannot be written.
    """
    private_folder(path.parent)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            fresh.replace(path)
        else:
            # A link does not overwrite: two processes that make the first one at once end with one.
            path.hardlink_to(fresh)
    finally:
        fresh.unlink(missing_ok=True)
