"""The tracker: recording an iteration, against `git diff` and difflib on the same two trees in the same run."""

import asyncio
import contextlib
import random
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from temporalio.testing import ActivityEnvironment

from activities.artifacts.port import put_model
from activities.artifacts.stores import open_local_store
from activities.tracking.activity import TrackingActivities, TrackRequest
from activities.workspace.differ import Differ
from activities.workspace.folders import store_folder_of
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import Workspaces
from tests.benchmarks.difflib_run import DIFFLIB_BOUND_S, difflib_seconds
from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.stage import git
from tests.support.doubles import planned
from tightloop.database.ledger import open_project
from tightloop.episode.check import Check, CheckReport, Verification, judge
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.model import EpisodeRequest, EpisodeState
from tightloop.episode.planning import PlanRecord
from tightloop.executor.model import ExecutorReport, ExecutorStatus

RUNS = 24
ADVERSARIAL_RUNS = 5
FILES = 200
LINES_A_FILE = 200
CHANGED_A_FILE = 100
TEN_MB = 10_000_000
GIT_BOUND_S = 3.0

Edit = Callable[[Path, int], None]


@dataclass(frozen=True)
class Case:
    """A way to change the workspace; called with its folder and the number of the run, which it makes different."""

    name: str
    edit: Edit
    runs: int = ADVERSARIAL_RUNS
    aim: str = "never over 1 s"


COLUMNS = (
    "change", "runs", "tracker ms", "p95 ms", "worst ms", "cpu ms", "git diff ms", "tracker/git", "differ ms",
    "differ/git", "difflib ms", "differ/difflib", "aim",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """Seconds of one run; of difflib also whether it came to an end."""

    tracker: float
    processor: float
    """Of the tracker, with the git that it runs."""
    git: float
    differ: float
    difflib: float
    ended: bool
    note: str


async def measure() -> Report:
    """Track every case on a repository of its own; the order of tracker and git alternates."""
    report = Report("tracker: track_iteration of one iteration, and only comparing the same trees", COLUMNS)
    for case in _cases():
        progress(f"tracker: {case.name}")
        samples = await asyncio.to_thread(_measured, case)
        tracker = Spread.of(sample.tracker * 1_000 for sample in samples)
        plain = [sample.git for sample in samples]
        differ = [sample.differ for sample in samples]
        difflib = [sample.difflib for sample in samples]
        bounded = "" if all(sample.ended for sample in samples) else "(bound)"
        report.add(
            case.name,
            case.runs,
            tracker,
            tracker.p95,
            max(sample.tracker for sample in samples) * 1_000,
            statistics.median(sample.processor for sample in samples) * 1_000,
            statistics.median(plain) * 1_000,
            Spread.of_ratios([sample.tracker for sample in samples], plain).median,
            statistics.median(differ) * 1_000,
            Spread.of_ratios(differ, plain).median,
            f"{statistics.median(difflib) * 1_000:.3g} {bounded}".strip(),
            Spread.of_ratios(differ, difflib).median,
            aim=case.aim,
        )
        report.notes += [f"{case.name}: {note}" for note in sorted({sample.note for sample in samples} - {""})]
    report.notes.append(f"every repository has {FILES * LINES_A_FILE} lines in {FILES} files besides what is named;")
    report.notes.append("the tracker also makes a snapshot, stores patch, report and checkpoint (fsync) and the trail;")
    report.notes.append("the differ also tries its patch; difflib only makes one (unified_diff of the changed files),")
    report.notes.append(
        f"in a process whose start is not counted; difflib is ended after {DIFFLIB_BOUND_S:g} s (bound),"
    )
    report.notes.append(f"git after {GIT_BOUND_S:g} s")
    return report


def _cases() -> Iterator[Case]:
    for lines in (10, 1_000, 10_000):
        yield Case(f"{lines} lines", _lines(lines), RUNS, "p95 <= 150 ms" if lines == 10_000 else "")
    yield Case("10 MB in one line", _one_line)
    yield Case("10 MB, all lines equal", _all_equal)
    yield Case("10 MB, no common line", _all_new)
    yield Case("7 MB, random of 3 000 lines", _random_lines)
    yield Case("10 MB, binary", _binary)
    yield Case("4 000 new files", _many_files)
    yield Case("50 000 files, 10 changed", _few_of_many)
    # Made to cost the rules of alignment the most: the scrubber, commands to take apart, names to look up.
    yield Case("2 MB, halves of addresses", _halves_of_addresses)
    yield Case("2 MB, numbers like cards", _numbers_like_cards)
    yield Case("2 MB, script of long commands", _long_commands)
    yield Case("2 MB, tests exchanged", _tests_exchanged)


def _lines(count: int) -> Edit:
    def edit(root: Path, number: int) -> None:
        left = count
        for index in range(FILES):
            here = min(left, CHANGED_A_FILE)
            if here == 0:
                return
            path = root / f"module_{index}.py"
            lines = path.read_text().splitlines()
            step = LINES_A_FILE // here
            for position in range(here):
                lines[position * step] = f"value_{position} = {number}  # changed in run {number}"
            path.write_text("\n".join(lines) + "\n")
            left -= here

    return edit


def _one_line(root: Path, number: int) -> None:
    text = "0123456789" * (TEN_MB // 10)
    (root / "one.txt").write_text(f"{text[: TEN_MB // 2]}{number}{text[TEN_MB // 2 :]}")


def _all_equal(root: Path, number: int) -> None:
    (root / "equal.txt").write_text("the same\n" * (TEN_MB // 9 + number * 1_000))


def _all_new(root: Path, number: int) -> None:
    chosen = random.Random(number)
    (root / "new.txt").write_text("".join(f"{chosen.getrandbits(300):x}\n" for _ in range(TEN_MB // 76)))


def _random_lines(root: Path, number: int) -> None:
    chosen = random.Random(number)
    (root / "hard.txt").write_text("".join(chosen.choices([f"{line}\n" for line in range(3_000)], k=1_500_000)))


def _binary(root: Path, number: int) -> None:
    (root / "data.bin").write_bytes(random.Random(number).randbytes(TEN_MB))


def _many_files(root: Path, number: int) -> None:
    for index in range(4_000):
        path = root / f"many/{index % 50}/file_{index}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{index} in run {number}\n")


def _few_of_many(root: Path, number: int) -> None:
    for index in range(0, 50_000, 1 if number == 0 else 5_000):
        path = root / f"wide/{index % 500}/file_{index}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{index} {line}\n" for line in range(10)) + f"run {number}\n")


def _halves_of_addresses(root: Path, number: int) -> None:
    (root / f"people_{number}.csv").write_text("".join(f"a{line}@b{number}@\n" for line in range(140_000)))


def _numbers_like_cards(root: Path, number: int) -> None:
    first = 4_111_111_111_111_000 + number * 100_000
    (root / f"numbers_{number}.csv").write_text("".join(f"{first + line}\n" for line in range(100_000)))


def _long_commands(root: Path, number: int) -> None:
    commands = (f"rm run{number} {line} {'Remove-Item -Recurse ' * 90}\n" for line in range(950))
    (root / f"long_{number}.sh").write_text("".join(commands))


def _tests_exchanged(root: Path, number: int) -> None:
    tests = "".join(f"def test_{line}_of_{number}(): f{line}()\n" for line in range(14_000))
    code = "".join(f"def name_{line}_of_{number}(): pass\n" for line in range(11_000))
    (root / "test_many.py").write_text(tests)
    (root / "many.py").write_text(code)


def _measured(case: Case) -> list[Sample]:
    with tempfile.TemporaryDirectory(prefix="tightloop-bench-", ignore_cleanup_errors=True) as name:
        bench = _Bench(Path(name))
        bench.iterate(case, 0)
        bench.iterate(case, 1)
        samples = [bench.iterate(case, number) for number in range(2, case.runs + 2)]
        bench.close()
    return samples


class _Bench:
    """A repository with an episode in it."""

    def __init__(self, root: Path) -> None:
        for index in range(FILES):
            text = "".join(f"value_{line} = {index} * {line}\n" for line in range(LINES_A_FILE))
            (root / f"module_{index}.py").write_text(text)
        git(root, "init", "--quiet", "--initial-branch=main")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "-m", "start")
        self._root = root
        self._store = open_local_store(root)
        self._workspaces = Workspaces()
        self._activities = TrackingActivities(self._workspaces, open_local_store, open_project, Differ())
        request = EpisodeRequest(goal="change lines", workspace=str(root), definition_of_done=(Check(run="pytest -q"),))
        stored = put_model(self._store, request, name="request")
        self._scope = EpisodeScope(episode_id=f"bench-{uuid4().hex[:8]}", workspace=str(root), request=stored)
        self._workspaces.prepare(self._scope, take_over=lambda _episode: True)
        self._environment = ActivityEnvironment()
        self._environment.info = replace(self._environment.info, workflow_run_id=uuid4().hex)
        # An activity in a thread, as in a worker.
        self._thread = ThreadPoolExecutor(1)
        self._state = EpisodeState(tree=self._snapshot(), request=stored)
        self._last: CheckpointRecord | None = None

    def iterate(self, case: Case, number: int) -> Sample:
        """Change the tree, then measure the tracker, `git diff`, only the differ, and difflib."""
        before = self._state
        case.edit(self._root, number)
        request = self._request(before, number, self._snapshot())
        if number % 2:
            diffed = self._diff(before.tree, request.state.tree)
            tracked = self._track(request)
        else:
            tracked = self._track(request)
            diffed = self._diff(before.tree, request.state.tree)
        self._state = self._state.evolve(trees=(*self._state.trees, self._state.tree)[-8:])
        begun = time.perf_counter()
        found = Differ().compare(store_folder_of(request.scope), before.tree, request.state.tree)
        compared = time.perf_counter() - begun
        difflib, ended = difflib_seconds(store_folder_of(self._scope), before.tree, request.state.tree)
        return Sample(*tracked, diffed, compared, difflib, ended, found.note)

    def close(self) -> None:
        self._thread.shutdown()

    def _snapshot(self) -> str:
        with self._workspaces.hold(self._scope) as tree:
            return tree.snapshot()

    def _request(self, before: EpisodeState, number: int, tree: str) -> TrackRequest:
        plan = planned(f"change the lines of run {number}").message
        output = f"FAILED test_{number}.py\n" * 40 + "=== 1 failed, 30 passed in 0.1s ==="
        result = judge(Check(run="pytest -q"), tree=tree, exit_code=1, timed_out=False, duration_s=1.0, output=output)
        checks = put_model(self._store, CheckReport(tree=tree, results=(result,)), name="checks")
        state = before.evolve(
            iteration=number + 1,
            tree=tree,
            plan=put_model(self._store, PlanRecord(message=plan), name="plan"),
            plan_title=plan.steps[0].title if plan else "",
            checks=checks,
            checks_text="0/1",
        )
        return TrackRequest(
            scope=self._scope,
            state=state,
            base_tree=before.tree,
            base_lines=self._last.lines if self._last else None,
            previous_plan=before.plan,
            checks_before="0/1",
            parent=self._last.id if self._last else None,
            report=ExecutorReport(key=f"run/{number}/1", status=ExecutorStatus.COMPLETED, new_tree=tree),
            verification=Verification(tree=tree, total=1, failed_count=1, report=checks),
        )

    def _track(self, request: TrackRequest) -> tuple[float, float]:
        def track() -> tuple[tuple[float, float], CheckpointRecord, EpisodeState]:
            begun, processor = time.perf_counter(), _processor_s()
            tracked = self._environment.run(self._activities.track_iteration, request)
            took = (time.perf_counter() - begun, _processor_s() - processor)
            state = request.state.evolve(plan_request=tracked.plan_request)
            return took, tracked.checkpoint, state

        took, self._last, self._state = self._thread.submit(track).result()
        return took

    def _diff(self, base: str, tree: str) -> float:
        begun = time.perf_counter()
        with contextlib.suppress(subprocess.TimeoutExpired):
            store = f"--git-dir={store_folder_of(self._scope)}"
            subprocess.run(
                ("git", store, "diff", base, tree), stdout=subprocess.DEVNULL, check=True, timeout=GIT_BOUND_S
            )
        return time.perf_counter() - begun


def _processor_s() -> float:
    """Processor time of this process and of those that it waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)
