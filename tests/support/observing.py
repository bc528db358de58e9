"""The queries of the dashboards and of the alert rules in `deploy/`."""

import json
import re
from typing import Any

import yaml

from tests.support.stack.stack import ROOT

DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
RATE_INTERVAL = "30s"
"""What Grafana would put in place of `$__rate_interval`: at least four scrapes."""


def panel_queries() -> list[str]:
    """Return the query of every panel, as Grafana would send it."""
    panels = [panel for file in DASHBOARDS for panel in json.loads(file.read_text())["panels"]]
    return [target["expr"].replace("$__rate_interval", RATE_INTERVAL) for p in panels for target in p["targets"]]


def operands(expression: str) -> list[str]:
    """Return what the expression of an alert rule compares, without its thresholds."""
    parts = re.split(r"\s+(?:[<>]=?|[!=]=|or)\s+", expression)
    return [part for part in parts if not part.replace(".", "").isdigit()]
