"""The home folder of an agent: one for each episode, so that sessions live on and nothing else is seen."""

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path, PurePosixPath

from tightloop.errors import ExecutorError


def agent_home(homes: Path, episode_id: str, agent: str) -> Path:
    """Make and return `homes/<16 hex digits of the episode>/<agent>`, mode 0700, and note that it is in use.

    The same for every delivery of an episode: an agent's sessions are files in it. `homes` must not lie in the
    temporary folder, where the sandboxes of some agents cannot see their own programs.
    """
    episode = homes / hashlib.sha256(episode_id.encode()).hexdigest()[:16]
    home = episode / agent
    for folder in (homes, episode, home):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.utime(episode)
    return home


def write_files(home: Path, files: Mapping[str, str]) -> None:
    """Write settings into a home, each at once and with mode 0600.

    Args:
        home: what `agent_home` returned.
        files: relative path to text.

    Raises:
        ExecutorError: a path leaves the home, also by a link that the agent made in it, or cannot be written.
    """
    for name, text in files.items():
        target = _inside(home, name)
        try:
            _write(target, text.encode())
        except OSError as error:
            raise ExecutorError(
                f"the agent's settings {target} cannot be written: {error.strerror}. Make room or remove {home}"
            ) from None


def copy_login(source: Path, target: Path) -> None:
    """Copy an agent's login file into its home, mode 0600, unless the copy there is as new.

    An agent renews its login in the copy, and the one it came from may then no longer be valid: a copy that was
    changed later than the source stays.

    Raises:
        ExecutorError: there is no such login, or it cannot be read.
    """
    try:
        read = source.stat()
        if target.is_file() and not target.is_symlink() and target.stat().st_mtime >= read.st_mtime:
            return
        _write(target, source.read_bytes())
        os.utime(target, (read.st_atime, read.st_mtime))
    except FileNotFoundError:
        raise ExecutorError(
            f"there is no login {source} to use. Log in with the agent's own command as the user of the worker, "
            "or set executor.agents.<name>.login to false and give a key"
        ) from None
    except OSError as error:
        raise ExecutorError(f"the login {source} cannot be copied to {target}: {error.strerror}") from None


def sweep_homes(homes: Path, older_than: timedelta) -> int:
    """Remove the homes of episodes that had no delivery for so long; return how many."""
    oldest = time.time() - older_than.total_seconds()
    removed = 0
    for episode in homes.iterdir() if homes.is_dir() else ():
        with contextlib.suppress(OSError):
            if not episode.is_symlink() and episode.is_dir() and episode.stat().st_mtime < oldest:
                shutil.rmtree(episode)
                removed += 1
    return removed


def _inside(home: Path, name: str) -> Path:
    relative = PurePosixPath(name)
    target = home / relative
    parent = target.parent.resolve()
    if relative.is_absolute() or ".." in relative.parts or not parent.is_relative_to(home.resolve()):
        raise ExecutorError(f"the settings file {name!r} leads out of the agent's home {home}. Remove that folder")
    return target


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
