"""Checker reports of a proof, the baseline of an episode, and test reports parsed from output."""

import hashlib
import json
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import Field

from tightloop.episode.proof import NAMES_LIMIT, TestReport
from tightloop.episode.scenarios import ScenarioBaseline
from tightloop.value import ArtifactRef, Value, shorten

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# A test may report several results, such as those of setup and teardown; the worst one counts.
_WORST = {PASSED: 0, SKIPPED: 1, FAILED: 2}
# The checkers into which the observer can insert a test.
_WITH_CANARY = ("pytest", "unittest")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_PARAMETERS = re.compile(r"\[.*\]$", re.DOTALL)
# The placeholder of unittest for a module that cannot be imported.
_NOT_A_TEST = "unittest.loader._FailedTest."
_EDGES = frozenset({"load", "run", "plugin", "shadow", "patch", "look"})
"""Events that record that a file in the tree acted on another file or program."""
LINES_LIMIT = 2_000_000


class Observation(Value):
    """Events that were recorded while a check ran."""

    checkers: tuple[str, ...] = ()
    """Known checkers that were started."""
    results: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Results by checker and test: `passed`, `failed` or `skipped`."""
    deselected: dict[str, int] = Field(default_factory=dict)
    complete: dict[str, bool] = Field(default_factory=dict)
    """For each checker, whether every session ended normally and its canary failed."""
    denied: tuple[str, ...] = ()
    """Tests that raised an exception but were reported as passed, and canaries that passed."""
    cut_short: tuple[str, ...] = ()
    """Interpreter commands that ended early."""
    unrepeatable: tuple[str, ...] = ()
    """Tests that passed and then failed an assertion when they ran again in the same process."""
    early_exits: tuple[str, ...] = ()
    """Files of the tree that ended the program that loaded or called them, with a success status."""
    is_watched: bool = False
    """True if `opened` is complete. Otherwise the system cannot tell, or too much happened at once."""
    opened: tuple[str, ...] = ()
    """Files of the tree that any process opened, in the order in which each was opened first."""
    loads: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """For each file of the tree that Python or Node loaded, the files that loaded it; "" stands for other programs."""
    programs: tuple[str, ...] = ()
    """Files of the tree that were run as programs."""
    started_by: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """For each of these programs, the files of the tree that started it."""
    plugins: tuple[str, ...] = ()
    """Files of the tree that a test runner loaded itself: plugins, setup files, and mocks that replace modules."""
    shadows: tuple[str, ...] = ()
    """Files of the tree that were loaded instead of installed modules."""
    read_first: tuple[str, ...] = ()
    """Files of the tree that a test runner, rather than code of the tree, opened before the first test."""
    replaced: dict[str, str] = Field(default_factory=dict)
    """For each test whose function was replaced, the file that contains the replacement."""
    patched: tuple[str, ...] = ()
    """Functions of other modules that code in the tree replaced, as in `calc.py: json.loads`."""
    looked: tuple[str, ...] = ()
    """Variables of the test runner that code in the tree read, as in `calc.py: PYTEST_VERSION`."""

    @property
    def reports(self) -> tuple[TestReport, ...]:
        """One report per checker."""
        return tuple(self._report(checker) for checker in self.checkers)

    def _report(self, checker: str) -> TestReport:
        results = self.results.get(checker, {})
        counts = Counter(results.values())
        failed = sorted(name for name, result in results.items() if result == FAILED)
        return TestReport(
            checker=checker,
            is_complete=self.complete.get(checker, False),
            total=len(results),
            passed=counts[PASSED],
            failed=counts[FAILED],
            skipped=counts[SKIPPED],
            deselected=self.deselected.get(checker, 0),
            names_sha256=hashlib.sha256("\n".join(sorted(results)).encode("utf-8", "replace")).hexdigest(),
            failed_names=tuple(shorten(name, 200) for name in failed[:NAMES_LIMIT]),
        )


def read_events(text: str, nonce: str, root: str) -> Observation:
    """Parse the events that were recorded during a check. Lines without the nonce are ignored.

    Args:
        text: one JSON event per line.
        nonce: nonce that each line must contain.
        root: root of the tree in which the check ran.
    """
    reader = _Reader(root)
    for line in text.split("\n")[:LINES_LIMIT]:
        try:
            event = json.loads(line) if line else None
        # The code under test can write into the file as well, and nest JSON too deeply to parse.
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and event.get("n") == nonce:
            reader.take(event)
    return reader.observation()


class _Reader:
    def __init__(self, root: str) -> None:
        self._root = f"{root.rstrip('/')}/"
        self._started: dict[int, dict[str, Any]] = {}
        self._ended: set[int] = set()
        self._sessions: dict[str, dict[str, Any]] = {}
        self._exits: list[str] = []
        self._edges: dict[str, dict[tuple[str, str], None]] = {kind: {} for kind in _EDGES}
        self._read_first: dict[tuple[int, str], None] = {}
        self._replaced: dict[str, str] = {}
        self._unrepeatable: dict[str, None] = {}

    def take(self, event: dict[str, Any]) -> None:
        match event.get("e"):
            case "start":
                self._started[int(event.get("pid", 0))] = event
                # A pid can start again, after exec or because it is reused.
                self._ended.discard(int(event.get("pid", 0)))
            case "end":
                self._ended.add(int(event.get("pid", 0)))
            case "exit":
                self._exit(str(event.get("file", "")))
            case kind if kind in _EDGES:
                by, file = str(event.get("by", "")), str(event.get("file", ""))
                self._edges[str(kind)][by, file] = None
                if kind == "load" and not by and not event.get("tested", True):
                    self._read_first[int(event.get("pid", 0)), file] = None
            case "replaced":
                self._replaced[_ADDRESS.sub("0x", str(event.get("id", "")))] = str(event.get("file", ""))
            case "session":
                empty: dict[str, Any] = {"results": {}, "raised": Counter(), "told": Counter(), "deselected": 0}
                pid = int(event.get("pid", 0))
                self._sessions[str(event.get("s"))] = {"k": str(event.get("k")), "pid": pid, "ends": False, **empty}
            case kind:
                session = self._sessions.get(str(event.get("s")))
                if session is not None:
                    self._of_session(session, str(kind), event)

    def _exit(self, file: str) -> None:
        # A module of the tree must not exit its importer; installed packages and the program itself may.
        if file.startswith(self._root) and "/site-packages/" not in file:
            self._exits.append(file.removeprefix(self._root))

    def _of_session(self, session: dict[str, Any], kind: str, event: dict[str, Any]) -> None:
        # Ids of parameters may hold addresses of objects, which differ from run to run.
        name = _ADDRESS.sub("0x", str(event.get("id", "")))
        match kind:
            case "raw":
                session["raised"][name] += 1
            case "test":
                result = str(event.get("r"))
                if result in _WORST and not name.startswith(_NOT_A_TEST):
                    before = session["results"].get(name, PASSED)
                    session["results"][name] = max(result, before, key=lambda one: _WORST[one])
                session["told"][name] += result != PASSED
            case "deselected":
                session["deselected"] += int(event.get("count", 0))
            case "again":
                self._unrepeatable[name] = None
            case "canary":
                session["canary"] = bool(event.get("failed"))
            case "finish":
                session["ends"] = True

    def observation(self) -> Observation:
        checkers = tuple(dict.fromkeys(session["k"] for session in self._sessions.values()))
        results: dict[str, dict[str, str]] = {checker: {} for checker in checkers}
        deselected, complete = dict.fromkeys(checkers, 0), dict.fromkeys(checkers, True)
        denied: list[str] = []
        for session in self._sessions.values():
            checker = session["k"]
            results[checker] |= session["results"]
            deselected[checker] += session["deselected"]
            complete[checker] &= session["ends"] and session.get("canary", checker not in _WITH_CANARY)
            # Each error must have a result other than passed; a surplus of errors was swallowed.
            denied += [name for name, count in session["raised"].items() if count > session["told"][name]]
            if session.get("canary") is False:
                denied.append("the canary, a test that must fail")
        # Only outermost interpreters count: a pool, for example, terminates its workers on purpose.
        inner, runners = frozenset(self._started), {session["pid"] for session in self._sessions.values()}
        outer = {pid: event for pid, event in self._started.items() if event.get("ppid") not in inner}
        cut = [_command(event) for pid, event in outer.items() if pid not in self._ended]
        return Observation(
            checkers=checkers,
            results=results,
            deselected=deselected,
            complete=complete,
            denied=tuple(denied[:NAMES_LIMIT]),
            cut_short=tuple(cut[:NAMES_LIMIT]),
            unrepeatable=tuple(self._unrepeatable)[:NAMES_LIMIT],
            early_exits=tuple(dict.fromkeys(self._exits))[:NAMES_LIMIT],
            loads=_by_file(self._edges["load"]),
            programs=tuple(dict.fromkeys((*self._mains(), *(file for _, file in self._edges["run"])))),
            started_by=_by_file(self._edges["run"]),
            plugins=tuple(dict.fromkeys(file for _, file in self._edges["plugin"])),
            shadows=tuple(dict.fromkeys(file for _, file in self._edges["shadow"])),
            read_first=tuple(dict.fromkeys(file for pid, file in self._read_first if pid in runners)),
            replaced=self._replaced,
            patched=tuple(f"{by}: {name}" for by, name in self._edges["patch"])[:NAMES_LIMIT],
            looked=tuple(f"{by}: {name}" for by, name in self._edges["look"])[:NAMES_LIMIT],
        )

    def _mains(self) -> Iterator[str]:
        """Yield the files in the tree that an interpreter ran as programs."""
        runners = {session["pid"] for session in self._sessions.values()}
        for pid, event in self._started.items():
            folder = str(event.get("cwd", ""))
            for word in map(str, event.get("argv", ())[1:]):
                path = posixpath.normpath(posixpath.join(folder, word))
                if path.startswith(self._root) and posixpath.splitext(path)[1] and "/site-packages/" not in path:
                    yield path.removeprefix(self._root)
                    break
                # The files behind `-m pytest` and `bin/pytest` are tests.
                if pid in runners and (word == "-m" or not word.startswith("-")):
                    break


def _by_file(edges: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    files: dict[str, list[str]] = {}
    for by, file in edges:
        files.setdefault(file, []).append(by)
    return {file: tuple(others) for file, others in files.items()}


def _command(event: Mapping[str, Any]) -> str:
    return shorten(" ".join(str(argument) for argument in event.get("argv", ())), 200)


def missing(before: Mapping[str, str], now: Mapping[str, str], *, failures_may_stay: bool = False) -> tuple[str, ...]:
    """Return the names of the baseline tests that do not pass now, sorted.

    If `failures_may_stay` is set, tests that failed in the baseline are ignored. A test that was skipped
    in the baseline may be skipped again. For parameterised tests, only the number of passing cases is
    compared, because the names of the cases may vary between runs.
    """
    if failures_may_stay:
        before = {name: result for name, result in before.items() if result != FAILED}
    missing_names = [name for name, result in before.items() if not _holds(result, now.get(name))]
    passing = Counter(_function(name) for name, result in now.items() if result == PASSED)
    expected = Counter(_function(name) for name, result in before.items() if result != SKIPPED)
    return tuple(
        sorted(
            name
            for name in missing_names
            if name == _function(name) or passing[_function(name)] < expected[_function(name)]
        )
    )


def _holds(before: str, now: str | None) -> bool:
    return now == PASSED or (now == SKIPPED and before == SKIPPED)


def _function(name: str) -> str:
    return _PARAMETERS.sub("", name)


def names_text(results: Mapping[str, str]) -> str:
    """Format the results as text, one test per line, sorted by name."""
    return "".join(f"{results[name]} {name}\n" for name in sorted(results))


class CheckBaseline(Value):
    """Result of a check on the initial tree."""

    run: str
    passed: bool = False
    flaky: bool = False
    """True if the check failed at first and passed when it was repeated without a change."""
    exit_code: int | None = None
    observation: Observation = Observation.model_construct()


class InitialState(Value):
    """Initial state of an episode, stored as a single artifact."""

    tree: str
    """Tree before the first plan."""
    root: str = ""
    """Root of the working tree that `ignored` refers to."""
    checks: tuple[CheckBaseline, ...] = ()
    scenarios: ScenarioBaseline | None = None
    ignored: ArtifactRef | None = None
    """Stored manifest of the files that are in the working tree but not in its git tree."""
    later_commits: tuple[str, ...] = ()
    """Commits of the user's repository that were not part of the checked-out history."""

    def check(self, run: str) -> CheckBaseline | None:
        """Return a command's baseline, or None if the command was added later."""
        return next((check for check in self.checks if check.run == run), None)


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CUT = re.compile(r"^\[\.\.\. \d+ bytes cut \.\.\.\]$", re.MULTILINE)
_Results = Iterator[tuple[str, str]]


class _Format(NamedTuple):
    """The format in which a test runner prints its results."""

    begins: re.Pattern[str]
    """Line that only this runner prints, before or after its tests."""
    read: Callable[[list[str]], _Results]
    """Yields name and result of each test."""
    is_complete: Callable[[str, int], bool]
    """Returns whether the runner finished, given the output and the number of tests found."""


def add_printed_reports(seen: Observation, output: str) -> Observation:
    """Add the test results printed in a check's output to the observation.

    Truncated output is ignored, because the tests in the omitted part are unknown. Runners that were
    already observed are skipped.
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
    """Yield the tests. A number is added to each name that has occurred before."""
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
    """Yield the tests of each class, based on the counts that Surefire reports.

    The tests are numbered, because the output does not contain their names.
    """
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
