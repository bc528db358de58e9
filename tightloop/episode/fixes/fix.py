"""Finds the fixes that a toolchain offers for failing checks, one cause at a time."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import NamedTuple

from tightloop.episode.check import CheckReport, CheckResult, CheckStatus
from tightloop.episode.failure.saying import telling_line
from tightloop.episode.fixes.known_bugs import PROBES, known_bugs
from tightloop.episode.fixes.ruff import (
    RuffRules,
    fix_command,
    is_lint,
    kept_arguments,
    named_rules,
    offered_fixes,
    selected_rules,
)
from tightloop.episode.fixes.toolcall import ToolCall, echoed_calls, tool_calls
from tightloop.episode.progress.history import HistoryEntry, command_text, one_line
from tightloop.memory.model import Match, Recollection
from tightloop.value import Value

RUNS_PER_COMMAND = 3
"""Two formatters that undo each other's work are stopped by this."""
ERROR_CHARACTERS = 120


class Fix(Value):
    """One command that may fix one cause."""

    id: str
    """Unique among the fixes of one report, such as `ruff:F401` or `ruff:F401:unsafe`."""
    title: str
    run: tuple[str, ...]
    diagnosis: str
    scope: tuple[str, ...] = ()
    """Globs that it is expected to change; empty: anything."""
    check: str = ""
    """Name of the failing check."""
    after: str = ""
    """Command, as `command_text` writes it, that must be exhausted before this one is tried."""


class _Use(NamedTuple):
    """A tool that a check calls, started in a way that is allowed where there is one."""

    result: CheckResult
    call: ToolCall

    @property
    def start(self) -> tuple[str, ...]:
        return (*self.call.launcher, self.call.program)


class _Formatter(Value):
    """Turns the check of a formatter into a run of the formatter."""

    name: str
    title: str
    verb: str = ""
    drop: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    no_fix: str = ""
    """Pattern of an output that says that there are findings but no fixes."""


_DATA = tomllib.loads((resources.files("tightloop.episode.fixes") / "formatters.toml").read_text("utf-8"))
_FORMATTERS = tuple(_Formatter(**each) for each in _DATA["formatters"])
_TESTS = frozenset({"pytest", "py.test", "unittest", "tox", "nox"})
_PYTHON = _TESTS | {"mypy", "python", "python3"}
_TOOLS = frozenset({*(tool.name for tool in _FORMATTERS), *_TESTS, "mypy"})


class FixFinder:
    """Finds what a toolchain can fix in one report."""

    def __init__(self, report: CheckReport, tried: Sequence[HistoryEntry] = (), programs: Sequence[str] = ()) -> None:
        """Read which tools the checks call; `tried` is oldest first, no `programs` means that any may be run."""
        self._report = report
        self._tried = tried
        self._programs = programs
        self._failed = self._uses(report.failed)

    @property
    def ruff(self) -> tuple[str, ...]:
        """How the project starts the ruff whose findings fail a check; empty where none does."""
        return next((use.start for use in self._failed if is_lint(use.call) and named_rules(use.result)), ())

    def fixes(self, rules: RuffRules) -> tuple[Fix, ...]:
        """Return what is left to try, the best first."""
        return tuple(fix for fix in self._open(rules) if self._may_run(fix.run[0]))

    def remembered(self, found: Sequence[Recollection], *, exact: bool) -> tuple[Recollection, ...]:
        """Return what to do again: for each check what fixed the same failure, else the first that fixed one like it.

        Args:
            found: what was recalled, the surest first.
            exact: leave out what fixed other failures.
        """
        usable = [one for one in found if self._is_usable(one)]
        same = {one.check: one for one in reversed(usable) if one.match is Match.SIGNATURE}
        ordered = tuple(one for one in usable if one in same.values())
        return ordered or (() if exact else tuple(usable[:1]))

    def _is_usable(self, one: Recollection) -> bool:
        """Return whether all commands may be run, and are worth it."""
        commands = one.pattern.commands if one.pattern else ()
        may_run = all(command and self._may_run(command[0]) for command in commands)
        return bool(commands) and may_run and not exhausted(command_text(commands[0]), self._tried)

    def why_none(self, rules: RuffRules) -> str:
        """Say why no fix is left: the failing check, its last error, and what a person could do."""
        if not self._report.failed:
            return "no check fails, so nothing is left to plan from: name a command that shows what is missing"
        result = self._report.failed[0]
        name = one_line(result.name, 60)
        parts = [f"no toolchain fix is left for '{name}' ({result.status.value}): {last_error(result)}"]
        if result.status is CheckStatus.NOT_FOUND:
            parts.append("Install its program in the workspace")
        named = [code for use in self._failed if is_lint(use.call) for code in named_rules(use.result)]
        if unfixable := [code for code in dict.fromkeys(named) if code in rules.without_fix]:
            parts.append(f"ruff has no fix for {', '.join(unfixable[:5])}")
        if rules.problem:
            parts.append(one_line(f"Which rules ruff can fix is unknown: {rules.problem}", ERROR_CHARACTERS))
        if missing := next((fix.run[0] for fix in self._open(rules) if not self._may_run(fix.run[0])), ""):
            allowed = ", ".join(self._programs[:8])
            parts.append(f"A fix needs {missing}, which the executor may not run (it may run {allowed})")
        parts.append("Set OPENAI_API_KEY for the LLM planner, or fix it by hand and resume")
        return ". ".join(part.rstrip(".") for part in parts)

    def _open(self, rules: RuffRules) -> tuple[Fix, ...]:
        """Return what was not tried yet; guesses only where nothing is known."""
        return self._left((*self._known_bugs(), *self._lint(rules), *self._formats())) or self._left([*self._probe()])

    def _left(self, fixes: Sequence[Fix]) -> tuple[Fix, ...]:
        tried = self._tried
        by_command = {
            command_text(fix.run): fix
            for fix in reversed(fixes)
            if not exhausted(command_text(fix.run), tried) and (not fix.after or exhausted(fix.after, tried))
        }
        return tuple(reversed(by_command.values()))

    def _may_run(self, program: str) -> bool:
        return not self._programs or program in self._programs or program.rsplit("/", 1)[-1] in self._programs

    def _uses(self, results: Sequence[CheckResult]) -> tuple[_Use, ...]:
        found: list[_Use] = []
        for result in results:
            calls = tool_calls(result.run)
            if not any(call.name in _TOOLS for call in calls):
                calls = (*calls, *echoed_calls(result.tail, _TOOLS))
            for call in calls:
                # A launcher that may not be run is left out where the tool itself may.
                direct = call.launcher and not self._may_run(call.starts) and call.name in self._programs
                found.append(_Use(result, call.evolve(launcher=(), program=call.name) if direct else call))
        return tuple(found)

    def _python_results(self, names: frozenset[str]) -> tuple[CheckResult, ...]:
        uses = (use for use in self._failed if use.call.name in names or use.result.counts.tool == "pytest")
        return tuple(dict.fromkeys(use.result for use in uses))

    def _known_bugs(self) -> Iterator[Fix]:
        for result in self._python_results(_PYTHON):
            for bug in known_bugs():
                if re.search(bug.words, result.tail):
                    title = f"Fix the bug with ruff rule {bug.code}"
                    yield self._everywhere(result, bug.code, title, f": {bug.cause}", unsafe=bug.unsafe)

    def _probe(self) -> Iterator[Fix]:
        """Yield one guess with all bug-finding rules at once: guesses one by one would look like going in circles."""
        passed = self._uses([result for result in self._report.results if result.passed])
        clean = tuple(prefix for use in passed if is_lint(use.call) for prefix in selected_rules(use.call))
        codes = ",".join(code for code in PROBES if not code.startswith(clean))
        for result in self._python_results(_TESTS):
            if codes and result.status is CheckStatus.FAILED:
                why = " without naming its cause; perhaps a bug that a linter knows"
                yield self._everywhere(result, codes, f"Try ruff rule {codes}", why, unsafe=True)

    def _everywhere(self, result: CheckResult, codes: str, title: str, why: str, *, unsafe: bool) -> Fix:
        """Apply rules to the whole project: the paths of the tests do not say where the bug is."""
        start = next((use.start for use in self._uses(self._report.results) if use.call.name == "ruff"), ("ruff",))
        return Fix(
            id=f"ruff:{codes}:everywhere",
            title=title,
            run=fix_command(start, codes, unsafe=unsafe),
            diagnosis=f"'{result.name}' fails ({last_error(result)}){why}",
            check=result.name,
        )

    def _lint(self, rules: RuffRules) -> Iterator[Fix]:
        """Yield the safe fixes of all rules first, then the unsafe ones."""
        later: list[Fix] = []
        for use in self._failed:
            for code in named_rules(use.result) if is_lint(use.call) else ():
                offers_safe, offers_unsafe = offered_fixes(use.result.tail, code, rules)
                safe, unsafe = _ruff_fixes(use, code)
                if offers_safe:
                    yield safe
                if offers_unsafe:
                    later.append(unsafe.evolve(after=command_text(safe.run) if offers_safe else ""))
        yield from later

    def _formats(self) -> Iterator[Fix]:
        for tool in _FORMATTERS:
            for use in self._failed:
                call, result = use.call, use.result
                wanted = call.name == tool.name and (not tool.verb or tool.verb in call.args)
                unfixable = tool.no_fix and re.search(tool.no_fix, result.tail)
                # Where the shell changed the folder first, only ruff's arguments are known well enough to follow.
                if not wanted or call.folder or unfixable or result.status is not CheckStatus.FAILED:
                    continue
                kept = [word for word in call.args if word not in (*tool.drop, tool.verb)]
                yield Fix(
                    id=" ".join(("format", tool.name, *kept)),
                    title=tool.title,
                    run=(*use.start, *((tool.verb,) if tool.verb else ()), *tool.add, *kept),
                    diagnosis=f"'{result.name}' fails: {last_error(result)}",
                    check=result.name,
                )


def last_error(result: CheckResult) -> str:
    """Return the line of the output that says most about the failure, at most `ERROR_CHARACTERS`."""
    return one_line(telling_line(result.tail), ERROR_CHARACTERS) or "it printed nothing"


def exhausted(command: str, tried: Sequence[HistoryEntry]) -> bool:
    """Return whether running the command again is useless.

    It is when its last run changed nothing, when nothing else changed the tree since (these tools fix all
    they can in one run), or when it ran `RUNS_PER_COMMAND` times.
    """
    runs = [index for index, entry in enumerate(tried) if entry.command == command]
    if not runs:
        return False
    if len(runs) >= RUNS_PER_COMMAND or not tried[runs[-1]].changed:
        return True
    return not any(entry.changed for entry in tried[runs[-1] + 1 :])


def _ruff_fixes(use: _Use, code: str) -> tuple[Fix, Fix]:
    """Return the fix of a rule with ruff's safe fixes, and the one with the unsafe ones too."""
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
