"""What a project's plan shows in Temporal, and what of it is recorded in the ledger."""

from temporalio import workflow

from tightloop.episode.model import REFUSED
from tightloop.episode.timeline import TimelineLine
from tightloop.ledger.model import TrailEvent, WorkflowSnapshot
from tightloop.loop.display import loop_details
from tightloop.loop.states import CLOSED, word_of
from tightloop.value import shorten
from workflows.loop.context import LoopContext
from workflows.shared.recording import GOAL_CHARACTERS, Recording, Seen
from workflows.shared.reporter import PAUSE_KIND, STATUS


class LoopReporting:
    """Shows the plan to people, and has it recorded beside the work."""

    def __init__(self, context: LoopContext) -> None:
        """Begin with nothing shown and nothing recorded."""
        self._context = context
        self._shown = ""
        self._lines: list[TrailEvent] = []
        self._count = 0
        queues = context.request.queues
        self._recording = Recording(
            lambda: queues.home or queues.workspace, context.scope, self._seen, self._row, self._take_lines
        )
        context.on_log(self._add)

    def show(self) -> None:
        """Show where the plan stands; the search attributes change only with its status."""
        status = self._context.snapshot()
        word = word_of(status)
        if word != self._shown:
            self._shown = word
            kind = next((question.kind.value for question in status.questions), "")
            shown = PAUSE_KIND.value_set(kind) if kind else PAUSE_KIND.value_unset()
            workflow.upsert_search_attributes([STATUS.value_set(word), shown])
        workflow.set_current_details(loop_details(status))
        self._recording.show()

    def refuse(self) -> None:
        """Show that nothing began; the id stays free."""
        workflow.upsert_search_attributes([STATUS.value_set(REFUSED)])

    async def settle(self) -> None:
        """Wait a little for what the ledger is being told."""
        await self._recording.settle()

    def _add(self, line: TimelineLine) -> None:
        self._count += 1
        key = f"{workflow.info().run_id}/{self._count}"
        plan_id = self._context.plan_id
        self._lines.append(TrailEvent(episode_id=plan_id, kind=line.kind, text=line.text, key=key, at=line.at))
        self._recording.show()

    def _take_lines(self) -> tuple[TrailEvent, ...]:
        taken, self._lines = tuple(self._lines), []
        return taken

    def _seen(self) -> Seen:
        status = self._context.snapshot()
        gates = status.gate_result.checks if status.gate_result else ()
        return (
            word_of(status),
            str(self._count),
            *(f"{task.task_id} {task.state} {task.run_id}" for task in status.tasks),
            *(f"{check.name} {check.passed} {check.running}" for check in gates),
            *(question.id for question in status.questions),
        )

    def _row(self) -> WorkflowSnapshot:
        status, info = self._context.snapshot(), workflow.info()
        return WorkflowSnapshot(
            id=status.plan_id,
            kind="loop",
            status=word_of(status),
            goal=shorten(status.goal, GOAL_CHARACTERS),
            phase=status.status.value.lower(),
            checks=f"{sum(task.state.has_ended for task in status.tasks)}/{len(status.tasks)}" if status.tasks else "",
            at=workflow.now(),
            started=info.workflow_start_time,
            closed=workflow.now() if status.status in CLOSED else None,
            questions=status.questions,
            details=status.model_dump(mode="json"),
        )
