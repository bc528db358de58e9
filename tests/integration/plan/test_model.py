"""The capability `model` against a model service on loopback."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from activities.artifacts.stores import open_local_store
from activities.model.client import ModelService
from activities.plan.port import RunnerResult
from activities.plan.runners.model import ModelRunner, PlanModel, find_violations, schema_problem, strict
from tests.support.model_server import ModelServer, fails, hangs, rate_limited, says
from tests.support.plan.work import work_for
from tightloop.plan.failing import FailureClass
from tightloop.safety.drift import PromptPrivacy

CLAIMS = {
    "type": "object",
    "properties": {
        "claims": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "claim": {"type": "string"},
                    "sources": {"type": "array", "items": {"type": "string", "pattern": "^https?://"}},
                },
                "required": ["claim", "sources"],
            },
        }
    },
    "required": ["claims"],
}
GOOD = {"claims": [{"claim": "PUT is idempotent", "sources": ["https://www.rfc-editor.org/rfc/rfc9110"]}]}
VALUES = {"read.text": "mail ada@example.org, def main(): pass", "read.count": 3, "plan.topic": "retries"}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def ask(
    folder: Path,
    server: ModelServer,
    *,
    prompt_privacy: PromptPrivacy = PromptPrivacy.FULL,
    prompt: str = "Which methods are idempotent? ${read.text} ${read.count} ${plan.topic}",
    step: dict[str, Any] | None = None,
    service: dict[str, Any] | None = None,
    **model: Any,
) -> RunnerResult:
    asked = replace(ModelService(api_key="sk-key-of-a-test", base_url=server.url, models=("m-1",)), **(service or {}))
    work = work_for(folder, {"model": {"prompt": prompt, **model}, **(step or {})}, values=VALUES)
    return ModelRunner(PlanModel(asked, lambda _workspace: prompt_privacy)).run(work)


@pytest.mark.parametrize("text", ['{"text": "a\\ud800b"}', '{"text": "a", "more": NaN}'])
def test_answer_that_no_record_can_hold_is_asked_for_again(tmp_path: Path, server: ModelServer, text: str) -> None:
    server.queue(says(text), says({"text": "ab"}))
    done = ask(tmp_path, server, schema={"type": "object", "properties": {"text": {"type": "string"}}})
    assert done.failure is None
    assert (done.outputs, done.api_calls) == ({"text": "ab"}, 2)


def test_fields_of_a_checked_answer_are_outputs(tmp_path: Path, server: ModelServer) -> None:
    server.queue(says(GOOD))
    done = ask(tmp_path, server, schema=CLAIMS)
    assert done.failure is None
    assert done.outputs == GOOD
    assert done.usage is not None
    assert done.usage.known
    assert done.api_calls == 1
    assert "ada@example.org, def main(): pass 3 retries" in server.requests[0].text
    store = open_local_store(tmp_path)
    assert json.loads(store.get(done.artifacts["answer"])) == GOOD
    assert b"Which methods" in store.get(done.artifacts["prompt"])
    assert b"PUT is idempotent" in store.get(done.artifacts["exchange"])


def test_without_a_schema_the_answer_is_text(tmp_path: Path, server: ModelServer) -> None:
    server.queue(says({"text": "GET and PUT"}))
    assert ask(tmp_path, server).outputs == {"text": "GET and PUT"}


def test_answer_that_does_not_fit_is_sent_back_with_what_is_wrong(tmp_path: Path, server: ModelServer) -> None:
    server.queue(says({"claims": [{"claim": "x", "sources": ["somewhere"]}]}), says(GOOD))
    done = ask(tmp_path, server, schema=CLAIMS)
    assert done.outputs == GOOD
    assert done.api_calls == 2
    assert "claims.0.sources.0" in server.requests[1].text


def test_answer_that_never_fits_is_a_logic_failure_that_is_paid_for(tmp_path: Path, server: ModelServer) -> None:
    server.queue(says({"claims": []}))
    done = ask(tmp_path, server, schema=CLAIMS)
    assert done.failure is not None
    assert done.failure.failure_class is FailureClass.LOGIC
    assert "3 attempts" in done.failure.reason
    assert done.api_calls == 3
    assert done.usage is not None
    assert done.usage.output_tokens


def test_truncated_answer_is_never_accepted(tmp_path: Path, server: ModelServer) -> None:
    server.queue(says(GOOD, truncated=True))
    done = ask(tmp_path, server, schema=CLAIMS)
    assert done.failure is not None
    assert "cut off" in done.failure.reason
    assert done.outputs == {}


def test_refusal_is_told(tmp_path: Path, server: ModelServer) -> None:
    server.queue(says("", refusal="I may not say"))
    done = ask(tmp_path, server, schema=CLAIMS)
    assert done.failure is not None
    assert "I may not say" in done.failure.reason


def test_without_a_key_nothing_is_sent_and_the_failure_says_what_to_set(tmp_path: Path, server: ModelServer) -> None:
    done = ask(tmp_path, server, service={"api_key": "", "base_url": ""})
    assert done.failure is not None
    assert done.failure.failure_class is FailureClass.LOGIC
    assert "OPENAI_API_KEY" in done.failure.reason
    assert server.requests == []


def test_busy_service_is_transient_with_the_wait_that_it_asks_for(tmp_path: Path, server: ModelServer) -> None:
    server.queue(rate_limited(retry_after="7"))
    done = ask(tmp_path, server)
    assert done.failure is not None
    assert (done.failure.failure_class, done.failure.retry_after_s) == (FailureClass.TRANSIENT, 7.0)


def test_refused_key_is_a_logic_failure_that_does_not_hold_it(tmp_path: Path, server: ModelServer) -> None:
    server.queue(fails(401, "wrong key", code="invalid_api_key"))
    done = ask(tmp_path, server)
    assert done.failure is not None
    assert done.failure.failure_class is FailureClass.LOGIC
    assert "sk-key-of-a-test" not in repr(done)


def test_redacted_prompt_holds_no_personal_data(tmp_path: Path, server: ModelServer) -> None:
    server.queue(says({"text": "ok"}))
    assert ask(tmp_path, server, prompt_privacy=PromptPrivacy.REDACTED).failure is None
    assert "ada@example.org" not in server.requests[0].text
    assert "def main(): pass" in server.requests[0].text


def test_summary_prompt_holds_no_outputs_of_steps_but_numbers(tmp_path: Path, server: ModelServer) -> None:
    server.queue(says({"text": "ok"}))
    assert ask(tmp_path, server, prompt_privacy=PromptPrivacy.SUMMARY).failure is None
    sent = server.requests[0].text
    assert "def main()" not in sent
    assert "[withheld: privacy.prompts is summary] 3 retries" in sent


def test_step_bounds_model_and_output(tmp_path: Path, server: ModelServer) -> None:
    server.queue(says({"text": "ok"}))
    ask(tmp_path, server, model="m-2", max_output_tokens=900, step={"budget": {"max_tokens": 700}})
    body = server.requests[0].body
    assert body["model"] == "m-2"
    assert body["max_tokens"] == 700


def test_prompt_that_is_too_long_is_refused_before_it_is_sent(tmp_path: Path, server: ModelServer) -> None:
    done = ask(tmp_path, server, prompt="x" * 9_000, service={"context_characters": 8_000})
    assert done.failure is not None
    assert "9000 characters" in done.failure.reason
    assert server.requests == []


def test_cancelled_question_ends_at_once(tmp_path: Path, server: ModelServer) -> None:
    server.queue(hangs(20))
    service = ModelService(base_url=server.url, models=("m",))
    work = work_for(tmp_path, {"model": {"prompt": "q"}}, cancelled=lambda: bool(server.requests))
    done = ModelRunner(PlanModel(service, lambda _workspace: PromptPrivacy.FULL)).run(work)
    assert done.failure is not None
    assert done.failure.reason == "the model call was stopped"


def test_preview_shows_the_prompt_and_asks_nobody(tmp_path: Path, server: ModelServer) -> None:
    service = ModelService(base_url=server.url, models=("m",))
    work = work_for(tmp_path, {"model": {"prompt": "About ${plan.topic}"}}, values=VALUES)
    assert ModelRunner(PlanModel(service, lambda _workspace: PromptPrivacy.FULL)).preview(work) == "About retries"
    assert server.requests == []


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "objekt"}, "is invalid at"),
        ({"$ref": "http://example.org/schema.json"}, "does not contain"),
        ({"$ref": "#"}, "nested too deeply"),
        ({"type": "string", "pattern": "("}, "is not a 'regex'"),
        ({"type": "string", "pattern": "a(?=b)"}, "look-around"),
        ({"type": "string", "pattern": "^(a+)+$"}, "does not match"),
        ({"type": "integer"}, "not of type 'integer'"),
    ],
)
def test_schema_that_cannot_be_used_or_met_says_why(schema: dict[str, Any], words: str) -> None:
    assert words in "; ".join(find_violations("a" * 2_000 + "!", schema))


def test_services_get_every_property_required() -> None:
    made = strict({"type": "object", "properties": {"a": {"anyOf": [{"type": "object", "properties": {"b": {}}}]}}})
    assert made["required"] == ["a"]
    assert made["properties"]["a"]["anyOf"][0] == {
        "type": "object",
        "properties": {"b": {}},
        "required": ["b"],
        "additionalProperties": False,
    }
    assert schema_problem(made) == ""
