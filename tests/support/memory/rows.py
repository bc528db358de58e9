"""Failures and solutions for tests of the memory."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from tightloop.database.memory.store import MemoryStore
from tightloop.episode.failure import failure_type, normalize_explaining_line, signature
from tightloop.memory import Outcome, Pattern, SeenFailure

START = datetime(2026, 3, 1, 8, 0, tzinfo=UTC)


def failure(text: str, *, episode: str = "e1", iteration: int = 1, minute: float = 0) -> SeenFailure:
    """Return a failure whose output ends with this text."""
    return SeenFailure(
        signature=signature(text),
        type=failure_type(text),
        check="pytest -q",
        line=normalize_explaining_line(text),
        context=text,
        workflow_id=episode,
        iteration=iteration,
        at=START + timedelta(minutes=minute),
    )


def pattern(title: str, *command: str) -> Pattern:
    """Return a pattern with one step."""
    return Pattern(problem_type="test", title=title, steps=(title,), commands=(command,) if command else ())


def outcome(text: str, solution: Pattern, *, worked: bool = True, key: str = "e1/1", minute: float = 0) -> Outcome:
    """Return a use of a pattern against the failure with this text."""
    at = START + timedelta(minutes=minute)
    return Outcome(signature=signature(text), pattern=solution.id, worked=worked, key=key, at=at)


def learn(memory: MemoryStore, project: str, text: str, solution: Pattern, uses: Sequence[bool] = (True,)) -> None:
    """Let a project have failed like this, and the solution have been used as often."""
    memory.record_failures(project, [failure(text)])
    for number, worked in enumerate(uses):
        memory.record_solution(project, solution, [outcome(text, solution, worked=worked, key=f"use/{number}")])
