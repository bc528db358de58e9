"""Git commands with limits on time and output, and with a fixed configuration."""

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from activities.workspace.user_repository import UserRepository, read_config, read_pointer, user_config
from tightloop.errors import GitError, StorageFullError, WorkspaceError
from tightloop.host.programs import find_trusted_program, trusted_path

COMMAND_TIMEOUT = timedelta(seconds=120)
CLEANUP_TIMEOUT = timedelta(seconds=5)
STDERR_LIMIT = 1_000
KEPT_ENVIRONMENT = ("TMPDIR",)
"""Variables that git inherits.

It gets no other variables: no worker secrets, no home with settings and no hook's `GIT_DIR`.
"""

# LC_ALL: error texts are compared in English. Optional locks would block the user. Without literal pathspecs a file
# named `*.py` would match others. Objects are never fetched, over any transport.
CLOSED = {
    "LC_ALL": "C",
    "HOME": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_EDITOR": "false",
    "GIT_SSH_COMMAND": "false",
}
# Hooks and fsmonitor run programs named by the repository; a background gc would outlive its command.
FIXED_SETTINGS = (
    "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false", "-c", "gc.auto=0",
    "-c", "maintenance.auto=false",
    "-c", f"core.attributesFile={os.devnull}", "-c", f"core.excludesFile={os.devnull}", "-c", "core.quotePath=false",
    "-c", "submodule.recurse=false", "-c", "diff.ignoreSubmodules=all", "-c", "apply.whitespace=nowarn",
)  # fmt: skip
_NO_ROOM = ("No space left on device", "Disk quota exceeded")


class GitTimeoutError(GitError):
    """Raised when a git command exceeds its time limit and is killed."""


class Outcome(NamedTuple):
    """A git command's result."""

    code: int
    out: bytes
    error: str


@dataclass(frozen=True)
class Git:
    """Runs git commands in one folder, with a fixed environment."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to the allowed ones."""
    timeout: timedelta = COMMAND_TIMEOUT
    """Wall-clock time after which a command and its children are killed."""
    inherit: tuple[int, ...] = ()
    """File descriptors that git's processes keep open, such as the tree's lock."""

    def run(self, *arguments: str, stdin: bytes = b"", timeout: timedelta | None = None) -> bytes:
        """Run a git command and return its output.

        Raises:
            GitError: the command failed or timed out. Retryable.
            StorageFullError: the disk is full.
        """
        outcome = self.attempt(*arguments, stdin=stdin, timeout=timeout)
        if outcome.code != 0:
            if any(phrase in outcome.error for phrase in _NO_ROOM):
                raise StorageFullError.of(self.folder, outcome.error, f"running git {arguments[0]}")
            raise GitError(f"git {arguments[0]} failed in {self.folder} (exit code {outcome.code}): {outcome.error}")
        return outcome.out

    def attempt(self, *arguments: str, stdin: bytes = b"", timeout: timedelta | None = None) -> Outcome:
        """Run a git command and return its result, even if the command failed."""
        limit = timeout or self.timeout
        process = self._start(arguments, stderr=subprocess.PIPE)
        try:
            out, error = process.communicate(stdin, timeout=limit.total_seconds())
        except subprocess.TimeoutExpired:
            raise GitTimeoutError(
                f"git {arguments[0]} in {self.folder} took longer than {limit.total_seconds():g} s and was stopped. "
                "Add large generated folders to .gitignore"
            ) from None
        finally:
            _end(process)
        return Outcome(process.returncode, out, error.decode("utf-8", "replace").strip()[-STDERR_LIMIT:])

    def head(self, *arguments: str, limit_bytes: int, timeout: timedelta) -> tuple[bytes, bool]:
        """Return the start of a command's output, and whether the output is complete.

        The output is complete if git succeeded in time.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        # Nobody reads the errors here, and git would block once a pipe for them is full.
        process = self._start(arguments, stderr=subprocess.DEVNULL)
        out, ended = b"", False
        try:
            out, ended = _read(process, limit_bytes, deadline)
            if ended:
                process.wait(max(0.01, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            _end(process)
        return out, ended and process.returncode == 0

    def with_variables(self, variables: Mapping[str, str]) -> "Git":
        """Return a copy of this object with additional environment variables."""
        return replace(self, variables={**self.variables, **variables})

    def _start(self, arguments: tuple[str, ...], *, stderr: int) -> "subprocess.Popen[bytes]":
        """Start a git command.

        Raises:
            WorkspaceError: git is not installed, or the folder does not exist.
            UntrustedProgramError: git is in the working tree, or another run can write to it.
        """
        environment = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
        program = find_trusted_program("git")
        if program is None:
            raise WorkspaceError("git is not installed on this host. Install git 2.30 or newer")
        tree = Path(self.variables.get("GIT_WORK_TREE", self.folder))
        program.refuse_within((tree,))
        try:
            return subprocess.Popen(
                program.command(*FIXED_SETTINGS, *arguments),
                cwd=self.folder,
                env={**environment, "PATH": trusted_path(tree), **CLOSED, **self.variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                # Its own process group, because git starts helpers that must be killed with it.
                start_new_session=True,
                pass_fds=self.inherit,
            )
        except FileNotFoundError:
            if self.folder.is_dir():
                raise
            raise WorkspaceError(f"the folder {self.folder} does not exist") from None


def split_z(output: bytes) -> list[bytes]:
    """Split the output of a git command that was run with `-z`."""
    return [part for part in output.split(b"\0") if part]


def format_paths(paths: Sequence[bytes], most: int) -> str:
    """Format the first paths for use in a sentence, with the number of remaining paths."""
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(path.decode("utf-8", "backslashreplace") for path in paths[:most]) + more


def _read(process: "subprocess.Popen[bytes]", limit_bytes: int, deadline: float) -> tuple[bytes, bool]:
    """Read output up to a size limit or a deadline. Return the output, and whether it is complete."""
    stream = process.stdout
    assert stream is not None
    collected = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while len(collected) <= limit_bytes:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return bytes(collected), False
            chunk = os.read(stream.fileno(), 1 << 16)
            if not chunk:
                return bytes(collected), True
            collected += chunk
    return bytes(collected[:limit_bytes]), False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and its children and close its pipes."""
    if process.poll() is None:
        # The group, not the process: a helper of git may hold the pipes open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(CLEANUP_TIMEOUT.total_seconds())
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


SHARED = ("objects", "refs", "packed-refs", "info", "shallow")
BOOLEANS = ("filemode", "symlinks", "ignorecase", "precomposeunicode", "sparsecheckout", "sparsecheckoutcone")
CHOICES = {"autocrlf": ("true", "false", "input"), "eol": ("lf", "crlf", "native")}
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
FALLBACK_NAME, FALLBACK_EMAIL = "tightloop", "tightloop@localhost"
LINKS_LOOKED_AT = 200_000
HEAD_BYTES = 8_192


def store_git(store: Path, root: Path | None = None, *, timeout: timedelta = COMMAND_TIMEOUT) -> Git:
    """Create a git runner for the objects of a store.

    With `root`, the runner also accesses the files in that folder.
    """
    variables = {"GIT_DIR": str(store.resolve())}
    if root is not None:
        variables |= {"GIT_WORK_TREE": str(root.resolve())}
        # Only for this git is the store not bare.
        variables |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.bare", "GIT_CONFIG_VALUE_0": "false"}
    return Git(root or store, variables, timeout)


@contextlib.contextmanager
def user_git(
    repository: UserRepository, *, timeout: timedelta = COMMAND_TIMEOUT, inherit: tuple[int, ...] = ()
) -> Iterator[Git]:
    """Yield a git runner for the user's objects, refs, index and HEAD. A changed HEAD is written back on exit.

    Raises:
        WorkspaceError: writing to the repository would change files outside it.
        GitError: another git process has locked HEAD. Retryable.
    """
    check_writable(repository)
    # Not next to the user's git folder, where paths would be shorter: that is inside the tree.
    with tempfile.TemporaryDirectory(prefix="tightloop-git-") as name:
        view = Path(name).resolve()
        # Git reads its settings from GIT_DIR, and those of a repository may name programs to run. So this folder has
        # links to the data only, and settings of our own.
        for shared in SHARED:
            if (repository.common / shared).exists():
                (view / shared).symlink_to(repository.common / shared)
        head = repository.folder / "HEAD"
        before = head.read_bytes()
        (view / "HEAD").write_bytes(before)
        (view / "config").write_text(private_config(repository))
        logs = repository.common / "logs"
        if (logs / "refs").is_dir():
            (view / "logs").mkdir()
            (view / "logs/refs").symlink_to(logs / "refs")
            if (repository.folder / "logs/HEAD").is_file():
                (view / "logs/HEAD").symlink_to(repository.folder / "logs/HEAD")
        identity = {"NAME": "user.name", "EMAIL": "user.email"}
        settings = user_config(repository.folder) | read_config(repository.common / "config")
        fallback = {"NAME": FALLBACK_NAME, "EMAIL": FALLBACK_EMAIL}
        people = {
            f"GIT_{who}_{what}": settings.get(setting, "").strip() or fallback[what]
            for who in ("AUTHOR", "COMMITTER")
            for what, setting in identity.items()
        }
        variables = {
            "GIT_DIR": str(view),
            "GIT_WORK_TREE": str(repository.root.resolve()),
            "GIT_INDEX_FILE": str(repository.folder / "index"),
        }
        try:
            yield Git(repository.root, {**people, **variables}, timeout, inherit)
        finally:
            # Also after an error: a command before it may have moved HEAD, and its commit must not be lost.
            _take_over(head, before, (view / "HEAD").read_bytes())


def filtered_paths(git: Git, paths: list[bytes]) -> list[bytes]:
    """Return the paths for which the repository's attributes require a filter program.

    Filter programs are never run.
    """
    if not paths:
        return []
    named = b"".join(path + b"\0" for path in paths)
    # Through standard input: thousands of paths would exceed the limit for arguments.
    fields = git.run("check-attr", "-z", "--stdin", "filter", stdin=named).split(b"\0")
    # Triples of path, attribute name and value.
    filters = zip(fields[::3], fields[2::3], strict=False)
    return [path for path, value in filters if value not in (b"unspecified", b"unset", b"")]


def private_config(repository: UserRepository) -> str:
    """Return git settings that make the files in our git folder look the same as in the user's repository."""
    local = read_config(repository.common / "config") | read_config(repository.folder / "config.worktree")
    settings = user_config(repository.folder) | local
    if local.get("extensions.refstorage", "files") != "files":
        raise WorkspaceError(
            f"{repository.root} stores its references in the {local['extensions.refstorage']!r:.40} format, but "
            "only the 'files' format is supported"
        )
    sha256 = local.get("extensions.objectformat") == "sha256"
    lines = ["[core]", f"repositoryformatversion = {int(sha256)}", "bare = false", "autocrlf = false"]
    for name in BOOLEANS:
        value = local.get(f"core.{name}", "").lower()
        if value in (*TRUE, *FALSE):
            lines.append(f"{name} = {'true' if value in TRUE else 'false'}")
    for name, choices in CHOICES.items():
        # Line endings follow the user's settings, or every file would look changed to their own git.
        if (value := settings.get(f"core.{name}", "").lower()) in choices:
            lines.append(f"{name} = {value}")
    if sha256:
        lines += ["[extensions]", "objectformat = sha256"]
    return "\n".join(lines) + "\n"


def _take_over(head: Path, before: bytes, after: bytes) -> None:
    """Replace the user's HEAD by renaming its lock file, as git does."""
    if before == after:
        return
    lock = head.with_name("HEAD.lock")
    try:
        descriptor = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        raise GitError(f"{lock} exists: another git process is using the repository. Temporal will retry") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(after)
    lock.replace(head)


def check_writable(repository: UserRepository) -> None:
    """Reject a repository that belongs to another tree or has symlinks.

    Writes to such a repository could end up elsewhere.

    Raises:
        WorkspaceError: the repository is rejected.
    """
    root, folder, common = repository.root, repository.folder, repository.common
    entry = root.resolve() / ".git"
    if folder != entry:
        # As in git, a linked worktree refers back to its tree, and a submodule does so in its settings.
        back = os.fsdecode(read_pointer(folder / "gitdir"))
        tree = read_config(folder / "config").get("core.worktree", "")
        if not (back and Path(back).absolute() == entry) and not (tree and (folder / tree).resolve() == entry.parent):
            raise WorkspaceError(
                f"the git folder {folder} does not belong to {root}: it refers to another working tree or to none. "
                "Nothing was written to the git folder"
            )
    if common not in (folder, folder.parent.parent):
        raise WorkspaceError(
            f"{folder / 'commondir'} points to {common}, which is not a parent folder. Nothing was written to {common}"
        )
    # All locations that a branch or a commit may write to.
    places = [common / name for name in ("objects", "refs", "logs", "packed-refs", "worktrees")]
    places += [folder / name for name in ("HEAD", "index", "logs", "logs/HEAD")]
    if (common / "objects").is_dir():
        places += (common / "objects").iterdir()
    entries = 0
    for below in (common / "refs", common / "logs"):
        for name, folders, files in os.walk(below):
            entries += len(folders) + len(files)
            if entries > LINKS_LOOKED_AT:
                raise WorkspaceError(
                    f"{below} has more than {LINKS_LOOKED_AT} entries. Pack the references: git pack-refs --all"
                )
            places += [Path(name, entry) for entry in (*folders, *files)]
    for location in places:
        if location.is_symlink():
            raise WorkspaceError(
                f"{location} is a link, so nothing was written through it. Replace the link with its target"
            )
