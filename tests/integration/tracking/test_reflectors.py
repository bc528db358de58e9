"""Reflectors always answer: from a model, or from rules where it does not."""

import json
from collections import Counter
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.artifacts.port import get_model, put_model
from activities.artifacts.stores import LocalArtifactStore
from activities.model.asking import SMALLEST_CONTEXT
from activities.model.client import ModelService
from activities.planner.activity import NextPlanRequest, PlanningActivities
from activities.planner.reflection import ReflectionActivities, ReflectRequest
from activities.planner.reflectors import PROMPTS, OpenAIReflector, RuleReflector, reflectors, rule_reflection
from activities.workspace.scope import EpisodeScope
from tests.data.reflections.corpus import cases
from tests.support.doubles import ScriptedPlanner
from tests.support.extent import some
from tests.support.model_server import ModelServer, Reply, fails, hangs, out_of_quota, rate_limited, raw, says
from tightloop.episode.check import Check, CheckReport, judge
from tightloop.episode.messages import make_delta
from tightloop.episode.model import CheckpointFile, EpisodeRequest, EpisodeState
from tightloop.episode.planning import PlanRecord, ReflectCause, ReflectionBriefing, ReflectionRecord
from tightloop.executor.message import PlanMessage, PlannedStep, PlanRequestMessage, Reflection, render_plan
from tightloop.safety.drift import PromptPrivacy
from tightloop.value import ArtifactRef

OUTPUT = "E   assert 1 == 2\nFAILED tests/test_a.py::test_a\n1 failed in 0.1s"
CHECKS = CheckReport(
    results=(judge(Check(run="pytest"), tree="t", exit_code=1, timed_out=False, duration_s=0.1, output=OUTPUT),)
)
BRIEFING = ReflectionBriefing(
    goal="fix it",
    detail="newly failing: ruff check; 0.312 of the tree is unchanged",
    checks=CHECKS,
    plan_request=PlanRequestMessage(outcome="failed", report="it broke", history=("iteration 1: x",)),
    previous=Reflection(diagnosis="the parser is wrong", action_items=("fix the parser",)),
)
GOOD = {"diagnosis": "the wrong file was changed", "action_items": ["change src/a.py"]}


async def test_rules_name_the_reasons_and_the_failing_check() -> None:
    reflection = (await RuleReflector().reflect(BRIEFING)).reflection
    assert "newly failing: ruff check" in reflection.diagnosis
    assert "'pytest' failed: E assert 1 == 2" in reflection.diagnosis
    assert "the executor ended with 'failed'" in reflection.diagnosis
    assert reflection.action_items[0] == "first undo or fix what broke the checks that passed before"
    assert "make 'pytest' pass, starting with tests/test_a.py::test_a" in reflection.action_items


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (ReflectCause.RESTORED, "start from the restored files"),
        (ReflectCause.REPEATED_FAILURE, "acting on 'the parser is wrong' did not help"),
    ],
)
async def test_rules_know_every_cause(cause: ReflectCause, words: str) -> None:
    answer = await RuleReflector().reflect(BRIEFING.evolve(cause=cause))
    assert words in answer.reflection.action_items[0]


@pytest.mark.parametrize("cause", list(ReflectCause))
async def test_rules_answer_an_empty_briefing(cause: ReflectCause) -> None:
    reflection = (await RuleReflector().reflect(ReflectionBriefing(cause=cause))).reflection
    assert reflection.diagnosis
    assert reflection.action_items


async def test_model_reflects_on_all_that_is_known() -> None:
    with ModelServer(says(GOOD)) as server:
        answer = await OpenAIReflector(ModelService(base_url=server.url, models=("m1",))).reflect(BRIEFING)
    assert (answer.source, answer.note) == ("m1", "")
    assert answer.reflection.diagnosis == GOOD["diagnosis"]
    assert answer.usage is not None
    assert answer.usage.known
    for words in ("newly failing", "E   assert 1 == 2", "the parser is wrong", "it broke"):
        assert words in server.requests[0].text


@pytest.mark.parametrize(
    ("reply", "note"),
    [
        (says("no"), "no usable answer"),
        (says({"diagnosis": "", "action_items": []}), "no diagnosis"),
        (says(GOOD, truncated=True), "cut off"),
        (Reply(refusal="never"), "refused: never"),
        (rate_limited(retry_after="5"), "busy or down"),
        (out_of_quota(), "quota"),
        (fails(401), "Set OPENAI_API_KEY"),
        (fails(404), "none of the models"),
        (fails(500), "busy or down"),
        (raw(b"garbage"), "not a JSON object"),
        (hangs(30), "in time"),
    ],
)
async def test_rules_stand_in_for_a_model_that_does_not_answer(reply: Reply, note: str) -> None:
    with ModelServer(reply) as server:
        patience_s = 1.0 if reply.hang_s else 30.0
        service = ModelService(base_url=server.url, models=("m1",), timeout_s=patience_s, corrections=1)
        answer = await OpenAIReflector(service).reflect(BRIEFING)
    assert answer.source == "rules"
    assert note in answer.note
    assert answer.reflection == rule_reflection(BRIEFING)
    assert answer.truncated == (note == "cut off")


async def test_strict_schema_is_asked_for_and_the_repair_is_recorded() -> None:
    schema = json.loads((PROMPTS / "answer.json").read_text(encoding="utf-8"))
    with ModelServer(says(GOOD), says("So:\n" + json.dumps(GOOD)), says(json.dumps(GOOD)[:-1] + ",}")) as server:
        service = ModelService(base_url=server.url, models=("m1",))
        answers = [await OpenAIReflector(service).reflect(BRIEFING) for _ in range(3)]
    asked = server.requests[0].body["response_format"]["json_schema"]
    assert (asked["strict"], asked["schema"]) == (True, schema)
    assert schema["required"] == list(schema["properties"])
    assert schema["additionalProperties"] is False
    assert [answer.repair for answer in answers] == ["exact", "unwrapped", "repaired"]
    assert len(answers[0].prompt_sha256) == 64


async def test_wrong_answer_is_sent_back_with_what_is_missing_and_an_example() -> None:
    example = (PROMPTS / "example.json").read_text(encoding="utf-8")
    with ModelServer(says({"diagnosis": "it broke"}), says(example), says(GOOD)) as server:
        answer = await OpenAIReflector(ModelService(base_url=server.url, models=("m1",))).reflect(BRIEFING)
    assert answer.reflection.diagnosis == GOOD["diagnosis"]
    assert "has no action_items" in server.requests[1].text
    assert json.loads(example)["diagnosis"] in server.requests[1].text
    assert "the answer repeats the example" in server.requests[2].text


async def test_cut_answer_is_never_taken_even_if_the_service_calls_it_whole() -> None:
    cut = json.dumps(GOOD)[:-4]
    with ModelServer(says(cut), says(cut), says(GOOD)) as server:
        service = ModelService(base_url=server.url, models=("m1",), corrections=1)
        first, second = [await OpenAIReflector(service).reflect(BRIEFING) for _ in range(2)]
    assert (first.source, first.truncated) == ("rules", True)
    assert "cut off" in first.note
    assert (second.source, second.truncated) == ("m1", False)


@pytest.mark.parametrize("bound", [SMALLEST_CONTEXT, 60_000])
async def test_prompt_is_bounded_and_has_diff_checks_and_earlier_reflections(bound: int) -> None:
    long = Reflection(diagnosis="d" * 50_000, action_items=("a" * 5_000,) * 20)
    failing = tuple(
        judge(Check(run=f"check {n} " + "x" * 200), tree="t", exit_code=1, timed_out=False, duration_s=0.1,
              output="E   boom\n" * 5_000)
        for n in range(30)
    )  # fmt: skip
    huge = ReflectionBriefing(
        goal="g" * 50_000,
        detail="r" * 5_000,
        checks=CheckReport(results=failing),
        plan_request=PlanRequestMessage(
            outcome="failed", report="b" * 50_000, changes=("c" * 300,) * 400, history=("h" * 500,) * 40
        ),
        previous=long,
        earlier=(long, long),
    )
    small = BRIEFING.evolve(
        earlier=(Reflection(diagnosis="the lexer was wrong"),),
        plan_request=PlanRequestMessage(outcome="failed", changes=("src/a.py (+3 -1)",)),
    )
    with ModelServer(says(GOOD)) as server:
        reflector = OpenAIReflector(ModelService(base_url=server.url, models=("m1",), context_characters=bound))
        for briefing in (huge, small):
            await reflector.reflect(briefing)
    users = [asked.body["messages"][1]["content"] for asked in server.requests]
    assert len(users[0]) <= bound
    for words in ("src/a.py (+3 -1)", "E   assert 1 == 2", "the lexer was wrong", "the parser is wrong"):
        assert words in users[1]


async def test_every_broken_answer_ends_in_a_reflection() -> None:
    corpus = some(cases(), 60)
    with ModelServer(*(says(case.text) for case in corpus)) as server:
        reflector = OpenAIReflector(ModelService(base_url=server.url, models=("m1",), corrections=0))
        answers = [await reflector.reflect(BRIEFING) for _ in corpus]
    by_rules = rule_reflection(BRIEFING)
    ends: Counter[str] = Counter()
    for case, answer in zip(corpus, answers, strict=True):
        assert answer.reflection.diagnosis, case.name
        assert answer.reflection.action_items, case.name
        if answer.source == "rules":
            assert answer.reflection == by_rules
            assert answer.note, case.name
        ends["rules" if answer.source == "rules" else "model"] += 1
        assert answer.truncated == (case.truth == "truncated"), case.name
        assert answer.truncated <= (answer.source == "rules"), case.name
    print(f"\n{len(answers)} answers, all end in a reflection: {dict(ends)}")
    assert ends["model"] >= 0.95 * sum(case.reflection is not None for case in corpus)


async def test_record_keeps_the_evidence_and_the_next_plan_gets_the_reflection(tmp_path: Path) -> None:
    store = LocalArtifactStore(tmp_path)
    scope = EpisodeScope(
        episode_id="e",
        workspace="/project",
        request=put_model(store, EpisodeRequest(goal="fix it", workspace="/project", planner="openai"), name="request"),
    )
    about = put_model(store, PlanRequestMessage(outcome="failed", iteration=2), name="plan request")
    with ModelServer(says(json.dumps(GOOD)[:-1] + ",}")) as server:
        chosen = reflectors(ModelService(base_url=server.url, models=("m1",)))
        activities = ReflectionActivities(lambda _workspace: store, chosen)
        reference: ArtifactRef | None = None
        for cause in (ReflectCause.REPEATED_FAILURE, ReflectCause.PROBABILITY_CLASS, ReflectCause.RESTORED) * 2:
            request = ReflectRequest(scope=scope, cause=cause, plan_request=about, previous=reference)
            outcome = await ActivityEnvironment().run(activities.reflect, request)
            reference = outcome.reflection
    record = get_model(store, outcome.reflection, ReflectionRecord)
    assert (outcome.source, outcome.repair, outcome.truncated) == ("m1", "repaired", False)
    assert (record.source, record.repair, record.cause) == ("m1", "repaired", ReflectCause.RESTORED)
    assert [earlier.diagnosis for earlier in record.earlier] == [GOOD["diagnosis"]] * 2
    assert record.transcript is not None
    assert b"# m1" in store.get(record.transcript)

    planner = ScriptedPlanner()
    planning = PlanningActivities(lambda _workspace: store, lambda _kind: planner)
    plans = []
    for last in (about, put_model(store, PlanRequestMessage(outcome="completed", iteration=3), name="plan request")):
        asked = NextPlanRequest(scope=scope, iteration=3, plan_request=last, reflection=reference)
        planned = await ActivityEnvironment().run(planning.next_plan, asked)
        assert planned.plan is not None
        plans.append(get_model(store, planned.plan, PlanRecord).message)
    assert [briefing.reflection_is_fresh for briefing in planner.briefings] == [True, False]
    assert plans[0] is not None
    assert f"Reflection on the last iteration: {GOOD['diagnosis']}" in plans[0].context
    assert plans[1] is not None
    assert plans[1].context == ""


async def test_prompt_shows_how_the_plan_changed(tmp_path: Path) -> None:
    store = LocalArtifactStore(tmp_path)
    asked = EpisodeRequest(goal="fix it", workspace="/project", planner="openai")
    scope = EpisodeScope(episode_id="e", workspace="/project", request=put_model(store, asked, name="request"))
    plans = [PlanMessage(steps=(PlannedStep(title=f"Fix the {what}"),)) for what in ("parser", "lexer")]
    base, _ = (put_model(store, PlanRecord(message=plan), name="plan") for plan in plans)
    delta = make_delta(render_plan(plans[0]), render_plan(plans[1]), base)
    assert delta is not None
    file = CheckpointFile(state=EpisodeState(), plan_delta=put_model(store, delta, name="plan delta"))
    checkpoint = put_model(store, file, name="checkpoint")
    with ModelServer(*[says(json.dumps(GOOD)) for _ in range(3)]) as server:
        chosen = reflectors(ModelService(base_url=server.url, models=("m1",)))
        for privacy in (PromptPrivacy.FULL, PromptPrivacy.SUMMARY):
            activities = ReflectionActivities(lambda _workspace: store, chosen, lambda _workspace, it=privacy: it)
            request = ReflectRequest(scope=scope, cause=ReflectCause.PROBABILITY_CLASS, checkpoint=checkpoint)
            await ActivityEnvironment().run(activities.reflect, request)
    prompts = [exchange.body["messages"][1]["content"] for exchange in server.requests]
    assert "Fix the [-parser-]{+lexer+}" in prompts[0]
    assert "lexer" not in prompts[1]


async def test_chooser_follows_the_planner() -> None:
    choose = reflectors(ModelService(api_key="k"))
    assert isinstance(choose("auto"), OpenAIReflector)
    assert isinstance(choose("heuristic"), RuleReflector)
    assert isinstance(reflectors(ModelService())("openai"), RuleReflector)
