"""Search for a project's checks in several sources, in order of preference."""

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator

from tightloop.checks.ci import github_checks, gitlab_checks
from tightloop.checks.commands import (
    CheckKind,
    FoundCheck,
    Origin,
    Project,
    folder_of,
    kind_of,
    kind_of_name,
    program_of,
    started_command,
)
from tightloop.checks.files import makefile_targets, package_scripts, read_ini, read_toml_text, table_of
from tightloop.checks.runners import checks_in

CANDIDATES_LIMIT = 60
"""Maximum number of checks to consider in a project."""
_ROOT_FILES = (
    "package.json", "pyproject.toml", "setup.cfg", "setup.py", "tox.ini", "tox.toml", "noxfile.py", "pytest.ini",
    ".pytest.ini", "mypy.ini", ".mypy.ini", "ruff.toml", ".ruff.toml", ".flake8", "pyrightconfig.json", "Makefile",
    "makefile", "GNUmakefile", "justfile", "Justfile", ".justfile", ".pre-commit-config.yaml", "Cargo.toml", "go.mod",
    "README.md", "README.rst", "README", "README.txt", "CONTRIBUTING.md", "CONTRIBUTING.rst",
)  # fmt: skip
_OF_CI = re.compile(r"\.github/(?:workflows/[^/]+\.ya?ml|actions/.+/action\.ya?ml)|\.gitlab-ci\.yml")
_MANIFESTS = ("pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "package.json", "Cargo.toml", "go.mod", "Makefile")
_NO_PROJECTS = re.compile(r"(?:^|/)(?:node_modules|vendor|third_party|examples?|fixtures?|tests?|docs?|\.[^/]+)(?:/|$)")
_TESTS = re.compile(r"(?:^|/)(?:test_[^/]*|[^/]*_test|tests)\.py$")
_GATES = ("gate:ui", "gate:task", "gate:web", "gate:agent", "gate:spec")
_ALL_GATES = ("gate:tier0", *_GATES)


def is_read(path: str, top: str = "") -> bool:
    """Return whether a file may define checks for the project in the folder `top`.

    Files up to two folder levels below `top` are considered.
    """
    if _OF_CI.fullmatch(path):
        return True
    if not is_within(path, top):
        return False
    folder, name = posixpath.split(path[len(top) :].lstrip("/"))
    return name in _ROOT_FILES and is_project_folder(folder)


def is_within(path: str, folder: str) -> bool:
    """Return whether a relative path is a folder or is inside it. The folder "" contains every path."""
    return not folder or path == folder or path.startswith(f"{folder}/")


def is_project_folder(folder: str) -> bool:
    """Return whether a folder can be the root of a project.

    `folder` is relative to the outer project and may be at most two levels below it.
    """
    return not folder or (folder.count("/") < 2 and not _NO_PROJECTS.search(folder))


def find_checks(project: Project) -> tuple[tuple[FoundCheck, ...], ...]:
    """Return a project's checks without duplicates, grouped by source. The best source comes first.

    CI comes first, because it decides which changes the project accepts. Next come the task runners that
    people use, then the configured tools, and finally the README. `is_covered` decides which sources are
    used.
    """
    of_ci = (*github_checks(project), *gitlab_checks(project))
    # CI tests all projects of a repository.
    sources = [tuple(check for check in of_ci if is_within(folder_of(check.run), project.folder)), *_of_folder(project)]
    # A command that several places name counts once, in the first place that allows it.
    usable = {check.run for source in sources for check in source if not check.not_used}
    seen: set[str] = set()
    groups = []
    for source in sources:
        group = []
        for check in source:
            if check.run not in seen and not (check.not_used and check.run in usable) and len(seen) < CANDIDATES_LIMIT:
                seen.add(check.run)
                group.append(check)
        groups.append(tuple(group))
    return tuple(groups)


def _of_folder(project: Project) -> Iterator[tuple[FoundCheck, ...]]:
    groups = [tuple(group) for group in _local_checks(project)]
    yield from groups
    if any(check.kind is CheckKind.TESTS and not check.not_used for group in groups for check in group):
        return
    # A project below the top of its repository, or several of them.
    for folder in _folders_below(project):
        below = Project(project.paths, project.texts, project.python, project.node, project.system, folder)
        yield from map(tuple, _local_checks(below))


def _folders_below(project: Project) -> list[str]:
    """Return the subfolders of the project that are projects themselves."""
    top = project.folder
    folders = {posixpath.dirname(path) for path in project.texts if posixpath.basename(path) in _MANIFESTS}
    below = (folder for folder in folders if folder != top and is_within(folder, top))
    return sorted(folder for folder in below if not _NO_PROJECTS.search(folder[len(top) :]))


def _local_checks(project: Project) -> Iterator[Iterable[FoundCheck]]:
    """Yield the checks in a project's folder, grouped by source, best source first."""
    folder, here = project.folder, Origin("", project.folder)

    def at(name: str) -> Origin:
        return Origin(posixpath.join(folder, name), folder)

    yield _gate_scripts(project)
    yield checks_in(project, "tox", here)
    yield checks_in(project, "nox", here)
    yield _package_checks(project, at("package.json"))
    yield _target_checks(project, at)
    yield _project_scripts(project, at("pyproject.toml"))
    yield checks_in(project, "pre-commit run --all-files", here)
    yield _configured(project, at)
    if project.text("Cargo.toml"):
        yield checks_in(project, "cargo test", at("Cargo.toml"))
    if project.text("go.mod"):
        yield checks_in(project, "go test ./...", at("go.mod"))
    yield _documented(project, at)
    yield _test_files(project)


def _package_checks(project: Project, origin: Origin) -> Iterator[FoundCheck]:
    scripts = package_scripts(project, project.folder)
    for name in (
        name for name in ("lint", "test") if name in scripts and not any(gate in scripts for gate in _ALL_GATES)
    ):
        # npm's own placeholder for a missing test.
        if "no test specified" not in scripts[name]:
            command = "npm test" if name == "test" else f"npm run --silent {name}"
            yield from checks_in(project, command, origin)


def _target_checks(project: Project, at: Callable[[str], Origin]) -> Iterator[FoundCheck]:
    makefile = next((name for name in ("GNUmakefile", "makefile", "Makefile") if project.text(name)), "")
    for target in makefile_targets(project, project.folder) if makefile else ():
        # `coverage` and `test-all` repeat `test`, at a higher cost.
        if target in ("test", "tests", "check", "lint", "typecheck", "mypy"):
            yield from checks_in(project, f"make {target}", at(makefile))
    justfile = next((name for name in ("justfile", "Justfile", ".justfile") if project.text(name)), "")
    for target in re.findall(r"^@?(tests?|lint|check|typecheck)\b[^:=\n]*:(?!=)", project.text(justfile), re.MULTILINE):
        yield from checks_in(project, f"just {target}", at(justfile))


def _gate_scripts(project: Project) -> Iterator[FoundCheck]:
    """Yield the gates defined in package.json. `gate:tier0` replaces `gate:ui` and `gate:task`."""
    scripts = package_scripts(project, project.folder)
    names = ("gate:tier0", *_GATES[2:]) if "gate:tier0" in scripts else _GATES
    source = posixpath.join(project.folder, "package.json")
    for name in names:
        if name in scripts:
            command = f"npm run --silent {name}"
            run = f"cd {project.folder} && {command}" if project.folder else command
            yield FoundCheck(run=run, source=source, name=name)


def _project_scripts(project: Project, origin: Origin) -> Iterator[FoundCheck]:
    tools = table_of(read_toml_text(project.text("pyproject.toml")), "tool")
    for tool, names in (
        ("pdm", table_of(tools, "pdm", "scripts")),
        ("poe", table_of(tools, "poe", "tasks")),
        ("task", table_of(tools, "taskipy", "tasks")),
        ("hatch run", table_of(tools, "hatch", "envs", "default", "scripts")),
        ("hatch run", {"hatch-test": ""} if "hatch-test" in table_of(tools, "hatch", "envs") else {}),
    ):
        for name in names:
            if name == "hatch-test":
                yield from checks_in(project, "hatch test", origin)
            elif kind_of_name(str(name)) is not None:
                prefix = "pdm run" if tool == "pdm" else tool
                yield from checks_in(project, f"{prefix} {name}", origin)
    for environment, table in table_of(tools, "hatch", "envs").items():
        for name in table_of(table if isinstance(table, dict) else {}, "scripts") if environment != "default" else ():
            if kind_of_name(str(name)) is not None:
                yield from checks_in(project, f"hatch run {environment}:{name}", origin)


def _configured(project: Project, at: Callable[[str], Origin]) -> Iterator[FoundCheck]:
    """Yield the commands for the tools that are configured in a project."""
    tools = table_of(read_toml_text(project.text("pyproject.toml")), "tool")
    setup, tox = read_ini(project.text("setup.cfg")), read_ini(project.text("tox.ini"))

    def place(table: bool, *files: str, section: str = "") -> str:
        if table:
            return "pyproject.toml"
        file = next((name for name in files if project.text(name)), "")
        return file or ("setup.cfg" if section in setup else "tox.ini" if section in tox else "")

    pytest = place("pytest" in tools, "pytest.ini", ".pytest.ini", section="tool:pytest") or (
        "tox.ini" if "pytest" in tox else ""
    )
    files = table_of(tools, "mypy").keys() & {"files", "packages", "modules"} or {"files", "packages"} & set(
        setup.get("mypy", {})
    )
    ruff = place("ruff" in tools, "ruff.toml", ".ruff.toml")
    ruff_format = "format" in table_of(tools, "ruff") or "[format]" in project.text("ruff.toml") + project.text(
        ".ruff.toml"
    )
    for source, command in (
        (pytest, "pytest"),
        (ruff, "ruff check ."),
        (ruff if ruff_format else "", "ruff format --check ."),
        (place("black" in tools), "black --check ."),
        (place("mypy" in tools, "mypy.ini", ".mypy.ini", section="mypy"), "mypy" if files else "mypy ."),
        (place("pyright" in tools, "pyrightconfig.json"), "pyright"),
        (place(False, ".flake8", section="flake8"), "flake8"),
    ):
        if source:
            yield from checks_in(project, command, at(source))


def _documented(project: Project, at: Callable[[str], Origin]) -> Iterator[FoundCheck]:
    """Yield the test commands in code blocks of the README or the contributing guide."""
    for name in ("README.md", "README.rst", "README", "README.txt", "CONTRIBUTING.md", "CONTRIBUTING.rst"):
        for line in project.text(name).splitlines():
            match = re.match(
                r"(?:\s{2,}|\t)?(?:\$\s+|>\s+)?((?:python3? -m |make |npm |tox|pytest|nox|cargo |go |\./)\S.*)$", line
            )
            if (match and re.match(r"\s|\$|>", line)) or (match and "`" not in line and "." not in line.split()[-1]):
                yield from checks_in(project, match[1].split(" #")[0].strip("` "), at(name))


def _test_files(project: Project) -> Iterator[FoundCheck]:
    """Yield a pytest check if the project has tests but does not name a test runner."""
    inside = f"{project.folder}/" if project.folder else ""
    # Tests below the folder of another project belong to that project.
    others = () if project.folder else tuple(f"{folder}/" for folder in _folders_below(project))
    paths = (path for path in sorted(project.paths) if path.startswith(inside) and not path.startswith(others))
    tests = next((path for path in paths if _TESTS.search(path)), "")
    if tests:
        run = f"cd {project.folder} && pytest -q" if project.folder else "pytest -q"
        plain = run.replace("pytest -q", "python -m unittest discover")
        yield FoundCheck(
            run=run,
            kind=CheckKind.TESTS,
            source=tests,
            name="pytest",
            otherwise=(FoundCheck(run=plain, kind=CheckKind.TESTS, source=tests, name="unittest"),),
        )


def family_of(check: FoundCheck) -> tuple[str, str]:
    """Return a check's family: its kind, and the language and folder of its command.

    The checks of a family are taken from only one source.
    """
    if check.kind is CheckKind.OTHER:
        return check.kind.value, check.run
    words = check.run.rpartition("&& ")[2].split()
    language = next((name for name in ("npm", "node", "npx", "yarn", "pnpm", "cargo", "go") if name in words[:2]), "")
    return (
        check.kind.value,
        f"{'node' if language in ('npm', 'npx', 'yarn', 'pnpm') else language} {folder_of(check.run)}",
    )


def family_of_command(run: str) -> tuple[str, str]:
    """Return the family of a command from an unknown source file."""
    line = run.rpartition("&& ")[2].split()
    words = tuple(word for word in line if not re.match(r"[A-Z_]+=", word))
    argv = program_of(words[started_command(words)[0] :])
    kind = kind_of(argv) or kind_of_name(" ".join(argv)) or CheckKind.OTHER
    return family_of(FoundCheck(run=run, kind=kind, source=""))


def is_covered(check: FoundCheck, covered: Collection[tuple[str, str]], *, by_ci: Collection[str]) -> bool:
    """Return whether earlier sources already cover a check's family.

    Args:
        check: check from a later source.
        covered: families of the usable checks so far.
        by_ci: kinds of the usable checks from CI. These kinds are covered in all languages.
    """
    family = family_of(check)
    return family in covered or family[0] in by_ci
