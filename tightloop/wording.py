"""Sentences about runs, shared by all interfaces, built from models or from documents with the same fields.

Imports neither pydantic nor a model, so that the command line can show a status without loading them.
"""

import re
from datetime import datetime
from typing import Any

OPEN_STATUSES = ("running", "paused", "draft", "dispatching", "verifying")
"""Statuses of open runs; the last three belong to project plans."""
CLOSED_STATUSES = (
    "succeeded", "completed", "verified", "failed", "compensated", "cancelled", "terminated", "timed_out",
)  # fmt: skip
"""Final statuses. An episode succeeds, a plan completes, a project's plan is verified; only a plan is compensated."""
START_HINT = 'Start one: tightloop start "make the tests pass" --done "pytest -q", or: tightloop plan run plan.yaml'
_TOP_UPS = {
    "iterations": "--iterations 5",
    "executor_failures": "--executor-failures 5",
    "attempts": "--attempts 100",
    "cost_usd": "--cost-usd 1",
    "tokens": "--tokens 100000",
    "api_calls": "--api-calls 100",
    "wall_s": "--wall-minutes 60",
    "wall_time": "--wall-minutes 60",
    "until": "--wall-minutes 60",
    "fan_out": "--fan-out 100",
    "revisions": "--revisions 5",
}
"""Options of `tightloop top-up`, by the name of the budget they raise: a plan's `max_...` field or an episode's
counter.
"""
NEEDS_RESPONSE = "NEEDS RESPONSE"
_OF_EXECUTOR = frozenset({"permission", "work", "clarification"})
"""Kinds of questions that an executor asks."""
ENDED_BY_MESSAGE = frozenset(
    {"operator", "repeated_error", "deviation", "already_green", "planner_gave_up", "impossible", "proof"}
)
"""Kinds of questions after which the planner runs next, so that a message to it ends the wait.

All other kinds need a decision about deliveries, files, money or permissions.
"""
PATHS_SHOWN = 5


def diff_text(change: Any) -> tuple[str, ...]:
    """Return the diff lines that a question shows.

    If the diff is longer, the last line names the command that shows all of it.
    """
    if not change.more:
        return tuple(change.lines)
    rest = f"... and {format_count(change.more, 'more line')}. Show all of them: {change.command}"
    return (*change.lines, rest)


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun, such as `1 file` or `2 files`. Only regular plurals are supported."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def number_text(amount: float) -> str:
    """Format a number with at most four decimals and no trailing zeros."""
    return f"{amount:.4f}".rstrip("0").rstrip(".")


def span(seconds: float) -> str:
    """Format a duration, such as `45 s`, `4 min 10 s`, `2 h 5 min` or `30 days`."""
    whole = max(round(seconds), 0)
    # Each unit is used from two of it on.
    for large, small, names in ((86_400, 3_600, ("days", "h")), (3_600, 60, ("h", "min")), (60, 1, ("min", "s"))):
        if whole >= 2 * large:
            rest = whole % large // small
            return f"{whole // large} {names[0]}" + (f" {rest} {names[1]}" if rest else "")
    return f"{whole} s"


def status_label(status: str, pause_kind: str | None) -> str:
    """Return the status to display. A pause for the executor's question becomes `NEEDS_RESPONSE`."""
    return NEEDS_RESPONSE if status == "paused" and pause_kind in _OF_EXECUTOR else status


def budget_line(spent: Any, budget: Any) -> str:
    """Return the budget used so far, such as `iterations 3/15, tokens 1200`."""

    def of(used: float, limit: float | None) -> str:
        return number_text(used) if limit is None else f"{number_text(used)}/{number_text(limit)}"

    parts = [f"iterations {of(spent.iterations, budget.max_iterations)}"]
    if (tokens := spent.input_tokens + spent.output_tokens) or budget.max_tokens is not None:
        # Some agents do not report their usage, so the sum is a lower bound.
        least = "at least " if spent.unreported_calls else ""
        parts.append(f"tokens {least}{of(tokens, budget.max_tokens)}")
    if spent.cost_usd or budget.max_cost_usd is not None:
        least = "at least " if spent.unpriced_calls else ""
        parts.append(f"cost USD {least}{of(spent.cost_usd, budget.max_cost_usd)}")
    if spent.executor_failures:
        parts.append(f"executor failures {of(spent.executor_failures, budget.max_executor_failures)}")
    if spent.infrastructure_retries:
        parts.append(f"retries {of(spent.infrastructure_retries, budget.max_infrastructure_retries)}")
    minutes = spent.wall_time.total_seconds() / 60
    limit = None if budget.max_wall_time is None else budget.max_wall_time.total_seconds() / 60
    parts.append(f"minutes {of(round(minutes, 1), limit)}")
    if budget.until is not None:
        parts.append(f"until {moment_text(budget.until)}")
    return ", ".join(parts)


def moment_text(moment: datetime | str) -> str:
    """Format a time with its time zone. In documents, times are stored as ISO 8601 text."""
    at = moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)
    return f"{at:%Y-%m-%d %H:%M %Z}"


def unattended_text(status: Any) -> str:
    """Return a sentence about an unattended run, or "" for other runs."""
    return "alerts instead of pauses for stuck work" if status.unattended else ""


def top_up_options(reason: str) -> str:
    """Return the `tightloop top-up` options that raise an exhausted budget, or "" if there are none.

    Args:
        reason: the exhausted limits, such as `max_api_calls is 1` (plan) or `tokens 12 of 10` (episode).
    """
    reached = (option for name, option in _TOP_UPS.items() if re.search(rf"\bmax_{name} is\b|\b{name} \d", reason))
    # Without repeats: `wall_s` and `wall_time` have the same option.
    return " ".join(dict.fromkeys(reached))


def work_text(work: Any, now: datetime | None = None) -> str:
    """Describe the running work. Include its age if `now` is given, and its start time otherwise."""
    if not work.what:
        return ""
    parts = [work.what]
    if work.since is not None:
        age = f"for {span((now - work.since).total_seconds())}" if now else f"since {work.since:%H:%M:%S} UTC"
        parts.append(age + (f" of at most {span(work.limit_s)}" if work.limit_s else ""))
    if work.attempt > 1:
        parts.append(f"attempt {work.attempt}" + (f" of {work.attempts}" if work.attempts else ""))
    if work.next_attempt is not None and now is not None:
        parts.append(f"next attempt in {span((work.next_attempt - now).total_seconds())}")
    problems = work_problems(work)
    return "; ".join([", ".join(parts), *([f"before: {problems}"] if problems else [])])


def work_problems(work: Any) -> str:
    """Describe the problems of the running work so far. Return "" if there are none."""
    answer = f"the last answer could not be used: {work.answer_problem}" if work.answer_problem else ""
    return "; ".join(part for part in (work.problem, answer) if part)


def drift_files(drift: Any) -> str:
    """Return a list of the changed files, such as `2 files: a.txt, b.txt`."""
    paths = ", ".join(drift.paths[:PATHS_SHOWN])
    # `paths` is bounded, `count` is not.
    more = drift.count - min(len(drift.paths), PATHS_SHOWN)
    names = f"{paths}{f' and {more} more' if more > 0 else ''}"
    return f"{format_count(drift.count, 'file')}: {names}" if names else f"the files of tree {drift.tree[:12]}"


def drift_text(drift: Any) -> str:
    """Describe how unexpected file changes were handled."""
    outcome = "undone" if drift.bring_back else "kept together with the delivered changes"
    named = drift_files(drift)
    match drift.cause:
        case "interrupted":
            return f"changes found after an interrupted attempt were {outcome} ({named})"
        case "during_checks":
            return f"changes made while checks were running were {outcome} ({named})"
        case "during_step":
            return f"changes made while {drift.step} was running were undone together with it ({named})"
        case _:
            return f"changes made outside a pause were {outcome} ({named})"


def steps_done(counts: dict[str, int]) -> str:
    """Return the number of completed steps, such as `3/10`, or "" if there are no counts."""
    done = counts.get("completed", 0) + counts.get("recovered", 0)
    return f"{done}/{sum(counts.values())}" if counts else ""


def counts_line(counts: dict[str, int]) -> str:
    """Return the number of steps by status, such as `completed 3, running 1, pending 6`."""
    parts = [f"{name} {count}" for name, count in counts.items() if count]
    return ", ".join(parts) or "none"
