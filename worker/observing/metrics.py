"""The product's own metrics: what is counted of each activity, from its request and its result.

Labels are enums and names of classes; no metric carries an id or a text. See docs/operate/telemetry.md.
"""

import time
from collections.abc import Iterator
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.alerts.activity import AlertsSent, SendAlertsRequest
from activities.model.observed import OBSERVER
from activities.retention.activity import Collected
from tightloop.episode.checkpoint import Tracked
from tightloop.episode.planning import PlanningOutcome, ReflectionOutcome
from tightloop.errors import TightloopError
from tightloop.executor.model import ExecutorReport
from tightloop.executor.usage import Usage
from tightloop.telemetry import class_name
from worker.observing.genai import Calls
from worker.observing.recording import Record, Recording, Sample, recording_of


def samples(request: object, result: object, seconds: float) -> Iterator[Sample]:
    """Return what is measured of an activity that ended well.

    Args:
        request: its input.
        result: what it answered.
        seconds: how long it took.
    """
    match result:
        case Tracked():
            status = getattr(getattr(request, "report", None), "status", None)
            classed = result.tracking.probability_class.value
            yield Sample("tightloop_iterations", 1, {"class": classed, "executor": status or "none"})
            yield Sample("tightloop_tracker_seconds", float(seconds))
            found = sum(not finding.refused for finding in result.findings)
            yield Sample("tightloop_safety_findings", found, {"of": "change"})
            yield from _usage("judge", result.usage)
            yield from _measured(result.recalled, getattr(request, "report", None))
        case PlanningOutcome():
            yield Sample("tightloop_plans", 1, {"verdict": result.verdict.value})
            yield Sample("tightloop_safety_findings", len(result.findings), {"of": "plan"})
            yield from _usage("planner", result.usage)
        case ReflectionOutcome():
            yield from _usage("reflector", result.usage)
        case ExecutorReport():
            yield from _usage("executor", result.usage)
        case Collected():
            yield Sample("tightloop_freed_bytes", result.size_bytes)
        case AlertsSent() if isinstance(request, SendAlertsRequest):
            for delivery in result.deliveries:
                if not delivery.known:
                    sent = "failed" if delivery.at is None else "sent"
                    yield Sample("tightloop_alerts", 1, {"cause": request.alert.kind.value, "result": sent})


def _measured(recalled: int | None, report: ExecutorReport | None) -> Iterator[Sample]:
    """Return what an iteration tells of the memory and of the change; None: it was not asked, or not measured."""
    if recalled is not None:
        yield Sample("tightloop_memory_searches", 1, {"result": "hit" if recalled else "miss"})
    if report is not None and report.coverage is not None:
        yield Sample("tightloop_changed_line_coverage", report.coverage)
    if report is not None and report.bandit_findings is not None:
        yield Sample("tightloop_bandit_findings", float(report.bandit_findings))


def _usage(by: str, usage: Usage | None) -> Iterator[Sample]:
    if usage is None:
        return
    # Providers count cached tokens among the input; here each token counts once.
    cached = usage.cached_tokens or 0
    counts = {"input": (usage.input_tokens or 0) - cached, "cached": cached, "output": usage.output_tokens or 0}
    for kind, tokens in counts.items():
        if tokens > 0:
            yield Sample("tightloop_tokens", tokens, {"by": by, "kind": kind})
    if usage.cost_usd is not None:
        yield Sample("tightloop_call_cost_usd", usage.cost_usd, {"by": by})


def measuring(client: Client) -> list[Interceptor]:
    """Return what counts the activities of a worker of this connection; nothing where it has no metrics."""
    recording = recording_of(client)
    return [] if recording is None else [Measuring(recording)]


class Measuring(Interceptor):
    """Counts what the activities of a worker do."""

    def __init__(self, recording: Recording) -> None:
        self._record = recording.record
        self._calls = Calls(recording)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Measure an activity."""
        return _Inbound(next, self._record, self._calls)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, record: Record, calls: Calls) -> None:
        super().__init__(next)
        self._record = record
        self._calls = calls

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        OBSERVER.set(self._calls)
        began = time.monotonic()
        try:
            result = await super().execute_activity(input)
        except (TightloopError, ApplicationError) as error:
            kind = error.type if isinstance(error, ApplicationError) else type(error).__name__
            labels = {"activity": activity.info().activity_type, "error": class_name(kind)}
            self._record(Sample("tightloop_activity_failures", 1, labels))
            raise
        for sample in samples(next(iter(input.args), None), result, time.monotonic() - began):
            self._record(sample)
        return result
