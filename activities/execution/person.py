"""Lets a person do the work: the plan is laid into an inbox, and the episode waits for the answer."""

import hashlib
import os
from pathlib import Path

from activities.execution.port import Control, Executor
from tightloop.errors import ExecutorError
from tightloop.executor import ExecutorOutcome, ExecutorStatus, Question, QuestionKind, WorkOrder
from tightloop.value import shorten

INBOX = "inbox"
TITLE_CHARACTERS = 200
DETAIL_CHARACTERS = 1_000

_STEP_CHARACTERS = 160


class PersonExecutor(Executor):
    """Asks a person to carry out the plan, and returns at once: the workflow waits, not a thread."""

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Write the plan to `<state_folder>/inbox/<16 hex digits of the key>.md` and ask. Idempotent.

        Raises:
            ExecutorError: the plan cannot be written there.
        """
        del control
        file = inbox_file(order, state_folder)
        try:
            _write(file, order.prompt)
        except OSError as error:
            raise ExecutorError(
                f"the plan cannot be written to {file}: {error.strerror}. Make the folder writable"
            ) from None
        question = Question(kind=QuestionKind.WORK, title=_title(order), detail=_detail(order, file))
        return ExecutorOutcome(
            status=ExecutorStatus.NEEDS_PERSON, summary=f"waits for a person: {file}", question=question
        )


def inbox_file(order: WorkOrder, state_folder: Path) -> Path:
    """Return where the plan of an order is laid."""
    return state_folder / INBOX / f"{hashlib.sha256(order.key.encode()).hexdigest()[:16]}.md"


def _title(order: WorkOrder) -> str:
    first = next((step.title for step in order.plan.steps if step.title.strip()), "") or order.plan.goal
    more = f" (and {len(order.plan.steps) - 1} more steps)" if len(order.plan.steps) > 1 else ""
    return shorten(" ".join(first.split()), TITLE_CHARACTERS - len(more)) + more


def _detail(order: WorkOrder, file: Path) -> str:
    """Say where the whole plan is, then as many steps as there is room for."""
    lines = [f"Work in {order.root}. The whole plan: {file}", f"Goal: {shorten(order.plan.goal, _STEP_CHARACTERS)}"]
    for number, step in enumerate(order.plan.steps, start=1):
        title = shorten(" ".join(step.title.split()), _STEP_CHARACTERS)
        command = f" (run: {shorten(' '.join(step.run), _STEP_CHARACTERS)})" if step.run else ""
        lines.append(f"{number}. {title}{command}")
    return shorten("\n".join(lines), DETAIL_CHARACTERS)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = file.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as target:
        target.write(text)
    temporary.replace(file)
