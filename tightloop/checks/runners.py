"""Runners that execute other commands: tox, nox, make, just, package scripts, hatch, pdm, poe and pre-commit."""

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator

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
)
from tightloop.checks.tox import nox_commands, tox_commands, tox_environments

DEEPEST = 6
"""Maximum nesting depth of runners that call other runners."""
_COVERAGE = re.compile(
    r"\s+--(?:cov(?:-(?:report|config|context|fail-under|precision))?(?:=\S*|\s+(?!-)\S+)?|"
    r"cov-(?:append|branch|reset)|no-cov(?:-on-fail)?)(?=\s|$)"
)
"""Options of pytest-cov. The value of `--cov` may be a separate word, which only the plugin understands."""
Delegation = tuple[str, Iterator[FoundCheck]]


def checks_in(project: Project, script: str, origin: Origin) -> Iterator[FoundCheck]:
    """Yield the checks that a script runs, in order. Commands that check nothing are skipped."""
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
    """Yield a runner's command as one check, or the commands that it would run if the runner cannot run here."""
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
    """Return the name and the checks of a runner's command, or None if the program is not a runner.

    The name is empty if the runner itself cannot run here, because it installs an environment first.
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
    """Return the arguments after `--`, joined into one text."""
    return shlex.join(arguments[arguments.index("--") + 1 :]) if "--" in arguments else ""


def _option(arguments: tuple[str, ...], *names: str) -> list[str]:
    """Return the values of an option, which may be repeated or followed by several values."""
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
