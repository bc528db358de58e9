"""What is measured of episodes is kept once, summed for each, and read by range, project, executor and model."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import text

from tests.support.ledger import START, question, snapshot
from tightloop.database.engine import sqlite_database
from tightloop.database.forwarding import Forwarder
from tightloop.database.ledger import Ledger
from tightloop.episode.budget import Spent
from tightloop.episode.model import EpisodeStatus
from tightloop.executor.model import Usage
from tightloop.ledger.metrics import Division, Metric, MetricKind, MetricsFilter, MetricsReport
from tightloop.ledger.model import episode_snapshot
from tightloop.run.question import QuestionKind

DAY = MetricsFilter(since=START, until=START + timedelta(days=1))


def end(ledger: Ledger, name: str, minute: float = 60, project: str = "orders-1", **fields: Any) -> None:
    """Let an episode end so many minutes after `START`."""
    closed = START + timedelta(minutes=minute)
    known = {"status": "succeeded", "executor": "codex", "iteration": 2, "closed": closed}
    ledger.of(project).record(snapshot(name, minute, **(known | fields)))


def measured(name: str, kind: MetricKind, value: float, key: str = "", minute: float = 1, **metadata: Any) -> Metric:
    at = START + timedelta(minutes=minute)
    return Metric(workflow_id=name, kind=kind, value=value, key=key, at=at, metadata=metadata)


def report(ledger: Ledger, **wanted: Any) -> MetricsReport:
    return ledger.metrics(DAY.evolve(**wanted))


def test_a_range_has_the_episodes_that_ended_in_it(ledger: Ledger) -> None:
    end(ledger, "before", -1)
    end(ledger, "first", 0)
    end(ledger, "last", 24 * 60 - 1)
    end(ledger, "after", 24 * 60)
    ledger.of("orders-1").record(snapshot("open", 5))
    ledger.of("orders-1").record(snapshot("plan", 5, kind="plan", status="completed", closed=START))
    assert report(ledger).figures.episodes == 2


def test_filters_and_groups_by_project_executor_and_model(ledger: Ledger) -> None:
    end(ledger, "one", executor="codex", model="large")
    end(ledger, "two", executor="codex", model="small", status="failed")
    end(ledger, "three", executor="codex in place of cursor")
    end(ledger, "four", executor="codex_x", project="shop-2")
    assert report(ledger, project="shop-2").figures.episodes == 1
    assert report(ledger, executor="codex").figures.episodes == 3
    assert report(ledger, model="small").figures.success.share == 0.0
    groups = {one.name: one.figures.episodes for one in report(ledger, by=Division.EXECUTOR).groups}
    assert groups == {"codex": 3, "codex_x": 1}
    assert {one.name for one in report(ledger, by=Division.MODEL).groups} == {"", "large", "small"}
    assert {one.name for one in report(ledger, by=Division.PROJECT).groups} == {"orders-1", "shop-2"}


def test_episodes_of_other_projects_do_not_exist_for_a_token(ledger: Ledger) -> None:
    end(ledger, "one")
    end(ledger, "two", project="shop-2")
    limited = ledger.limit_to(["shop-2"])
    assert report(limited, by=Division.PROJECT).groups[0].name == "shop-2"
    assert report(limited).figures.episodes == 1
    assert report(limited, project="orders-1").figures.episodes == 0


def test_a_cost_that_nobody_reported_is_unknown_and_in_no_sum(ledger: Ledger) -> None:
    def status(**usage: Any) -> EpisodeStatus:
        return EpisodeStatus(status="succeeded", spent=Spent().with_usage(Usage(**usage)))

    told = {
        "priced": status(input_tokens=900, output_tokens=100, cost_usd=0.5),
        "unpriced": status(input_tokens=300, output_tokens=100),
        "silent": status(),
        "without-a-model": EpisodeStatus(status="succeeded"),
    }
    for name, each in told.items():
        said = episode_snapshot(each.evolve(episode_id=name), parent="", at=START)
        ledger.of("orders-1").record(said.evolve(closed=START))
    figures = report(ledger).figures
    assert (figures.cost_usd.n, figures.cost_usd.unknown, figures.cost_usd.total) == (2, 2, 0.5)
    assert (figures.tokens.n, figures.tokens.unknown, figures.tokens.total) == (3, 1, 1_400)


def test_values_are_summed_for_each_episode_and_a_key_counts_once(ledger: Ledger) -> None:
    for name in ("one", "two", "silent"):
        end(ledger, name)
    found = MetricKind.SAFETY_FINDINGS
    for _ in range(2):
        ledger.of("orders-1").add_metrics(
            [
                measured("one", found, 2, "change/1"),
                measured("one", found, 1, "change/2", layer="ast"),
                measured("two", found, 0, "change/1"),
                *(measured("one", MetricKind.MEMORY_HIT, hit, str(number)) for number, hit in enumerate((1, 0, 1))),
            ]
        )
    ledger.of("shop-2").add_metrics([measured("one", found, 100, "of another project")])
    figures = report(ledger).figures
    assert (figures.safety_findings.n, figures.safety_findings.unknown, figures.safety_findings.total) == (2, 1, 3)
    assert (figures.memory_hits.n, figures.memory_hits.count) == (3, 2)


def test_the_newest_scan_replaces_the_one_before(ledger: Ledger) -> None:
    end(ledger, "one")
    kind = MetricKind.CHANGED_LINE_COVERAGE
    for minute, share in ((1, 0.4), (3, 0.9), (2, 0.1)):
        ledger.of("orders-1").add_metrics([measured("one", kind, share, minute=minute)])
    assert report(ledger).figures.changed_line_coverage.median == 0.9


def test_time_to_answer_is_that_of_each_settled_question_but_for_an_operators_own_pause(ledger: Ledger) -> None:
    project = ledger.of("orders-1")
    own = question("q2", 1, kind=QuestionKind.OPERATOR)
    project.record(snapshot("one", 1, status="paused", questions=(question("q1", 0), own)))
    project.record(snapshot("one", 11, status="running"))
    project.record(snapshot("one", 20, status="paused", questions=(question("q3", 20),)))
    end(ledger, "one", 30)
    figures = report(ledger).figures
    assert (figures.answer_s.n, figures.answer_s.median) == (1, 11 * 60)


def test_an_end_that_temporal_has_forgotten_is_not_a_failure(ledger: Ledger) -> None:
    end(ledger, "one")
    end(ledger, "two", status="unknown")
    assert report(ledger).figures.success.share == 1.0
    assert report(ledger).figures.success.unknown == 1


def test_what_is_freed_is_in_no_figure(ledger: Ledger) -> None:
    end(ledger, "one")
    ledger.of("orders-1").add_metrics([measured("one", MetricKind.SAFETY_FINDINGS, 2)])
    ledger.of("orders-1").free(["one"])
    assert report(ledger).figures.episodes == 0
    end(ledger, "one")
    assert report(ledger).figures.safety_findings.n == 0


def test_secrets_in_metadata_are_not_kept(ledger: Ledger) -> None:
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    ledger.of("orders-1").add_metrics([measured("one", MetricKind.SAFETY_FINDINGS, 1, said=f"key={secret}")])
    with ledger.database.reading() as connection:
        kept = connection.execute(text("SELECT metadata FROM metrics")).scalar_one()
    assert json.loads(kept)["said"]
    assert secret not in kept


def test_metrics_come_to_the_database_of_several_hosts(ledger: Ledger, tmp_path: Path) -> None:
    local = Ledger(sqlite_database(tmp_path / "host" / "ledger.db"))
    end(local, "one", tokens=100, model="large")
    local.of("orders-1").add_metrics([measured("one", MetricKind.SAFETY_FINDINGS, 2)])
    forwarder = Forwarder(local.database, ledger.database, ("a",))
    while forwarder.forward():
        pass
    assert report(ledger, by=Division.MODEL) == report(local, by=Division.MODEL)
    assert report(ledger).figures.safety_findings.total == 2
