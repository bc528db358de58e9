"""Every query of a dashboard and of an alert rule asks for a metric that exists, and every alert has a page."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tightloop.telemetry import METRICS

ROOT = Path(__file__).parents[3]
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
OF_THE_SDK = {
    "temporal_activity_schedule_to_start_latency",
    "temporal_num_pollers",
    "temporal_worker_task_slots_used",
    "temporal_workflow_task_execution_failed",
    "temporal_workflow_task_schedule_to_start_latency",
}
"""Source: https://docs.temporal.io/references/sdk-metrics."""
NAME = re.compile(r"\b(?:tightloop|temporal)_\w+")


def queries() -> list[str]:
    panels = [panel for file in DASHBOARDS for panel in json.loads(file.read_text())["panels"]]
    return [target["expr"] for panel in panels for target in panel["targets"]] + [rule["expr"] for rule in RULES]


@pytest.mark.parametrize("query", queries())
def test_query_asks_for_metrics_that_exist(query: str) -> None:
    asked = {re.sub("_(bucket|sum|count)$", "", name) for name in NAME.findall(query)}
    assert asked <= METRICS.keys() | OF_THE_SDK
    assert asked or query.startswith("up{")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_has_a_page_that_says_what_to_do(rule: dict[str, Any]) -> None:
    page = ROOT / rule["annotations"]["runbook"]
    assert page.read_text().startswith(f"# {rule['alert']}\n")


def test_panels_have_ids_and_titles_of_their_own() -> None:
    for file in DASHBOARDS:
        panels = json.loads(file.read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed: Debian's package prometheus")
def test_prometheus_takes_the_rules() -> None:
    done = subprocess.run(("promtool", "check", "rules", ALERTS), capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed: Debian's package prometheus")
def test_disk_is_told_of_before_its_bound_is_reached(tmp_path: Path) -> None:
    def expected(*instances: str) -> dict[str, Any]:
        alerts = [
            {
                "exp_labels": {"instance": name},
                "exp_annotations": {
                    "summary": f"The state home of {name} uses 85% of its bound",
                    "runbook": "docs/operate/runbook/disk-near-bound.md",
                },
            }
            for name in instances
        ]
        return {"eval_time": "10m", "alertname": "DiskNearBound", "exp_alerts": alerts}

    series = [
        {"series": f'tightloop_disk_used_share{{instance="{name}"}}', "values": f"{share}x20"}
        for name, share in (("near", 0.85), ("far", 0.75))
    ]
    tests = [{"interval": "1m", "input_series": series, "alert_rule_test": [expected("near")]}]
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": tests}))
    done = subprocess.run(("promtool", "test", "rules", file), capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
