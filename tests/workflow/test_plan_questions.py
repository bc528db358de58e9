"""Every kind of question that a plan can ask, answered by the client, by the command, and by the JSON it shows."""

import asyncio
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.exceptions import ApplicationError

from activities.plan.requests import PlanVerification
from tests.support.plan.doubles import DOUBTED, Hanging, PlanStage, Playing, asks, done, fails
from tightloop.client import TightloopClient
from tightloop.plan.request import PlanOutcome
from tightloop.run.question import Question, QuestionKind
from tightloop.settings import Settings

ONE = 'id: one\nsteps: [{id: a, shell: {run: "true"}}, {id: b, needs: [a], shell: {run: "true"}}]\n'
WATCHED = """
id: watched
steps:
  - {id: a, shell: {run: "true"}, watchdog: {after_s: 0.2, escalate: pause}}
  - {id: b, needs: [a], shell: {run: "true"}}
"""


def broken() -> Callable[..., Any]:
    """A step whose worker cannot work until it was asked once."""
    tries = iter((True,))

    async def act(_request: Any) -> Any:
        if next(tries, False):
            raise ApplicationError("no room on /data", type="WorkspaceError", non_retryable=True)
        return done()

    return act


KINDS: dict[QuestionKind, tuple[str, Callable[[], dict[str, Any]], dict[str, Any], str]] = {
    QuestionKind.OPERATOR: (ONE, lambda: {"a": Hanging()}, {}, "resume"),
    QuestionKind.BUDGET: (
        ONE + "budget: {max_api_calls: 1}\n",
        lambda: {"a": done(api_calls=1)},
        {},
        "extend",
    ),
    QuestionKind.FATAL: (ONE, lambda: {"a": broken()}, {}, "retry"),
    QuestionKind.LIMIT: (WATCHED, lambda: {"a": Hanging()}, {}, "resume"),
    QuestionKind.GATE: (ONE, lambda: {"a": asks("may it go out?")}, {}, "approve"),
    QuestionKind.POLICY: (ONE, lambda: {"a": asks("it deploys", kind=QuestionKind.POLICY)}, {}, "approve"),
    QuestionKind.CLARIFICATION: (
        ONE,
        lambda: {"a": asks("which?", kind=QuestionKind.CLARIFICATION)},
        {},
        "approve",
    ),
    QuestionKind.FAILED_STEP: (ONE, lambda: {"a": [fails("no disk"), done()]}, {}, "retry"),
    QuestionKind.UNMET: (
        ONE + "definition_of_done: [pytest -q]\n",
        dict,
        {"failed": ("pytest -q: 2 failed",)},
        "retry",
    ),
    QuestionKind.PROOF: (ONE + "definition_of_done: [pytest -q]\n", dict, {}, "work"),
}
"""Kind -> plan, script, a definition of done that fails once, and the option that lets the plan go on."""


async def by_client(stage: PlanStage, question: Question, option: str, settings: Settings) -> None:
    client: TightloopClient = stage.plans
    await client.answer(stage.id, option, question=question.id, by="ada")


async def by_command(stage: PlanStage, question: Question, option: str, settings: Settings) -> None:
    address = ("--address", settings.temporal.address)
    words = ("answer", stage.id, option, "--question", question.id, "--by", "ada")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tightloop.cli.main", *address, *words, stdout=-1, stderr=-1
    )
    out, error = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, (out, error)


async def by_json(stage: PlanStage, question: Question, option: str, settings: Settings) -> None:
    pattern = rf'`(\{{"question": "{question.id}", "option": "{option}".*?\}})`'
    async with asyncio.timeout(20):
        while not (found := re.search(pattern, await shown(stage))):
            await asyncio.sleep(0.05)
    await stage.temporal.get_workflow_handle(stage.id).execute_update("answer", json.loads(found[1]))


async def shown(stage: PlanStage) -> str:
    handle = stage.temporal.get_workflow_handle(stage.id)
    return str((await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)).current_details)


@pytest.mark.parametrize("answer", [by_client, by_command, by_json])
@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_each_kind_of_question_is_answered_in_each_way(
    playing: Playing, settings: Settings, kind: QuestionKind, answer: Callable[..., Any]
) -> None:
    source, make_script, unmet, option = KINDS[kind]
    script = make_script()
    verifications = [PlanVerification(passed=False, total=1, **unmet)] if unmet else []
    proofs = [DOUBTED] if kind is QuestionKind.PROOF else []
    async with playing(source, script, verifications=verifications, proofs=proofs) as stage:
        slow = script.get("a")
        if kind is QuestionKind.OPERATOR and isinstance(slow, Hanging):
            await slow.started.wait()
            await stage.plans.pause(stage.id, "lunch")
        status = await stage.until(lambda status: status.questions)
        if isinstance(slow, Hanging):
            slow.go.set()
        question = status.questions[0]
        assert (question.kind, option in question.names) == (kind, True)
        await answer(stage, question, option, settings)
        result = await stage.result()
        told = await stage.told()
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert any(line.startswith("answered ") and option in line for line in told)
