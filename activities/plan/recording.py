"""What becomes of an attempt: its record for the store, its result for the workflow."""

import json
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from activities.plan.contract import unchecked
from activities.plan.entered import Attempt, Call
from activities.plan.outputs import counts_of
from activities.plan.port import Done
from activities.plan.records import DRY_RUN
from activities.plan.references import packed
from activities.plan.requests import RunStepRequest
from tightloop.plan.model import Step
from tightloop.plan.result import StepRecord, StepResult, StepStatus
from tightloop.scrub import scrub
from tightloop.value import shorten

SUMMARY_CHARACTERS = 200
COMMAND_CHARACTERS = 4_000


def settled(
    attempt: Attempt, done: Done, status: StepStatus | None = None, *, tree: str = "", tree_after: str = ""
) -> StepResult:
    """Record an attempt and return what the workflow learns of it."""
    outputs = dict(done.outputs)
    result = StepResult(
        status=status or _status(done),
        tree=tree,
        failure=done.failure,
        chosen=done.chosen,
        counts=counts_of(outputs),
        evidence=done.evidence,
        question=done.question,
        usage=done.usage,
        api_calls=done.api_calls,
        drift=attempt.drift,
        summary=shorten(scrub(_summary(attempt.step, done)), SUMMARY_CHARACTERS),
    )
    request = attempt.request
    record = StepRecord(
        plan_id=request.scope.episode_id,
        revision=request.scope.revision,
        step=attempt.step.id,
        attempt=request.attempt,
        run=attempt.call.run,
        inputs_sha256=attempt.inputs_sha256,
        inputs=packed(_scrubbed(attempt.lookup.inputs), attempt.store),
        command=shorten(scrub(done.command), COMMAND_CHARACTERS),
        result=result,
        outputs=packed(outputs, attempt.store),
        artifacts=done.artifacts,
        tree_before=attempt.before or request.expected_tree,
        tree_after=tree_after or request.expected_tree,
        decisions=request.decisions,
        started=attempt.started,
        ended=datetime.now(UTC),
        host=socket.gethostname(),
        seed=attempt.loaded.plan.seed,
    )
    return result.model_copy(update={"record": attempt.records.put(record)})


def is_this(made: StepRecord, request: RunStepRequest, call: Call) -> bool:
    """Return whether a record is of this very attempt, and not of another run, a preview, or before an answer."""
    if request.dry_run or made.inputs_sha256 == DRY_RUN:
        return False
    return made.run == call.run and made.decisions == request.decisions and not made.undone


def _status(done: Done) -> StepStatus:
    if done.question is not None:
        return StepStatus.WAITING
    return StepStatus.FAILED if done.failure is not None else StepStatus.COMPLETED


def _summary(step: Step, done: Done) -> str:
    said = done.summary or (done.failure.reason if done.failure is not None else "")
    prose = unchecked(step)
    if done.failure is None and prose:
        return f"{shorten(said, 150)}{'; ' if said else ''}{prose} criteria in prose are unchecked"
    return said


def _scrubbed(inputs: Mapping[str, Any]) -> dict[str, Any]:
    text = scrub(json.dumps(dict(inputs), ensure_ascii=False, default=str))
    try:
        scrubbed: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"scrubbed": text}
    return scrubbed
