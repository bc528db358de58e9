"""Terminal views of runs and questions, built from models or gateway documents.

This module does not load any models.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tightloop.cli.terminal import apply_colour, panel, plain, table
from tightloop.host import diff_command
from tightloop.run.outcome import headline, level
from tightloop.wording import (
    ENDED_BY_MESSAGE,
    budget_line,
    counts_line,
    diff_text,
    drift_text,
    format_count,
    moment_text,
    status_label,
    top_up_options,
    unattended_text,
    work_text,
)

if TYPE_CHECKING:
    from tightloop.cli.now import Document
    from tightloop.client import EpisodeStatus, Event, PlanStatus, Question, RunStatus, Summary
    from tightloop.episode.check import FailedCheck
    from tightloop.episode.checkpoint import CheckpointRecord
    from tightloop.plan.child import StepRecord
    from tightloop.plan.request import PlanSpent, StepLine
    from tightloop.safety.drift import Drift


def is_episode(status: Any) -> bool:
    """Return whether a status belongs to an episode."""
    # By field, not by type: gateway documents have no type, and importing the models would take too long.
    return hasattr(status, "episode_id")


def is_loop(status: Any) -> bool:
    """Return whether a status belongs to a project plan."""
    return hasattr(status, "packet_id")


QUESTIONS_SHOWN = 12
_CAUSES = {
    "operator": "paused by {by}",
    "permission": "an agent asks for permission",
    "planner_gave_up": "the planner gave up",
    "work": "a person has to do this work",
}
"""Causes of a pause that the title of its question does not mention, by kind of question."""
_TEXTS = {
    "answer": "TEXT",
    "done": "WHAT_I_DID",
    "failed": "WHY",
    "refused": "WHY",
    "limit": "WHY",
    "deny": "WHY",
    "reject": "WHY",
}
"""Options whose answer usually needs a text, with a placeholder for the text."""


def todo_lines(status: Any) -> list[str]:
    """Return a line for each item that is waiting for a person, with the command to respond."""
    if is_loop(status):
        from tightloop.cli.loop_views import loop_todo_lines

        alone = len(status.questions) == 1
        asked = [
            line for question in status.questions for line in question_lines(status.plan_id, question, alone=alone)
        ]
        return loop_todo_lines(status, asked)
    name = status.episode_id if is_episode(status) else status.plan_id
    questions = status.questions
    lines: list[str] = []
    for question in questions[:QUESTIONS_SHOWN]:
        lines += question_lines(name, question, alone=len(questions) == 1)
        if question.kind == "budget" and (more := top_up_options(question.title)):
            lines.append(f"  tightloop top-up {name} {more}   # raise the limit by this amount and continue")
    if len(questions) > QUESTIONS_SHOWN:
        lines.append(f"... and {format_count(len(questions) - QUESTIONS_SHOWN, 'more question')}")
    commands: list[str] = []
    if not is_episode(status):
        for wait in status.children[:QUESTIONS_SHOWN]:
            child_question = wait.question
            where = f"{wait.workflow_id} at {child_question.step}" if child_question.step else wait.workflow_id
            what = f"{child_question.kind}: {' '.join(child_question.title.split())}"
            lines.append(f"{wait.step}: {where} is waiting for a person: {what}")
            lines += [*(f"  {line}" for line in child_question.evidence), f"  tightloop status {wait.workflow_id}"]
        # Only these can be resolved by another text of the plan.
        if any(question.kind in ("failed_step", "unmet") for question in questions):
            commands = [f"plan replan {name} FILE   # replace the plan with the one in FILE"]
    elif any(question.options for question in questions):
        # Temporal's own pause has no options and accepts no messages.
        back = status.way_back or "CKPT"
        commands = [
            f'respond {name} "message for the planner"   # {_effect_of_message(questions)}',
            f"restore {name} {back}   # continue from the files of {back} (other checkpoints are kept)",
        ]
        # Most questions offer it as an answer.
        if not any(option.name == "cancel" for question in questions for option in question.options):
            commands.append(f"cancel {name}   # end the episode and leave the files as they are")
    return [*lines, *(f"  tightloop {command}" for command in commands)]


def _effect_of_message(questions: Sequence[Any]) -> str:
    if not any(question.blocks for question in questions):
        return "the planner reads the message before the next plan"
    if all(question.kind == "operator" for question in questions):
        return "the run continues, and the planner reads the message before the next plan"
    if all(question.kind in ENDED_BY_MESSAGE for question in questions):
        return "the planner reads the message and plans again, and you need not answer the question"
    return "the planner reads the message before the next plan, and the question stays open"


def _result_lines(status: RunStatus) -> list[str]:
    return [f"Result: {status.delivered}"] if status.delivered else []


def drift_lines(drifts: Iterable[Drift]) -> list[str]:
    """Return the lines about external file changes, including the command to restore the files."""
    return [
        line
        for drift in drifts
        for line in (
            drift_text(drift),
            *([(f"  to restore the changes: {drift.bring_back}")] if drift.bring_back else []),
        )
    ]


def question_lines(workflow_id: str, question: Question | Document, *, alone: bool = True) -> list[str]:
    """Return the lines for a question, including its evidence and a command for each option.

    Args:
        workflow_id: id of the episode or plan that asked.
        question: question to show.
        alone: True if this is the only question. The commands then omit its id.
    """
    since = f" ({question.kind}{f', since {question.since.astimezone():%Y-%m-%d %H:%M:%S}' if question.since else ''})"
    role = f" with role {question.role}" if question.role else ""
    who = f"{question.count} different people{role}" if question.count > 1 else f"a person{role}"
    answers = ", ".join(f"{answer.by}: {answer.option}" for answer in question.answers)
    # A step may be the reason why the whole plan waits.
    waits = question.step if question.step and question.blocks in ("", question.step) else "The run"
    what = (
        f"{waits} is waiting for {who}"
        if question.blocks or question.kind not in ("work", "operator")
        else "No answer needed"
    )
    # A pause by tightloop itself has the cause in its title.
    is_named = question.blocks and not (question.kind == "operator" and question.by in ("tightloop", "temporal"))
    cause = f"{_CAUSES[question.kind].format(by=question.by)}: " if is_named and question.kind in _CAUSES else ""
    lines = [f"{what}{f' ({answers})' if answers else ''}: {cause}{question.title}{since}"]
    lines += [f"  {line}" for line in question.evidence]
    if question.change:
        lines += [f"  | {line}" for line in diff_text(question.change)]
    for option in question.options:
        if question.command:
            lines.append(f"  tightloop loop {question.command} {workflow_id}   # {option.effect}")
            continue
        command = ["answer", workflow_id, option.name]
        text = option.needs_text or _TEXTS.get(option.name, "")
        command += [text] if text else []
        command += [] if alone else ["--question", question.id]
        # Several people must answer: with the default user name they would count as one.
        command += ["--by", "NAME"] if question.count > 1 else []
        effect = "; ".join(
            part
            for part in (
                option.effect,
                option.pros and f"for: {option.pros}",
                option.cons and f"against: {option.cons}",
                option.cost and f"cost: {option.cost}",
            )
            if part
        )
        lines.append(f"  tightloop {shlex.join(command)}" + (f"   # {effect}" if effect else ""))
    return lines


def _qualified(word: str, status: Any) -> str:
    return f"{word}, {status.qualifier}" if status.qualifier else word


_TREE_DIGITS = 12


def checkpoints_table(records: Iterable[CheckpointRecord]) -> Table:
    """Return a table of checkpoints. Discarded checkpoints are dimmed."""
    result = table("CHECKPOINT", "ITERATION", "BRANCH", "CLASS", "CHECKS", "FILES' TREE", "RESET EVENT", "PLAN")
    for record in records:
        result.add_row(
            record.id
            + (" (discarded)" if record.discarded else "")
            + (" (contains work that was not accepted)" if record.refused else ""),
            str(record.iteration),
            str(record.branch),
            apply_colour(record.probability_class or ""),
            record.checks,
            record.tree[:_TREE_DIGITS],
            f"{record.event_id} of run {record.run_id[:8]}" if record.event_id else "",
            Text(plain(record.title)),
            style="dim" if record.discarded else None,
        )
    return result


def episode_rows(status: EpisodeStatus) -> list[tuple[str, str | Text]]:
    """Return the rows of an episode's status panel."""
    label = status_label(status.status, status.questions[0].kind if status.questions else None)
    iteration = str(status.iteration) + (f" on checkpoint branch {status.branch}" if status.branch > 1 else "")
    return [
        ("status", apply_colour(_qualified(label, status) + (", pause requested" if status.pause_requested else ""))),
        ("goal", status.goal),
        ("workspace", status.workspace),
        ("worktree", status.worktree),
        ("forked from", status.forked_from),
        ("phase", status.phase),
        ("now", work_text(status.work, datetime.now(UTC)) if status.work and not status.waits_for else ""),
        ("waits for", status.waits_for),
        ("iteration", iteration + (f", run {status.runs}" if status.runs > 1 else "")),
        ("plan", status.plan),
        ("executor", status.executor + (f": {status.executor_error}" if status.executor_error else "")),
        ("on course", apply_colour(status.probability_class) if status.probability_class else ""),
        ("checks", status.checks),
        *(("", sentence) for sentence in status.chosen_checks),
        ("changed", "" if status.files_changed is None else format_count(status.files_changed, "file")),
        *(("", line) for check in status.failed_checks for line in _failed_check_lines(check)),
        ("", f"full output: tightloop output {status.episode_id}" if status.failed_checks else ""),
        ("diagnosis", status.diagnosis),
        ("checkpoint", status.checkpoint_id),
        *(("changed", drift_text(drift)) for drift in status.drifts),
        ("result", status.delivered),
        ("budget", budget_line(status.spent, status.budget)),
        ("unattended", unattended_text(status)),
        ("reason", status.reason),
    ]


def _failed_check_lines(check: FailedCheck) -> list[str]:
    return [f"{check.status}: {check.name}", *(f"  {plain(line)}" for line in check.tail.splitlines() or ["no output"])]


def episode_line(status: EpisodeStatus) -> str:
    """Return the status of an episode as the line that `watch` updates."""
    parts = [
        f"iteration {status.iteration}",
        status.phase,
        work_text(status.work, datetime.now(UTC)) if status.work else "",
        status_label(status.status, status.questions[0].kind if status.questions else None),
        f"waits for {status.waits_for}" if status.waits_for else "",
        f"on course {status.probability_class}" if status.probability_class else "",
        f"checks {status.checks}" if status.checks else "",
        budget_line(status.spent, status.budget),
        status.plan,
    ]
    return "  ".join(part for part in parts if part)


def episode_end_lines(status: EpisodeStatus) -> list[str]:
    """Return the outcome of an episode, and the command to continue it."""
    outcome = status.outcome if status.outcome is not None else status.status.upper()
    changed = "" if status.files_changed is None else f" {format_count(status.files_changed, 'file')} changed in total."
    lines = [
        headline(outcome, status.qualifier, status.reason),
        f"Checks: {status.checks or 'not run'}.{changed} Spent: {budget_line(status.spent, status.budget)}.",
        *_result_lines(status),
        *drift_lines(status.drifts),
    ]
    if status.status == "succeeded":
        return lines
    return [*lines, f"Continue from a checkpoint: tightloop restore {status.episode_id} CKPT"]


LINES_SHOWN = 12
RUNNING_SHOWN = 3
VALUE_CHARACTERS = 1_000


def steps_table(lines: Iterable[StepLine]) -> Table:
    """Return a table of steps with their states and failures."""
    result = table("STEP", "STATUS", "ATTEMPTS", "TITLE", "WHY")
    for line in lines:
        why = line.failure.reason if line.failure is not None else ""
        attempts = str(line.attempt) if line.attempt else ""
        result.add_row(line.id, apply_colour(line.status), attempts, Text(plain(line.summary)), Text(plain(why)))
    return result


def spent_line(spent: PlanSpent) -> str:
    """Return the budget spent, such as `attempts 12, cost USD 0.5, minutes 3`."""
    parts = [f"attempts {spent.attempts}"]
    if spent.tokens:
        parts.append(f"tokens {spent.tokens}")
    if spent.cost_usd or spent.unpriced_calls:
        # Calls without a known price cost something, too, so the sum is a lower bound.
        parts.append(f"cost USD {'at least ' if spent.unpriced_calls else ''}{round(spent.cost_usd, 4):g}")
    if spent.api_calls:
        parts.append(f"calls {spent.api_calls}")
    return ", ".join([*parts, f"minutes {spent.wall_time.total_seconds() / 60:.1f}"])


def plan_rows(status: PlanStatus) -> list[tuple[str, str | Text]]:
    """Return the rows of a plan's status panel."""
    failed = ((line.id, line.failure.reason if line.failure else "unknown reason") for line in status.failed)
    return [
        ("status", apply_colour(_qualified(status.status, status))),
        ("plan", status.title + (f", revision {status.revision}" if status.revision > 1 else "")),
        ("workspace", status.workspace),
        ("phase", status.phase),
        ("waits for", status.waits_for),
        ("steps", counts_line(status.counts) if status.counts else ""),
        *(("running", f"{line.id} (attempt {line.attempt})") for line in status.running[:LINES_SHOWN]),
        *(("failed", f"{name}: {why}") for name, why in list(failed)[:LINES_SHOWN]),
        *(
            ("hypothesis", f"{belief.hypothesis}: {belief.confidence:.2f} ({belief.evidence} pieces of evidence)")
            for belief in status.beliefs[:LINES_SHOWN]
        ),
        *(("changed", drift_text(drift)) for drift in status.drifts),
        ("result", status.delivered),
        ("spent", spent_line(status.spent)),
        ("until", moment_text(status.until) if status.until else ""),
        ("unattended", unattended_text(status)),
        ("reason", status.reason),
    ]


def plan_line(status: PlanStatus) -> str:
    """Return the status of a plan as the line that `watch` updates."""
    running = ", ".join(line.id for line in status.running[:RUNNING_SHOWN])
    more = f" and {len(status.running) - RUNNING_SHOWN} more" if len(status.running) > RUNNING_SHOWN else ""
    waits = f"waits for {status.waits_for}" if status.waits_for else ""
    parts = [counts_line(status.counts), f"now: {running}{more}" if running else "", status.phase, waits]
    return "  ".join(part for part in parts if part)


def plan_end_lines(status: PlanStatus) -> list[str]:
    """Return the outcome of a plan and the command to show its report."""
    outcome = status.outcome if status.outcome is not None else status.status.upper()
    lines = [
        headline(outcome, status.qualifier, status.reason),
        f"Steps: {counts_line(status.counts)}. Spent: {spent_line(status.spent)}.",
        *_result_lines(status),
        *drift_lines(status.drifts),
        f"Report: tightloop export {status.plan_id} --report",
    ]
    if status.status == "completed":
        return lines
    return [*lines, f"Run it again, reusing completed steps: tightloop plan run --again {status.plan_id}"]


def record_lines(record: StepRecord, workspace: Path) -> list[str]:
    """Return the lines that describe one attempt of a step, including its inputs and outputs."""
    result = record.result
    took = f", {(record.ended - record.started).total_seconds():.1f} s" if record.started and record.ended else ""
    when = f" at {record.ended.astimezone():%Y-%m-%d %H:%M:%S}" if record.ended else ""
    marks = [label for label, holds in (("taken over", result.reused), ("undone", record.undone)) if holds]
    marked = f" ({', '.join(marks)})" if marks else ""
    rows = [("command", record.command), ("summary", result.summary)]
    if result.failure is not None:
        rows.append(("failure", f"{result.failure.failure_class.value}: {result.failure.reason}"))
    rows += [(f"input {name}", str(value)) for name, value in record.inputs.items()]
    rows += [(f"output {name}", str(value)) for name, value in record.outputs.items()]
    rows += [
        (f"artifact {name}", f"{ref.size_bytes} bytes, {ref.sha256} (tightloop export ID --out FOLDER)")
        for name, ref in record.artifacts.items()
    ]
    rows += [
        (f"evidence on {note.hypothesis}", f"{note.verdict} ({note.strength}) {note.note}") for note in result.evidence
    ]
    rows += [("answer", f"{answer.option} by {answer.by} {answer.text}".rstrip()) for answer in record.answers]
    if record.tree_before != record.tree_after:
        rows.append(("changed", diff_command(workspace, record.tree_before, record.tree_after)))
    return [
        f"attempt {record.attempt}: {result.status.value}{marked}{when}{took}, revision {record.revision}",
        *(f"   {name}: {_cut(text)}" for name, text in rows if text),
    ]


def _cut(text: str) -> str:
    line = text.strip().replace("\n", "\n     ")
    return line if len(line) <= VALUE_CHARACTERS else f"{line[:VALUE_CHARACTERS]} ... ({len(line)} characters)"


_OF_WORKERS = frozenset({"phase", "spent", "budget"})
"""Names of the rows that are only known if a worker responds."""


def list_table(rows: Iterable[Summary | Document]) -> Table:
    """Return the table that lists episodes and plans."""
    result = table("ID", "STATUS", "ITERATION", "STARTED", "GOAL", "WORKSPACE")
    for row in rows:
        label = status_label(row.status, row.pause_kind)
        # The full text would make the column too wide; `status` shows it.
        short = level(row.qualifier)
        status = apply_colour(f"{label}, {short}" if short else label)
        if row.pause_kind and label == row.status:
            status.append(f" ({plain(row.pause_kind)})")
        goal = Text(plain(row.goal.partition("\n")[0]), overflow="ellipsis", no_wrap=True)
        iteration = str(row.iteration) if row.kind == "episode" else ""
        result.add_row(row.id, status, iteration, _age(row.started), goal, Text(plain(row.workspace)))
    return result


def _age(moment: datetime | None) -> str:
    if moment is None:
        return ""
    minutes = int((datetime.now(UTC) - moment).total_seconds() // 60)
    if minutes < 60:
        return f"{max(minutes, 0)} min ago"
    return f"{minutes // 60} h ago" if minutes < 48 * 60 else f"{minutes // 1440} d ago"


def status_panel(status: Any) -> Panel:
    """Return the panel for a run, including everything that is waiting for a person."""
    rows: Callable[[Any], list[tuple[str, str | Text]]] = episode_rows if is_episode(status) else plan_rows
    if is_loop(status):
        # Lazy import: it loads the models, which this module avoids.
        from tightloop.cli.loop_views import loop_rows

        rows = loop_rows
    name = status.episode_id if is_episode(status) else status.plan_id
    return panel(name, _filter_rows(status, rows(status)), todo_lines(status))


def _filter_rows(status: Any, rows: list[tuple[str, str | Text]]) -> list[tuple[str, str | Text]]:
    """Return the rows of the panel.

    For a stored status, omit unknown rows and add the time of the status.
    """
    if status.as_of is None:
        return rows
    as_of = f"{status.as_of.astimezone():%Y-%m-%d %H:%M:%S} (stored status, because no worker responded)"
    return [("as of", as_of), *(row for row in rows if row[0] not in _OF_WORKERS)]


def status_line(status: Any) -> str:
    """Return the status of a run on one line."""
    line: Callable[[Any], str] = episode_line if is_episode(status) else plan_line
    if is_loop(status):
        from tightloop.cli.loop_views import loop_line

        line = loop_line
    return plain(line(status).replace("\n", " "))


def end_lines(status: Any) -> list[str]:
    """Return the outcome of a run, and the command to continue it."""
    if is_loop(status):
        from tightloop.cli.loop_views import loop_end_lines

        return loop_end_lines(status)
    return episode_end_lines(status) if is_episode(status) else plan_end_lines(status)


def timeline_table(events: Iterable[Event]) -> Table:
    """Return a table of events, newest last."""
    result = table("WHEN", "WHAT", "")
    for event in events:
        when = f"{event.at.astimezone():%Y-%m-%d %H:%M:%S}"
        result.add_row(when, apply_colour(event.kind), Text(plain(event.text)))
    return result


def event_line(event: Event) -> Text:
    """Return a timeline event on one line."""
    line = Text(f"{event.at.astimezone():%H:%M:%S}  ")
    line.append_text(apply_colour(event.kind))
    line.append(" " * max(11 - len(event.kind), 1))
    line.append(plain(event.text.replace("\n", " ")))
    return line
