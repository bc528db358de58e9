"""A running plan in words: Markdown for the Temporal Web UI, with the exact JSON for what can be done next."""

import json

from tightloop.plan.child import ChildWait
from tightloop.plan.document.plan import PlanBudget
from tightloop.plan.request import PlanSpent, PlanStatus

LINES_SHOWN = 12
CLOSED = frozenset({"completed", "failed", "compensated", "cancelled"})


def plan_details(status: PlanStatus, budget: PlanBudget, *, pausing: bool = False) -> str:
    """Return the current details of a plan.

    Args:
        status: the snapshot.
        budget: with what people added.
        pausing: a pause was asked for, and steps still run.
    """
    label = "pausing" if pausing and status.running else status.status
    lines = [f"**{label}** · {status.phase.value} · revision {status.revision} · {status.title}", ""]
    for question in status.questions[:LINES_SHOWN]:
        who = f" from {question.count} different people" if question.count > 1 else ""
        role = f" ({question.role})" if question.role else ""
        given = f", {len(question.answers)} so far" if question.answers else ""
        about = f" `{question.step}`:" if question.step else ""
        first = (
            f"**{question.id} waits for an answer{who}{role}{given}** ({question.kind.value}):{about} {question.title}"
        )
        lines += [*[first, *(f"- {line}" for line in question.evidence)], ""]
    failed = status.failed[:LINES_SHOWN]
    lines += [
        f"- steps: {counts_line(status.counts)}",
        f"- spent: `{spent_line(status.spent, budget)}`",
        *(f"- runs: `{line.id}` (attempt {line.attempt})" for line in status.running[:LINES_SHOWN]),
        *(f"- failed: `{line.id}`: {line.failure.reason if line.failure else ''}" for line in failed),
        *(_waits_within(wait) for wait in status.children[:LINES_SHOWN]),
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
    parts = [f"attempts {of(spent.attempts, budget.max_attempts)}"]
    if spent.tokens or budget.max_tokens is not None:
        parts.append(f"tokens {of(spent.tokens, budget.max_tokens)}")
    if spent.cost_usd or budget.max_cost_usd is not None:
        parts.append(f"cost USD {least}{of(round(spent.cost_usd, 4), budget.max_cost_usd)}")
    if spent.api_calls or budget.max_api_calls is not None:
        parts.append(f"calls {of(spent.api_calls, budget.max_api_calls)}")
    limit = None if budget.max_wall_s is None else round(budget.max_wall_s / 60, 1)
    parts.append(f"minutes {of(round(spent.wall_time.total_seconds() / 60, 1), limit)}")
    return ", ".join(parts)


def _waits_within(wait: ChildWait) -> str:
    return f"- waits in step `{wait.step}`: `{wait.where}`: {wait.what} (how to answer: its details, `{wait.command}`)"


def _actions(status: PlanStatus) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for question in status.questions[:LINES_SHOWN]:
        for option in question.options:
            word = {"question": question.id, "option": option.name}
            if question.count > 1:
                word["by"] = "your name"
            effect = f": {option.effect}" if option.effect else ""
            rows.append((f"{question.id} {option.name}{effect}", "update `answer`", json.dumps(word)))
    if any(question.default for question in status.questions):
        rows.append(("choose all defaults", "signal `resume`", "no input"))
    if status.status != "paused":
        rows.append(("pause", "signal `pause`", '"why"'))
    rows.append(("raise the budget", "update `top_up`", json.dumps({"cost_usd": 1, "attempts": 100})))
    rows.append(("change the plan", "update `replan`", json.dumps({"source": "the whole plan", "rationale": "why"})))
    rows.append(("stop for good", "signal `cancel`", '"why"'))
    return rows
