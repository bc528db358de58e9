"""Execution of setup commands in the sandbox, and a cache of the packages that they install."""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError
from temporalio.exceptions import CancelledError

from activities.process import GRACE_S, Reason, search_path
from activities.sandbox.port import (
    MEBIBYTE,
    Sandbox,
    SandboxResult,
    SandboxUnavailableError,
    build_spec,
    folder_size,
    owned_folder,
    remove_dead_folders,
    remove_tree,
)
from activities.workspace.folders import has_packages, state_folder_of
from activities.workspace.git_command import private_config, split_z, user_git
from activities.workspace.ownership import write_atomically
from activities.workspace.port import SetUpResult
from activities.workspace.scope import EpisodeScope
from activities.workspace.store.entry import LINK, Entry, folders_of
from activities.workspace.user_repository import UserRepository
from activities.workspace.working_tree import WorkingTree
from activities.workspace.worktree import mount_environments
from tightloop.checks.setup import INSTALL, SETUP_S, SKIP, Setup, environment_of, propose, read_files
from tightloop.episode.exit_status import check_argv
from tightloop.episode.failure import explain_output
from tightloop.errors import WorkspaceError
from tightloop.host import private_folder, state_home
from tightloop.host.worktree import MOUNTING, mounted_environments, read_worktree
from tightloop.settings import SandboxSettings, WorkspaceSettings
from tightloop.value import Value, shorten
from tightloop.value.scrub import scrub

CACHE, BUILDING = "environments", ".building"
OUTPUT_CHARACTERS = 1_500
NAMED = 5
RECENT_S = 3_600.0
"""Time in seconds for which recently used packages are kept, because a worktree may be about to mount them."""
_AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_PROGRAMS = ("python3", "node")
"""Programs whose version determines whether installed packages work."""


class CachedEnvironments(Value):
    """Packages installed by a setup command. Their folder's modification time is the time of last use."""

    workspace: str
    command: str
    environments: tuple[str, ...]
    size_bytes: int

    @property
    def size(self) -> str:
        """Size of the packages in MB, for display."""
        return f"{self.size_bytes / 1_000_000:.0f} MB"


class _SetupFailedError(Exception):
    """Raised if the setup command failed. The text is the reason, followed by the end of the output."""


class SandboxedSetups:
    """Runs setup commands in a temporary checkout on this host. Only the installed packages are kept."""

    def __init__(self, sandbox: Sandbox, sandbox_settings: SandboxSettings, settings: WorkspaceSettings) -> None:
        self._sandbox, self._sandbox_settings, self._settings = sandbox, sandbox_settings, settings

    def examine(
        self, scope: EpisodeScope, tree: WorkingTree, tree_id: str, named: str = ""
    ) -> tuple[Setup | None, tuple[str, ...]]:
        contents = _read_files(tree, tree_id)
        locks = read_files(contents)[0]
        if not locks and not named:
            return None, ()
        is_present = _presence(tree.root)
        proposal = propose({path: contents[path] for path in _list_tracked(tree.root, locks)}, is_present)
        missing = proposal.missing if proposal is not None else ()
        setup = Setup(command=named, locks=locks, missing=missing, digest=_digest(contents, tree_id))
        if named:
            if locks and all(map(is_present, map(environment_of, locks))) and not scope.worktree:
                return None, (f"`{named}` did not run, because the packages are already in the working tree",)
            return setup.evolve(decision=INSTALL, by="request"), ()
        if proposal is None:
            return None, ()
        setup = setup.evolve(command=proposal.command)
        decided = self._recall(scope, setup)
        sentence = (
            f"{', '.join(missing)} is not in the {'worktree' if scope.worktree else 'working tree'}. Run "
            f"`{setup.command}` in the workspace, or start with: --setup {json.dumps(setup.command)}"
        )
        if decided is not None:
            return (None, (sentence,)) if decided.decision == SKIP else (decided.evolve(missing=missing), ())
        return (setup, ()) if self._can_run(scope, proposal.programs) else (None, (sentence,))

    def set_up(
        self, scope: EpisodeScope, tree: WorkingTree, tree_id: str, setup: Setup, *, cancelled: Callable[[], bool]
    ) -> SetUpResult:
        contents = _read_files(tree, tree_id)
        if _digest(contents, tree_id) != setup.digest:
            # The answer was about other lock files.
            named = setup.command if setup.by == "request" else ""
            changed, notes = self.examine(scope, tree, tree_id, named)
            return SetUpResult(setup=changed, notes=notes)
        memory = state_folder_of(scope) / "setups" / f"{setup.digest}.json"
        write_atomically(memory, setup.model_dump_json().encode())
        if setup.decision == SKIP:
            return SetUpResult(notes=(f"the work starts without {', '.join(setup.missing)}",))
        workspace, key = Path(scope.workspace), self._key(scope, setup)
        folder, verb = state_home() / CACHE / key, "reused from an earlier run"
        cached = _read_cached(folder)
        try:
            if cached is None:
                verb = "installed now"
                cached = self._install(scope, tree, tree_id, setup, folder, cancelled)
        except _SetupFailedError as failure:
            return SetUpResult(setup=setup.evolve(decision="", problem=str(failure)))
        os.utime(folder)
        sources = {path: folder / "tree" / path for path in cached.environments}
        if not sources:
            return SetUpResult(notes=(f"`{setup.command}` succeeded, but did not install any packages",))
        if scope.worktree and (worktree := read_worktree(tree.root)) is not None:
            mount_environments(tree.root, worktree, sources)
            how = "mounted read-only"
        else:
            _copy_into(tree, tree_id, sources)
            how = f"copied into {workspace}"
        names = ", ".join(cached.environments[:NAMED])
        return SetUpResult(notes=(f"`{setup.command}`: {names} ({cached.size}), {verb} and {how}",))

    def _recall(self, scope: EpisodeScope, setup: Setup) -> Setup | None:
        """Return a person's earlier decision about the same lock files, or None."""
        try:
            content = (state_folder_of(scope) / "setups" / f"{setup.digest}.json").read_bytes()
            return Setup.model_validate_json(content)
        except (OSError, ValidationError):
            return None

    def _can_run(self, scope: EpisodeScope, programs: tuple[str, ...]) -> bool:
        """Return whether the sandbox can run setups.

        The sandbox must be able to limit the network and mount checkouts, and it must contain the programs.
        """
        try:
            name = self._sandbox.name
        except SandboxUnavailableError:
            return False
        path = search_path(Path(scope.workspace))["PATH"]
        return name in MOUNTING and (name == "docker" or all(shutil.which(program, path=path) for program in programs))

    def _key(self, scope: EpisodeScope, setup: Setup) -> str:
        # Not the project's own programs, which are about to be installed.
        path, versions = search_path(Path("/"))["PATH"], []
        for program in _PROGRAMS:
            place = os.path.realpath(shutil.which(program, path=path) or "/")
            versions.append((place, Path(place).stat().st_mtime_ns))
        platform_id = (sys.platform, platform.machine(), self._sandbox_settings.image, versions)
        # With the workspace: scripts in a .venv contain its path.
        text = json.dumps((scope.workspace, setup.digest, setup.command, platform_id))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _install(
        self,
        scope: EpisodeScope,
        tree: WorkingTree,
        tree_id: str,
        setup: Setup,
        target: Path,
        cancelled: Callable[[], bool],
    ) -> CachedEnvironments:
        """Run the command in a new checkout, and move the installed packages to `target`.

        Raises:
            _SetupFailedError: the command failed, or changed tracked files.
        """
        if self._sandbox.name not in MOUNTING:
            raise _SetupFailedError(
                f"cannot run in the sandbox {self._sandbox.name}, because it cannot mount a checkout at the "
                "workspace path. Run the command in the workspace yourself"
            )
        with owned_folder(private_folder(target.parent) / BUILDING) as building:
            checkout, result = building / "checkout", building / "result"
            for folder in (checkout, building / "home", result / "tree"):
                folder.mkdir(parents=True)
            tree.checkout(tree_id, checkout)
            entries = tree.entries(tree_id)
            before = _stats(checkout, entries)
            ran = self._run(scope, tree, setup, building, cancelled)
            if cancelled():
                raise CancelledError(f"{setup.command!r} was stopped")
            _raise_if_failed(ran, (*self._settings.setup_hosts, *self._sandbox_settings.network))
            if changed := _changed_files(checkout, tree, entries, before):
                raise _SetupFailedError(
                    f"changed tracked files: {', '.join(changed[:NAMED])}. A setup command may only write to "
                    "package folders, such as node_modules and .venv"
                )
            environments = tuple(sorted(_find_environments(checkout, folders_of(map(os.fsdecode, entries)))))
            size_bytes = sum(folder_size(checkout / path) for path in environments)
            limit_bytes = self._settings.cached_environments_mb * 1_000_000
            if free_cache(limit_bytes, needed_bytes=size_bytes)[0] + size_bytes > limit_bytes:
                raise _SetupFailedError(
                    f"the installation takes up {size_bytes / 1000000:.0f} MB, but "
                    f"workspace.cached_environments_mb is limited to {self._settings.cached_environments_mb} MB. "
                    "Raise the limit in the settings"
                )
            for path in environments:
                (result / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
                (checkout / path).rename(result / "tree" / path)
            cached = CachedEnvironments(
                workspace=scope.workspace, command=setup.command, environments=environments, size_bytes=size_bytes
            )
            (result / "record.json").write_text(cached.model_dump_json())
            if target.exists() and _read_cached(target) is None:
                remove_tree(target)
            # Last, and at once: packages with a record are complete. Another run may have been faster.
            with contextlib.suppress(OSError):
                result.rename(target)
            return cached

    def _run(
        self, scope: EpisodeScope, tree: WorkingTree, setup: Setup, building: Path, cancelled: Callable[[], bool]
    ) -> SandboxResult:
        workspace, settings, home = Path(scope.workspace), self._sandbox_settings, building / "home"
        argv = check_argv(setup.command)
        spec = build_spec(settings, argv, workspace, wall_limit_s=SETUP_S, grace_s=GRACE_S)
        config, git = building / "gitconfig", workspace / ".git"
        config.write_text(private_config(UserRepository(workspace)))
        spec = replace(
            spec,
            content=building / "checkout",
            # The user's own settings of the repository may contain a password.
            mounts=((config, git / "config"),) if (git / "config").is_file() else (),
            readable=(),
            writable=(home,),
            # Not below /tmp, which is memory: installers keep what they download in their home.
            environment={"HOME": str(home), "TMPDIR": str(home), "CI": "1", **_trust()},
            network=(*self._settings.setup_hosts, *settings.network),
            file_bytes=settings.disk_mb * MEBIBYTE,
            may_flood=True,
        )
        return self._sandbox.run(spec, cancelled=cancelled, started=tree.own_process)


def _trust() -> dict[str, str]:
    """Return environment variables that make installers trust the host's certificate authorities."""
    bundle = next((path for path in _AUTHORITIES if Path(path).is_file()), None)
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS")
    return dict.fromkeys(names, bundle) if bundle is not None else {}


def free_cache(limit_bytes: int, *, needed_bytes: int = 0, dry_run: bool = False) -> tuple[int, int]:
    """Remove cached packages until the rest fits.

    Packages of deleted workspaces are removed first, then the least recently used packages. Packages that
    a worktree uses are kept. With `dry_run`, nothing is removed.

    Returns:
        The size of the remaining packages and the size of the removed packages.
    """
    if not dry_run:
        remove_dead_folders(state_home() / CACHE / BUILDING)
    cached = [
        (folder.stat().st_mtime, folder, found)
        for folder in (state_home() / CACHE).glob("[!.]*")
        if (found := _read_cached(folder)) is not None
    ]
    total = before = sum(found.size_bytes for _, _, found in cached)
    records = "\n".join(_texts(state_home().glob("projects/*/worktree-data/*/record.json")))
    for used_at, folder, found in sorted(cached, key=lambda entry: entry[:2]):
        is_due = total + needed_bytes > limit_bytes or not Path(found.workspace).exists()
        if is_due and str(folder) not in records and time.time() - used_at > RECENT_S:
            total -= found.size_bytes
            if not dry_run:
                # The record first: a partly removed folder must not count as complete.
                (folder / "record.json").unlink(missing_ok=True)
                remove_tree(folder)
    return total, before - total


def _texts(paths: Iterator[Path]) -> Iterator[str]:
    for path in paths:
        with contextlib.suppress(OSError):
            yield path.read_text()


def _read_cached(folder: Path) -> CachedEnvironments | None:
    try:
        return CachedEnvironments.model_validate_json((folder / "record.json").read_bytes())
    except (OSError, ValidationError):
        return None


def _read_files(tree: WorkingTree, tree_id: str) -> dict[str, str]:
    """Return the texts of the lock files and manifests in a tree."""
    entries = {os.fsdecode(path): entry for path, entry in tree.entries(tree_id).items() if entry.mode != LINK}
    return {path: tree.content(entries[path].id).decode("utf-8", "replace") for path in read_files(entries)[1]}


def _digest(contents: Mapping[str, str], tree_id: str) -> str:
    """Return the digest of lock files and manifests. Without such files, the tree ID is hashed."""
    text = json.dumps(sorted(contents.items()) or tree_id)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _list_tracked(root: Path, locks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lock files that are tracked in the user's repository. An agent may have created the others."""
    if not locks:
        return ()
    with user_git(UserRepository(root)) as git:
        tracked = {os.fsdecode(path) for path in split_z(git.run("ls-files", "-z", "--", *locks))}
    return tuple(path for path in locks if path in tracked)


def _presence(root: Path) -> Callable[[str], bool]:
    mounted = mounted_environments(root)

    def is_present(path: str) -> bool:
        place = mounted.get(path, root / path)
        if place.is_dir() and any(place.iterdir()):
            return True
        # A virtual environment may have any name.
        folder, _, name = path.rpartition("/")
        others = [*(root / folder).glob("*/pyvenv.cfg")] if name == ".venv" else []
        return bool(others) or any(
            name == ".venv" and top.rpartition("/")[0] == folder and (source / "pyvenv.cfg").is_file()
            for top, source in mounted.items()
        )

    return is_present


def _raise_if_failed(ran: SandboxResult, hosts: tuple[str, ...]) -> None:
    if ran.reason is Reason.EXITED and ran.exit_code == 0:
        return
    output = explain_output(scrub(ran.output.decode("utf-8", "replace")), OUTPUT_CHARACTERS)
    if ran.reason is Reason.WALL_LIMIT:
        how = f"did not finish within {SETUP_S / 60:.0f} min"
    elif ran.reason is Reason.EXITED:
        how = f"failed with exit code {ran.exit_code}"
    else:
        how = f"failed: {shorten(ran.message, 300)}"
    # Installers report a refused host as 403 at best.
    raise _SetupFailedError(f"{how}\n{output}\nallowed hosts (workspace.setup_hosts): {', '.join(hosts)}")


def _stats(folder: Path, entries: Mapping[bytes, Entry]) -> dict[bytes, os.stat_result]:
    return {path: (folder / os.fsdecode(path)).lstat() for path in entries}


def _changed_files(
    folder: Path, tree: WorkingTree, entries: Mapping[bytes, Entry], before: Mapping[bytes, os.stat_result]
) -> list[str]:
    """Return the tracked files whose content on disk differs from the tree."""
    changed = []
    for path, old in before.items():
        place = folder / os.fsdecode(path)
        with contextlib.suppress(OSError):
            new = place.lstat()
            if (new.st_mtime_ns, new.st_ctime_ns, new.st_ino) == (old.st_mtime_ns, old.st_ctime_ns, old.st_ino):
                continue
            if stat.S_ISLNK(new.st_mode):
                content = os.fsencode(place.readlink())
            else:
                descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with os.fdopen(descriptor, "rb") as file:
                    content = file.read(old.st_size + 1)
            if new.st_mode == old.st_mode and content == tree.content(entries[path].id):
                continue
        changed.append(os.fsdecode(path))
    return changed


def _find_environments(root: Path, tracked_folders: set[str]) -> Iterator[str]:
    """Yield the outermost package folders that contain no tracked files."""
    waiting = [""]
    while waiting:
        above = waiting.pop()
        with os.scandir(root / above) as entries:
            for entry in entries:
                path = f"{above}/{entry.name}" if above else entry.name
                if not entry.is_dir(follow_symlinks=False):
                    continue
                if path not in tracked_folders and has_packages(Path(entry.path)):
                    yield path
                else:
                    waiting.append(path)


def _copy_into(tree: WorkingTree, tree_id: str, sources: Mapping[str, Path]) -> None:
    """Copy missing packages into the user's working tree.

    Raises:
        WorkspaceError: git does not ignore one of the folders. The copied folder was removed again.
    """
    for path, source in sources.items():
        place = tree.root / path
        if place.is_dir() and any(place.iterdir()):
            continue
        temporary = place.with_name(f".{place.name}.tightloop")
        if temporary.exists():
            # Left by a killed worker.
            remove_tree(temporary)
        temporary.mkdir(parents=True)
        # Git, and so every snapshot, ignores the folder even if it outlives this process.
        (temporary / ".gitignore").write_text("*\n")
        shutil.copytree(source, temporary / place.name, symlinks=True)
        if place.is_dir():
            place.rmdir()
        (temporary / place.name).rename(place)
        remove_tree(temporary)
        if tree.snapshot() != tree_id:
            remove_tree(place)
            raise WorkspaceError(
                f"git does not ignore {path}. Add {path} to .gitignore, or start in a worktree: --worktree"
            )
