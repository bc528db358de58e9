"""Detection of delivered content that was copied from a later commit or from an installed package."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from activities.proof.port import DeliveredFile
from activities.workspace.git_command import Git, user_git
from activities.workspace.user_repository import UserRepository
from tightloop.errors import GitError, NotARepositoryError, WorkspaceError

COMMITS_LIMIT = 500
"""Maximum number of later commits to compare, newest first."""
OUTPUT_BYTES = 16_000_000
TIMEOUT = timedelta(seconds=20)
BLOBS_LIMIT = 40
"""Maximum number of versions of changed files that are searched for hunks."""
HUNK_LINES, HUNK_CHARACTERS = 3, 60
"""Minimum number of lines and characters of a hunk to compare. Smaller hunks may be the same by chance."""
FILE_BYTES = 40
"""Minimum size of a file to compare. Smaller files may be the same by chance."""
_RAW = re.compile(r"^:\d+ \d+ [0-9a-f]+ (?P<blob>[0-9a-f]+) [A-Z]\d*\t(?P<path>.*)$")
_SYSTEM_PACKAGES = ("usr/lib/python3*/dist-packages", "usr/local/lib/python3*/*-packages")


def list_later_commits(root: Path) -> tuple[str, ...]:
    """Return commits from refs and reflogs that are not in the checked-out history, newest first.

    Results of earlier runs are left out, because repeating them does not copy anybody's work.
    """
    results = ("--invert-grep", "--grep=^Tightloop-Run: ")
    arguments = ("rev-list", f"--max-count={COMMITS_LIMIT}", *results, "--all", "--reflog", "--not", "HEAD")
    # A repository without a commit, or one that git cannot read, has no later ones.
    with suppress(GitError, WorkspaceError, NotARepositoryError), user_git(UserRepository(root)) as git:
        outcome = git.attempt(*arguments, timeout=TIMEOUT)
        return tuple(outcome.out.decode().split()) if outcome.code == 0 else ()
    return ()


def find_copies(
    root: Path, commits: Iterable[str], environments: Iterable[str], delivered: Mapping[str, DeliveredFile]
) -> tuple[str, ...]:
    """Return one line for each delivered file or hunk that was copied.

    Args:
        root: working tree.
        commits: later commits that existed at the start. An agent's own commits do not count.
        environments: folders of installed packages, relative to `root`.
        delivered: changed files by path.
    """
    files = {path: file for path, file in delivered.items() if len(file.content.strip()) >= FILE_BYTES}
    copies = dict(_find_installed(root, environments, files))
    later = tuple(commits)
    others = {path: file for path, file in files.items() if path not in copies}
    if later and others:
        with suppress(GitError, WorkspaceError, NotARepositoryError), user_git(UserRepository(root)) as git:
            copies |= dict(
                _find_committed(git, later, {path: file for path, file in files.items() if path not in copies})
            )
    return tuple(f"{path}: {origin}" for path, origin in copies.items())


def _find_committed(
    git: Git, commits: tuple[str, ...], files: Mapping[str, DeliveredFile]
) -> Iterator[tuple[str, str]]:
    arguments = ("log", "--no-walk=unsorted", "--raw", "-m", "--root", "--no-renames", "--no-abbrev", "--format=%h %s")
    out, _ = git.head(*arguments, *commits, limit_bytes=OUTPUT_BYTES, timeout=TIMEOUT)
    commit, by_blob, by_path = "", dict[str, str](), dict[str, list[tuple[str, str]]]()
    for line in out.decode("utf-8", "replace").splitlines():
        if match := _RAW.match(line):
            by_blob.setdefault(match["blob"], commit)
            by_path.setdefault(match["path"], []).append((match["blob"], commit))
        elif line:
            commit = line
    blobs_left = BLOBS_LIMIT
    for path, file in files.items():
        if origin := by_blob.get(file.blob):
            yield path, f"is identical to the file in the later commit {origin}"
            continue
        hunks = [hunk for hunk in _hunks(file) if hunk not in file.before]
        for blob, origin in by_path.get(path, ()) if hunks else ():
            blobs_left -= 1
            if blobs_left < 0:
                return
            content = git.attempt("cat-file", "blob", blob, timeout=TIMEOUT).out
            if any(hunk in content for hunk in hunks):
                yield path, f"has lines that are identical to lines in the later commit {origin}"
                break


def _hunks(file: DeliveredFile) -> Iterator[bytes]:
    old, new = file.before.splitlines(keepends=True), file.content.splitlines(keepends=True)
    for tag, _, _, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        lines = [line for line in new[start:end] if line.strip()]
        text = b"".join(new[start:end])
        if tag != "equal" and len(lines) >= HUNK_LINES and len(text.strip()) >= HUNK_CHARACTERS:
            yield text


def _find_installed(
    root: Path, environments: Iterable[str], files: Mapping[str, DeliveredFile]
) -> Iterator[tuple[str, str]]:
    # The installed version of the work itself, as opposed to any library.
    folders = [folder for name in environments for folder in (root / name).glob("lib/python3*/site-packages")]
    folders += [folder for pattern in _SYSTEM_PACKAGES for folder in Path("/").glob(pattern)]
    modules = [root / name for name in environments if name.rpartition("/")[2] == "node_modules"]
    for path, file in files.items():
        inner = re.sub(r"^(?:src|lib|python)/", "", path)
        package = next(iter(re.findall(rb'"name"\s*:\s*"([^"]+)"', _read(root / "package.json"))), b"").decode()
        places = [folder / inner for folder in folders] if path.endswith(".py") else []
        places += [folder / package / path for folder in modules] if package else []
        for place in places:
            if _read(place) == file.content:
                yield path, f"is identical to the installed file {place}"
                break


def _read(path: Path) -> bytes:
    with suppress(OSError):
        if path.is_file() and path.stat().st_size < OUTPUT_BYTES:
            return path.read_bytes()
    return b""
