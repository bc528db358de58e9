"""Executor for manual work. It writes the plan to an inbox, and the episode waits for the answer."""

from pathlib import Path

from activities.artifacts.port import file_stem
from activities.executor.port import Control, Executor
from activities.workspace.ownership import write_atomically
from tightloop.errors import ExecutorError
from tightloop.executor.asking import work_question
from tightloop.executor.model import ExecutorOutcome, ExecutorStatus, WorkOrder
from tightloop.value import format_count, shorten

INBOX = "inbox"
TITLE_CHARACTERS = 200
DETAIL_CHARACTERS = 1_000

_STEP_CHARACTERS = 160


class PersonExecutor(Executor):
    """Asks a person to carry out the plan and returns immediately.

    The workflow waits for the answer, so no thread is blocked.
    """

    def effects_outside(self, order: WorkOrder) -> str:
        """Return "", because writing the plan and asking the person again is always safe."""
        del order
        return ""

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Write the plan to `<state_folder>/inbox/<16 hex digits of the key>.md` and ask a person. Idempotent.

        Raises:
            ExecutorError: the plan cannot be written there.
        """
        del control
        file = state_folder / INBOX / f"{file_stem(order.key)}.md"
        try:
            # Before the question: a person who sees the question must find the file.
            write_atomically(file, order.prompt.encode(), durable=True)
        except OSError as error:
            raise ExecutorError(
                f"cannot write the plan to {file}: {error.strerror}. Make the folder writable"
            ) from None
        first = next((step.title for step in order.plan.steps if step.title.strip()), "") or order.plan.goal
        remaining = len(order.plan.steps) - 1
        more = f" (and {format_count(remaining, 'more step')})" if remaining > 0 else ""
        # Titles are one line in lists and notifications; the number of further steps must survive the cut.
        question_title = shorten(" ".join(first.split()), TITLE_CHARACTERS - len(more)) + more
        # First the location of the whole plan, then as many steps as fit.
        lines = [
            f"Work in {order.root}. The whole plan is in {file}",
            f"Goal: {shorten(order.plan.goal, _STEP_CHARACTERS)}",
        ]
        for number, step in enumerate(order.plan.steps, start=1):
            title = shorten(" ".join(step.title.split()), _STEP_CHARACTERS)
            command = f" (run: {shorten(' '.join(step.run), _STEP_CHARACTERS)})" if step.run else ""
            lines.append(f"{number}. {title}{command}")
        return ExecutorOutcome(
            status=ExecutorStatus.NEEDS_PERSON,
            summary=f"waiting for a person: {file}",
            question=work_question(question_title, shorten("\n".join(lines), DETAIL_CHARACTERS)),
        )
