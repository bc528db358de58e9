"""Checks that a workspace can be used; an error says in one sentence why not."""

import os
import re
from datetime import timedelta
from pathlib import Path

from activities.workspace.git_command import COMMAND_TIMEOUT, ISOLATED, Git, Outcome, shown_paths, split_z
from activities.workspace.snapshot_repository import SnapshotRepository
from tightloop.errors import NotARepositoryError, WorkspaceError
from tightloop.host import state_home

OLDEST_GIT = (2, 30)
BIG_FILE_BYTES = 50_000_000
SHOWN = 3
GITLINK = b"160000 "


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
    git = Git(workspace, timeout=timeout)
    answer = git.within(ISOLATED).run("version").decode("utf-8", "replace").strip()
    found = re.search(r"(\d+)\.(\d+)", answer)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_GIT:
        raise WorkspaceError(f"'{answer}' is too old: install git 2.30 or newer")
    kind = git.attempt("rev-parse", "--is-bare-repository", "--is-inside-git-dir")
    if kind.code != 0:
        raise _refusal(kind, workspace)
    bare, inside_git_folder = (line == b"true" for line in kind.out.split())
    if bare:
        raise NotARepositoryError(
            f"{workspace} is a bare git repository: name a working tree of it (git -C {workspace} worktree add <path>)"
        )
    if inside_git_folder:
        raise NotARepositoryError(f"{workspace} is inside a .git folder: name the top of the working tree")
    top = Path(os.fsdecode(git.run("rev-parse", "--show-toplevel").removesuffix(b"\n")))
    # Not a comparison of texts: the path may lead through a link, or differ in case on macOS.
    if not top.samefile(workspace):
        raise NotARepositoryError(f"{workspace} is inside the git working tree {top}: name the top")
    if needs_commit and git.attempt("rev-parse", "--verify", "-q", "HEAD^{commit}").code != 0:
        raise WorkspaceError(
            f"{workspace} needs a commit for a worktree of its own: git -C {workspace} commit --allow-empty -m start "
            "(or start without worktree)"
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


def _refusal(outcome: Outcome, workspace: Path) -> WorkspaceError:
    if "dubious ownership" in outcome.error:
        return WorkspaceError(
            f"{workspace} belongs to another user, so git refuses it. Allow it: "
            f"git config --global --add safe.directory {workspace}"
        )
    if "not a git repository" in outcome.error:
        return NotARepositoryError(f"{workspace} is not a git repository. Make it one: git init {workspace}")
    return WorkspaceError(f"git cannot use {workspace}: {outcome.error}")


def notes_on(repository: SnapshotRepository, *, worktree: bool) -> tuple[str, ...]:
    """Return what a person should know about the coverage of checkpoints, as sentences."""
    git = repository.as_user
    ignored = split_z(git.run("ls-files", "-o", "-i", "--exclude-standard", "--directory", "-z"))
    files = split_z(git.run("ls-files", "-c", "-o", "--exclude-standard", "-z"))
    staged = split_z(git.run("ls-files", "-s", "-z"))
    links = {entry.partition(b"\t")[2] for entry in staged if entry.startswith(GITLINK)}
    nested = sorted(links | {path.removesuffix(b"/") for path in files if path.endswith(b"/")})
    big = [path for path in files if _size(repository.root, path) > BIG_FILE_BYTES]
    status = split_z(git.run("status", "--porcelain", "-z", "--no-renames")) if worktree else []
    size = f"{BIG_FILE_BYTES // 1_000_000} MB"
    notes = {
        "ignored files and empty folders are not part of checkpoints": ignored,
        f"files over {size} slow checkpoints down and are stored again with every change": big,
        "submodules and nested repositories are part of checkpoints as plain files, without their .git": nested,
        "the worktree starts from the last commit, without changes that are not committed": [s[3:] for s in status],
    }
    return tuple(f"{sentence}: {shown_paths(paths, SHOWN)}" for sentence, paths in notes.items() if paths)


def _size(root: Path, path: bytes) -> int:
    try:
        return (root / os.fsdecode(path)).lstat().st_size
    except OSError:
        return 0
