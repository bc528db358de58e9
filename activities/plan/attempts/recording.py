"""Writes the record of an attempt for the store, and its result for the workflow."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from activities.plan.attempts.context import AttemptContext
from activities.plan.attempts.contract import classify_failure
from activities.plan.attempts.outputs import count_items
from activities.plan.attempts.references import pack
from activities.plan.port import RunnerResult
from tightloop.host.identity import host_identity
from tightloop.plan.document.step import Prose, Step
from tightloop.plan.result import StepRecord, StepResult, StepStatus
from tightloop.value import counted, shorten
from tightloop.value.scrub import scrub

SUMMARY_CHARACTERS = 200
COMMAND_CHARACTERS = 4_000


def write_record(
    attempt: AttemptContext,
    done: RunnerResult,
    status: StepStatus | None = None,
    *,
    tree: str = "",
    tree_after: str = "",
) -> StepResult:
    """Record an attempt and return what the workflow learns of it."""
    outputs = dict(done.outputs)
    if done.failure is not None and not done.failure.mode:
        # What stopped it before it acted, or was found in what it changed, is a failure of the step, too.
        done = replace(done, failure=classify_failure(attempt.step, done.failure, attempt.lookup))
    result = StepResult(
        status=status or _status(done),
        tree=tree,
        failure=done.failure,
        chosen=done.chosen,
        counts=count_items(outputs),
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
        inputs=pack(_scrubbed(attempt.lookup.inputs), attempt.store),
        command=shorten(scrub(done.command), COMMAND_CHARACTERS),
        result=result,
        outputs=pack(outputs, attempt.store),
        artifacts=done.artifacts,
        tree_before=attempt.before or request.expected_tree,
        tree_after=tree_after or request.expected_tree,
        answers=request.answers,
        started=attempt.started,
        ended=datetime.now(UTC),
        host=host_identity().name,
        seed=attempt.loaded.plan.seed,
    )
    return result.evolve(record=attempt.records.put(record))


def _status(done: RunnerResult) -> StepStatus:
    if done.question is not None:
        return StepStatus.WAITING
    return StepStatus.FAILED if done.failure is not None else StepStatus.COMPLETED


def _summary(step: Step, done: RunnerResult) -> str:
    said = done.summary or (done.failure.reason if done.failure is not None else "")
    prose = sum(isinstance(rule, Prose) for rule in (*step.preconditions, *step.expect))
    if done.failure is None and prose:
        return f"{shorten(said, 150)}{'; ' if said else ''}{counted(prose, 'condition')} in prose unchecked"
    return said


def _scrubbed(inputs: Mapping[str, Any]) -> dict[str, Any]:
    text = scrub(json.dumps(dict(inputs), ensure_ascii=False, default=str))
    try:
        scrubbed: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"scrubbed": text}
    return scrubbed
