"""Terminal views of project plans."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from tightloop.cli.terminal import apply_colour, plain, table
from tightloop.loop.model import GateCheck, LoopStatus, LoopTask
from tightloop.loop.projection import counts_of
from tightloop.run.outcome import headline
from tightloop.value import shorten
from tightloop.wording import moment_text, unattended_text

TEXT_SHOWN = 200


def loop_rows(status: LoopStatus) -> list[tuple[str, str | Text]]:
    """Return the rows of a project plan's status panel."""
    return [
        (
            "status",
            apply_colour(f"{status.list_status}, {status.qualifier}" if status.qualifier else status.list_status),
        ),
        ("goal", shorten(" ".join(status.goal.split()), TEXT_SHOWN)),
        ("workspace", status.workspace),
        ("packet", status.packet_id),
        ("waits for", status.waits_for),
        ("tasks", counts_of(status) if status.tasks else ""),
        ("gates", gates_line(status) or ", ".join(status.gates)),
        *(("", sentence) for sentence in status.chosen_checks),
        ("result", status.delivered),
        ("until", moment_text(status.until) if status.until else ""),
        ("unattended", unattended_text(status)),
        ("reason", status.reason),
    ]


def gates_line(status: LoopStatus) -> str:
    """Return the state of the gates, such as `gate:ruff passed, gate:pytest running`."""
    checks = status.gate_result.checks if status.gate_result is not None else ()
    return ", ".join(f"{check.name} {_word(check)}" for check in checks if not check.within)


def loop_line(status: LoopStatus) -> str:
    """Return a project plan's status as the line that `watch` updates."""
    parts = [status.list_status, counts_of(status) if status.tasks else "", gates_line(status)]
    return "  ".join(part for part in parts if part)


def loop_end_lines(status: LoopStatus) -> list[str]:
    """Return the lines that show the outcome of a project plan."""
    lines = [headline(status.status.value, status.qualifier, status.reason)]
    return [*lines, f"Tasks: {counts_of(status)}."] if status.tasks else lines


def loop_todo_lines(status: LoopStatus, questions: Sequence[str]) -> list[str]:
    """Return the next actions for a person, each with its command.

    `questions` are the lines about open questions.
    """
    lines: list[str] = []
    for wait in status.children:
        lines.append(f"{wait.step}: {wait.where} is waiting for a person: {wait.what}")
        lines.append(f"  {wait.command}")
    # The workflow decides what is possible; repeating its rules here would let the two drift apart.
    possible, name = status.possible, status.plan_id
    if questions:
        lines += questions
    elif "dispatch" in possible:
        lines += ["The plan is a draft. Review its tasks, then start them:", f"  tightloop loop dispatch {name}"]
    elif "verify" in possible:
        lines += ["All tasks have ended. Run the gates:", f"  tightloop loop verify {name}"]
    return lines


def tasks_table(tasks: Iterable[LoopTask]) -> Table:
    """Return a table of a project plan's tasks."""
    result = table("TASK", "STATUS", "AFTER", "RUN", "WHAT", "WHY")
    for task in tasks:
        what = Text(plain(shorten(" ".join(task.description.split()), TEXT_SHOWN)))
        needs = ", ".join(task.dependencies)
        result.add_row(
            task.task_id, apply_colour(task.state.value), needs, task.run_id, what, Text(plain(task.message))
        )
    return result


def gates_table(checks: Iterable[GateCheck]) -> Table:
    """Return a table of a project plan's gates and the checks within them."""
    result = table("GATE", "RESULT", "SECONDS", "")
    for check in checks:
        seconds = f"{check.duration_ms / 1000:.1f}" if check.duration_ms else ""
        result.add_row(check.name, apply_colour(_word(check)), seconds, Text(plain(check.message)))
    return result


def _word(check: GateCheck) -> str:
    if check.running:
        return "running"
    return "passed" if check.passed else "failed"
