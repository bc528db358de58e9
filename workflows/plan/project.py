"""Workflow of a project's plan. It has its own fixed steps and is shown and controlled through the loop's commands."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.plan.activity import PlanActivities
from activities.plan.requests import LoadPlanRequest, RevisedPlan
from tightloop.errors import InvalidRequestError, WorkspaceBusyError
from tightloop.ledger.model import TrailEvent, WorkflowSnapshot
from tightloop.loop import projection
from tightloop.loop.model import (
    CLOSED,
    CONFLICT,
    RIGHT_LOOP_INPUT,
    LoopRequest,
    LoopResult,
    LoopState,
    LoopStatus,
    LoopTask,
    TaskState,
    check_possible,
)
from tightloop.loop.plan import (
    COMMANDS,
    DECOMPOSE,
    DISPATCH,
    GATE_STEP,
    VERIFY,
    ProjectFacts,
    ProjectInput,
    ProjectNote,
)
from tightloop.loop.projection import event_name, explain_unverified, loop_details, loop_status
from tightloop.plan.child import StepFailure, StepResult, StepStatus, child_id
from tightloop.plan.engine.graph import Graph
from tightloop.run.core import Evidence, TimelineLine, with_line
from tightloop.run.outcome import Facts, label
from tightloop.run.question import Answer, Question
from tightloop.value import format_count, shorten
from workflows.plan.commands import PlanCommands
from workflows.plan.context import PlanContext, PlanEnd
from workflows.plan.reporting import PlanReporting, PlanView
from workflows.plan.workflow import GraphWorkflow
from workflows.run.activities import CLOSE_TIMEOUT, OPEN_TIMEOUT, ActivityFailedError
from workflows.run.kernel import Meter, refusals
from workflows.run.reporting import GOAL_CHARACTERS, StatusKey


class ProjectContext(PlanContext):
    """The state of a run of a project's plan. The attributes are only changed through methods.

    Attributes:
        asked: the request.
        facts: state other than the plan and the status of its steps.
        logged: number of timeline entries in this Temporal run.
    """

    kind = "loop"

    def __init__(
        self,
        run_input: ProjectInput,
        *,
        run_id: str,
        now: Callable[[], datetime] = workflow.now,
        meter: Meter | None = None,
    ) -> None:
        self.asked = LoopRequest() if run_input.problem else LoopRequest.of(run_input).starting_in_folder()
        self.facts = run_input.facts or ProjectFacts(created_at=now(), updated_at=now())
        self._pending_events: list[TrailEvent] = []
        self.logged = 0
        super().__init__(run_input.plan, run_id=run_id, now=now, meter=meter)

    @property
    def tasks(self) -> tuple[LoopTask, ...]:
        """The plan's tasks so far."""
        return self.facts.tasks

    @property
    def final_tree(self) -> str:
        """The tree expected at the end. See `PlanContext`.

        Empty after the workspace has been released, because the files may then be changed by others.
        """
        return "" if self.facts.has_left else super().final_tree

    def open(self, graph: Graph, *, has_planner: bool) -> None:
        """Load the graph of the current revision. A planner never changes a project's plan."""
        del has_planner
        super().open(graph, has_planner=False)

    def revises_itself(self, step: str, failure: StepFailure | None = None) -> bool:
        """Return whether the step produced tasks, or failed with a merge conflict that becomes a task."""
        return step == DECOMPOSE if failure is None else failure.mode == CONFLICT

    def revise(self, graph: Graph, revised: RevisedPlan, *, by_person: bool, of_itself: bool = False) -> str:
        """Switch to a revised graph and add its tasks."""
        bounds = super().revise(graph, revised, by_person=by_person, of_itself=of_itself)
        self.facts = self.facts.evolve(tasks=(*self.facts.tasks, *revised.tasks))
        for task in revised.tasks:
            if task.conflict_of:
                detail = f"{task.conflict_of} could not be merged, so {task.task_id} will resolve the conflict"
                self.log("conflict", detail, task.task_id)
        return bounds

    def dispatch(self, parallel: int) -> None:
        """Record that a person dispatched the tasks. At most `parallel` tasks run at a time."""
        self.facts = self.facts.evolve(parallel=parallel, executed_at=self.now())
        self.request = self.request.evolve(max_parallel=parallel)

    def verify(self) -> None:
        """Record that a person requested the gates."""
        self.facts = self.facts.evolve(verify_asked_at=self.now())

    def leave(self) -> None:
        """Record that the workspace was released."""
        self.facts = self.facts.evolve(has_left=True)

    def enter(self, tree: str) -> None:
        """Record the tree that was found when the workspace was claimed again."""
        self.facts = self.facts.evolve(has_left=False)
        if tree != self.progress.tree:
            self.log("workspace", "files that were edited while the plan was waiting were kept")
            self.set_tree(tree)
        if self.facts.executed_at is None:
            self.progress = self.progress.evolve(base_tree=tree)

    def keep_edits(self, keep: bool = True) -> None:
        """Record whether edits made by people still have to be kept. See `PlanContext`.

        Edits in a released workspace are kept when the workspace is claimed again.
        """
        super().keep_edits(keep and not self.facts.has_left)

    def expect_own_leftovers(self, expected: bool = True) -> None:
        """Record whether the files may be leftovers. See `PlanContext`.

        Files in a released workspace are never leftovers.
        """
        super().expect_own_leftovers(expected and not self.facts.has_left)

    def count_attempt(self, step: str = "") -> None:
        """Count an attempt, and log that a task or a gate started."""
        super().count_attempt(step)
        if any(task.task_id == step for task in self.facts.tasks):
            number = self.schedule.find(step)
            self.log("started", child_id(self.id, step, self.schedule.attempt(number or 0)), step)
        elif step.startswith(GATE_STEP):
            self.log("started", step=step)

    @property
    def outcome_facts(self) -> Facts:
        """Facts that decide whether a verified plan is a plain success.

        The gates replace a definition of done. The tasks' episodes show whether a check failed before it passed.
        """
        tasks, qualifiers = [task.task_id for task in self.facts.tasks], self.progress.qualifiers
        evidence = self.progress.evidence or Evidence()
        return Facts(
            has_checks=bool(self.facts.gate_names),
            worked=self.progress.worked,
            files_changed=0 if self._is_unchanged else evidence.files_changed,
            unproven=[name for name in tasks if name in qualifiers],
            asked=[approval.sentence for approval in self.progress.approvals if approval.asked],
            scenarios=evidence.scenarios,
            accepted_by=evidence.accepted_by,
            finding=evidence.finding,
        )

    @property
    def files_changed(self) -> int | None:
        """Number of changed files; see `PlanContext`.

        Without hidden scenarios, the number is only known if nothing changed.
        """
        return 0 if self._is_unchanged and not self.is_running else super().files_changed

    @property
    def _is_unchanged(self) -> bool:
        return self.progress.tree == self.progress.base_tree

    def take_result(self, step: str, result: StepResult) -> None:
        """Record the usage and the findings of an attempt. Also record when `dispatch` or `verify` is possible."""
        super().take_result(step, result)
        if result.note is not None:
            self.facts = self.facts.with_note(step, ProjectNote.model_validate(result.note))
        if result.status is not StepStatus.WAITING or step not in COMMANDS:
            return
        if step == DISPATCH:
            self.facts = self.facts.evolve(planned_at=self.facts.planned_at or self.now())
            return
        self.facts = self.facts.evolve(completed_at=self.facts.completed_at or self.now())
        for task in self.facts.tasks:
            number = self.schedule.find(task.task_id)
            if number is not None and self.schedule.status(number) is StepStatus.BLOCKED:
                self.log("failed", "a task that this task depends on did not complete", task.task_id)

    def give_up(self, waiting: Iterable[Question]) -> PlanEnd:
        """Cancel the plan because no command was received in time."""
        command = next((question.command for question in waiting if question.command), "resume")
        reason = f"no `{command}` command was received within {self.request.pause_timeout}"
        # A draft that nobody dispatches has not failed, so it ends as cancelled.
        self.cancel(reason)
        return PlanEnd(reason)

    def close(self, status: str, reason: str, qualifier: str = "") -> None:
        """Record how the plan ended."""
        super().close(status, reason, qualifier)
        if self.facts.verify_asked_at is not None:
            self.facts = self.facts.evolve(verified_at=self.now())

    def log(self, kind: str, text: str = "", step: str = "", *, characters: int = 0) -> None:
        """Append a loop event to the timeline and to the pending events."""
        name = event_name(kind, step, text, self.facts)
        if not name:
            return
        line_text = self.cut(self._entry_text(name, step, text), characters or self.line_characters)
        line = TimelineLine(at=self.now(), kind=name, step=self._display_name(step), text=line_text)
        self.core = with_line(self.core, line, lines=self.lines_kept)
        line = self.core.timeline[-1]
        self.timeline.add(line)
        self.facts = self.facts.evolve(updated_at=line.at)
        self.logged += 1
        # The run id is part of the key, because a reset run counts from the same number again.
        key = f"{workflow.info().run_id}/{self.logged}"
        self._pending_events.append(TrailEvent(episode_id=self.id, kind=name, text=line.text, key=key, at=line.at))

    def take_events(self) -> tuple[TrailEvent, ...]:
        """Return the pending timeline events and clear the list. Each event is recorded once."""
        events, self._pending_events = tuple(self._pending_events), []
        return events

    def _entry_text(self, event: str, step: str, text: str) -> str:
        """Return the text of a timeline entry. Some events describe the plan and not a step."""
        facts, tasks = self.facts, self.facts.tasks
        match event:
            case "plan_dispatched":
                return f"{format_count(len(tasks), 'task')}, {facts.parallel} at a time"
            case "plan_completed":
                numbers = [self.schedule.find(task.task_id) for task in tasks]
                good = (StepStatus.COMPLETED, StepStatus.RECOVERED)
                completed_tasks = sum(number is not None and self.schedule.status(number) in good for number in numbers)
                return f"{completed_tasks} of {format_count(len(tasks), 'task')} complete"
            case "plan_verified":
                return f"{format_count(len(facts.gate_names or ()), 'gate')} passed"
            case "plan_failed" | "plan_cancelled" | "task_error":
                # The entry's name already states the outcome or the failure class.
                return text.partition(": ")[2] or text
            case "gate_failed" if step in facts.gates:
                return facts.gates[step][0].message
        return text

    def _display_name(self, step: str) -> str:
        """Return the display name of a step. A gate is shown by its name, not by its number."""
        number = step.removeprefix(GATE_STEP)
        names = self.facts.gate_names or ()
        return names[int(number) - 1] if step != number and number.isdigit() and int(number) <= len(names) else step


class ProjectView(PlanView):
    """Views that present a project's plan as a loop."""

    _context: ProjectContext

    def loop_status(self) -> LoopStatus:
        """Return the loop's status."""
        context, facts = self._context, self._context.facts
        names = [task.task_id for task in facts.tasks]
        names += [f"{GATE_STEP}{number}" for number in range(1, len(facts.gate_names or ()) + 1)]
        return loop_status(self.status(), context.asked, facts, {name: self.line(name) for name in names})

    def row(self) -> WorkflowSnapshot:
        """Return the ledger row of this run."""
        status = self.loop_status()
        complete = sum(task.state is TaskState.COMPLETE for task in status.tasks)
        row = super().row()
        return row.evolve(
            status=status.list_status,
            goal=shorten(status.goal, GOAL_CHARACTERS),
            phase=status.status.value.lower(),
            checks=f"{complete}/{len(status.tasks)}" if status.tasks else "",
            started=workflow.info().workflow_start_time,
            closed=workflow.now() if status.status in CLOSED else None,
            questions=status.questions,
            details=status.model_dump(mode="json"),
        )

    def take_events(self) -> tuple[TrailEvent, ...]:
        """Return the pending timeline events and clear the list."""
        return self._context.take_events()

    def details(self) -> str:
        """Return the current details as Markdown."""
        return loop_details(self.loop_status())


class ProjectReporting(PlanReporting):
    """Publishes the state of a project's plan."""

    _context: ProjectContext
    _view: ProjectView
    _last_word = ""

    def show(self, *, at_once: bool = True) -> None:
        """Publish the state. A new status is published immediately."""
        status_word = self._word
        super().show(at_once=at_once or status_word != self._last_word)
        self._last_word = status_word

    async def settle(self) -> None:
        """Record the last timeline events. This takes at most a few seconds."""
        self._recording.show()
        await super().settle()

    async def close_unopened_plan(self) -> None:
        """Publish and record a plan that failed before it was opened."""
        self.close()
        await self.settle()

    @property
    def _word(self) -> str:
        return label(self._view.loop_status().list_status, self._context.qualifier)

    def _visible_state(self) -> StatusKey:
        status = self._view.loop_status()
        gates = status.gate_result.checks if status.gate_result is not None else ()
        return (
            status.list_status,
            str(self._context.logged),
            *(f"{task.task_id} {task.state} {task.run_id}" for task in status.tasks),
            *(f"{check.name} {check.passed} {check.running}" for check in gates),
            *(question.id for question in status.questions),
        )


class ProjectCommands(PlanCommands):
    """Commands for a project's plan."""

    _context: ProjectContext
    _view: ProjectView

    def check_command(self, command: str) -> None:
        """Raise an error if the state does not allow a command.

        Raises:
            InvalidRequestError: the command is not allowed. The message names the state and the possible
                commands.
        """
        check_possible(self._view.loop_status(), command)
        if self._context.core.cancel is not None:
            raise InvalidRequestError(f"cannot {command}: the plan is being cancelled")

    def dispatch(self, command: projection.DispatchCommand) -> str:
        """Start the tasks."""
        context = self._context
        parallel = projection.resolve_parallel(command, context.asked.parallel)
        context.dispatch(parallel)
        self._let_go_on(DISPATCH, command.by)
        return f"{format_count(len(context.tasks), 'task')} dispatched, {parallel} at a time"

    def verify(self, command: projection.VerifyCommand) -> str:
        """Run the gates."""
        self._context.verify()
        self._let_go_on(VERIFY, command.by)
        return "the gates are running"

    def cancel_now(self, command: projection.CancelCommand) -> str:
        """Stop the running steps and end the plan."""
        self._cancel(command.reason, command.by)
        return "the plan is being cancelled"

    def _let_go_on(self, step: str, by: str) -> None:
        context, number = self._context, self._context.schedule.find(step)
        assert number is not None
        question = next(question for question in context.waiting if question.command == step)
        context.settle_question(question)
        answer = Answer(question=question.id, option=step, by=by, at=context.now())
        context.progress = context.progress.note_answers(step, (answer,))
        context.log("answered", f"by {by}", step)
        context.schedule.resume(number)
        context.wake()
        self._reporting.show()

    def _cancel(self, reason: str, by: str) -> None:
        full_reason = f"{reason or 'cancelled'} (by {by})"
        self._context.cancel(full_reason)
        self._context.log("cancelled", full_reason)


@workflow.defn(name="LoopWorkflow")
class ProjectWorkflow(GraphWorkflow):
    """One of a project's plans, from inspection to verification."""

    view_type, reporting_type, commands_type = ProjectView, ProjectReporting, ProjectCommands
    _context: ProjectContext
    _view: ProjectView
    _steps: ProjectReporting
    _orders: ProjectCommands

    @workflow.init
    def __init__(self, request: ProjectInput | None = None) -> None:
        """Start as a draft without tasks, or restore the state of the previous Temporal run."""
        project_input = request or ProjectInput(
            problem=f"the workflow input is missing. Example of a valid input: {RIGHT_LOOP_INPUT}"
        )
        self._set_up(ProjectContext(project_input, run_id=workflow.info().workflow_id))
        self._claiming = asyncio.Lock()

    @workflow.run
    async def run(self, request: ProjectInput | None = None) -> LoopResult:
        """Inspect the project and plan the tasks, then wait for a person to dispatch and verify."""
        del request  # `__init__` has read it
        try:
            await self._live()
        except ApplicationError as error:
            if error.type == "PlanNotOpened":
                await self._steps.close_unopened_plan()
            elif error.type != "PlanFailed":
                raise
            result = self._result()
            raise ApplicationError(result.reason, result, type="LoopFailed", non_retryable=True) from None
        return self._result()

    # -- messages of a project's plan only --------------------------------------------------------------

    @workflow.update(description='Start the tasks: no argument, or {"parallel": 4, "by": "ada"}')
    async def dispatch(self, value: Any = None) -> str:
        """Start a draft's tasks."""
        # Taken before the wait for the workspace, so that a copy of the message is refused meanwhile.
        command = self._take(self._read_dispatch, value)
        await self._claim("dispatch")
        return self._orders.dispatch(command)

    @dispatch.validator
    def _check_dispatch(self, value: Any = None) -> None:
        self._check(self._read_dispatch, value)

    @workflow.update(description='Run the gates. Takes no argument, or {"by": "ada"}')
    async def verify(self, value: Any = None) -> str:
        """Run the gates of a plan whose tasks have finished."""
        command = self._take(self._read_verify, value)
        await self._claim("verify")
        return self._orders.verify(command)

    @verify.validator
    def _check_verify(self, value: Any = None) -> None:
        self._check(self._read_verify, value)

    @workflow.update(name="cancel", description='Cancel the plan permanently: {"reason": "why", "by": "ada"}')
    def cancel_now(self, value: Any = None) -> str:
        """Stop the running steps and end the plan."""
        return self._orders.cancel_now(self._take(self._read_cancel, value))

    @cancel_now.validator
    def _check_cancel(self, value: Any = None) -> None:
        self._check(self._read_cancel, value)

    @workflow.query(description="Current state of the plan, with its tasks and gates")
    def status(self) -> LoopStatus:
        """Return a snapshot of the loop."""
        return self._view.loop_status()

    @workflow.query(description="The request")
    def request(self) -> LoopRequest:
        return self._context.asked

    @property
    def place(self) -> str:
        """The plan's state, as shown by the replay tool."""
        return f"the plan is {self._context.status}"

    def _read_dispatch(self, value: Any) -> projection.DispatchCommand:
        self._orders.check_command("dispatch")
        return projection.read_dispatch(value)

    def _read_verify(self, value: Any) -> projection.VerifyCommand:
        self._orders.check_command("verify")
        return projection.read_verify(value)

    def _read_cancel(self, value: Any) -> projection.CancelCommand:
        self._orders.check_command("cancel")
        return projection.read_cancel(value)

    # -- hooks of the base class ------------------------------------------------------------------------

    def _check_request(self) -> None:
        if self._context.is_first_run:
            self._context.asked.check()

    def _next_input(self) -> ProjectInput:
        context = self._context
        context.save()
        return ProjectInput.of(
            context.asked,
            queues=context.request.queues,
            progress=context.progress,
            facts=context.facts,
            core=context.core,
            heard=context.inbox.heard,
        )

    async def _is_done(self) -> bool:
        """Return whether the plan is done. See `GraphWorkflow`.

        A plan is only verified if all tasks are complete and all gates have passed.
        """
        if not await super()._is_done():
            return False
        status = self._view.loop_status()
        if problem := explain_unverified(status.tasks, status.gate_result):
            raise PlanEnd(problem)
        return True

    async def _before_waiting(self) -> None:
        """Release the workspace if the plan is only waiting for `dispatch` or `verify`."""
        context = self._context
        # A command is claiming the workspace just now; the main loop must not wait for that.
        if self._claiming.locked():
            return
        async with self._claiming:
            waits = any(question.command for question in context.waiting)
            if not waits or context.facts.has_left or self._dispatch.is_busy:
                return
            # Set before the activity: from now on the files on disk are not read.
            context.leave()
            try:
                await self._waiting.run_once(
                    PlanActivities.leave_workspace,
                    LoadPlanRequest(scope=context.scope),
                    context.on_host("release the workspace", CLOSE_TIMEOUT),
                )
            except ActivityFailedError as failure:
                context.log("workspace", f"the workspace could not be released: {failure.reason}")

    async def _claim(self, command: str) -> None:
        """Claim the workspace for a command. If this fails, the plan does not change.

        Raises:
            ApplicationError: the workspace is in use, or the state no longer allows the command.
        """
        context = self._context
        async with self._claiming:
            if context.facts.has_left:
                options = context.on_host("claim the workspace", OPEN_TIMEOUT)
                try:
                    request = LoadPlanRequest(scope=context.scope)
                    tree = await self._activities.run(PlanActivities.enter_workspace, request, options)
                except ActivityFailedError as failure:
                    kind = InvalidRequestError if failure.no_worker else WorkspaceBusyError
                    message = f"{command}: {failure.reason}. The plan was not changed. Send the command again later"
                    raise ApplicationError(message, type=kind.__name__, non_retryable=True) from None
                context.enter(tree)
        # If the state has changed meanwhile, the main loop releases the workspace again.
        context.wake()
        with refusals():
            self._orders.check_command(command)

    def _result(self) -> LoopResult:
        status = self._view.loop_status()
        proof = self._context.progress.proof if status.status is LoopState.VERIFIED else None
        return LoopResult.of(status, outcome=status.status, proof=proof)
