"""Messages to a plan, and the plan's current details."""

import json
from typing import Any

from tightloop.errors import InvalidRequestError
from tightloop.plan.document import FAN_OUT_LIMIT, PlanBudget
from tightloop.plan.request import SOURCE_BYTES, PlanSpent, PlanStatus
from tightloop.run.commands import Amounts, read_amounts, read_argument
from tightloop.run.question import ChildWait
from tightloop.value import Document, shorten
from tightloop.wording import counts_line

NAME_CHARACTERS = 80
TEXT_CHARACTERS = 2_000
AMOUNT_LIMIT = 10**12
"""Maximum amount of a single top-up. Larger numbers do not fit into the views and stores."""
TOP_UP_EXAMPLE = '{"cost_usd": 2.5} or {"attempts": 100, "wall_minutes": 60}'


class ReplanCommand(Document):
    """Arguments of `replan`. If no new plan text is given, a planner is asked for one."""

    source: str = ""
    rationale: str = ""
    by: str = "operator"


class StepCommand(Document):
    """Arguments of `run_step`."""

    step: str
    by: str = "operator"


class PlanTopUp(Amounts):
    """Amounts to add to the budget of a plan. Limits that are not set stay unlimited."""

    wall_minutes: float = 0.0
    cost_usd: float = 0.0
    tokens: int = 0
    api_calls: int = 0
    attempts: int = 0
    fan_out: int = 0
    revisions: int = 0

    def apply_to(self, budget: PlanBudget) -> PlanBudget:
        """Return the budget with these amounts added to its limits."""
        same = ("cost_usd", "tokens", "api_calls", "attempts", "fan_out", "revisions")
        added = {"max_wall_s": self.wall_minutes * 60, **{f"max_{name}": getattr(self, name) for name in same}}
        now = {name: getattr(budget, name) for name in added}
        raised = {name: now[name] + more for name, more in added.items() if more and now[name] is not None}
        # The hard limit protects the workflow task; a top-up must not get around it.
        if "max_fan_out" in raised:
            raised["max_fan_out"] = min(raised["max_fan_out"], FAN_OUT_LIMIT)
        return budget.evolve(**raised)


def _rename_alias(value: Any, *others: str, to: str) -> Any:
    # Not if both are given: the strict model then reports the alias as unknown, instead of one silently winning.
    other = next((alias for alias in others if isinstance(value, dict) and alias in value and to not in value), None)
    return value if other is None else {to if name == other else name: content for name, content in value.items()}


def read_replan(value: Any) -> ReplanCommand:
    """Parse the argument of `replan`, which is the new text or an object.

    If no text is given, a planner is asked for one.

    Raises:
        InvalidRequestError: the argument is missing, a field is misspelled, or the text is too large for
            a message.
    """
    if value is None:
        raise InvalidRequestError('replan: the argument is missing. To ask a planner, send: {"rationale": "why"}')
    if isinstance(value, str):
        value = {"source": value}
    value = _rename_alias(_rename_alias(value, "text", "plan", to="source"), "reason", "note", to="rationale")
    command = read_argument(
        value, ReplanCommand, what="replan", example='{"source": "<the whole plan>", "rationale": "why"}'
    )
    size = len(command.source.encode("utf-8", "replace"))
    # Refused here with advice; Temporal would only reject the message.
    if size > SOURCE_BYTES:
        raise InvalidRequestError(
            f"replan: the plan must be at most {SOURCE_BYTES} bytes, got {size}. Shorten the plan, or start a new plan "
            "from a file"
        )
    return command.evolve(
        rationale=shorten(command.rationale.strip(), TEXT_CHARACTERS),
        by=shorten(command.by.strip() or "operator", NAME_CHARACTERS),
    )


def read_step_word(value: Any) -> StepCommand:
    """Parse the argument of `run_step`, which is the ID of a step or an object.

    Raises:
        InvalidRequestError: the argument does not name a step.
    """
    value = {"step": value} if isinstance(value, str) else _rename_alias(value or {}, "id", "name", to="step")
    command = read_argument(value, StepCommand, what="run_step", example='"build" or {"step": "build", "by": "ada"}')
    if not command.step.strip():
        raise InvalidRequestError('run_step: the step is missing. Send a step id, for example: "build"')
    return command.evolve(step=command.step.strip(), by=shorten(command.by, NAME_CHARACTERS))


def raise_exhausted_bounds(
    budget: PlanBudget, stated: PlanBudget, spent: PlanSpent, *, depth: int = 1, fan_out: int = 0
) -> PlanBudget:
    """Raise each exhausted limit, so that the amount stated in the plan is available again.

    `fan_out` is the number of steps that a template expands to. The new limits always allow `depth` and
    `fan_out`.
    """
    raised: dict[str, Any] = {
        # `or 1`: a stated bound of 0 would stay exhausted after every answer.
        name: amount + (getattr(stated, name) or 1)
        for name, amount in spent.by_bound().items()
        if (bound := getattr(budget, name)) is not None and amount >= bound
    }
    return budget.evolve(
        **raised,
        max_depth=max(budget.max_depth, depth),
        max_fan_out=max(budget.max_fan_out, min(fan_out, FAN_OUT_LIMIT)),
    )


def read_plan_top_up(value: Any) -> PlanTopUp:
    """Parse the argument of `top_up`.

    Raises:
        InvalidRequestError: a field is misspelled, negative or too large, or no amount is given.
    """
    addition = read_amounts(value, PlanTopUp, example=TOP_UP_EXAMPLE)
    if any(amount > AMOUNT_LIMIT for amount in addition.amounts.values()):
        raise InvalidRequestError(
            f"top_up: each amount must be at most {AMOUNT_LIMIT:g}. Send several smaller top-ups if needed"
        )
    return addition


LINES_SHOWN = 12
CLOSED = frozenset({"completed", "failed", "compensated", "cancelled"})


def plan_details(status: PlanStatus, budget: PlanBudget, *, pausing: bool = False) -> str:
    """Return the current details of a plan as Markdown.

    Args:
        status: snapshot of the plan.
        budget: budget, including top-ups.
        pausing: whether a pause was requested while steps are still running.
    """
    closed = f"{status.status}, {status.qualifier}" if status.qualifier else status.status
    label = "pausing" if pausing and status.running else closed
    lines = [f"**{label}** · {status.phase.value} · revision {status.revision} · {status.title}", ""]
    for question in status.questions[:LINES_SHOWN]:
        who = f" from {question.count} different people" if question.count > 1 else ""
        role = f" ({question.role})" if question.role else ""
        answer_count = f", {len(question.answers)} so far" if question.answers else ""
        subject = f" `{question.step}`:" if question.step else ""
        first = (
            f"**{question.id} waits for an answer{who}{role}{answer_count}** ({question.kind.value}):{subject} "
            f"{question.title}"
        )
        lines += [*[first, *question.markdown], ""]
    failed = status.failed[:LINES_SHOWN]
    lines += [
        f"- steps: {counts_line(status.counts)}",
        f"- spent: `{spent_line(status.spent, budget)}`",
        *(f"- running: `{line.id}` (attempt {line.attempt})" for line in status.running[:LINES_SHOWN]),
        *(f"- failed: `{line.id}`: {line.failure.reason if line.failure else ''}" for line in failed),
        *(_waits_within(wait) for wait in status.children[:LINES_SHOWN]),
        *(f"- {belief.hypothesis}: {belief.confidence:.2f}" for belief in status.beliefs[:LINES_SHOWN]),
    ]
    if status.status not in CLOSED:
        lines += ["", "Next actions:", "", "| to | send | JSON |", "|---|---|---|"]
        lines += [f"| {what} | {send} | `{payload}` |" for what, send, payload in _actions(status)]
    return "\n".join(lines)


def spent_line(spent: PlanSpent, budget: PlanBudget) -> str:
    """Return the usage and the budget, such as `attempts 12/20000, cost USD 0.5/2`."""

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
    return f"- waits in step `{wait.step}`: `{wait.where}`: {wait.what} (to answer, see `{wait.command}`)"


def _actions(status: PlanStatus) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for question in status.questions[:LINES_SHOWN]:
        for option in question.options:
            command = {"question": question.id, "option": option.name}
            # Approvals are counted by name; without one, several people would all be `operator`.
            if question.count > 1:
                command["by"] = "your name"
            effect = f": {option.effect}" if option.effect else ""
            rows.append((f"{question.id} {option.name}{effect}", "update `answer`", json.dumps(command)))
    if any(question.default for question in status.questions):
        rows.append(("choose all defaults", "signal `resume`", "no input"))
    if status.status != "paused":
        rows.append(("pause", "signal `pause`", '"why"'))
    rows.append(("raise the budget", "update `top_up`", json.dumps({"cost_usd": 1, "attempts": 100})))
    rows.append(("change the plan", "update `replan`", json.dumps({"source": "the whole plan", "rationale": "why"})))
    rows.append(("stop for good", "signal `cancel`", '"why"'))
    return rows
