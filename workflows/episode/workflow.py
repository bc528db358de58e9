"""The episode workflow: plan, deliver, verify, track and reflect until the checks pass.

This file contains the main loop and the messages that only an episode accepts. `workflows/run` contains the parts that
all runs share. `tightloop/episode` makes the decisions, and `activities/` does the work. Commands are recorded here and
carried out at the next safe point (`workflows/episode/safe_points.py`).
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError

from tightloop.episode import control, decisions, state_changes
from tightloop.episode.budget import TopUp, topped_up
from tightloop.episode.checkpoint import CheckpointRecord, MoveTarget, RestoreTarget, check_move
from tightloop.episode.control import Amendment, EpisodeInput
from tightloop.episode.decisions import (
    ADD,
    ALLOW,
    ASKED,
    CANCEL,
    END,
    WAIT,
    NextAction,
    is_ended_by_message,
    make_question,
)
from tightloop.episode.model import RIGHT_INPUT, EpisodeOutcome, EpisodeRequest, EpisodeResult, EpisodeStatus
from tightloop.episode.planning import PlanVerdict
from tightloop.errors import InvalidRequestError
from tightloop.run.commands import Remark, read_remark
from tightloop.run.outcome import headline
from tightloop.run.question import Answer, AnswerCommand, Question, QuestionKind
from workflows.episode.iteration import Delivery, Iteration, Proof
from workflows.episode.record import EpisodeRecord, EpisodeView
from workflows.episode.safe_points import EpisodeOver, SafePoints
from workflows.episode.workspace import EpisodeCopies, Workspace
from workflows.run.activities import NOTICE, ActivityRunner
from workflows.run.kernel import ContinueAsNew
from workflows.run.reporting import STATUS, Reporting
from workflows.run.workflow import Commands, RunWorkflow, is_other_build_wanted

_AFTER = {
    CANCEL: "the episode will end",
    END: "the running work will stop and the episode will pause",
    WAIT: "the episode will pause when the running work ends",
}


class EpisodeCommands(Commands):
    """Commands to an episode."""

    def __init__(self, record: EpisodeRecord, interrupt: Callable[[], None]) -> None:
        """Store the episode's record and `interrupt`, which stops the running activity."""
        self._record, self._interrupt = record, interrupt
        self._reported: tuple[int, str, str, str] | None = None

    def refuse_late(self) -> None:
        """Refuse messages to an episode that is closing."""
        if not self._record.is_running:
            raise InvalidRequestError(f"the episode is closing ({self._record.status}) and no longer accepts messages")

    def pause(self, remark: Remark) -> None:
        """Request a pause. No effect if a pause is already requested or a question is open."""
        record = self._record
        # An accepted restore or move ends the wait for an answer, but the person still wants the pause.
        is_asked = record.is_paused and not record.continues
        if is_asked and remark.text:
            record.log(
                "refused",
                f"pause ignored: {record.waiting[0].id} is already waiting for an answer. Reason given: {remark.text}",
            )
        elif record.core.pause is None and not is_asked and record.is_running:
            self._intervene("pause")
            text = remark.text or "paused by an operator"
            record.want_pause(make_question(QuestionKind.OPERATOR, text, by=remark.by))

    async def resume(self, note: Any) -> None:
        """Resume the episode.

        This chooses the default of each open question, withdraws a pause, or restores a checkpoint.
        """
        if (isinstance(note, str) and note.startswith("ckpt-")) or (isinstance(note, dict) and "checkpoint_id" in note):
            # A signal has no reply, so a wrong checkpoint can only be reported in the timeline.
            try:
                self.refuse_late()
                self.restore(self.read_restore(note))
            except InvalidRequestError as error:
                self._record.log("refused", error.message)
            return
        record, remark = self._record, read_remark(note)
        answered = record.answer(record.core.questions.defaults(remark.text, remark.by))
        if answered or remark.text or record.core.pause is not None:
            self._intervene("resume")
        for question, answer in answered:
            self._apply(question, answer)
        left = [question for question in record.waiting if question.blocks]
        if left:
            record.log(
                "refused",
                f"cannot resume: {left[0].id} needs a decision: {', '.join(left[0].names)}. "
                f"Send an answer, for example: {left[0].example}",
            )
        # The text was not used as part of an answer, so the planner gets it.
        if remark.text and (left or not answered):
            if state_changes.has_room_for(record.state, remark.text):
                record.note(remark.text)
            else:
                record.log(
                    "refused",
                    "resume: there is no room for another message to the planner, so this message was dropped: "
                    f"{remark.text}",
                )
        record.want_pause(None)

    def cancel(self, remark: Remark) -> None:
        """Stop the running activity and end the episode."""
        self._intervene("cancel")
        self._cancel(remark.text)

    def _cancel(self, reason: str) -> None:
        self._record.cancel(reason)
        if self._record.is_running:
            self._interrupt()

    # -- updates: they can be refused, and have a reply -------------------------------------------------

    def restore(self, target: RestoreTarget) -> str:
        """Stop the running activity and continue from a checkpoint in a new Temporal run."""
        # Set before the interrupt, whose failure is otherwise taken for one that needs a person.
        self._record.restore_wanted = target
        self._intervene("restore")
        self._interrupt()
        branch = self._record.state.branch + 1
        return f"restoring {target.checkpoint_id}. The episode will continue from there on checkpoint branch {branch}"

    def read_restore(self, target: Any) -> RestoreTarget:
        """Parse and check the checkpoint to restore.

        Raises:
            InvalidRequestError: the ID is unknown, or the episode is being cancelled. For an unknown ID, the
                message lists the known IDs.
        """
        if self._record.core.cancel is not None:
            raise InvalidRequestError(
                "the episode is being cancelled. Once the episode is closed, reopen it with: tightloop restore ID "
                "CHECKPOINT"
            )
        checkpoints = self._record.state.checkpoints
        return control.read_restore(
            target, checkpoints, newest=max((record.number for record in checkpoints), default=-1)
        )

    def move(self, target: MoveTarget) -> str:
        """Stop the running activity and continue on another host from the last checkpoint in the remote store."""
        self._record.move_wanted = target
        self._intervene("move")
        self._interrupt()
        return (
            f"moving to {target.to}. A new run will continue on the new host from the last checkpoint in the "
            "remote store"
        )

    def read_move(self, target: Any) -> MoveTarget:
        """Parse and check the host to move to.

        Raises:
            InvalidRequestError: the episode cannot move there. The message gives the reason.
        """
        record, move = self._record, control.read_move(target)
        if record.core.cancel is not None:
            raise InvalidRequestError("cannot move the episode, because it is being cancelled")
        check_move(move, home=record.request.queues.home, epoch=record.state.epoch, waits=record.is_paused)
        return move

    def respond(self, remark: Remark) -> str:
        """Queue a message for the planner.

        If the planner runs next, the message ends the wait. A message never chooses an option.
        """
        # Only messages of agents do not resume, and they are no intervention.
        if remark.resumes:
            self._intervene("respond")
        self._record.note(f"{remark.by}: {remark.text}", asks=remark.resumes)
        self._record.log("response", f"{remark.by}: {remark.text}")
        waiting, effect = self._record.waiting, control.message_effect(self._record.request.planner)
        if not self._record.is_paused:
            return effect
        if not remark.resumes:
            return f"{effect}. The episode stays paused"
        if not all(map(is_ended_by_message, waiting)):
            question = waiting[0]
            return f"{effect}. Question {question.id} still needs an answer: {', '.join(question.names)}"
        self._record.close_questions(*(question.id for question in waiting))
        return f"{effect}. The episode continues"

    def read_response(self, message: Any) -> Remark:
        """Parse a message to the planner.

        Raises:
            InvalidRequestError: the message is empty, there is no room for it, or the episode is being cancelled.
        """
        remark, state = control.read_response(message), self._record.state
        if self._record.core.cancel is not None:
            raise InvalidRequestError("the episode is being cancelled, so the planner will not read any more messages")
        if not remark.resumes and len(state.notes) >= state_changes.AGENT_NOTES_LIMIT:
            raise InvalidRequestError(
                f"{len(state.notes)} messages are already waiting for the planner, which reads them before the "
                "next plan. If your message is important, include it in the report"
            )
        if not state_changes.has_room_for(state, remark.text):
            raise InvalidRequestError(
                f"{len(state.notes)} messages are already waiting for the planner, and there is no room for "
                "another. The planner will read them before the next plan. Send yours again after that"
            )
        return remark

    async def answer(self, command: AnswerCommand) -> str:
        """Answer the question that the episode is waiting on, or a question about a running activity."""
        [(question, answer)] = matched = self._record.match(command)
        if not question.needs_person and answer.text:
            report = (self._record.state.iteration, answer.option, answer.text, answer.by)
            # An agent may send its report on a limit twice; the second copy must not apply to the next delivery.
            if report == self._reported:
                self._record.log("duplicate", f"{answer.by}: {answer.option} {answer.text}")
                return (
                    "the same report was already received and does not apply to the current delivery. If your "
                    "report is new, change its wording"
                )
            self._reported = report
        added = (question.kind, answer.option) == (QuestionKind.ALREADY_GREEN, ADD)
        amendment = control.with_check(self._record.request, answer) if added else None
        [(question, answer)] = self._record.answer(matched)
        if amendment is not None:
            self.amend(amendment)
        elif question.needs_person:
            self._intervene("answer")
        self._apply(question, answer)
        return f"the answer is {answer.option!r}, so {_AFTER.get(answer.option, 'the episode continues')}"

    def read_top_up(self, value: Any) -> TopUp:
        """Parse a budget increase."""
        return control.read_top_up(value)

    async def top_up(self, addition: TopUp) -> str:
        """Raise the budget limits. If they are now sufficient, the episode stops waiting."""
        record = self._record
        self._intervene("top_up")
        record.replace(record.state.evolve(budget=topped_up(record.state.budget, addition)))
        record.log("topped up", str(addition))
        still = decisions.guard_rails(record.state, record.now()).question
        if still is not None:
            return f"the budget was raised, but {still.title}"
        for question in record.find(QuestionKind.BUDGET):
            record.settle_question(question)
        return "the budget was raised"

    def read_amendment(self, value: Any) -> Amendment:
        """Parse and check a change to the request.

        Raises:
            InvalidRequestError: the changed request is invalid. The message names the first invalid field.
        """
        amendment = control.read_amendment(value)
        amendment.apply_to(self._record.request).check()
        return amendment

    def amend(self, change: Amendment) -> str:
        """Change the goal, the checks, the hidden scenarios, the executor or the planner.

        The change takes effect at the next step.
        """
        record = self._record
        self._intervene("amend")
        before, request = record.request, change.apply_to(record.request)
        record.amend(request)
        record.is_amended = True
        if (request.goal, request.definition_of_done) != (before.goal, before.definition_of_done):
            # The last check results belong to the old definition of done.
            record.replace(record.state.evolve(checked_tree=""))
            record.log("amended", f"{change.by} changed the goal or the definition of done")
            record.note("The goal or the definition of done has changed. Read both again.")
        if change.scenarios is not None and request.scenarios is not None:
            # The new scenarios may prove the same tree.
            record.replace(record.state.evolve(checked_tree="", refused_tree=""))
            record.log("amended", f"hidden scenarios: {request.scenarios.changes[-1]}")
            for question in record.find(QuestionKind.PROOF):
                record.settle_question(question)
        if change.no_drafts or request.goal != before.goal:
            self._withdraw_drafts(f"{change.by} {'withdrew the scenarios' if change.no_drafts else 'changed the goal'}")
        if (request.executor, request.planner) != (before.executor, before.planner):
            who = f"executor {request.executor.name}, planner {request.planner}"
            record.log("amended", f"{who} (by {change.by})")
        waiting = f". Question {record.waiting[0].id} still needs an answer" if record.waiting else ""
        return f"the change takes effect with the next step{waiting}"

    def _withdraw_drafts(self, reason: str) -> None:
        record, before = self._record, self._record.state.drafts
        record.apply(state_changes.without_drafts, reason)
        if record.state.drafts != before:
            record.replace(record.state.evolve(checked_tree=""))
            record.log("amended", f"drafted scenarios: {reason}")
            for question in record.find(QuestionKind.PROOF):
                record.settle_question(question)

    # -- effects of commands ----------------------------------------------------------------------------

    def _intervene(self, message: str) -> None:
        record = self._record
        record.replace(state_changes.with_intervention(record.state))
        record.meter.count("tightloop_interventions", message=message)

    def _apply(self, question: Question, answer: Answer) -> None:
        if question.kind is not QuestionKind.OPERATOR or answer.text:
            self._record.log(
                "answered",
                f"{answer.by} chose {answer.option} for {question.title!r}{answer.text and f': {answer.text}'}",
            )
        self._record.keep_answer(answer)
        if answer.option == CANCEL:
            self._cancel(answer.text)
        # An agent's report ends the activity that waits for it, and `end` the work that delays a pause.
        if not question.needs_person or (answer.option == END and self._record.core.pause is not None):
            self._interrupt()


ITERATION = SearchAttributeKey.for_int("TightloopIteration")


@workflow.defn
class EpisodeWorkflow(RunWorkflow):
    """Pursues one goal until there is an outcome. The workflow history is the checkpoint and replay log."""

    notice: ClassVar[timedelta] = NOTICE

    @workflow.init
    def __init__(self, request: EpisodeInput | None = None) -> None:
        """Restore the state of the previous Temporal run, because handlers may run before `run` starts."""
        episode_input = request or EpisodeInput(
            problem=f"the workflow input is missing. Example of a valid input: {RIGHT_INPUT}"
        )
        self._run = self._record = record = EpisodeRecord(episode_input, run_id=workflow.info().workflow_id)
        # Here and not in `run`: the seed of a reset run changes while its first task is being replayed.
        record.watch_resets()
        self._first_iteration = record.state.iteration
        self._runner = ActivityRunner(record, notice=self.notice)
        self._commands = self._orders = EpisodeCommands(record, self._runner.interrupt)
        self._view = EpisodeView(record, self._runner)
        self._reporting = Reporting(record, self._view)
        self._points = SafePoints(record, self._runner, self._reporting)
        self._copies = EpisodeCopies(record, self._points)
        self._workspace = Workspace(record, self._points, self._runner, self._view, self._reporting, self._copies)
        self._proof = Proof(record, self._points)
        self._iteration = Iteration(record, self._points, self._proof)
        self._delivery = Delivery(record, self._points)

    @workflow.run
    async def run(self, request: EpisodeInput | None = None) -> EpisodeResult:
        """Pursue the goal until the checks pass, a limit is reached or a person ends the episode."""
        del request  # `__init__` has read it
        result: EpisodeResult = await self._live()
        return result

    # -- main loop ----------------------------------------------------------------------------------

    def _check_request(self) -> None:
        self._record.request.check()

    async def _carry_out(self) -> EpisodeResult:
        self._record.start_work()
        try:
            await self._begin()
            while True:
                await self._iterate()
                await self._leave_when_long()
        except EpisodeOver as end:
            return await self._end(end.outcome, end.reason)

    async def _end_cancelled_run(self) -> EpisodeResult:
        return await self._end(EpisodeOutcome.CANCELLED, "cancelled in Temporal")

    async def _begin(self) -> None:
        """Open the workspace of a new episode, or restore the checkpoint that the run starts from."""
        target = self._record.state.restore or self._record.given.restore
        if self._record.state.request is None:
            await self._workspace.open()
            await self._workspace.find_checks()
        self._reporting.show()
        if (move := self._record.state.move) is not None:
            await self._workspace.take_over(move)
        elif target is not None:
            await self._workspace.restore(target)
        self._copies.keep_up()

    async def _iterate(self) -> None:
        """Run one iteration and act on the resulting decision."""
        record, steps = self._record, self._iteration
        await steps.check_unseen_tree()
        await steps.reflect()
        await steps.wait_for_budget()
        before = record.state
        record.apply(state_changes.begin_iteration)
        # Sets the status too, because a workflow started with a plain Temporal client has none.
        workflow.upsert_search_attributes([ITERATION.value_set(record.state.iteration), STATUS.value_set("running")])
        plan = await steps.plan()
        report = await self._delivery.deliver(plan) if plan.verdict is PlanVerdict.PLANNED else None
        verification = await steps.verify() if plan.verdict is not PlanVerdict.MALFORMED else None
        await steps.track(before, report, verification)
        self._copies.keep_up()
        decision = decisions.after_tracking(record.state, record.request)
        option = await self._points.apply_decision(decision)
        # The findings hid what would have been decided without them, so decide once more.
        if option in (ALLOW, ASKED) and decisions.is_change_allowed(record.state):
            decision = decisions.after_tracking(record.state, record.request)
            await self._points.apply_decision(decision)
        if decision.action is NextAction.SUCCEED:
            await self._proof.prove_success()
        elif decision.action is NextAction.TELL:
            self._points.report(decision.tell)

    async def _end(self, outcome: EpisodeOutcome, reason: str) -> EpisodeResult:
        self._record.count_work()
        await self._close(outcome, reason)
        result = state_changes.result_of(self._record.state, outcome, reason)
        if outcome is EpisodeOutcome.FAILED:
            # A failed workflow has no result in Temporal, so it travels in the details of the failure.
            raise ApplicationError(reason, result, type="EpisodeFailed", non_retryable=True)
        return result

    async def _close(self, outcome: EpisodeOutcome, reason: str) -> None:
        qualifier = state_changes.qualifier_of(self._record.state, outcome)
        self._record.close(outcome.value.lower(), reason, qualifier)
        self._record.log("closed", headline(outcome.value, qualifier, reason))
        await self._workspace.close(outcome, reason)
        self._record.count_end(outcome)
        self._record.enter_closed_phase()
        self._reporting.close()
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _leave_when_long(self) -> None:
        self._points.raise_if_leaving()
        iterations = self._record.state.iteration - self._first_iteration
        # Nothing runs between iterations, so this is also the point to switch to another build of the workers.
        suggested = workflow.info().is_continue_as_new_suggested() or is_other_build_wanted()
        if decisions.may_continue_as_new(self._record.request, iterations_in_run=iterations, suggested=suggested):
            # The next run starts from the assumption that its newest checkpoint has been copied.
            await self._copies.complete()
            raise ContinueAsNew

    async def _leave(self) -> None:
        self._record.count_work()
        await self._reporting.settle()

    def _next_input(self) -> EpisodeInput:
        record = self._record
        if record.move_wanted is not None:
            record.move(record.move_wanted)
        # Temporal delivers a message to one run only, so accepted but unhandled requests go into the next input.
        state = record.state.evolve(
            restore=record.restore_wanted, amended=record.is_amended, runs=record.state.runs + 1
        )
        # The next run asks its own questions; answers to those of this run would have no waiter there.
        core = record.core.evolve(questions=record.core.questions.evolve(waiting=()))
        return EpisodeInput.of(record.request, state=state, core=core, heard=record.inbox.heard)

    # -- messages of an episode only --------------------------------------------------------------------

    @workflow.signal(description="Pause as soon as the running step has ended. Optional argument: the reason.")
    def pause(self, reason: Any = None, *more: Any) -> None:
        """Request a pause, and offer to stop the running activity."""
        super().pause(reason, *more)
        self._points.offer_to_end()

    @workflow.update(
        description='Send a message to the planner, for example "use the other parser". '
        "This does not count as an answer to a question."
    )
    async def respond(self, message: Any = None) -> str:
        """Queue a message for the planner. The message ends a pause that does not need a decision."""
        return self._orders.respond(self._take(self._orders.read_response, message))

    @respond.validator
    def _check_respond(self, message: Any = None) -> None:
        self._check(self._orders.read_response, message)

    @workflow.update(
        description='Change the goal, the definition of done, the executor or the planner: {"goal": "...", '
        '"definition_of_done": ["pytest -q"], "executor": {"name": "codex"}}'
    )
    async def amend_goal(self, amendment: Any = None) -> str:
        """Change the goal, the checks, the hidden scenarios, the executor or the planner.

        The change takes effect at the next step.
        """
        return self._orders.amend(self._take(self._orders.read_amendment, amendment))

    @amend_goal.validator
    def _check_amend(self, amendment: Any = None) -> None:
        self._check(self._orders.read_amendment, amendment)

    @workflow.update(
        description='Restore the state and files of a checkpoint: {"checkpoint_id": "ckpt-2", "reason": "why"}'
    )
    async def restore_checkpoint(self, target: Any = None) -> str:
        """Stop the running activity and continue from a checkpoint in a new Temporal run."""
        return self._orders.restore(self._take(self._orders.read_restore, target))

    @restore_checkpoint.validator
    def _check_restore(self, target: Any = None) -> None:
        self._check(self._orders.read_restore, target)

    @workflow.update(description='Continue the episode on another host: {"to": "tightloop-workspace-host-2-1a2b3c"}')
    async def move(self, target: Any = None) -> str:
        """Stop the running activity and continue on another host from the last checkpoint in the remote store."""
        return self._orders.move(self._take(self._orders.read_move, target))

    @move.validator
    def _check_move(self, target: Any = None) -> None:
        self._check(self._orders.read_move, target)

    @property
    def place(self) -> str:
        """Current iteration and phase, as shown by the replay tool."""
        return f"iteration {self._record.state.iteration}, {self._record.state.phase.value}"

    # -- queries ---------------------------------------------------------------------------------------

    @workflow.query(description="Current state of the episode, what it is waiting for and what it has spent")
    def status(self) -> EpisodeStatus:
        """Return a snapshot of the episode."""
        return self._view.status()

    @workflow.query(description="Checkpoints, newest last, including discarded ones")
    def checkpoints(self) -> list[CheckpointRecord]:
        """Return the checkpoints known to this run."""
        return list(self._record.state.checkpoints)

    @workflow.query(description="The request, including amendments")
    def request(self) -> EpisodeRequest:
        """Return the request, including its amendments."""
        return self._record.request
