"""Lookup of the programs that tightloop runs outside the sandbox.

Sandboxed commands must not be able to influence which programs run outside the sandbox. PATH folders inside a
workspace, relative folders, and links that lead through either are therefore ignored.
"""

import functools
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tightloop.errors import UntrustedProgramError
from tightloop.host import state_folder, state_home

STARTED = (
    "git", "ssh-keygen", "bwrap", "docker", "rg", "notify-send", "osascript", "xclip", "pbcopy", "pbpaste",
    "screencapture", "launchctl", "temporal", "xdg-open",
)  # fmt: skip
"""Names of all programs that are started outside the sandbox."""
LINKS_FOLLOWED = 40
"""Maximum number of links that Linux follows (path_resolution(7))."""
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_LISTS_OF_FOLDERS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FRAMEWORK_PATH")
_FOUND: dict[tuple[str, str], "TrustedProgram"] = {}
"""Cache by name and PATH."""


@dataclass(frozen=True)
class TrustedProgram:
    """Program with an absolute path. Only this module creates instances.

    The program is started under this path, not the resolved path, because some programs inspect their own
    name.
    """

    name: str
    """Requested name."""
    path: Path
    installed: tuple[Path, ...] = ()
    """tightloop folders that the program loads code from."""

    def __post_init__(self) -> None:
        """Check that the path is absolute."""
        if not self.path.is_absolute():
            raise ValueError(f"the path of a trusted program must be absolute, got {str(self.path)!r}")

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def command(self, *arguments: str | Path) -> list[str]:
        return [str(self.path), *map(str, arguments)]

    def refuse_within(self, folders: Iterable[Path] = ()) -> None:
        """Check that a command that can write to these folders cannot modify the program.

        Raises:
            UntrustedProgramError: the program, or a link on its path, is in one of these folders or in a
                location
                that another run can write to.
        """
        written = _real_folders(folders)
        for way in (self.path, *self.installed):
            for path in _places(str(way)):
                folder = next((folder for folder in written if _is_within(path, folder)), "")
                # Not for our own Python: a worktree of the checkout that it runs from cannot modify that checkout.
                if not folder and not self.installed:
                    folder = writable_above(path)
                if folder:
                    raise UntrustedProgramError(_refusal(self, path, folder))


SHELL = TrustedProgram("sh", Path("/bin/sh"))
"""Path required by POSIX systems."""


def find_trusted_program(name: str, path: str | None = None) -> TrustedProgram | None:
    """Find a program by its absolute path, or by its name in PATH. Return None if it is not found.

    The result is cached while the file exists, even if the folders in PATH change.

    Args:
        name: program name or absolute path.
        path: search path to use instead of PATH.
    """
    if os.sep in name:
        program = TrustedProgram(name, Path(name)) if Path(name).is_absolute() else None
        return program if program is not None and _is_program(name) else None
    path = os.environ.get("PATH", os.defpath) if path is None else path
    cached = _FOUND.get((name, path))
    if cached is not None and _is_program(cached.path):
        return cached
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder, name)  # noqa: PTH118
        if _is_trusted(candidate) and _is_program(candidate):
            # Cache hits only: a person may install a missing program.
            _FOUND[name, path] = TrustedProgram(name, Path(candidate))
            return _FOUND[name, path]
    return None


def find_own(name: str) -> TrustedProgram | None:
    """Find a program next to this process's Python or in PATH. Return None if it is not found."""
    # The folder of a virtual environment need not be in PATH.
    sibling = Path(sys.executable).with_name(name)
    return TrustedProgram(name, sibling) if _is_program(sibling) else find_trusted_program(name)


def find_startup_programs() -> dict[str, TrustedProgram]:
    """Return the installed programs in `STARTED`.

    Workers call this at startup, before a command can plant a program.
    """
    return {name: program for name in STARTED if (program := find_own(name))}


@functools.cache
def own_python() -> TrustedProgram:
    """Return this process's Python, with the folders that it loads code from."""
    return TrustedProgram("python", Path(sys.executable), (Path(sys.prefix), Path(__file__).parents[2]))


def trusted_path(*outside: Path) -> str:
    """Return the PATH for programs that run outside the sandbox.

    Relative folders and folders that projects can write to are removed.

    Args:
        outside: additional folders to exclude.
    """
    # Every link on the way counts: whoever can replace it decides where the folder leads.
    written = _real_folders(outside)
    folders = [
        folder
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)
        if _is_trusted(folder) and not any(_is_within(path, real) for path in _places(folder) for real in written)
    ]
    # An empty PATH would mean the current folder.
    return os.pathsep.join(folders) or SYSTEM_PATH


def own_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment for use in tightloop's own processes.

    Relative folders are removed from path lists. An empty entry is also removed, because it refers to the
    current folder, which may be a workspace.
    """
    variables = dict(os.environ if environ is None else environ)
    for name in _LISTS_OF_FOLDERS:
        if name in variables:
            variables[name] = absolute_folders(variables[name])
            if not variables[name]:
                del variables[name]
    return variables


def absolute_folders(joined: str) -> str:
    """Remove relative folders from a path list."""
    return os.pathsep.join(folder for folder in joined.split(os.pathsep) if os.path.isabs(folder))  # noqa: PTH117


def writable_above(path: str) -> str:
    """Return the folder at or above a path that sandboxed commands may write to.

    This is the state home or a workspace.

    Args:
        path: absolute path without links.

    Returns:
        The folder, or "" if none is known.
    """
    home = os.path.realpath(state_home())
    if _is_within(path, home):
        return home
    for folder in (path, *map(str, Path(path).parents)):
        # Each workspace of this host has a folder in the state home, named after its path.
        if folder != os.sep and os.path.isdir(state_folder(Path(folder))):  # noqa: PTH112 - no error where it is closed
            return folder
    return ""


def _real_folders(folders: Iterable[Path]) -> list[str]:
    # A workspace at the file system root would distrust every program.
    return [real for folder in folders if (real := os.path.realpath(folder)) != os.sep]


def _is_trusted(path: str) -> bool:
    return os.path.isabs(path) and not any(map(writable_above, _places(path)))  # noqa: PTH117


def _places(path: str) -> list[str]:
    """Return every link along an absolute path, followed by the final target.

    The parent folders of each returned path are resolved.
    """
    places: list[str] = []
    parts, resolved = path.split("/")[::-1], "/"
    # Bounded, because links may form a cycle.
    while parts and len(places) <= LINKS_FOLLOWED:
        part = parts.pop()
        if part in ("", os.curdir):
            continue
        if part == os.pardir:
            # Applied to the resolved path, as the kernel does; removing `a/..` from the text is wrong if `a` is a link.
            resolved = os.path.dirname(resolved)  # noqa: PTH120
            continue
        step = os.path.join(resolved, part)  # noqa: PTH118
        try:
            target = os.readlink(step)  # noqa: PTH115
        except OSError:
            resolved = step
            continue
        places.append(step)
        resolved = os.sep if os.path.isabs(target) else resolved  # noqa: PTH117
        parts += target.split("/")[::-1]
    return [*places, resolved]


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _is_program(path: str | Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)  # noqa: PTH116
    except (OSError, ValueError):
        return False


def _refusal(program: TrustedProgram, path: str, folder: str) -> str:
    where = f"{program.path}" if path == str(program.path) else f"{program.path} (through {path})"
    if program.installed:
        return (
            f"cannot start: tightloop is installed in {where}, inside {folder}, where a command in a sandbox "
            "could change it. Install tightloop outside that folder, or start with a worktree"
        )
    return (
        f"cannot start the program {program.name}: {where} is inside {folder}, where a command in a "
        f"sandbox could replace it. Restart the worker with a PATH that finds {program.name} outside that "
        "folder"
    )
