"""Fixes that do not need a model: linters, formatters and remembered commands."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import NamedTuple

from tightloop.episode.check import CheckReport, CheckResult, CheckStatus
from tightloop.episode.failure import find_explaining_line
from tightloop.episode.progress.course import HistoryEntry, command_text, one_line
from tightloop.memory import Match, Recollection
from tightloop.safety.commands.shell import read_script
from tightloop.value import Value, clip


class KnownBug(NamedTuple):
    """A ruff rule that fixes a known bug.

    `words` matches the output of tests or type checkers that fail because of the bug.
    """

    code: str
    cause: str
    words: str
    """Pattern that indicates the bug."""
    unsafe: bool = False
    """True if ruff marks every fix for the rule as unsafe."""


PROBES = ("F632", "F901", "B006", "E711", "UP035")
"""Bug-finding rules with fixes, which are tried together if the failing tests give no hint."""


@cache
def known_bugs() -> tuple[KnownBug, ...]:
    """Load the known bugs from `known_bugs.toml`."""
    data = tomllib.loads((resources.files("tightloop.episode") / "known_bugs.toml").read_text("utf-8"))
    return tuple(KnownBug(**{**bug, "words": "".join(bug["words"])}) for bug in data["bugs"])


_RUNNERS: dict[str, str] = {
    **dict.fromkeys(("uv", "poetry", "pdm", "pipenv", "hatch", "rye", "pixi"), "run"),
    **dict.fromkeys(("pnpm", "npm"), "exec"),
    **dict.fromkeys(("uvx", "npx", "bunx", "yarn"), ""),
}
"""Launchers, each with the subcommand that starts another program."""
_PREFIXES = frozenset({"env", "time", "exec", "command", "nice"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
# Launcher options that consume the next word.
_RUNNER_VALUES = frozenset({"--with", "--group", "--extra", "--package", "--python", "-p", "-e", "--project"})
_PYTHON = re.compile(r"^python(?:\d+(?:\.\d+)?)?$")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_ECHOED = re.compile(r"^\s*(?:[>$+]\s+)?(\S.*)$")
_DEPTH = 3
"""Maximum depth of nested shells to parse, such as `sh -c "bash -c '...'"`."""


class ToolCall(Value):
    """A program that a shell command starts."""

    launcher: tuple[str, ...] = ()
    """Words before the program, such as `uv run` or `python -m`."""
    program: str
    """The program as written, such as `.venv/bin/ruff`."""
    args: tuple[str, ...] = ()
    folder: str = ""
    """Folder of the preceding `cd`, as in `cd web && ...`. If empty, it is the root of the tree."""

    @property
    def name(self) -> str:
        """Name of the program, without its folder."""
        return _basename(self.program)

    @property
    def starts(self) -> str:
        """Executable to start: the launcher if there is one, otherwise the program."""
        return self.launcher[0] if self.launcher else self.program


def tool_calls(command: str) -> tuple[ToolCall, ...]:
    """Return the programs that a shell command starts, in order.

    Supported syntax includes `&&`, `;`, pipes, redirections, `VAR=x`, `cd folder &&`, `$(...)`,
    `sh -c '...'`, `uv run`, `npx` and `python -m`. The result is empty if the command cannot be parsed.
    """
    return tuple(_calls(command, _DEPTH))


def echoed_calls(output: str, names: frozenset[str]) -> tuple[ToolCall, ...]:
    """Return the tool calls that a task runner, such as make or npm, echoed to its output.

    Only the tools in `names` are recognized.
    """
    calls: list[ToolCall] = []
    for line in output.splitlines():
        if match := _ECHOED.match(line):
            calls.extend(call for call in tool_calls(match.group(1)) if call.name in names)
    return tuple(calls)


def _calls(command: str, depth: int) -> Iterator[ToolCall]:
    script = read_script(command)
    if depth == 0 or not script.is_complete:
        return
    folder = ""
    for simple in script.commands:
        call = _unwrap(list(simple.argv))
        if call is None:
            continue
        # The option may be bundled, as in `bash -lc`.
        scripts = (value for option, value in pairwise(call.args) if option.startswith("-") and option.endswith("c"))
        if call.name in _SHELLS and (inner := next(scripts, "")):
            yield from _calls(inner, depth - 1)
        elif call.name == "cd" and call.args:
            folder = _join_folder(folder, call.args[0])
        else:
            yield call.evolve(folder=folder)


def _unwrap(tokens: list[str]) -> ToolCall | None:
    """Split a command into the launcher, such as `uv run`, and the tool that it launches."""
    launcher: list[str] = []
    rest = list(tokens)
    while rest:
        length = _launcher_length(rest)
        if length == 0:
            return ToolCall(launcher=tuple(launcher), program=rest[0], args=tuple(rest[1:]))
        name = _basename(rest[0])
        # Only what selects the environment matters to a fix; `env`, `time` and assignments are dropped.
        if name in _RUNNERS or _PYTHON.match(name):
            launcher.extend(rest[:length])
        rest = rest[length:]
    return None


def _launcher_length(tokens: list[str]) -> int:
    """Return the number of words in the launcher, or 0 if there is no launcher."""
    name = _basename(tokens[0])
    if name in _PREFIXES or _ASSIGNMENT.match(tokens[0]):
        return 1
    if name == "timeout":  # its first argument is the duration
        return min(2, len(tokens))
    if _PYTHON.match(name):
        return tokens.index("-m") + 1 if "-m" in tokens[:-1] else 0
    verb = _RUNNERS.get(name)
    # `uv sync` is uv itself; only `uv run` starts another program.
    if verb is None or (verb and tokens[1:2] != [verb]):
        return 0
    end = 2 if verb else 1
    while end < len(tokens) and tokens[end].startswith("-"):
        end += 2 if tokens[end] in _RUNNER_VALUES else 1
    return end if end < len(tokens) else 0


def _basename(program: str) -> str:
    return program.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".exe")


def _join_folder(folder: str, further: str) -> str:
    if further.startswith("/") or not folder:
        return further.rstrip("/") if further not in (".", "./") else ""
    return f"{folder}/{further.rstrip('/')}"


_CLIPPED = clip("a long text", 7)[:5]
"""Text with which a truncated output starts."""
_KEPT_VALUES = frozenset(
    {"--config", "--exclude", "--extend-exclude", "--target-version", "--line-length"}
    | {"--per-file-ignores", "--extension"}
)
"""Options that affect what ruff finds.

The options in `_DROPPED_VALUES` affect the selection and the output format.
"""
_DROPPED_VALUES = frozenset(
    {"--select", "--ignore", "--extend-select", "--extend-ignore", "--output-format", "--output-file", "-o"}
    | {"--cache-dir", "--fixable", "--unfixable", "--extend-fixable", "--color", "--dummy-variable-rgx"}
)
_KEPT = frozenset({"--isolated", "--preview", "--no-preview", "--no-respect-gitignore", "--force-exclude"})
_CODE = re.compile(r"(?:^|[\s\"(])([A-Z]{1,6}\d{3,4})\b(?!-)")
_SUMMARY = re.compile(r"^(?:Found \d+ errors?|\[\*\] \d+ fixable|No fixes available)", re.MULTILINE)
_SAFE_OFFER = re.compile(r"\[\*\] \d+ (?:potentially )?fixable")
_UNSAFE_OFFER = re.compile(r"unsafe fix(?:es)? available|hidden fix")
_LATE = ("F401", "I001")
"""Rules to apply last, because other fixes leave unused and unsorted imports behind."""

NEVER_SAFE = frozenset({"B006", "B011", "B905", "E711", "E712", "F601", "F841", "RUF013", "RUF024"})
"""Rules whose fixes ruff always marks as unsafe ("Fix safety" in `ruff rule`).

Trying a safe fix for them wastes an iteration.
"""


class RuffRules(Value):
    """Information about ruff's rules, as reported by ruff.

    If the table is empty, every fix is tried.
    """

    without_fix: frozenset[str] = frozenset()
    """Codes of the rules for which ruff says "Fix is not available"."""
    problem: str = ""
    """Reason why ruff could not be queried. Empty if it responded or was not needed."""


def read_rules(listed: str) -> RuffRules:
    """Parse the output of `ruff rule --all --output-format json`.

    Lines that a launcher prints before or after the JSON are ignored.

    Raises:
        ValueError: the text does not contain the expected JSON.
    """
    try:
        # raw_decode stops at the end of the JSON; json.loads would fail on what a launcher prints after it.
        listed_rules, _ = json.JSONDecoder().raw_decode(listed, max(listed.find("[\n"), 0))
        rules = [(rule["code"], rule["fix_availability"]) for rule in listed_rules]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a list of ruff rules: {error!r}") from error
    return RuffRules(without_fix=frozenset(code for code, fix in rules if code and fix == "None"))


def is_lint(call: ToolCall) -> bool:
    """Return whether a call is `ruff check`."""
    return call.name == "ruff" and "check" in call.args


def named_rules(result: CheckResult) -> tuple[str, ...]:
    """Return the rules that `ruff check` reported, in the order in which they should be fixed."""
    listed = (code for code in result.failing if _CODE.fullmatch(code))
    codes = tuple(dict.fromkeys((*listed, *_CODE.findall(result.tail))))
    return tuple(sorted(codes, key=lambda code: _LATE.index(code) + 1 if code in _LATE else 0))


def offered_fixes(tail: str, code: str, rules: RuffRules) -> tuple[bool, bool]:
    """Return whether ruff offers a safe fix and an unsafe fix for a rule.

    Both values are True if ruff's output does not contain this information.
    """
    if code in rules.without_fix:
        return False, False
    may_be_safe = code not in NEVER_SAFE
    # Without its summary, as in other output formats, ruff does not say which findings it can fix.
    if not _SUMMARY.search(tail):
        return may_be_safe, True
    safe = may_be_safe and bool(_SAFE_OFFER.search(tail))
    # In a complete output the finding itself must be marked, because the summary counts all rules together.
    if not tail.startswith(_CLIPPED):
        safe = safe and f"{code} [*]" in tail
    return safe, safe or not may_be_safe or bool(_UNSAFE_OFFER.search(tail))


def fix_command(
    start: Iterable[str], code: str, *, unsafe: bool = False, options: Iterable[str] = (), paths: Iterable[str] = (".",)
) -> tuple[str, ...]:
    """Return the ruff command that applies the fixes for one rule.

    The command fails only if ruff cannot run.
    """
    # Remaining findings are left to the next plan: --exit-zero keeps them from failing this step.
    safety = ("--unsafe-fixes",) if unsafe else ()
    return (*start, "check", "--select", code, "--fix", *safety, "--exit-zero", *options, *paths)


def selected_rules(call: ToolCall) -> tuple[str, ...]:
    """Return the rule prefixes that a `ruff check` command selects. The default is `F`."""
    selected = [value for option, value in zip(call.args, call.args[1:], strict=False) if option == "--select"]
    selected.extend(argument.removeprefix("--select=") for argument in call.args if argument.startswith("--select="))
    prefixes = tuple(",".join(selected).split(",")) if selected else ("F",)
    # An empty prefix matches every rule.
    return tuple("" if prefix == "ALL" else prefix for prefix in prefixes)


def kept_arguments(call: ToolCall) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths in a `ruff check` command, and the options that the fix command should reuse."""
    options: list[str] = []
    paths: list[str] = []
    arguments = iter(call.args)
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if name in _KEPT_VALUES | _DROPPED_VALUES:
            # The value is consumed in any case; otherwise it would be taken for a path.
            value = () if equals else (next(arguments, ""),)
            options.extend((argument, *value) if name in _KEPT_VALUES else ())
        elif argument.startswith("-"):
            options.extend((argument,) if argument in _KEPT else ())
        elif argument != "check":
            paths.append(argument)
    return tuple(options), tuple(
        (f"{call.folder}/{path}".removesuffix("/.") if call.folder else path) for path in paths or ["."]
    )


RUNS_PER_COMMAND = 3
"""Maximum number of times to run a command, which stops two formatters from undoing each other's work forever."""
ERROR_CHARACTERS = 120


class Fix(Value):
    """Command that may fix one cause of a failing check."""

    id: str
    """Id that is unique within a report, such as `ruff:F401` or `ruff:F401:unsafe`."""
    title: str
    run: tuple[str, ...]
    diagnosis: str
    scope: tuple[str, ...] = ()
    """Globs of the files that the fix is expected to change. If empty, it may change any file."""
    check: str = ""
    """Name of the failing check."""
    after: str = ""
    """Command that must be exhausted first, as formatted by `command_text`."""


class _Use(NamedTuple):
    """A tool that a check calls. An allowed launcher is used if possible."""

    result: CheckResult
    call: ToolCall

    @property
    def start(self) -> tuple[str, ...]:
        return (*self.call.launcher, self.call.program)


class _Formatter(Value):
    """A rule that converts a formatter's check command to a formatting command."""

    name: str
    title: str
    verb: str = ""
    drop: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    no_fix: str = ""
    """Pattern that matches the output if it reports findings without fixes."""


_DATA = tomllib.loads((resources.files("tightloop.episode") / "formatters.toml").read_text("utf-8"))
_FORMATTERS = tuple(_Formatter(**entry) for entry in _DATA["formatters"])
_TESTS = frozenset({"pytest", "py.test", "unittest", "tox", "nox"})
_PYTHON_TOOLS = _TESTS | {"mypy", "python", "python3"}
_TOOLS = frozenset({*(tool.name for tool in _FORMATTERS), *_TESTS, "mypy"})


class FixFinder:
    """Finds commands that may fix the failing checks, using the project's own tools."""

    def __init__(self, report: CheckReport, tried: Sequence[HistoryEntry] = (), programs: Sequence[str] = ()) -> None:
        """Collect the tools that the checks call.

        `tried` is ordered from oldest to newest. If `programs` is empty, all programs are allowed.
        """
        self._report = report
        self._tried = tried
        self._programs = programs
        self._failed = self._uses(report.failed)

    @property
    def ruff(self) -> tuple[str, ...]:
        """The project's ruff command if ruff causes a check to fail, otherwise an empty tuple."""
        return next((use.start for use in self._failed if is_lint(use.call) and named_rules(use.result)), ())

    def fixes(self, rules: RuffRules) -> tuple[Fix, ...]:
        """Return the fixes that have not been tried, best first."""
        return tuple(fix for fix in self._open(rules) if self._may_run(fix.run[0]))

    def select_patterns(self, recalled: Sequence[Recollection], *, exact: bool) -> tuple[Recollection, ...]:
        """Select the patterns to repeat for the failing checks.

        Each check gets the most reliable pattern for the same failure. If no check has such a pattern, the
        first pattern for a similar failure is selected.

        Args:
            recalled: recalled patterns, most reliable first.
            exact: True to ignore patterns for similar failures.
        """
        usable = [recollection for recollection in recalled if self._is_usable(recollection)]
        # Reversed, so that the first and most reliable pattern of each check wins.
        same = {
            recollection.check: recollection
            for recollection in reversed(usable)
            if recollection.match is Match.SIGNATURE
        }
        ordered = tuple(recollection for recollection in usable if recollection in same.values())
        return ordered or (() if exact else tuple(usable[:1]))

    def _is_usable(self, recollection: Recollection) -> bool:
        """Return True if all commands are allowed and running them again could help."""
        commands = recollection.pattern.commands if recollection.pattern else ()
        may_run = all(command and self._may_run(command[0]) for command in commands)
        return bool(commands) and may_run and not is_rerun_useless(command_text(commands[0]), self._tried)

    def why_none(self, rules: RuffRules) -> str:
        """Explain why there are no more fixes to try.

        The text names the failing check, quotes the last error and suggests what a person can do.
        """
        if not self._report.failed:
            return "no check fails, so there is nothing to plan. Add a check that shows what is missing"
        result = self._report.failed[0]
        name = one_line(result.name, 60)
        parts = [f"no automatic fix is left for '{name}' ({result.status.value}): {last_error(result)}"]
        if result.status is CheckStatus.NOT_FOUND:
            parts.append("Install the program that the check runs in the workspace")
        named = [code for use in self._failed if is_lint(use.call) for code in named_rules(use.result)]
        if unfixable := [code for code in dict.fromkeys(named) if code in rules.without_fix]:
            parts.append(f"ruff has no fix for {', '.join(unfixable[:5])}")
        if rules.problem:
            parts.append(one_line(f"Cannot tell which rules ruff can fix: {rules.problem}", ERROR_CHARACTERS))
        if missing := next((fix.run[0] for fix in self._open(rules) if not self._may_run(fix.run[0])), ""):
            allowed = ", ".join(self._programs[:8])
            parts.append(f"A fix needs {missing}, which the executor is not allowed to run (allowed: {allowed})")
        parts.append(
            "Fix the code by hand and retry, or set OPENAI_API_KEY for the worker, so that a model does the planning"
        )
        return ". ".join(part.rstrip(".") for part in parts)

    def _open(self, rules: RuffRules) -> tuple[Fix, ...]:
        """Return the fixes that have not been tried. Guesses are returned only if there is no specific fix."""
        return self._drop_useless((*self._known_bugs(), *self._lint(rules), *self._formats())) or self._drop_useless(
            [*self._probe()]
        )

    def _drop_useless(self, fixes: Sequence[Fix]) -> tuple[Fix, ...]:
        tried = self._tried
        # Reversed, so that the first fix with a command wins; reversed again for the order.
        by_command = {
            command_text(fix.run): fix
            for fix in reversed(fixes)
            if not is_rerun_useless(command_text(fix.run), tried)
            and (not fix.after or is_rerun_useless(fix.after, tried))
        }
        return tuple(reversed(by_command.values()))

    def _may_run(self, program: str) -> bool:
        return not self._programs or program in self._programs or program.rsplit("/", 1)[-1] in self._programs

    def _uses(self, results: Sequence[CheckResult]) -> tuple[_Use, ...]:
        uses: list[_Use] = []
        for result in results:
            calls = tool_calls(result.run)
            # `make lint` hides its tools, but make and npm print each command before they run it.
            if not any(call.name in _TOOLS for call in calls):
                calls = (*calls, *echoed_calls(result.tail, _TOOLS))
            for call in calls:
                # Drop a launcher that must not run if the tool itself may.
                direct = call.launcher and not self._may_run(call.starts) and call.name in self._programs
                uses.append(_Use(result, call.evolve(launcher=(), program=call.name) if direct else call))
        return tuple(uses)

    def _python_results(self, names: frozenset[str]) -> tuple[CheckResult, ...]:
        uses = (use for use in self._failed if use.call.name in names or use.result.counts.tool == "pytest")
        return tuple(dict.fromkeys(use.result for use in uses))

    def _known_bugs(self) -> Iterator[Fix]:
        for result in self._python_results(_PYTHON_TOOLS):
            for bug in known_bugs():
                if re.search(bug.words, result.tail):
                    title = f"Fix {bug.code} with ruff"
                    yield self._everywhere(result, bug.code, title, f": {bug.cause}", unsafe=bug.unsafe)

    def _probe(self) -> Iterator[Fix]:
        """Yield a single fix that applies all rules that find bugs.

        Trying the rules one by one would be mistaken for a loop.
        """
        passed = self._uses([result for result in self._report.results if result.passed])
        # A linter check that passes has proven that these rules find nothing.
        clean = tuple(prefix for use in passed if is_lint(use.call) for prefix in selected_rules(use.call))
        codes = ",".join(code for code in PROBES if not code.startswith(clean))
        for result in self._python_results(_TESTS):
            if codes and result.status is CheckStatus.FAILED:
                why = " without naming the cause. A linter may recognize the bug"
                yield self._everywhere(result, codes, f"Try ruff rule {codes}", why, unsafe=True)

    def _everywhere(self, result: CheckResult, codes: str, title: str, why: str, *, unsafe: bool) -> Fix:
        """Return a fix for the whole project.

        The path of a test does not show where the bug is.
        """
        start = next((use.start for use in self._uses(self._report.results) if use.call.name == "ruff"), ("ruff",))
        return Fix(
            id=f"ruff:{codes}:everywhere",
            title=title,
            run=fix_command(start, codes, unsafe=unsafe),
            diagnosis=f"'{result.name}' fails ({last_error(result)}){why}",
            check=result.name,
        )

    def _lint(self, rules: RuffRules) -> Iterator[Fix]:
        """Yield the safe fixes for all rules, followed by the unsafe fixes."""
        later: list[Fix] = []
        for use in self._failed:
            for code in named_rules(use.result) if is_lint(use.call) else ():
                offers_safe, offers_unsafe = offered_fixes(use.result.tail, code, rules)
                safe, unsafe = _ruff_fixes(use, code)
                if offers_safe:
                    yield safe
                if offers_unsafe:
                    # ruff's unsafe fixes include its safe ones, so the safe attempt comes first.
                    later.append(unsafe.evolve(after=command_text(safe.run) if offers_safe else ""))
        yield from later

    def _formats(self) -> Iterator[Fix]:
        for tool in _FORMATTERS:
            for use in self._failed:
                call, result = use.call, use.result
                is_formatter = call.name == tool.name and (not tool.verb or tool.verb in call.args)
                unfixable = tool.no_fix and re.search(tool.no_fix, result.tail)
                # After a `cd`, only ruff's arguments are understood well enough to adapt.
                if not is_formatter or call.folder or unfixable or result.status is not CheckStatus.FAILED:
                    continue
                arguments = [argument for argument in call.args if argument not in (*tool.drop, tool.verb)]
                yield Fix(
                    id=" ".join(("format", tool.name, *arguments)),
                    title=tool.title,
                    run=(*use.start, *((tool.verb,) if tool.verb else ()), *tool.add, *arguments),
                    diagnosis=f"'{result.name}' fails: {last_error(result)}",
                    check=result.name,
                )


def last_error(result: CheckResult) -> str:
    """Return the most informative line of the output, truncated to `ERROR_CHARACTERS`."""
    return one_line(find_explaining_line(result.tail), ERROR_CHARACTERS) or "it printed nothing"


def is_rerun_useless(command: str, tried: Sequence[HistoryEntry]) -> bool:
    """Return True if running the command again cannot help.

    This is the case after `RUNS_PER_COMMAND` runs. It is also the case if the last run changed nothing,
    or if nothing has changed since the last run, because these tools fix everything in a single run.
    """
    runs = [index for index, entry in enumerate(tried) if entry.command == command]
    if not runs:
        return False
    if len(runs) >= RUNS_PER_COMMAND or not tried[runs[-1]].changed:
        return True
    return not any(entry.changed for entry in tried[runs[-1] + 1 :])


def _ruff_fixes(use: _Use, code: str) -> tuple[Fix, Fix]:
    """Return a fix that applies only ruff's safe fixes, and a fix that also applies the unsafe fixes."""
    options, paths = kept_arguments(use.call)
    name = use.result.name
    message = re.search(rf"{code}\b(?: \[\*\])?:? +(.+)", use.result.tail)
    scope = (path if path.endswith((".py", ".pyi", ".ipynb")) else f"{path.rstrip('/')}/**" for path in paths)
    safe = Fix(
        id=f"ruff:{code}",
        title=f"Fix {code} with ruff",
        run=fix_command(use.start, code, options=options, paths=paths),
        diagnosis=f"'{name}' reports {code}" + (f": {one_line(message.group(1), ERROR_CHARACTERS)}" if message else ""),
        scope=() if "." in paths else tuple(scope),
        check=name,
    )
    run = fix_command(use.start, code, unsafe=True, options=options, paths=paths)
    return safe, safe.evolve(id=f"ruff:{code}:unsafe", title=f"Fix {code} with ruff's unsafe fixes", run=run)
