"""Checks that a workspace can be used; an error says in one sentence why not."""

import os
import re
from datetime import timedelta
from pathlib import Path

from activities.workspace.git_command import COMMAND_TIMEOUT, Git, shown_paths, split_z
from activities.workspace.plain_git import filtered_paths, user_git
from activities.workspace.store.walk import Coverage, Walk
from activities.workspace.user_repository import UserRepository, is_trusted
from activities.workspace.working_tree import READ_TIMEOUT
from tightloop.errors import NotARepositoryError, WorkspaceError
from tightloop.host import state_home

OLDEST_GIT = (2, 30)
BIG_FILE_BYTES = 50_000_000
SHOWN = 3


def check_workspace(workspace: Path, *, needs_commit: bool, timeout: timedelta = COMMAND_TIMEOUT) -> None:
    """Check that `workspace` is the top of a git working tree.

    Raises:
        NotARepositoryError: it is not.
        WorkspaceError: it cannot be used otherwise.
    """
    if not workspace.is_absolute():
        raise WorkspaceError(f"the workspace '{workspace}' is not an absolute path: give the full path")
    if not workspace.exists():
        raise WorkspaceError(f"the workspace {workspace} does not exist on this host: check path and worker")
    if not workspace.is_dir():
        raise WorkspaceError(f"the workspace {workspace} is not a folder: name the top folder of a git working tree")
    answer = Git(Path("/"), timeout=timeout).run("version").decode("utf-8", "replace").strip()
    found = re.search(r"(\d+)\.(\d+)", answer)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_GIT:
        raise WorkspaceError(f"'{answer}' is too old: install git 2.30 or newer")
    if not os.path.lexists(workspace / ".git"):
        raise _refusal(workspace)
    repository = UserRepository(workspace)
    if not is_trusted(repository.folder, workspace):
        raise WorkspaceError(
            f"{workspace} belongs to another user, so git refuses it. Allow it: "
            f"git config --global --add safe.directory {workspace}"
        )
    if not _is_git_folder(repository.common):
        raise NotARepositoryError(f"{workspace} is not a git repository: {repository.common} is not complete")
    if needs_commit:
        with user_git(repository, timeout=timeout) as git:
            has_commit = git.attempt("rev-parse", "--verify", "-q", "HEAD^{commit}").code == 0
        if not has_commit:
            raise WorkspaceError(
                f"{workspace} needs a commit for a worktree of its own: "
                f"git -C {workspace} commit --allow-empty -m start (or start without worktree)"
            )


def refuse_state_home_within(workspace: Path) -> None:
    """Refuse a workspace that holds the state home: agents could write what we believe, snapshots would hold it.

    Raises:
        WorkspaceError: it does.
    """
    home = state_home()
    if home.resolve().is_relative_to(workspace.resolve()):
        raise WorkspaceError(
            f"the state home {home} lies in the workspace {workspace}. "
            "Start the worker with one outside of it: export TIGHTLOOP_HOME=..."
        )


def _refusal(workspace: Path) -> NotARepositoryError:
    """Return why a folder without `.git` cannot be used."""
    real = workspace.resolve()
    for folder in (real, *real.parents):
        if folder.name == ".git" and _is_git_folder(folder):
            return NotARepositoryError(f"{workspace} is inside a .git folder: name the top of the working tree")
        if _is_git_folder(folder):
            return NotARepositoryError(
                f"{workspace} is a bare git repository: name a working tree of it "
                f"(git -C {workspace} worktree add <path>)"
            )
        if os.path.lexists(folder / ".git"):
            return NotARepositoryError(f"{workspace} is inside the git working tree {folder}: name the top")
    return NotARepositoryError(f"{workspace} is not a git repository. Make it one: git init {workspace}")


def _is_git_folder(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()


def notes_on(
    repository: UserRepository, coverage: Coverage, *, worktree: bool, timeout: timedelta = COMMAND_TIMEOUT
) -> tuple[str, ...]:
    """Return what a person should know about the coverage of checkpoints, as sentences."""
    ignored: list[str] = []
    walk = Walk(coverage, None, seconds=READ_TIMEOUT.total_seconds(), ignored=ignored.append)
    files = list(walk.run(str(repository.root), None).paths())
    big = [path for path in files if _size(repository.root, path) > BIG_FILE_BYTES]
    changed: list[bytes] = []
    filtered: list[bytes] = []
    if worktree:
        with user_git(repository, timeout=timeout) as git:
            status = ("status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all")
            changed = [entry[3:] for entry in split_z(git.run(*status))]
            filtered = filtered_paths(git, split_z(git.run("ls-tree", "-r", "-z", "--name-only", "HEAD")))
    size = f"{BIG_FILE_BYTES // 1_000_000} MB"
    notes: dict[str, list[bytes]] = {
        "ignored files and empty folders are not part of checkpoints": _encoded(ignored),
        f"files over {size} slow checkpoints down and are stored again with every change": _encoded(big),
        "submodules and nested repositories are part of checkpoints as plain files, without their .git": _encoded(
            walk.nested
        ),
        "the worktree starts from the last commit, without changes that are not committed": changed,
        "the worktree has these files as git stores them, because filters (such as git-lfs) are not run": filtered,
    }
    return tuple(f"{sentence}: {shown_paths(paths, SHOWN)}" for sentence, paths in notes.items() if paths)


def _encoded(paths: list[str]) -> list[bytes]:
    return sorted(map(os.fsencode, paths))


def _size(root: Path, path: str) -> int:
    try:
        return (root / path).lstat().st_size
    except OSError:
        return 0
