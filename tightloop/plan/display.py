"""A running plan in words: Markdown for the Temporal Web UI, with the exact JSON for what can be done next."""

import json
from collections.abc import Sequence

from tightloop.plan.child_wait import ChildWait
from tightloop.plan.model import PlanBudget
from tightloop.plan.request import PlanSpent, PlanStatus, StepLine, WaitingGate

LINES_SHOWN = 12
CLOSED = frozenset({"completed", "failed", "compensated", "cancelled"})


def plan_details(
    status: PlanStatus, budget: PlanBudget, *, pausing: bool = False, children: Sequence[ChildWait] = ()
) -> str:
    """Return the current details of a plan.

    Args:
        status: the snapshot.
        budget: its bounds, with what people added.
        pausing: a pause was asked for, and steps still run.
        children: what waits for a person in the workflows that steps started.
    """
    label = "pausing" if pausing and status.running else status.status
    lines = [f"**{label}** · {status.phase.value} · revision {status.revision} · {status.title}", ""]
    if status.pause_reason:
        lines += [f"**Waits for a person**: {status.pause_reason}", "", f"What to do: {status.pause_advice}", ""]
    lines += [
        f"- steps: {counts_line(status.counts)}",
        f"- spent: `{spent_line(status.spent, budget)}`",
        *(f"- runs: `{line.id}` (attempt {line.attempt})" for line in status.running[:LINES_SHOWN]),
        *(f"- failed: `{line.id}`: {_reason(line)}" for line in status.failed[:LINES_SHOWN]),
        *(_waits(gate) for gate in status.waiting[:LINES_SHOWN]),
        *(_waits_within(wait) for wait in children[:LINES_SHOWN]),
        *(f"- {belief.hypothesis}: {belief.confidence:.2f}" for belief in status.beliefs[:LINES_SHOWN]),
    ]
    if status.status not in CLOSED:
        lines += ["", "Next actions:", "", "| to | send | JSON |", "|---|---|---|"]
        lines += [f"| {what} | {send} | `{word}` |" for what, send, word in _actions(status)]
    return "\n".join(lines)


def counts_line(counts: dict[str, int]) -> str:
    """Return how many steps stand where, such as `completed 3, running 1, pending 6`."""
    shown = [f"{name} {count}" for name, count in counts.items() if count]
    return ", ".join(shown) or "none"


def spent_line(spent: PlanSpent, budget: PlanBudget) -> str:
    """Return what is spent of what, such as `attempts 12/20000, cost USD 0.5/2`."""

    def of(used: float, limit: float | None) -> str:
        return f"{used:g}" if limit is None else f"{used:g}/{limit:g}"

    least = "at least " if spent.unpriced_calls else ""
    parts = [f"attempts {of(spent.attempts, budget.max_steps)}"]
    if spent.tokens or budget.max_tokens is not None:
        parts.append(f"tokens {of(spent.tokens, budget.max_tokens)}")
    if spent.cost_usd or budget.max_cost_usd is not None:
        parts.append(f"cost USD {least}{of(round(spent.cost_usd, 4), budget.max_cost_usd)}")
    if spent.api_calls or budget.max_api_calls is not None:
        parts.append(f"calls {of(spent.api_calls, budget.max_api_calls)}")
    limit = None if budget.max_wall_s is None else round(budget.max_wall_s / 60, 1)
    parts.append(f"minutes {of(round(spent.wall_time.total_seconds() / 60, 1), limit)}")
    return ", ".join(parts)


def _reason(line: StepLine) -> str:
    return line.failure.reason if line.failure is not None else ""


def _waits(gate: WaitingGate) -> str:
    given = f", {len(gate.decisions)} of {gate.question.count} approvals" if gate.question.count > 1 else ""
    role = f" ({gate.question.role})" if gate.question.role else ""
    return f"- waits{role}: `{gate.step}`: {gate.question.text}{given}"


def _waits_within(wait: ChildWait) -> str:
    return f"- waits in step `{wait.step}`: `{wait.where}`: {wait.what} (how to answer: its details, `{wait.command}`)"


def _actions(status: PlanStatus) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for gate in status.waiting[:3]:
        word: dict[str, str] = {"gate": gate.step, "by": "your name"}
        if gate.question.options:
            word["option"] = gate.question.options[0].name
        rows.append(("approve", "update `approve`", json.dumps(word)))
        rows.append(
            ("reject", "update `reject`", json.dumps({"gate": gate.step, "by": "your name", "rationale": "why"}))
        )
    for line in status.asked[:3]:
        rows.append(("decide on a failure", "update `answer`", json.dumps({"step": line, "answer": "retry"})))
    if status.pause_reason:
        rows.append(("go on", "signal `resume`", "no input"))
        rows.append(("give it more", "update `top_up`", json.dumps({"cost_usd": 1, "steps": 100})))
    else:
        rows.append(("pause", "signal `pause`", '"why"'))
    rows.append(("change the plan", "update `replan`", json.dumps({"source": "the whole plan", "rationale": "why"})))
    rows.append(("stop for good", "signal `cancel`", '"why"'))
    return rows
