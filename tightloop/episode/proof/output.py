"""Test reports parsed from the output of runners that cannot be observed directly."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tightloop.episode.proof.report import FAILED, PASSED, SKIPPED, Observation

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CUT = re.compile(r"^\[\.\.\. \d+ bytes cut \.\.\.\]$", re.MULTILINE)
_Results = Iterator[tuple[str, str]]


class _Format(NamedTuple):
    """Format in which a test runner prints its results."""

    begins: re.Pattern[str]
    """Line that only this runner prints, before or after its tests."""
    read: Callable[[list[str]], _Results]
    """Yields name and result of each test."""
    is_complete: Callable[[str, int], bool]
    """Returns whether the runner finished, given the output and the number of tests found."""


def add_printed_reports(seen: Observation, output: str) -> Observation:
    """Return the observation extended with the reports found in a check's output.

    Truncated output contains no reports, because the tests in the gap are unknown. Runners whose reports the observers
    recorded themselves are skipped.
    """
    text = _COLOUR.sub("", output)
    if _CUT.search(text):
        return seen
    results, complete = dict(seen.results), dict(seen.complete)
    for checker, form in _FORMATS.items():
        # TAP is also what runners with an observer print.
        if checker in seen.checkers or not form.begins.search(text) or (checker == "tap" and seen.checkers):
            continue
        part = text
        # A test program that cargo started is observed, and the examples in the documentation are not.
        if checker == "libtest" and "cargo" in seen.checkers:
            part = "\n".join(_DOC_TESTS.findall(text))
        tests = tuple(form.read([*part.splitlines()]))
        if tests or part is text:
            results[checker] = dict(_number(tests))
            complete[checker] = form.is_complete(part, len(tests))
    return seen.evolve(checkers=tuple(results), results=results, complete=complete)


def _number(tests: Iterable[tuple[str, str]]) -> _Results:
    """Yield the tests, adding a number to names that occurred before."""
    counts = Counter[str]()
    for name, result in tests:
        counts[name] += 1
        yield (name if counts[name] == 1 else f"{name}[{counts[name]}]"), result


# -- Rust --------------------------------------------------------------------------------------------------

_DOC_TESTS = re.compile(r"(?ms)^ *Doc-tests .*?(?=^ *Running |\Z)")
_RUNNING = re.compile(r"^ *(?:Running (?:unittests )?(\S+)(?: \(.*\))?|(Doc-tests .+))$")
_RUST_TEST = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)\b")
_RUST_END = re.compile(r"(?m)^test result: (?:ok|FAILED)\. (\d+) passed; (\d+) failed; (\d+) ignored;")


def _read_libtest(lines: list[str]) -> _Results:
    target, outcomes = "", {"ok": PASSED, "FAILED": FAILED, "ignored": SKIPPED}
    for line in lines:
        if start := _RUNNING.match(line):
            target = start[1] or start[2]
        elif match := _RUST_TEST.match(line):
            # An example in the documentation is named after its line.
            name = re.sub(r" \(line \d+\)", "", match[1])
            yield (f"{target} > {name}" if target else name), outcomes[match[2]]


def _is_whole_libtest(text: str, _count: int) -> bool:
    return len(re.findall(r"(?m)^running \d+ tests?$", text)) == len(_RUST_END.findall(text))


# -- TAP, which bats prints ---------------------------------------------------------------------------------

_TAP_PLAN = re.compile(r"(?m)^1\.\.(\d+)$")
_TAP_TEST = re.compile(r"^(not )?ok\b ?(?:\d+)? ?(?:- )?(.*?)(?: # (skip|todo)\b.*| in \d+(?:ms|sec))?$", re.IGNORECASE)


def _read_tap(lines: list[str]) -> _Results:
    for line in lines:
        if match := _TAP_TEST.match(line):
            yield match[2], SKIPPED if match[3] else FAILED if match[1] else PASSED


def _is_whole_tap(text: str, count: int) -> bool:
    return sum(map(int, _TAP_PLAN.findall(text))) == count


# -- CTest --------------------------------------------------------------------------------------------------

_CTEST_TEST = re.compile(r"^ *\d+/\d+ (?:Test|MemCheck) +#\d+: (.+?) \.*[\w ]*?(?:(Passed)|\*{3}(\w+))")
_CTEST_END = re.compile(r"(?m)^\d+% tests passed, \d+ tests failed out of (\d+)$")


def _read_ctest(lines: list[str]) -> _Results:
    for line in lines:
        if match := _CTEST_TEST.match(line):
            is_skipped = match[3] == "Skipped" or "(Disabled)" in line
            yield match[1], PASSED if match[2] else SKIPPED if is_skipped else FAILED


def _is_whole_ctest(text: str, count: int) -> bool:
    # Tests that are disabled do not count in the summary.
    counts = _CTEST_END.findall(text)
    return bool(counts) and sum(map(int, counts)) <= count


# -- Surefire, of Maven -------------------------------------------------------------------------------------

_SUREFIRE = re.compile(r"^\[\w+\] Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: (\d+).*? --? in ([\w.$]+)")


def _read_surefire(lines: list[str]) -> _Results:
    """Yield as many tests per class as Surefire reports, because the output does not contain their names."""
    for line in lines:
        if match := _SUREFIRE.match(line):
            total, failures, errors, skipped = map(int, match.group(1, 2, 3, 4))
            failed = failures + errors
            outcomes = (FAILED,) * failed + (SKIPPED,) * skipped + (PASSED,) * (total - failed - skipped)
            yield from ((f"{match[5]}[{number}]", outcome) for number, outcome in enumerate(outcomes, start=1))


def _is_whole_surefire(text: str, _count: int) -> bool:
    return re.search(r"(?m)^\[INFO\] BUILD (?:SUCCESS|FAILURE)$", text) is not None


# -- Deno ---------------------------------------------------------------------------------------------------

_DENO_FILE = re.compile(r"^running \d+ tests? from (\S+)$")
_DENO_TEST = re.compile(r"^(\S.*?) \.\.\. (ok|FAILED|ignored)(?: \(.*\))?$")
_DENO_END = re.compile(r"(?m)^(?:ok|FAILED) \| \d+ passed.* \| \d+ failed")


def _read_deno(lines: list[str]) -> _Results:
    file, outcomes = "", {"ok": PASSED, "FAILED": FAILED, "ignored": SKIPPED}
    for line in lines:
        if start := _DENO_FILE.match(line):
            file = start[1]
        elif (match := _DENO_TEST.match(line)) and file:
            yield f"{file} > {match[1]}", outcomes[match[2]]


def _is_whole_deno(text: str, _count: int) -> bool:
    return _DENO_END.search(text) is not None


# -- GoogleTest ---------------------------------------------------------------------------------------------

_GTEST_TEST = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] ([\w/]+\.[\w/]+)(?:, where .*)? \(\d+ ms\)$")


def _read_gtest(lines: list[str]) -> _Results:
    outcomes = {"OK": PASSED, "FAILED": FAILED, "SKIPPED": SKIPPED}
    for line in lines:
        if match := _GTEST_TEST.match(line):
            yield match[2], outcomes[match[1]]


def _is_whole_gtest(text: str, _count: int) -> bool:
    starts, ends = (
        len(re.findall(rf"(?m)^\[={{10}}\] {word}", text)) for word in (r"Running \d", r"\d+ tests? .*ran\.")
    )
    return starts == ends


_FORMATS = {
    "libtest": _Format(re.compile(r"(?m)^running \d+ tests?$"), _read_libtest, _is_whole_libtest),
    "ctest": _Format(re.compile(r"(?m)^Test project /"), _read_ctest, _is_whole_ctest),
    "surefire": _Format(re.compile(r"(?m)^\[INFO\]  T E S T S$"), _read_surefire, _is_whole_surefire),
    "deno": _Format(re.compile(r"(?m)^running \d+ tests? from \S+$"), _read_deno, _is_whole_deno),
    "gtest": _Format(re.compile(r"(?m)^\[={10}\] Running \d+ tests?"), _read_gtest, _is_whole_gtest),
    "tap": _Format(_TAP_PLAN, _read_tap, _is_whole_tap),
}
