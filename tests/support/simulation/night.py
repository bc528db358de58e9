"""Agents of a simulated night: a program that works or fails as its task says, and the time that its work takes."""

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from temporalio import activity
from temporalio.api.common.v1 import TimeSkippingConfig
from temporalio.api.common.v1.message_pb2 import WorkflowExecution
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import UpdateWorkflowExecutionOptionsRequest
from temporalio.client import Client

from activities.executor.activity import ExecuteRequest
from activities.executor.command import CommandExecutor
from activities.executor.port import Control, Executor
from tightloop.executor.model import ExecutorOutcome, Usage, WorkOrder
from tightloop.ledger.alert import AlertKind, Notice

WORK_S = 2_700.0
"""Simulated seconds of each delivery."""
LOGIN_RENEWED_H = 5.0
"""Hour of the night in which the login works again that expires at hour 3."""
SKIPS = 100_000
_USAGE = re.compile(r'^\{"cost_usd": .*\}$', re.MULTILINE)
_TASK = re.compile(r"Add the rule (\w+)")

PROGRAM = r"""
import json, pathlib, re, sys, time

root, notes = map(pathlib.Path, sys.argv[1:3])
name, hour = sys.argv[3], float(sys.argv[4])
count = notes / f"{name}.deliveries"
tries = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(tries))


def fail(words):
    print(words)
    sys.exit(1)


if 3 <= hour < 5:
    (notes / f"{name}.login").touch()
    fail("Login expired · Please run /login")
if name == "limited" and tries == 1:
    fail("You've hit your session limit. Try again in 2 hours 10 minutes")
if name == "overloaded" and tries <= 2:
    fail('API Error: 529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}')
if name == "offline" and tries <= 4:
    fail("API Error: Unable to connect to API (ENOTFOUND)")
if name in ("rates", "orphan") and not (notes / "published").exists():
    (root / ".tightloop-ending").write_text("impossible: the rates for 2027 are not published yet\n")
    sys.exit(0)
if name == "endless":
    while not (notes / "morning").exists():
        time.sleep(0.1)
if name.startswith("resolve"):
    for path in root.glob("shop/*.txt"):
        lines = path.read_text().splitlines()
        path.write_text("".join(f"{line}\n" for line in lines if not re.match("<{7}|={7}|>{7}", line)))
elif name.startswith("both"):
    # Both start from the same files, so that one of them cannot be merged.
    (notes / name).touch()
    until = time.monotonic() + 90
    while len(list(notes.glob(f"{name[:-1]}[ab]"))) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    (root / "shop" / f"{name[:-1]}.txt").write_text(f"rule of {name}\n")
else:
    path = root / "shop" / f"{name}.txt"
    path.write_text((path.read_text() if path.exists() else "") + f"line {tries}\n")
if name != "silent":
    print(json.dumps({"cost_usd": 0.25, "input_tokens": 9000, "output_tokens": 900}))
"""
"""Program of the agent; its arguments are the tree, a folder for notes, the task and the hour."""


@dataclass(frozen=True)
class NightAgent(Executor):
    """Runs the program of the agent as the `command` executor does, and reads what it reports to have cost."""

    command: CommandExecutor
    notes: Path
    began: datetime

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Deliver."""
        name = self._name(order)
        hour = (activity.info().scheduled_time - self.began) / timedelta(hours=1)
        program = self.notes.parent / "agent.py"
        program.write_text(PROGRAM)
        argv = [sys.executable, str(program), "{workspace}", str(self.notes), name, f"{hour:.3f}"]
        choice = order.executor.evolve(options={"argv": argv, "read": [str(program)], "write": [str(self.notes)]})
        outcome = self.command.execute(order.evolve(executor=choice), control, state_folder)
        reports = _USAGE.findall(outcome.transcript.decode())
        return outcome.evolve(usage=Usage.model_validate(json.loads(reports[-1])) if reports else Usage())

    @staticmethod
    def _name(order: WorkOrder) -> str:
        name = _TASK.search(order.prompt)
        if "conflict" in order.prompt:
            return f"resolve-{order.episode_id}"
        return name[1] if name else "unknown"


def night_seconds(request: object) -> float:
    """Return the simulated time of an activity in seconds."""
    return WORK_S if isinstance(request, ExecuteRequest) else 0.0


async def skip_time(client: Client, workflow_id: str, *, enabled: bool = True) -> None:
    """Let the time of a workflow pass at once while nothing is done for it, or in real time."""
    config = TimeSkippingConfig(enabled=enabled, max_session_skip_count=SKIPS)
    request = UpdateWorkflowExecutionOptionsRequest(
        namespace=client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=workflow_id),
        workflow_execution_options=WorkflowExecutionOptions(time_skipping_config=config),
        identity=client.identity,
    )
    request.update_mask.paths.append("time_skipping_config")
    await client.workflow_service.update_workflow_execution_options(request, retry=True)


class Asleep:
    """Gets the alerts of the night and answers none. The time of the runs in `waiting` stops at their question."""

    name = "operator"
    kinds: frozenset[AlertKind] = frozenset()

    def __init__(self, client: Client, waiting: Iterable[str]) -> None:
        self._client, self._waiting = client, tuple(waiting)
        self.notices: list[Notice] = []

    async def deliver(self, notice: Notice) -> None:
        """Take note."""
        self.notices.append(notice)
        # Otherwise the month would pass after which the run gives up.
        if notice.kind is AlertKind.IMPOSSIBLE and notice.episode_id.startswith(self._waiting):
            await skip_time(self._client, notice.episode_id, enabled=False)
