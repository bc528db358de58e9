"""Plans with the real activities where things are odd: a coding agent within, resets, ends by force, empty plans."""

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.support.episodes import RESULT_SECONDS, Working, eventually
from tightloop.cli.views import record_lines
from tightloop.client import TightloopClient
from tightloop.client.store import Store
from tightloop.host import state_folder
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.settings import Settings, parse_settings
from worker.server import temporal_binary


@pytest.fixture
def settings(temporal: WorkflowEnvironment) -> Settings:
    """A coding agent that is one command: it leaves one line for each of its iterations."""
    address = temporal.client.service_client.config.target_host
    return parse_settings(
        f"temporal: {{address: '{address}', task_queue: 'test-{uuid4().hex[:12]}'}}\n"
        "worker: {sticky_timeout_s: 2, graceful_shutdown_s: 1}\n"
        "sandbox: {unsafe_local: true}\n"
        "executor: {argv: [sh, -c, 'cat before.txt >> made.txt']}\n",
        {},
    )


async def end_of(client: TightloopClient, plan_id: str) -> Any:
    try:
        async with asyncio.timeout(RESULT_SECONDS):
            return await client.result(plan_id)
    except TimeoutError:
        told = [f"{event.kind} {event.text}" for event in await client.timeline(plan_id)]
        raise AssertionError("\n".join([repr(await client.status(plan_id)), *told])) from None


async def waits(client: TightloopClient, plan_id: str) -> None:
    async def is_waiting() -> bool:
        return bool((await client.status(plan_id)).questions)

    try:
        await eventually(is_waiting, seconds=RESULT_SECONDS)
    except TimeoutError:
        told = [f"{event.kind} {event.text}" for event in await client.timeline(plan_id)]
        raise AssertionError("\n".join([repr(await client.status(plan_id)), *told])) from None


# -- compensation -----------------------------------------------------------------------------------

CANCELLED = """
id: canc
on_failure: compensate
policy: {network: ["127.0.0.1:{port}"]}
steps:
  - {id: rollback, kind: compensation, http: {method: POST, url: "http://127.0.0.1:{port}/rollback"}}
  - {id: a, run: "echo a > a.txt", compensate: {run: "rm a.txt; echo undone >> undo.log"}}
  - {id: b, needs: [a], run: "echo b > b.txt"}
  - {id: deploy, needs: [b], run: "echo deployed > d.txt", compensate: {step: rollback}}
  - {id: c, needs: [deploy], run: "sleep 600"}
"""


class Rollback(BaseHTTPRequestHandler):
    """Server that remembers the paths of requests."""

    def do_POST(self) -> None:
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"done")

    def log_message(self, *_words: object) -> None:
        """Print nothing."""


@pytest.fixture
def service() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Rollback)
    server.paths = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


async def test_a_cancelled_plan_names_the_compensations_that_ran_and_their_results(
    client, working: Working, workspace: Path, service: ThreadingHTTPServer
):
    source = CANCELLED.replace("{port}", str(service.server_port))
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))

        async def is_sleeping() -> bool:
            return any(line.id == "c" for line in (await client.status(plan_id)).running)

        await eventually(is_sleeping, seconds=60)
        await client.cancel(plan_id, "wrong way", by="ada")
        result = await end_of(client, plan_id)
        told = [f"{event.kind} {event.text}" for event in await client.timeline(plan_id)]
        steps = {line.id: line.status.value for line in await client.steps(plan_id)}
    rollback = f"step rollback: POST http://127.0.0.1:{service.server_port}/rollback: 200, 4 bytes, 0 files changed"
    assert service.paths == ["/rollback"]  # type: ignore[attr-defined]
    assert result.outcome is PlanOutcome.CANCELLED
    assert result.reason.startswith(f"wrong way. Undone: deploy: {rollback}; b: 1 file restored; a: rm a.txt; ")
    assert result.reason.endswith(", 2 files changed")
    assert f"compensated deploy: {rollback}" in told
    assert "compensated b: 1 file restored" in told
    assert steps == {
        "rollback": "completed", "a": "compensated", "b": "compensated", "deploy": "compensated", "c": "abandoned",
    }  # fmt: skip
    assert (workspace / "undo.log").read_text() == "undone\n"


# -- a coding agent within --------------------------------------------------------------------------

AGENT = """
id: agent
on_failure: {policy}
steps:
  - {{id: before, shell: {{run: "echo line > before.txt"}}}}
  - id: make
    needs: [before]
    episode: {{goal: write two lines, definition_of_done: ["test $(cat made.txt | wc -l) -ge 2"]}}
  - {{id: after, needs: [make], shell: {{run: "{last}"}}}}
"""


@pytest.mark.parametrize("worktree", [False, True])
async def test_coding_agent_does_a_step_and_the_next_one_sees_its_files(
    client, working: Working, workspace: Path, temporal_client, worktree
):
    source = AGENT.format(policy="fail", last="cp made.txt seen.txt")
    async with working():
        request = PlanRequest(workspace=str(workspace), source=source, worktree=worktree)
        plan_id = await client.start(request)
        result = await end_of(client, plan_id)
        child = await client.result(f"{plan_id}.make.1")
        simple = "id: p\nsteps: [{id: s, shell: {run: 'true'}}]\n"
        again = await client.start(PlanRequest(workspace=str(workspace), source=simple))
        after = await end_of(client, again)
    root = state_folder(workspace) / "worktrees" / plan_id if worktree else workspace
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert (root / "seen.txt").read_text() == "line\nline\n"
    assert (child.outcome.value, child.iterations) == ("SUCCEEDED", 2)
    assert after.outcome is PlanOutcome.COMPLETED, "the workspace is free again"


async def test_work_of_a_coding_agent_is_taken_back_with_the_plan(client, working: Working, workspace: Path, git):
    before = git(workspace, "status", "--porcelain", "--", "*.txt", "*.py")
    async with working():
        source = AGENT.format(policy="compensate", last="grep -q line made.txt && exit 3")
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        result = await end_of(client, plan_id)
    assert result.outcome is PlanOutcome.COMPENSATED, result.reason
    assert git(workspace, "status", "--porcelain", "--", "*.txt", "*.py") == before


async def test_plan_cancelled_while_its_coding_agent_works_stops_it_and_leaves_the_tree_before_it(
    client, working: Working, workspace: Path
):
    source = AGENT.format(policy="ask", last="true").replace("-ge 2", "-ge 100000")
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))

        async def has_made() -> bool:
            return (workspace / "made.txt").exists()

        await eventually(has_made)
        await client.cancel(plan_id, "enough")
        result = await end_of(client, plan_id)
        child = await client.status(f"{plan_id}.make.1")
    assert result.outcome is PlanOutcome.CANCELLED
    assert child.status not in ("running", "paused")
    assert (workspace / "before.txt").exists()
    assert not (workspace / "made.txt").exists()


# -- resets, and ends by force ----------------------------------------------------------------------

STEPS = """
id: steps
steps:
  - {id: one, shell: {run: "echo one >> log.txt"}}
  - {id: two, needs: [one], shell: {run: "echo two >> log.txt"}}
  - {id: ask, needs: [two], gate: {approval: {question: go on?}}}
  - {id: three, needs: [ask], shell: {run: "echo three >> log.txt"}}
"""


async def reset(temporal: WorkflowEnvironment, plan_id: str, event: int) -> None:
    command = [
        str(temporal_binary()), "workflow", "reset", "--address", temporal.client.service_client.config.target_host,
        "-w", plan_id, "-e", str(event), "--reason", "look again", "--reapply-exclude", "All",
    ]  # fmt: skip
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=60)


async def task_after(temporal: WorkflowEnvironment, plan_id: str, done: Callable[[int], bool]) -> int:
    """Return the first completed workflow task after so many ended activities as `done` wants."""
    ended = 0
    async for event in temporal.client.get_workflow_handle(plan_id).fetch_history_events():
        ended += event.HasField("activity_task_completed_event_attributes")
        if done(ended) and event.HasField("workflow_task_completed_event_attributes"):
            return int(event.event_id)
    raise AssertionError("there is no such task")


@pytest.mark.parametrize("closed", [False, True])
async def test_reset_to_an_earlier_step_puts_the_files_back_and_goes_on(
    client, temporal, working: Working, workspace: Path, closed
):
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=STEPS))
        await waits(client, plan_id)
        if closed:
            await client.answer(plan_id, "approve")
            await end_of(client, plan_id)
        # opening, and `one`: `two` is done again
        await reset(temporal, plan_id, await task_after(temporal, plan_id, lambda ended: ended == 2))
        if not closed:

            async def has_gone_back() -> bool:
                return "reset" in [event.kind for event in await client.timeline(plan_id)]

            await eventually(has_gone_back)
            await waits(client, plan_id)
            assert (workspace / "log.txt").read_text() == "one\ntwo\n"
            await client.answer(plan_id, "approve")
        result = await end_of(client, plan_id)
        told = [event.kind for event in await client.timeline(plan_id)]
    assert "reset" in told
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert (workspace / "log.txt").read_text() == "one\ntwo\nthree\n"


async def test_terminated_plan_is_run_again_under_its_id(client, temporal, working: Working, workspace: Path):
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=STEPS))
        await waits(client, plan_id)
        await temporal.client.get_workflow_handle(plan_id).terminate("no more")
        await client.start(PlanRequest(workspace=str(workspace), source=STEPS), new_id=plan_id, replace=True)
        await waits(client, plan_id)
        await client.answer(plan_id, "approve")
        result = await end_of(client, plan_id)
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert (workspace / "log.txt").read_text() == "one\ntwo\nthree\n"


async def test_completed_step_that_a_change_leaves_out_is_still_taken_back(client, working: Working, workspace: Path):
    shorter = STEPS.replace('  - {id: one, shell: {run: "echo one >> log.txt"}}\n', "").replace("needs: [one], ", "")
    async with working():
        source = STEPS.replace("id: steps", "id: steps\non_failure: compensate")
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        await waits(client, plan_id)
        await client.replan(plan_id, shorter.replace("id: steps", "id: steps\non_failure: compensate"))
        await client.answer(plan_id, "reject", "no")
        result = await end_of(client, plan_id)
    assert result.outcome is PlanOutcome.COMPENSATED, result.reason
    assert not (workspace / "log.txt").exists()


# -- odd plans --------------------------------------------------------------------------------------

ALL = """
id: all
policy: {network: [example.com]}
steps:
  - {id: none}
  - {id: sh, shell: {run: "exit 1"}, outputs: {lines: json}}
  - {id: ed, edit: {files: [{path: new.txt, content: "x"}]}}
  - {id: gi, git: {branch: side}}
  - {id: ht, http: {method: GET, url: "https://example.com/"}}
  - {id: fe, http: {urls: ["https://example.com/a"]}}
  - {id: se, search: {query: "print"}}
  - {id: mo, model: {prompt: "say hello"}}
  - {id: ga, gate: {approval: {question: "go?"}}}
  - {id: de, decision: {rules: [{when: "1 == 1", to: [x]}], otherwise: [y]}}
  - {id: x}
  - {id: y}
  - {id: ch, checkpoint: {}}
  - {id: ep, episode: {goal: g, definition_of_done: ["true"]}}
  - {id: su, subplan: {steps: [{id: s, shell: {run: "exit 1"}}]}}
  - {id: br, branch: {alternatives: [{name: a, steps: [{id: s}]}, {name: b, steps: [{id: s}]}], checks: ["false"]}}
  - {id: "t-*", for_each: [1, 2], shell: {run: "exit 1"}}
  - {id: "u-*", for_each: "${sh.lines}", needs: [sh], shell: {run: "exit 1"}}
"""


async def test_every_kind_of_step_is_shown_in_a_dry_run_and_nothing_is_done(client, working: Working, workspace, git):
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=ALL, dry_run=True))
        result = await end_of(client, plan_id)
        steps = {line.id: line.status.value for line in await client.steps(plan_id)}
        branches = git(workspace, "branch", "--list", "side")
    assert result.outcome is PlanOutcome.COMPLETED, (result.reason, steps)
    assert (branches, (workspace / "new.txt").exists()) == ("", False)


@pytest.mark.parametrize(
    ("steps", "counts"),
    [
        ('[{id: "t-*", for_each: [], shell: {run: "exit 1"}}]', {"skipped": 1}),
        ('[{id: only}]', {"completed": 1}),
    ],
)  # fmt: skip
async def test_plan_with_next_to_nothing_in_it_is_completed(client, working: Working, workspace, steps, counts):
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=f"id: p\nsteps: {steps}\n"))
        result = await end_of(client, plan_id)
    assert (result.outcome, result.counts) == (PlanOutcome.COMPLETED, counts), result.reason


async def test_plan_of_one_gate_waits_and_is_completed(client, working: Working, workspace):
    source = "id: p\nsteps: [{id: ask, gate: {approval: {question: may it?}}}]\n"
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        await waits(client, plan_id)
        await client.answer(plan_id, "approve")
        result = await end_of(client, plan_id)
    assert result.outcome is PlanOutcome.COMPLETED


async def test_plan_without_steps_is_refused_and_does_not_hang(client, temporal, settings, working: Working, workspace):
    given = {"workspace": str(workspace), "source": "id: p\nsteps: []\n"}
    async with working():
        # Our client would refuse the text before it starts anything.
        queue, plan_id = settings.temporal.task_queue, f"plan-{uuid4().hex[:6]}"
        await temporal.client.start_workflow("PlanWorkflow", given, id=plan_id, task_queue=queue)
        result = await end_of(client, plan_id)
    assert result.outcome is PlanOutcome.FAILED
    assert "step" in result.reason


# -- what is printed runs ----------------------------------------------------------------------------


async def test_commands_that_show_what_changed_run_as_they_are_printed(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    source = (
        "id: p\nsteps:\n  - {id: write, shell: {run: \"echo one > 'a b.txt'\"}}\n"
        "  - {id: last, needs: [write], edit: {files: [{path: c.txt, content: two}]}}\n"
    )
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        await end_of(client, plan_id)
    store = Store(workspace, plan_id)
    shown = [line for record in store.records("write") for line in record_lines(record, workspace)]
    note = (store.folder / "hand-off.md").read_text()
    of_step = next(line.partition("changed: ")[2] for line in shown if "changed: " in line)
    whole = next(line.partition("the whole change: ")[2] for line in note.splitlines() if "the whole change" in line)
    for command, names in ((of_step, {"a b.txt"}), (whole, {"a b.txt", "c.txt"})):
        done = subprocess.run(command, shell=True, check=True, capture_output=True, text=True, cwd="/", timeout=60)
        assert {name for name in ("a b.txt", "c.txt") if f"+++ b/{name}" in done.stdout} == names


# -- failure modes of steps without results ---------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        "run: sleep 60, access: none, watchdog: {after_s: 1, escalate: cancel}",
        "run: sleep 60, watchdog: {after_s: 1, escalate: cancel}",
        "run: sleep 60, timeout_s: 1",
        "episode: {goal: Wait, definition_of_done: ['sleep 60']}, timeout_s: 2",
        "run: 'true', preconditions: ['${plan.n} == 2']",
    ],
)
async def test_mode_for_any_failure_holds_however_a_step_fails(
    client: TightloopClient, working: Working, workspace: Path, act: str
) -> None:
    source = (
        f"id: p\ninputs: {{n: 1}}\nsteps:\n  - {{id: slow, {act}, failure_modes: [{{name: any, recover: skip}}]}}\n"
    )
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source + "  - {id: on, run: ls}\n"))
        result = await end_of(client, plan_id)
        told = [event.text for event in await client.timeline(plan_id)]
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert any("any: " in line for line in told), told
