"""The tracking activity on real trees: it gathers what no ratio sees from plans, reports, checks and its own memory."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.artifacts.port import put_model
from activities.artifacts.stores import open_local_store
from activities.tracking.activity import TrackingActivities, TrackRequest
from activities.workspace.differ import Differ
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import Workspaces
from tightloop.database.ledger import open_project
from tightloop.episode.check import Check, CheckReport, FailedCheck, Verification, judge, newly_failing, progress
from tightloop.episode.decisions import make_question
from tightloop.episode.model import EpisodeRequest, EpisodeState
from tightloop.episode.planning import PlanRecord, PlanVerdict, ReflectCause, ReflectionRecord
from tightloop.episode.progress.tracking import ProbabilityClass, ReasonKind, Tracking
from tightloop.episode.state_changes import begin_iteration, with_ended_wait, with_tracking
from tightloop.executor.message import PlanMessage, PlannedStep, Reflection
from tightloop.executor.model import ExecutorReport, ExecutorStatus
from tightloop.run.question import QuestionKind

PATIENCE = timedelta(seconds=60)
"""Enough for every comparison here, however busy the machine is."""
PYTEST = Check(run="pytest -q", name="pytest")


class Episode:
    """An episode in a real repository, driven by hand: edit, run the checks, track."""

    def __init__(self, root: Path, *, patience: timedelta = PATIENCE) -> None:
        self.root = root
        self._store = open_local_store(root)
        self._workspaces = Workspaces()
        differ = Differ(compare_bound=patience, lines_bound=patience)
        self._activities = TrackingActivities(self._workspaces, open_local_store, open_project, differ)
        request = EpisodeRequest(goal="make it green", workspace=str(root), definition_of_done=(PYTEST,))
        stored = put_model(self._store, request, name="request")
        self._scope = EpisodeScope(episode_id="course", workspace=str(root), request=stored)
        self._workspaces.prepare(self._scope, take_over=lambda _episode: True)
        self._checks: CheckReport | None = None
        tree = self._snapshot()
        self.state = EpisodeState(tree=tree, request=stored, trees=(tree,), baseline_red=True)

    def iterate(
        self, edits: dict[str, str], plan: PlanMessage, *, failures: int = 1, failing: str = "test_a.py::test_it"
    ) -> Tracking:
        """Make one pass: the executor leaves `edits`, then `failing` fails."""
        before = self.state
        self.state = begin_iteration(before)
        for name, text in edits.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        tree = self._snapshot()
        output = f"FAILED {failing}\n=== {failures} failed, 3 passed in 0.1s ==="
        result = judge(PYTEST, tree=tree, exit_code=1, timed_out=False, duration_s=1.0, output=output)
        report = CheckReport(tree=tree, results=(result,))
        verification = Verification(
            tree=tree,
            total=1,
            failed=(FailedCheck(name="pytest", signature=result.signature),),
            failed_count=1,
            signature=report.signature,
            progress=self._checks is not None and progress(self._checks, report),
            same=self._checks is not None and self._checks.signature == report.signature,
            newly_failing=newly_failing(self._checks, report),
        )
        self._checks = report
        self.state = self.state.evolve(
            tree=tree,
            plan=put_model(self._store, PlanRecord(message=plan), name="plan"),
            plan_verdict=PlanVerdict.PLANNED,
            executor_status=ExecutorStatus.COMPLETED,
            checks=put_model(self._store, report, name="checks"),
        )
        return self._track(before, verification)

    def advise(self, *items: str) -> None:
        """Put a reflection into the state, as the reflection activity does."""
        record = ReflectionRecord(diagnosis="d", action_items=items)
        stored = put_model(self._store, record, name="reflection")
        self.state = self.state.evolve(reflection=stored)

    def _track(self, before: EpisodeState, verification: Verification) -> Tracking:
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, workflow_run_id="run")
        request = TrackRequest(
            scope=self._scope,
            state=self.state,
            base_tree=before.tree,
            report=ExecutorReport(key=f"run/{self.state.iteration}/1", status=ExecutorStatus.COMPLETED),
            verification=verification,
        )
        stored = TrackRequest.model_validate_json(request.model_dump_json())
        tracked = environment.run(self._activities.track_iteration, stored)
        self.state = with_tracking(self.state, tracked, verification)
        return tracked.tracking

    def _snapshot(self) -> str:
        with self._workspaces.hold(self._scope) as tree:
            return tree.snapshot()


@pytest.fixture
def episode(workspace: Path) -> Episode:
    (workspace / "app.py").write_text("".join(f"line_{number} = {number}\n" for number in range(200)))
    return Episode(workspace)


def plan(title: str, *, scope: tuple[str, ...] = ()) -> PlanMessage:
    reflection = Reflection(diagnosis="d", action_items=("go on",))
    return PlanMessage(goal="g", steps=(PlannedStep(title=title),), scope=scope, reflection=reflection)


def kinds(tracking: Tracking) -> set[ReasonKind]:
    return {reason.kind for reason in tracking.reasons if reason.implies is not ProbabilityClass.HIGH}


def test_files_outside_of_the_plan_are_named_in_the_record(episode: Episode) -> None:
    edits = {"src/parser.py": "a = 1\n", "db/models.py": "b = 2\nc = 3\n"}
    tracking = episode.iterate(edits, plan("fix the parser", scope=("`src/` - the parser",)))
    assert tracking.probability_class is ProbabilityClass.MEDIUM
    found = next(reason for reason in tracking.reasons if reason.kind is ReasonKind.OUT_OF_SCOPE)
    assert found.detail == "1 file outside the plan (67% of the change): db/models.py"
    assert tracking.rules


def test_files_that_were_announced_by_absolute_path_are_in_scope(episode: Episode) -> None:
    tracking = episode.iterate({"src/parser.py": "a = 1\n"}, plan("fix", scope=(f"{episode.root}/src/parser.py",)))
    assert tracking.probability_class is ProbabilityClass.HIGH


def test_same_failure_twice_makes_the_next_pass_begin_with_a_reflection(episode: Episode) -> None:
    for way in ("one", "another"):
        tracking = episode.iterate({"a.py": f"{way}\n"}, plan(f"{way} way"))
        assert tracking.probability_class is ProbabilityClass.HIGH
        assert episode.state.reflect_next is None
    tracking = episode.iterate({"a.py": "third\n"}, plan("a third way"))
    assert kinds(tracking) == {ReasonKind.SAME_ERROR_AGAIN}
    assert episode.state.reflect_next is ReflectCause.REPEATED_FAILURE
    assert episode.state.reflect_detail.startswith("2 times in a row: the check fails: pytest")
    assert "failed in the same way" in episode.state.reflect_detail


def test_plan_that_comes_back_is_noticed_where_it_brings_nothing_new(episode: Episode) -> None:
    episode.iterate({"a.py": "one\n"}, plan("add a guard"))
    tracking = episode.iterate({"b.py": "guard()\n"}, plan("add a guard"))
    assert kinds(tracking) == set()
    tracking = episode.iterate({"a.py": "two\n"}, plan("add a guard"))
    assert kinds(tracking) == {ReasonKind.SAME_PLAN_AGAIN}


def test_trees_and_failures_that_go_round_are_low(episode: Episode) -> None:
    for number in range(4):
        even = number % 2 == 0
        tracking = episode.iterate(
            {"a.py": f"{even}\n"}, plan(f"step {'abcd'[number]}"), failing=f"test_a.py::test_{'one' if even else 'two'}"
        )
    assert tracking.probability_class is ProbabilityClass.LOW
    assert ReasonKind.ALTERNATION in kinds(tracking)


def test_advice_that_nobody_follows_is_a_reason(episode: Episode) -> None:
    episode.advise("undo the change in app.py")
    for name in ("one", "two"):
        tracking = episode.iterate({"b.py": f"{name}\n"}, plan(f"try {name}"))
    assert kinds(tracking) == {ReasonKind.OPEN_ITEMS}
    assert "undo the change in app.py" in str(tracking.reasons)
    tracking = episode.iterate({"app.py": "line = 1\n" * 190}, plan("undo"), failures=0, failing="test_a.py::test_c")
    assert ReasonKind.OPEN_ITEMS not in kinds(tracking)


def test_guessing_without_progress_is_counted_until_a_person_steps_in(episode: Episode) -> None:
    words = ("one", "two", "three", "four", "five", "six")
    found = [episode.iterate({"a.py": f"{word}\n"}, plan(f"try {word}")) for word in words[:5]]
    assert [ReasonKind.COST in kinds(tracking) for tracking in found] == [False, False, False, False, True]
    assert "no check improved for 4 iterations" in str(found[-1].reasons)
    episode.state = with_ended_wait(episode.state, make_question(QuestionKind.DEVIATION, "left its course"), None)
    after = episode.iterate({"a.py": "six\n"}, plan("try six"), failing="test_a.py::test_six")
    assert after.probability_class is ProbabilityClass.HIGH


def test_new_files_that_were_announced_are_growth(episode: Episode) -> None:
    edits = {"sdk/client.py": "x = 1\n" * 2_000}
    tracking = episode.iterate(edits, plan("write the client", scope=("sdk/",)))
    assert tracking.ratio < 0.4
    assert tracking.probability_class is ProbabilityClass.HIGH
