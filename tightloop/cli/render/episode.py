"""Shows episodes: their state, checkpoints and end."""

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from tightloop.cli.render.question import drift_lines
from tightloop.cli.render.terminal import coloured, plain, table
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.display import budget_line, status_label
from tightloop.episode.model import EpisodeStatus

_TREE_DIGITS = 12


def checkpoints_table(records: Iterable[CheckpointRecord]) -> Table:
    """Return the list of checkpoints; discarded ones are dim."""
    made = table("CHECKPOINT", "ITERATION", "BRANCH", "CLASS", "CHECKS", "FILES' TREE", "RESET EVENT", "PLAN")
    for record in records:
        made.add_row(
            record.id + (" (discarded)" if record.discarded else ""),
            str(record.iteration),
            str(record.branch),
            coloured(record.probability_class.value if record.probability_class else ""),
            record.checks,
            record.tree[:_TREE_DIGITS],
            f"{record.event_id} of run {record.run_id[:8]}" if record.event_id else "",
            Text(plain(record.title)),
            style="dim" if record.discarded else None,
        )
    return made


def episode_rows(status: EpisodeStatus) -> list[tuple[str, str | Text]]:
    """Return the names and values of a panel."""
    label = status_label(status.status, status.questions[0].kind.value if status.questions else None)
    iteration = str(status.iteration) + (f" on branch {status.branch}" if status.branch else "")
    return [
        ("status", coloured(label + (", pause requested" if status.pause_requested else ""))),
        ("goal", status.goal),
        ("workspace", status.workspace),
        ("phase", status.phase.value),
        ("now", status.work.told(datetime.now(UTC)) if status.work and not status.waits_for else ""),
        ("waits for", status.waits_for),
        ("iteration", iteration + (f", run {status.runs}" if status.runs > 1 else "")),
        ("plan", status.plan),
        ("executor", status.executor + (f": {status.executor_error}" if status.executor_error else "")),
        ("class", coloured(status.probability_class.value) if status.probability_class else ""),
        ("checks", status.checks),
        *(("", f"{check.status.value}: {check.name}") for check in status.failed_checks),
        ("diagnosis", status.diagnosis),
        ("checkpoint", status.checkpoint_id),
        *(("changed", drift.sentence) for drift in status.drifts),
        ("budget", budget_line(status.spent, status.budget)),
        ("reason", status.reason),
    ]


def episode_line(status: EpisodeStatus) -> str:
    """Return the state on one line, for the last line of `watch`."""
    parts = [
        f"iteration {status.iteration}",
        status.phase.value,
        status.work.told(datetime.now(UTC)) if status.work else "",
        status_label(status.status, status.questions[0].kind.value if status.questions else None),
        f"waits for {status.waits_for}" if status.waits_for else "",
        f"class {status.probability_class.value}" if status.probability_class else "",
        f"checks {status.checks}" if status.checks else "",
        budget_line(status.spent, status.budget),
        status.plan,
    ]
    return "  ".join(part for part in parts if part)


def episode_end_lines(status: EpisodeStatus) -> list[str]:
    """Return how an episode ended, and how to continue."""
    word = status.outcome.value if status.outcome is not None else status.status.upper()
    lines = [
        f"{word}: {status.reason or 'no reason was given'}",
        f"Checks: {status.checks or 'not run'}. Spent: {budget_line(status.spent, status.budget)}.",
        *drift_lines(status.drifts),
    ]
    if status.status == "succeeded":
        return lines
    return [*lines, f"Continue from a checkpoint: tightloop restore {status.episode_id} CKPT"]
