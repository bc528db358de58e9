"""Trees on their way from one store to another, as files of git packs."""

import os
import tempfile
from pathlib import Path

import pygit2

from activities.artifacts.durable import write_durably
from activities.workspace.folders import store_folder_of
from activities.workspace.scope import EpisodeScope
from activities.workspace.store.entry import EMPTY_TREE, FOLDER
from activities.workspace.store.objects import TreeStore, translated_errors
from tightloop.errors import GitError, WorkspaceError
from tightloop.host import open_state_home


class PackedTrees:
    """Packs trees of the store of a project, and adds packs to it; reads no file of a working tree."""

    def pack(self, scope: EpisodeScope, tree: str, known: str) -> dict[str, bytes]:
        """Return a pack and its index with what a tree has over a known one; see the port."""
        store = TreeStore(store_folder_of(scope))
        found: dict[str, None] = {}
        _collect(store, tree, known or EMPTY_TREE, found)
        if not found:
            return {}
        with translated_errors(store.folder), tempfile.TemporaryDirectory() as folder:
            builder = pygit2.PackBuilder(store.repository)
            builder.set_threads(1)
            for name in found:
                builder.add(pygit2.Oid(hex=name))
            builder.write(folder)
            return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("pack-*"))}

    def unpack(self, scope: EpisodeScope, files: dict[str, bytes]) -> None:
        """Add the files of a pack to the store of this host; see the port."""
        open_state_home()
        store = TreeStore(store_folder_of(scope))
        store.make()
        # The index last: git finds a pack by it.
        for name in sorted(files, key=lambda name: name.endswith(".idx")):
            write_durably(store.folder / "objects" / "pack" / name, files[name])

    def make_workspace(self, scope: EpisodeScope) -> None:
        """Make the folder of the workspace where nothing is; see the port."""
        workspace = Path(scope.workspace)
        if os.path.lexists(workspace):
            return
        try:
            workspace.mkdir(parents=True)
            pygit2.init_repository(str(workspace))
        except (OSError, pygit2.GitError) as error:
            raise WorkspaceError(
                f"the workspace {workspace} cannot be made on this host: {error}. Clone the repository there, or name "
                "another folder: tightloop move ID --to HOST --workspace FOLDER"
            ) from error


def _collect(store: TreeStore, tree: str, known: str, found: dict[str, None]) -> None:
    """Note the objects below a tree that are not at the same path of a known one."""
    if tree in (known, EMPTY_TREE) or tree in found:
        return
    if not store.holds(tree):
        raise GitError(f"the tree {tree} is not in {store.folder}")
    found[tree] = None
    before = store.entries(known)
    for name, entry in store.entries(tree).items():
        old = before.get(name)
        if entry == old:
            continue
        if entry.mode == FOLDER:
            _collect(store, entry.id, old.id if old is not None and old.mode == FOLDER else EMPTY_TREE, found)
        else:
            found[entry.id] = None
