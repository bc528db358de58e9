"""Gates of a project plan: parsing of their results, and cost estimates."""

import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from xml.etree import ElementTree

from tightloop.episode.check import Check, CheckResult, CheckStatus
from tightloop.loop.model import MESSAGE_CHARACTERS, GateCheck, LoopStatus, TaskState
from tightloop.value import Value, clip, format_count, shorten

WITHIN_LIMIT = 30
"""Maximum number of checks to list for a gate. Failed checks come first."""
NAME_CHARACTERS = 200
XML_BYTES = 2_000_000
_TAP = re.compile(
    r"^\s*(not ok|ok)\b(?:\s+\d+)?(?:\s*-?\s*([^#\n]*))?(#\s*(?:skip|todo)\b.*)?$", re.IGNORECASE | re.MULTILINE
)
_TAP_PLAN = re.compile(r"^(?:TAP version \d+|1\.\.\d+)", re.MULTILINE)
_PLACE = r"(?P<path>\S[^\n:(]*?):(?P<line>\d+)(?::(?P<column>\d+))?"
_PROBLEMS = tuple(
    re.compile(form, re.MULTILINE)
    for form in (
        r"^(?P<path>\S[^\n(]*)\((?P<line>\d+),(?P<column>\d+)\): error (?P<rule>TS\d+): (?P<said>[^\n]*)$",
        rf"^{_PLACE} - error (?P<rule>TS\d+): (?P<said>[^\n]*)$",
        rf"^{_PLACE}: (?P<rule>[A-Z]+\d+) (?P<said>[^\n]*)$",
        rf"^(?P<rule>[A-Z]+\d+) (?P<said>[^\n]*)\n *--> {_PLACE}$",
        rf"^{_PLACE}: error: (?P<said>[^\n]*?) {{1,2}}\[(?P<rule>[a-z-]+)\]$",
    )
)
"""Diagnostics of tsc (plain and pretty), ruff (concise and full) and mypy. Each match is one diagnostic."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_JUNIT = re.compile(r"--junit-?xml[= ](\S+)")


def gate_name(check: Check) -> str:
    """Return the name of a gate, such as `gate:pytest`."""
    title = shorten(check.title, NAME_CHARACTERS)
    return title if title.startswith("gate:") else f"gate:{title}"


def running(check: Check) -> GateCheck:
    """Return the interim result of a gate that is still running."""
    return GateCheck(name=gate_name(check), passed=False, running=True)


def report_file(check: Check) -> str:
    """Return the JUnit XML file that a gate's command writes, or "" if it does not write one."""
    match = _JUNIT.search(check.run)
    return match[1].strip("'\"") if match else ""


def read_gate(check: Check, result: CheckResult, output: str, report: str = "") -> tuple[GateCheck, ...]:
    """Return the result of a gate, followed by the checks found in its output.

    Only the exit code determines whether the gate passed.

    Args:
        check: the gate.
        result: result of its command.
        output: complete output of the command.
        report: JUnit XML that the command wrote.
    """
    name = gate_name(check)
    inner_checks = tuple(_find_checks(name, result, output, report))
    failed = [inner for inner in inner_checks if not inner.passed]
    # Only the list is cut: `_message` counts all inner checks.
    listed = (*failed, *(inner for inner in inner_checks if inner.passed))[:WITHIN_LIMIT]
    gate = GateCheck(
        name=name,
        passed=result.passed,
        message=_message(result, inner_checks),
        duration_ms=round(result.duration_s * 1000),
        output=result.output,
    )
    return (gate, *listed)


def _message(result: CheckResult, inner_checks: tuple[GateCheck, ...]) -> str:
    counts, failed = result.counts, sum(not inner.passed for inner in inner_checks)
    parts = [f"{number} {label}" for label, number in (("failed", counts.failed), ("passed", counts.passed)) if number]
    if not parts and inner_checks:
        parts = [f"{failed} failed" if failed else "", f"{len(inner_checks) - failed} passed"]
    summary = ", ".join(filter(None, parts))
    if result.passed:
        return summary or "exit code 0"
    match result.status:
        case CheckStatus.TIMED_OUT:
            why = "timed out"
        case CheckStatus.NOT_FOUND:
            why = "the program of the check is not installed, or the sandbox hides the program"
        case _:
            why = f"exit code {result.exit_code}"
    tail = clip(" ".join(result.tail.split()), MESSAGE_CHARACTERS // 2)
    return shorten(": ".join(filter(None, (summary or why, tail))), MESSAGE_CHARACTERS)


def _find_checks(name: str, result: CheckResult, output: str, report: str) -> Iterator[GateCheck]:
    """Yield the checks found in the output of a gate.

    If the output contains reports, the checks come from these reports. Otherwise, the checks are the
    diagnostics or the failed tests.
    """
    reported = [case for text in (report, *_documents(output)) for case in _junit(name, text)]
    # Only with a version or plan line: a line that begins with "ok" is also ordinary English.
    if _TAP_PLAN.search(output):
        reported += _tap(name, output)
    yield from reported
    if reported or result.passed:
        return
    # Tools colour their output if the project's settings force it; the escapes precede the path and hide the match.
    plain = _COLOUR.sub("", output)
    # The first form that matches: a gate usually runs one tool, and lines of its output may resemble another tool's.
    matches = next(filter(None, (list(islice(form.finditer(plain), WITHIN_LIMIT)) for form in _PROBLEMS)), [])
    for match in matches:
        location = ":".join(filter(None, match.group("path", "line", "column")))
        yield _make_failure(name, f"{location} {match['rule']}", match["said"])
    if not matches:
        for test in result.failing:
            yield _make_failure(name, test, "")


def _documents(output: str) -> Iterator[str]:
    """Yield the XML documents in an output. A script may print several documents."""
    for part in output.split("<?xml")[1:]:
        # Up to the last end tag: the script may print more after the document, which the parser would refuse.
        yield f"<?xml{part[: part.find('>', part.rfind('</')) + 1]}"


def _make_failure(gate: str, name: str, message: str) -> GateCheck:
    return GateCheck(
        name=shorten(f"{gate}/{name}", NAME_CHARACTERS),
        passed=False,
        message=shorten(message, MESSAGE_CHARACTERS),
        within=True,
    )


def _tap(gate: str, output: str) -> Iterator[GateCheck]:
    for number, match in enumerate(_TAP.finditer(output), start=1):
        name = (match[2] or "").strip() or format_count(number, "test")
        # A skipped or todo test does not fail the gate.
        passed = match[1].lower() == "ok" or match[3] is not None
        yield GateCheck(name=shorten(f"{gate}/{name}", NAME_CHARACTERS), passed=passed, within=True)


def _junit(gate: str, text: str) -> Iterator[GateCheck]:
    # Reject entities: a small text could expand to a huge one.
    if len(text) > XML_BYTES or "<!DOCTYPE" in text or "<!ENTITY" in text:
        return
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - without a document type there is nothing to expand
    except ElementTree.ParseError:
        return
    for case in root.iter("testcase"):
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        class_name, title = case.get("classname", ""), case.get("name", "")
        message = "" if problem is None else (problem.get("message") or problem.text or "")
        try:
            seconds = float(case.get("time", "0"))
        except ValueError:
            seconds = 0.0
        yield GateCheck(
            name=shorten(f"{gate}/{f'{class_name}::' if class_name else ''}{title}", NAME_CHARACTERS),
            passed=problem is None,
            message=shorten(" ".join(message.split()), MESSAGE_CHARACTERS),
            # Clamped: `time` is any text that a tool wrote, and neither infinity nor NaN can be rounded to an integer.
            # NaN compares as false, so `max` keeps the 0 in front of it.
            duration_ms=round(min(max(0.0, seconds), 1e6) * 1000),
            within=True,
        )


class Estimate(Value):
    """Maximum total spending by a plan's tasks. None means unlimited or unknown."""

    runs: int = 0
    """Number of tasks that have not been dispatched yet. Each of them becomes an episode. A conflict adds one more
    task.
    """
    at_once: int = 0
    """Number of tasks without dependencies."""
    parallel: int | None = None
    """Maximum number of concurrent tasks."""
    executor: str = ""
    """Name of the executor. It is empty for plans created before it was recorded."""
    is_bounded: bool = False
    """True if the plan's tasks have a budget."""
    iterations: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    wall_time: timedelta | None = None
    """Total working time of all tasks."""
    checks: tuple[str, ...] = ()
    """Commands of all definitions of done, without duplicates."""


def estimate_of(status: LoopStatus) -> Estimate:
    """Estimate the maximum cost of dispatching a plan."""
    tasks = tuple(task for task in status.tasks if task.state is TaskState.CREATED)
    runs, budget = len(tasks), status.budget
    commands = dict.fromkeys(check.run for task in tasks for check in task.definition_of_done)
    estimate = Estimate(
        runs=runs,
        at_once=sum(not task.dependencies for task in tasks),
        parallel=status.parallel or None,
        executor=status.executor,
        checks=tuple(commands),
    )
    if budget is None:
        return estimate
    return estimate.evolve(
        is_bounded=True,
        iterations=_sum(budget.max_iterations, runs),
        tokens=_sum(budget.max_tokens, runs),
        cost_usd=None if budget.max_cost_usd is None else budget.max_cost_usd * runs,
        wall_time=None if budget.max_wall_time is None else budget.max_wall_time * runs,
    )


def _sum(bound: int | None, runs: int) -> int | None:
    return None if bound is None else bound * runs
