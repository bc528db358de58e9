"""Real git repositories for tests, looked at without the code under test."""

import os
import subprocess
from pathlib import Path

from activities.workspace.folders import store_folder_of
from activities.workspace.scope import EpisodeScope

IDENTITY = ("-c", "user.name=Sam", "-c", "user.email=sam@example.org", "-c", "protocol.file.allow=always")
ENVIRONMENT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
Entry = tuple[str, bytes]


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run git as the user would; stderr is shown if it fails."""
    done = subprocess.run(
        ["git", *IDENTITY, *arguments],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        input=stdin,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return done.stdout


def stored(workspace: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run git on the snapshots of a workspace, as docs/trust/security.md and the README tell users."""
    return git(workspace, f"--git-dir={store_folder_of(scope_of(workspace))}", *arguments, stdin=stdin)


def make_repository(folder: Path, files: dict[str, str] | None = None) -> Path:
    """Make a repository with one commit; without files, one without a commit."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    if files:
        write(folder, files)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "start")
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def scope_of(workspace: Path, episode: str = "ep-1", *, worktree: bool = False) -> EpisodeScope:
    return EpisodeScope(episode_id=episode, workspace=str(workspace), worktree=worktree)


def on_disk(root: Path) -> dict[str, Entry]:
    """Return all files and links below `root` with mode and bytes, without `.git` and our own folder."""
    found: dict[str, Entry] = {}
    for name, folders, files in os.walk(root):
        folder = Path(name)
        links = [entry for entry in folders if (folder / entry).is_symlink()]
        folders[:] = [entry for entry in folders if entry not in (".git", *links)]
        for entry in (*files, *links):
            if entry != ".git":
                found[str((folder / entry).relative_to(root))] = _entry(folder / entry)
    return found


def _entry(path: Path) -> Entry:
    if path.is_symlink():
        return "link", os.fsencode(path.readlink())
    return "executable" if path.stat().st_mode & 0o100 else "file", path.read_bytes()


def user_state(root: Path) -> tuple[bytes, ...]:
    """Return what belongs to the user: index, HEAD, status, branches, settings."""
    folder = Path(os.fsdecode(git(root, "rev-parse", "--absolute-git-dir").strip()))
    index = folder / "index"
    return (
        index.read_bytes() if index.exists() else b"",
        (folder / "HEAD").read_bytes(),
        git(root, "status", "--porcelain", "-z"),
        git(root, "for-each-ref", "refs/heads", "refs/tags", "refs/remotes"),
        git(root, "config", "--local", "--list"),
    )
