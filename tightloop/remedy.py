"""Fixes that a toolchain offers for failing checks, one cause at a time, and what to say where it offers none."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tightloop.check import CheckReport, CheckResult, CheckStatus
from tightloop.history import HistoryEntry, command_text
from tightloop.ruff_rules import (
    WITHOUT_FIX,
    fix_command,
    is_lint,
    kept_arguments,
    named_rules,
    offered_fixes,
    selected_rules,
)
from tightloop.symptom import PROBES, SYMPTOMS, Symptom
from tightloop.toolcall import ToolCall, echoed_calls, tool_calls
from tightloop.value import Value

RUNS_PER_COMMAND = 3
"""Two formatters that undo each other's work are stopped by this."""
ERROR_CHARACTERS = 120


class Remedy(Value):
    """One command that may mend one cause."""

    id: str
    """Unique among the remedies of one report, such as `ruff:F401` or `ruff:F401:unsafe`."""
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
    """How the check of a formatter becomes the formatter itself."""

    name: str
    title: str
    verb: str = ""
    drop: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    no_fix: str = ""
    """Pattern of an output that says that there are findings but no fixes."""


_FORMATTERS = (
    _Formatter(name="isort", title="Sort imports", drop=("--check", "--check-only", "-c", "--diff", "-d")),
    _Formatter(
        name="eslint",
        title="Apply the fixes of eslint",
        add=("--fix",),
        no_fix=r"(?s)\d+ problems?(?!.*potentially fixable)",
    ),
    _Formatter(name="ruff", verb="format", title="Format with ruff", drop=("--check", "--diff")),
    _Formatter(name="black", title="Format with black", drop=("--check", "--diff")),
    _Formatter(
        name="prettier",
        title="Format with prettier",
        drop=("--check", "-c", "--list-different", "-l"),
        add=("--write",),
    ),
    _Formatter(name="gofmt", title="Format with gofmt", drop=("-l", "-d", "-e"), add=("-w",)),
    _Formatter(name="cargo", verb="fmt", title="Format with cargo", drop=("--check", "--")),
)
_TESTS = frozenset({"pytest", "py.test", "unittest", "tox", "nox"})
_PYTHON = _TESTS | {"mypy", "python", "python3"}
_TOOLS = frozenset({*(tool.name for tool in _FORMATTERS), *_TESTS, "mypy"})
_ERROR_LINES = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^E  +(?:assert\b|[\w.]*(?:Error|Exception|Warning)\b).*$",
        r"^E  +[^\s+].*$",
        r"^.*\b[A-Z]\w*(?:Error|Exception)\b.*$",
        r"^(?:\S*:\d+:\d+: )?[A-Z]{1,6}\d{3,4}\b.*$",
        r"^(?!Found ).*\berror\b.*$",
        r"^.*\S.*$",
    )
)
"""What says most about a failure, the best first: pytest's error, an exception, a finding, an error, anything."""


def remedies_for(
    report: CheckReport, tried: Sequence[HistoryEntry] = (), programs: Sequence[str] = ()
) -> tuple[Remedy, ...]:
    """Return what is left to try, the best first.

    Args:
        report: the last results.
        tried: what earlier iterations ran, oldest first.
        programs: programs that may be run; empty: any.
    """
    return tuple(remedy for remedy in _open(report, tried, programs) if _may_run(remedy.run[0], programs))


def cannot(report: CheckReport, tried: Sequence[HistoryEntry] = (), programs: Sequence[str] = ()) -> str:
    """Say why there is no remedy: the failing check, its last error, and what a person could do."""
    if not report.failed:
        return "no check fails, so there is nothing to plan from: name a command that shows what is missing"
    result = report.failed[0]
    parts = [f"no toolchain fix is left for '{_short(result.name, 60)}' ({result.status.value}): {last_error(result)}"]
    if result.status is CheckStatus.NOT_FOUND:
        parts.append("Install its program in the workspace")
    if unfixable := _unfixable(report):
        parts.append(f"ruff has no fix for {', '.join(unfixable[:5])}")
    if missing := next((r.run[0] for r in _open(report, tried, programs) if not _may_run(r.run[0], programs)), ""):
        parts.append(f"A fix needs {missing}, which the executor may not run (it may run {', '.join(programs[:8])})")
    parts.append("Set OPENAI_API_KEY for the LLM planner, or mend it by hand and resume")
    return ". ".join(part.rstrip(".") for part in parts)


def _unfixable(report: CheckReport) -> tuple[str, ...]:
    linted = (use.result for use in _uses(report.failed, ()) if is_lint(use.call))
    return tuple(dict.fromkeys(code for result in linted for code in named_rules(result) if code in WITHOUT_FIX))


def last_error(result: CheckResult) -> str:
    """Return the line of the output that says most about the failure, at most `ERROR_CHARACTERS`."""
    for pattern in _ERROR_LINES:
        if lines := pattern.findall(result.tail):
            return _short(" ".join(lines[-1].split()), ERROR_CHARACTERS)
    return "it printed nothing"


def exhausted(command: str, tried: Sequence[HistoryEntry]) -> bool:
    """Return whether running the command again is useless.

    It is when its last run changed nothing, when nothing else changed the tree since (these tools mend all
    they can in one run), or when it ran `RUNS_PER_COMMAND` times.
    """
    runs = [index for index, entry in enumerate(tried) if entry.command == command]
    if not runs:
        return False
    if len(runs) >= RUNS_PER_COMMAND or not tried[runs[-1]].changed:
        return True
    return not any(entry.changed for entry in tried[runs[-1] + 1 :])


def _open(report: CheckReport, tried: Sequence[HistoryEntry], programs: Sequence[str]) -> tuple[Remedy, ...]:
    """Return what was not tried yet; guesses only where nothing is known."""
    uses = _uses(report.failed, programs)
    known = _left((*_symptoms(report, uses, programs), *_lint(uses), *_formats(uses)), tried)
    return known or _left(tuple(_probes(report, uses, programs)), tried)


def _left(remedies: Sequence[Remedy], tried: Sequence[HistoryEntry]) -> tuple[Remedy, ...]:
    by_command = {
        command_text(remedy.run): remedy
        for remedy in reversed(remedies)
        if not exhausted(command_text(remedy.run), tried) and (not remedy.after or exhausted(remedy.after, tried))
    }
    return tuple(reversed(by_command.values()))


def _uses(results: Sequence[CheckResult], programs: Sequence[str]) -> tuple[_Use, ...]:
    found: list[_Use] = []
    for result in results:
        calls = tool_calls(result.run)
        if not any(call.name in _TOOLS for call in calls):
            calls = (*calls, *echoed_calls(result.tail, _TOOLS))
        found.extend(_Use(result, _startable(call, programs)) for call in calls)
    return tuple(found)


def _startable(call: ToolCall, programs: Sequence[str]) -> ToolCall:
    """Leave out a launcher that may not be run where the tool itself may."""
    if call.launcher and not _may_run(call.starts, programs) and call.name in programs:
        return call.model_copy(update={"launcher": (), "program": call.name})
    return call


def _may_run(program: str, programs: Sequence[str]) -> bool:
    return not programs or program in programs or program.rsplit("/", 1)[-1] in programs


def _symptoms(report: CheckReport, uses: Sequence[_Use], programs: Sequence[str]) -> Iterator[Remedy]:
    for result in _python_results(uses, _PYTHON):
        for symptom in SYMPTOMS:
            if re.search(symptom.words, result.tail):
                diagnosis = f"'{result.name}' fails ({last_error(result)}): {symptom.cause}"
                yield _by_rule(report, result, symptom, programs, diagnosis=diagnosis)


def _probes(report: CheckReport, uses: Sequence[_Use], programs: Sequence[str]) -> Iterator[Remedy]:
    """Yield one guess with all bug-finding rules at once: guesses one by one would look like going in circles."""
    passed = _uses([result for result in report.results if result.passed], programs)
    clean = tuple(prefix for use in passed if is_lint(use.call) for prefix in selected_rules(use.call))
    codes = ",".join(probe.code for probe in PROBES if not probe.code.startswith(clean))
    for result in _python_results(uses, _TESTS):
        if codes and result.status is CheckStatus.FAILED:
            diagnosis = f"'{result.name}' fails ({last_error(result)}) without naming its cause"
            guess = Symptom(words="", code=codes, cause="perhaps a bug that a linter knows", unsafe=True)
            yield _by_rule(report, result, guess, programs, diagnosis=f"{diagnosis}; {guess.cause}")


def _python_results(uses: Sequence[_Use], names: frozenset[str]) -> tuple[CheckResult, ...]:
    return tuple(
        dict.fromkeys(use.result for use in uses if use.call.name in names or use.result.counts.tool == "pytest")
    )


def _by_rule(
    report: CheckReport, result: CheckResult, symptom: Symptom, programs: Sequence[str], *, diagnosis: str
) -> Remedy:
    """Apply one rule to the whole project: the paths of the tests do not say where the bug is."""
    start = next((use.start for use in _uses(report.results, programs) if use.call.name == "ruff"), ("ruff",))
    return Remedy(
        id=f"ruff:{symptom.code}:everywhere",
        title=f"{'Mend the bug with' if symptom.words else 'Try'} ruff rule {symptom.code}",
        run=fix_command(start, symptom.code, unsafe=symptom.unsafe),
        diagnosis=diagnosis,
        check=result.name,
    )


def _lint(uses: Sequence[_Use]) -> Iterator[Remedy]:
    """Yield the safe fixes of all rules first, then the unsafe ones."""
    pairs = [_ruff_remedies(use, code) for use in uses if is_lint(use.call) for code in named_rules(use.result)]
    for remedy in (*(safe for safe, _ in pairs), *(unsafe for _, unsafe in pairs)):
        if remedy is not None:
            yield remedy


def _ruff_remedies(use: _Use, code: str) -> tuple[Remedy | None, Remedy | None]:
    options, paths = kept_arguments(use.call)
    tail, name = use.result.tail, use.result.name
    offers_safe, offers_unsafe = offered_fixes(tail, code)
    message = re.search(rf"{code}\b(?: \[\*\])?:? +(.+)", tail)
    safe = Remedy(
        id=f"ruff:{code}",
        title=f"Fix {code} with ruff",
        run=fix_command(use.start, code, options=options, paths=paths),
        diagnosis=f"'{name}' reports {code}" + (f": {_short(message.group(1), ERROR_CHARACTERS)}" if message else ""),
        scope=_scope(paths),
        check=name,
    )
    unsafe = safe.model_copy(
        update={
            "id": f"ruff:{code}:unsafe",
            "title": f"Fix {code} with ruff's unsafe fixes",
            "run": fix_command(use.start, code, unsafe=True, options=options, paths=paths),
            "after": command_text(safe.run) if offers_safe else "",
        }
    )
    return safe if offers_safe else None, unsafe if offers_unsafe else None


def _formats(uses: Sequence[_Use]) -> Iterator[Remedy]:
    for tool in _FORMATTERS:
        for result, call in uses:
            wanted = call.name == tool.name and (not tool.verb or tool.verb in call.args)
            # Where the shell changed the folder first, only ruff's arguments are known well enough to follow.
            if wanted and not call.folder and _has_fixes(result, tool):
                yield _format(_Use(result, call), tool)


def _has_fixes(result: CheckResult, tool: _Formatter) -> bool:
    return result.status is CheckStatus.FAILED and not (tool.no_fix and re.search(tool.no_fix, result.tail))


def _format(use: _Use, tool: _Formatter) -> Remedy:
    kept = [word for word in use.call.args if word not in (*tool.drop, tool.verb)]
    verb = (tool.verb,) if tool.verb else ()
    return Remedy(
        id=" ".join(("format", tool.name, *kept)),
        title=tool.title,
        run=(*use.start, *verb, *tool.add, *kept),
        diagnosis=f"'{use.result.name}' fails: {last_error(use.result)}",
        check=use.result.name,
    )


def _scope(paths: tuple[str, ...]) -> tuple[str, ...]:
    if "." in paths:
        return ()
    return tuple(path if path.endswith((".py", ".pyi", ".ipynb")) else f"{path.rstrip('/')}/**" for path in paths)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
