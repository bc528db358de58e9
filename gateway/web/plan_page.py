"""What the pages of a plan and of a project's plan show: the graph, steps, tasks and gates."""

from collections.abc import Mapping
from typing import Any

from gateway.web import words
from gateway.web.graph import lay_out
from tightloop.database.ledger import Ledger
from tightloop.ledger import WorkflowFilter, WorkflowLine
from tightloop.loop.model import LoopStatus
from tightloop.plan.request import PlanStatus

TABS = ("Steps", "Children", "Log")
LOG_LINES = 500
CHILDREN_LINES = 100
GRAPH_STEPS = 1_000
"""A larger graph is no picture any more; the list says the same."""


def show_plan(ledger: Ledger, line: WorkflowLine, query: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the template of a plan and its content."""
    tab, steps = query.get("tab", "steps"), ledger.steps(line.id)
    status = PlanStatus.model_validate(line.details)
    graph = lay_out({step.step: step.needs for step in steps} if len(steps) <= GRAPH_STEPS else {})
    done = f"{status.counts.get('done', 0)}/{sum(status.counts.values())}" if status.counts else ""
    return "plan.html", {
        "tabs": TABS,
        "tab": tab,
        "steps": steps,
        "states": {step.step: step.status for step in steps},
        "graph": graph,
        "children": ledger.workflows(WorkflowFilter(parent=line.id), limit=CHILDREN_LINES).lines,
        "log": ledger.events(workflow_id=line.id, limit=LOG_LINES) if tab == "log" else (),
        "facts": [
            ("Steps done", done),
            ("Doing", line.phase.lower()),
            ("Revision", str(status.revision) if status.revision > 1 else ""),
            ("Spent", words.money(line.cost_usd)),
            ("Started", words.moment(line.started)),
            ("Ended", words.moment(line.closed)),
            ("Reason", status.reason),
        ],
    }


def show_loop(ledger: Ledger, line: WorkflowLine, _query: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the template of a project's plan and its content."""
    status = LoopStatus.model_validate(line.details)
    return "loop.html", {
        "tabs": (),
        "tab": "",
        "status": status,
        "estimate": estimate(status),
        "children": ledger.workflows(WorkflowFilter(parent=line.id), limit=CHILDREN_LINES).lines,
        "log": ledger.events(workflow_id=line.id, limit=LOG_LINES),
        "facts": [
            ("Packet", status.packet_id),
            ("Dispatched", words.moment(status.executed_at)),
            ("Completed", words.moment(status.completed_at)),
            ("Gates ended", words.moment(status.verified_at)),
        ],
    }


def estimate(status: LoopStatus) -> str:
    """Return what dispatching may take, in one sentence; bounds, since nobody knows more before."""
    count, first = len(status.tasks), sum(not task.dependencies for task in status.tasks)
    return f"{first} of {count} can start at once; the others follow those that they depend on." if count else ""
