"""Calls of models that children made are in the numbers of the step, its record and its plan."""

import asyncio
import json
from pathlib import Path

from temporalio.client import Client

from activities.plan.port import RunnerResult, Work
from activities.plan.records import open_file_records
from tests.support.episodes import Working
from tightloop.client import TightloopClient
from tightloop.executor.model import Usage
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.plan.step import Capability
from tightloop.settings import Settings

BOUND_S = 60.0


class Asks:
    """A runner of `model` steps that asks twice."""

    def preview(self, work: Work) -> str:
        return work.step.id

    def run(self, work: Work) -> RunnerResult:
        usage = Usage(input_tokens=10, output_tokens=5, cost_usd=0.25)
        return RunnerResult(outputs={"text": work.step.id}, usage=usage, api_calls=2)


async def test_calls_within_subplans_and_branches_are_summed_up(
    temporal_client: Client, settings: Settings, workspace: Path, working: Working
) -> None:
    ask = {"id": "ask", "model": {"prompt": "which?"}}
    ways = [{"name": name, "steps": [ask]} for name in ("one", "two")]
    steps = [
        {"id": "sub", "subplan": {"steps": [ask, {"id": "deep", "needs": ["ask"], "subplan": {"steps": [ask]}}]}},
        {"id": "try", "needs": ["sub"], "branch": {"alternatives": ways}},
    ]
    plans = TightloopClient(temporal_client, settings)
    async with working(plan_runners={Capability.MODEL: Asks()}):
        text = json.dumps({"id": "p", "on_failure": "fail", "steps": steps})
        plan_id = await plans.start(PlanRequest(workspace=str(workspace), source=text))
        result = await asyncio.wait_for(plans.result(plan_id), BOUND_S)
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert (result.spent.api_calls, result.spent.tokens, result.spent.cost_usd) == (8, 60, 1.0)
    records = open_file_records(workspace)
    recorded = [records.latest(plan_id, name) for name in ("sub", "try")]
    assert [record.result.api_calls for record in recorded if record is not None] == [4, 4]
