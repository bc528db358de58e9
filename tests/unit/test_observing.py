"""What is counted of what goes into the ledger: a kind is a metric, and no label is a text."""

from datetime import UTC, datetime

import pytest

from activities.tracking.record import Recorded, RecordRequest
from activities.workspace.scope import EpisodeScope
from tightloop.ledger.metrics import Metric, MetricKind
from tightloop.ledger.model import WorkflowSnapshot
from tightloop.telemetry import METRICS
from worker.observing.metrics import Sample, samples

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def counted(*measured: tuple[MetricKind, float], kept: bool = True) -> list[Sample]:
    metrics = tuple(
        Metric(workflow_id="e", kind=kind, value=value, at=NOW, key=str(number), metadata={"path": "secret.py"})
        for number, (kind, value) in enumerate(measured)
    )
    snapshot = WorkflowSnapshot(id="e", kind="episode", status="running", at=NOW)
    request = RecordRequest(scope=EpisodeScope(episode_id="e", workspace="/w"), snapshot=snapshot, metrics=metrics)
    return list(samples(request, Recorded(kept=kept), 0.1))


def test_each_kind_is_counted_as_what_it_is() -> None:
    kind = MetricKind
    searches = (kind.MEMORY_HIT, 1), (kind.MEMORY_HIT, 0)
    assert counted(*searches, (kind.SAFETY_FINDINGS, 3), (kind.BANDIT_FINDINGS, 2)) == [
        Sample("tightloop_memory_searches", 1, {"result": "hit"}),
        Sample("tightloop_memory_searches", 1, {"result": "miss"}),
        Sample("tightloop_safety_findings", 3, {"of": "work"}),
        Sample("tightloop_bandit_findings", 2.0),
    ]
    assert counted((kind.CHANGED_LINE_COVERAGE, 0.8)) == [Sample("tightloop_changed_line_coverage", 0.8)]


@pytest.mark.parametrize("kind", MetricKind)
def test_every_metric_is_described_and_holds_no_text(kind: MetricKind) -> None:
    for sample in counted((kind, 1)):
        assert sample.name in METRICS
        assert "secret.py" not in sample.labels.values()


def test_what_was_not_kept_is_not_counted() -> None:
    assert counted((MetricKind.MEMORY_HIT, 1), kept=False) == []
