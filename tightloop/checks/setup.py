"""Setup commands, which install a project's packages and are derived from its lock files."""

import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple

from tightloop.checks.finding import is_project_folder
from tightloop.run.question import Answer, Option, OptionGroup, Question, QuestionKind, evidence_of
from tightloop.value import Sparse

LOCKS_LIMIT = 20
"""Maximum number of lock files to consider. The ones nearest to the root of the project are preferred."""
NODE, PYTHON = "node_modules", ".venv"
INSTALL: Final = "install"
SKIP: Final = "skip"
SETUP_S = 1_800.0
"""Time limit of a setup command in seconds."""

_PINNED = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[^\]]*\])?\s*==\s*[^\s;*]+\s*(?:;[^#]*)?(?:--hash=\S+\s*)*")
_REQUIREMENTS = re.compile(r"(?:[\w.-]+[._-])?requirements[\w.-]*\.txt")


class _Installer(NamedTuple):
    environment: str
    program: str
    command: str


_INSTALLERS = {
    "package-lock.json": _Installer(NODE, "npm", "npm ci"),
    "npm-shrinkwrap.json": _Installer(NODE, "npm", "npm ci"),
    "pnpm-lock.yaml": _Installer(NODE, "pnpm", "pnpm install --frozen-lockfile"),
    "yarn.lock": _Installer(NODE, "yarn", "yarn install --frozen-lockfile"),
    "bun.lock": _Installer(NODE, "bun", "bun install --frozen-lockfile"),
    "uv.lock": _Installer(PYTHON, "uv", "uv sync --frozen"),
    "poetry.lock": _Installer(PYTHON, "poetry", "POETRY_VIRTUALENVS_IN_PROJECT=true poetry install --no-interaction"),
    "pdm.lock": _Installer(PYTHON, "pdm", "pdm sync"),
    "Pipfile.lock": _Installer(PYTHON, "pipenv", "PIPENV_VENV_IN_PROJECT=1 pipenv sync --dev"),
}
"""Installers by lock file, in order of preference if a folder has several for the same environment.

Ruby, PHP, Go and Rust are missing: their packages are stored outside the tree, or come from hosts other than the
package index.
"""
_MANIFESTS = frozenset(
    {"package.json", ".npmrc", ".yarnrc", ".yarnrc.yml", "pnpm-workspace.yaml", ".pnpmfile.cjs", "bunfig.toml"}
    | {"pyproject.toml", "setup.py", "setup.cfg", "uv.toml", "poetry.toml", "Pipfile"}
)
"""Files that an installer reads besides the lock file. They may name scripts to run and additional indexes."""


class Setup(Sparse):
    """A command that sets up a working tree, and the decision on whether to run it."""

    command: str
    locks: tuple[str, ...] = ()
    """Lock files of the project."""
    missing: tuple[str, ...] = ()
    """Environments that the lock files call for but the tree does not contain."""
    digest: str = ""
    """Digest of the lock files and of the other files that installers read."""
    decision: Literal["", "install", "skip"] = ""
    """Decision about the command. Empty if a person has to decide."""
    by: str = ""
    """Name of the person who decided, or `request` if the request contains the command."""
    problem: str = ""
    """Reason why the last attempt failed, followed by the end of its output from the second line on."""

    def decide(self, answer: Answer) -> "Setup":
        """Return a copy of the setup with a person's decision."""
        return self.evolve(decision=INSTALL if answer.option == INSTALL else SKIP, by=answer.by, problem="")


class Proposal(NamedTuple):
    """A proposed command that creates the missing environments."""

    command: str
    programs: tuple[str, ...]
    missing: tuple[str, ...]


def read_files(paths: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a project's lock files and all files that the setup depends on.

    The lock files closest to the root come first.
    """
    paths = [path for path in paths if is_project_folder(posixpath.dirname(path))]
    locks = sorted(filter(_is_lock, paths), key=lambda path: (path.count("/"), path))[:LOCKS_LIMIT]
    folders = {posixpath.dirname(path) for path in locks} | {""}
    manifests = (
        path for path in paths if posixpath.basename(path) in _MANIFESTS and posixpath.dirname(path) in folders
    )
    return tuple(locks), (*locks, *sorted(manifests))


def propose(contents: Mapping[str, str], is_present: Callable[[str], bool]) -> Proposal | None:
    """Return the command that creates the missing environments, or None if there is nothing to propose.

    Args:
        contents: contents of the lock files, nearest to the root first.
        is_present: returns whether the tree contains the environment at a path.
    """
    commands = dict[str, tuple[str, str]]()
    for path in sorted(contents, key=_preference):
        folder, name = posixpath.split(path)
        installer = _INSTALLERS.get(name) or _Installer(PYTHON, "python3", _pip(contents, folder))
        environment = environment_of(path)
        if environment not in commands and not _is_empty(name, contents[path]) and not is_present(environment):
            command = f"(cd {shlex.quote(folder)} && {installer.command})" if folder else installer.command
            commands[environment] = command, installer.program
    if not commands:
        return None
    programs = tuple(dict.fromkeys(program for _, program in commands.values()))
    return Proposal(" && ".join(command for command, _ in commands.values()), programs, tuple(sorted(commands)))


def environment_of(lock: str) -> str:
    """Return the path of the environment for the packages in a lock file."""
    folder, name = posixpath.split(lock)
    return posixpath.join(folder, _INSTALLERS[name].environment if name in _INSTALLERS else PYTHON)


def setup_question(setup: Setup, *, blocks: str, cancel: Option) -> Question:
    """Create the question that asks a person whether to run a setup command.

    The question has no default, because the answer grants network access.
    """
    command, locks = f"`{setup.command}`", ", ".join(setup.locks[:3]) or "no lock file"
    title = f"{', '.join(setup.missing[:3])} is missing. Run {command} ({locks})?"
    if setup.problem:
        title = f"{command} ({locks}) {setup.problem.partition(chr(10))[0]}. Try again?"
    return Question(
        id="",
        kind=QuestionKind.SETUP,
        title=title,
        evidence=evidence_of(setup.problem.partition("\n")[2]),
        options=(
            Option(
                name=INSTALL,
                effect="run the command in the sandbox, with network access only to package indexes (you are asked "
                "again if the lock files change)",
            ),
            Option(
                name=SKIP,
                effect="continue without running the command (you will be asked again if the lock files change)",
                group=OptionGroup.ACCEPT,
            ),
            cancel,
        ),
        blocks=blocks,
    )


def _is_lock(path: str) -> bool:
    name = posixpath.basename(path)
    return name in _INSTALLERS or _REQUIREMENTS.fullmatch(name) is not None


def _is_empty(name: str, content: str) -> bool:
    """Return whether a lock file lists no packages or leaves some versions unpinned."""
    if name in ("package-lock.json", "npm-shrinkwrap.json"):
        try:
            lock = json.loads(content)
            return not {*lock.get("packages", ()), *lock.get("dependencies", ())} - {""}
        except (ValueError, TypeError, AttributeError):
            return True
    if name in _INSTALLERS:
        return not content.strip()
    lines = (line.partition(" #")[0].strip() for line in content.replace("\\\n", " ").splitlines())
    pins = [line for line in lines if line and not line.startswith("#")]
    return not pins or not all(map(_PINNED.fullmatch, pins))


def _pip(contents: Mapping[str, str], folder: str) -> str:
    """Return the command that installs all pinned requirements files in a folder."""
    names = [posixpath.basename(path) for path in contents if posixpath.dirname(path) == folder]
    names = [name for name in names if name not in _INSTALLERS]
    pinned = [name for name in sorted(names) if not _is_empty(name, contents[posixpath.join(folder, name)])]
    files = " ".join(f"-r {shlex.quote(name)}" for name in pinned)
    return f"python3 -m venv {PYTHON} && {PYTHON}/bin/python -m pip install {files}"


def _preference(path: str) -> tuple[int, str, int, str]:
    order, (folder, name) = list(_INSTALLERS), posixpath.split(path)
    return path.count("/"), folder, order.index(name) if name in order else len(order), name
