"""Lists with pages and filters, the inbox, the digest, and who sees what."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.ledger import START, question, snapshot
from tightloop.database.ledger import Ledger
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, ProjectNotFoundError
from tightloop.ledger.model import StepRow, TrailEvent, WorkflowFilter
from tightloop.loop.digest import DigestState
from tightloop.loop.model import LoopState, LoopStatus, LoopTask, TaskState

DAY = (datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))


def pages(ledger: Ledger, wanted: WorkflowFilter, limit: int) -> list[list[str]]:
    found, cursor = [], ""
    while True:
        page = ledger.workflows(wanted, cursor=cursor, limit=limit)
        found.append([line.id for line in page.lines])
        cursor = page.cursor
        if not cursor:
            return found


def test_pages_list_everything_once_with_the_newest_start_first(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    for number in range(25):
        # Some start at the same moment.
        project.record(snapshot(f"e{number:02}", started=START + timedelta(seconds=number // 3)))
    found = pages(ledger, WorkflowFilter(), 10)
    assert [len(page) for page in found] == [10, 10, 5]
    assert [name for page in found for name in page] == [f"e{number:02}" for number in reversed(range(25))]


def test_a_page_keeps_its_place_while_others_start(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    for number in range(4):
        project.record(snapshot(f"e{number}", started=START + timedelta(seconds=number)))
    first = ledger.workflows(limit=2)
    project.record(snapshot("new", started=START + timedelta(hours=1)))
    assert [line.id for line in ledger.workflows(cursor=first.cursor, limit=2).lines] == ["e1", "e0"]


def test_filters_choose_by_project_kind_status_parent_and_words(ledger: Ledger) -> None:
    orders, shop = ledger.of("orders-1"), ledger.of("shop-2")
    orders.record(snapshot("plan-1", kind="plan", goal="100% of the Tests"))
    orders.record(snapshot("plan-1.build", parent="plan-1", status="paused"))
    shop.record(snapshot("episode-9", goal="100 tests"))

    def found(**wanted: str) -> set[str]:
        return {line.id for line in ledger.workflows(WorkflowFilter.model_validate(wanted)).lines}

    assert found() == {"plan-1", "plan-1.build", "episode-9"}
    assert found(project="shop-2") == {"episode-9"}
    assert found(kind="plan") == {"plan-1"}
    assert found(status="paused", project="orders-1") == {"plan-1.build"}
    assert found(parent="plan-1") == {"plan-1.build"}
    assert found(parent="") == {"plan-1", "episode-9"}
    assert found(text="100% of the tests") == {"plan-1"}
    assert found(text="EPISODE_9") == set()


def test_a_cursor_of_somebody_elses_making_is_refused(ledger: Ledger) -> None:
    for cursor in ("x", "bm8", "WzFd", "\u00e9"):
        with pytest.raises(InvalidRequestError, match="cursor"):
            ledger.workflows(cursor=cursor)


def test_inbox_lists_project_plans_that_wait_for_a_command(ledger: Ledger) -> None:
    project, task = (
        ledger.of("orders-1"),
        LoopTask(task_id="ptask_1", title="t", description="d", state=TaskState.COMPLETE),
    )
    plans = {
        "planning": LoopStatus(),
        "draft": LoopStatus(tasks=(task,), created_at=START),
        "running": LoopStatus(tasks=(task,), status=LoopState.RUNNING),
        "ended": LoopStatus(tasks=(task,), status=LoopState.RUNNING, completed_at=START + timedelta(hours=1)),
        "verified": LoopStatus(tasks=(task,), status=LoopState.VERIFIED),
    }
    for name, status in plans.items():
        closed = START if status.status is LoopState.VERIFIED else None
        details = status.model_dump(mode="json")
        project.record(snapshot(f"plan_{name}", kind="loop", details=details, closed=closed))
    found = [(item.workflow_id, item.question.command, item.question.options[0].name) for item in ledger.inbox()]
    assert found == [("plan_draft", "dispatch", "dispatch"), ("plan_ended", "verify", "verify")]
    assert ledger.inbox("shop-2") == ledger.limit_to(["shop-2"]).inbox() == ()


def test_lists_leave_out_the_details_and_a_single_line_has_them(ledger: Ledger) -> None:
    ledger.of("orders-1").record(snapshot("one", details={"goal": "g"}))
    assert ledger.workflows().lines[0].details == {}
    assert ledger.workflow("one").details == {"goal": "g"}


def test_unknown_ones_are_named(ledger: Ledger) -> None:
    with pytest.raises(EpisodeNotFoundError, match="nobody"):
        ledger.workflow("nobody")
    with pytest.raises(ProjectNotFoundError, match="nowhere"):
        ledger.project("nowhere")
    with pytest.raises(ProjectNotFoundError, match="nowhere"):
        ledger.digest("nowhere", *DAY)


def test_inbox_is_oldest_first_and_says_what_each_question_blocks(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    asked = question("q1", 5)
    project.record(snapshot("plan-1", 6, kind="plan", questions=(question("q7", 6, step="deploy", blocks="deploy"),)))
    project.record(snapshot("plan-1.build", 5, parent="plan-1", status="paused", questions=(asked,)))
    project.record(snapshot("alone", 1, questions=(question("q1", 1, blocks=""), question("q2", 2))))
    needs = {"build": (), "test": ("build",), "deploy": ("test",), "docs": (), "done": ("build",)}
    project.record_steps(
        StepRow(
            plan_id="plan-1",
            step=step,
            status="completed" if step == "done" else "pending",
            needs=before,
            child_id="plan-1.build" if step == "build" else "",
        )
        for step, before in needs.items()
    )
    assert [(item.workflow_id, item.question.id, item.blocks) for item in ledger.inbox()] == [
        ("alone", "q1", 0),
        ("alone", "q2", 1),
        ("plan-1.build", "q1", 3),
        ("plan-1", "q7", 1),
    ]
    assert ledger.inbox()[2].question == asked
    assert ledger.inbox("shop-2") == ()


def test_inbox_says_which_tasks_of_which_loop_wait(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    needs = {"ptask_1": (), "ptask_2": ("ptask_1",), "ptask_3": ("ptask_2",), "ptask_4": (), "ptask_5": ("ptask_1",)}
    tasks = tuple(
        LoopTask(
            task_id=name,
            description=name,
            dependencies=before,
            state=TaskState.COMPLETE if name == "ptask_5" else TaskState.QUEUED,
        )
        for name, before in needs.items()
    )
    project.record(
        snapshot(
            "plan_1", kind="loop", details=LoopStatus(status=LoopState.RUNNING, tasks=tasks).model_dump(mode="json")
        )
    )
    project.record(snapshot("plan_1.tasks", kind="plan", parent="plan_1"))
    project.record(snapshot("plan_1.tasks.ptask_1.1", 5, parent="plan_1.tasks", questions=(question("q1", 5),)))
    # The round knows only its own tasks; the rest is known to the loop.
    project.record_steps(
        [StepRow(plan_id="plan_1.tasks", step="ptask_1", status="running", child_id="plan_1.tasks.ptask_1.1")]
    )
    (item,) = ledger.inbox()
    assert (item.loop, item.blocks, item.tasks) == ("plan_1", 3, ("ptask_1", "ptask_2", "ptask_3"))
    assert ledger.limit_to(["shop-2"]).inbox() == ()


def test_digest_tells_what_a_day_brought(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    noon = START + timedelta(hours=4)
    project.record(snapshot("plan-1", kind="plan", cost_usd=0))
    project.record(snapshot("plan-1.a", parent="plan-1", cost_usd=1.0))
    project.record(snapshot("plan-1", 60, kind="plan", cost_usd=3.0))
    project.record(snapshot("old", -60 * 24, cost_usd=5.0))
    project.record(snapshot("old", 10, cost_usd=5.5, status="succeeded", closed=noon))
    project.record(snapshot("bad", 10, status="failed", closed=noon, details={"reason": "out of budget"}))
    project.record(snapshot("waits", 11, questions=(question(),)))
    project.add_event(TrailEvent(episode_id="old", kind="iteration", at=noon))
    project.add_event(TrailEvent(episode_id="old", kind="iteration", at=noon + timedelta(days=1)))
    digest = ledger.digest("orders-1", *DAY)
    states = {item.id: (item.state, item.cost_usd) for item in digest.items}
    assert states == {
        "waits": (DigestState.ANSWER, 0.0),
        "old": (DigestState.MERGE, 5.5),
        "bad": (DigestState.FAILED, 0.0),
        "plan-1": (DigestState.RUNNING, 4.0),
    }
    assert next(item.text for item in digest.items if item.id == "bad") == "out of budget"
    assert digest.iterations == 1
    # The running child's cost is not in that of its plan yet.
    assert digest.cost_usd == pytest.approx(4.5)
    earlier = ledger.digest("orders-1", *(moment - timedelta(days=1) for moment in DAY), is_newest=False)
    assert (earlier.cost_usd, earlier.items) == (pytest.approx(5.0), ())


def test_cost_of_tasks_is_counted_once(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    for minute, changes in (
        (1, {"id": "loop", "kind": "loop"}),
        (2, {"id": "loop.a", "parent": "loop", "cost_usd": 1.0, "cost_known": True}),
        (3, {"id": "loop.b", "parent": "loop", "cost_usd": 2.0}),
        (4, {"id": "loop.a", "parent": "loop", "cost_usd": 1.0, "status": "succeeded", "closed": START}),
        (5, {"id": "loop", "kind": "loop", "cost_usd": 1.0, "cost_known": True}),
    ):
        project.record(snapshot(str(changes["id"]), minute, **changes))
    digest = ledger.digest("orders-1", *DAY)
    [item] = digest.items
    assert (item.cost_usd, item.cost_known, digest.cost_usd) == (3.0, False, 3.0)
    assert digest.with_unknown_cost == ("loop",)


def fill(ledger: Ledger, *names: str) -> None:
    for name in names:
        project = ledger.of(name)
        project.record(snapshot(f"{name}-e", 1, status="paused", questions=(question(),)))
        project.record_steps([StepRow(plan_id=f"{name}-e", step="s", status="running")])


PROJECTS = ("a-1", "b-2", "c-3")


def test_other_projects_do_not_exist_for_a_limited_ledger(ledger: Ledger) -> None:
    fill(ledger, *PROJECTS)

    @given(st.sets(st.sampled_from([*PROJECTS, "nowhere"])), st.sets(st.sampled_from(PROJECTS)))
    @settings(max_examples=16)
    def check(first: set[str], second: set[str]) -> None:
        mine = ledger.limit_to(first).limit_to(second)
        seen = {name for name in PROJECTS if name in first & second}
        assert {line.id for line in mine.projects()} == seen
        assert {line.project for line in mine.workflows().lines} == seen
        assert {item.project for item in mine.inbox()} == seen
        assert {line.project for line in mine.events()} == seen
        assert (mine.last_event() > 0) == bool(seen)
        for name in PROJECTS:
            if name in seen:
                assert mine.workflow(f"{name}-e").project == name
                assert mine.steps(f"{name}-e")
                assert mine.digest(name, *DAY).items
                mine.of(name)
            else:
                assert mine.workflows(WorkflowFilter(project=name)).lines == ()
                assert mine.events(project=name) == ()
                assert mine.events(workflow_id=f"{name}-e") == ()
                assert (mine.steps(f"{name}-e"), mine.checkpoints(f"{name}-e"), mine.inbox(name)) == ((), (), ())
                for forbidden in (mine.of, mine.project, lambda name: mine.digest(name, *DAY)):
                    with pytest.raises(ProjectNotFoundError):
                        forbidden(name)
                with pytest.raises(EpisodeNotFoundError):
                    mine.workflow(f"{name}-e")

    check()


def test_events_are_read_on_from_where_a_reader_was(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    assert ledger.last_event() == 0
    for number in range(5):
        project.add_event(TrailEvent(episode_id="one", kind="note", key=f"k{number}", at=datetime.now(UTC)))
    first = ledger.events(limit=2)
    rest = ledger.events(after=first[-1].seq)
    assert [line.key for line in (*first, *rest)] == [f"k{number}" for number in range(5)]
    assert ledger.events(after=ledger.last_event()) == ()
