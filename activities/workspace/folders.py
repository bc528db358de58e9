"""Folders of an episode on this host. Not usable in workflow code: they depend on the worker's environment."""

import re
from pathlib import Path

from activities.workspace.scope import EpisodeScope
from tightloop.errors import WorkspaceError
from tightloop.host import state_folder, store_folder

# Same syntax as the client's ids; ids of plan steps are longer (`child_id`).
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,199}")


def state_folder_of(scope: EpisodeScope) -> Path:
    """Return the folder of all non-code data of the project, in this host's state home."""
    return state_folder(Path(scope.workspace))


def store_folder_of(scope: EpisodeScope) -> Path:
    """Return the private git folder with all snapshots of the project, including its worktrees."""
    return store_folder(Path(scope.workspace))


def root_of(scope: EpisodeScope) -> Path:
    """Return the working tree of the episode.

    Raises:
        WorkspaceError: the id is not valid as a worktree name, and could leave our folder.
    """
    if not scope.worktree:
        return Path(scope.workspace)
    if not _NAME.fullmatch(scope.holder):
        raise WorkspaceError(
            f"{scope.holder[:80]!r} cannot be the name of a worktree: use letters, digits, '-', '_' and single '.'"
        )
    return state_folder_of(scope) / "worktrees" / scope.holder
