"""The trees of a repository, read without running anything that the repository names.

Git works in a folder of ours, with its own configuration, and only reads the objects of the repository. So no filter,
hook, file-system monitor or remote of a repository that somebody else made is ever started.
"""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tightloop.client.proof.signing import global_setting
from tightloop.errors import InvalidRequestError, ProofError
from tightloop.host.programs import find_trusted, trusted_path

GIT_SECONDS = 600.0
# All bytes as they are on disk, whatever `.gitattributes` says.
_ATTRIBUTES = "* -text -ident -filter !eol !working-tree-encoding !diff\n"
_CONFIG = (
    "core.bare=false",
    "core.fileMode=true",
    "core.symlinks=true",
    "core.autocrlf=false",
    "core.bigFileThreshold=16m",
    "core.protectNTFS=false",
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "gc.auto=0",
)
_ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
}
_GITLINK = b"160000"
# No user has a file of this name.
_SEED = b".tightloop-seed"
NESTING_LIMIT = 100


@dataclass(frozen=True)
class Repository:
    """A working tree with a git folder, seen from a git folder of ours."""

    root: Path
    """Top of the working tree."""
    own: Path
    """Our git folder."""
    objects: Path
    """Where the repository keeps its objects."""
    ignored: str
    """The user's own file of patterns to ignore, where their git configuration names one."""

    def head(self) -> str:
        """Return the tree of HEAD; empty before the first commit, or where its objects are not those of SHA-1."""
        # Only names are read here, so nothing of the repository's configuration acts.
        found = self._git("rev-parse", "--verify", "--quiet", "HEAD", git_dir=self.root / ".git")
        commit = found.stdout.decode("ascii", "replace").strip()
        if found.returncode != 0 or len(commit) != 40:
            return ""
        tree = self._git("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")
        return tree.stdout.decode("ascii", "replace").strip() if tree.returncode == 0 else ""

    def on_disk(self) -> str:
        """Return the tree of the files as they are on disk, without what is ignored and not tracked.

        Nested repositories and submodules count as plain files, as in the snapshots of episodes.

        Raises:
            ProofError: git cannot read a file.
        """
        if head := self.head():
            self._must("read-tree", head)
        self._enter_nested()
        self._must("add", "--all", ".")
        return self._must("write-tree").decode("ascii").strip()

    def has(self, tree: str) -> bool:
        """Return whether the repository holds a tree."""
        kind = self._git("cat-file", "-t", tree)
        return kind.returncode == 0 and kind.stdout.strip() == b"tree"

    def sha256_of(self, tree: str, path: str) -> str:
        """Return the sha256 of a file of a tree; empty where it is not in there."""
        if "\0" in path:
            return ""
        found = self._git("cat-file", "blob", f"{tree}:{path}")
        return hashlib.sha256(found.stdout).hexdigest() if found.returncode == 0 else ""

    def check_out(self, tree: str, folder: Path) -> None:
        """Write the files of a tree into a folder that is new, byte for byte.

        Raises:
            ProofError: git cannot.
        """
        self._must("read-tree", tree)
        self._must("checkout-index", "--all", f"--prefix={folder}/")

    def _enter_nested(self) -> None:
        """Make git enter nested repositories: it does where its index has an entry below them, of a file that is gone.

        Without that it would record a link to their commit (treat_directory in git's dir.c).
        """
        for _ in range(NESTING_LIMIT):
            listed = self._must("ls-files", "--stage", "-z").split(b"\0")
            links = [line.partition(b"\t")[2] + b"/" for line in listed if line.startswith(_GITLINK)]
            listed = self._must("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
            nested = links + [path for path in listed if path.endswith(b"/")]
            if not nested:
                return
            if links:
                self._must("update-index", "-z", "--force-remove", "--stdin", stdin=_join(path[:-1] for path in links))
            empty = self._must("hash-object", "-w", "--stdin").strip()
            seeds = _join(b"100644 " + empty + b"\t" + path + _SEED for path in nested)
            self._must("update-index", "--add", "--replace", "-z", "--index-info", stdin=seeds)
        raise ProofError(f"{self.root} has repositories nested more than {NESTING_LIMIT} deep")

    def _must(self, *arguments: str, stdin: bytes = b"") -> bytes:
        done = self._git(*arguments, stdin=stdin)
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no reason given"]
            raise ProofError(f"the files of {self.root} cannot be read: git {arguments[0]}: {said[0]}")
        return done.stdout

    def _git(
        self, *arguments: str, stdin: bytes = b"", git_dir: Path | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        program = find_trusted("git")
        if program is None:
            raise ProofError("git is not installed on this host. Install git 2.30 or newer")
        program.refuse_within((self.root,))
        kept = {name: os.environ[name] for name in ("HOME", "XDG_CONFIG_HOME", "TMPDIR") if name in os.environ}
        kept["PATH"] = trusted_path(self.root)
        place = {"GIT_DIR": str(git_dir or self.own), "GIT_WORK_TREE": str(self.root)}
        # Quoted, because a colon in the path would separate two places.
        quoted = str(self.objects).replace("\\", "\\\\").replace('"', '\\"')
        place["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = f'"{quoted}"'
        chosen = (*_CONFIG, f"core.excludesFile={self.ignored}") if self.ignored else _CONFIG
        settings = [part for setting in chosen for part in ("-c", setting)]
        try:
            return subprocess.run(
                program.command(*settings, *arguments),
                cwd=self.root,
                env={**kept, **_ENVIRONMENT, **place},
                input=stdin,
                capture_output=True,
                timeout=GIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProofError(f"git {arguments[0]} took longer than {GIT_SECONDS:g} s in {self.root}") from None


@contextmanager
def open_repository(root: Path) -> Iterator[Repository]:
    """Yield the repository whose working tree has its top at `root`.

    Raises:
        InvalidRequestError: it is not the top of a git working tree.
    """
    root = root.resolve()
    folder = _git_folder(root)
    if folder is None:
        raise InvalidRequestError(f"{root} is not the top of a git working tree. Name it with --repo")
    pointer = folder / "commondir"
    common = (folder / os.fsdecode(pointer.read_bytes().strip())).resolve() if pointer.is_file() else folder
    ignored = global_setting("core.excludesFile", kind="path")
    with tempfile.TemporaryDirectory(prefix="tightloop-verify-") as made:
        own = Path(made)
        for name in ("refs", "objects", "info"):
            (own / name).mkdir()
        (own / "HEAD").write_text("ref: refs/heads/none\n")
        (own / "config").write_text("[core]\nrepositoryFormatVersion = 0\n")
        (own / "info" / "attributes").write_text(_ATTRIBUTES)
        excludes = common / "info" / "exclude"
        (own / "info" / "exclude").write_bytes(excludes.read_bytes() if excludes.is_file() else b"")
        yield Repository(root, own, common / "objects", ignored)


def _git_folder(root: Path) -> Path | None:
    entry = root / ".git"
    if entry.is_dir():
        return entry
    try:
        # Anything else, such as a pipe, could keep a reader waiting for ever.
        kind, _, target = entry.read_bytes()[:4096].partition(b":") if entry.is_file() else (b"", b"", b"")
    except OSError:
        return None
    folder = (root / os.fsdecode(target.strip())).resolve()
    return folder if kind == b"gitdir" and folder.is_dir() else None


def _join(parts: Iterable[bytes]) -> bytes:
    return b"".join(part + b"\0" for part in parts)
