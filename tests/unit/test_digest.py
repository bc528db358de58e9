"""The digest of a project: one line for each piece of work, the most urgent first, and nothing private in alerts."""

from datetime import UTC, datetime, timedelta

import pytest

from tightloop.ledger.model import InboxItem, WorkflowLine
from tightloop.loop.digest import Digest, DigestState, digest_items, digest_lines, digest_notice
from tightloop.loop.model import LoopState, LoopStatus, LoopTask, TaskState
from tightloop.run.question import Option, Question, QuestionKind

NIGHT = datetime(2026, 11, 29, 20, 0, tzinfo=UTC)
BRANCH = "branch tightloop/e (1 commit, 2 files, +3 -1). Merge it: git merge tightloop/e"


def line(name: str = "e", status: str = "succeeded", **changes: object) -> WorkflowLine:
    fields = {"id": name, "kind": "episode", "status": status, "goal": "Round prices", "at": NIGHT, "cost_known": True}
    return WorkflowLine.model_validate({**fields, **changes})


def asks(name: str, kind: QuestionKind = QuestionKind.LIMIT, **changes: object) -> InboxItem:
    options = (Option(name="retry", effect="try it again"), Option(name="cancel", effect="end it"))
    question = Question(id="q1", kind=kind, title="the key was rejected", options=options)
    fields = {"project": "p", "workflow_id": name, "kind": "episode", "question": question, "since": NIGHT}
    return InboxItem.model_validate({**fields, **changes})


def task(number: int, state: TaskState, **changes: object) -> LoopTask:
    fields = {"task_id": f"ptask_{number}", "description": "Add a rule", "state": state, "run_id": f"loop.{number}"}
    return LoopTask.model_validate({**fields, **changes})


def digest(*items: object, **changes: object) -> Digest:
    fields = {"project": "p", "since": NIGHT, "until": NIGHT + timedelta(hours=12), "items": items}
    return Digest.model_validate({**fields, **changes})


@pytest.mark.parametrize(
    ("ended", "state", "texts"),
    [
        (line(details={"delivered": BRANCH, "reason": "all checks pass: 2/2"}), "merge", ("2/2", "git merge")),
        (line(qualifier="not proven: no check ever failed", files_changed=1), "review", ("no check ever failed",)),
        (line(files_changed=2), "merge", ("2 changed files in the working tree", "tightloop result e --patch")),
        (line(files_changed=0), "done", ("no files changed",)),
        (line(status="failed", details={"reason": "nobody answered"}), "failed", ("nobody answered",)),
        (line(status="cancelled", details={"reason": "not needed"}), "failed", ("cancelled: not needed",)),
    ],
)
def test_an_ended_run_says_what_to_do_with_it(ended: WorkflowLine, state: str, texts: tuple[str, ...]) -> None:
    [item] = digest_items([ended], [], [])
    assert item.state == state
    for text in texts:
        assert text in item.text


def test_a_project_plan_counts_its_tasks_and_names_those_that_need_somebody() -> None:
    tasks = (
        task(1, TaskState.COMPLETE),
        task(2, TaskState.AWAITING_RESPONSE),
        task(3, TaskState.QUEUED, run_id=""),
        task(4, TaskState.ERROR, message="its budget is spent"),
        task(5, TaskState.ERROR, run_id="", message="it depends on ptask_4"),
        task(6, TaskState.COMPLETE, conflict_of="ptask_1"),
    )
    status = LoopStatus(status=LoopState.RUNNING, tasks=tasks)
    loop = line("loop", "running", kind="loop", details=status.model_dump(mode="json"), cost_usd=2.0, cost_known=False)
    question = asks("loop.2", loop="loop", tasks=("ptask_2", "ptask_3"))
    asking, failed, plan = digest_items([], [loop], [question])
    assert (asking.id, asking.command) == ("loop.2", "tightloop answer loop.2 retry")
    assert "ptask_3 waits for it. Since 29 Nov 20:00 UTC." in asking.text
    assert "retry (try it again), cancel (end it)" in asking.text
    assert (failed.id, failed.state, failed.text) == ("loop.4", DigestState.FAILED, "its budget is spent")
    assert (plan.id, plan.state) == ("loop", DigestState.WAITS)
    for text in ("2 of 6 tasks complete", "waiting for an answer: ptask_2", "failed: ptask_4, ptask_5", "1 conflict"):
        assert text in plan.text


def test_a_run_that_asks_has_one_line_however_many_questions_it_has() -> None:
    twice = [asks("e"), asks("e")]
    [item] = digest_items([], [line(status="paused", cost_usd=1.0)], twice)
    assert "(1 more question)" in item.text
    assert item.command == "tightloop answer e retry --question q1"
    assert item.cost_usd == 1.0


def test_a_busy_night_fits_on_a_page_and_begins_with_what_is_urgent() -> None:
    ended = [line(f"e{number}", details={"reason": "all checks pass: 1/1"}) for number in range(180)]
    night = digest(*digest_items(ended, [], [asks("plan.a.1")]), cost_usd=3.5)
    lines = digest_lines(night)
    assert len(lines) <= 60
    assert lines[2].split()[:2] == ["answer", "plan.a.1:"]
    assert "and 131 more: tightloop list" in lines[-2]
    assert len(digest_notice(night, at=NIGHT).text.splitlines()) <= 60


def test_runs_that_did_not_report_their_cost_are_named() -> None:
    items = digest_items([line("a", cost_usd=1.0), line("b", cost_known=False, files_changed=0)], [], [])
    counts, first, second = digest_lines(digest(*items, cost_usd=1.0))[1:]
    assert counts == "1 to merge, 1 done; 0 iterations; cost at least $1.00 (not fully reported by b)"
    assert first.endswith("; cost $1.00")
    assert second.endswith("; cost unknown")


def test_alert_has_ids_and_kinds_alone_unless_the_settings_allow_words() -> None:
    night = digest(*digest_items([line(details={"delivered": BRANCH})], [], [asks("x")]))
    short, full = (digest_notice(night, at=NIGHT, full=full).text for full in (False, True))
    assert "  answer   x: limit\n  merge    e: succeeded\n" in short
    for text in ("Round prices", "rejected"):
        assert text not in short
        assert text in full
    assert "tightloop digest --project p --since 2026-11-29T20:00 --until 2026-11-30T08:00" in short
