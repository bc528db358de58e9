"""File access, listing and search for the coder's tools."""

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from activities.coder.port import FileChange, ToolError
from activities.plan.files import READ_BYTES, resolve_path
from activities.process import Reason, run_process
from activities.process.start import ProcessRequest
from activities.workspace.store.walk import OPEN_FILE, OPEN_FOLDER
from activities.workspace.user_repository import list_files
from tightloop.coder.model import cut
from tightloop.host.programs import TrustedProgram, find_trusted_program, own_python
from tightloop.host.worktree import read_worktree
from tightloop.plan.document import Policy
from tightloop.safety.scope import fits
from tightloop.value import format_count, shorten

_PLACEHOLDER = re.compile(rb"\[(?:secret|pii):[a-z0-9-]+\]")


def has_placeholder(text: str) -> bool:
    """Return whether the text contains a placeholder that hides a secret from the model."""
    return _PLACEHOLDER.search(text.encode("utf-8", "replace")) is not None


def check_placeholders(before: bytes, after: bytes) -> None:
    """Raise an error if a write would replace a secret with its placeholder.

    Raises:
        ToolError: the file would contain more placeholders than before.
    """
    if len(_PLACEHOLDER.findall(after)) > len(_PLACEHOLDER.findall(before)):
        placeholder = _PLACEHOLDER.findall(after)[0].decode()
        raise ToolError(
            f"{placeholder} stands for text that is hidden from you. Change only the lines around the placeholder"
        )


def line_ends_of(before: bytes | None, text: str) -> str:
    """Give text the CRLF line endings and the byte order mark of the previous content."""
    if before is None:
        return text
    # Only if all lines agree: in a file with mixed line endings the text stays as the model wrote it.
    if before.count(b"\n") and before.count(b"\r\n") == before.count(b"\n"):
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    is_marked = before.startswith(b"\xef\xbb\xbf") and not text.startswith("\ufeff")
    return f"\ufeff{text}" if is_marked else text


BINARY_BYTES = 8_000
"""Number of bytes at the start of a file. Git treats a file as binary if one of them is zero."""
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PROTECTED = Policy().protect
"""Paths that neither plan steps nor the coder may change."""
_KINDS = {
    stat.S_IFLNK: "a symbolic link. Use the path of the link's target",
    stat.S_IFDIR: "a folder. Use list_files to see its contents",
    stat.S_IFIFO: "a named pipe, not a file",
    stat.S_IFSOCK: "a socket, not a file",
    stat.S_IFCHR: "a device, not a file",
    stat.S_IFBLK: "a device, not a file",
}


class FolderEntry(NamedTuple):
    """An entry in a folder. The folder is kept open."""

    folder: int
    """The open file descriptor."""
    name: str
    path: str
    """The path below the root, for use in messages."""

    def state(self) -> os.stat_result | None:
        """Return the lstat result for the path, or None if the path does not exist."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None


def digest(content: bytes | None) -> str:
    """Return the SHA-256 of a file's content, or "" if there is no file."""
    return "" if content is None else hashlib.sha256(content).hexdigest()


def relative(root: Path, path: str) -> str:
    """Return a path relative to the root.

    Absolute paths below the root are accepted, because commands print such paths.
    """
    worktree = read_worktree(root)
    inside = path.removeprefix(f"{root}/")
    inside = inside.removeprefix(f"{worktree.workspace}/") if worktree is not None else inside
    return str(PurePosixPath(inside)) if inside and not inside.startswith("/") else inside


def check_writable(path: str) -> None:
    """Raise an error if a path is protected.

    Raises:
        ToolError: the path is protected.
    """
    # Case-folded, because on macOS `.GIT` is the same folder.
    if fits(PROTECTED, path, folded=True):
        raise ToolError(
            f"{format_path(path)} is protected: only a person may change this file. Continue without changing the file"
        )


def read_file(root: Path, path: str, *, limit: int = READ_BYTES) -> bytes | None:
    """Return the bytes of a regular file, or None if it does not exist.

    Raises:
        ToolError: the file is not a regular file, has more than `limit` bytes, or is private.
        InvalidRequestError: the path leaves the tree or crosses a symlink.
    """
    worktree = read_worktree(root)
    # What is read here becomes part of prompts and of stored conversations.
    if worktree is not None and path in worktree.copies:
        raise ToolError(f"{format_path(path)} is a private file that only commands may read")
    with open_entry(root, path) as location:
        return None if location is None else read_entry(location, limit=limit)


def read_entry(location: FolderEntry, *, limit: int = READ_BYTES) -> bytes | None:
    status = location.state()
    if status is None:
        return None
    # Before opening: opening a device may have side effects, and opening a pipe may block.
    _check_file(location, status, limit)
    try:
        descriptor = os.open(location.name, OPEN_FILE, dir_fd=location.folder)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        # The file may have been replaced since the stat.
        _check_file(location, os.fstat(descriptor), limit)
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ToolError(f"{format_path(location.path)} is still growing. Try again when no program is writing to it")
    return content


def write_change(root: Path, change: FileChange, temporary: str) -> None:
    """Apply a change atomically and durably.

    Args:
        root: the top of the tree.
        change: the change to one file.
        temporary: name of the new file until it is complete. If a file with this name exists, a dead
            process left it behind.

    Raises:
        ToolError: the file no longer has the expected content or is not a regular file.
        InvalidRequestError: the path leaves the tree or crosses a symlink.
        OSError: the file cannot be written.
    """
    check_writable(change.path)
    with open_entry(root, change.path, make=change.after is not None) as location:
        if location is None:
            raise ToolError(f"the parent folder of {format_path(change.path)} no longer exists")
        # O_EXCL would fail on the leftover.
        _remove(location.folder, temporary)
        # A person or a process in the background may have edited it after the tool read it.
        if digest(read_entry(location)) != digest(change.before):
            raise ToolError(f"{format_path(change.path)} has changed since you read it. Read the file again")
        if change.after is None:
            os.unlink(location.name, dir_fd=location.folder)
        else:
            _replace(location, change.after, temporary, executable=change.executable)
        # A rename or removal is durable only after that (fsync(2)).
        os.fsync(location.folder)


def remove_temporary(root: Path, path: str, temporary: str) -> None:
    """Remove a temporary file that a dead process left behind."""
    with open_entry(root, path) as location:
        if location is not None:
            _remove(location.folder, temporary)


@contextlib.contextmanager
def open_entry(root: Path, path: str, *, make: bool = False) -> Iterator[FolderEntry | None]:
    """Yield an entry whose folder is kept open, or None if the folder does not exist.

    Args:
        root: the top of the tree. Symlinks are only followed in this path.
        path: the path below the root.
        make: whether to create missing folders.

    Raises:
        InvalidRequestError: the path is not below the root, crosses a symlink or enters a git folder.
        ToolError: a folder was just replaced with a symlink.
    """
    # Only for a good error message: O_NOFOLLOW below guarantees that no symlink is followed.
    resolve_path(root, path)
    *folders, name = PurePosixPath(path).parts
    with contextlib.ExitStack() as stack:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        for folder in folders:
            inner = _enter(descriptor, folder, path, make=make)
            if inner is None:
                yield None
                return
            stack.callback(os.close, inner)
            descriptor = inner
        yield FolderEntry(descriptor, name, path)


def is_binary(content: bytes) -> bool:
    """Return whether git would treat the content as binary."""
    return b"\0" in content[:BINARY_BYTES]


def format_path(path: str) -> str:
    """Format a path for messages. Paths with unprintable characters or leading or trailing spaces are quoted."""
    plain = os.fsencode(path).decode("utf-8", "backslashreplace")
    return plain if plain.isprintable() and plain == plain.strip() else repr(plain)


def _enter(parent: int, folder: str, path: str, *, make: bool) -> int | None:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, dir_fd=parent)
    try:
        return os.open(folder, OPEN_FOLDER, dir_fd=parent)
    except FileNotFoundError:
        return None
    except (NotADirectoryError, OSError) as error:
        # ELOOP: a symlink.
        raise ToolError(f"cannot open {format_path(path)}: {folder!r} is not a folder ({error.strerror})") from error


def _check_file(location: FolderEntry, status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{format_path(location.path)} is {_KINDS.get(stat.S_IFMT(status.st_mode), 'not a file')}")
    if status.st_size > limit:
        size, most = f"{status.st_size:,}", f"{limit:,}"
        raise ToolError(
            f"{format_path(location.path)} is {size} bytes long, but the limit is {most} bytes. Use run_command to "
            "read part of the file"
        )


def _replace(location: FolderEntry, content: bytes, temporary: str, *, executable: bool) -> None:
    before = location.state()
    # The umask applies, as for a file that an editor creates.
    descriptor = os.open(temporary, NEW_FILE, 0o777 if executable else 0o666, dir_fd=location.folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            # Keep the mode of the old file, and the owner of the old file or its folder.
            if before is not None:
                os.fchmod(descriptor, before.st_mode & 0o777)
            like = before or os.fstat(location.folder)
            # When root works on another user's tree, that user must be able to edit the file afterwards.
            if os.geteuid() == 0 and like.st_uid != 0:
                os.fchown(descriptor, like.st_uid, like.st_gid)
            # Before the rename: otherwise the name could refer to an empty file after a power loss.
            os.fsync(descriptor)
        os.rename(temporary, location.name, src_dir_fd=location.folder, dst_dir_fd=location.folder)
    except BaseException:
        _remove(location.folder, temporary)
        raise


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


GLOB_CHARACTERS = 500


def find_files(root: Path, path: str | None, glob: str | None) -> list[str]:
    """Return the files and symlinks below a folder that git does not ignore, sorted by path.

    Args:
        root: the top of the tree.
        path: a folder or a file. None or `.` selects everything.
        glob: a pattern for whole paths, or for names if it has no slash. None matches everything.

    Raises:
        ToolError: the path does not exist or the pattern is too long.
        GitError: git did not list the files in time.
    """
    names = sorted(list_files(root))
    top = "" if path is None else relative(root, path).removesuffix("/")
    if top not in ("", "."):
        names = [name for name in names if name == top or name.startswith(f"{top}/")]
        if not names:
            raise ToolError(f"{format_path(top)} does not exist, or git ignores it. Call list_files without a path")
    if not glob:
        return names
    if len(glob) > GLOB_CHARACTERS:
        raise ToolError(f"the glob is longer than {GLOB_CHARACTERS} characters. Use a path instead")
    pattern = glob if "/" in glob else f"**/{glob}"
    return [name for name in names if fits((pattern,), name)]


PATTERN_CHARACTERS = 2_000
FILES_LIMIT = 20_000
FILE_BYTES = 2 * 1024 * 1024
LINES_LIMIT = 200
SECONDS = 10.0
OUTPUT_BYTES = 1024 * 1024
# ARG_MAX for arguments and environment together is 2 MB on Linux and 1 MB on macOS.
ARGUMENT_BYTES = 200_000
COLUMNS = 500
NO_MATCH = 1
_BY_RE = Path(__file__).with_name("by_re.py")


@dataclass(frozen=True, kw_only=True)
class Query:
    """The parameters of a search."""

    pattern: str
    literal: bool = False
    ignore_case: bool = False
    context: int = 0
    seconds: float = SECONDS
    """Time limit for each process. ripgrep runs once per 200 kB of file names."""


def search_files(
    root: Path,
    names: Sequence[str],
    query: Query,
    *,
    cancelled: Callable[[], bool],
    with_ripgrep: bool = True,
) -> str:
    """Search files and return the matching lines as `path:line:text`.

    Args:
        root: the top of the tree.
        names: files and symlinks below the root. Symlinks are skipped.
        query: the search parameters.
        cancelled: polled during the search.
        with_ripgrep: whether to use ripgrep if it is installed.

    Raises:
        ToolError: the pattern is invalid or the search timed out.
    """
    if not query.pattern or len(query.pattern) > PATTERN_CHARACTERS:
        raise ToolError(f"the pattern must be between 1 and {PATTERN_CHARACTERS} characters long")
    # Symlinks may leave the tree, and files may have been deleted.
    files = [name for name in names[:FILES_LIMIT] if _is_plain(root / name)]
    ripgrep = find_trusted_program("rg") if with_ripgrep else None
    if ripgrep is None:
        outputs = _by_re(root, files, query, cancelled)
    else:
        outputs = _by_ripgrep(root, files, query, cancelled, ripgrep)
    lines = list(_lines(outputs, set(map(os.fsencode, files))))
    marks = (
        [f"[only the first {LINES_LIMIT} lines are shown. Narrow the pattern or the path]"]
        if len(lines) > LINES_LIMIT
        else []
    )
    left = len(names) - FILES_LIMIT
    marks += [f"[{format_count(left, 'file')} not searched. Specify a path or a glob]"] if left > 0 else []
    return "\n".join((*lines[:LINES_LIMIT], *marks)) or "no match"


def _is_plain(path: Path) -> bool:
    try:
        return path.is_file() and not path.is_symlink() and path.stat().st_size <= FILE_BYTES
    except (OSError, ValueError):
        return False


def _lines(outputs: Iterator[bytes], names: Set[bytes]) -> Iterator[str]:
    """Parse the output of ripgrep (`path NUL number : text`) and yield its lines up to the limit."""
    number = 0
    for output in outputs:
        rest = output
        # One line beyond the limit shows that there are more.
        while number <= LINES_LIMIT:
            path, nul, rest = rest.partition(b"\0")
            # A name may be preceded by group separators and by notices about binary matches.
            while path not in names and b"\n" in path:
                path = path.partition(b"\n")[2]
            line, end, rest = rest.partition(b"\n")
            if not (nul and end):
                break
            number += 1
            yield f"{format_path(os.fsdecode(path))}:{cut(line.decode('utf-8', 'replace').rstrip())}"


def _by_ripgrep(
    root: Path, files: Sequence[str], query: Query, cancelled: Callable[[], bool], program: TrustedProgram
) -> Iterator[bytes]:
    # A ripgrep configuration could name a preprocessor, which would run outside the sandbox.
    options = ["--no-config", "--no-messages", "--color=never", "--no-heading", "--with-filename", "--line-number"]
    options += ["--null", "--sort=path", f"--max-columns={COLUMNS}", "--max-columns-preview", "--crlf"]
    options += [f"--context={query.context}", *(["--fixed-strings"] if query.literal else [])]
    options += ["--ignore-case"] if query.ignore_case else []
    for batch in _batches(files):
        # A pattern or a name may begin with a dash.
        arguments = (*options, "--regexp", query.pattern, "--", *batch)
        yield _output(_request(root, query, program, arguments), cancelled)


def _by_re(root: Path, files: Sequence[str], query: Query, cancelled: Callable[[], bool]) -> Iterator[bytes]:
    order = {**asdict(query), "files": files, "lines": LINES_LIMIT + 1, "columns": COLUMNS}
    with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="tightloop-search-") as file:
        json.dump(order, file)
        file.flush()
        # Isolated mode: neither the folder nor the environment affects its imports.
        request = _request(root, query, own_python(), ("-I", "-S", str(_BY_RE)))
        yield _output(replace(request, stdin=Path(file.name)), cancelled)


def _request(root: Path, query: Query, program: TrustedProgram, arguments: tuple[str, ...]) -> ProcessRequest:
    return ProcessRequest(
        program=program, arguments=arguments, cwd=root, wall_limit_s=query.seconds, output_bytes=OUTPUT_BYTES
    )


def _output(request: ProcessRequest, cancelled: Callable[[], bool]) -> bytes:
    result = run_process(request, cancelled=cancelled, started=lambda _pid: None)
    if result.reason is Reason.WALL_LIMIT:
        raise ToolError(
            f"the search timed out after {request.wall_limit_s:g} s. Simplify the pattern or specify a path"
        )
    if result.reason is not Reason.EXITED or result.exit_code not in (0, NO_MATCH):
        reason = result.message or result.output.decode("utf-8", "replace").strip() or result.reason.value
        raise ToolError(f"the search failed: {shorten(reason, 400)}")
    return result.output


def _batches(files: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name in files:
        size += len(os.fsencode(name)) + 16
        if batch and size > ARGUMENT_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
    if batch:
        yield batch
