"""Every query of a dashboard and of an alert rule asks for a metric that exists, and every alert has a page."""

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.support.observing import ALERTS, DASHBOARDS, RULES, panel_queries
from tests.support.stack.stack import ROOT
from tightloop.telemetry import METRICS
from worker.telemetry import prometheus_name

FIRING = ROOT / "tests" / "data" / "alerts_test.yml"
OF_THE_SDK = {
    "temporal_activity_schedule_to_start_latency",
    "temporal_num_pollers",
    "temporal_worker_task_slots_used",
    "temporal_workflow_task_execution_failed",
    "temporal_workflow_task_schedule_to_start_latency",
}
"""Source: https://docs.temporal.io/references/sdk-metrics."""
NAME = re.compile(r"\b(?:tightloop|temporal|gen_ai)_\w+")


@pytest.mark.parametrize("query", [*panel_queries(), *(rule["expr"] for rule in RULES)])
def test_query_asks_for_metrics_that_exist(query: str) -> None:
    without_labels = re.sub(r"\bby \([^)]*\)", "", query)
    asked = {re.sub("_(bucket|sum|count)$", "", name) for name in NAME.findall(without_labels)}
    assert asked <= {*map(prometheus_name, METRICS), *OF_THE_SDK}
    assert asked or query.startswith("up{")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_has_a_section_that_says_what_to_do(rule: dict[str, Any]) -> None:
    page, _, heading = rule["annotations"]["runbook"].partition("#")
    assert heading == rule["alert"].lower()
    assert f"\n## {rule['alert']}\n" in (ROOT / page).read_text()


def test_panels_have_ids_and_titles_of_their_own() -> None:
    for file in DASHBOARDS:
        panels = json.loads(file.read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed: Debian's package prometheus")
@pytest.mark.parametrize("command", [("check", "rules", ALERTS), ("test", "rules", FIRING)], ids=["takes", "fires"])
def test_prometheus_takes_every_rule_and_fires_it(command: tuple[str, ...]) -> None:
    done = subprocess.run(("promtool", *command), capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_test_in_which_it_fires() -> None:
    cases = [case for one in yaml.safe_load(FIRING.read_text())["tests"] for case in one["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == {rule["alert"] for rule in RULES}
