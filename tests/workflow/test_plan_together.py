"""Plans with the real activities: real git, real commands, real files."""

import asyncio
from pathlib import Path

import pytest

from tests.support.episodes import RESULT_SECONDS, Working
from tightloop.client import TightloopClient
from tightloop.host import state_folder
from tightloop.plan.request import PlanOutcome, PlanRequest

PLAN = """
id: together
title: Write and release
on_failure: compensate
steps:
  - {id: write, shell: {run: "echo one > one.txt"}}
  - {id: more, needs: [write], shell: {run: "echo two > two.txt"}}
  - {id: look, needs: [more], access: reads, shell: {run: "cat one.txt two.txt"}, outputs: {text: stdout},
     expect: ['"one" in ${outputs.text}']}
  - {id: ask, needs: [look], gate: {approval: {question: may it stay?}}}
  - {id: end, needs: [ask], shell: {run: "test -e two.txt && echo done > end.txt"}}
definition_of_done: ["test -e end.txt"]
"""


async def waiting(client: TightloopClient, plan_id: str):
    async for status in client.watch(plan_id):
        if status.questions or status.status not in ("running", "paused"):
            return status
    raise AssertionError("the plan ended without a status")


async def test_plan_is_carried_out_on_a_real_tree(client, working: Working, workspace: Path):
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=PLAN))
        status = await waiting(client, plan_id)
        assert status.questions, status
        await client.answer(plan_id, "approve", question="ask", by="ada")
        result = await client.result(plan_id)
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert (workspace / "end.txt").read_text() == "done\n"
    assert result.record is not None


async def test_refused_plan_leaves_the_tree_as_it_was(client, working: Working, workspace: Path):
    before = {path.name: path.read_bytes() for path in workspace.iterdir() if path.is_file()}
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=PLAN))
        await waiting(client, plan_id)
        assert (workspace / "two.txt").exists()
        await client.answer(plan_id, "reject", "not now", question="ask", by="bob")
        result = await client.result(plan_id)
    after = {path.name: path.read_bytes() for path in workspace.iterdir() if path.is_file()}
    assert result.outcome is PlanOutcome.COMPENSATED, result.reason
    assert "not now" in result.reason
    assert after == before


async def test_edits_of_a_person_during_a_pause_are_built_upon(client, working: Working, workspace: Path):
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=PLAN))
        await waiting(client, plan_id)
        await client.pause(plan_id)
        (workspace / "mine.txt").write_text("by hand\n")
        await client.resume(plan_id)
        await client.answer(plan_id, "approve", question="ask")
        result = await client.result(plan_id)
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert (workspace / "mine.txt").read_text() == "by hand\n"


async def test_plan_that_is_run_again_takes_over_what_is_done(client, working: Working, workspace: Path):
    source = PLAN.replace("echo done", "test -e go.txt && echo done").replace("compensate", "fail")
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        await waiting(client, plan_id)
        await client.answer(plan_id, "approve", question="ask")
        first = await client.result(plan_id)
        (workspace / "go.txt").write_text("")
        await client.start(PlanRequest(workspace=str(workspace), source=source), new_id=plan_id, replace=True)
        await waiting(client, plan_id)
        await client.answer(plan_id, "approve", question="ask")
        second = await client.result(plan_id)
    assert first.outcome is PlanOutcome.FAILED
    assert second.outcome is PlanOutcome.COMPLETED, second.reason


@pytest.mark.parametrize("worktree", [False, True])
async def test_dry_run_changes_nothing(client, working: Working, workspace: Path, git, worktree):
    async with working():
        request = PlanRequest(workspace=str(workspace), source=PLAN, dry_run=True, worktree=worktree)
        plan_id = await client.start(request)
        result = await client.result(plan_id)
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert not (workspace / "one.txt").exists()
    assert "one.txt" not in git(workspace, "status", "--porcelain")


NESTED = """
id: nested
on_failure: fail
steps:
  - {id: first, shell: {run: "echo 1 > first.txt"}}
  - id: inner
    needs: [first]
    subplan:
      steps:
        - {id: x, shell: {run: "cat first.txt > second.txt"}}
        - {id: y, needs: [x], shell: {run: "cp second.txt third.txt"}}
  - id: ways
    needs: [inner]
    branch:
      alternatives:
        - {name: bad, steps: [{id: b, shell: {run: "echo bad > way.txt"}}]}
        - {name: good, steps: [{id: g, shell: {run: "echo good > way.txt"}}]}
      checks: ["grep -q good way.txt"]
  - {id: last, needs: [ways], shell: {run: "test -e third.txt && cp way.txt last.txt"}}
"""


@pytest.mark.parametrize("worktree", [False, True])
async def test_plans_within_a_plan_work_on_its_tree(client, working: Working, workspace: Path, worktree):
    async with working():
        request = PlanRequest(workspace=str(workspace), source=NESTED, worktree=worktree)
        plan_id = await client.start(request)
        async with asyncio.timeout(RESULT_SECONDS):
            result = await client.result(plan_id)
    root = state_folder(workspace) / "worktrees" / plan_id if worktree else workspace
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert (root / "last.txt").read_text() == "good\n"
    assert (workspace / "last.txt").exists() is not worktree
