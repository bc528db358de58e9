"""The user's repository."""

import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

from activities.workspace.store.entry import folders_of
from activities.workspace.store.rules import RULES_BYTES, RuleList, Rules
from activities.workspace.store.walk import Coverage, Signature, Walk, signature_of
from tightloop.errors import NotARepositoryError, WorkspaceError
from tightloop.host.worktree import read_worktree
from tightloop.value import LruCache

INDEX_BYTES = 512 * 1024 * 1024
CONFIG_BYTES = 1_000_000
POINTER_BYTES = 8_192
SUBMODULE_DEPTH = 10
SUBMODULES = 1_000
INCLUDE_DEPTH = 10
REMEMBERED = 8
GITLINK = 0o160000
_KEY = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*(?:=(.*))?$", re.DOTALL)
_SECTION = re.compile(r'\s*\[\s*([A-Za-z0-9.-]+)\s*(?:"((?:[^"\\]|\\.)*)")?\s*\](.*)$', re.DOTALL)


class UserRepository:
    """A working tree's git folder."""

    def __init__(self, root: Path) -> None:
        """Find the git folder for `root`.

        Raises:
            NotARepositoryError: `root` is not the top of a git working tree.
            WorkspaceError: files of the tree could forge its git folder.
        """
        self.root = root
        self.folder = git_folder(root)
        pointer = read_pointer(self.folder / "commondir")
        has_common = pointer and b"\0" not in pointer
        self.common = (self.folder / os.fsdecode(pointer)).resolve() if has_common else self.folder
        """Git folder that all worktrees of a repository share."""
        real = root.resolve()
        for candidate in {self.folder, self.common}:
            # An agent may write anywhere in the tree except `.git`, so a git folder elsewhere in it is not trusted.
            if (
                candidate != real / ".git"
                and candidate.is_relative_to(real)
                and not candidate.is_relative_to(real / ".git")
            ):
                raise WorkspaceError(
                    f"{root} uses the git folder {candidate}. This folder is inside the working tree, so an agent "
                    "could tamper with it. Use a regular .git folder at the root of the working tree"
                )

    def head(self) -> str:
        """Return the checked-out branch (`refs/heads/...`) or commit, or "" if HEAD cannot be read."""
        text = _read(self.folder / "HEAD", POINTER_BYTES).decode("utf-8", "replace").strip()
        return text.removeprefix("ref:").strip()

    def coverage(self, memory: "IndexMemory") -> Coverage:
        """Return the files that snapshots cover. The tree's own `.gitignore` files are not considered yet."""
        tracked, folders = memory.list_tracked_files(self)
        local = read_config(self.common / "config")
        folded = local.get("core.ignorecase", "").lower() in ("true", "yes", "on", "1")
        configured = local.get("core.excludesfile") or user_config(self.folder).get("core.excludesfile")
        excludes_file = Path(_home(configured)) if configured else _config_home() / "git" / "ignore"
        # A relative path would lie in the tree.
        texts = [
            _read(excludes_file, RULES_BYTES) if excludes_file.is_absolute() else b"",
            _read(self.common / "info/exclude", RULES_BYTES),
        ]
        rules = Rules(RuleList("", text, folded=folded) for text in texts)
        worktree = read_worktree(self.root)
        return Coverage(rules, tracked, folders, folded, frozenset(worktree.copies if worktree else ()))


class IndexMemory:
    """Caches the tracked files of a few repositories until their index changes.

    Reading 50 000 files takes 50 ms.
    """

    def __init__(self) -> None:
        self._held: LruCache[Path, _Indexes] = LruCache(REMEMBERED)

    def list_tracked_files(self, repository: UserRepository) -> tuple[frozenset[str], frozenset[str]]:
        """Return the files tracked by the index and submodules, and all their parent folders."""
        indexes = self._held.get(repository.folder)
        if indexes is None or any(signature_of(path) != signature for path, signature in indexes.read.items()):
            read: dict[Path, Signature | None] = {}
            paths = frozenset(_list_tracked_paths(repository.root, repository.folder, read, SUBMODULE_DEPTH))
            indexes = _Indexes(read, paths, frozenset(folders_of(paths)))
            self._held.put(repository.folder, indexes)
        return indexes.paths, indexes.folders


def git_folder(root: Path) -> Path:
    """Return the git folder of a working tree. For a linked worktree, this is not the common git folder.

    Raises:
        NotARepositoryError: `root` is not the top of a git working tree.
    """
    entry = root / ".git"
    if entry.is_dir():
        return entry.resolve()
    kind, _, target = _read(entry, POINTER_BYTES).partition(b":")
    folder = (root / os.fsdecode(target.strip())).resolve() if b"\0" not in target else root
    if kind != b"gitdir" or not folder.is_dir():
        raise NotARepositoryError(f"{root} is not a git repository. Create one: git init {root}")
    return folder


def read_config(path: Path) -> dict[str, str]:
    """Read the last value of each setting in a git config file.

    Keys are in lower case, except for the middle part. Includes are not followed. Return nothing if the
    file is too large or malformed.
    """
    return dict(_settings(_read(path, CONFIG_BYTES)))


def read_pointer(path: Path) -> bytes:
    """Read a path from a file that contains only this path. Return empty bytes for any other file."""
    return _read(path, POINTER_BYTES).strip()


def user_config(folder: Path) -> dict[str, str]:
    """Read the git settings of the system and the user.

    This follows the includes that apply to the git folder `folder`.
    """
    return dict(_user_settings(folder))


def is_trusted(folder: Path, root: Path) -> bool:
    """Return whether a repository belongs to this user or is listed in `safe.directory` (git-config(1))."""
    # Under sudo, git trusts the user who called it as well.
    users = {
        os.geteuid(),
        *(int(name) for name in (os.environ.get("SUDO_UID", ""),) if name.isdigit() and not os.geteuid()),
    }
    if {root.stat().st_uid, folder.stat().st_uid} <= users:
        return True
    allowed = [value for name, value in _user_settings(folder) if name == "safe.directory"]
    # An empty value resets the list.
    last = max((number for number, value in enumerate(allowed, 1) if not value), default=0)
    places = {str(root), str(root.resolve()), "*"}
    return any(value.rstrip("/") in places or value == "/" for value in allowed[last:])


def _user_settings(folder: Path) -> Iterator[tuple[str, str]]:
    # In git's order, because the last value of a setting wins.
    for path in (Path("/etc/gitconfig"), _config_home() / "git" / "config", Path(_home("~/.gitconfig"))):
        yield from _with_includes(path, folder, INCLUDE_DEPTH)


def _with_includes(path: Path, folder: Path, depth: int) -> Iterator[tuple[str, str]]:
    for name, value in _settings(_read(path, CONFIG_BYTES)):
        yield name, value
        condition = name.removeprefix("includeif.").removesuffix(".path")
        if depth > 0 and (name == "include.path" or (condition != name and _applies(condition, path, folder))):
            include_path = Path(_home(value))
            yield from _with_includes(
                include_path if include_path.is_absolute() else path.parent / include_path, folder, depth - 1
            )


def _applies(condition: str, path: Path, folder: Path) -> bool:
    """Return whether a `gitdir:` or `gitdir/i:` condition matches the git folder (git-config(1))."""
    kind, _, pattern = condition.partition(":")
    if kind not in ("gitdir", "gitdir/i"):
        return False
    pattern = _home(pattern)
    pattern = str(path.parent) + pattern[1:] if pattern.startswith("./") else pattern
    pattern = pattern if pattern.startswith("/") else "**/" + pattern
    pattern = pattern + "**" if pattern.endswith("/") else pattern
    rules = RuleList("", os.fsencode("/" + pattern.lstrip("/")), folded=kind == "gitdir/i")
    return rules.verdict(str(folder).lstrip("/"), folder.name, folder=True) is True


# The same few files are read for every snapshot, and seldom change.
@lru_cache(maxsize=16)
def _settings(content: bytes) -> tuple[tuple[str, str], ...]:
    settings: list[tuple[str, str]] = []
    section = ""
    lines = iter(content.decode("utf-8", "replace").removeprefix("\ufeff").split("\n"))
    for line in lines:
        line = line.removesuffix("\r")
        if (head := _SECTION.match(line)) is not None:
            middle = head[2]
            section = head[1].lower() + ("." + re.sub(r"\\(.)", r"\1", middle) if middle is not None else "")
            line = head[3]
        # A trailing backslash continues the value on the next line.
        while (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1] + next(lines, "").removesuffix("\r")
        if line.lstrip()[:1] in ("", "#", ";"):
            continue
        if section and (match := _KEY.match(line)) is not None:
            settings.append((f"{section}.{match[1].lower()}", "true" if match[2] is None else _value(match[2])))
    return tuple(settings)


def _value(text: str) -> str:
    out: list[str] = []
    quoted = False
    length = 0
    characters = iter(text.strip())
    for character in characters:
        if character == '"':
            quoted = not quoted
            length = len(out)
        elif character in "#;" and not quoted:
            break
        else:
            if character == "\\":
                character = {"n": "\n", "t": "\t", "b": "\b"}.get(following := next(characters, ""), following)
                length = len(out) + 1
            out.append(character)
            length = len(out) if quoted or not character.isspace() else length
    return "".join(out[:length])


def _list_tracked_paths(root: Path, folder: Path, read: dict[Path, Signature | None], depth: int) -> Iterator[str]:
    index = folder / "index"
    read[index] = signature_of(index)
    for path, mode in _entries(index):
        if mode == GITLINK:
            below = root / path
            if depth > 0 and len(read) < SUBMODULES:
                try:
                    inner = git_folder(below)
                except (NotARepositoryError, OSError):
                    continue
                yield from (f"{path}/{name}" for name in _list_tracked_paths(below, inner, read, depth - 1))
        # In a sparse index such an entry is a folder whose files are not on disk.
        elif mode & 0o170000 != 0o040000:
            yield path


def _entries(index: Path) -> list[tuple[str, int]]:
    """Read the paths and modes in an index, including the shared part of a split index.

    Return nothing if the index is damaged.
    """
    content = _read(index, INDEX_BYTES)
    # The id length is not stored in the file: only the right one yields names in order.
    for digest_bytes in (20, 32):
        try:
            entries, end = _parse_entries(content, digest_bytes)
        except (ValueError, struct.error, IndexError):
            continue
        link = content.find(b"link", end)
        if link >= 0:
            shared = index.with_name(f"sharedindex.{content[link + 8 : link + 8 + digest_bytes].hex()}")
            with suppress(ValueError, struct.error, IndexError):
                entries += _parse_entries(_read(shared, INDEX_BYTES), digest_bytes)[0]
        return entries
    return []


def _parse_entries(content: bytes, digest_bytes: int) -> tuple[list[tuple[str, int]], int]:
    """Parse the entries of an index, versions 2 to 4 (gitformat-index(5)).

    Return the entries and the position at which they end.
    """
    if content[:4] != b"DIRC":
        raise ValueError("not an index")
    version, count = struct.unpack_from(">II", content, 4)
    if version not in (2, 3, 4) or count > len(content) // 40:
        raise ValueError("not a valid git index")
    entries: list[tuple[str, int]] = []
    position, name = 12, b""
    fixed = 42 + digest_bytes
    for _ in range(count):
        (mode,) = struct.unpack_from(">I", content, position + 24)
        (flags,) = struct.unpack_from(">H", content, position + fixed - 2)
        begin = position + fixed + (2 if version > 2 and flags & 0x4000 else 0)
        if version == 4:
            cut, begin = _varint(content, begin)
            end = content.index(b"\0", begin)
            following = name[: len(name) - cut] + content[begin:end]
            position = end + 1
        else:
            end = content.index(b"\0", begin)
            following = content[begin:end]
            position += (end - position + 8) & ~7
        # In a split index an entry may have no name.
        if flags & 0xFFF != min(len(following), 0xFFF) or (following and following < name):
            raise ValueError("the index is not sorted by name")
        name = following or name
        if following:
            entries.append((os.fsdecode(following), mode))
    return entries, position


def _varint(content: bytes, position: int) -> tuple[int, int]:
    byte = content[position]
    value = byte & 0x7F
    while byte & 0x80:
        position += 1
        byte = content[position]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, position + 1


@dataclass(frozen=True)
class _Indexes:
    read: Mapping[Path, Signature | None]
    paths: frozenset[str]
    folders: frozenset[str]


def _read(path: Path, limit: int) -> bytes:
    """Read a regular file. Return empty bytes if it is missing or larger than `limit`."""
    try:
        # Checked before opening: opening a device can have side effects. O_NONBLOCK, as it may become a pipe now.
        if not stat.S_ISREG(path.stat().st_mode):
            return b""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return b""
        return file.read(limit)


def _config_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or _home("~/.config"))


def _home(path: str) -> str:
    """Replace a leading `~/` with the home folder."""
    return str(Path(path).expanduser()) if path.startswith("~/") else path


LISTING_TIMEOUT = timedelta(seconds=30)


def list_files(root: Path) -> Iterator[str]:
    """Yield the files and symlinks below `root`. Ignored files are included only if git tracks them.

    Raises:
        NotARepositoryError: `root` is not the top of a git working tree.
        GitError: the files could not be listed in time. Retryable.
    """
    coverage = UserRepository(root).coverage(IndexMemory())
    return Walk(coverage, None, seconds=LISTING_TIMEOUT.total_seconds()).run(str(root), None).paths()
