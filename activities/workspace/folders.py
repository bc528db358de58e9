"""An episode's folders on this host.

They depend on the worker's environment and therefore cannot be used in workflow code.
"""

import re
from pathlib import Path

from activities.workspace.scope import EpisodeScope
from tightloop.episode.proof.files import is_environment
from tightloop.errors import WorkspaceError
from tightloop.host import state_folder, store_folder

# Same syntax as the client's ids; ids of plan steps are longer (`child_id`).
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,199}")


def state_folder_of(scope: EpisodeScope) -> Path:
    """Return the folder in this host's state home that contains all data of a project except its code."""
    return state_folder(Path(scope.workspace))


def store_folder_of(scope: EpisodeScope) -> Path:
    """Return the private git folder that contains all snapshots of a project and its worktrees."""
    return store_folder(Path(scope.workspace))


def root_of(scope: EpisodeScope) -> Path:
    """Return the working tree of an episode.

    Raises:
        WorkspaceError: the id is not a valid worktree name. It could lead out of the worktrees' folder.
    """
    if not scope.worktree:
        return Path(scope.workspace)
    if not _NAME.fullmatch(scope.holder):
        raise WorkspaceError(
            f"{scope.holder[:80]!r} is not a valid worktree name. Use letters, digits, '-', '_' and single dots"
        )
    return state_folder_of(scope) / "worktrees" / scope.holder


def has_packages(folder: Path) -> bool:
    """Return whether a folder contains installed programs and libraries, or is a virtual environment."""
    return is_environment(folder.name) or (folder / "pyvenv.cfg").is_file()
