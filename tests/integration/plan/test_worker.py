"""Plans from their text to their end: the real workflow, the real worker, real files."""

import asyncio
import json
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from tests.support.episodes import Working
from tests.support.fake_site import FakeSite, html
from tests.support.git_sample import git, on_disk
from tightloop.client import TightloopClient
from tightloop.plan.request import PlanOutcome, PlanRequest, PlanResult
from tightloop.settings import Settings

BOUND_S = 120.0
REFACTOR = """
id: refactor
title: Say it once
definition_of_done: ["grep -q GREETING app.py"]
steps:
  - {id: branch, git: {branch: plan/refactor}}
  - id: list
    needs: [branch]
    access: reads
    shell: {run: "ls *.txt | sed 's/.*/\\"&\\"/' | paste -sd, | sed 's/.*/[&]/'"}
    outputs: {files: json}
  - {id: look-*, needs: [list], for_each: "${list.files}", access: reads, shell: {run: "wc -l < ${item}"}}
  - id: edit
    needs: ["look-*"]
    edit:
      files:
        - {path: app.py, search: "print('hello')", replace: "GREETING = 'hello'\\nprint(GREETING)"}
  - id: check
    needs: [edit]
    access: reads
    shell: {run: "python3 app.py"}
    expect: ["trim(${outputs.stdout}) == 'hello'"]
  - {id: commit, needs: [check], git: {commit: "refactor(plan): ${title}"}, title: Name the greeting}
  - {id: done, needs: [commit]}
"""
SAGA = """
id: saga
on_failure: compensate
steps:
  - {id: one, shell: {run: "echo one > one.txt; rm app.py"}}
  - {id: two, needs: [one], shell: {run: "echo two > two.txt"}}
  - {id: three, needs: [two], shell: {run: "echo three > three.txt; exit 9"}}
"""


async def ended(
    client: Client, settings: Settings, workspace: Path, text: str, plan_id: str | None = None
) -> PlanResult:
    plans = TightloopClient(client, settings)
    plan_id = await plans.start(
        PlanRequest(workspace=str(workspace), source=text), new_id=plan_id, replace=plan_id is not None
    )
    return await asyncio.wait_for(plans.result(plan_id), BOUND_S)


async def test_plan_changes_checks_and_commits(
    temporal_client: Client, settings: Settings, workspace: Path, working: Working
) -> None:
    async with working():
        result = await ended(temporal_client, settings, workspace, REFACTOR)
    assert (result.outcome, result.reason) == (
        PlanOutcome.COMPLETED,
        "all steps are done, and the definition of done is proven",
    )
    assert (workspace / "app.py").read_text() == "GREETING = 'hello'\nprint(GREETING)\n"
    assert git(workspace, "log", "-1", "--format=%s %D").strip() == (
        b"refactor(plan): Name the greeting HEAD -> plan/refactor"
    )
    assert git(workspace, "rev-parse", "HEAD^{tree}").decode().strip() == result.tree


async def test_failing_plan_is_taken_back_byte_for_byte(
    temporal_client: Client, settings: Settings, workspace: Path, working: Working
) -> None:
    before = on_disk(workspace)
    async with working():
        result = await ended(temporal_client, settings, workspace, SAGA)
    assert result.outcome is PlanOutcome.COMPENSATED, result.reason
    assert on_disk(workspace) == before


async def test_second_run_of_a_plan_repeats_no_completed_step(
    temporal_client: Client, settings: Settings, workspace: Path, working: Working
) -> None:
    git(workspace, "config", "core.excludesFile", "")
    (workspace / ".git" / "info" / "exclude").write_text("count\n")
    steps = [{"id": name, "needs": need, "shell": {"run": f"echo {name} >> count; echo {name} > {name}.txt"}}
             for name, need in (("a", []), ("b", ["a"]))]  # fmt: skip
    last = {"id": "c", "needs": ["b"], "shell": {"run": "test -f count"}}
    broken = {**last, "shell": {"run": "exit 1"}}
    plan_id = f"plan-{uuid4().hex[:12]}"

    def text(*more: dict[str, object]) -> str:
        return json.dumps({"id": "again", "on_failure": "fail", "steps": [*steps, *more]})

    async with working():
        first = await ended(temporal_client, settings, workspace, text(broken), plan_id)
        git(workspace, "clean", "-q", "-f", "a.txt", "b.txt")
        second = await ended(temporal_client, settings, workspace, text(last), plan_id)
    assert (first.outcome, second.outcome) == (PlanOutcome.FAILED, PlanOutcome.COMPLETED)
    assert (workspace / "count").read_text() == "a\nb\n"
    assert (workspace / "b.txt").read_text() == "b\n"


async def test_plan_that_names_a_variable_of_the_worker_sends_it_nowhere(
    temporal_client: Client, settings: Settings, workspace: Path, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_KEY", "of the worker alone")
    with FakeSite({"/": html("Here", "words")}) as site:
        http = {"url": site.url("/"), "secret_headers": {"X": "WORKER_KEY"}}
        plan = {"id": "p", "on_failure": "fail", "policy": {"network": [site.authority]}}
        async with working():
            text = json.dumps({**plan, "steps": [{"id": "send", "http": http}]})
            result = await ended(temporal_client, settings, workspace, text)
        assert site.visits == []
    assert result.outcome is PlanOutcome.FAILED


async def test_plan_full_of_stars_ends(
    temporal_client: Client, settings: Settings, workspace: Path, working: Working
) -> None:
    policy = {"write": ["**/*a" * 40, "**"], "commands": [{"match": "git " + "** " * 40 + "x"}]}
    words = " ".join(["a" * 60] * 40)
    steps = [{"id": "one", "shell": {"run": f"git {words}; echo > {'a' * 200}"}}]
    async with working():
        result = await ended(
            temporal_client, settings, workspace, json.dumps({"id": "p", "policy": policy, "steps": steps})
        )
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
