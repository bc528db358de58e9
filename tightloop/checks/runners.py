"""Runners that execute other commands: tox, nox, make, just, package scripts, hatch, pdm, poe and pre-commit."""

import ast
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any

from tightloop.checks.commands import (
    CheckKind,
    FoundCheck,
    Line,
    Origin,
    Project,
    kind_of,
    kind_of_name,
    program_of,
    refusal,
    script_kind,
    split_script,
    started_command,
)
from tightloop.checks.files import (
    just_recipes,
    makefile_targets,
    package_scripts,
    pre_commit_commands,
    project_scripts,
    read_ini,
    read_toml_text,
    table_of,
)

DEEPEST = 6
"""Maximum nesting depth of runners that call other runners."""
_COVERAGE = re.compile(
    r"\s+--(?:cov(?:-(?:report|config|context|fail-under|precision))?(?:=\S*|\s+(?!-)\S+)?|"
    r"cov-(?:append|branch|reset)|no-cov(?:-on-fail)?)(?=\s|$)"
)
"""Options of pytest-cov. The value of `--cov` may be a separate word, which only the plugin understands."""
Delegation = tuple[str, Iterator[FoundCheck]]


def checks_in(project: Project, script: str, origin: Origin) -> Iterator[FoundCheck]:
    """Yield the checks that a script runs, in order. Other commands are skipped."""
    for line in split_script(script, origin):
        yield from _checks_of_line(project, line)


def _checks_of(project: Project, commands: Iterable[tuple[Origin, str]]) -> Iterator[FoundCheck]:
    for origin, command in commands:
        yield from checks_in(project, command, origin)


def _checks_of_line(project: Project, line: Line) -> Iterator[FoundCheck]:
    at, replaced = started_command(line.words)
    words = line.words[at:]
    if not words:
        return
    text = _text_from(line, at) if replaced else line.text
    if words[0] == "-m":
        text, words = f"python {text}", ("python", *words)
    argv = program_of(words)
    folder = line.origin.folder
    # Variables of CI select environments, as in `tox -e $TOXENV`.
    argv = tuple(_with_variables(word, line.origin) for word in argv) if argv[:1] in (("tox",), ("nox",)) else argv
    if argv and len(line.origin.inside) < DEEPEST and line.text not in line.origin.inside:
        inside = Origin(line.origin.source, folder, line.origin.variables, (*line.origin.inside, line.text))
        delegation = _delegation(project, argv, inside, has_environment=replaced)
        if delegation is not None:
            yield from _delegated(project, line, text, argv, *delegation)
            return
    kind = kind_of(argv) or script_kind(project, words, folder)
    reason = refusal(project, line, argv, kind)
    if kind is None and reason not in ("it publishes",) and not reason.startswith("it needs the secret"):
        return
    yield FoundCheck(
        run=line.render(text),
        kind=kind or CheckKind.OTHER,
        source=line.origin.source,
        name=" ".join(argv[:2]) if argv[:1] and argv[0] in ("ruff", "cargo", "go", "node") else argv[0],
        not_used=reason,
        otherwise=tuple(_without_coverage(line, text, argv, kind)) if not reason else (),
    )


def _without_coverage(line: Line, text: str, argv: tuple[str, ...], kind: CheckKind | None) -> Iterator[FoundCheck]:
    """Yield a test command without its coverage options, because the coverage plugin may not be installed."""
    if argv[0] in ("pytest", "py.test"):
        plain = _COVERAGE.sub("", text)
    elif argv[:1] == ("coverage",) and (match := re.search(r"\s(-m\s+\w.*|(?!-)\S+\.py(?:\s.*)?)$", text)):
        plain = f"python {match[1]}"
    else:
        return
    if plain != text:
        yield FoundCheck(run=line.render(plain), kind=kind or CheckKind.TESTS, source=line.origin.source, name=argv[0])


def _with_variables(word: str, origin: Origin) -> str:
    variables = dict(origin.variables)
    return re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], match[0]), word)


def _text_from(line: Line, at: int) -> str:
    plain = line.text.split()
    # Without quotes and comments, the words are the text itself, and expansions such as `$ARGS` stay as they are.
    return " ".join(plain[at:]) if tuple(plain) == line.words else shlex.join(line.words[at:])


def _delegated(
    project: Project, line: Line, text: str, argv: tuple[str, ...], name: str, inner: Iterator[FoundCheck]
) -> Iterator[FoundCheck]:
    """Yield a runner's command as a single check.

    If the runner cannot run on this host, yield the checks that the runner would start.
    """
    checks = tuple(dict.fromkeys(inner))
    if not name:
        yield from checks
        return
    announced = kind_of_name(name)
    # A target name such as `test` says more than the name of its script, such as `checks.py`.
    kinds = [
        announced or check.kind if check.kind is CheckKind.OTHER else check.kind
        for check in checks
        if not check.not_used
    ]
    kind = min(kinds, key=list(CheckKind).index) if kinds else announced
    if kind is None:
        return
    publishing = next((check.not_used for check in checks if check.not_used == "it publishes"), "")
    yield FoundCheck(
        run=line.render(text),
        kind=kind,
        source=line.origin.source,
        name=name,
        not_used=refusal(project, line, argv, kind) or publishing,
        otherwise=tuple(check for check in checks if check.run != line.render(text)),
    )


def _delegation(project: Project, argv: tuple[str, ...], origin: Origin, *, has_environment: bool) -> Delegation | None:
    """Return a runner's name and the checks that it runs, or None if the program is not a runner.

    The name is empty if the runner cannot run here because it installs an environment first.
    """
    program, arguments = argv[0], argv[1:]
    folder = origin.folder
    operands = [argument for argument in arguments if not argument.startswith("-") and "=" not in argument]
    if program == "tox":
        # `-epy` has no space.
        named = [argument[2:] for argument in arguments if re.fullmatch(r"-e[\w,.{}-]+", argument)]
        named += _option(arguments, "-e", "--env")
        environments = tox_environments(project, named, set(_option(arguments, "-f")), origin)
        return "", _checks_of(project, tox_commands(project, environments, origin, _after(arguments)))
    if program == "nox":
        sessions = _option(arguments, "-s", "--session", "--sessions", "-e")
        return "", _checks_of(project, nox_commands(project, sessions, origin))
    if program in ("pre-commit", "prek") and arguments[:1] == ("run",):
        source = posixpath.join(folder, ".pre-commit-config.yaml")
        place = Origin(source, folder, origin.variables, origin.inside)
        commands = pre_commit_commands(project, operands[1:2], folder)
        return "", _checks_of(project, ((place, command) for command in commands))
    if program == "make":
        inner = _option(arguments, "-C", "--directory")
        where = posixpath.normpath(posixpath.join(folder, inner[0])) if inner else folder
        targets = [target for target in operands if target not in inner]
        return _make(project, targets, origin, where)
    if program == "just" and operands:
        recipe = just_recipes(project, folder).get(operands[0])
        return None if recipe is None else (operands[0], checks_in(project, recipe, origin))
    if program in ("npm", "yarn", "pnpm", "bun"):
        return _package_script(project, program, operands, origin)
    if program in ("hatch", "pdm", "poe", "taskipy", "task"):
        names = operands[1:] if operands[:1] == ["run"] else operands
        if program == "hatch" and operands[:1] in (["test"], ["fmt"]):
            text = "pytest" if operands == ["test"] else "ruff check ."
            return "", checks_in(project, text, origin)
        return ("", _project_script(project, names, origin)) if names else None
    # `uv run test` and `hatch run cov:test`: a script of the project, or any program.
    if has_environment and (scripts := project_scripts(project, folder)) and program in scripts:
        return "", _project_script(project, [program], origin)
    return None


def _after(arguments: tuple[str, ...]) -> str:
    """Return the arguments after `--` as one string."""
    return shlex.join(arguments[arguments.index("--") + 1 :]) if "--" in arguments else ""


def _option(arguments: tuple[str, ...], *names: str) -> list[str]:
    """Return the values of an option that may be repeated or take several values."""
    values: list[str] = []
    for at, argument in enumerate(arguments):
        if argument in names:
            for value in arguments[at + 1 :]:
                if value.startswith("-"):
                    break
                values.append(value)
        elif argument.startswith(tuple(f"{name}=" for name in names)):
            values.append(argument.partition("=")[2])
    return values


# -- make and just ------------------------------------------------------------------------------------------------


def _make(project: Project, names: list[str], origin: Origin, folder: str) -> Delegation | None:
    targets = makefile_targets(project, folder)
    names = names or list(targets)[:1]
    if not targets or not any(name in targets for name in names):
        return None
    place = Origin(origin.source, folder, origin.variables, origin.inside)

    def inner() -> Iterator[FoundCheck]:
        seen: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop(0)
            if name in targets and name not in seen:
                seen.add(name)
                needs, recipe = targets[name]
                waiting = [*needs, *waiting]
                yield from checks_in(project, recipe, place)

    return " ".join(names), inner()


# -- scripts of packages and projects -----------------------------------------------------------------------------


def _package_script(project: Project, program: str, operands: list[str], origin: Origin) -> Delegation | None:
    names = operands[1:] if operands[:1] in (["run"], ["run-script"]) else operands
    name = {"t": "test", "tst": "test"}.get(names[0], names[0]) if names else ""
    scripts = package_scripts(project, origin.folder)
    if name not in scripts or (operands[:1] == [name] and program == "npm" and name not in ("test", "start", "stop")):
        return None

    def inner() -> Iterator[FoundCheck]:
        source = posixpath.join(origin.folder, "package.json")
        place = Origin(source, origin.folder, origin.variables, origin.inside)
        for part in (f"pre{name}", name, f"post{name}"):
            for line in split_script(scripts.get(part, ""), place):
                for check in _checks_of_line(project, line):
                    into, separator, command = check.run.rpartition("&& ") if place.folder else ("", "", check.run)
                    if command.startswith(("npm ", "yarn ", "pnpm ")):
                        yield check
                    else:
                        # Programs of a package are found in its node_modules, which npm adds to PATH.
                        local = f'{into}{separator}PATH="$PWD/node_modules/.bin:$PATH" {command}'
                        yield check.evolve(run=local, otherwise=())

    return name, inner()


def _project_script(project: Project, names: list[str], origin: Origin) -> Iterator[FoundCheck]:
    scripts = project_scripts(project, origin.folder)
    source = posixpath.join(origin.folder, "pyproject.toml")
    place = Origin(source, origin.folder, origin.variables, origin.inside)
    name = names[0] if names else ""
    # hatch selects matrix entries with `+py=3.11` and `env:script`.
    text = scripts.get(name) or scripts.get(name.rpartition(":")[2], "")
    prefix = name.rpartition(":")[0]
    lines = []
    for line in text.splitlines():
        first, _, rest = line.strip().partition(" ")
        inner = scripts.get(f"{prefix}:{first}" if prefix else first)
        # `- command` ignores the exit status.
        if not line.strip().startswith("- "):
            lines.append(inner if inner and inner != text else f"{first} {rest}")
    # hatch's arguments, with their default.
    script = re.sub(r"\{args(?::([^{}]*))?\}", r"\1", "\n".join(lines))
    yield from checks_in(project, script if text else shlex.join(names), place)


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
    """Return the path and the sections of tox's configuration. Lists are joined with newlines."""
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
    """Yield the commands of tox environments with their origins. Skip environments for other interpreters."""
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
    """Return whether a tox environment can use the installed interpreter."""
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

    If `sessions` is empty, use nox's default sessions.
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
