"""A research plan through the real plan activities: fetch, search, synthesise, confirm, decide."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.model.client import ModelService
from tests.support.fake_site import FakeSite, Page, html
from tests.support.model_server import ModelServer, says
from tests.support.plan.stage import Stage, activities_for
from tests.support.stored import content_of
from tightloop.host import state_folder
from tightloop.plan.child import StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.engine.state import initial_beliefs, update_beliefs
from tightloop.plan.failing import FailureClass
from tightloop.run.question import Answer
from tightloop.safety.drift import PromptPrivacy
from worker.composition import model_runners

KEY_VARIABLE = "PLAN_TEST_KEY"
KEY = "plan-test-key-5150"
SCHEMA = {
    "type": "object",
    "properties": {
        "claims": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"claim": {"type": "string"}, "sources": {"type": "array", "items": {"type": "string"}}},
            },
        },
        "safe": {"type": "boolean"},
    },
    "required": ["claims", "safe"],
}


def plan_on(site: FakeSite) -> Plan:
    return Plan.model_validate(
        {
            "id": "research",
            "inputs": {"topic": "retry idempotent requests"},
            "policy": {"network": [site.authority]},
            "hypotheses": [{"id": "H1", "statement": "retries are safe"}, {"id": "H2", "statement": "they are not"}],
            "steps": [
                {"id": "links", "http": {"url": site.url("/links"), "secret_headers": {"x-key": KEY_VARIABLE}}},
                {
                    "id": "read",
                    "needs": ["links"],
                    "title": "retry idempotent requests",
                    "http": {"urls": "${links.json}", "at_least": 2},
                    "expect": ["len(${outputs.documents}) == 2", {"prose": "documents are primary sources"}],
                },
                {"id": "find", "needs": ["read"], "search": {"query": "${plan.topic}", "where": "cache", "limit": 3}},
                {
                    "id": "note",
                    "needs": ["find"],
                    "model": {"prompt": "Claims about ${plan.topic}?\n\n${find.hits}", "schema": SCHEMA},
                    "evidence": [
                        {"hypothesis": "H1", "when": "${outputs.safe}", "strength": "strong"},
                        {"hypothesis": "H2", "when": "${outputs.safe}", "verdict": "refutes"},
                    ],
                },
                {
                    "id": "confirm",
                    "needs": ["note"],
                    "gate": {
                        "checks": [
                            {"artifact": "${note.claims}", "schema": {"type": "array", "minItems": 1}},
                            {"artifact": "${note.claims}", "confirmations": 1},
                            {"invariant": "${note.safe}"},
                            {"prose": "the sources can be trusted"},
                        ]
                    },
                },
                {
                    "id": "choose",
                    "needs": ["confirm"],
                    "decision": {"hypotheses": {"H1": ["build"], "H2": ["stop"]}},
                },
                {"id": "build"},
                {"id": "stop"},
            ],
        }
    )


@pytest.fixture
def site() -> Iterator[FakeSite]:
    with FakeSite() as running:
        links = f'["{running.url("/put")}", "{running.url("/get")}"]'
        running.pages |= {
            "/links": Page(body=links.encode(), media_type="application/json"),
            "/put": html("PUT", "PUT is idempotent: a client may retry it."),
            "/get": html("GET", "GET requests are safe."),
        }
        yield running


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def stage(workspace: Path, site: FakeSite, model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    service = ModelService(base_url=model.url, models=("m-1",))
    runners = model_runners(service, lambda _workspace: PromptPrivacy.FULL)
    return Stage(
        workspace, plan_on(site), activities=activities_for(runners, plan_secrets={KEY_VARIABLE: (site.authority,)})
    )


def test_research_goes_from_links_to_a_decision_with_evidence(
    stage: Stage, site: FakeSite, model: ModelServer, workspace: Path
) -> None:
    answer: dict[str, Any] = {"claims": [{"claim": "PUT may be retried", "sources": [site.url("/put")]}], "safe": True}
    model.queue(says(answer))
    for step in ("links", "read", "find"):
        stage.check_done(step)
    note = stage.check_done("note")
    assert "PUT is idempotent" in model.requests[0].text
    assert stage.check_done("note") == note
    beliefs = update_beliefs(initial_beliefs(stage.plan.hypotheses), note.evidence)
    assert [(belief.hypothesis, round(belief.confidence, 2)) for belief in beliefs] == [("H1", 0.91), ("H2", 0.25)]
    waiting = stage.run("confirm")
    assert waiting.status is StepStatus.WAITING
    assert waiting.question is not None
    assert [line.split(":")[0] for line in waiting.question.evidence[-4:]] == ["passed", "passed", "passed", "open"]
    opened = stage.check_done("confirm", answers=(Answer(question="q1", by="ada", text="read them", option="approve"),))
    assert opened.chosen is None
    chosen = stage.check_done("choose", beliefs=beliefs)
    assert chosen.chosen == ("build",)
    assert len(model.requests) == 1
    assert site.visits[0].headers["x-key"] == KEY
    written = b"".join(content_of(path) for path in (state_folder(workspace)).rglob("*") if path.is_file())
    assert KEY.encode() not in written


def test_second_attempt_of_a_fetch_asks_only_for_what_is_missing(stage: Stage, site: FakeSite) -> None:
    site.pages["/get"] = Page(body=b"GET is safe", media_type="text/plain", fails_first=1)
    stage.check_done("links")
    first = stage.run("read")
    assert first.status is StepStatus.FAILED
    assert first.failure is not None
    assert (first.failure.failure_class, first.failure.retry_after_s) == (FailureClass.TRANSIENT, 2.0)
    assert first.api_calls == 2
    assert stage.check_done("read", attempt=2).counts["documents"] == 2
    assert site.paths() == ["/links", "/put", "/get", "/get"]


def test_rejected_gate_fails_with_who_and_why(stage: Stage, site: FakeSite, model: ModelServer) -> None:
    model.queue(says({"claims": [{"claim": "x", "sources": [site.url("/put")]}], "safe": True}))
    for step in ("links", "read", "find", "note"):
        stage.check_done(step)
    no = Answer(question="q1", by="bob", option="reject", text="one page is not enough")
    assert stage.failed("confirm", answers=(no,)) == "rejected by bob: one page is not enough"


def test_preview_asks_neither_the_site_nor_the_model(stage: Stage, site: FakeSite, model: ModelServer) -> None:
    shown = stage.check_done("links", dry_run=True)
    assert shown.summary.startswith(f"GET {site.url('/links')} with x-key from ${KEY_VARIABLE}")
    assert site.visits == []
    assert model.requests == []
