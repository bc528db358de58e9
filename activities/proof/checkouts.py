"""Observation of opened files, and temporary folders for proofs, which contain checkouts and checker observers."""

import contextlib
import ctypes
import fcntl
import os
import re
import secrets
import select
import shutil
import stat
import struct
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from activities.checks.activity import CheckView
from activities.proof import copies
from activities.proof.port import DeliveredFile, Files, LockedTrees, ObservedCheck, UntrackedChanges
from activities.sandbox.port import remove_dead_folders, remove_tree, this_process
from activities.workspace.store.entry import folders_of
from tightloop.episode.check import Check
from tightloop.episode.proof.files import is_cache
from tightloop.episode.proof.report import Observation, read_events
from tightloop.host import state_home
from tightloop.host.worktree import mounted_environments

OBSERVERS = Path(__file__).parent / "observers"
COPIED_BYTES = 256 * 1024 * 1024
"""Maximum size of untracked files copied to a checkout. The rest is left out."""
REMOVAL, REMOVALS = "removal of a checkout", 4
"""Name and maximum number of threads that delete folders in the background. If all are busy, the caller deletes."""
HIDDEN_LIMIT = 500
"""Maximum number of bytecode caches to hide individually. Above it, Python is configured not to read any."""
EVENTS_BYTES = 64 * 1024 * 1024
_LINK = 0o120000
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x00020000
"""`FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS` and `FS_TOPDIR_FL` from linux/fs.h on 64-bit processors."""
_NODE_TEST = re.compile(r"(?P<start>(?:^|[\s;&|(])(?:\S*/)?node\b[^;&|\n]*?\s--test)(?=$|[\s;&|)])")
_PYTHONPATH = re.compile(r"(?<![\w$])PYTHONPATH=(?=\S)")
_OPTIONS = re.compile(r"(?<![\w$])(NODE_OPTIONS|GOFLAGS|RUBYOPT)=(?=\S)")
_PACKAGE_SCRIPTS = re.compile(r"(?:^|[\s;&|(])(?:npm|pnpm|yarn|bun)\b")


_RUST_HOSTS = tuple(
    f"{processor}_{system}"
    for processor in ("X86_64", "AARCH64")
    for system in ("UNKNOWN_LINUX_GNU", "UNKNOWN_LINUX_MUSL", "APPLE_DARWIN")
)
_OF_OBSERVERS = ("TIGHTLOOP_*", "PYTHONPATH", "NODE_OPTIONS", "RUBYOPT")
"""Environment variables of the observers that tox has to pass on."""


class LocalCheckouts:
    """Creates proof folders on this host."""

    def __init__(self) -> None:
        self._removals = threading.BoundedSemaphore(REMOVALS)

    @contextlib.contextmanager
    def proof_folder(self, root: Path) -> Iterator["ProofFolder"]:
        """Create a temporary folder for checking a working tree. It is deleted in the background on exit."""
        above = state_home() / "proofs"
        above.mkdir(parents=True, exist_ok=True, mode=0o700)
        _spread(above)
        remove_dead_folders(above)
        folder = Path(tempfile.mkdtemp(prefix=f"{this_process()}-", dir=above))
        try:
            yield ProofFolder(folder.resolve(), root)
        finally:
            self._remove(folder)

    def list_later_commits(self, root: Path) -> tuple[str, ...]:
        """Return the commits in the user's repository that are not part of the checked-out history."""
        return copies.list_later_commits(root)

    def find_copies(
        self, root: Path, commits: Iterable[str], environments: Iterable[str], delivered: Mapping[str, DeliveredFile]
    ) -> tuple[str, ...]:
        """Find files and hunks that were copied from commits or installed packages; see `copies.find_copies`."""
        return copies.find_copies(root, commits, environments, delivered)

    def _remove(self, folder: Path) -> None:
        """Delete a folder in the background, or immediately if too many deletions are pending."""
        if not self._removals.acquire(blocking=False):
            remove_tree(folder)
            return

        def remove() -> None:
            try:
                remove_tree(folder)
            finally:
                self._removals.release()

        # Not a daemon, so the process ends after it; leftovers of a killed one are deleted by the next proof.
        threading.Thread(target=remove, name=REMOVAL).start()


class ProofFolder:
    """A temporary folder for checkouts and checker observers. It is outside all working trees."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder, self._root = folder, root
        self._mounted = mounted_environments(root).items()
        self._numbers = 0
        self._observers = self.folder("observers")
        for file in OBSERVERS.iterdir():
            if file.is_file():
                shutil.copyfile(file, self._observers / file.name)
        for script in self._observers.glob("*.sh"):
            script.chmod(0o755)

    def checkout(self, trees: LockedTrees, files: Files, moved: UntrackedChanges) -> CheckView:
        """Write a tree and the initial untracked files to a new folder. Return a view of the folder."""
        content = self.folder("tree")
        source_files = {path: file for path, file in files.items() if not is_cache(path)}
        _write_files(content, trees, {path: file for path, file in source_files.items() if file.mode != _LINK})
        self._copy(content, moved.unchanged)
        # Symlinks last, so that nothing is written through one.
        links = {path: file for path, file in source_files.items() if file.mode == _LINK}
        targets = trees.read(link.blob for link in links.values())
        for path, link in links.items():
            link_path = content / path
            link_path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                link_path.symlink_to(os.fsdecode(targets[link.blob]))
        mounts: list[tuple[Path, Path]] = []
        for environment in moved.environments:
            (content / environment).mkdir(parents=True, exist_ok=True)
            mounts.append((self._root / environment, self._root / environment))
        variables: dict[str, str] = {}
        if len(moved.hidden) <= HIDDEN_LIMIT:
            empty = self.folder("empty") if moved.hidden else content
            mounts += [(empty, self._root / folder) for folder in moved.hidden if self._on_disk(folder).is_dir()]
        else:
            variables["PYTHONPYCACHEPREFIX"] = "/tmp/bytecode"  # noqa: S108 - of the sandbox
        return CheckView(content=content, mounts=tuple(mounts), environment=variables)

    def _on_disk(self, path: str) -> Path:
        """Return the location of an untracked path on disk. For a mounted path, this is the mount's source."""
        return next(
            (place / Path(path).relative_to(top) for top, place in self._mounted if Path(path).is_relative_to(top)),
            self._root / path,
        )

    def watch(self, check: Check, view: CheckView, seen_root: Path, paths: Iterable[str] = ()) -> ObservedCheck:
        """Add observers to a check, and start watching the files in `paths` immediately.

        `paths` are files in the tree. `seen_root` is the path of the tree as the check sees it.
        """
        opened = OpenedFiles(view.content or self._root, [path for path in paths if not is_cache(path)])
        events = self.folder("events")
        nonce = secrets.token_hex(16)
        options = {"NODE_OPTIONS": f'--require="{self._observers / "node_observer.cjs"}"'}
        # An option of Go or Ruby must not contain a space.
        if not re.search(r"\s", str(self._observers)):
            options["GOFLAGS"] = f"-exec={self._observers / 'go_exec.sh'}"
            options["RUBYOPT"] = f"-r{self._observers / 'ruby_observer.rb'}"
        # A check that sets one of these variables itself would otherwise run without observers.
        command = _PYTHONPATH.sub(f"PYTHONPATH={self._observers}:", check.run)
        # A shell concatenates adjacent words.
        command = _OPTIONS.sub(lambda found: f"{found[0]}'{options.get(found[1], '')} '", command)
        reporter, counter = self._observers / "node_reporter.mjs", iter(range(1_000))

        def with_reporter(match: re.Match[str]) -> str:
            return f"{match['start']} {_node_options(reporter, events / f'node-{next(counter)}.jsonl')}"

        command = _NODE_TEST.sub(with_reporter, command)
        environment = {
            **view.environment,
            "TIGHTLOOP_OBSERVE": f"{events / 'python.jsonl'}:{nonce}",
            # Where the sandbox has no mounts, the check works in the folder of the content itself.
            "TIGHTLOOP_TREE": os.pathsep.join(map(str, filter(None, (seen_root, view.content)))),
            "PYTHONPATH": str(self._observers),
            # Besides the folder that PHP was built with.
            "PHP_INI_SCAN_DIR": f":{self._php_settings()}",
            **{f"CARGO_TARGET_{name}_RUNNER": str(self._observers / "cargo_exec.sh") for name in _RUST_HOSTS},
            "TOX_OVERRIDE": f"testenv.pass_env+={','.join(_OF_OBSERVERS)}",
            **options,
        }
        # Only for package scripts that start Node's test runner: every Node process of the check gets these options.
        if self._runs_node_tests(check.run, view):
            environment["NODE_OPTIONS"] += f" {_node_options(reporter, events / 'node.jsonl')}"
        watched = replace(
            view,
            readable=(*view.readable, self._observers),
            writable=(*view.writable, events),
            environment=environment,
        )

        def observation() -> Observation:
            first_opened, parts = opened.stop(), []
            for file in sorted(events.glob("*.jsonl")):
                # The check may write into this folder, and could leave a link to any file of the host.
                if file.is_file() and not file.is_symlink():
                    with file.open("rb") as lines:
                        parts.append(lines.read(EVENTS_BYTES).decode("utf-8", "replace"))
            seen = read_events("\n".join(parts), nonce, str(seen_root))
            return seen.evolve(opened=first_opened, is_watched=opened.is_complete)

        opened.start()
        return ObservedCheck(check.evolve(run=command), watched, observation)

    def _php_settings(self) -> Path:
        folder = self._observers / "php"
        folder.mkdir(exist_ok=True)
        (folder / "observer.ini").write_text(f'auto_prepend_file = "{self._observers / "php_observer.php"}"\n', "utf-8")
        return folder

    def _runs_node_tests(self, command: str, view: CheckView) -> bool:
        if not _PACKAGE_SCRIPTS.search(command):
            return False
        try:
            manifest = ((view.content or self._root) / "package.json").read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return False
        return _NODE_TEST.search(manifest.replace('"', "\n")) is not None

    def _copy(self, content: Path, paths: Iterable[str]) -> None:
        left = COPIED_BYTES
        for path in paths:
            source, target = self._root / path, content / path
            with contextlib.suppress(OSError):
                file_stat = source.lstat()
                is_link = stat.S_ISLNK(file_stat.st_mode)
                if not (is_link or stat.S_ISREG(file_stat.st_mode)) or file_stat.st_size > left:
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
                left -= file_stat.st_size

    def folder(self, name: str) -> Path:
        """Create an empty folder. Only commands that mount the folder can see it."""
        self._numbers += 1
        # Random, so that earlier commands cannot know the path.
        folder = self._folder / f"{name}-{self._numbers}-{secrets.token_hex(4)}"
        folder.mkdir(mode=0o755)
        return folder


def _node_options(reporter: Path, events: Path) -> str:
    places = (("spec", "stdout"), (reporter, events))
    return " ".join(f"--test-reporter={name} --test-reporter-destination={destination}" for name, destination in places)


def _write_files(folder: Path, trees: LockedTrees, files: Files) -> None:
    inside: dict[str, list[str]] = {}
    for path in files:
        inside.setdefault(path.rpartition("/")[0], []).append(path)
    for above, paths in inside.items():
        target = f"{folder}/{above}"
        os.makedirs(target, exist_ok=True)  # noqa: PTH103 - paths of pathlib take as long as the files
        descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for path in paths:
                name, mode = path.rpartition("/")[2], 0o755 if files[path].mode & 0o100 else 0o644
                with os.fdopen(os.open(name, _NEW_FILE, mode, dir_fd=descriptor), "wb", buffering=0) as file:
                    for piece in trees.pieces(files[path].blob):
                        # An unbuffered write may write only a part of the data.
                        while piece:
                            piece = piece[file.write(piece) :]
        finally:
            os.close(descriptor)


def _spread(folder: Path) -> None:
    """Make ext4 place each subfolder in its own block group, away from recently deleted files.

    For up to five minutes, ext4 does not reuse the inodes of deleted files, but checks all of them for
    every new file (`recently_deleted` in fs/ext4/ialloc.c). In a group with 3 000 deleted files, creating
    3 000 files took 0.5 to 1 s.
    """
    if sys.platform != "linux":
        return
    # Other file systems lack the flag, and do not need it.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            flags = int.from_bytes(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(4)), sys.byteorder)
            if not flags & _TOP_FOLDER:
                fcntl.ioctl(descriptor, _SET_FLAGS, (flags | _TOP_FOLDER).to_bytes(4, sys.byteorder))
        finally:
            os.close(descriptor)


_OPEN, _OVERFLOW, _IS_FOLDER = 0x20, 0x4000, 0x40000000
_ONLY_FOLDERS, _NO_LINKS = 0x01000000, 0x02000000
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16
FOLDERS_LIMIT = 20_000
"""Maximum number of folders to watch. Linux allows a user 8 192 to 1 048 576 of them, depending on the memory."""
FILES_LIMIT = 20_000
"""Maximum number of opened files in an observation."""


class OpenedFiles:
    """The files in a tree that are opened between `start` and `stop`, in the order in which they are first opened.

    inotify sees every process on this host, in any language and through any mount. It does not report
    which process opened a file. It does not see containers on another host, and it only exists on Linux.
    """

    def __init__(self, folder: Path, paths: Iterable[str]) -> None:
        self._folder, self._paths = folder, frozenset(paths)
        self._watched: dict[int, str] = {}
        self._opened: dict[str, None] = {}
        self._inotify, self._wake = -1, (-1, -1)
        self._thread: threading.Thread | None = None
        self._is_read = False
        self.is_complete = False
        """True if nothing was missed. False before `stop`."""

    def start(self) -> None:
        """Start watching. Do nothing if inotify is missing or its system limit has been reached."""
        folders = ["", *(os.fsdecode(path) for path in folders_of(self._paths))]
        if sys.platform != "linux" or len(folders) > FOLDERS_LIMIT:
            return
        library = ctypes.CDLL(None, use_errno=True)
        self._inotify = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            return
        for folder in folders:
            target = os.fsencode(self._folder / folder)
            number = library.inotify_add_watch(self._inotify, target, _OPEN | _ONLY_FOLDERS | _NO_LINKS)
            if number < 0:
                os.close(self._inotify)
                return
            self._watched[number] = f"{folder}/" if folder else ""
        self._wake = os.pipe()
        self._thread = threading.Thread(target=self._read_until_woken, name="opened files", daemon=True)
        self._thread.start()
        self.is_complete = True

    def stop(self) -> tuple[str, ...]:
        """Stop watching and return the paths of the opened files. Later calls return the same paths."""
        if self._thread is not None:
            os.write(self._wake[1], b"x")
            self._thread.join()
            self._thread = None
            for descriptor in (self._inotify, *self._wake):
                os.close(descriptor)
            self.is_complete = self.is_complete and self._is_read and len(self._opened) <= FILES_LIMIT
        return tuple(self._opened)[:FILES_LIMIT]

    def _read_until_woken(self) -> None:
        # A worker may have more descriptors than `select` takes.
        poll = select.poll()
        for descriptor in (self._inotify, self._wake[0]):
            poll.register(descriptor, select.POLLIN)
        is_woken = False
        while not is_woken:
            is_woken = any(descriptor == self._wake[0] for descriptor, _ in poll.poll())
            # The events of a command that has ended are in the queue already.
            self._take_queued()
        self._is_read = True

    def _take_queued(self) -> None:
        while True:
            try:
                events = os.read(self._inotify, _BUFFER)
            except BlockingIOError:
                return
            position = 0
            while position < len(events):
                watch, mask, _, length = _EVENT.unpack_from(events, position)
                position += _EVENT.size
                name = events[position : position + length].rstrip(b"\0")
                position += length
                if mask & _OVERFLOW:
                    self.is_complete = False
                elif not mask & _IS_FOLDER:
                    path = self._watched.get(watch, "") + os.fsdecode(name)
                    if path in self._paths:
                        self._opened.setdefault(path)
