"""The episode workflow: plan, deliver, verify, track, reflect - until the checks are green.

This file is the order of things and every message that an episode takes. What a step decides is in
`tightloop/episode/loop/`, what it does in `activities/`; what people want is kept in `workflows/episode/operator.py`
until the next safe point (`workflows/episode/safe_points.py`).
"""

import asyncio
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError, is_cancelled_exception

from tightloop.episode import control, decisions, state_changes
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.control import EpisodeInput
from tightloop.episode.decisions import ALLOW, NextAction
from tightloop.episode.display import status_of
from tightloop.episode.model import (
    RIGHT_INPUT,
    EpisodeOutcome,
    EpisodeRequest,
    EpisodeResult,
    EpisodeState,
    EpisodeStatus,
    TimelineLine,
    TimelinePage,
)
from tightloop.episode.planning import PlanVerdict
from tightloop.errors import InvalidRequestError
from tightloop.question import is_paused
from workflows.episode.iteration import Delivery, Iteration
from workflows.episode.operator import Operator
from workflows.episode.proof import Proof
from workflows.episode.record import EpisodeRecord, EpisodeRecording
from workflows.episode.safe_points import EpisodeOver, RunOver, SafePoints
from workflows.episode.workspace import EpisodeCopies, Workspace
from workflows.shared.activities import NOTICE, ActivityRunner, Share, continue_as_new, is_other_build_wanted
from workflows.shared.messages import Inbox, refusals, refuse_setup
from workflows.shared.questions import Questions
from workflows.shared.reporting import STATUS, count_episode, is_first_use

ITERATION = SearchAttributeKey.for_int("TightloopIteration")


@workflow.defn
class EpisodeWorkflow:
    """One goal pursued to an outcome. Its history is the checkpoint and replay log."""

    notice: ClassVar[timedelta] = NOTICE

    # Handlers may run before `run` does, so the state has to be there when the instance is.
    @workflow.init
    def __init__(self, request: EpisodeInput | None = None) -> None:
        """Restore the state of the previous run, so that handlers see it at once."""
        self._input = request or EpisodeInput(problem=f"the input is missing. A right input: {RIGHT_INPUT}")
        asked = EpisodeRequest() if self._input.problem else EpisodeRequest.of(self._input)
        self._inbox = Inbox(self._input.sealed_as, self._input.heard)
        state = self._input.state or EpisodeState(budget=asked.budget)
        self._first_iteration = state.iteration
        self._record = EpisodeRecord(asked, state, episode_id=workflow.info().workflow_id)
        self._questions = Questions(asked=state.asked)
        record = self._record
        share = Share(lambda: record.request, self._inbox, lambda: record.state.iteration == 0)
        self._runner = ActivityRunner(
            lambda: self._record.request.queues,
            notice=self.notice,
            on_missing=lambda what: self._points.tell_missing(what),
            on_silent=lambda successor: self._operator.leave_silent_host(successor),
            priority=lambda: share.priority,
        )
        self._operator = Operator(self._record, self._questions, self._runner.interrupt)
        self._recording = EpisodeRecording(self._record, self.status)
        self._points = SafePoints(self._record, self._operator, self._questions, self._runner, self._recording)
        self._copies = EpisodeCopies(self._record, self._points)
        self._workspace = Workspace(self._record, self._points, self._runner, self._recording, self._copies)
        self._proof = Proof(self._record, self._points)
        self._iteration = Iteration(self._record, self._points, self._proof)
        self._delivery = Delivery(self._record, self._points)

    @workflow.run
    async def run(self, request: EpisodeInput | None = None) -> EpisodeResult:
        """Pursue the goal until the checks are green, a bound is reached or a person ends it."""
        del request  # `__init__` has read it
        try:
            with refusals():
                self._check_start()
        except ApplicationError as refusal:
            self._points.refuse(refusal.message, is_new=is_first_use() and not self._input.goes_on)
            raise
        self._record.start_work()
        try:
            await self._begin()
            while True:
                await self._iterate()
                await self._leave_when_long()
        except EpisodeOver as end:
            return await self._end(end.outcome, end.reason)
        except RunOver:
            await self._continue_as_new()
        except BaseException as error:
            if is_cancelled_exception(error):
                await asyncio.shield(self._close(EpisodeOutcome.CANCELLED, "cancelled in Temporal"))
            raise

    # -- the order of things ------------------------------------------------------------------------

    def _check_start(self) -> None:
        if self._input.problem:
            raise InvalidRequestError(self._input.problem)
        self._inbox.check_start()
        # A misspelt name first: without it, what it was meant for only looks empty.
        refuse_setup(self._input.unknown)
        self._record.request.check_values()
        refuse_setup(self._record.request.setup_problem)

    async def _begin(self) -> None:
        """Open the workspace of a new episode, or go back to the checkpoint that this run is for."""
        target = self._record.state.restore or self._input.restore
        if self._record.state.request is None:
            await self._workspace.open(self._input)
        self._recording.show()
        if (move := self._record.state.move) is not None:
            await self._workspace.take_over(move)
        elif target is not None:
            await self._workspace.go_back(target)
        self._copies.keep_up()

    async def _iterate(self) -> None:
        """Make one pass, then decide."""
        record, steps = self._record, self._iteration
        await steps.check_unseen_tree()
        await steps.reflect()
        await steps.wait_for_budget()
        before = record.state
        record.apply(state_changes.begin_iteration)
        # With the status, since a raw start brought none.
        workflow.upsert_search_attributes([ITERATION.value_set(record.state.iteration), STATUS.value_set("running")])
        plan = await steps.plan()
        report = await self._delivery.deliver(plan) if plan.verdict is PlanVerdict.PLANNED else None
        verification = await steps.verify() if plan.verdict is not PlanVerdict.MALFORMED else None
        await steps.track(before, report, verification)
        self._copies.keep_up()
        decision = self._decide()
        chosen = await self._points.follow(decision)
        if chosen == ALLOW and decisions.is_change_allowed(record.state):
            decision = self._decide()
            await self._points.follow(decision)
        if decision.action is NextAction.SUCCEED:
            await self._proof.succeed()
        elif decision.action is NextAction.TELL:
            self._points.tell(decision.tell)

    def _decide(self) -> decisions.Decision:
        decision = decisions.after_tracking(self._record.state, self._record.request)
        if decision.action is NextAction.TELL:
            self._record.apply(state_changes.with_telling)
        return decision

    async def _end(self, outcome: EpisodeOutcome, reason: str) -> EpisodeResult:
        self._record.count_work()
        await self._close(outcome, reason)
        result = state_changes.result_of(self._record.state, outcome, reason)
        if outcome is EpisodeOutcome.FAILED:
            raise ApplicationError(reason, result, type="EpisodeFailed", non_retryable=True)
        return result

    async def _close(self, outcome: EpisodeOutcome, reason: str) -> None:
        self._record.close(outcome.value.lower(), reason)
        self._record.log("closed", f"{outcome.value}: {reason}")
        await self._workspace.close(outcome, reason)
        count_episode(outcome, self._record.state.spent)
        self._points.close()
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _leave_when_long(self) -> None:
        self._points.leave_if_wanted()
        done = self._record.state.iteration - self._first_iteration
        # Between iterations nothing runs: the moment to go on with another build of the workers, too.
        suggested = workflow.info().is_continue_as_new_suggested() or is_other_build_wanted()
        if decisions.may_continue_as_new(self._record.request, iterations_in_run=done, suggested=suggested):
            await self._copies.complete()
            raise RunOver

    async def _continue_as_new(self) -> NoReturn:
        """Follow this run with a new one; handlers finish first, and what they were told goes along."""
        self._record.count_work()
        await self._recording.settle()
        # Without this wait 38 of 40 updates that came during a continuation failed; with it none did.
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self._operator.move_wanted is not None:
            self._record.move(self._operator.move_wanted)
        request, state = self._record.request, self._record.state
        # What people wanted of this run goes along: Temporal delivers a message to one run only.
        carried = state.evolve(
            restore=self._operator.restore_wanted,
            cancel=self._operator.cancel_wanted,
            amended=self._operator.is_amended,
            pause=self._operator.pause_wanted,
            asked=self._questions.asked,
            runs=state.runs + 1,
        )
        continue_as_new(EpisodeInput.of(request, state=carried, heard=self._inbox.heard))

    # -- signals: what cannot be wrong. An argument too many would fail every workflow task, so they take any number.

    @workflow.signal(description="Pause at the next safe point. Optional: a reason as text.")
    def pause(self, reason: Any = None, *_more: Any) -> None:
        """Ask for a pause; asking twice is harmless."""
        for content in self._inbox.take_signal(reason):
            self._operator.pause(content)
            self._points.offer_to_end()

    @workflow.signal(description="End a pause that needs no decision. Optional: a checkpoint id, or a note.")
    def resume(self, note: Any = None, *_more: Any) -> None:
        """Choose the default of what waits, or take back a pause that has not begun."""
        for content in self._inbox.take_signal(note):
            self._operator.resume(content)

    @workflow.signal(description="End the episode for good; the files stay as they are. Optional: a reason.")
    def cancel(self, reason: Any = None, *_more: Any) -> None:
        """Stop what is running and end the episode."""
        for content in self._inbox.take_signal(reason):
            self._operator.cancel(content)

    # -- updates: what can be wrong, and is answered. Refused by its validator, one leaves no event in the history.

    @workflow.update(description='Answer what waits: "allow", or the JSON that the details show for an option')
    async def answer(self, value: Any = None) -> str:
        """Choose an option of the question that waits."""
        return self._operator.answer(self._inbox.take(value))

    @answer.validator
    def _check_answer(self, value: Any = None) -> None:
        self._operator.check(self._questions.read, self._inbox.read(value))

    @workflow.update(description='Tell the planner something: "use the other parser". It decides nothing.')
    async def respond(self, message: Any = None) -> str:
        """Give the planner a message; ends a pause that needs no decision."""
        return self._operator.respond(self._inbox.take(message))

    @respond.validator
    def _check_respond(self, message: Any = None) -> None:
        self._operator.check(self._operator.read_response, self._inbox.read(message))

    @workflow.update(description='Raise the budget, and resume if it waits for that: {"iterations": 5}')
    async def top_up(self, addition: Any = None) -> str:
        """Raise the bounded items of the budget."""
        return self._operator.top_up(self._inbox.take(addition))

    @top_up.validator
    def _check_top_up(self, addition: Any = None) -> None:
        self._operator.check(control.read_top_up, self._inbox.read(addition))

    @workflow.update(
        description='Change the goal, the definition of done or who works: {"goal": "...", '
        '"definition_of_done": ["pytest -q"], "executor": {"name": "codex"}}'
    )
    async def amend_goal(self, amendment: Any = None) -> str:
        """Change what is pursued or who works on it, from the next step on."""
        return self._operator.amend(self._inbox.take(amendment))

    @amend_goal.validator
    def _check_amend(self, amendment: Any = None) -> None:
        self._operator.check(self._operator.read_amendment, self._inbox.read(amendment))

    @workflow.update(
        description='Go back to a checkpoint, state and files: {"checkpoint_id": "ckpt-2", "reason": "why"}'
    )
    async def restore_checkpoint(self, target: Any = None) -> str:
        """Stop what is running and continue from a checkpoint as a new run."""
        return self._operator.restore(self._inbox.take(target))

    @restore_checkpoint.validator
    def _check_restore(self, target: Any = None) -> None:
        self._operator.check(self._operator.check_restore, self._inbox.read(target))

    @workflow.update(description='Go on with the episode on another host: {"to": "tightloop-workspace-host-2-1a2b3c"}')
    async def move(self, target: Any = None) -> str:
        """Stop what is running and continue on another host, from the last checkpoint in the remote store."""
        return self._operator.move(self._inbox.take(target))

    @move.validator
    def _check_move(self, target: Any = None) -> None:
        self._operator.check(self._operator.read_move, self._inbox.read(target))

    @property
    def place(self) -> str:
        """Where it is, for a replay."""
        return f"iteration {self._record.state.iteration}, {self._record.state.phase.value}"

    # -- queries ---------------------------------------------------------------------------------------

    @workflow.query(description="Where the episode is, what it waits for and what it has spent")
    def status(self) -> EpisodeStatus:
        """Return a snapshot."""
        record, info, waiting = self._record, workflow.info(), self._questions.waiting
        status = "paused" if is_paused(waiting) and record.is_open else record.status
        seen = status_of(
            record.request,
            record.state,
            waiting,
            episode_id=info.workflow_id,
            run_id=info.run_id,
            status=status,
            work=self._points.work,
        )
        wanted = self._operator.pause_wanted is not None and record.is_open
        return seen.evolve(pause_requested=wanted, waits_for=self._runner.waits_for, reason=record.reason)

    @workflow.query(description="Checkpoints, newest last, also discarded ones")
    def checkpoints(self) -> list[CheckpointRecord]:
        """Return the checkpoints that this run carries."""
        return list(self._record.state.checkpoints)

    @workflow.query(description="What happened, newest last")
    def timeline(self) -> list[TimelineLine]:
        """Return the last events."""
        return list(self._record.state.timeline)

    @workflow.query(description="What happened in this run, a page: after so many lines; -1: all that are its own")
    def events(self, after: int = 0) -> TimelinePage:
        """Return a page of the lines of this run."""
        return self._record.timeline.page(after)

    @workflow.query(description="The request, with amendments")
    def request(self) -> EpisodeRequest:
        """Return what was asked for."""
        return self._record.request
