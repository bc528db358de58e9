"""The capability `decision`: rules, hypotheses, a model on loopback, and a person."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.model.client import ModelService
from activities.plan.port import RunnerResult
from activities.plan.runners.decision import DecisionRunner
from activities.plan.runners.model import PlanModel
from tests.support.model_server import ModelServer, fails, says
from tests.support.plan.work import work_for
from tightloop.plan.child import Belief
from tightloop.plan.failing import FailureClass
from tightloop.run.question import Answer
from tightloop.safety.drift import PromptPrivacy

RULES = [
    {"when": "${test.exit_code} == 0", "to": ["ship"], "note": "green"},
    {"when": "${test.failed} < 3", "to": ["fix", "log"]},
]
PLAN = {"hypotheses": [{"id": "H1", "statement": "the pool is exhausted"}, {"id": "H2"}]}
HYPOTHESES = {"H1": ["fix-pool"], "H2": ["fix-race"]}
OPTIONS = [
    {"name": "retry", "pros": ["small"], "cons": ["hides it"], "cost": "1 h", "to": ["do-retry"]},
    {"name": "rewrite", "to": ["do-rewrite"]},
]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def decide(folder: Path, decision: dict[str, Any], server: ModelServer | None = None, **changes: Any) -> RunnerResult:
    service = ModelService(base_url=server.url, models=("m-1",)) if server else ModelService()
    work = work_for(folder, {"title": "Which way?", "decision": decision}, plan=PLAN, **changes)
    return DecisionRunner(PlanModel(service, lambda _workspace: PromptPrivacy.FULL)).run(work)


def beliefs(first: float, second: float) -> tuple[Belief, ...]:
    return (Belief(hypothesis="H1", confidence=first, evidence=2), Belief(hypothesis="H2", confidence=second))


@pytest.mark.parametrize(
    ("exit_code", "failed", "chosen", "by"),
    [(0, 0, ("ship",), "rule 1"), (1, 2, ("fix", "log"), "rule 2"), (1, 9, ("stop",), "otherwise")],
)
def test_first_row_that_holds_decides(
    tmp_path: Path, exit_code: int, failed: int, chosen: tuple[str, ...], by: str
) -> None:
    values = {"test.exit_code": exit_code, "test.failed": failed}
    done = decide(tmp_path, {"rules": RULES, "otherwise": ["stop"]}, values=values)
    assert (done.chosen, done.outputs["by"]) == (chosen, by)
    assert done.outputs["chosen"] == list(chosen)


def test_no_row_and_no_otherwise_starts_nothing(tmp_path: Path) -> None:
    done = decide(tmp_path, {"rules": RULES}, values={"test.exit_code": 1, "test.failed": 9})
    assert (done.chosen, done.failure, done.question) == ((), None, None)


def test_best_supported_hypothesis_is_taken(tmp_path: Path) -> None:
    done = decide(tmp_path, {"hypotheses": HYPOTHESES}, beliefs=beliefs(0.4, 0.8))
    assert done.chosen == ("fix-race",)
    assert (done.outputs["by"], done.outputs["reason"]) == ("hypothesis H2", "confidence 0.80")


def test_person_is_asked_where_no_hypothesis_is_sure(tmp_path: Path) -> None:
    for doubtful in (beliefs(0.55, 0.5), beliefs(0.9, 0.9)):
        done = decide(tmp_path, {"hypotheses": HYPOTHESES}, beliefs=doubtful)
        assert done.question is not None
        assert done.chosen is None
    assert [option.name for option in done.question.options] == ["H1", "H2", "reject"]
    assert done.question.options[0].pros == "the pool is exhausted; confidence 0.90 after 2 notes"
    answer = (Answer(question="q1", by="ada", option="H1", text="seen it before"),)
    answered = decide(tmp_path, {"hypotheses": HYPOTHESES}, beliefs=beliefs(0.9, 0.9), answers=answer)
    assert answered.chosen == ("fix-pool",)
    assert answered.outputs["by"] == "person ada"


def test_otherwise_is_taken_before_a_person_is_asked(tmp_path: Path) -> None:
    done = decide(tmp_path, {"hypotheses": HYPOTHESES, "otherwise": ["dig"]}, beliefs=beliefs(0.5, 0.5))
    assert (done.chosen, done.question) == (("dig",), None)


def test_person_may_refuse_all_options(tmp_path: Path) -> None:
    refused = (Answer(question="q1", by="ada", option="reject", text="neither"),)
    done = decide(tmp_path, {"hypotheses": HYPOTHESES}, beliefs=beliefs(0.5, 0.5), answers=refused)
    assert done.failure is not None
    assert (done.failure.failure_class, done.failure.reason) == (FailureClass.POLICY, "rejected by ada: neither")


def test_model_chooses_among_the_options_it_was_told(tmp_path: Path, server: ModelServer) -> None:
    server.queue(
        says({"reason": "x", "option": "invented", "confidence": 0.9}),
        says({"reason": "smallest change", "option": "retry", "confidence": 0.8}),
    )
    done = decide(
        tmp_path, {"question": "How, given ${plan.n} errors?", "options": OPTIONS}, server, values={"plan.n": 4}
    )
    assert done.chosen == ("do-retry",)
    assert (done.outputs["by"], done.outputs["reason"]) == ("model m-1", "smallest change")
    assert done.api_calls == 2
    asked = server.requests[0].text
    assert "How, given 4 errors?" in asked
    assert "- retry (cost: 1 h)\n  + small\n  - hides it\n- rewrite" in asked


def test_model_in_doubt_leaves_it_to_a_person(tmp_path: Path, server: ModelServer) -> None:
    server.queue(says({"reason": "hard to tell", "option": "retry", "confidence": 0.3}))
    done = decide(tmp_path, {"question": "How?", "options": OPTIONS}, server)
    assert done.question is not None
    assert "only 0.30 sure: hard to tell" in "\n".join((done.question.title, *done.question.evidence))
    assert done.api_calls == 1


def test_without_a_model_a_person_decides(tmp_path: Path) -> None:
    done = decide(tmp_path, {"question": "How?", "options": OPTIONS})
    assert done.question is not None
    assert done.question.title == "How?"
    assert [option.cost for option in done.question.options] == ["1 h", "", ""]


def test_failing_model_is_a_failure_of_the_step(tmp_path: Path, server: ModelServer) -> None:
    server.queue(fails(500))
    done = decide(tmp_path, {"question": "How?", "options": OPTIONS}, server)
    assert done.failure is not None
    assert done.failure.failure_class is FailureClass.TRANSIENT


def test_preview_lists_the_rows(tmp_path: Path) -> None:
    work = work_for(tmp_path, {"decision": {"rules": RULES, "otherwise": ["stop"]}})
    shown = DecisionRunner(PlanModel(ModelService(), lambda _workspace: PromptPrivacy.FULL)).preview(work)
    assert shown.splitlines()[0] == "if ${test.exit_code} == 0: ship"
    assert shown.splitlines()[-1] == "otherwise: stop"
