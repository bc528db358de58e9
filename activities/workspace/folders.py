"""Folders of an episode on this host. Workflow code cannot use them: they depend on the environment of the worker."""

import re
from pathlib import Path

from activities.workspace.scope import EpisodeScope
from tightloop.errors import WorkspaceError
from tightloop.host import state_folder, store_folder

# As in ids that the client lets through; ids of the steps of a plan are longer (`child_id`).
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,199}")


def state_folder_of(scope: EpisodeScope) -> Path:
    """Return the folder of everything of this project that is not its code; in the state home of this host."""
    return state_folder(Path(scope.workspace))


def store_folder_of(scope: EpisodeScope) -> Path:
    """Return the private git folder with all snapshots of the project, of its worktrees too."""
    return store_folder(Path(scope.workspace))


def root_of(scope: EpisodeScope) -> Path:
    """Return the working tree of the episode.

    Raises:
        WorkspaceError: the id cannot be the name of a worktree; the path would leave our folder.
    """
    if not scope.worktree:
        return Path(scope.workspace)
    if not _NAME.fullmatch(scope.holder):
        raise WorkspaceError(
            f"{scope.holder[:80]!r} cannot be the name of a worktree: use letters, digits, '-', '_' and single '.'"
        )
    return state_folder_of(scope) / "worktrees" / scope.holder
