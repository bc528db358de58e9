"""What is counted of an iteration: each thing under its own name, and only what was measured."""

from typing import Any

import pytest

from activities.tracking.activity import TrackRequest
from tightloop.episode.checkpoint import CheckpointRecord, Tracked
from tightloop.episode.progress.tracking import ProbabilityClass, Tracking
from tightloop.executor.model import ExecutorReport, ExecutorStatus
from tightloop.telemetry import METRICS
from worker.telemetry import Sample, samples


def counted(recalled: int | None = None, **report: Any) -> list[Sample]:
    told = ExecutorReport(key="k", status=ExecutorStatus.COMPLETED, summary="secret.py", **report)
    request = TrackRequest.model_construct(report=told)
    tracking = Tracking(files_changed=1, probability_class=ProbabilityClass.HIGH)
    tracked = Tracked(tracking=tracking, checkpoint=CheckpointRecord(id="ckpt-1", iteration=1), recalled=recalled)
    return list(samples(request, tracked, 0.1))


@pytest.mark.parametrize(
    ("measured", "sample"),
    [
        ({"recalled": 2}, Sample("tightloop_memory_searches", 1, {"result": "hit"})),
        ({"recalled": 0}, Sample("tightloop_memory_searches", 1, {"result": "miss"})),
        ({"coverage": 0.8}, Sample("tightloop_changed_line_coverage", 0.8)),
        ({"bandit_findings": 0}, Sample("tightloop_bandit_findings", 0.0)),
    ],
)
def test_what_was_measured_is_counted_once(measured: dict[str, Any], sample: Sample) -> None:
    assert [one for one in counted(**measured) if one not in counted()] == [sample]


def test_every_sample_is_described_and_holds_no_text() -> None:
    for sample in counted(1, coverage=1.0, bandit_findings=2):
        assert sample.name in METRICS
        assert "secret.py" not in sample.labels.values()
