"""Git worktrees for runs, with everything that they need from the workspace."""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from activities.workspace.folders import has_packages
from activities.workspace.git_command import Git, check_writable, filtered_paths, private_config, split_z, user_git
from activities.workspace.store.rules import RULES_BYTES, RuleList, as_bytes_text
from activities.workspace.store.walk import Coverage, Walk
from activities.workspace.user_repository import UserRepository, read_config, read_pointer
from tightloop.episode.proof.files import is_cache, is_program
from tightloop.errors import GitError, NotARepositoryError, WorkspaceError
from tightloop.host import private_folder
from tightloop.host.programs import find_trusted_program
from tightloop.host.worktree import Worktree, data_folder
from tightloop.settings import WorkspaceSettings

INCLUDE_FILE = ".worktreeinclude"
ENV_FILES = b".env*\n"
COPIED_FILE_BYTES = 1_000_000
COPIED_BYTES = 20_000_000
LISTED_ENTRIES = 20_000
"""Maximum number of files to examine within ignored folders."""
SUBMODULE_DEPTH = 5
GIT_INSIDE = "/run/tightloop.git"
"""Path at which commands see the private git folder; the same as in `activities.sandbox`."""
NAMED = 5
POINTER_BYTES = 1_024

_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:ext-[^\n]*\n)*oid sha256:([0-9a-f]{64})\nsize (\d+)\n"
)
_COMPILED = (".so", ".pyd", ".dylib", ".node")


class Pointer(NamedTuple):
    """A Git LFS pointer."""

    digest: str
    size: int

    @classmethod
    def read(cls, content: bytes) -> "Pointer | None":
        match = _POINTER.fullmatch(content)
        return cls(match[1].decode(), int(match[2])) if match is not None else None

    @property
    def text(self) -> bytes:
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.digest}\nsize {self.size}\n".encode()

    def stored_at(self, store: Path) -> Path:
        return store / "objects" / self.digest[:2] / self.digest[2:4] / self.digest


@dataclass
class _Contents:
    """The contents of a new worktree that are not ordinary files of the commit."""

    environments: list[tuple[str, str]] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    too_large: list[str] = field(default_factory=list)
    submodules: list[str] = field(default_factory=list)
    missing_submodules: list[str] = field(default_factory=list)
    large_files: list[str] = field(default_factory=list)
    missing_objects: list[str] = field(default_factory=list)
    filtered: list[str] = field(default_factory=list)
    copied_environments: list[str] = field(default_factory=list)

    def notes(self) -> Iterator[str]:
        """Yield notes for the operator. Notes about missing files come first."""
        sentences = {
            "these submodules are not in the worktree because their commits are not on this host. Run git submodule "
            "update --init in the workspace": self.missing_submodules,
            "these files are Git LFS pointers because their content is not on this host. Run git lfs fetch in the "
            "workspace": self.missing_objects,
            "the worktree contains these files as git stores them, because their filter programs do not run": (
                self.filtered
            ),
            f"these files are too large to be copied (over {COPIED_FILE_BYTES // 1_000_000} MB each or "
            f"{COPIED_BYTES // 1_000_000} MB together)": self.too_large,
            "git ignores these files, so they are not in the worktree. List small files that the work needs in "
            f"{INCLUDE_FILE}": self.left_out,
            "mounted read-only from the workspace": [path for path, _ in self.environments],
            "copied from the workspace": [*self.copied_environments, *self.copies],
        }
        yield from (f"{sentence}: {_names(paths)}" for sentence, paths in sentences.items() if paths)


def _names(paths: list[str]) -> str:
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    return ", ".join(os.fsencode(path).decode("utf-8", "backslashreplace") for path in sorted(paths)[:NAMED]) + more


def make_worktree(
    workspace: UserRepository,
    root: Path,
    coverage: Coverage,
    settings: WorkspaceSettings,
    *,
    timeout: timedelta,
    inherit: tuple[int, ...],
) -> Worktree:
    """Create a git worktree at `root` from the last commit, and register it in the user's repository.

    Submodules and Git LFS files come from local objects. No filter program is run. Small ignored files
    are copied from the workspace. The record is written last, so a worktree with a record is complete.

    Raises:
        GitError: git failed.
        WorkspaceError: the repository has no commit.
    """
    with user_git(workspace, inherit=inherit) as git:
        head = git.attempt("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if head.code != 0:
        raise WorkspaceError(f"{workspace.root} needs a commit before a separate worktree can be created")
    commit = head.out.decode().strip()
    registration = _registration(workspace, root)
    # Written by hand, since `git worktree add` would register it in the temporary folder of `user_git`.
    registration.mkdir(parents=True, exist_ok=True)
    root.mkdir(parents=True)
    for name, content in (
        ("commondir", b"../..\n"),
        ("gitdir", os.fsencode(root / ".git") + b"\n"),
        ("HEAD", commit.encode() + b"\n"),
    ):
        (registration / name).write_bytes(content)
    (registration / "index").unlink(missing_ok=True)
    # Left by an attempt that was killed, and git waits for nobody to remove it.
    (registration / "index.lock").unlink(missing_ok=True)
    (root / ".git").write_bytes(b"gitdir: " + os.fsencode(registration) + b"\n")
    contents = _Contents()
    with user_git(UserRepository(root), inherit=inherit) as git:
        git.run("read-tree", "--reset", "-u", commit, timeout=timeout)
        _add_commit_contents(workspace, git, commit, root, contents, timeout, SUBMODULE_DEPTH)
    _add_ignored_files(workspace.root, root, coverage, settings, contents, timeout)
    data = data_folder(root)
    # Left by an interrupted attempt.
    shutil.rmtree(data, ignore_errors=True)
    private_folder(data)
    mounts = _make_private_git(
        workspace, registration, data, contents, timeout, only=commit if settings.history == "past" else ""
    )
    if contents.large_files:
        # The copied index has the sizes of the pointers. Without any, git compares these files through their filter.
        with user_git(workspace) as git:
            git.with_variables({"GIT_INDEX_FILE": str(data / "git/index")}).run("read-tree", commit)
    record = Worktree(
        workspace=str(workspace.root),
        commit=commit,
        git=str(data / "git"),
        link=str(data / "link"),
        mounts=mounts,
        environments=tuple(contents.environments),
        copies=tuple(contents.copies),
        notes=tuple(contents.notes()),
    )
    write_record(root, record)
    return record


def mount_environments(root: Path, worktree: Worktree, sources: Mapping[str, Path]) -> None:
    """Mount packages in a worktree, replacing those of the workspace. Idempotent.

    `sources` maps paths in the worktree to packages. Copied packages are kept, because the worktree owns
    them.
    """
    for path, source in sources.items():
        _make_mount_point(root / path, str(source))
    environments = dict(worktree.environments) | {path: str(source) for path, source in sources.items()}
    write_record(root, worktree.evolve(environments=tuple(environments.items())))


def _make_mount_point(place: Path, source: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if sys.platform == "linux":
        place.mkdir(exist_ok=True)
    # Without mounts, a link leads to the workspace.
    elif not place.exists():
        place.symlink_to(source)


def write_record(root: Path, record: Worktree) -> None:
    """Store the record of a worktree atomically."""
    folder = private_folder(data_folder(root))
    temporary = folder / "record.new"
    temporary.write_text(record.model_dump_json())
    temporary.replace(folder / "record.json")


def remove_worktree(workspace: UserRepository, root: Path) -> None:
    """Remove a worktree, its data and its registration in the user's repository. Idempotent."""
    registration = _registration(workspace, root)
    # The record first: a partly removed worktree must not count as complete.
    shutil.rmtree(data_folder(root), ignore_errors=True)
    if root.exists():
        shutil.rmtree(root)
    # The user may have reused the name for a worktree of their own.
    if read_pointer(registration / "gitdir") == os.fsencode(root / ".git"):
        shutil.rmtree(registration)
        # Git removes the folder with the last worktree too.
        with contextlib.suppress(OSError):
            registration.parent.rmdir()


def _registration(workspace: UserRepository, root: Path) -> Path:
    """Return the folder that registers a worktree in the user's repository.

    Its name differs from the worktree's name if another worktree already uses that name.
    """
    check_writable(workspace)
    folder = workspace.common / "worktrees"
    if folder.is_symlink():
        raise WorkspaceError(
            f"{folder} is a link, and a worktree cannot be created through a link. Start without a worktree"
        )
    for number in range(1_000):
        registration = folder / (f"{root.name}-{number}" if number else root.name)
        if registration.is_symlink():
            continue
        if not registration.exists() or read_pointer(registration / "gitdir") in (b"", os.fsencode(root / ".git")):
            return registration
    raise GitError(f"{folder} has 1000 worktrees named {root.name}. Remove some: git worktree prune")


def _add_commit_contents(
    source: UserRepository, git: Git, commit: str, root: Path, contents: _Contents, timeout: timedelta, depth: int
) -> None:
    """Add the contents that `read-tree` leaves out: Git LFS files and submodules."""
    entries = [line.partition(b"\t") for line in split_z(git.run("ls-tree", "-r", "-z", commit))]
    paths = [path for fields, _, path in entries if not fields.startswith(b"160000")]
    top = Path(git.variables["GIT_WORK_TREE"])
    names = {path: str((root / os.fsdecode(path)).relative_to(top)) for _, _, path in entries}
    for path in filtered_paths(git, paths):
        if not _add_large_file(source, root / os.fsdecode(path)):
            # Filters leave an empty file as it is.
            if (root / os.fsdecode(path)).lstat().st_size:
                contents.filtered.append(names[path])
        elif _pointer_at(root / os.fsdecode(path)) is not None:
            contents.missing_objects.append(names[path])
        else:
            contents.large_files.append(names[path])
    for fields, _, path in entries:
        if fields.startswith(b"160000"):
            relative, wanted = os.fsdecode(path), fields.split()[2].decode()
            done = depth > 0 and _add_submodule(
                source.root / relative, root / relative, wanted, contents, timeout, depth
            )
            (contents.submodules if done else contents.missing_submodules).append(names[path])


def _pointer_at(path: Path) -> Pointer | None:
    with contextlib.suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= POINTER_BYTES:
            return Pointer.read(path.read_bytes())
    return None


def large_file_store(repository: UserRepository) -> Path:
    """Return the folder that contains a repository's local Git LFS objects (git-lfs-config(5))."""
    storage = read_config(repository.common / "config").get("lfs.storage", "lfs")
    return repository.common / storage


def _add_large_file(source: UserRepository, path: Path) -> bool:
    """Replace a Git LFS pointer with the content, if this host has the content.

    Return False if the file is not a pointer.
    """
    pointer = _pointer_at(path)
    if pointer is None:
        return False
    stored = pointer.stored_at(large_file_store(source))
    temporary = path.with_name(f".{path.name}.tightloop")
    digest = hashlib.sha256()
    try:
        # Not followed: a link could lead to any file of the host.
        descriptor = os.open(stored, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as content, temporary.open("wb") as file:
            while chunk := content.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() == pointer.digest:
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
            temporary.replace(path)
    except FileNotFoundError:
        pass
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _add_submodule(source: Path, root: Path, commit: str, contents: _Contents, timeout: timedelta, depth: int) -> bool:
    """Write the files of a submodule, but not its git folder, as in snapshots. Return False if this failed."""
    try:
        repository = UserRepository(source)
        with user_git(repository, timeout=timeout) as git, tempfile.TemporaryDirectory() as folder:
            if git.attempt("cat-file", "-e", f"{commit}^{{commit}}").code != 0:
                return False
            root.mkdir(parents=True, exist_ok=True)
            variables = {"GIT_WORK_TREE": str(root), "GIT_INDEX_FILE": f"{folder}/index"}
            git = replace(git.with_variables(variables), folder=root)
            git.run("read-tree", "--reset", "-u", commit)
            _add_commit_contents(repository, git, commit, root, contents, timeout, depth - 1)
    except (NotARepositoryError, WorkspaceError):
        return False
    return True


def _add_ignored_files(
    workspace: Path,
    root: Path,
    coverage: Coverage,
    settings: WorkspaceSettings,
    contents: _Contents,
    timeout: timedelta,
) -> None:
    """Copy small ignored files that the worktree needs, and find the environments to mount."""
    ignored: list[str] = []
    Walk(coverage, None, seconds=timeout.total_seconds(), ignored=ignored.append).run(str(workspace), None)
    include = _read_rules(workspace / INCLUDE_FILE) + b"\n" + "\n".join(settings.include).encode()
    wanted = RuleList("", (ENV_FILES if settings.env_files else b"") + include)
    left_bytes = COPIED_BYTES
    for path, is_wanted in _find_files(workspace, ignored, wanted, contents):
        if not is_wanted:
            contents.left_out.append(path)
            continue
        limit_bytes = left_bytes if path.endswith(_COMPILED) else min(left_bytes, COPIED_FILE_BYTES)
        size = _copy(workspace / path, root / path, limit_bytes)
        if size is None:
            contents.too_large.append(path)
        else:
            left_bytes -= size
            contents.copies.append(path)
    if settings.environments == "copy":
        _copy_environments(root, settings.environments_mb * 1_000_000, contents)
    for path, source in contents.environments:
        _make_mount_point(root / path, source)


def _copy_environments(root: Path, limit_bytes: int, contents: _Contents) -> None:
    """Copy environments that fit within the limit instead of mounting them."""
    free_bytes = limit_bytes
    for path, source in tuple(contents.environments):
        size = sum(entry.lstat().st_size for entry in Path(source).rglob("*"))
        if size <= free_bytes:
            free_bytes -= size
            shutil.copytree(source, root / path, symlinks=True)
            contents.environments.remove((path, source))
            contents.copied_environments.append(f"{path} ({size / 1_000_000:.0f} MB)")


def _read_rules(path: Path) -> bytes:
    """Read the ignore patterns in a file. Return nothing if the file is missing or too large."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                content = file.read(RULES_BYTES + 1)
                return content if len(content) <= RULES_BYTES else b""
    return b""


def _find_files(
    workspace: Path, ignored: Iterable[str], wanted: RuleList, contents: _Contents
) -> Iterator[tuple[str, bool]]:
    """Yield ignored files and folders, and whether to copy them.

    A folder without wanted files is yielded as a single path.
    """
    budget = iter(range(LISTED_ENTRIES))
    for path in sorted(ignored):
        name = path.rstrip("/")
        if path == name:
            # Generated sources and compiled modules lie next to the files that import them.
            is_module = is_program(path) or path.endswith(_COMPILED)
            if not is_cache(path):
                yield path, is_module or _matches(wanted, path, folder=False)
        elif has_packages(workspace / name):
            contents.environments.append((name, str(workspace / name)))
        elif not is_cache(name):
            inner = list(_look_into(workspace, name, wanted, contents, budget))
            yield from ((file, True) for file in inner)
            if not inner:
                yield path, False


def _look_into(
    workspace: Path, top: str, wanted: RuleList, contents: _Contents, budget: Iterator[int]
) -> Iterator[str]:
    """Yield the wanted files in an ignored folder, and collect the environments in this folder."""
    waiting = [(top, _matches(wanted, top, folder=True))]
    while waiting:
        folder, whole = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(workspace / folder) as entries:
            for entry, _ in zip(entries, budget, strict=False):
                path = f"{folder}/{entry.name}"
                if not entry.is_dir(follow_symlinks=False):
                    if whole or _matches(wanted, path, folder=False):
                        yield path
                elif has_packages(Path(entry.path)):
                    contents.environments.append((path, entry.path))
                elif entry.name != ".git" and not is_cache(entry.name):
                    waiting.append((path, whole or _matches(wanted, path, folder=True)))


def _matches(wanted: RuleList, path: str, *, folder: bool) -> bool:
    return wanted.verdict(as_bytes_text(path), as_bytes_text(path.rpartition("/")[2]), folder=folder) is True


def _copy(source: Path, target: Path, limit_bytes: int) -> int | None:
    """Copy a regular file so that only the owner can read the copy.

    Return the size of the file, or None if it was not copied.
    """
    try:
        # Not followed: an agent could have left a link to any file of the host.
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            content = file.read(limit_bytes + 1)
        if len(content) > limit_bytes:
            return None
        target.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(target, flags, 0o600), "wb") as copy:
            copy.write(content)
    except OSError:
        return None
    return len(content)


def _make_private_git(
    workspace: UserRepository, registration: Path, data: Path, contents: _Contents, timeout: timedelta, *, only: str
) -> tuple[tuple[str, str], ...]:
    """Create the git folder that commands in the worktree use. Return the mounts for the user's objects.

    The folder has the workspace's branches and tags. Commits made in the worktree stay in this folder. If
    `only` is a commit, the folder contains only the history of this commit. In this case, nothing is
    mounted, because commands could find unreferenced objects in the user's object folders.
    """
    folder = private_folder(private_folder(data) / "git")
    (data / "link").write_text(f"gitdir: {GIT_INSIDE}\n")
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
        (folder / name).mkdir(parents=True)
    with user_git(workspace) as git:
        merged = (f"--merged={only}",) if only else ()
        kinds = ("refs/heads", "refs/tags", "refs/remotes")
        refs = git.run("for-each-ref", "--format=%(objectname) %(refname)", *merged, *kinds)
        if only:
            tips = b"".join(line.partition(b" ")[0] + b"\n" for line in refs.splitlines())
            history = f"{only}\n".encode() + tips
            pack = str(folder / "objects/pack/pack")
            git.run("pack-objects", "--quiet", "--revs", pack, stdin=history, timeout=timeout)
    (folder / "packed-refs").write_bytes(refs)
    (folder / "HEAD").write_bytes((workspace.folder / "HEAD").read_bytes())
    (folder / "config").write_text(private_config(workspace) + _large_file_config())
    for source, name in ((registration / "index", "index"), (workspace.common / "shallow", "shallow")):
        if source.is_file() and not source.is_symlink():
            shutil.copyfile(source, folder / name)
    excluded = (
        (workspace.common / "info/exclude").read_bytes() if (workspace.common / "info/exclude").is_file() else b""
    )
    (folder / "info/exclude").write_bytes(
        excluded + b"\n" + b"".join(b"/" + os.fsencode(path) + b"\n" for path in contents.copies)
    )
    stores = [] if only else list(dict.fromkeys(_object_stores(workspace.common / "objects", SUBMODULE_DEPTH)))
    mounts = tuple((str(store), f"{GIT_INSIDE}/store-{number}") for number, store in enumerate(stores))
    (folder / "objects/info/alternates").write_text("".join(f"{target}\n" for _, target in mounts))
    for number in range(len(stores)):
        (folder / f"store-{number}").mkdir()
    # Their own references to further stores would lead nowhere inside.
    (data / "empty").write_bytes(b"")
    borrowing = (target for store, target in mounts if Path(store, "info/alternates").is_file())
    return (*mounts, *((str(data / "empty"), f"{target}/info/alternates") for target in borrowing))


def _large_file_config() -> str:
    """Return the settings that git-lfs needs to recognise unchanged files. Only sandboxed commands use them."""
    if find_trusted_program("git-lfs") is None:
        return ""
    return (
        '[filter "lfs"]\nclean = git-lfs clean -- %f\nsmudge = git-lfs smudge --skip -- %f\n'
        "process = git-lfs filter-process --skip\nrequired = true\n"
    )


def _object_stores(objects: Path, depth: int) -> Iterator[Path]:
    """Yield a repository's object folder, followed by its alternate object folders."""
    yield objects.resolve()
    lines = read_pointer(objects / "info/alternates").splitlines() if depth > 0 else ()
    for line in lines:
        other = (objects / os.fsdecode(line)).resolve()
        # The repository names this folder, so it must be the one of another repository.
        if other.name == "objects" and (other.parent / "HEAD").is_file() and (other.parent / "refs").is_dir():
            yield from _object_stores(other, depth - 1)
