"""What the output of a gate says: the gate itself, and the checks within it that failed."""

import re
from collections.abc import Iterator
from itertools import islice
from xml.etree import ElementTree

from tightloop.episode.check import Check, CheckResult, CheckStatus
from tightloop.loop.model import MESSAGE_CHARACTERS, GateCheck
from tightloop.value import clip, counted, shorten

WITHIN_LIMIT = 30
"""Checks within one gate that are listed; those that failed come first."""
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
"""One line of what was found: tsc (plain, pretty), ruff (concise, full), mypy."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_JUNIT = re.compile(r"--junit-?xml[= ](\S+)")


def gate_name(check: Check) -> str:
    """Return the name of a gate, such as `gate:pytest`."""
    title = shorten(check.title, NAME_CHARACTERS)
    return title if title.startswith("gate:") else f"gate:{title}"


def running(check: Check) -> GateCheck:
    """Return a gate that has not ended."""
    return GateCheck(name=gate_name(check), passed=False, running=True)


def report_file(check: Check) -> str:
    """Return the file into which a gate writes JUnit XML, as its command names it; empty: none."""
    found = _JUNIT.search(check.run)
    return found[1].strip("'\"") if found else ""


def read_gate(check: Check, result: CheckResult, output: str, report: str = "") -> tuple[GateCheck, ...]:
    """Return the gate, followed by the checks within it that its output tells of.

    The exit code alone decides whether it passed.

    Args:
        check: the gate.
        result: of its command.
        output: all that it printed.
        report: JUnit XML that it wrote.
    """
    name = gate_name(check)
    within = tuple(_within(name, result, output, report))
    failed = [one for one in within if not one.passed]
    listed = (*failed, *(one for one in within if one.passed))[:WITHIN_LIMIT]
    gate = GateCheck(
        name=name,
        passed=result.passed,
        message=_message(result, within),
        duration_ms=round(result.duration_s * 1000),
        output=result.output,
    )
    return (gate, *listed)


def _message(result: CheckResult, within: tuple[GateCheck, ...]) -> str:
    counts, failed = result.counts, sum(not one.passed for one in within)
    parts = [f"{number} {word}" for word, number in (("failed", counts.failed), ("passed", counts.passed)) if number]
    if not parts and within:
        parts = [f"{failed} failed" if failed else "", f"{len(within) - failed} passed"]
    said = ", ".join(filter(None, parts))
    if result.passed:
        return said or "exit code 0"
    match result.status:
        case CheckStatus.TIMED_OUT:
            why = "it took too long"
        case CheckStatus.NOT_FOUND:
            why = "its program is not installed, or not where the sandbox lets it be found"
        case _:
            why = f"exit code {result.exit_code}"
    tail = clip(" ".join(result.tail.split()), MESSAGE_CHARACTERS // 2)
    return shorten(": ".join(filter(None, (said or why, tail))), MESSAGE_CHARACTERS)


def _within(name: str, result: CheckResult, output: str, report: str) -> Iterator[GateCheck]:
    """Yield the checks that the output tells of: those of its reports, else the problems or the tests that it names."""
    reported = [case for text in (report, *_documents(output)) for case in _junit(name, text)]
    if _TAP_PLAN.search(output):
        reported += _tap(name, output)
    yield from reported
    if reported or result.passed:
        return
    plain = _COLOUR.sub("", output)
    found = next(filter(None, (list(islice(form.finditer(plain), WITHIN_LIMIT)) for form in _PROBLEMS)), [])
    for each in found:
        place = ":".join(filter(None, each.group("path", "line", "column")))
        yield _failed(name, f"{place} {each['rule']}", each["said"])
    if not found:
        for test in result.failing:
            yield _failed(name, test, "")


def _documents(output: str) -> Iterator[str]:
    """Yield the documents in an output that scripts have printed, one after the other."""
    for part in output.split("<?xml")[1:]:
        yield f"<?xml{part[: part.find('>', part.rfind('</')) + 1]}"


def _failed(gate: str, name: str, message: str) -> GateCheck:
    return GateCheck(
        name=shorten(f"{gate}/{name}", NAME_CHARACTERS), passed=False, message=shorten(message, MESSAGE_CHARACTERS)
    )


def _tap(gate: str, output: str) -> Iterator[GateCheck]:
    for number, found in enumerate(_TAP.finditer(output), start=1):
        name = (found[2] or "").strip() or counted(number, "test")
        # A test that is to be skipped, or known not to work yet, fails nothing.
        passed = found[1].lower() == "ok" or found[3] is not None
        yield GateCheck(name=shorten(f"{gate}/{name}", NAME_CHARACTERS), passed=passed)


def _junit(gate: str, text: str) -> Iterator[GateCheck]:
    # No entities: a small text could become a large one.
    if len(text) > XML_BYTES or "<!DOCTYPE" in text or "<!ENTITY" in text:
        return
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - without a document type there is nothing to expand
    except ElementTree.ParseError:
        return
    for case in root.iter("testcase"):
        problem = next((each for each in case if each.tag in ("failure", "error")), None)
        place, title = case.get("classname", ""), case.get("name", "")
        message = "" if problem is None else (problem.get("message") or problem.text or "")
        try:
            seconds = float(case.get("time", "0"))
        except ValueError:
            seconds = 0.0
        yield GateCheck(
            name=shorten(f"{gate}/{f'{place}::' if place else ''}{title}", NAME_CHARACTERS),
            passed=problem is None,
            message=shorten(" ".join(message.split()), MESSAGE_CHARACTERS),
            duration_ms=round(min(max(seconds, 0.0), 1e6) * 1000),
        )
