"""The model planner against a loopback service: good answers, bad answers, and every fault we know."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from activities.model.asking import SMALLEST_CONTEXT, Prompts
from activities.model.client import ModelService
from activities.planner.planners import PROMPTS, HeuristicPlanner, OpenAIPlanner, ProjectRuff, _Plan, planners
from activities.sandbox.choose import UnsafeLocal
from tests.support.model_server import ModelServer, Reply, fails, hangs, out_of_quota, rate_limited, raw, says
from tightloop.episode.check import CheckReport, CheckResult, CheckStatus
from tightloop.episode.planning import Briefing, PlannerAnswer, PlanVerdict
from tightloop.episode.progress.course import history_line
from tightloop.episode.state_changes import NOTES_CHARACTERS
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.executor.message import PlanRequestMessage, Reflection
from tightloop.settings import SandboxSettings

RUFF = ProjectRuff(UnsafeLocal(), SandboxSettings())
PLAN: dict[str, Any] = {
    "diagnosis": "parse() drops the last line",
    "action_items": ["keep the last line"],
    "steps": [{"title": "Fix parse() in src/parser.py", "run": None}],
    "scope": ["src/parser.py"],
    "context": "",
    "claims_done": False,
    "gave_up": False,
    "impossible": False,
    "reason": "",
    "alignment": {"answer": "yes", "rationale": "touches only the parser"},
}
BRIEFING = Briefing(project="demo", goal="make the parser right", definition_of_done=("pytest -q",), iteration=3)


def plan(**changes: Any) -> dict[str, Any]:
    return {**PLAN, **changes}


async def ask(server: ModelServer, briefing: Briefing = BRIEFING, **options: Any) -> PlannerAnswer:
    settings: dict[str, Any] = {"api_key": "key-1", "base_url": server.url, "models": ("m1",), "timeout_s": 30.0}
    return await OpenAIPlanner(ModelService(**{**settings, **options})).plan(briefing)


@pytest.mark.parametrize(("api", "path"), [("responses", "/v1/responses"), ("chat", "/v1/chat/completions"),
                                          ("auto", "/v1/chat/completions")])  # fmt: skip
async def test_plan_comes_back_as_a_message_with_usage(api: str, path: str) -> None:
    with ModelServer(says(PLAN)) as server:
        answer = await ask(server, api=api)
    assert answer.verdict is PlanVerdict.PLANNED
    assert answer.message is not None
    assert answer.message.steps[0].title == "Fix parse() in src/parser.py"
    assert (answer.model, len(answer.prompt_sha256)) == ("m1", 64)
    assert answer.usage is not None
    assert answer.usage.known
    assert server.requests[0].path == path
    assert server.requests[0].headers["authorization"] == "Bearer key-1"
    assert b"make the parser right" in answer.transcript


async def test_both_apis_are_asked_for_the_strict_schema() -> None:
    schema = json.loads((PROMPTS / "answer.json").read_text(encoding="utf-8"))
    with ModelServer(says(PLAN)) as server:
        await ask(server, api="responses")
        await ask(server, api="chat")
    responses, chat = (asked.body for asked in server.requests)
    assert responses["text"]["format"] == {"type": "json_schema", "name": "plan", "schema": schema, "strict": True}
    assert responses["store"] is False
    assert chat["response_format"]["json_schema"] == {"name": "plan", "schema": schema, "strict": True}
    assert sorted(schema["properties"]) == sorted(schema["required"]) == sorted(_Plan.model_fields)


@pytest.mark.parametrize(
    ("wrap", "note"),
    [
        (lambda text: f"```json\n{text}\n```", "fence"),
        (lambda text: f"<think>{{}}</think>{text}", "thoughts"),
        (lambda text: json.dumps(text), "double encoded"),
        (lambda text: text[:-1] + ",}", "trailing comma"),
    ],
)
async def test_answer_in_wrapping_is_accepted_without_correction(wrap: Callable[[str], str], note: str) -> None:
    with ModelServer(says(wrap(json.dumps(PLAN)))) as server:
        answer = await ask(server)
    assert (answer.verdict, len(server.requests)) == (PlanVerdict.PLANNED, 1), note


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (says(plan(diagnosis="")), "has no diagnosis"),
        (says(plan(action_items=[])), "has no action_items"),
        (says(plan(alignment={"answer": "yes", "rationale": " "})), "has no rationale"),
        (says(plan(alignment={"answer": "maybe", "rationale": "x"})), "`alignment.answer`"),
        (says({key: value for key, value in PLAN.items() if key != "alignment"}), "`alignment`: Field required"),
        (says(plan(steps=[])), "`steps` is empty"),
        (says(plan(claims_done=True, gave_up=True, reason="x")), "both true"),
        (says(plan(gave_up=True)), "`reason` is empty"),
        (says("I would rather talk about it."), "contains no JSON object"),
        (says(""), "the answer is empty"),
        (says(json.dumps(PLAN)[:-30], truncated=True), "cut off"),
        (says(PLAN, truncated=True), "cut off"),
        (says("x" * 5_000_000), "5,000,000 characters"),
    ],
)
async def test_model_is_told_what_is_missing_and_corrects_it(bad: Reply, complaint: str) -> None:
    with ModelServer(bad, says(PLAN)) as server:
        answer = await ask(server)
    assert answer.verdict is PlanVerdict.PLANNED
    assert len(server.requests) == 2
    assert complaint in server.requests[1].text
    assert len(server.requests[1].text) < len(server.requests[0].text) + 6_000
    assert len(answer.transcript) < 250_000


async def test_answer_that_stays_malformed_ends_in_a_verdict_with_all_usage() -> None:
    with ModelServer(says("no")) as server:
        answer = await ask(server, corrections=2)
    assert answer.verdict is PlanVerdict.MALFORMED
    assert answer.message is None
    assert "3 attempts" in answer.reason
    assert len(server.requests) == 3
    assert answer.usage is not None
    assert answer.usage.input_tokens == sum(len(asked.text) // 4 for asked in server.requests)


async def test_corrections_do_not_add_up_in_the_prompt() -> None:
    with ModelServer(says("no " * 5_000)) as server:
        await ask(server, corrections=5)
    assert len(server.requests[5].text) == len(server.requests[1].text)


async def test_cut_off_answer_is_never_accepted_however_well_it_repairs() -> None:
    with ModelServer(says(json.dumps(PLAN)[:-2], truncated=True)) as server:
        answer = await ask(server, api="responses", corrections=0)
    assert answer.verdict is PlanVerdict.MALFORMED
    assert "max_output_tokens" in answer.reason


async def test_unreported_usage_stays_unknown() -> None:
    with ModelServer(says("no"), says(PLAN, usage=False)) as server:
        answer = await ask(server)
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.known) == (None, False)


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_refusal_is_given_up_with_its_words(api: str) -> None:
    with ModelServer(Reply(refusal="I can't help with that.")) as server:
        answer = await ask(server, api=api)
    assert answer.verdict is PlanVerdict.GAVE_UP
    assert "I can't help with that." in answer.reason
    assert len(server.requests) == 1


async def test_claims_gave_up_and_doubt_are_kept_apart() -> None:
    done = says(plan(steps=[], claims_done=True, reason="all is there"))
    stuck = says(plan(steps=[], gave_up=True, reason="a password is missing"))
    doubt = says(plan(alignment={"answer": "no", "rationale": "it would delete the data"}))
    with ModelServer(done, stuck, doubt) as server:
        first, second, third = [await ask(server) for _ in range(3)]
    assert (first.verdict, first.message and first.message.final) == (PlanVerdict.CLAIMS_DONE, True)
    assert (second.verdict, second.reason) == (PlanVerdict.GAVE_UP, "a password is missing")
    assert (third.verdict, third.message and third.message.alignment.answer) == (PlanVerdict.PLANNED, "no")


async def test_steps_are_held_to_the_programs_of_the_executor() -> None:
    allowed = BRIEFING.evolve(programs=("ruff",))
    bad = says(plan(steps=[{"title": "Install", "run": ["npm", "i"]}, {"title": "Think", "run": None}]))
    good = says(plan(steps=[{"title": "Fix", "run": "ruff check --fix 'a b'"}]))
    with ModelServer(bad, good) as server:
        answer = await ask(server, allowed)
    assert "may only run ruff" in server.requests[1].text
    assert "`steps.1.run` is missing" in server.requests[1].text
    assert answer.message is not None
    assert answer.message.steps[0].run == ("ruff", "check", "--fix", "a b")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (out_of_quota(), "key's quota is used up"),
        (fails(400, "Invalid schema"), "the service rejected the request"),
        (fails(400, "too long", code="context_length_exceeded"), "larger context"),
        (fails(401, "Incorrect API key"), "Set OPENAI_API_KEY"),
        (fails(403, "Country not supported"), "permissions"),
        (fails(422, "bad"), "JSON schemas"),
    ],
)
async def test_refusing_service_is_an_error_that_says_what_to_do(reply: Reply, words: str) -> None:
    with ModelServer(reply) as server:
        with pytest.raises(PlannerError, match=words):
            await ask(server)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("reply", "wait"),
    [
        (rate_limited(retry_after_ms="1500", retry_after="9"), timedelta(seconds=1.5)),
        (rate_limited(retry_after="12"), timedelta(seconds=12)),
        (rate_limited(x_ratelimit_reset_requests="1s", x_ratelimit_reset_tokens="6m0s",
                      x_ratelimit_remaining_requests="0"), timedelta(seconds=1)),
        (rate_limited(x_ratelimit_reset_tokens="28ms"), timedelta(milliseconds=28)),
        (rate_limited("Limit 30000. Please try again in 11.054s. Visit"), timedelta(seconds=11.054)),
        (rate_limited(), None),
        (fails(500, "oops"), None),
        (fails(503, "oops", headers={"retry-after": "3"}), timedelta(seconds=3)),
        (fails(409, "conflict"), None),
        (raw(b"<html>Bad Gateway</html>", content_type="text/html"), None),
        (raw(b"{ not json"), None),
        (raw(b""), None),
    ],
)  # fmt: skip
async def test_busy_service_is_retryable_after_the_time_it_asks_for(reply: Reply, wait: timedelta | None) -> None:
    with ModelServer(reply) as server:
        with pytest.raises(PlannerUnavailableError) as caught:
            await ask(server)
        assert len(server.requests) == 1
    assert caught.value.retry_after == wait


async def test_hanging_and_absent_services_are_retryable() -> None:
    with ModelServer(hangs(30)) as server, pytest.raises(PlannerUnavailableError, match="in time"):
        await ask(server, timeout_s=0.3)
    with pytest.raises(PlannerUnavailableError, match="cannot be reached"):
        await ask(server)


async def test_wait_may_be_given_as_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(minutes=2))
    with ModelServer(rate_limited(retry_after=soon)) as server, pytest.raises(PlannerUnavailableError) as caught:
        await ask(server)
    assert caught.value.retry_after is not None
    assert timedelta(minutes=1) < caught.value.retry_after <= timedelta(minutes=2)


@pytest.mark.parametrize("asked", ["soon", "1e300", "-5", ""])
async def test_wait_that_cannot_be_read_is_unknown(asked: str) -> None:
    with ModelServer(rate_limited(retry_after=asked)) as server, pytest.raises(PlannerUnavailableError) as caught:
        await ask(server)
    assert caught.value.retry_after is None


async def test_reset_that_is_far_away_is_left_to_a_person() -> None:
    with ModelServer(rate_limited(retry_after="90000")) as server, pytest.raises(PlannerError) as caught:
        await ask(server)
    assert "which resets in 1 day, 1:00:00" in caught.value.message
    assert "use another key or model" in caught.value.message


async def test_next_model_is_used_where_the_first_does_not_exist() -> None:
    with ModelServer(says(PLAN), models=("m2",)) as server:
        planner = OpenAIPlanner(ModelService(base_url=server.url, models=("m1", "m2")))
        answers = [await planner.plan(BRIEFING) for _ in range(2)]
    assert [answer.model for answer in answers] == ["m2", "m2"]
    assert [asked.body["model"] for asked in server.requests] == ["m1", "m2", "m2"]


async def test_forbidden_model_is_passed_over_and_no_model_at_all_is_an_error() -> None:
    forbidden = fails(403, "Project does not have access to model m1", code="model_not_found")
    with ModelServer(forbidden, says(PLAN)) as server:
        assert (await ask(server, models=("m1", "m2"))).model == "m2"
    with ModelServer(models=()) as server, pytest.raises(PlannerError, match=r"none of the models m1 \(404\), m2"):
        await ask(server, models=("m1", "m2"))


NOTES = ("n" * (NOTES_CHARACTERS // 16),) * 16


def long_briefing(iterations: int) -> Briefing:
    lines = [history_line(n, f"Try number {n} " + "x" * 100, before="1/3", after="1/3", changed=True)
             for n in range(iterations)][-20:]  # fmt: skip
    tail = "E   assert 1 == 2\n" * 60
    results = tuple(
        CheckResult(name=name, run=name, status=CheckStatus.FAILED, tail=tail, failing=("F401",) * 10)
        for name in (f"check {n}" * 20 for n in range(30))
    )
    return Briefing(
        goal="g" * 50_000,
        definition_of_done=("d" * 500,) * 30,
        iteration=iterations,
        plan_request=PlanRequestMessage(
            report="r" * 20_000, changes=("c" * 200,) * 40, history=tuple(lines), questions=("q" * 300,) * 30
        ),
        checks=CheckReport(results=results),
        reflection=Reflection(diagnosis="d" * 5_000, action_items=("a" * 500,) * 30),
        notes=NOTES,
        programs=tuple(f"program-{n}" for n in range(200)),
        files=tuple(f"src/file_{n}.py" for n in range(5_000)),
    )


@pytest.mark.parametrize("bound", [SMALLEST_CONTEXT, 24_000, 60_000])
async def test_prompt_is_bounded_and_stays_flat_over_an_episode(bound: int) -> None:
    with ModelServer(says("no")) as server:
        for iteration in (10, 99):
            await ask(server, long_briefing(iteration), context_characters=bound, corrections=0)
        await ask(server, BRIEFING, context_characters=bound, corrections=0)
    prompts = [[turn["content"] for turn in asked.body["messages"]] for asked in server.requests]
    systems, users = zip(*prompts, strict=True)
    assert len(set(systems)) == 1
    assert len(users[1]) <= len(users[0]) * 1.02
    # Messages of people are never cut, but only a limited number of them may wait.
    assert max(map(len, users)) <= bound + sum(len(note) + 3 for note in NOTES)
    assert "None has run yet" in users[2]


async def test_chooser_takes_the_model_where_there_is_a_key() -> None:
    with_key, without = planners(ModelService(api_key="k"), RUFF), planners(ModelService(), RUFF)
    assert isinstance(with_key("auto"), OpenAIPlanner)
    assert with_key("auto") is with_key("openai")
    assert isinstance(with_key("heuristic"), HeuristicPlanner)
    assert isinstance(without("auto"), HeuristicPlanner)
    assert isinstance(planners(ModelService(base_url="http://127.0.0.1:1/v1"), RUFF)("auto"), OpenAIPlanner)
    with pytest.raises(PlannerError, match="Set OPENAI_API_KEY"):
        without("openai")
    with pytest.raises(PlannerError, match="auto, heuristic, openai"):
        without("oracle")


def test_key_is_not_in_the_representation() -> None:
    assert "secret" not in repr(ModelService(api_key="secret"))


def test_prompts_are_files_that_change_their_version(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("{{ x }}", encoding="utf-8")
    before = Prompts(tmp_path, context_characters=100).sha256
    (tmp_path / "a.md").write_text("{{ x }}!", encoding="utf-8")
    assert Prompts(tmp_path, context_characters=100).sha256 != before
