"""Folders and settings files of this host.

Apart from the client and the command line, this is the only module of the library that reads files and the environment.
"""

import functools
import hashlib
import importlib.util
import os
import pwd
import re
import shlex
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tightloop.errors import SettingsError

if TYPE_CHECKING:
    from tightloop.settings import Settings

USER_FILE = "settings.yaml"
PROJECT_FILE = "tightloop.yaml"
PROJECT_SECTIONS = frozenset({"budget", "tracking"})
SERVER_PART = "tightloop_server"
PROJECT_NAME_CHARACTERS = 40
PRIVATE = 0o700


def state_home() -> Path:
    """Return the folder for persistent state: the embedded server's database, logs and sockets.

    `TIGHTLOOP_HOME` overrides the default, which depends on the platform (XDG Base Directory Specification; Application
    Support on macOS). The folder may not exist yet.
    """
    home = os.environ.get("TIGHTLOOP_HOME", "")
    if home:
        return Path(home).expanduser().absolute()
    return _platform_home("XDG_STATE_HOME", ".local/state") / "tightloop"


def state_folder(workspace: Path) -> Path:
    """Return the folder for a project's snapshots, ledger, outbox and locks.

    The folder is inside the state home and named after the workspace's real path. This way, tightloop never reads its
    own data from a workspace, and never loses that data when the workspace is lost. The folder may not exist yet.
    """
    # Not `Path.resolve`, which raises on link cycles.
    return state_home() / "projects" / _project_name(os.path.realpath(workspace))


# Called about thirty times per iteration.
@functools.lru_cache(maxsize=256)
def _project_name(real: str) -> str:
    # The name is for people; the digest of the real path makes it unique.
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(real).name)[:PROJECT_NAME_CHARACTERS].strip("-") or "project"
    return f"{name}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:16]}"


def open_state_home(home: Path | None = None) -> Path:
    """Create the state home if necessary, and restrict access to its owner.

    Args:
        home: folder to use instead of `state_home()`.

    Raises:
        SettingsError: the folder cannot be created, belongs to another user, or is writable by others.
    """
    folder = home or state_home()
    try:
        private_folder(folder)
        status = folder.stat()
        if status.st_uid != os.geteuid():
            raise SettingsError(
                f"the state home {folder} belongs to another user (uid {status.st_uid}). Choose a folder "
                "that you own: export TIGHTLOOP_HOME=..."
            )
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o022:
            # Its content decides what runs, and others may have modified it.
            raise SettingsError(
                f"other users can write to the state home {folder} (mode {mode:04o}). Check its contents, "
                f"then run: chmod 700 {folder}"
            )
        if mode != PRIVATE:
            folder.chmod(PRIVATE)
    except OSError as error:
        raise SettingsError(
            f"the state home {folder} cannot be used: {error.strerror or error}. Choose another folder: export "
            "TIGHTLOOP_HOME=..."
        ) from None
    return folder


def store_folder(workspace: Path) -> Path:
    """Return the bare git repository that stores all snapshots of a project.

    The refs are named `refs/tightloop/<episode>/<checkpoint>`.
    """
    return state_folder(workspace) / "trees"


def diff_command(workspace: Path, before: str, after: str) -> str:
    """Return the shell command that shows the diff between two stored trees.

    The command works in any folder.
    """
    return f"git --git-dir={shlex.quote(str(store_folder(workspace)))} diff {before[:16]} {after[:16]}"


def private_folder(folder: Path) -> Path:
    """Create a folder in the state home, including missing parents, and return it.

    New folders have mode 0700 regardless of the umask.
    """
    if not folder.is_dir():
        # One level at a time: `mkdir` with `parents` does not apply the mode to the parents.
        if not folder.parent.is_dir():
            private_folder(folder.parent)
        try:
            folder.mkdir(PRIVATE)
        except FileExistsError:
            # Created concurrently, unless it is a file.
            if not folder.is_dir():
                raise
    return folder


def settings_files(cwd: Path) -> list[Path]:
    """Return the existing settings files.

    The user's file comes first, followed by the nearest project file in or above `cwd`.
    """
    user = user_file()
    start = cwd.absolute()
    project = next((path for folder in (start, *start.parents) if (path := folder / PROJECT_FILE).is_file()), None)
    return [path for path in (user, project) if path is not None and path.is_file()]


def user_file() -> Path:
    """Return the path of the user's settings file, which may not exist."""
    return _platform_home("XDG_CONFIG_HOME", ".config") / "tightloop" / USER_FILE


def load_settings(explicit: Path | None = None) -> "Settings":
    """Load the settings of this process.

    Later files override earlier files, and the environment overrides all files.

    Args:
        explicit: the only file to read, instead of the files from `settings_files`.

    Raises:
        SettingsError: a file cannot be read or a setting is invalid. The message names the file.
    """
    # Lazy import: the settings need pydantic and the SDK, which are slow to import, and some programs only need
    # folders.
    from tightloop.host.profile import fill_from_profile
    from tightloop.settings import Settings, combined_settings
    from tightloop.settings.layers import sections_of

    files = settings_files(Path.cwd()) if explicit is None else [explicit]
    texts = [(path, _text_of(path)) for path in files]
    for path, text in texts:
        if path.name == PROJECT_FILE and explicit is None:
            # A repository must not decide which programs run or where keys and code are sent.
            beyond = sorted((sections_of(str(path), text) & Settings.model_fields.keys()) - PROJECT_SECTIONS)
            if beyond:
                raise SettingsError(
                    f"{path} sets {', '.join(beyond)}, but a project file may only set "
                    f"{', '.join(sorted(PROJECT_SECTIONS))}. Move the other settings to {user_file()}"
                )
    return fill_from_profile(combined_settings([(str(path), text) for path, text in texts], os.environ), os.environ)


def settings_mark(explicit: Path | None = None) -> str:
    """Return a digest of the Temporal, database and gateway settings.

    The settings are not parsed. Equal digests mean equal settings, but equal settings may have different
    digests.
    """
    config = os.environ.get("TEMPORAL_CONFIG_FILE", "")
    platform = _platform_home("XDG_CONFIG_HOME", ".config") / "temporalio" / "temporal.toml"
    files = (explicit or user_file(), Path(config) if config else platform)
    sections = ("TIGHTLOOP_TEMPORAL__", "TIGHTLOOP_GATEWAY__", "TIGHTLOOP_DATABASE__", "TEMPORAL_")
    digest = hashlib.sha256()
    for name in sorted(name for name in os.environ if name.startswith(sections)):
        digest.update(f"{name}={os.environ[name]}\0".encode("utf-8", "surrogateescape"))
    for file in files:
        digest.update(file.read_bytes() if file.is_file() else b"")
        # Separated, because the same bytes divided differently must give another digest.
        digest.update(b"\0")
    return digest.hexdigest()


def home_folder() -> Path:
    """Return the user's home folder, or the state home for a container user without a home folder.

    Raises:
        SettingsError: neither folder exists.
    """
    try:
        return Path.home()
    except RuntimeError:
        home = os.environ.get("TIGHTLOOP_HOME", "")
        if not home:
            raise SettingsError(
                f"cannot find a home folder for uid {os.geteuid()}: HOME is not set, and the user database "
                "has no entry. Choose a folder for state and settings: export TIGHTLOOP_HOME=..."
            ) from None
        return Path(home).absolute()


def name_user() -> None:
    """Set HOME and USER if they are missing, because some programs do not start without them."""
    os.environ.setdefault("HOME", str(home_folder()))
    if not os.environ.get("USER"):
        try:
            os.environ["USER"] = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            os.environ["USER"] = f"uid-{os.geteuid()}"


def module_arguments(module: str) -> tuple[str, ...] | None:
    """Return the Python arguments that run a server module, such as `worker`.

    Return None if the server is not installed.
    """
    # -P: a folder `worker` in the current directory must not shadow ours.
    options = ("-P", "-m")
    # A checkout wins over an installed server part, whose code may be older.
    checkout = Path(__file__).parents[2]
    if all((checkout / part).is_file() for part in ("worker/__main__.py", "workflows/episode/workflow.py")):
        return (*options, module)
    return (*options, SERVER_PART, module) if importlib.util.find_spec(SERVER_PART) else None


def _platform_home(variable: str, under_home: str) -> Path:
    folder = Path(os.environ.get(variable, ""))
    if folder.is_absolute():  # the specification requires ignoring relative paths
        return folder
    if sys.platform == "darwin":
        return home_folder() / "Library" / "Application Support"
    return home_folder() / under_home


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"the settings file {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"the settings file {path} is not UTF-8 text. Save the file as UTF-8") from None
