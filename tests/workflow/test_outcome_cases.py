"""Plans and checks that once ended in a success although the work was not done; each with a sibling of its kind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.episodes import Working, asked, scripted
from tightloop.client import TightloopClient
from tightloop.errors import InvalidRequestError
from tightloop.plan.request import PlanRequest, PlanStatus
from tightloop.plan.validation import check_text
from tightloop.run.outcome import exit_code
from tightloop.run.question import QuestionKind

LINT = "{id: lint, run: 'exit 1', access: reads}"
BUILD = "{id: build, needs: [lint], run: 'echo built > out.txt'}"
PUBLISH = "{id: publish, needs: [build], run: 'echo published > pub.txt'}"
SKIP = "failure_modes: [{name: any, recover: skip}]"

SKIPPED = [
    pytest.param([LINT, BUILD, PUBLISH], "3 of 3 steps skipped: lint, build, publish", id="answered with skip"),
    pytest.param(
        [LINT, "{id: docs, run: 'echo d > d.txt'}", BUILD], "2 of 3 steps skipped: lint, build", id="one branch skipped"
    ),
    pytest.param(
        [
            f"{{id: a, run: 'false', {SKIP}}}",
            "{id: b, needs: [a], run: 'echo b', access: reads}",
            "{id: c, needs: [b], join: any, run: 'echo c', access: reads}",
        ],
        "3 of 3 steps skipped: a, b, c",
        id="recover: skip",
    ),
    pytest.param(
        [f"{{id: a, run: 'false', {SKIP}}}", "{id: b, run: 'echo b', access: reads}"],
        "1 of 2 steps skipped: a",
        id="recover: skip, beside another step",
    ),
    pytest.param(
        [
            "{id: a, run: 'echo []', outputs: {l: json}, access: none}",
            "{id: x-*, needs: [a], for_each: '${a.l}', run: 'true'}",
            "{id: b, needs: ['x-*'], run: 'echo b'}",
        ],
        "2 of 3 steps skipped: x-*, b",
        id="empty list",
    ),
    pytest.param(
        ["{id: a, run: 'true'}", "{id: x-*, needs: [a], for_each: [], run: 'true'}"],
        "1 of 2 steps skipped: x-*",
        id="empty list at the end",
    ),
    pytest.param(
        ["{id: b, run: 'true', when: 'false'}", "{id: c, run: 'true', when: '0'}"],
        "2 of 2 steps skipped: b, c",
        id="every condition false",
    ),
    pytest.param(
        ["{id: b, run: 'true'}", "{id: c, needs: [b], run: 'true', when: '${b.exit_code} == 7'}"],
        "1 of 2 steps skipped: c",
        id="one condition false",
    ),
]

REFUSED = [
    pytest.param("{id: collect, kind: research}", "collect", id="work kind without an action"),
    pytest.param("{id: write, kind: implement}", "write", id="implement without an action"),
    pytest.param("{id: lint, continue_on_error: true, run: 'exit 1'}", "recover: continue", id="continue_on_error"),
    pytest.param("{id: lint, ignore_errors: true, run: 'exit 1'}", "ignore_errors", id="ignore_errors"),
    pytest.param("{id: g, kind: gate, gate: {checks: ['${exit_code} == 0']}}", "exit_code", id="exit code in a gate"),
    pytest.param("{id: g, kind: gate, gate: {checks: ['${stdout} != x']}}", "stdout", id="output in a gate"),
]


def plan(*steps: str, more: str = "") -> str:
    return f"id: p\ntitle: p\n{more}steps:\n" + "".join(f"- {step}\n" for step in steps)


@pytest.mark.parametrize(("steps", "qualifier"), SKIPPED)
async def test_a_plan_names_what_was_not_done(
    client: TightloopClient, working: Working, workspace: Path, steps: list[str], qualifier: str
) -> None:
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=plan(*steps)))
        if LINT in steps:
            status = await asked(client, plan_id)
            [option] = [option for option in status.questions[0].options if option.name == "skip"]
            assert "build" in option.effect
            await client.answer(plan_id, "skip", by="ada")
        result = await client.result(plan_id)
        shown = await client.status(plan_id)
    assert result.outcome == "COMPLETED"
    assert result.qualifier.startswith(qualifier)
    assert isinstance(shown, PlanStatus)
    assert exit_code(shown.list_status, shown.qualifier, is_closed=True) == 4


@pytest.mark.parametrize(("step", "word"), REFUSED)
def test_a_step_that_could_only_be_skipped_is_an_error(step: str, word: str) -> None:
    problems = check_text(plan(step))[1]
    assert any(word in f"{problem.message} {problem.suggestion}" for problem in problems if problem.severity == "error")


@pytest.mark.parametrize("artifact", ["{name: x, from: a, output: nosuch}", "{name: x, from: b}"])
def test_an_artifact_that_no_step_makes_is_an_error(artifact: str) -> None:
    problems = check_text(plan("{id: a, run: 'true'}", more=f"artifacts: [{artifact}]\n"))[1]
    assert any("artifact" in problem.message for problem in problems if problem.severity == "error")


@pytest.mark.parametrize("end", ["|| true", "; true", "|| :", "|| exit 0"])
async def test_a_check_that_cannot_fail_is_refused(client: TightloopClient, request_for: Any, end: str) -> None:
    with pytest.raises(InvalidRequestError, match="always passes"):
        await client.start(request_for(definition_of_done=[f"python3 -m unittest -q {end}"]))


@pytest.mark.parametrize("end", ["2>&1 | tail -20", "| tee log.out"])
async def test_a_pipe_does_not_hide_a_red_test(
    client: TightloopClient, working: Working, request_for: Callable[..., Any], workspace: Path, git: Any, end: str
) -> None:
    (workspace / "test_app.py").write_text(
        "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.fail()\n"
    )
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "a test")
    async with working():
        request = request_for(
            definition_of_done=[f"python3 -m unittest -q {end}"],
            executor=scripted({"write": [{"path": "done.txt", "text": "ok"}]}),
            budget={"max_iterations": 1},
        )
        status = await asked(client, await client.start(request))
    assert status.questions[0].kind is QuestionKind.BUDGET
