"""Git on the objects of a repository alone: no working tree, no attributes, none of the user's settings."""

from datetime import timedelta
from pathlib import Path

from activities.workspace.git_command import ISOLATED, Git, common_folder, git_folder

SETTINGS = (
    ("core.bare", "true"),  # with a working tree, its attributes may turn text into binary files or call programs
    ("apply.whitespace", "nowarn"),
    ("apply.ignoreWhitespace", "no"),
    ("index.version", "2"),
    ("core.splitIndex", "false"),
    ("core.untrackedCache", "false"),
)


def bare_git(root: Path) -> Git:
    """Return git for the repository of the working tree at `root`."""
    folder = git_folder(root)
    settings = {"GIT_CONFIG_COUNT": str(len(SETTINGS))}
    for number, (name, value) in enumerate(SETTINGS):
        settings |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return Git(folder, {**ISOLATED, **settings, "GIT_DIR": str(folder)})


def with_index(git: Git, folder: Path) -> Git:
    """Return the same git with an index in `folder`, which must exist."""
    return git.within({"GIT_INDEX_FILE": str(folder / "index")})


def without_writing(git: Git, folder: Path) -> Git:
    """Return the same git, which puts new objects into `folder` instead of the repository."""
    objects = str(common_folder(git.folder) / "objects")
    quoted = objects.replace("\\", "\\\\").replace('"', '\\"')
    return git.within(
        {"GIT_OBJECT_DIRECTORY": str(folder / "objects"), "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"'}
    )


def left(deadline: float, now: float) -> timedelta:
    """Return the time until `deadline`, at least a little."""
    return timedelta(seconds=max(0.05, deadline - now))
