"""What iterations teach the memory, and what a model is told of it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from activities.memory.port import BestEffortMemories, BestEffortMemory, TextMemory
from activities.tracking.learning import EarlierPlan, Lesson, Moment, record_lesson
from activities.workspace.scope import TreeDiff
from tightloop.database.engine import sqlite_database
from tightloop.database.memory.schema import MEMORY
from tightloop.database.memory.store import MemoryStore
from tightloop.episode.check import Check, CheckReport, judge
from tightloop.episode.planning import FollowedPattern, PlanRecord, failure_signature
from tightloop.errors import InvalidRequestError, ServiceUnavailableError
from tightloop.executor.message import PlanMessage, PlannedStep
from tightloop.memory import HashingEmbedder, Kind, Query
from tightloop.safety.rubric import Finding, Topic, Verdict
from tightloop.settings import MemorySettings

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CHANGE = TreeDiff(
    files_changed=2,
    patch=b"diff --git a/shop.py b/shop.py\n--- a/shop.py\n+++ b/shop.py\n@@ -1 +1 @@\n-a\n+b\n"
    b"diff --git a/tests/test_shop.py b/tests/test_shop.py\n--- /dev/null\n+++ b/tests/test_shop.py\n"
    b"@@ -0,0 +1 @@\n+c\n",
)
A, B, C = (("fix", name) for name in "abc")


def report(**failing: str) -> CheckReport:
    run = "pytest -q"
    output = failing.get("output", "")
    result = judge(
        Check(run=run), tree="t", exit_code=1 if output else 0, timed_out=False, duration_s=0.1, output=output
    )
    return CheckReport(tree="t", results=(result,))


def plan(*commands: tuple[str, ...], followed: Sequence[FollowedPattern] = ()) -> PlanRecord:
    steps = tuple(PlannedStep(title=f"Run {command[-1]}", run=command) for command in commands)
    return PlanRecord(message=PlanMessage(steps=steps), followed=tuple(followed))


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore(sqlite_database(tmp_path / "memory.db", MEMORY), HashingEmbedder(384), MemorySettings())


@pytest.fixture
def memory(store: MemoryStore) -> BestEffortMemory:
    return BestEffortMemory("p", lambda: store)


def taught(
    memory: BestEffortMemory, made: PlanRecord, before: str, after: str, *, iteration: int = 1, diff: TreeDiff = CHANGE,
    findings: Sequence[Finding] = (), earlier: Sequence[EarlierPlan] = (),
) -> None:  # fmt: skip
    lesson = Lesson(made, report(output=before), report(output=after), diff, findings, earlier)
    for _ in range(2):
        # An activity may be tried again.
        record_lesson(memory, lesson, Moment("e", iteration, "run", NOW))


def solutions(store: MemoryStore, output: str) -> list[tuple[tuple[str, ...], ...]]:
    signature = failure_signature(report(output=output).results[0])
    found = store.recall("p", Query(text=output, signature=signature, limit=10))
    return [one.pattern.commands for one in found if one.pattern and one.failure == signature]


def test_plan_after_which_a_check_passes_is_kept_with_its_change(memory: BestEffortMemory, store: MemoryStore) -> None:
    taught(memory, plan(A), "KeyError: 'alpha'", "")
    [entry] = store.entries("p", Kind.PATTERN)
    pattern = store.show("p", entry.id).pattern
    assert pattern is not None
    assert pattern.commands == (A,)
    assert "shop.py" in pattern.code_template
    assert "tests/" not in pattern.code_template
    assert "tests/test_shop.py" in pattern.test_template
    assert (entry.evidence.worked, entry.evidence.tried) == (1, 1)


@pytest.mark.parametrize(
    ("after", "diff", "findings"),
    [
        ("KeyError: 'beta'", CHANGE, ()),
        ("", TreeDiff(), ()),
        ("", TreeDiff(files_changed=1, patch=CHANGE.patch[CHANGE.patch.index(b"diff --git a/tests") :]), ()),
        ("", CHANGE, (Finding(rule="tests_removed", topic=Topic.CHECKS, verdict=Verdict.ASK),)),
    ],
    ids=["still fails", "nothing changed", "tests alone", "a person has to look"],
)
def test_nothing_is_learnt_where_the_plan_was_not_proven(
    memory: BestEffortMemory, store: MemoryStore, after: str, diff: TreeDiff, findings: Sequence[Finding]
) -> None:
    taught(memory, plan(A), "KeyError: 'alpha'", after, diff=diff, findings=findings)
    assert store.entries("p", Kind.PATTERN) == ()
    assert store.stats("p").failures >= 1


def test_commands_from_the_first_failure_on_are_one_solution_for_it(
    memory: BestEffortMemory, store: MemoryStore
) -> None:
    before = [
        EarlierPlan(plan(B).message or PlanMessage(), report(output="KeyError: 'beta'")),
        EarlierPlan(plan(A).message or PlanMessage(), report(output="KeyError: 'alpha'")),
    ]
    for output in ("KeyError: 'alpha'", "KeyError: 'beta'"):
        taught(memory, plan(A), output, output)
    taught(memory, plan(C), "KeyError: 'gamma'", "", iteration=3, earlier=before)
    assert solutions(store, "KeyError: 'gamma'") == [(C,)]
    assert solutions(store, "KeyError: 'beta'") == [(B, C)]
    assert solutions(store, "KeyError: 'alpha'") == [(A, B, C)]


def test_what_was_recalled_is_judged_by_whether_its_check_passes(memory: BestEffortMemory, store: MemoryStore) -> None:
    taught(memory, plan(A), "KeyError: 'alpha'", "")
    [entry] = store.entries("p", Kind.PATTERN)
    signature = failure_signature(report(output="KeyError: 'alpha'").results[0])
    again = plan(B, followed=[FollowedPattern(failure=signature, pattern=entry.id, check="pytest -q")])
    taught(memory, again, "KeyError: 'alpha'", "KeyError: 'alpha'", iteration=2)
    [entry] = store.entries("p", Kind.PATTERN)
    assert (entry.evidence.worked, entry.evidence.tried) == (1, 2)


def test_model_is_told_of_failures_and_facts(memory: BestEffortMemory) -> None:
    taught(memory, plan(A), "KeyError: 'alpha'", "")
    told = TextMemory(memory, "e")
    told.remember("alpha", "it is set by the loader")
    failure, fact = told.search("KeyError: 'alpha' of the loader", 3)
    assert failure.startswith("failure: KeyError: 'alpha'")
    assert "$ fix a" in failure
    assert fact == "fact alpha: it is set by the loader"
    with pytest.raises(InvalidRequestError):
        told.remember("", "nothing")


def test_memory_that_failed_rests_and_says_why(tmp_path: Path) -> None:
    calls: list[Path] = []

    def unreachable(workspace: Path) -> MemoryStore:
        calls.append(workspace)
        raise ServiceUnavailableError("the database x does not answer. Start it")

    memories = BestEffortMemories(unreachable, lambda workspace: workspace.name)
    for _ in range(3):
        memory = memories(tmp_path)
        assert memory.recall(Query(text="KeyError: 'alpha'")) == ()
        assert memory.problem == "cannot use the memory: the database x does not answer. Start it"
    assert len(calls) == 1
