"""The steps of an iteration besides the delivery: check, plan, track, reflect."""

from datetime import timedelta

from temporalio import workflow

from activities.checks.activity import VerificationActivities, VerifyRequest
from activities.planner.activity import NextPlanRequest, PlanningActivities
from activities.planner.reflection.activity import ReflectionActivities, ReflectRequest
from activities.tracking.activity import TrackingActivities, TrackRequest
from tightloop.episode.check import Verification
from tightloop.episode.loop import decisions, state_changes
from tightloop.episode.loop.questions import ALLOW
from tightloop.episode.model import EpisodePhase, EpisodeState
from tightloop.episode.planning import PlanningOutcome
from tightloop.episode.work import checks_work
from tightloop.executor.model import ExecutorReport
from tightloop.value import clip, counted
from workflows.episode.proof import Proof
from workflows.episode.record import EpisodeRecord
from workflows.episode.safe_points import SafePoints
from workflows.shared.activities import GRACE, PLAN_TIMEOUT, REFLECT_TIMEOUT, TRACK_TIMEOUT, ActivityOptions


class Iteration:
    """Carries out the steps of an iteration, each at a safe point."""

    def __init__(self, record: EpisodeRecord, points: SafePoints, proof: Proof) -> None:
        self._record, self._points, self._proof = record, points, proof

    async def check_unseen_tree(self) -> None:
        """Run the checks where no result fits: at the start, after a person's edits, after an amendment.

        Raises:
            EpisodeOver: they pass, that means something, and it was proven.
        """
        record = self._record
        while True:
            is_first = not record.state.checked_tree
            if record.state.beginning is None:
                record.apply(state_changes.with_beginning, *await self._proof.begin())
            elif record.state.checks is None or record.state.checked_tree != record.state.tree:
                verification = await self._run_checks("checks before the next plan", compare=not is_first)
                record.apply(state_changes.with_verification, verification, baseline=is_first)
            else:
                return
            if decisions.is_complete(record.state):
                await self._proof.succeed()

    async def wait_for_budget(self) -> None:
        """Wait until the budget allows another iteration."""
        while True:
            self._record.count_work()
            decision = decisions.guard_rails(self._record.state)
            if decision.question is None:
                return
            await self._points.follow(decision)

    async def plan(self) -> PlanningOutcome:
        """Return a plan that may be carried out; one that a person refuses is made again."""
        record = self._record
        while True:
            await self.check_unseen_tree()
            self._points.enter(EpisodePhase.PLANNING)
            told: tuple[str, ...] = ()

            def ask() -> NextPlanRequest:
                nonlocal told
                told = record.state.notes
                return NextPlanRequest(
                    scope=record.scope,
                    iteration=record.state.iteration,
                    plan_request=record.state.plan_request,
                    checks=record.state.checks,
                    reflection=record.state.reflection,
                    notes=told,
                    asked_for=record.state.asked_for,
                    overruled=record.state.overruled,
                )

            outcome = await self._points.do(
                PlanningActivities.next_plan,
                ask,
                ActivityOptions(
                    f"iteration {record.state.iteration}: next plan", PLAN_TIMEOUT, record.request.queues.llm
                ),
            )
            record.apply(state_changes.with_plan, outcome, told)
            decision = decisions.after_planning(outcome, record.state.overruled)
            chosen = await self._points.follow(decision)
            if decision.question is None or (chosen == ALLOW and decisions.is_plan_allowed(record.state, outcome)):
                return outcome

    async def verify(self) -> Verification:
        """Run the definition of done on what the executor left."""
        verification = await self._run_checks(f"iteration {self._record.state.iteration}: run the definition of done")
        self._record.apply(state_changes.with_verification, verification)
        return verification

    async def _run_checks(self, summary: str, *, compare: bool = True) -> Verification:
        record = self._record
        self._points.enter(EpisodePhase.VERIFYING)
        limit = timedelta(seconds=sum(check.timeout_s for check in record.request.definition_of_done))
        verification = await self._points.do(
            VerificationActivities.verify,
            lambda: VerifyRequest(
                scope=record.scope,
                expected_tree=record.state.tree,
                previous=record.state.checks if compare else None,
            ),
            ActivityOptions(
                summary,
                limit + GRACE,
                record.request.queues.workspace,
                work=checks_work(record.request.definition_of_done),
            ),
        )
        record.log_drift(verification.drift)
        record.log_drift(verification.touched)
        return verification

    async def track(
        self, before: EpisodeState, report: ExecutorReport | None, verification: Verification | None
    ) -> None:
        """Record a checkpoint and classify the iteration.

        Args:
            before: the state in which the iteration began.
            report: of the executor, if anything was delivered.
            verification: of its work, if there was any.
        """
        record = self._record
        self._points.enter(EpisodePhase.TRACKING)
        last = before.last_checkpoint
        uncounted = workflow.now() - record.working_since
        tracked = await self._points.do(
            TrackingActivities.track_iteration,
            lambda: TrackRequest(
                scope=record.scope,
                state=record.state.evolve(checkpoints=(), timeline=()),
                base_tree=before.tree,
                base_lines=last.lines if last and last.tree == before.tree else None,
                previous_plan=before.plan,
                checks_before=before.checks_text,
                parent=last.id if last else None,
                report=report,
                verification=verification,
                worked=record.state.spent.wall_time - before.spent.wall_time + uncounted,
            ),
            ActivityOptions(
                f"iteration {record.state.iteration}: checkpoint and class",
                TRACK_TIMEOUT,
                record.request.queues.workspace,
            ),
        )
        # The id of the event that Temporal can reset this run to: the start of the current workflow task.
        made = tracked.checkpoint.evolve(event_id=workflow.info().get_current_history_length())
        record.apply(state_changes.with_tracking, tracked.evolve(checkpoint=made), verification)
        record.log_drift(tracked.drift)
        if tracked.memory_problem:
            record.log("memory", tracked.memory_problem)
        record.log(
            "iteration",
            f"{made.id}: {record.state.plan_title or 'no plan'} - checks {made.checks}, "
            f"{tracked.tracking.probability_class.value}, {counted(tracked.tracking.files_changed, 'file')} changed"
            + (f"; executor {report.status.value}: {clip(report.error, 100)}" if report and report.error else ""),
        )

    async def reflect(self) -> None:
        """Diagnose the last iteration where it left its course."""
        # A reset is a cause: it has to be noticed before one is looked for.
        await self._points.tree.reconcile_reset()
        record, cause = self._record, self._record.state.reflect_next
        if cause is None:
            return
        self._points.enter(EpisodePhase.REFLECTING)
        outcome = await self._points.do(
            ReflectionActivities.reflect,
            lambda: ReflectRequest(
                scope=record.scope,
                cause=cause,
                detail=record.state.reflect_detail,
                plan_request=record.state.plan_request,
                checks=record.state.checks,
                previous=record.state.reflection,
                checkpoint=last.state if (last := record.state.last_checkpoint) else None,
            ),
            ActivityOptions(f"reflect: {cause.value}", REFLECT_TIMEOUT, record.request.queues.llm),
        )
        record.apply(state_changes.with_reflection, outcome)
