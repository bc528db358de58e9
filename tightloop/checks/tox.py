"""Commands that tox environments and nox sessions run."""

import ast
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any

from tightloop.checks.commands import Origin, Project
from tightloop.checks.files import read_ini, read_toml_text, table_of

_TEMPORARY = (
    "envtmpdir",
    "env_tmp_dir",
    "toxworkdir",
    "work_dir",
    "temp_dir",
    "envdir",
    "env_dir",
    "envlogdir",
    "env_log_dir",
)
"""Names of tox's own folders, which are not part of the project."""


# -- tox ----------------------------------------------------------------------------------------------------------


def _tox_config(project: Project, folder: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the path of tox's configuration and its sections. Lists are joined with newlines."""
    legacy = project.text("tox.ini", folder)
    name = "tox.ini"
    if "[tox" not in legacy and "[testenv" not in legacy:
        document = read_toml_text(project.text("pyproject.toml", folder))
        table = table_of(document, "tool", "tox")
        legacy, name = str(table.get("legacy_tox_ini", "")), "pyproject.toml"
        if not legacy:
            native = read_toml_text(project.text("tox.toml", folder)) or table
            return ("tox.toml" if project.text("tox.toml", folder) else name), _native_tox(native)
    sections = read_ini(legacy)
    if not any(section.startswith("testenv") for section in sections):
        sections, name = read_ini(project.text("setup.cfg", folder)), "setup.cfg"
    return name, {section: dict(values) for section, values in sections.items()}


def _native_tox(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    def section(values: Mapping[str, Any]) -> dict[str, Any]:
        commands = values.get("commands", [])
        lines = [
            " ".join(shlex.quote(word) if isinstance(word, str) else "" for word in command)
            for command in commands
            if isinstance(command, list)
        ]
        variables = values.get("set_env") or {}
        found: dict[str, Any] = {"commands": "\n".join(lines)} if lines else {}
        if isinstance(variables, dict):
            found["setenv"] = "\n".join(f"{key}={value}" for key, value in variables.items())
        if values.get("change_dir"):
            found["changedir"] = str(values["change_dir"])
        return found

    environments = table.get("env")
    base = section(table_of(table, "env_run_base"))
    result: dict[str, dict[str, Any]] = {"testenv": base}
    if isinstance(names := table.get("env_list"), list):
        result["tox"] = {"envlist": ",".join(name for name in names if isinstance(name, str))}
    for name, values in (environments if isinstance(environments, dict) else {}).items():
        if isinstance(values, dict):
            result[f"testenv:{name}"] = section(values)
    return result


def tox_environments(project: Project, named: list[str], factors: set[str], origin: Origin) -> list[str]:
    """Return the tox environments that a command would run.

    Args:
        project: the project.
        named: values of `-e`.
        factors: values of `-f`, which select environments.
        origin: origin of the command. Its variables may name environments.
    """
    named = [*named]
    named += [value for name, value in origin.variables if name == "TOXENV"]
    if named:
        return [part for name in named for part in expand_braces(name)]
    _, sections = _tox_config(project, origin.folder)
    listed = sections.get("tox", {})
    every = expand_braces(str(listed.get("envlist") or listed.get("env_list") or "py"))
    if factors:
        return [name for name in every if factors <= set(name.split("-"))]
    for line in str(sections.get("gh-actions", {}).get("python", "")).splitlines():
        version, _, names = line.partition(":")
        if version.strip() == project.python:
            return expand_braces(names.strip())
    return every


def expand_braces(text: str) -> list[str]:
    """Expand a list of names such as `py{310,311}-{a,b}, lint`."""
    names = []
    for part in re.split(r",(?![^{]*})|\s+(?![^{]*})", text):
        pieces = re.split(r"\{([^{}]*)\}", part.strip())
        choices = [[piece] if number % 2 == 0 else _choices(piece) for number, piece in enumerate(pieces)]
        names += ["".join(choice).replace(" ", "") for choice in product(*choices[:6])][:100] if part.strip() else []
    return [name for name in dict.fromkeys(names) if name]


def _choices(text: str) -> list[str]:
    """Expand the alternatives inside braces, such as `0-3` or `django,flask`."""
    if match := re.fullmatch(r"(\d{1,3})-(\d{1,3})", text):
        return [str(number) for number in range(int(match[1]), min(int(match[2]), int(match[1]) + 50) + 1)]
    return text.split(",")


def tox_commands(
    project: Project, environments: list[str], origin: Origin, posargs: str = ""
) -> Iterator[tuple[Origin, str]]:
    """Yield the commands of tox environments with their origins. Environments for other interpreters are skipped."""
    name, sections = _tox_config(project, origin.folder)
    source = posixpath.join(origin.folder, name)
    fitting = [each for each in environments if _fits(each, project.python)]
    for environment in fitting or environments[:1]:
        values = {**sections.get("testenv", {}), **_tox_section(sections, environment)}
        factors = {*environment.split("-"), environment}
        change = _tox_value(str(values.get("changedir") or values.get("change_dir") or ""), sections, environment, "")
        folder = posixpath.normpath(posixpath.join(origin.folder, change)) if change else origin.folder
        # A folder that tox creates has nothing to test: it keeps the source out of the way of the installed package.
        folder = folder if folder != "." and project.has_folder(folder) else origin.folder
        top = posixpath.relpath(origin.folder or ".", folder or ".")
        packages = posixpath.join(top, "src") if project.has_folder(posixpath.join(origin.folder, "src")) else top
        places = {"toxinidir": top, "tox_root": top, "env_site_packages_dir": packages, "envsitepackagesdir": packages}
        variables = []
        # tox passes on only those variables that the configuration lists.
        for line in _tox_lines(values, "setenv", "set_env", factors=factors):
            key, _, value = _tox_value(line, sections, environment, posargs, places).partition("=")
            if key.strip() and "{" not in value:
                variables.append((key.strip(), value.strip()))
        place = Origin(source, folder, tuple(variables), origin.inside)
        for line in _tox_lines(values, "commands", factors=factors):
            command = _tox_value(line, sections, environment, posargs, places).strip()
            # tox ignores the exit status after `-`, so the command decides nothing; `!` inverts it.
            if command and not command.startswith("-"):
                yield place, command


def _tox_section(sections: Mapping[str, dict[str, Any]], environment: str) -> dict[str, Any]:
    for section, values in sections.items():
        if section.startswith("testenv:") and environment in expand_braces(section.removeprefix("testenv:")):
            return values
    return {}


def _fits(environment: str, python: str) -> bool:
    """Return whether a tox environment works with the installed interpreter, or does not require a particular one."""
    versions = re.findall(r"(?:^|-)(?:py)?(\d)\.?(\d*)(?=-|$)", environment)
    if re.search(r"(?:^|-)(?:pypy|jython)", environment):
        return False
    return not versions or not python or any(f"{major}.{minor}" == python or not minor for major, minor in versions)


def _tox_lines(values: Mapping[str, Any], *names: str, factors: set[str]) -> Iterator[str]:
    text = next((str(values[name]) for name in names if values.get(name)), "")
    for line in re.sub(r"\\\r?\n\s*", " ", text).splitlines():
        match = re.match(r"\s*([!\w.{},-]+):\s+(.*)", line)
        if match is None:
            yield line
        elif any(
            all((part[1:] not in factors) if part.startswith("!") else (part in factors) for part in name.split("-"))
            for name in expand_braces(match[1])
        ):
            yield match[2]


def _tox_value(
    text: str,
    sections: Mapping[str, dict[str, Any]],
    environment: str,
    posargs: str,
    places: Mapping[str, str] = MappingProxyType({}),
) -> str:
    def replace(match: re.Match[str]) -> str:
        head, _, rest = match[1].partition(":")
        if head in ("posargs", "tty"):
            return posargs or rest if head == "posargs" else ""
        if head == "env":
            return rest.partition(":")[2]
        if reference := re.fullmatch(r"\[([^\]]+)\](\w+)", match[1]):
            return str(sections.get(reference[1], {}).get(reference[2], ""))
        known = {
            "envname": environment,
            "env_name": environment,
            "/": "/",
            "envpython": "python",
            "env_python": "python",
        }
        known |= dict.fromkeys(_TEMPORARY, "/tmp/tox") | dict(places)  # noqa: S108 - private to the sandbox
        return known.get(match[1], match[0])

    for _ in range(4):
        text = re.sub(r"(?<!\\)\{([^{}]*)\}", replace, text)
    return text


# -- nox ----------------------------------------------------------------------------------------------------------


def nox_commands(project: Project, sessions: list[str], origin: Origin) -> Iterator[tuple[Origin, str]]:
    """Yield the commands of nox sessions with their origins.

    If `sessions` is empty, use the sessions that nox runs by default.
    """
    try:
        module = ast.parse(project.text("noxfile.py", origin.folder))
    except (SyntaxError, ValueError, RecursionError):
        return
    source = posixpath.join(origin.folder, "noxfile.py")
    default: list[str] = []
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.Assign) and "nox.options.sessions" in map(ast.unparse, targets):
            default = [word for word in _strings(node.value) if word]
    names = [re.sub(r"[(\-]\d.*$", "", name) for name in sessions or default]
    for function in module.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        decorator = next((d for d in function.decorator_list if "session" in ast.unparse(d)), None)
        if decorator is None:
            continue
        keywords = {k.arg: k.value for k in decorator.keywords} if isinstance(decorator, ast.Call) else {}
        title = next(iter(_strings(keywords["name"])), "") if "name" in keywords else function.name
        if names and title not in names and function.name not in names:
            continue
        place = Origin(source, origin.folder, origin.variables, origin.inside)
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("session.run", "session.run_always"):
                yield from _nox_run(call, place)


def _nox_run(call: ast.Call, origin: Origin) -> Iterator[tuple[Origin, str]]:
    words: list[str] = []
    for argument in call.args:
        # `*session.posargs` is empty by default. A part that is computed in any other way is left out.
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            words.append(argument.value)
        elif not isinstance(argument, ast.Starred):
            return
    environment = next((k.value for k in call.keywords if k.arg == "env"), None)
    variables = dict(origin.variables)
    if isinstance(environment, ast.Dict):
        for key, value in zip(environment.keys, environment.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                variables[str(key.value)] = str(value.value)
    yield Origin(origin.source, origin.folder, tuple(variables.items()), origin.inside), shlex.join(words)


def _strings(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
