"""Finds the program of an agent, asks it for its version, and sets the PATH of its commands."""

import os
import re
import sys
from functools import lru_cache
from pathlib import Path

from activities.executor.port import Availability
from activities.process import ProcessRequest, Reason, run_process, search_path
from tightloop.host.programs import find_trusted, trusted_path

VERSION_LIMIT_S = 10.0

_VERSION = re.compile(r"\d+(?:\.\d+)+[\w.+-]*")


def find_program(chosen: str, *usual: str) -> str:
    """Return the absolute path of the first of these programs that is there; empty where none is.

    Args:
        chosen: name or path out of the settings; where it is given nothing else is looked for.
        usual: names that the agent's installation gives it, best first.
    """
    names = (chosen,) if chosen else usual
    return next((str(found) for name in names if (found := find_trusted(name))), "")


def command_path(root: Path, outside: tuple[Path, ...]) -> dict[str, str]:
    """Return `PATH` (and `VIRTUAL_ENV`) for the commands in the sandbox of an agent: the project's programs first.

    Of the worker's PATH without what a project can write, because Codex looks there for the program of its sandbox,
    too; it passes over those of the working tree.

    Args:
        root: the working tree.
        outside: further folders in which no program is looked for.
    """
    project = search_path(root)
    own = [str(Path(environment, "bin")) for name, environment in project.items() if name == "VIRTUAL_ENV"]
    folders = (*own, str(Path(sys.executable).parent), trusted_path(root, *outside))
    return {**project, "PATH": os.pathsep.join(folders)}


def check_program(program: str, looked_for: str, get_it: str) -> Availability:
    """Return whether a program was found and reports its version."""
    if not program:
        return Availability(usable=False, reason=f"the program {looked_for} was not found. {get_it}")
    version = version_of(program)
    if not version:
        return Availability(usable=False, reason=f"{program} --version does not work. {get_it}")
    return Availability(version=version)


def version_of(program: str) -> str:
    """Return what `--version` prints first that looks like a version; empty where it does not run.

    Takes at most `VERSION_LIMIT_S`. An answer is kept until the file of the program changes.
    """
    try:
        return _ask_version(program, Path(program).stat().st_mtime_ns)
    except (OSError, _NoVersionError):
        return ""


class _NoVersionError(Exception):
    """The program does not tell; an exception, because `lru_cache` keeps every other answer."""


@lru_cache(maxsize=32)
def _ask_version(program: str, changed_ns: int) -> str:
    del changed_ns
    trusted = find_trusted(program)
    if trusted is None:
        raise _NoVersionError
    request = ProcessRequest(
        program=trusted,
        arguments=("--version",),
        cwd=Path("/"),
        inherit=False,
        wall_limit_s=VERSION_LIMIT_S,
        grace_s=0.5,
    )
    result = run_process(request, cancelled=lambda: False, started=lambda _: None)
    found = _VERSION.search(result.output.decode("utf-8", "replace"))
    if result.reason is not Reason.EXITED or result.exit_code != 0 or found is None:
        raise _NoVersionError
    return found.group()
