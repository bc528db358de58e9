"""The home folder of an agent: one for each episode, so that sessions live on and nothing else is seen."""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path, PurePosixPath

from activities.artifacts.durable import file_stem
from activities.executor.files import remove_old, write_whole
from tightloop.errors import ExecutorError
from tightloop.host import private_folder


def agent_home(homes: Path, episode_id: str, agent: str) -> Path:
    """Make and return `homes/<16 hex digits of the episode>/<agent>`, mode 0700, and note that it is in use.

    The same for every delivery of an episode: an agent's sessions are files in it. `homes` must not lie in the
    temporary folder, where the sandboxes of some agents cannot see their own programs.
    """
    # Below the temporary folder the sandbox of codex-acp 0.16.0 failed: "execvp codex-linux-sandbox: No such file".
    episode = homes / file_stem(episode_id)
    home = episode / agent
    private_folder(home)
    # `sweep_homes` looks at the time of this folder, which changes deeper in it do not move.
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
        relative, target = PurePosixPath(name), home / name
        inside = target.parent.resolve().is_relative_to(home.resolve())
        if relative.is_absolute() or ".." in relative.parts or not inside:
            raise ExecutorError(f"the settings file {name!r} leads out of the agent's home {home}. Remove that folder")
        try:
            write_whole(target, text.encode())
        except OSError as error:
            raise ExecutorError(
                f"the agent's settings {target} cannot be written: {error.strerror}. Make room or remove {home}"
            ) from None


def copy_login(source: Path, target: Path) -> None:
    """Copy an agent's login file into its home, mode 0600, unless the copy there is as new.

    An agent renews its login in the copy, and the one it came from may then be invalid: a copy that was
    changed later than the source stays.

    Raises:
        ExecutorError: the login is missing, or it cannot be read.
    """
    try:
        read = source.stat()
        if target.is_file() and not target.is_symlink() and target.stat().st_mtime >= read.st_mtime:
            return
        write_whole(target, source.read_bytes())
        # With the time of its source, the copy is newer only once the agent has changed it.
        os.utime(target, (read.st_atime, read.st_mtime))
    except FileNotFoundError:
        raise ExecutorError(
            f"the login {source} is missing. Log in with the agent's own command as the user of the worker, "
            "or set executor.agents.<name>.login to false and give a key"
        ) from None
    except OSError as error:
        raise ExecutorError(f"the login {source} cannot be copied to {target}: {error.strerror}") from None


def sweep_homes(homes: Path, older_than: timedelta) -> int:
    """Remove the homes of episodes that had no delivery for so long; return how many."""
    return remove_old(homes, lambda _: older_than)
