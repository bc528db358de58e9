"""The episode in words: status for programs, Markdown for the Temporal Web UI."""

import json
import math

from tightloop.budget import Budget, Spent
from tightloop.checkpoint import CheckpointRecord
from tightloop.episode import EpisodeRequest, EpisodeState, EpisodeStatus, Pause, PauseKind
from tightloop.executor import Question, QuestionKind
from tightloop.value import clip, shorten

CHECKPOINTS_SHOWN = 12
NEEDS_RESPONSE = "NEEDS RESPONSE"


def status_label(status: str, pause_kind: str | None) -> str:
    """Return the status as a person sees it: a pause for an answer has a name of its own."""
    return NEEDS_RESPONSE if status == "paused" and pause_kind == PauseKind.RESPONSE.value else status


def status_of(
    request: EpisodeRequest, state: EpisodeState, *, episode_id: str, run_id: str, status: str
) -> EpisodeStatus:
    """Return the snapshot that the `status` query answers with."""
    last = state.last_checkpoint
    return EpisodeStatus(
        episode_id=episode_id,
        run_id=run_id,
        status=status,
        phase=state.phase,
        goal=request.goal,
        workspace=request.workspace,
        iteration=state.iteration,
        branch=state.branch,
        plan=state.plan_title,
        executor=request.executor.name,
        checks=state.checks_text,
        failed_checks=state.failed_checks,
        executor_error=state.executor_error,
        probability_class=state.probability_class,
        diagnosis=state.diagnosis,
        checkpoint_id=last.id if last else "",
        tree=state.tree,
        pause=state.pause,
        spent=state.spent,
        budget=state.budget,
        runs=state.runs,
    )


def budget_line(spent: Spent, budget: Budget) -> str:
    """Return what is spent of what, such as `iterations 3/15, tokens 1200`."""

    def of(used: float, limit: float | None) -> str:
        return _number(used) if limit is None else f"{_number(used)}/{_number(limit)}"

    parts = [f"iterations {of(spent.iterations, budget.max_iterations)}"]
    if spent.tokens or budget.max_tokens is not None:
        least = "at least " if spent.unreported_calls else ""
        parts.append(f"tokens {least}{of(spent.tokens, budget.max_tokens)}")
    if spent.cost_usd or budget.max_cost_usd is not None:
        least = "at least " if spent.unpriced_calls else ""
        parts.append(f"cost USD {least}{of(round(spent.cost_usd, 4), budget.max_cost_usd)}")
    if spent.executor_failures:
        parts.append(f"executor failures {of(spent.executor_failures, budget.max_executor_failures)}")
    if spent.infrastructure_retries:
        parts.append(f"retries {of(spent.infrastructure_retries, budget.max_infrastructure_retries)}")
    minutes = spent.wall_time.total_seconds() / 60
    limit = None if budget.max_wall_time is None else budget.max_wall_time.total_seconds() / 60
    parts.append(f"minutes {of(round(minutes, 1), limit)}")
    return ", ".join(parts)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return str(int(value)) if value == int(value) else f"{value:.4f}".rstrip("0")


def details_markdown(request: EpisodeRequest, state: EpisodeState, *, status: str) -> str:
    """Return the current details: where the episode is, and the exact JSON for what can be done next."""
    label = status_label(status, state.pause.kind.value if state.pause else None)
    lines = [f"**{label}** · iteration {state.iteration} · {state.phase.value} · branch {state.branch}", ""]
    if state.pause is not None:
        lines += _pause_lines(state.pause)
    lines += [
        f"- goal: {shorten(request.goal.splitlines()[0], 200) if request.goal else ''}",
        f"- plan: {state.plan_title or 'none yet'}",
        f"- checks: {state.checks_text or 'not run yet'}",
        *(f"  - {check.status.value}: `{check.name}`" for check in state.failed_checks),
        *([f"- executor: `{clip(state.executor_error, 200)}`"] if state.executor_error else []),
        f"- class: {state.probability_class.value if state.probability_class else 'none yet'}",
        f"- budget: `{budget_line(state.spent, state.budget)}`",
    ]
    if state.diagnosis:
        lines.append(f"- diagnosis: {state.diagnosis}")
    lines += ["", "| checkpoint | iteration | branch | class | checks | reset event |", "|---|---|---|---|---|---|"]
    lines += [_checkpoint_row(record) for record in state.checkpoints[-CHECKPOINTS_SHOWN:]]
    lines += ["", *_actions(state)]
    return "\n".join(lines)


def _pause_lines(pause: Pause) -> list[str]:
    since = pause.since.strftime("%Y-%m-%d %H:%M:%S UTC") if pause.since else ""
    return [
        f"**Waits for a person** since {since}: {pause.reason} (by {pause.by})",
        "",
        f"What to do: {pause.advice}",
        "",
    ]


def _checkpoint_row(record: CheckpointRecord) -> str:
    verdict = record.probability_class.value if record.probability_class else ""
    name = f"~~{record.id}~~" if record.discarded else record.id
    event = f"{record.event_id} of run {record.run_id[:8]}" if record.event_id else ""
    return f"| {name} | {record.iteration} | {record.branch} | {verdict} | {record.checks} | {event} |"


def _actions(state: EpisodeState) -> list[str]:
    last = state.last_checkpoint
    restore = json.dumps({"checkpoint_id": last.id if last else "ckpt-0", "reason": "why"})
    rows: list[tuple[str, str, str]] = []
    if state.pause is None:
        rows.append(("pause", "signal `pause`", '"why"'))
    else:
        if state.pause.question is not None:
            rows += _answers(state.pause.question)
        rows.append(("resume", "signal `resume`", "no input"))
        rows.append(("respond", "update `respond`", '"what the planner shall know"'))
        if state.pause.kind is PauseKind.BUDGET:
            rows.append(("top up", "update `top_up`", '{"iterations": 5}'))
    rows.append(("go back", "update `restore_checkpoint`", restore))
    rows.append(("stop for good", "signal `abort`", '"why"'))
    return [
        "Next actions:",
        "",
        "| to | send | JSON |",
        "|---|---|---|",
        *(f"| {a} | {b} | `{c}` |" for a, b, c in rows),
    ]


def _answers(question: Question) -> list[tuple[str, str, str]]:
    if question.kind is QuestionKind.PERMISSION:
        words = (("allow it", {"allow": True, "text": ""}), ("deny it", {"allow": False, "text": "why"}))
    else:
        words = (
            ("report it done", {"done": True, "text": "what I did"}),
            ("say why not", {"done": False, "text": "why"}),
        )
    return [(what, "update `answer`", json.dumps(word)) for what, word in words]
