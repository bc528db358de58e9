"""What the pages of a plan and of a project's plan show: the graph, steps, tasks and gates."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from gateway.web import words
from gateway.web.graph import lay_out
from tightloop.database.ledger import Ledger
from tightloop.ledger import WorkflowFilter, WorkflowLine
from tightloop.loop.estimate import estimate_of
from tightloop.loop.model import LoopStatus
from tightloop.plan.request import PlanStatus
from tightloop.value import counted

T = TypeVar("T")
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
        "children": ledger.workflows(WorkflowFilter(parent=line.id), limit=CHILDREN_LINES).lines,
        "log": ledger.events(workflow_id=line.id, limit=LOG_LINES),
        "facts": [
            ("Packet", status.packet_id),
            ("Dispatched", words.moment(status.executed_at)),
            ("Completed", words.moment(status.completed_at)),
            ("Gates ended", words.moment(status.verified_at)),
        ],
    }


class Dispatching(NamedTuple):
    """What the confirmation of a dispatch shows."""

    runs: int
    checks: tuple[str, ...]
    facts: list[tuple[str, str]]


def dispatching(status: LoopStatus) -> Dispatching:
    """Return what dispatching may take, from the plan alone."""
    found = estimate_of(status)
    facts = [
        ("Runs", counted(found.runs, "episode")),
        ("Start at once", f"{found.at_once} of {found.runs}"),
        ("At the same time", f"at most {found.parallel}" if found.parallel else ""),
        ("Executor", found.executor),
    ]
    if found.is_bounded:
        facts += [
            ("Iterations together", _most(found.iterations)),
            ("Cost together", _most(found.cost_usd, "${:.2f}".format)),
            ("Tokens together", _most(found.tokens, "{:,}".format)),
            ("Work together", _most(found.wall_time, words.duration)),
        ]
    return Dispatching(found.runs, found.checks, [(name, value) for name, value in facts if value])


def _most(bound: T | None, word: Callable[[T], str] = str) -> str:
    return "no bound" if bound is None else f"at most {word(bound)}"
