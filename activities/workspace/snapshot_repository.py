"""The private git folder and index through which a working tree is read and written, byte for byte."""

import contextlib
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from activities.workspace.git_command import COMMAND_TIMEOUT, ISOLATED, Git, common_folder, git_folder, split_z
from activities.workspace.ownership import tree_key, write_atomically
from tightloop.host import private_folder

ADD_TIMEOUT = timedelta(minutes=10)
ATTRIBUTES = b"* -text -ident -filter !eol !working-tree-encoding !diff\n"
"""Highest precedence of all attributes (gitattributes(5)), so that bytes are stored as they are on disk."""

USER_SETTINGS = r"^(core\.(excludesfile|ignorecase|precomposeunicode)|extensions\.objectformat)$"
FILE_SYSTEM_SETTINGS = ("core.ignorecase", "core.precomposeunicode")
SETTINGS = {
    "bare": "false",
    "fileMode": "true",
    "symlinks": "true",
    "autocrlf": "false",
    "safecrlf": "false",
    "quotePath": "false",
    # Larger files are streamed into a pack instead of being read into memory.
    "bigFileThreshold": "16m",
    "compression": "1",
    # One fsync for all new objects instead of one for each; git before 2.36 makes none.
    "fsyncMethod": "batch",
    "logAllRefUpdates": "false",
    "attributesFile": os.devnull,
    # Names that are special on Windows only must not make a snapshot fail here.
    "protectNTFS": "false",
}


class SnapshotRepository:
    """Two views of one working tree: `user` (read, and our references) and `private` (our index).

    The private view has its own git folder, but writes objects into the user's database, so that references
    in the user's repository keep them alive and `git diff` shows them.
    """

    def __init__(
        self, state: Path, root: Path, *, timeout: timedelta = COMMAND_TIMEOUT, lock: int | None = None
    ) -> None:
        """Open the views of `root`, with our files in `state`; git processes inherit `lock`.

        Raises:
            NotARepositoryError: `root` is not the top of a git working tree.
        """
        self.root = root
        own = git_folder(root)
        self.common = common_folder(own)
        self.folder = state / "git"
        self.index = self.folder / f"index-{tree_key(root)}"
        inherit = () if lock is None else (lock,)
        place = {"GIT_DIR": str(own), "GIT_WORK_TREE": str(root.resolve())}
        self.user = Git(root, {**ISOLATED, **place}, timeout, inherit)
        # As the user sees it: with the global settings, which may ignore more files and define filters.
        self.as_user = Git(root, place, timeout, inherit)
        self.private = self.user.within(
            {
                "GIT_DIR": str(self.folder.resolve()),
                "GIT_INDEX_FILE": str(self.index.resolve()),
                "GIT_OBJECT_DIRECTORY": str(self.common / "objects"),
            }
        )

    def make(self) -> None:
        """Bring the private git folder up to date with the user's settings. Idempotent."""
        for name in ("refs", "objects", "info"):
            private_folder(self.folder / name)
        _update(self.folder / "HEAD", b"ref: refs/heads/none\n")
        found = self.as_user.attempt("config", "-z", "--type=path", "--get-regexp", USER_SETTINGS)
        pairs = (os.fsdecode(entry).partition("\n") for entry in split_z(found.out))
        _update(self.folder / "config", _config({key: value for key, _, value in pairs}))
        _update(self.folder / "info" / "attributes", ATTRIBUTES)
        _update(self.folder / "info" / "exclude", self._user_excludes())

    def remove_stale_lock(self) -> None:
        """Remove what a killed git left; only for the holder of the tree."""
        self.index.with_name(self.index.name + ".lock").unlink(missing_ok=True)

    def keep(self, reference: str, tree: str) -> None:
        """Point a reference of the user's repository at a tree; only for the holder of the tree."""
        # Git does not remove the lock of a git that was killed, and would refuse for ever.
        (self.common / f"{reference}.lock").unlink(missing_ok=True)
        self.user.run("update-ref", reference, tree)

    def _user_excludes(self) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return (self.common / "info" / "exclude").read_bytes()
        return b""


def _config(user: Mapping[str, str]) -> bytes:
    """Ours decide about content; how the file system treats names, and what is ignored, is the user's."""
    object_format = user.get("extensions.objectformat", "sha1")
    lines = ["[core]", f"repositoryFormatVersion = {0 if object_format == 'sha1' else 1}"]
    lines += [f"{name} = {value}" for name, value in SETTINGS.items()]
    lines += [f"{name.partition('.')[2]} = {user[name]}" for name in FILE_SYSTEM_SETTINGS if name in user]
    if "core.excludesfile" in user:
        escaped = user["core.excludesfile"].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'excludesFile = "{escaped}"')
    if object_format != "sha1":
        lines += ["[extensions]", f"objectFormat = {object_format}"]
    return os.fsencode("\n".join(lines) + "\n")


def _update(path: Path, content: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return
    write_atomically(path, content)
