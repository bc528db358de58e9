"""Delivery of a run's result: as commits on a new branch of the user's repository, as files, or as a proof."""

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pygit2

from activities.workspace.folders import root_of, store_folder_of
from activities.workspace.git_command import Git, format_paths, split_z, user_git
from activities.workspace.ownership import write_atomically
from activities.workspace.port import BASE, RESULT, ResultPart, result_message
from activities.workspace.scope import EpisodeScope
from activities.workspace.store.entry import LINK, Entry, TreeChange, file_mode
from activities.workspace.store.objects import TreeStore
from activities.workspace.user_repository import UserRepository
from activities.workspace.worktree import Pointer, large_file_store
from tightloop.errors import WorkspaceError
from tightloop.host.worktree import read_worktree
from tightloop.value import Value, format_count

if TYPE_CHECKING:
    from activities.workspace.working_tree import Workspaces

TRAILER = "Tightloop-Run"
PROOFS = "refs/tightloop-proofs"
"""Prefix of the refs for proofs. Each ref is named after a proven tree. Its commit contains `proof.json` and, in
`base`, the initial files.
"""
NAMES = 100
"""Maximum number of branch names to try."""
SHOWN = 5
_ABSENT = "0" * 40
_LARGE = b"lfs"


class CommittedResult(NamedTuple):
    """Commits that contain a run's changes. If there are no changes, no branch is created."""

    branch: str = ""
    commits: int = 0
    files: int = 0
    added: int = 0
    """Number of added lines. Binary files do not have any."""
    removed: int = 0
    onto: str = ""
    """Branch or commit that is checked out in the workspace."""
    is_in_workspace: bool = False
    """True if the workspace's files already contain the changes, as after a run without a worktree. git then refuses to
    merge the branch, because they are uncommitted.
    """
    has_moved: bool = False
    """True if the workspace's HEAD differs from the commit on which the run's changes are based."""
    left_out: tuple[str, ...] = ()
    """Changed paths that belong to submodules. At most `SHOWN`."""

    def describe(self) -> str:
        """Describe the result and the commands for merging it, in sentences for the status."""
        parts = ["nothing was committed, because no file of the repository changed"]
        if self.branch:
            lines = f"+{self.added} -{self.removed}"
            size = f"{format_count(self.commits, 'commit')}, {format_count(self.files, 'file')}, {lines}"
            merge = f"Merge it: git merge {self.branch}"
            if self.is_in_workspace:
                # A reset without the condition would drop commits that were made in the meantime.
                take = f"git merge-base --is-ancestor HEAD {self.branch} && git reset {self.branch}"
                merge = f"Your files already contain the changes. Add the commits to your branch: {take}"
            parts = [f"branch {self.branch} ({size}). {merge}"]
        if self.branch and self.has_moved:
            rebase = f"git rebase {self.onto} {self.branch}"
            parts.append(f"{self.onto} has moved since the run started. Rebase first: {rebase}")
        if self.left_out:
            parts.append(f"Submodule files are not in the commit: {', '.join(self.left_out)}")
        return ". ".join(parts)


def commit_result(scope: EpisodeScope, parts: Sequence[ResultPart], name: str = "") -> CommittedResult:
    """Commit a run's changes on a new branch. HEAD, the index and the working tree are not changed.

    Changes in a worktree are based on the commit from which the worktree was created. Other changes are
    based on the workspace's HEAD. Hooks and filter programs are not run. Idempotent for the same parts
    and name.

    Args:
        scope: the run. Its working tree need not exist.
        parts: the changes, one commit each.
        name: the branch. The default is `tightloop/` and the run's id, with a number if that branch
            exists.

    Raises:
        WorkspaceError: the branch exists, or the changes cannot be committed. The message says what to
            do.
        GitError: git failed. Retryable.
    """
    store, worktree = TreeStore(store_folder_of(scope)), read_worktree(root_of(scope))
    workspace = UserRepository(Path(scope.workspace))
    repository = UserRepository(root_of(scope)) if worktree is not None else workspace
    with user_git(workspace) as git:
        head = git.run("rev-parse", "--verify", "HEAD^{commit}").decode().strip()
    base = worktree.commit if worktree is not None and worktree.commit else head
    with user_git(repository) as git, tempfile.TemporaryDirectory() as folder:
        git = git.with_variables({"GIT_INDEX_FILE": f"{folder}/index"})
        git.run("read-tree", base)
        commit, left_out = base, set[bytes]()
        for part in parts:
            changes = store.changes(part.before, part.after)
            staged = _Staging(git, repository, store, commit)
            left_out.update(staged.add(changes))
            tree = git.run("write-tree").decode().strip()
            if tree != git.run("rev-parse", f"{commit}^{{tree}}").decode().strip():
                message = f"{part.message.strip()}\n\n{TRAILER}: {scope.episode_id}\n"
                commit = git.run("commit-tree", tree, "-p", commit, stdin=message.encode()).decode().strip()
        if commit == base:
            return CommittedResult(left_out=_texts(left_out))
        branch = _create_branch(git, commit, base, name or f"tightloop/{scope.episode_id}", is_fixed=bool(name))
        counts = [
            line.split(b"\t") for line in split_z(git.run("diff", "--numstat", "--no-renames", "-z", base, commit))
        ]
        commits = int(git.run("rev-list", "--count", f"{base}..{branch}"))
    return CommittedResult(
        branch=branch,
        commits=commits,
        files=len(counts),
        added=sum(int(added) for added, _, _ in counts if added != b"-"),
        removed=sum(int(removed) for _, removed, _ in counts if removed != b"-"),
        onto=_short_name(workspace.head()),
        is_in_workspace=head == base and _is_written(workspace.root, store, parts),
        has_moved=head != base,
        left_out=_texts(left_out),
    )


def _is_written(root: Path, store: TreeStore, parts: Sequence[ResultPart]) -> bool:
    """Return whether the files in `root` are as the parts leave them."""
    wanted = {change.path: change.after for part in parts for change in store.changes(part.before, part.after)}
    for name, entry in wanted.items():
        path = root / os.fsdecode(name)
        if not os.path.lexists(path):
            if entry is not None:
                return False
        elif entry is None or file_mode(path.lstat().st_mode) != entry.mode:
            return False
        elif entry.mode == LINK:
            if os.fsencode(path.readlink()) != store.read(entry.id):
                return False
        # A pipe is not a regular file, and reading it could block forever.
        elif not path.is_file() or str(pygit2.hashfile(str(path))) != entry.id:
            return False
    return True


class _Staging:
    """Stages changes in a temporary index, in the form in which git stores them."""

    def __init__(self, git: Git, repository: UserRepository, store: TreeStore, commit: str) -> None:
        self._git, self._repository, self._store = git, repository, store
        lines = (line.partition(b"\t") for line in split_z(git.run("ls-tree", "-r", "-z", commit)))
        self._entries = {path: fields.decode().split() for fields, _, path in lines}

    def add(self, changes: Sequence[TreeChange]) -> list[bytes]:
        """Stage changes. Paths in submodules are left out and returned.

        Raises:
            WorkspaceError: a file needs a filter program, or had uncommitted changes when the run started.
        """
        modules = tuple(path + b"/" for path, fields in self._entries.items() if fields[1] == "commit")
        inside = [change.path for change in changes if change.path.startswith(modules)] if modules else []
        changes = [change for change in changes if change.path not in set(inside)]
        filters = self._filters([change.path for change in changes])
        if refused := sorted(path for path, value in filters.items() if value != _LARGE):
            raise WorkspaceError(
                f"{format_paths(refused, SHOWN)}: .gitattributes specifies a filter program, which tightloop does "
                "not run, so nothing was committed. Get the changes as a patch: tightloop result ID --patch"
            )
        differing = [change.path for change in changes if not self._is_based_on_commit(change, filters)]
        if differing:
            raise WorkspaceError(
                f"{format_paths(differing, SHOWN)}: the run started with uncommitted changes, so nothing was "
                "committed. Commit the files in the working tree yourself"
            )
        lines = [b"0 " + _ABSENT.encode() + b"\t" + change.path for change in changes if change.after is None]
        for path, entry in ((change.path, change.after) for change in changes):
            if entry is not None:
                blob = self._blob(path, entry, filters, write=True)
                lines.append(f"{entry.mode:o} {blob}".encode() + b"\t" + path)
        self._git.run("update-index", "-z", "--index-info", stdin=b"".join(line + b"\0" for line in lines))
        return inside

    def _filters(self, paths: Sequence[bytes]) -> dict[bytes, bytes]:
        if not paths:
            return {}
        named = b"".join(path + b"\0" for path in paths)
        fields = self._git.run("check-attr", "-z", "--stdin", "filter", stdin=named).split(b"\0")
        values = zip(fields[::3], fields[2::3], strict=False)
        return {path: value for path, value in values if value not in (b"unspecified", b"unset", b"")}

    def _is_based_on_commit(self, change: TreeChange, filters: Mapping[bytes, bytes]) -> bool:
        fields = self._entries.get(change.path)
        if fields is None or change.before is None:
            # An untracked file of the workspace, or one that the commit has and the run did not see.
            return fields is None and change.before is None
        return fields[2] == self._blob(change.path, change.before, filters, write=False)

    def _blob(self, path: bytes, entry: Entry, filters: Mapping[bytes, bytes], *, write: bool) -> str:
        content = b"".join(self._store.pieces(entry.id))
        options = ["-w"] if write else []
        if entry.mode == LINK:
            options.append("--no-filters")
        elif path in filters:
            content = self._pointer(content, write=write)
            options.append("--no-filters")
        else:
            # With the line endings of .gitattributes and the user's settings.
            options.append(f"--path={os.fsdecode(path)}")
        return self._git.run("hash-object", *options, "--stdin", stdin=content).decode().strip()

    def _pointer(self, content: bytes, *, write: bool) -> bytes:
        if Pointer.read(content) is not None:
            return content
        pointer = Pointer(hashlib.sha256(content).hexdigest(), len(content))
        stored = pointer.stored_at(large_file_store(self._repository))
        if write and not stored.exists():
            stored.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(stored, content)
        return pointer.text


def _create_branch(git: Git, commit: str, base: str, wanted: str, *, is_fixed: bool) -> str:
    """Create a branch and return its name. An existing branch is never changed."""
    if wanted.startswith("-") or git.attempt("check-ref-format", "--branch", wanted).code != 0:
        raise WorkspaceError(f"{wanted!r} is not a valid branch name. Choose another one")
    plain = wanted.replace("/", "-", 1)
    names = [wanted] if is_fixed else [wanted, *(f"{wanted}-{number}" for number in range(2, NAMES)), plain]
    for name in names:
        existing = git.attempt("rev-parse", "--verify", "--quiet", f"refs/heads/{name}^{{commit}}")
        if existing.code == 0:
            if _same_commits(git, existing.out.decode().strip(), commit, base):
                return name
            continue
        created = git.attempt("update-ref", f"refs/heads/{name}", commit, _ABSENT)
        if created.code == 0:
            return name
        # A branch `tightloop` prevents all `tightloop/...`.
        if is_fixed:
            raise WorkspaceError(f"cannot create the branch {name}: {created.error}. Choose another name")
    raise WorkspaceError(
        f"the branch {wanted} already exists, and existing branches are never overwritten. Choose another name"
    )


def _same_commits(git: Git, one: str, other: str, base: str) -> bool:
    """Return whether two branches have the same trees and messages since `base`. Commit times may differ."""
    return len({git.attempt("log", "--format=%T%n%B", f"{base}..{tip}").out for tip in (one, other)}) == 1


def _short_name(head: str) -> str:
    return head.removeprefix("refs/heads/") if head.startswith("refs/heads/") else head[:12]


def _texts(paths: set[bytes]) -> tuple[str, ...]:
    return tuple(path.decode("utf-8", "backslashreplace") for path in sorted(paths)[:SHOWN])


class TakeRequest(Value):
    """Request to fetch a run's result onto this host."""

    run: str
    workspace: str
    worktree: bool = False
    title: str = ""
    status: str = "succeeded"
    """Outcome of the run."""
    qualifier: str = ""
    reason: str = ""
    branch: str = ""
    """Name of the new branch. If it and `proof` are empty, the files are written into the workspace."""
    proof: str = ""
    """Signed proof to attach to the proven files."""
    base: str = ""
    """Initial tree of the proof."""
    tree: str = ""
    """Proven tree."""


def take_result(workspaces: "Workspaces", request: TakeRequest) -> str:
    """Take a run's result, and return a sentence to show to the user.

    The request says whether to commit the result on a branch, write its files into the workspace, or attach
    a proof to the files.

    Raises:
        WorkspaceError: the run has no result, the branch exists, or files differ.
        WorkspaceBusyError: another run is using the workspace.
    """
    scope = EpisodeScope(episode_id=request.run, workspace=request.workspace, worktree=request.worktree)
    store = TreeStore(store_folder_of(scope))
    if request.proof:
        return _attach_proof(store, request)
    before, after = (store.reference(f"refs/tightloop/{request.run}/{name}") for name in (BASE, RESULT))
    if not before or not after:
        raise WorkspaceError(f"{request.run} has no result on this host. Only successful runs have a result")
    if request.branch:
        title = request.title or request.run
        message = result_message(title, request.status, request.qualifier, request.reason)
        part = ResultPart(before, after, message)
        return commit_result(scope, (part,), request.branch).describe()
    workspace = scope.evolve(worktree=False)
    # Nobody to take over from: a run that ended has released its claim.
    workspaces.prepare(workspace, take_over=lambda other: other == request.run)
    try:
        with workspaces.hold(workspace) as tree:
            paths = tree.apply(before, after)
    finally:
        workspaces.release(workspace)
    return f"{format_count(len(paths), 'file')} changed in {request.workspace}"


def _attach_proof(store: TreeStore, request: TakeRequest) -> str:
    """Commit a proof and the initial files to a ref in the workspace's repository. The ref can be pushed."""
    repository, reference = UserRepository(Path(request.workspace)), f"{PROOFS}/{request.tree}"
    with user_git(repository) as git, tempfile.TemporaryDirectory() as folder:
        git = git.with_variables({"GIT_INDEX_FILE": f"{folder}/index"})
        files = store.files(request.base)
        ids = "".join(f"{entry.id}\n" for entry in files.values()).encode()
        answers = git.run("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=ids).decode().splitlines()
        for entry, answer in zip(files.values(), answers, strict=True):
            # Most are in a commit. The others were not committed when the run began.
            if answer.endswith(" missing"):
                git.run("hash-object", "-w", "--no-filters", "--stdin", stdin=store.read(entry.id))
        lines = (f"{entry.mode:o} {entry.id}".encode() + b"\tbase/" + path for path, entry in files.items())
        proof = git.run("hash-object", "-w", "--no-filters", "--stdin", stdin=request.proof.encode()).decode().strip()
        rows = (*lines, f"100644 {proof}\tproof.json".encode())
        git.run("update-index", "-z", "--index-info", stdin=b"".join(row + b"\0" for row in rows))
        tree = git.run("write-tree").decode().strip()
        message = f"Proof of {request.run}\n\n{TRAILER}: {request.run}\n"
        commit = git.run("commit-tree", tree, stdin=message.encode()).decode().strip()
        git.run("update-ref", reference, commit)
    return (
        f"the proof is attached to the proven files. Push the branch and the proof: git push origin BRANCH {reference}"
    )
