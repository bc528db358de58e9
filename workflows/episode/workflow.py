"""The episode workflow: plan, deliver, verify, track, reflect - until the checks are green.

This file has the order of things, and the messages that only an episode takes; `workflows/run` has what every run
does. Decisions are in `tightloop/episode`, work is in `activities/`. Commands of people are noted in
`workflows/episode/commands.py` and acted on at the next safe point (`workflows/episode/safe_points.py`).
"""

from datetime import timedelta
from typing import Any, ClassVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError

from tightloop.episode import decisions, state_changes
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.control import EpisodeInput
from tightloop.episode.decisions import ALLOW, NextAction
from tightloop.episode.model import RIGHT_INPUT, EpisodeOutcome, EpisodeRequest, EpisodeResult, EpisodeStatus
from tightloop.episode.planning import PlanVerdict
from workflows.episode.commands import EpisodeCommands
from workflows.episode.iteration import Delivery, Iteration
from workflows.episode.proof import Proof
from workflows.episode.record import EpisodeRecord, EpisodeView
from workflows.episode.safe_points import EpisodeOver, SafePoints
from workflows.episode.workspace import EpisodeCopies, Workspace
from workflows.run.activities import NOTICE, ActivityRunner
from workflows.run.kernel import ContinueAsNew
from workflows.run.reporting import STATUS, Reporting
from workflows.run.workflow import RunWorkflow, is_other_build_wanted

ITERATION = SearchAttributeKey.for_int("TightloopIteration")


@workflow.defn
class EpisodeWorkflow(RunWorkflow):
    """One goal pursued to an outcome. Its history is the checkpoint and replay log."""

    notice: ClassVar[timedelta] = NOTICE

    @workflow.init
    def __init__(self, request: EpisodeInput | None = None) -> None:
        """Take over what the previous run left, so that handlers see it at once."""
        given = request or EpisodeInput(problem=f"the input is missing. A right input: {RIGHT_INPUT}")
        self._run = self._record = record = EpisodeRecord(given, run_id=workflow.info().workflow_id)
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
        """Pursue the goal until the checks are green, a bound is reached or a person ends it."""
        del request  # `__init__` has read it
        result: EpisodeResult = await self._live()
        return result

    # -- the order of things ------------------------------------------------------------------------

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

    async def _end_cancelled(self) -> EpisodeResult:
        return await self._end(EpisodeOutcome.CANCELLED, "cancelled in Temporal")

    async def _begin(self) -> None:
        """Open the workspace of a new episode, or go back to the checkpoint that this run is for."""
        target = self._record.state.restore or self._record.given.restore
        if self._record.state.request is None:
            await self._workspace.open()
        self._reporting.show()
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
        self._record.count_end(outcome)
        self._record.enter_closed()
        self._reporting.close()
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _leave_when_long(self) -> None:
        self._points.leave_if_wanted()
        done = self._record.state.iteration - self._first_iteration
        # Between iterations nothing runs: the moment to go on with another build of the workers, too.
        suggested = workflow.info().is_continue_as_new_suggested() or is_other_build_wanted()
        if decisions.may_continue_as_new(self._record.request, iterations_in_run=done, suggested=suggested):
            await self._copies.complete()
            raise ContinueAsNew

    async def _leave(self) -> None:
        self._record.count_work()
        await self._reporting.settle()

    def _next_input(self) -> EpisodeInput:
        record = self._record
        if record.move_wanted is not None:
            record.move(record.move_wanted)
        # Temporal delivers a message to one run only: what people wanted of this one goes along.
        state = record.state.evolve(
            restore=record.restore_wanted, amended=record.is_amended, runs=record.state.runs + 1
        )
        core = record.core.evolve(questions=record.core.questions.evolve(waiting=()))
        return EpisodeInput.of(record.request, state=state, core=core, heard=record.inbox.heard)

    # -- messages that only an episode takes ------------------------------------------------------------

    @workflow.signal(description="Pause at the next safe point. Optional: a reason as text.")
    def pause(self, reason: Any = None, *more: Any) -> None:
        """Ask for a pause, and offer to end what runs now."""
        super().pause(reason, *more)
        self._points.offer_to_end()

    @workflow.update(description='Tell the planner something: "use the other parser". It decides nothing.')
    async def respond(self, message: Any = None) -> str:
        """Give the planner a message; ends a pause that needs no decision."""
        return self._orders.respond(self._take(self._orders.read_response, message))

    @respond.validator
    def _check_respond(self, message: Any = None) -> None:
        self._check(self._orders.read_response, message)

    @workflow.update(
        description='Change the goal, the definition of done or who works: {"goal": "...", '
        '"definition_of_done": ["pytest -q"], "executor": {"name": "codex"}}'
    )
    async def amend_goal(self, amendment: Any = None) -> str:
        """Change what is pursued or who works on it, from the next step on."""
        return self._orders.amend(self._take(self._orders.read_amendment, amendment))

    @amend_goal.validator
    def _check_amend(self, amendment: Any = None) -> None:
        self._check(self._orders.read_amendment, amendment)

    @workflow.update(
        description='Go back to a checkpoint, state and files: {"checkpoint_id": "ckpt-2", "reason": "why"}'
    )
    async def restore_checkpoint(self, target: Any = None) -> str:
        """Stop what is running and continue from a checkpoint as a new run."""
        return self._orders.restore(self._take(self._orders.read_restore, target))

    @restore_checkpoint.validator
    def _check_restore(self, target: Any = None) -> None:
        self._check(self._orders.read_restore, target)

    @workflow.update(description='Go on with the episode on another host: {"to": "tightloop-workspace-host-2-1a2b3c"}')
    async def move(self, target: Any = None) -> str:
        """Stop what is running and continue on another host, from the last checkpoint in the remote store."""
        return self._orders.move(self._take(self._orders.read_move, target))

    @move.validator
    def _check_move(self, target: Any = None) -> None:
        self._check(self._orders.read_move, target)

    @property
    def place(self) -> str:
        """Where it is, for a replay."""
        return f"iteration {self._record.state.iteration}, {self._record.state.phase.value}"

    # -- queries ---------------------------------------------------------------------------------------

    @workflow.query(description="Where the episode is, what it waits for and what it has spent")
    def status(self) -> EpisodeStatus:
        """Return a snapshot."""
        return self._view.status()

    @workflow.query(description="Checkpoints, newest last, also discarded ones")
    def checkpoints(self) -> list[CheckpointRecord]:
        """Return the checkpoints that this run carries."""
        return list(self._record.state.checkpoints)

    @workflow.query(description="The request, with amendments")
    def request(self) -> EpisodeRequest:
        """Return what was asked for."""
        return self._record.request
