"""Host paths that are visible in the sandbox: the system, Python and the programs in PATH, but never a whole home."""

import functools
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from activities.process import ProcessRequest, rustup_home
from activities.sandbox.port import SandboxSpec, Scratch
from tightloop.host import state_home
from tightloop.host.worktree import Worktree, read_worktree

SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Paths of the system that are symlinks into /usr on a merged system and separate folders on others."""
SYSTEM_SETTINGS = (
    "alternatives", "ca-certificates", "fonts", "group", "host.conf", "hosts", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "localtime", "magic", "mime.types", "nsswitch.conf", "passwd", "pki/ca-trust/extracted",
    "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "protocols", "services", "ssl/certs",
    "ssl/openssl.cnf", "terminfo", "timezone",
    # Without these, PHP has no extensions, and neither Java nor Maven starts where Debian installed it.
    "java-*-openjdk", "maven/m2.conf", "maven/logging", "php.d", "php.ini", "php/*/cli", "php/*/mods-available",
)  # fmt: skip
"""Parts of /etc without secrets, as globs. They exclude the shadow file, private keys and server settings."""

# Without its pyvenv.cfg a virtual environment's Python uses the packages of the base installation.
_BESIDE_PROGRAMS = ("lib", "lib64", "libexec", "pyvenv.cfg")
"""Entries next to a program's folder to include. `share` is never included, because programs keep logins there next to
~/.local/bin.
"""
# uv and pyenv install outside /usr, often below the home.
_PYTHON_PARTS = ("bin", "lib", "lib64", "include", "share")
_MODULE_TREE = re.compile(r"^\s*worktree\s*=\s*(\S.*?)\s*$", re.MULTILINE)
_PYTHON_LIBRARY = re.compile(r"^python3\.\d+t?$")


@dataclass(frozen=True, kw_only=True)
class Access:
    """The paths that a command may read or write."""

    root: Path
    path: str
    program: str
    writable: tuple[Path, ...]
    readable: tuple[Path, ...] = ()
    content: Path | None = None
    mounts: tuple[tuple[Path, Path], ...] = ()
    git: Path | None = None
    scratch: Scratch = field(default_factory=Scratch)

    @functools.cached_property
    def programs(self) -> tuple[Path, ...]:
        """Return the folders of Python and the program, and those on the PATH."""
        folders = (
            *python_folders(),
            *project_python(self.root),
            *path_folders(self.path, self.root),
            *program_folders(self.program, self.path, self.root),
            *filter(None, (rustup_home(),)),
        )
        # Bubblewrap from 0.12 on refuses to mount over a symlink, such as lib64 in a virtual environment.
        return tuple(folder for folder in dict.fromkeys(folders) if not any(map(folders.__contains__, folder.parents)))

    @functools.cached_property
    def states(self) -> Mapping[Path, tuple[Path, ...]]:
        """Return the parts of the state home that must be hidden because they are in visible folders."""
        folders = dict.fromkeys((*self.programs, *self.writable, *self.readable))
        home = os.path.realpath(state_home())
        return {folder: tuple(state_within(home, folder)) for folder in folders}


def command_access(spec: SandboxSpec, path: str, *folders: Path) -> Access:
    """Determine the paths that a command may access. `folders` are additional writable folders."""
    return Access(
        root=spec.root,
        path=path,
        program=spec.argv[0],
        writable=(spec.root, *folders, *spec.writable),
        readable=spec.readable,
        content=spec.content,
        mounts=spec.mounts,
        git=spec.git,
    )


def at_workspace(spec: SandboxSpec) -> SandboxSpec:
    """Change a spec so that the command sees its worktree at the workspace's path.

    If the command does not run in a worktree, the spec is returned unchanged.
    """
    worktree = read_worktree(spec.root)
    if worktree is None:
        return spec
    readable, mounts = _move_paths(spec.root, worktree, spec.readable, spec.mounts)
    # In a checkout, the command sees the workspace's own git folder: an agent could have changed the private one.
    own = spec.content is None
    return replace(
        spec,
        root=Path(worktree.workspace),
        content=spec.content or spec.root,
        readable=readable,
        mounts=(*mounts, *(_git_mounts(worktree) if own else ())),
        git=Path(worktree.git) if own else None,
    )


def _agent_at_workspace(access: Access, root: Path) -> Access:
    worktree = read_worktree(root)
    if worktree is None:
        return access
    workspace = Path(worktree.workspace)
    writable = tuple(workspace if path == root else path for path in access.writable)
    readable, mounts = _move_paths(root, worktree, tuple(path for path in access.readable if path != root), ())
    return replace(
        access,
        root=workspace,
        writable=writable,
        readable=readable if root in access.writable else (workspace, *readable),
        content=root,
        mounts=(*mounts, *_git_mounts(worktree)),
        git=Path(worktree.git),
    )


def _move_paths(
    root: Path, worktree: Worktree, readable: tuple[Path, ...], mounts: tuple[tuple[Path, Path], ...]
) -> tuple[tuple[Path, ...], tuple[tuple[Path, Path], ...]]:
    """Move readable paths and mounts to the workspace's path.

    The result also includes mounts for the worktree's environments.
    """
    workspace = Path(worktree.workspace)
    inside = {path: workspace / path.relative_to(root) for path in readable if path.is_relative_to(root)}
    environments = worktree.present_environments()
    targets = {target for _, target in environments}
    moved = (
        (source, workspace / target.relative_to(root) if target.is_relative_to(root) else target)
        for source, target in (*mounts, *inside.items())
    )
    # A path in the workspace would be mounted over the worktree's own content.
    others = tuple(path for path in readable if path not in inside and not path.is_relative_to(workspace))
    return others, (*environments, *(mount for mount in moved if mount[1] not in targets))


def _git_mounts(worktree: Worktree) -> Iterator[tuple[Path, Path]]:
    yield Path(worktree.link), Path(worktree.workspace, ".git")
    yield from ((Path(source), Path(target)) for source, target in worktree.mounts if Path(source).exists())


def relocate(spec: SandboxSpec) -> SandboxSpec:
    """Adapt a spec to a platform that has no mounts.

    The command works in `content`, where symlinks replace `mounts`.
    """
    if spec.content is None:
        return spec
    for source, target in spec.mounts:
        link = spec.content / target.relative_to(spec.root)
        if not link.exists():
            link.symlink_to(source)
    return replace(
        spec,
        root=spec.content,
        content=None,
        mounts=(),
        readable=(*spec.readable, *(source for source, _ in spec.mounts)),
    )


def agent_access(request: ProcessRequest, writable: tuple[Path, ...], readable: tuple[Path, ...]) -> Access:
    """Determine the paths that an agent may access. On Linux, it sees its worktree at the workspace's path."""
    access = Access(
        root=request.cwd,
        path=request.environment.get("PATH") or os.environ.get("PATH", os.defpath),
        program=str(request.program),
        writable=writable,
        readable=readable,
    )
    return _agent_at_workspace(access, request.cwd) if sys.platform == "linux" else access


def python_folders() -> tuple[Path, ...]:
    """Return the folders of the worker's Python, because a check may use `sys.executable`."""
    prefixes = {Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    return tuple(sorted(prefix for prefix in prefixes if not in_system(prefix) and not _too_wide(prefix)))


def project_python(root: Path) -> tuple[Path, ...]:
    """Return the parts of the Python installation that the tree's .venv uses, if it is outside the tree.

    A program that can write to the tree could make .venv refer to any folder. Therefore, only folders
    that look like a Python installation are accepted, and only their usual subfolders are visible.
    """
    link = root / ".venv" / "bin" / "python"
    try:
        program = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return ()
    prefix = program.parent.parent
    if program.is_relative_to(root.resolve()) or in_system(prefix) or _too_wide(prefix):
        return ()
    # The state home stays hidden, whatever a tree links to.
    if prefix.is_relative_to(state_home().resolve()):
        return ()
    libraries = (path for path in (prefix / "lib").glob("python3.*") if _PYTHON_LIBRARY.match(path.name))
    if not any((library / "os.py").is_file() for library in libraries):
        return ()
    if not any(path.is_file() for path in (prefix / "bin").glob("python3*")):
        return ()
    # The .venv may refer to the installation through symlinks, such as `versions/3.12` of uv and pyenv.
    named = Path(os.path.abspath(link.parent / os.readlink(link))).parent.parent if link.is_symlink() else prefix  # noqa: PTH100, PTH115
    prefixes = {prefix} | ({named} if named.exists() and named.resolve() == prefix and not _too_wide(named) else set())
    return tuple(base / part for base in sorted(prefixes) for part in _PYTHON_PARTS if (base / part).is_dir())


def path_folders(path: str, root: Path) -> tuple[Path, ...]:
    """Return the folders in PATH that are neither system folders nor inside the tree.

    The library folders next to them are included.
    """
    folders: list[Path] = []
    tree, wide = root.resolve(), _wide_folders(Path.home())
    for entry in path.split(os.pathsep):
        folder = Path(entry)
        if not folder.is_absolute() or not folder.is_dir() or folder.is_relative_to(root):
            continue
        resolved = folder.resolve()
        if in_system(resolved) or folder in wide or resolved in wide or resolved.is_relative_to(tree):
            continue
        folders.append(folder)
        # A symlinked folder has its libraries next to the target.
        siblings = (base.parent / part for base in (folder, resolved) for part in _BESIDE_PROGRAMS)
        folders += [sibling for sibling in siblings if folder.name in ("bin", "sbin") and sibling.exists()]
    return tuple(dict.fromkeys(folders))


def program_folders(program: str, path: str, root: Path) -> tuple[Path, ...]:
    """Return the files behind the program's entry in PATH, such as the package of an npm command.

    Return an empty tuple for a program in the tree, because a symlink in the tree could lead to any secret.
    """
    # A relative path is resolved in the tree, where the command finds it anyway.
    executable = None if os.sep in program and not Path(program).is_absolute() else shutil.which(program, path=path)
    if executable is None or Path(executable).is_relative_to(root):
        return ()
    link, target = Path(executable), Path(executable).resolve()
    if target.is_relative_to(root.resolve()):
        return ()
    places = [*_list_package_paths(link), *_list_package_paths(target)]
    return tuple(location for location in dict.fromkeys(places) if location.exists())


def _list_package_paths(program: Path) -> Iterator[Path]:
    """Yield the path of a program's package, if there is one.

    Otherwise, yield the folder and the libraries if the program is in a `bin` folder, or only the file.
    """
    packages = [parent for parent in program.parents if parent.name == "node_modules"]
    if in_system(program):
        return
    if packages:
        yield packages[-1]
    elif program.parent.name in ("bin", "sbin") and not _too_wide(program.parent.parent):
        yield from (program.parent, *(program.parent.parent / part for part in _BESIDE_PROGRAMS))
    else:
        yield program


def in_system(path: Path) -> bool:
    """Return whether a resolved path is in the system folders that every command sees."""
    return path.is_relative_to("/usr") or any(path.is_relative_to(link) for link in SYSTEM_LINKS)


def _too_wide(folder: Path) -> bool:
    """Return whether making a folder visible would expose an entire home folder or more."""
    # A program in /home/me/bin must not make /home/me readable through the folders next to it.
    wide = _wide_folders(Path.home())
    return folder in wide or folder.resolve() in wide


@functools.lru_cache(maxsize=8)
def _wide_folders(home: Path) -> frozenset[Path]:
    """Return the real paths of the folders that must not be made visible as a whole.

    The result is cached, because the paths do not change while a worker is running.
    """
    wide = {Path("/"), Path("/home"), Path("/root"), Path("/etc"), Path("/var"), Path("/tmp"), home, *home.parents}  # noqa: S108
    return frozenset(wide | {folder.resolve() for folder in wide})


def state_within(home: str, folder: Path) -> Iterator[Path]:
    """Yield the path of the state home if it is in a visible folder and must be hidden.

    `home` is the real path of the state home.
    """
    real = os.path.realpath(folder)
    if os.path.commonpath((home, real)) == real and os.path.isdir(home):  # noqa: PTH112 - no error where it cannot be seen
        yield folder / os.path.relpath(home, real)


def git_folders(folder: Path, *, tree: bool, mounts: tuple[tuple[Path, Path], ...] = ()) -> Iterator[Path]:
    """Yield the git paths in a writable folder that must be read-only. Paths that `mounts` cover are skipped.

    In the working tree itself (`tree`), the `.git` file of a worktree or submodule names another folder,
    which is also yielded. Elsewhere, such a file is not followed, because the command may have written
    it.
    """
    git = folder / ".git"
    # A mount at a symlink would protect its target, which may be any folder of the host.
    if git.is_symlink() or not git.exists() or any(target == git for _, target in mounts):
        return
    yield git
    if tree and git.is_file() and (git_folder := _pointed_to(git)) is not None:
        yield git_folder.parent.parent if git_folder.parent.name == "worktrees" else git_folder


def _pointed_to(git: Path) -> Path | None:
    """Return the git folder that a `.git` file names, or None if this folder does not refer back to the tree.

    This reference cannot be forged from inside the tree, so a tree cannot expose an arbitrary folder.
    """
    key, _, value = _text(git).partition(":")
    git_folder = (git.parent / value.strip()).resolve()
    if (
        key != "gitdir"
        or not (git_folder / "HEAD").is_file()
        or _too_wide(git_folder)
        or git_folder.is_relative_to(state_home().resolve())
    ):
        return None
    worktree = _text(git_folder / "gitdir").strip()
    module = _MODULE_TREE.search(_text(git_folder / "config"))
    back = [Path(worktree)] if worktree else [git_folder / module[1] / ".git"] if module else []
    return git_folder if any(path.parent.resolve() == git.parent.resolve() for path in back) else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
