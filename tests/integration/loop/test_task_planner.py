"""The model that divides work into tasks, against a loopback service: good answers, bad answers, and none."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from activities.loop.tasks import PROMPTS, TaskAnswer, TaskBriefing, _Task, _Tasks, task_planners
from activities.model.client import ModelService
from tests.support.model_server import ModelServer, Reply, fails, hangs, says
from tightloop.episode.check import Check
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.loop.model import TASKS_LIMIT, CheckState, Packet
from tightloop.safety.drift import PromptPrivacy

TESTS, LINT = Check(run="pytest -q"), Check(run="ruff check .")
PACKET = Packet(
    packet_id="pkt_0123456789abcdef",
    goal="accept a comma in prices",
    checks=(CheckState(run="pytest -q", passed=False, summary="1 failed"), CheckState(run="ruff check .", passed=True)),
    history=("Fix the till of customer Huber",),
    at=datetime(2026, 1, 1, tzinfo=UTC),
)


def task(name: str, *needs: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "description": f"do {name}", "priority": 1, "needs": needs, "checks": [TESTS.run], **fields}


def answer(*tasks: Mapping[str, Any], gave_up: str = "") -> Reply:
    return says({"tasks": tasks, "gave_up": gave_up})


GOOD = answer(task("parse"), task("lint", "parse", checks=["ruff check .", "rm -rf /"]), task("docs", checks=["true"]))


async def plan(
    server: ModelServer | None,
    *,
    planner: str = "auto",
    packet: Packet = PACKET,
    privacy: PromptPrivacy = PromptPrivacy.FULL,
    **options: Any,
) -> TaskAnswer:
    service = ModelService(
        **{"api_key": "key-1" if server else "", "base_url": server.url if server else "", "models": ("m1",),
           "timeout_s": 30.0, "corrections": 2, **options}
    )  # fmt: skip
    briefing = TaskBriefing(packet=packet, checks=(TESTS, LINT), prompt_privacy=privacy)
    return await task_planners(service)(planner, "").plan(briefing)


async def test_tasks_come_back_with_our_ids_and_the_checks_of_the_project_alone() -> None:
    with ModelServer(GOOD) as server:
        planned = await plan(server)
    first, second, third = planned.tasks
    assert [each.task_id for each in planned.tasks] == ["ptask_1", "ptask_2", "ptask_3"]
    assert (first.description, second.dependencies) == ("do parse", ("ptask_1",))
    assert second.definition_of_done == (LINT,), "a command of the model's own is never run"
    assert third.definition_of_done == (TESTS, LINT), "without a known one all have to pass"
    assert (planned.problem, planned.model, len(server.requests)) == ("", "m1", 1)
    assert planned.usage is not None
    assert planned.usage.known
    assert b"accept a comma in prices" in planned.transcript


async def test_service_is_asked_for_the_schema_that_is_read() -> None:
    schema = json.loads((PROMPTS / "answer.json").read_text(encoding="utf-8"))
    with ModelServer(GOOD) as server:
        await plan(server, api="chat")
    asked = server.requests[0].body["response_format"]["json_schema"]
    assert (asked["schema"], asked["strict"]) == (schema, True)
    assert sorted(schema["properties"]) == sorted(_Tasks.model_fields)
    assert sorted(schema["properties"]["tasks"]["items"]["properties"]) == sorted(_Task.model_fields)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (says("first parse, then lint"), "contains no JSON object"),
        (answer(), "`tasks` is empty"),
        (answer(task("a", "b"), task("b", "a")), "the tasks a, b depend on each other in a cycle"),
        (answer(task("a", "a")), "a depends on itself"),
        (answer(task("a", "z")), "a depends on z, which is not a task of the plan"),
        (answer(task("a"), task("a")), "two tasks have the same id"),
        (answer(task("a", description=" ")), "a has no description"),
        (answer(*(task(f"t{n}") for n in range(TASKS_LIMIT + 1))), f"the limit is {TASKS_LIMIT}"),
        (says({"tasks": [{"id": "a"}], "gave_up": ""}), "description"),
        (says((PROMPTS / "example.json").read_text(encoding="utf-8")), "the answer repeats the example"),
        (says(json.dumps({"tasks": [task("a")], "gave_up": ""})[:-20], truncated=True), "cut off"),
    ],
)
async def test_model_is_told_what_is_wrong_in_its_own_words_and_corrects_it(bad: Reply, complaint: str) -> None:
    with ModelServer(bad, GOOD) as server:
        planned = await plan(server)
    assert len(planned.tasks) == 3
    assert complaint in server.requests[1].text.replace("\\", "")


@pytest.mark.parametrize(
    ("reply", "reason", "asked"),
    [
        (says("no"), "returned no usable answer in 3 attempts", 3),
        (Reply(refusal="I cannot help with that"), "the model refused: I cannot help with that", 1),
        (answer(gave_up="the goal contradicts itself"), "the goal contradicts itself", 1),
    ],
)
async def test_without_usable_tasks_it_says_why(reply: Reply, reason: str, asked: int) -> None:
    with ModelServer(reply) as server:
        planned = await plan(server)
    assert planned.tasks == ()
    assert reason in planned.problem
    assert len(server.requests) == asked


async def test_service_that_is_down_is_tried_again_and_one_that_refuses_is_not() -> None:
    with ModelServer(fails(401, "wrong key")) as server, pytest.raises(PlannerError, match="wrong key"):
        await plan(server)
    with ModelServer(hangs(5.0)) as server, pytest.raises(PlannerUnavailableError):
        await plan(server, timeout_s=0.3)


async def test_without_a_key_the_rules_divide_it_and_openai_says_what_is_missing() -> None:
    by_rules = await plan(None, packet=PACKET.evolve(goal=""))
    with ModelServer(GOOD) as server:
        chosen = await plan(server, planner="heuristic")
    with pytest.raises(PlannerError, match="Set OPENAI_API_KEY"):
        await plan(None, planner="openai")
    assert [each.description for each in by_rules.tasks] == ["Make `pytest -q` pass: 1 failed"]
    assert (by_rules.model, chosen.model, server.requests) == ("rules", "rules", [])


async def test_prompt_has_what_the_privacy_of_the_project_allows() -> None:
    with ModelServer(GOOD) as server:
        await plan(server)
        await plan(server, privacy=PromptPrivacy.SUMMARY)
    full, summary = (asked.text for asked in server.requests)
    assert "customer Huber" in full
    assert "Huber" not in summary
