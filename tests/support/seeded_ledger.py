"""A ledger with two projects at work: what waits, runs and ended, for the tests of the page."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from tightloop.database.ledger import Ledger
from tightloop.episode.budget import Budget, Spent
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.model import EpisodeStatus
from tightloop.episode.progress.tracking import ProbabilityClass
from tightloop.ledger.metrics import Metric, MetricKind
from tightloop.ledger.model import ProjectLine, StepRow, WorkflowSnapshot
from tightloop.loop.model import GateCheck, GateResult, LoopState, LoopStatus, LoopTask, TaskState
from tightloop.plan.request import PlanPhase, PlanStatus
from tightloop.run.question import Option, Question, QuestionKind

ORDERS, RELAY = "orders-1a2b3c4d5e6f7081", "relay-99aa88bb77cc6655"
NOW = datetime.now(UTC)
GATE = Question(
    id="q1",
    kind=QuestionKind.PERMISSION,
    title="Allow `npm publish`?",
    evidence=("codex wants to run: npm publish --access public", "the policy has no rule for it"),
    options=(
        Option(name="allow", effect="it runs once"),
        Option(name="deny", effect="the agent is told no and goes on"),
        Option(name="cancel", effect="the episode ends"),
    ),
    blocks="the episode",
    since=NOW - timedelta(minutes=12),
)


def ago(**span: float) -> datetime:
    """Return a time before now."""
    return NOW - timedelta(**span)


def fill(ledger: Ledger, workspace: Path) -> None:
    """Write what the tests of the page look at."""
    orders = ledger.select_project(ProjectLine(id=ORDERS, name="orders", workspace=str(workspace), host="here"))
    relay = ledger.select_project(ProjectLine(id=RELAY, name="relay", workspace="/srv/relay", host="here"))
    asking = EpisodeStatus(
        episode_id="episode-ask",
        status="paused",
        goal="Publish the package",
        workspace=str(workspace),
        iteration=7,
        questions=(GATE,),
        spent=Spent(iterations=7, cost_usd=0.41),
        budget=Budget(),
    )
    orders.record(_episode(asking, "paused", started=ago(hours=1), checks="2/3", executor="codex"))
    for number in range(3):
        orders.record_checkpoint(
            "episode-ask",
            f"run/{number}",
            CheckpointRecord(
                id="",
                iteration=number,
                tree=f"{number}" * 40,
                probability_class=ProbabilityClass.HIGH if number else None,
                checks=f"{number}/3",
                title=f"Fix rule {number} with ruff" if number else "",
                at=ago(minutes=40 - number),
            ),
        )
    green = EpisodeStatus(episode_id="episode-green", status="succeeded", goal="Get the tests green", iteration=4)
    orders.record(_episode(green, "succeeded", started=ago(hours=3), closed=ago(hours=2), checks="3/3"))
    working = EpisodeStatus(episode_id="episode-work", goal="Add a --json flag to every command", iteration=2)
    relay.record(_episode(working, "running", started=ago(minutes=3), checks="0/2", executor="claude"))
    _plan(relay.record, relay.record_steps)
    orders.record(_loop(workspace))


def fill_week(ledger: Ledger) -> None:
    """Write the ends of the last six days: two executors, three models, all that is measured, and what nobody knows."""
    relay = ledger.select_project(ProjectLine(id=RELAY, name="relay", workspace="/srv/relay", host="here"))
    for number in range(24):
        closed = ago(hours=1 + 6 * number)
        relay.record(_ended(number, closed))
        relay.add_metrics(_measured(f"episode-{number:02}", number, closed))


def _ended(number: int, closed: datetime) -> WorkflowSnapshot:
    is_agent = number % 3 > 0
    return WorkflowSnapshot(
        id=f"episode-{number:02}",
        kind="episode",
        status="failed" if number % 4 == 3 else "succeeded",
        goal=f"Fix check {number}",
        executor="codex" if is_agent else "claude in place of cursor",
        model=("gpt-5-codex", "gpt-5-mini")[number % 2] if is_agent else "",
        iteration=1 + number % 5,
        cost_usd=0.1 * (number + 1),
        cost_known=is_agent,
        tokens=10_000 * (number + 1) if is_agent else None,
        worked_s=120.0 * (number + 1),
        interventions=number % 3,
        at=closed,
        started=closed - timedelta(hours=1),
        closed=closed,
    )


def _measured(name: str, number: int, closed: datetime) -> list[Metric]:
    values = [
        (MetricKind.ANSWER_S, "q1", 60.0 * (1 + number * number)),
        (MetricKind.SAFETY_FINDINGS, "change/1", number % 2),
        (MetricKind.MEMORY_HIT, "1", 1),
        (MetricKind.MEMORY_HIT, "2", number % 2),
        (MetricKind.CHANGED_LINE_COVERAGE, "", 0.5 + number / 50),
        (MetricKind.BANDIT_FINDINGS, "", 0),
    ]
    kept = values if number % 3 else values[1:2]
    return [Metric(workflow_id=name, kind=kind, key=key, value=value, at=closed) for kind, key, value in kept]


def _episode(status: EpisodeStatus, word: str, **fields: object) -> WorkflowSnapshot:
    known = {
        "id": status.episode_id,
        "kind": "episode",
        "status": word,
        "goal": status.goal,
        "phase": "EXECUTING",
        "iteration": status.iteration,
        "cost_usd": status.spent.cost_usd,
        "at": NOW,
        "questions": status.questions,
        "details": status.model_dump(mode="json"),
    }
    return WorkflowSnapshot.model_validate(known | fields)


def _plan(record: object, record_steps: object) -> None:
    assert callable(record)
    assert callable(record_steps)
    status = PlanStatus(
        plan_id="plan-refactor",
        title="Split the relay",
        phase=PlanPhase.RUNNING,
        counts={"done": 2, "running": 1, "pending": 2},
    )
    record(
        WorkflowSnapshot(
            id="plan-refactor",
            kind="plan",
            status="running",
            goal="Split the relay",
            phase="RUNNING",
            at=NOW,
            started=ago(minutes=20),
            details=status.model_dump(mode="json"),
        )
    )
    states = (
        ("inspect", "done", ()),
        ("types", "done", ("inspect",)),
        ("split", "running", ("inspect",)),
        ("merge", "pending", ("types", "split")),
        ("release", "failed", ("merge",)),
    )
    record_steps(
        StepRow(plan_id="plan-refactor", step=name, status=word, attempt=1, needs=needs, order=number, at=NOW)
        for number, (name, word, needs) in enumerate(states)
    )


def _loop(workspace: Path) -> WorkflowSnapshot:
    tasks = tuple(
        LoopTask(
            task_id=f"ptask_{n}",
            description=f"Make check {n} pass",
            dependencies=(f"ptask_{n - 1}",) if n > 3 else (),
            state=state,
        )
        for n, state in enumerate(
            (TaskState.COMPLETE, TaskState.COMPLETE, TaskState.ERROR, TaskState.COMPLETE, TaskState.COMPLETE), 1
        )
    )
    checks = (
        GateCheck(name="gate:ruff", passed=True, message="All checks passed!", duration_ms=420),
        GateCheck(name="gate:pytest", passed=False, running=True),
    )
    status = LoopStatus(
        plan_id="plan_5ad9",
        project=ORDERS,
        workspace=str(workspace),
        goal="Make the project green",
        packet_id="pkt_0123456789abcdef",
        status=LoopState.VERIFYING,
        tasks=tasks,
        gate_result=GateResult(checks=checks),
        executed_at=ago(minutes=30),
    )
    return WorkflowSnapshot(
        id="plan_5ad9",
        kind="loop",
        status="VERIFYING",
        goal=status.goal,
        at=NOW,
        started=ago(minutes=45),
        details=status.model_dump(mode="json"),
    )
