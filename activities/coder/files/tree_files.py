"""Files of a working tree as the tools read and write them: no step is taken through a link, whoever puts one there.

Every folder on the way is opened from the one above it, and what is done then is done in the opened folder. So a link
that is swapped in for a folder meanwhile leads nowhere, and one in place of the file is replaced and not followed.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from activities.coder.port import FileChange, ToolError
from activities.plan.files import READ_BYTES, resolve_path
from activities.workspace.store.walk import OPEN_FILE, OPEN_FOLDER
from tightloop.plan.document.policy import Policy
from tightloop.safety.glob import fits

BINARY_BYTES = 8_000
"""Git's own sign of a binary file is a zero byte within these."""
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PROTECTED = Policy().protect
"""What no step of a plan may change, the coder may not either."""
_KINDS = {
    stat.S_IFLNK: "a link: name the file that it leads to",
    stat.S_IFDIR: "a folder: list_files shows what is in it",
    stat.S_IFIFO: "a named pipe, not a file",
    stat.S_IFSOCK: "a socket, not a file",
    stat.S_IFCHR: "a device, not a file",
    stat.S_IFBLK: "a device, not a file",
}


class Place(NamedTuple):
    """A name in a folder that is held open."""

    folder: int
    """Descriptor."""
    name: str
    path: str
    """Below the root, for people."""

    def state(self) -> os.stat_result | None:
        """Return what is there; None: nothing."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None


def digest(content: bytes | None) -> str:
    """Return the sha256 of a file; empty: there is none."""
    return "" if content is None else hashlib.sha256(content).hexdigest()


def relative(root: Path, path: str) -> str:
    """Return a path as the tools write it; one below the root may be absolute, as commands print it."""
    inside = path.removeprefix(f"{root}/") if path.startswith(f"{root}/") else path
    return str(PurePosixPath(inside)) if inside and not inside.startswith("/") else inside


def check_writable(path: str) -> None:
    """Refuse what no step may change.

    Raises:
        ToolError: the name is protected.
    """
    if fits(PROTECTED, path, folded=True):
        raise ToolError(f"{shown(path)} is protected: nobody but a person changes it. Do without")


def read_file(root: Path, path: str, *, limit: int = READ_BYTES) -> bytes | None:
    """Return the bytes of a regular file; None if it does not exist.

    Raises:
        ToolError: it is something else, or has more than `limit` bytes.
        InvalidRequestError: the path leads elsewhere.
    """
    with opened(root, path) as place:
        return None if place is None else read_place(place, limit=limit)


def read_place(place: Place, *, limit: int = READ_BYTES) -> bytes | None:
    """Return the bytes of a regular file; see `read_file`."""
    found = place.state()
    if found is None:
        return None
    # Before it is opened: opening a device can do something, and opening a pipe may wait.
    _check_file(place, found, limit)
    try:
        descriptor = os.open(place.name, OPEN_FILE, dir_fd=place.folder)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        # Something else may have taken its place.
        _check_file(place, os.fstat(descriptor), limit)
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ToolError(f"{shown(place.path)} grows while it is read. Try again when nothing writes to it")
    return content


def write_change(root: Path, change: FileChange, temporary: str) -> None:
    """Make a change, whole or not at all, and durably.

    Args:
        root: of the tree.
        change: of one file.
        temporary: name of the new file until it is complete; what has it already was left by a process that died.

    Raises:
        ToolError: the file is not as the change expects it any more, or no regular file.
        InvalidRequestError: the path leads elsewhere.
        OSError: it cannot be written.
    """
    check_writable(change.path)
    with opened(root, change.path, make=change.after is not None) as place:
        if place is None:
            raise ToolError(f"the folder of {shown(change.path)} is not there any more")
        _remove(place.folder, temporary)
        if digest(read_place(place)) != digest(change.before):
            raise ToolError(f"{shown(change.path)} was changed meanwhile: read it again")
        if change.after is None:
            os.unlink(place.name, dir_fd=place.folder)
        else:
            _replace(place, change.after, temporary, executable=change.executable)
        os.fsync(place.folder)


def remove_temporary(root: Path, path: str, temporary: str) -> None:
    """Remove what a process that died has left beside a file."""
    with opened(root, path) as place:
        if place is not None:
            _remove(place.folder, temporary)


@contextlib.contextmanager
def opened(root: Path, path: str, *, make: bool = False) -> Iterator[Place | None]:
    """Yield a place whose folder is held open; None: the folder is not there.

    Args:
        root: the one path in which links are followed.
        path: below it.
        make: make the folders that are missing.

    Raises:
        InvalidRequestError: the path is not one below the root, leads through a link or into a git folder.
        ToolError: a link took the place of a folder at this moment.
    """
    # It says what is wrong with a path; that nothing is followed does not depend on it.
    resolve_path(root, path)
    *folders, name = PurePosixPath(path).parts
    with contextlib.ExitStack() as stack:
        here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, here)
        for folder in folders:
            inner = _enter(here, folder, path, make=make)
            if inner is None:
                yield None
                return
            stack.callback(os.close, inner)
            here = inner
        yield Place(here, name, path)


def is_binary(content: bytes) -> bool:
    """Return whether git would call a file binary."""
    return b"\0" in content[:BINARY_BYTES]


def shown(path: str) -> str:
    """Return a path for a model or a person: quoted where it could be taken for more than one word or line."""
    plain = os.fsencode(path).decode("utf-8", "backslashreplace")
    return plain if plain.isprintable() and plain == plain.strip() else repr(plain)


def _enter(here: int, folder: str, path: str, *, make: bool) -> int | None:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, dir_fd=here)
    try:
        return os.open(folder, OPEN_FOLDER, dir_fd=here)
    except FileNotFoundError:
        return None
    except (NotADirectoryError, OSError) as error:
        # ELOOP: a link.
        raise ToolError(f"{shown(path)} cannot be reached: {folder!r} is not a folder ({error.strerror})") from error


def _check_file(place: Place, found: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"{shown(place.path)} is {_KINDS.get(stat.S_IFMT(found.st_mode), 'not a file')}")
    if found.st_size > limit:
        size, most = f"{found.st_size:,}", f"{limit:,}"
        raise ToolError(f"{shown(place.path)} has {size} bytes, more than {most}. Take a part of it by run_command")


def _replace(place: Place, content: bytes, temporary: str, *, executable: bool) -> None:
    before = place.state()
    descriptor = os.open(temporary, NEW_FILE, 0o777 if executable else 0o666, dir_fd=place.folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            _dress(descriptor, place, before)
            # Before the rename: otherwise the name could lead to an empty file after a power loss.
            os.fsync(descriptor)
        os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    except BaseException:
        _remove(place.folder, temporary)
        raise


def _dress(descriptor: int, place: Place, before: os.stat_result | None) -> None:
    """Give a new file the mode of the old one, and the owner of the old one or of its folder."""
    if before is not None:
        os.fchmod(descriptor, before.st_mode & 0o777)
    like = before or os.fstat(place.folder)
    # Root works on a tree of somebody else, who has to be able to change it afterwards.
    if os.geteuid() == 0 and like.st_uid != 0:
        os.fchown(descriptor, like.st_uid, like.st_gid)


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
