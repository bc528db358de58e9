"""Record of a run's git worktree, which its commands see at the workspace's path."""

import os
from pathlib import Path

from pydantic import ValidationError

from tightloop.host import state_home
from tightloop.value import Value

WORKTREES, DATA = "worktrees", "worktree-data"
MOUNTING = ("bubblewrap", "docker")
"""Names of the sandboxes that can mount a worktree at the workspace's path."""


class Worktree(Value):
    """Settings that make a worktree look like the workspace in a sandbox.

    All paths are on this host.
    """

    workspace: str
    """Path at which commands see the worktree."""
    commit: str = ""
    """Commit of the user's repository from which the worktree was created."""
    git: str = ""
    """Private git folder that commands may write to. The user's repository is not visible."""
    link: str = ""
    """File that is mounted as `.git` and leads to the private folder."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Additional read-only mounts, as pairs of source and target."""
    environments: tuple[tuple[str, str], ...] = ()
    """Installed programs and libraries, as pairs of a path in the tree and the folder that is mounted there."""
    copies: tuple[str, ...] = ()
    """Paths of ignored files that were copied from the workspace. Snapshots never contain them."""
    notes: tuple[str, ...] = ()
    """Notes for the operator about the contents of the worktree, as sentences."""

    def present_environments(self) -> tuple[tuple[Path, Path], ...]:
        """Return the environments that still exist, as (source, target) pairs.

        The target is the path that commands see.
        """
        pairs = ((Path(source), Path(self.workspace, path)) for path, source in self.environments)
        return tuple(pair for pair in pairs if pair[0].is_dir())


def data_folder(root: Path) -> Path:
    """Return the folder for data that belongs to the worktree at `root` but is stored outside it."""
    return root.parent.parent / DATA / root.name


def read_worktree(root: Path) -> Worktree | None:
    """Return the record of the worktree at `root`.

    Return None if tightloop did not create the worktree, or did not finish creating it.
    """
    # Only within the state home: elsewhere, an agent could have written the record.
    if root.parent.name != WORKTREES or not os.path.realpath(root).startswith(f"{os.path.realpath(state_home())}/"):
        return None
    try:
        return Worktree.model_validate_json((data_folder(root) / "record.json").read_bytes())
    except (OSError, ValidationError):
        return None


def path_inside(sandbox: str, root: Path) -> Path:
    """Return the path at which commands in this sandbox see the tree at `root`."""
    worktree = read_worktree(root) if sandbox in MOUNTING else None
    return root if worktree is None else Path(worktree.workspace)


def mounted_environments(root: Path) -> dict[str, Path]:
    """Return the folders that are mounted into a worktree, by their paths in the tree.

    The result is empty for other trees.
    """
    worktree = read_worktree(root)
    return {} if worktree is None else {path: Path(source) for path, source in worktree.environments}
