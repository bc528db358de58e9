"""What the page of an episode shows: iterations, files, plan and findings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.web import words
from gateway.web.code import read_files
from tightloop.client.records.changes import TreeChange, checkpoint_file, read_number
from tightloop.client.records.store import Store
from tightloop.database.ledger import Ledger
from tightloop.episode.budget import number_text
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.model import EpisodeState, EpisodeStatus
from tightloop.episode.planning import PlanRecord
from tightloop.errors import TightloopError
from tightloop.executor.messages.message import Reflection, render_plan
from tightloop.ledger import WorkflowLine

TABS = ("Timeline", "Diff", "Plan", "Findings", "Checkpoints", "Log")
LOG_LINES = 500


def show(ledger: Ledger, line: WorkflowLine, query: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the template of an episode and its content."""
    tab = query.get("tab", "timeline")
    checkpoints = ledger.checkpoints(line.id)
    status = EpisodeStatus.model_validate(line.details)
    content = {
        "tabs": TABS,
        "tab": tab,
        "facts": _facts(line, status),
        "checkpoints": checkpoints,
        "log": ledger.events(workflow_id=line.id, limit=LOG_LINES) if tab == "log" else (),
    }
    workspace = Path(status.workspace)
    if tab == "diff":
        content |= _diff(workspace, line.id, checkpoints, query)
    elif tab in ("plan", "findings"):
        content |= _thought(Store(workspace, line.id), checkpoints)
    return "episode.html", content


def _facts(line: WorkflowLine, status: EpisodeStatus) -> list[tuple[str, str]]:
    budget, spent = status.budget, status.spent
    used = f"{spent.iterations}/{budget.max_iterations}" if budget.max_iterations else str(spent.iterations)
    tokens = f"{number_text(spent.tokens)} tokens" if spent.tokens else ""
    return [
        ("Checks", line.checks),
        ("Doing", line.phase.lower().replace("_", " ")),
        ("Running", status.work.what if status.work else ""),
        ("Iterations", used),
        ("Executor", line.executor),
        ("Spent", ", ".join(part for part in (words.money(line.cost_usd), tokens) if part)),
        ("Working time", words.duration(spent.wall_time) if spent.wall_time else ""),
        ("Checkpoint", status.checkpoint_id),
        ("Started", words.moment(line.started)),
        ("Ended", words.moment(line.closed)),
        ("Reason", status.reason),
    ]


def _diff(
    workspace: Path, episode_id: str, checkpoints: Sequence[CheckpointRecord], query: Mapping[str, str]
) -> dict[str, Any]:
    newest = checkpoints[-1].id if checkpoints else ""
    to = query.get("to", newest)
    parent = next((one.parent for one in checkpoints if one.id == to and one.parent), newest)
    chosen = (query.get("from", parent), to)
    content = {"chosen": chosen, "split": query.get("view") == "split", "files": (), "missing": ""}
    if not checkpoints:
        return content | {"missing": "There are no checkpoints yet."}
    try:
        numbers = [read_number(episode_id, name) for name in chosen]
        patch = TreeChange(workspace, episode_id, numbers, checkpoints).text()
    except TightloopError as error:
        return content | {"missing": error.message}
    return content | {"files": read_files(patch)}


def _thought(store: Store, checkpoints: Sequence[CheckpointRecord]) -> dict[str, Any]:
    """Return the newest plan, reflection and findings; they are stored on the workspace's host."""
    content: dict[str, Any] = {"plan_text": "", "reflection": None, "findings": [], "missing": ""}
    if not checkpoints:
        return content
    try:
        state = checkpoint_file(store, checkpoints, checkpoints[-1].number).state
        return content | _stored(store, state)
    except TightloopError as error:
        return content | {"missing": error.message}


def _stored(store: Store, state: EpisodeState) -> dict[str, Any]:
    plan = store.stored(state.plan, PlanRecord).message if state.plan else None
    return {
        "plan_text": render_plan(plan) if plan is not None else "",
        "reflection": store.stored(state.reflection, Reflection) if state.reflection else None,
        "findings": list(state.findings),
    }
