"""Recorded histories fit the present code, tell what happened, and do not fit code that was changed without care."""

import json
import re
from pathlib import Path

import pytest
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from tests.replay.changed_workflow import WithAnotherActivity, WithOneMoreTimer
from tests.replay.record import HISTORIES, leaks
from tests.replay.scenarios import SCENARIOS
from tightloop.errors import InvalidRequestError
from worker.build import WORKFLOW_TYPES, workflow_runner
from worker.connect import DATA_CONVERTER
from worker.replay import ReplayResult, format_replay, read_history, replay

RECORDED = sorted(HISTORIES.glob("*.json"))

TOLD = {
    "paused_and_resumed": (
        r"paused: operator: lunch \(by operator\)",
        r"resumed: edits to 1 file during the pause were kept",
        r"closed: SUCCEEDED",
    ),
    "restored_before": (r"iteration: ckpt-2:", r"paused: budget:"),
    "restored_after": (
        r"restored: back to ckpt-1: wrong turn \(by operator\), branch 2",
        r"paused: budget:",
        r"topped up: .*iterations",
        r"iteration: ckpt-4:",
        r"closed: SUCCEEDED",
    ),
    "restored_while_pausing_before": (r"opened: ckpt-0",),
    "restored_while_pausing_after": (
        r"restored: back to ckpt-0",
        r"paused: operator: lunch",
        r"resumed",
        r"closed: SUCCEEDED",
    ),
    "reset_in_temporal": (r"iteration: ckpt-1:", r"reset: .*1 checkpoint discarded", r"closed: SUCCEEDED"),
    "told_without_a_pause": (r"iteration: ckpt-5:", r"unmoved: ", r"alert: unmoved alert sent", r"closed: SUCCEEDED"),
    "executor_missing": (r"waits: .*tightloop-sample-screen", r"iteration: ckpt-1:", r"closed: SUCCEEDED"),
    "agent_reports": (
        r"answered: operator chose done for 'the agent in the window",
        r"iteration: ckpt-1:",
        r"closed: SUCCEEDED",
    ),
    "coder_reflects": (r"coding: turn 0", r"checks: 1 of 1 check red", r"reflecting: turn 2", r"success: turn 6"),
    "coder_asks": (
        r"coder: CODING \(2 turns\)",
        r"paused: clarification: Which text\?",
        r"answered: operator chose answer",
        r"coder: CODING \(.*\) > TESTING > SUCCESS",
        r"closed: SUCCEEDED",
    ),
    "limit_hit": (
        r"limit: delivery failure 1: next attempt in 0.1 s. 429 Too Many Requests",
        r"limit: delivery failure 2:",
        r"paused: limit: 3 attempts in a row hit a limit: 429 Too Many Requests",
        r"resumed: ",
        r"closed: SUCCEEDED",
    ),
    "continued_as_new_first": (r"opened: ckpt-0", r"iteration: ckpt-1:", r"iteration: ckpt-2:"),
    "continued_as_new_second": (r"opened: ckpt-0", r"iteration: ckpt-3:", r"closed: SUCCEEDED"),
    "failed": (r"paused: budget:", r"closed: FAILED: nobody answered within 1 s"),
    "cancelled_while_executing": (r"opened: ckpt-0", r"closed: CANCELLED: enough"),
    "planner_gave_up_and_respond": (
        r"paused: planner_gave_up: I do not know how",
        r"response: operator: append a line",
        r"iteration: ckpt-1:",
    ),
    "budget_top_up_amend": (r"paused: budget:", r"amended: ", r"topped up: ", r"closed: SUCCEEDED"),
    "asked_for_permission": (
        r"paused: permission: append line 1 \(by the executor\)",
        r"answered: operator chose deny for 'append line 1': not yet",
        r"iteration: ckpt-1:",
        r"paused: permission: append line 2 \(by the executor\)",
        r"refused: cannot resume: q2 needs a decision",
        r"answered: operator chose allow for 'append line 2'",
        r"closed: SUCCEEDED",
    ),
    "person_works": (
        r"paused: work: step 1 ",
        r"answered: operator chose failed for 'step 1': no time",
        r"iteration: ckpt-1: .*executor failed: operator: no time",
        r"paused: work: step 2 ",
        r"answered: operator chose done for 'step 2'",
        r"resumed: edits to 1 file during the pause were kept",
        r"closed: SUCCEEDED",
    ),
    "fallback_and_amended_executor": (
        r"fallback: appending replaces absent: absent: it is not installed",
        r"paused: budget:",
        r"amended: executor absent, planner auto \(by operator\)",
        r"paused: fatal: the executor cannot work: no executor can be used. absent: it is not installed",
        r"amended: executor scripted",
        r"closed: SUCCEEDED",
    ),
    "alerted": (
        r"paused: budget:",
        r"alert: budget alert sent to channel log after \d+\.\d\d s",
        r"topped up: ",
        r"paused: budget:",
        r"alert: budget alert sent to channel log after",
        r"alert: failed alert sent to channel log after",
        r"closed: FAILED: nobody answered within 3 s",
    ),
    "plan_completed": (
        r"opened: 5 steps",
        r"completed: list",
        r"completed: look-3",
        r"completed: pick",
        r"completed: write",
        r"verified: 1 of 1 checks pass",
        r"proven: in a fresh checkout of tree",
        r"closed: COMPLETED: all steps are done, and the definition of done is proven",
    ),
    "plan_gate_and_compensation": (
        r"failed: pack: transient: busy",
        r"completed: pack",
        r"waits: ask: gate: may it go on\?",
        r"answered: ask: approve \(by ada\)",
        r"answered: ask: approve \(by bob\)",
        r"failed: deploy: logic: no route",
        r"compensated: pack: 1 file",
        r"compensated: build: 1 file",
        r"closed: COMPENSATED: deploy: no route",
    ),
    "plan_changed_first": (
        r"failed: two: logic: wrong flag",
        r"asked: two: failed_step: two failed: wrong flag",
        r"revised: revision 2 \(by ada\): one more",
        r"completed: three",
    ),
    "loop_with_conflict": (
        r"project_inspected: pkt_[0-9a-f]{16}: ",
        r"plan_created: 3 tasks by scripted",
        r"paused: operator: lunch",
        r"resumed: resume \(by operator\)",
        r"plan_dispatched: 3 tasks, 4 at a time",
        r"task_error: its changes conflict with changes made by other steps in log.txt",
        r"conflict: ptask_[12] could not be merged, so ptask_4 will resolve the conflict",
        r"plan_completed: 4 of 4 tasks complete",
        r"gate_passed: ",
        r"plan_verified: 2 gates passed",
    ),
    "loop_failed_gate": (
        r"plan_created: 2 tasks",
        r"task_error: the definition of done is empty",
        r"plan_completed: 0 of 2 tasks complete",
        r"gate_failed: exit code 1",
        r"plan_failed: 2 steps failed: ptask_1, gate-1",
    ),
    "plan_merged": (r"plan_created: 2 tasks", r"task_complete: ", r"task_complete: ", r"plan_cancelled: "),
    "retention_collected": (),
    "plan_changed_second": (
        r"revised: revision 2",
        r"paused: operator: lunch",
        r"cancelled: enough \(by ada\)",
        r"stopped: four",
        r"closed: CANCELLED: enough",
    ),
}
"""What the timeline of a history has to tell, in this order, as patterns."""


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_recorded_history_fits_the_code_and_tells_what_happened(path: Path) -> None:
    history = read_history(path)
    replayed = await replay(history)
    assert replayed.failure == ""
    assert replayed.events == len(history.events) > 0
    told = [f"{entry.kind}: {entry.text}" for entry in replayed.timeline]
    rest = iter(told)
    for wanted in TOLD[path.stem]:
        assert any(re.match(wanted, line) for line in rest), f"{wanted!r} is missing, or out of order, in {told}"


def test_every_scenario_is_recorded_and_every_history_is_looked_at() -> None:
    recorded = {path.stem for path in RECORDED}
    assert {file for scenario in SCENARIOS.values() for file in scenario.histories} <= recorded
    assert recorded == TOLD.keys()


def test_every_type_that_workers_register_has_a_recorded_history() -> None:
    firsts = [read_history(path).events[0].workflow_execution_started_event_attributes for path in RECORDED]
    assert {first.workflow_type.name for first in firsts} == set(WORKFLOW_TYPES)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_history_tells_nothing_of_the_machine(path: Path) -> None:
    document = json.loads(path.read_text())
    assert leaks(document) == []
    assert {event["identity"] for event in _with("identity", document)} == {"worker@sample"}


def _with(key: str, value: object) -> list[dict[str, str]]:
    if isinstance(value, dict):
        here = [value] if key in value else []
        return here + [found for item in value.values() for found in _with(key, item)]
    return [found for item in value for found in _with(key, item)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("failed", WithOneMoreTimer, r"TMPRL1100.*HistoryEvent\(id: \d+, ActivityTaskScheduled\)"),
        ("limit_hit", WithOneMoreTimer, r"TMPRL1100.*HistoryEvent\(id: \d+, ActivityTaskScheduled\)"),
        ("limit_hit", WithAnotherActivity, r"TMPRL1100.*'next_plan'.*'verify'"),
    ],
)
async def test_workflow_code_changed_without_care_is_caught(name: str, changed: type, told: str) -> None:
    replayer = Replayer(workflows=[changed], data_converter=DATA_CONVERTER, workflow_runner=workflow_runner())
    history = read_history(HISTORIES / f"{name}.json")
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    assert isinstance(result.replay_failure, NondeterminismError)
    assert re.search(told, str(result.replay_failure), re.DOTALL)
    shown = format_replay(ReplayResult(history.workflow_id, len(history.events), (), str(result.replay_failure)))
    assert f"DIVERGED: the current code is not compatible with the history of {history.workflow_id}" in shown


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("not JSON at all", "Expecting value"),
        ("[]", "JSON history not"),
        ('{"goal": "a request, not a history"}', "events"),
        ("\xff\xfe", "decode"),
        # The SDK would wait for ever for the replay of a part of a history.
        ('{"events": []}', "WorkflowExecutionStarted"),
        ('{"events": [{"eventId": "5"}]}', "WorkflowExecutionStarted"),
    ],
)
def test_file_that_is_no_history_is_refused_with_the_way_to_one(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "notes.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InvalidRequestError) as refused:
        read_history(path)
    assert refused.value.message.startswith(f"{path} is not an episode history (")
    assert why in refused.value.message
    assert refused.value.message.endswith(f"Export one with: tightloop export ID --out {path}")


def test_history_of_another_program_is_refused_by_its_type(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text((HISTORIES / "failed.json").read_text().replace('"EpisodeWorkflow"', '"BillingWorkflow"'))
    with pytest.raises(InvalidRequestError) as refused:
        read_history(path)
    reason = "no worker of this installation runs workflows of type BillingWorkflow"
    assert refused.value.message == f"cannot replay {path}: {reason}"


def test_missing_file_is_refused_with_the_way_to_one(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"no such file: .*nothing.json. Export a history with: tightloop export"
    ):
        read_history(tmp_path / "nothing.json")
