"""Commands to a plan, notes from its child workflows, and its waits."""

import asyncio
import difflib
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow

from activities.workspace.activity import WorkspaceActivities
from activities.workspace.port import AdoptRequest
from tightloop.episode.decisions import ACCEPT, ASKED, read_drift_answer
from tightloop.errors import InvalidRequestError
from tightloop.plan import control
from tightloop.plan.child import StepStatus
from tightloop.plan.progress import PlanProgress
from tightloop.run.commands import Remark, read_remark
from tightloop.run.question import Answer, AnswerCommand, Question, QuestionKind, read_child_note
from tightloop.safety.approval import with_approval
from tightloop.value import format_count
from workflows.plan.context import ENDING, PlanContext, PlanEnd
from workflows.plan.dispatch import Dispatch
from workflows.plan.recovery import Revisions
from workflows.plan.reporting import (
    APPROVALS,
    CANCEL,
    FAIL,
    NEED_NO_GRAPH,
    REPLAN,
    RETRY,
    SKIP,
    THE_PLAN,
    PlanQuestions,
    PlanReporting,
    PlanView,
)
from workflows.run.activities import RESTORE_TIMEOUT, ActivityFailedError, ActivityOptions, ActivityRunner
from workflows.run.reporting import Reporting
from workflows.run.workflow import Commands

REPLANNED = (QuestionKind.FAILED_STEP, QuestionKind.UNMET, QuestionKind.PROOF)
"""Kinds of questions that offer the option to replan."""


class PlanCommands(Commands):
    """Commands that can be sent to a plan."""

    def __init__(
        self, context: PlanContext, questions: PlanQuestions, revisions: Revisions, view: PlanView, reporting: Reporting
    ) -> None:
        self._context, self._questions, self._revisions = context, questions, revisions
        self._view, self._reporting = view, reporting

    def refuse_late(self) -> None:
        """Refuse messages to a plan that is ending."""
        if not self._context.is_running:
            raise InvalidRequestError(f"the plan is closing ({self._context.status}) and no longer accepts messages")
        if self._context.is_ending:
            raise InvalidRequestError(ENDING)

    # -- signals: no caller waits for a reply, so errors go to the timeline ------------------------------

    def pause(self, remark: Remark) -> None:
        """Stop starting new steps. Repeated requests have no effect."""
        if self._context.is_running:
            self._questions.pause(QuestionKind.OPERATOR, remark.text or "paused by an operator", by=remark.by)

    async def resume(self, note: Any) -> None:
        """Choose the default options of the open questions. Log the questions that need a decision."""
        remark = read_remark(note)
        defaults = [question for question in self._context.waiting if question.default]
        # These must not wait for the graph: the question may be why it could not be loaded.
        self._choose_defaults([question for question in defaults if question.kind in NEED_NO_GRAPH], remark)
        rest = [question for question in defaults if question.kind not in NEED_NO_GRAPH]
        if rest:
            await self._until_open()
            self._choose_defaults(rest, remark)
        for question in self._context.waiting:
            if question.blocks == THE_PLAN or question.kind is QuestionKind.FAILED_STEP:
                names = ", ".join(question.names)
                self._context.log("waits", f"{question.kind.value} needs a decision: {names}", question.step)

    def cancel(self, remark: Remark) -> None:
        """Stop the running steps and end the plan."""
        if self._context.is_running and self._context.core.cancel is None:
            self._cancel(remark.text, remark.by)

    def child_waits(self, note: Any) -> None:
        """Record a child workflow's open questions, so that people see them."""
        try:
            if self._view.record_child_waits(read_child_note(note)):
                self._reporting.show()
        except InvalidRequestError as error:
            self._context.log("refused", error.message)
            self._context.wake()  # so that a flood of invalid signals still lets the run continue as new

    # -- updates ------------------------------------------------------------------------------------

    async def answer(self, command: AnswerCommand) -> str:
        """Apply a person's answer to the plan."""
        matched = self._context.match(command)
        if any(question.kind not in NEED_NO_GRAPH for question, _ in matched):
            await self._until_open()
            # Another answer may have arrived meanwhile.
            self.refuse_late()
            matched = self._context.match(command)
        first, answer = matched[0]
        if answer.option == REPLAN.name and first.kind in REPLANNED:
            # The questions stay open until there is a revision; if none is made, a person has to choose again.
            return await self._replan([question for question, _ in matched], answer)
        return "; ".join([self._apply(*answered) for answered in self._context.answer(matched)])

    def read_replan(self, value: Any) -> control.ReplanCommand:
        """Parse the argument of `replan`.

        Raises:
            InvalidRequestError: the plan is not open yet, or the argument is invalid.
        """
        self._context.need_schedule()
        return control.read_replan(value)

    async def replan(self, command: control.ReplanCommand) -> str:
        """Replace the text of the plan. If none is given, a planner writes it."""
        return await self._revisions.revise(command.source, command.rationale, command.by)

    def read_step(self, value: Any) -> control.StepCommand:
        """Parse the argument of `run_step`: the step to start.

        Raises:
            InvalidRequestError: the step cannot be started. The message gives the reason.
        """
        command, schedule = control.read_step_word(value), self._context.need_schedule()
        name = command.step
        number = schedule.find(name)
        if number is None:
            suggestions = difflib.get_close_matches(name, [schedule.name(index) for index in range(len(schedule))], n=3)
            raise InvalidRequestError(
                f"run_step: the plan has no step {name!r}."
                + (f" Did you mean {', '.join(suggestions)}?" if suggestions else "")
            )
        status = schedule.status(number)
        if status is StepStatus.FAILED or (status is StepStatus.PENDING and schedule.is_ready(number)):
            return command
        why = {
            StepStatus.PENDING: "is waiting for other steps or for its next attempt",
            StepStatus.WAITING: "is waiting for approval",
            StepStatus.BLOCKED: "is blocked by a failed step that needs an answer",
        }
        raise InvalidRequestError(
            f"run_step: step {name} {why.get(status, f'is {status.value}')}. Only ready and failed steps can be started"
        )

    def run_step(self, command: control.StepCommand) -> str:
        """Start a ready step, or retry a failed one, even if the plan is paused."""
        context, name, schedule = self._context, command.step, self._context.schedule
        number = schedule.find(name)
        if number is not None and schedule.status(number) is StepStatus.FAILED:
            context.reset_failed_step(name, number)
            self._questions.close(
                [question for question in context.find(QuestionKind.FAILED_STEP) if question.step == name]
            )
        # Part of the progress, so that the request survives continue-as-new.
        context.progress = context.progress.evolve(wanted=(*context.progress.wanted, name))
        context.log("requested", f"by {command.by}", name)
        context.wake()
        return f"step {name} will start as soon as no other step is using the working tree"

    def read_top_up(self, value: Any) -> control.PlanTopUp:
        """Parse an increase in the plan's limits."""
        return control.read_plan_top_up(value)

    async def top_up(self, addition: control.PlanTopUp) -> str:
        """Raise the plan's limits."""
        # The plan's own budget is unknown until the plan is open.
        await self._until_open()
        self.refuse_late()
        context = self._context
        progress = context.progress
        until = progress.until + timedelta(minutes=addition.wall_minutes) if progress.until else None
        context.progress = progress.evolve(budget=addition.apply_to(progress.budget), until=until)
        context.log("topped up", str(addition))
        still = context.find_breach()
        if still is None:
            self._questions.close(context.find(QuestionKind.BUDGET))
        context.wake()
        return "the budget was raised" + (f", but {still}" if still else "")

    # -- effects of answers -------------------------------------------------------------------------

    def _choose_defaults(self, questions: Iterable[Question], remark: Remark) -> None:
        context = self._context
        for question in questions:
            defaults = context.core.questions.defaults(remark.text, remark.by)
            answers = tuple(default for default in defaults if default[0].id == question.id)
            if answers and context.is_running:
                for answered in context.answer(answers):
                    self._apply(*answered)

    def _apply(self, question: Question, answer: Answer) -> str:
        """Apply an answer and return a sentence for the caller."""
        context, subject = self._context, question.step or question.kind.value
        context.log("answered", f"{answer.option} (by {answer.by}) {answer.text}".rstrip(), question.step)
        context.wake()
        if not question.chosen:
            missing = question.count - len(question.answers)
            self._reporting.show()
            return f"{subject}: {answer.option} by {answer.by}. Approvals still needed: {missing}"
        if question.kind not in APPROVALS:
            context.progress = context.progress.note_decision(subject, answer)
        if question.kind in APPROVALS:
            number = context.schedule.find(question.step)
            if number is not None:
                context.progress = context.progress.note_answers(question.step, question.answers)
                context.schedule.resume(number)
        elif question.chosen == CANCEL.name:
            self._cancel(answer.text, answer.by)
        elif question.kind is QuestionKind.BUDGET:
            context.extend_budget(question.step)
        else:
            self._go_on(question)
        self._reporting.show()
        return f"{subject}: {answer.option}"

    def _go_on(self, question: Question) -> None:
        context = self._context
        # People often edit files before they answer. With `fail` no step continues on these files.
        if question.chosen != FAIL.name:
            context.keep_edits()
        if question.kind is QuestionKind.DRIFT:
            decided = read_drift_answer(question, question.answers[-1])
            context.progress = context.progress.evolve(drift=decided)
        doubted = context.progress.doubted
        if question.kind is QuestionKind.PROOF and question.chosen in (ACCEPT, ASKED) and doubted is not None:
            answer = question.answers[-1]
            approval = question.approval(answer, asked=question.chosen == ASKED)
            context.progress = context.progress.evolve(
                doubted=doubted.evolve(accepted_by=answer.by, asked_for=approval if approval.asked else None),
                approvals=with_approval(context.progress.approvals, approval),
            )
        number = context.schedule.find(question.step) if question.kind is QuestionKind.FAILED_STEP else None
        if number is None or question.chosen not in (RETRY.name, SKIP.name):
            return
        if question.chosen == RETRY.name:
            context.reset_failed_step(question.step, number)
            return
        context.schedule.finish(number, StepStatus.SKIPPED)
        context.progress = context.progress.settle(question.step)

    async def _replan(self, questions: list[Question], answer: Answer) -> str:
        context = self._context
        failures = context.progress.failures
        reasons = [
            failures[question.step].reason if question.step in failures else question.title
            for question in questions[:10]
        ]
        reasons += [line for question in questions for line in question.evidence]
        subjects = ", ".join(question.step or question.kind.value for question in questions[:10])
        context.log("answered", f"{answer.option} (by {answer.by}) {answer.text}".rstrip(), questions[0].step)
        for question in questions:
            context.progress = context.progress.note_decision(question.step or question.kind.value, answer)
        trouble = "; ".join([*reasons, answer.text] if answer.text else reasons)
        cause = f"the answer to a question about {subjects}"
        return await self._revisions.revise("", cause, answer.by, trouble=trouble)

    def _cancel(self, reason: str, by: str) -> None:
        self._context.cancel(reason or f"cancelled by {by}")
        self._context.log("cancelled", f"{self._context.core.cancel} (by {by})")

    async def _until_open(self) -> None:
        """Wait until the graph is loaded. After continue-as-new, each run loads the graph again."""
        context = self._context
        if not context.is_open:
            # The opening may fail. A handler that still waited then would keep the workflow from closing.
            await workflow.wait_condition(lambda: context.is_open or not context.is_running)


NAMES_SHOWN = 5

A = TypeVar("A")
R = TypeVar("R")


class Waiting:
    """Waits for events and handles requests from people in the meantime."""

    def __init__(
        self,
        context: PlanContext,
        dispatch: Dispatch,
        reporting: PlanReporting,
        activities: ActivityRunner,
    ) -> None:
        self._context, self._dispatch, self._reporting, self._activities = context, dispatch, reporting, activities

    def check(self) -> None:
        """Handle a cancellation, a requested end and a reset.

        Raises:
            PlanEnd: the plan has to end.
            asyncio.CancelledError: the plan was cancelled in Temporal.
        """
        context = self._context
        # An activity that ends normally swallows a cancellation that arrived while it ran.
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError
        if context.core.cancel is not None:
            raise PlanEnd(context.core.cancel)
        if context.end is not None:
            raise context.end
        if context.is_reset:
            # The files on disk may be those of the discarded run. The next `keep_edits` puts them back.
            context.is_reset = False
            context.expect_own_leftovers()
            context.log("reset", "the run was reset in Temporal, and the files are being restored")
            self._reporting.show_again()

    async def next_event(self) -> None:
        """Wait for the next event.

        If only a person can cause the next event, the request's time limit applies.

        Raises:
            PlanEnd: there was no answer in time.
        """
        context, limit = self._context, self._patience()
        try:
            await workflow.wait_condition(
                lambda: context.is_woken, timeout=limit, timeout_summary="waiting for a person" if limit else None
            )
        except TimeoutError:
            raise context.give_up(context.waiting[:NAMES_SHOWN]) from None
        # After the wait and not before it: events that arrived while the loop was busy must wake it at once.
        context.sleep()

    async def run(self, method: Callable[[Any, A], R], request: Callable[[], A], options: ActivityOptions) -> R:
        """Run one activity. If the activity cannot run, ask a person and try again."""
        while True:
            try:
                return await self.run_once(method, request(), options)
            except ActivityFailedError as failure:
                await self.ask_about(failure)
                await self.keep_edits()

    async def ask_about(self, failure: ActivityFailedError) -> None:
        """Wait for a person because an activity could not be run.

        Raises:
            PlanEnd: there was no answer in time, or the answer ended the plan.
        """
        self._dispatch.pause_for(failure)
        await self._until_resumed()

    async def wait_for_answer(self) -> None:
        """Wait until no open question pauses the plan, then adopt edits made by people.

        Raises:
            PlanEnd: there was no answer in time, or the answer ended the plan.
        """
        await self._until_resumed()
        await self.keep_edits()

    async def _until_resumed(self) -> None:
        while self._context.is_paused:
            self.check()
            await self.next_event()
        self.check()

    async def run_once(self, method: Callable[[Any, A], R], request: A, options: ActivityOptions) -> R:
        """Run one activity. Stop the activity if the plan is cancelled.

        Raises:
            ActivityFailedError: the activity could not run.
        """
        task = asyncio.create_task(self._activities.run(method, request, options))
        try:
            await workflow.wait_condition(lambda: task.done() or self._context.core.cancel is not None)
        finally:
            # `cancel()` only requests the end; the next activity must not start while this one still runs.
            if not task.done():
                task.cancel()
                await workflow.wait_condition(task.done)
        self.check()
        return await task

    async def keep_edits(self) -> None:
        """Adopt edits made by people, or clean up leftovers from this plan.

        Nothing happens while a running step writes to the tree.
        """
        context, progress = self._context, self._context.progress
        is_due = progress.put_back or (progress.adopt and not context.is_paused)
        if not is_due or context.request.dry_run or context.is_held or not progress.tree:
            return
        is_written = any(attempt.writes for attempt in context.running.values())
        if is_written and (progress.put_back or progress.drift is not None):
            return  # the step writes to the same files
        if not progress.put_back:
            # Before the activity, so that an answer given while it runs can set the flag again.
            context.keep_edits(False)
        if is_written:
            return  # the tree of the step will contain them
        context.is_adopting = True
        try:
            adopted = await self.run(
                WorkspaceActivities.adopt_workspace,
                lambda: AdoptRequest(
                    scope=context.scope, expected_tree=context.progress.tree, drift=context.progress.drift
                ),
                context.on_host(_summary(progress), RESTORE_TIMEOUT),
            )
        finally:
            context.is_adopting = False
        # Read again, because handlers have changed the progress while the activity ran.
        progress = context.progress
        if progress.put_back:
            context.expect_own_leftovers(False)
            return
        when = "during the pause" if progress.drift is None else "outside a pause"
        context.progress = progress.evolve(drift=None)
        context.log_drift(adopted.drift)
        if adopted.tree != progress.tree:
            context.set_tree(adopted.tree)
            sentence = f"edits to {format_count(adopted.files_changed, 'file')} made {when} were kept"
            context.log("adopted", sentence)
            context.progress = context.progress.note_edits(sentence)

    def _patience(self) -> timedelta | None:
        """Return the remaining time for an answer if only a person can continue the plan. None means no limit."""
        if self._dispatch.is_busy or self._context.alerts.is_sending:
            return None
        now = self._context.now()
        since = min((question.since for question in self._context.waiting if question.since is not None), default=now)
        left = since + self._context.request.pause_timeout - now
        return max(left, timedelta(milliseconds=1))


def _summary(progress: PlanProgress) -> str:
    if progress.put_back:
        return "restore files that were changed by stopped work"
    return "keep edits made during the pause" if progress.drift is None else "keep or undo changes made by someone else"
