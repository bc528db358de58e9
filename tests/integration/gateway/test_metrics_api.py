"""Metrics over HTTP: figures by range and filter, and only those of a token's projects."""

from pathlib import Path

from tests.support.gateway import fill, gateway, project_id
from tests.support.seeded_ledger import RELAY, fill_week
from tightloop.client import TightloopClient
from tightloop.ledger.metrics import MEANINGS
from tightloop.safety.seal import Role
from tightloop.settings import Settings


async def test_figures_of_a_range_with_what_nobody_knows(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served, served.http(served.token("eve", Role.VIEWER)) as http:
        fill_week(served.ledger)
        report = (await http.get("/api/metrics?since=7d&by=executor")).json()
        assert report["wanted"]["by"] == "executor"
        assert report["figures"]["success"] == {"n": 24, "unknown": 0, "count": 18, "share": 0.75}
        assert (report["figures"]["costUsd"]["n"], report["figures"]["costUsd"]["unknown"]) == (16, 8)
        assert [one["name"] for one in report["groups"]] == ["codex", "claude"]
        assert report["groups"][1]["figures"]["costUsd"]["total"] is None
        assert sum(one["figures"]["episodes"] for one in report["periods"]) == 24
        assert len(report["figures"]) == len(MEANINGS) + 1
        chosen = (await http.get(f"/api/metrics?executor=codex&model=gpt-5-mini&project={RELAY}")).json()
        assert chosen["figures"]["episodes"] == 8


async def test_episodes_of_other_projects_do_not_count_for_a_token(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served:
        fill(served.ledger, tmp_path)
        fill_week(served.ledger)
        token = served.token("anna", Role.VIEWER, [project_id(tmp_path, "orders")])
        async with served.http(token) as http:
            for query in ("", f"&project={RELAY}", "&by=project"):
                report = (await http.get(f"/api/metrics?since=7d{query}")).json()
                assert report["figures"]["episodes"] == 0
                assert report["groups"] == []
        async with served.http() as http:
            assert (await http.get("/api/metrics")).status_code == 401


async def test_a_range_that_cannot_be_read_is_refused_and_the_document_says_how_one_is_written(
    tmp_path: Path, client: TightloopClient, settings: Settings
) -> None:
    async with gateway(tmp_path, client, settings) as served, served.http(served.token("eve", Role.VIEWER)) as http:
        for query in ("since=yesterday", "since=2026-02-30", "since=1d&until=2d", "by=goal"):
            refused = await http.get(f"/api/metrics?{query}")
            assert refused.status_code == 422, query
            assert refused.headers["content-type"] == "application/problem+json"
        path = (await http.get("/api/openapi.json")).json()["paths"]["/api/metrics"]["get"]
        assert path["tags"] == ["metrics"]
        assert [one["name"] for one in path["parameters"]] == ["since", "until", "project", "executor", "model", "by"]
