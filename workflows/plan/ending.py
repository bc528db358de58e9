"""The end of a plan, and its proof."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.plan.activity import PlanActivities
from activities.plan.requests import ClosePlanRequest, LoadPlanRequest, VerifyPlanRequest
from activities.proof.activity import ProofActivities
from activities.proof.port import AcceptRequest, BeginRequest, ProveRequest
from tightloop.episode.proof import ProofVerdict
from tightloop.episode.scenarios import and_scenarios
from tightloop.ledger.alert import AlertKind
from tightloop.plan.child import StepStatus
from tightloop.plan.document import OnPlanFailure
from tightloop.plan.engine.graph import Graph
from tightloop.plan.progress import Doubt
from tightloop.plan.request import PlanOutcome, PlanPhase, PlanResult
from tightloop.run.core import choose_result_mode
from tightloop.run.outcome import doubts, headline, qualify, with_announcements
from tightloop.value import abridge
from workflows.plan.commands import NAMES_SHOWN, Waiting
from workflows.plan.context import PlanContext, PlanEnd
from workflows.plan.dispatch import Dispatch
from workflows.plan.recovery import Compensation
from workflows.plan.reporting import PlanQuestions, PlanReporting
from workflows.run.activities import (
    CLOSE_TIMEOUT,
    HAND_OFF_TIMEOUT,
    OPEN_TIMEOUT,
    ActivityFailedError,
    ActivityRunner,
)

STATUSES_LIMIT = 2_000
REASON_CHARACTERS = 1_000


class Ending:
    """Closes a plan."""

    def __init__(
        self,
        context: PlanContext,
        dispatch: Dispatch,
        compensation: Compensation,
        reporting: PlanReporting,
        activities: ActivityRunner,
    ) -> None:
        self._context, self._dispatch, self._compensation = context, dispatch, compensation
        self._reporting, self._activities = reporting, activities

    async def end(self, end: PlanEnd) -> PlanResult:
        """End a plan that still has unfinished steps.

        The steps are compensated if the failure policy requires this.

        Raises:
            ApplicationError: the plan failed. The error's first detail is the result.
        """
        context = self._context
        # First, because compensation and closing rely on a tree that no step writes to.
        await self._dispatch.stop()
        if not context.is_open and context.progress.plan is not None:
            await self._load()
        is_cancelled = context.core.cancel is not None
        reason = end.reason
        # Stored, because a long compensation continues as new, and the next run has to know why.
        context.progress = context.progress.evolve(reason=reason)
        compensate = end.compensate
        if context.is_open and is_cancelled:
            compensate = context.failure_policy is OnPlanFailure.COMPENSATE
        outcome = PlanOutcome.CANCELLED if is_cancelled else PlanOutcome.FAILED
        if compensate:
            problems = await self._compensation.undo_all()
            done = context.progress.compensations
            if done:
                more = f"; and {len(done) - NAMES_SHOWN} more" if len(done) > NAMES_SHOWN else ""
                reason += f". Undone: {'; '.join(done[:NAMES_SHOWN])}{more}"
            if problems:
                reason += ". Not undone: " + "; ".join(problems[:NAMES_SHOWN])
            elif not is_cancelled:
                outcome = PlanOutcome.COMPENSATED
        # For a nested plan, the parent plan decides how to handle the failure.
        if not is_cancelled and context.request.depth == 1:
            await context.alerts.send_last(context.alert(AlertKind.FAILED, reason))
        return await self.close(outcome, reason)

    async def close(self, outcome: PlanOutcome, reason: str, qualifier: str = "") -> PlanResult:
        """Close the plan and return its result.

        Raises:
            ApplicationError: the plan failed or was compensated. The error's first detail is the result.
        """
        context = self._context
        context.close(outcome.value.lower(), abridge(reason, REASON_CHARACTERS), qualifier)
        self._dispatch.count_time()
        result = PlanResult(outcome=outcome, qualifier=qualifier, reason=context.reason)
        if context.is_open:
            context.schedule.close()
            context.log("closed", headline(outcome.value, qualifier, context.reason))
            result = await self._store_result(outcome)
        context.enter_closed_phase()
        self._reporting.close()
        await workflow.wait_condition(workflow.all_handlers_finished)
        if outcome in (PlanOutcome.FAILED, PlanOutcome.COMPENSATED):
            # A failed workflow has no result in Temporal, so it travels in the details of the failure.
            raise ApplicationError(context.reason, result, type="PlanFailed", non_retryable=True)
        return result

    async def _load(self) -> None:
        """Load the graph of a plan that a previous run opened. Compensation and closing need the graph."""
        context = self._context
        options = context.on_host(f"load revision {context.progress.revision}", OPEN_TIMEOUT)
        try:
            request = LoadPlanRequest(scope=context.scope)
            opened = await self._activities.run(PlanActivities.load_plan, request, options)
        except ActivityFailedError as failure:
            context.log("closed", f"the workspace could not be released: {failure.reason}")
            return
        context.open(Graph.unpack(opened.graph), has_planner=opened.planner)

    async def _store_result(self, outcome: PlanOutcome) -> PlanResult:
        """Store the final record, release the workspace and return the result."""
        context, schedule = self._context, self._context.schedule
        counts, record = schedule.counts(), None
        left = [number for number in range(len(schedule)) if schedule.status(number) is not StepStatus.COMPLETED]
        # Settle first: a record sent later would be newer than the final one.
        await self._reporting.settle()
        request = ClosePlanRequest(
            scope=context.scope,
            outcome=outcome,
            reason=context.reason,
            expected_tree=context.final_tree,
            statuses={schedule.name(number): schedule.status(number).value for number in left[:STATUSES_LIMIT]},
            counts=counts,
            decisions=context.progress.decisions,
            edits=context.progress.edits,
            result=choose_result_mode(
                context.request.result, worktree=context.request.worktree, nested=context.request.depth > 1
            ),
            title=context.title,
            snapshot=self._reporting.last,
        )
        try:
            options = context.on_host(f"close: {outcome.value}", CLOSE_TIMEOUT)
            closed = await self._activities.run(PlanActivities.close_plan, request, options)
            record = closed.archive
            context.log_drift(closed.drift)
            context.log_delivery(closed.delivered)
        except ActivityFailedError as failure:
            context.log("closed", f"the workspace could not be released: {failure.reason}")
        return PlanResult.of(
            context.progress,
            outcome=outcome,
            qualifier=context.qualifier,
            reason=context.reason,
            files_changed=context.files_changed,
            counts=counts,
            proof=context.progress.proof if outcome is PlanOutcome.COMPLETED else None,
            record=record,
        )


CHECKS_TIMEOUT = timedelta(hours=6)
"""Timeout for all commands of the definition of done together. Each command also has its own limit."""


class PlanProof:
    """The baseline and the proof of a plan, which determine whether the plan is complete."""

    def __init__(
        self, context: PlanContext, waiting: Waiting, questions: PlanQuestions, reporting: PlanReporting
    ) -> None:
        self._context, self._waiting, self._questions, self._reporting = context, waiting, questions, reporting

    @property
    def is_needed(self) -> bool:
        """True if the plan has a definition of done and is not a dry run."""
        return bool(self._context.schedule.graph.head.checks) and not self._context.request.dry_run

    async def begin(self, *, base_tree: str = "") -> None:
        """Run the definition of done for the baseline and store the initial tree with its untracked files.

        `base_tree` is the initial tree of a plan that was opened without a definition of done. If it is
        given, no checks run.
        """
        context = self._context
        baseline = await self._waiting.run(
            ProofActivities.begin,
            lambda: BeginRequest(
                scope=context.scope,
                expected_tree=context.progress.tree,
                plan=context.progress.plan,
                base_tree=base_tree,
                scenarios=context.request.scenarios,
            ),
            context.on_host("run the checks before the first step", CHECKS_TIMEOUT),
        )
        verification = baseline.verification
        context.log_drift(verification.drift)
        context.log_drift(verification.touched)
        context.progress = context.progress.evolve(
            beginning=baseline.beginning,
            failed_before=(*context.progress.failed_before, *(check.key for check in verification.failed)),
            flaky=verification.flaky or context.progress.flaky,
        )

    async def holds(self) -> bool:
        """Return whether the final tree provably meets the definition of done.

        Raises:
            PlanEnd: the definition of done is not met, and the failure policy does not allow asking a person.
        """
        context = self._context
        if not self.is_needed:
            return True
        doubted = context.progress.doubted
        # A person accepts one tree. After any further change the proof is made again.
        if doubted is not None and doubted.accepted_by and doubted.tree == context.progress.tree:
            return await self._accept(doubted)
        context.progress = context.progress.evolve(doubted=None)
        try:
            return await self._verify() and context.is_nothing_left and await self._prove()
        finally:
            if context.progress.phase in (PlanPhase.VERIFYING, PlanPhase.PROVING):
                self._reporting.enter(PlanPhase.RUNNING)

    @property
    def summary(self) -> str:
        """Closing sentence for a completed plan."""
        context = self._context
        steps, skipped = context.schedule.list_skipped()
        left = len(skipped) + len(context.schedule.list_tolerated())
        done = f"{len(steps) - left} of {len(steps)} steps are done" if left else "all steps are done"
        if not self.is_needed:
            return done
        is_proven = not doubts(context.outcome_facts)
        also = and_scenarios(context.outcome_facts.scenarios)
        done = f"{done}, and the definition of done {'is proven' if is_proven else 'passes'}{also}"
        return with_announcements(done, context.outcome_facts)

    @property
    def qualifier(self) -> str:
        """Reason why a completed plan is not a plain success, or "" if it is a plain success."""
        return qualify(self._context.outcome_facts)

    async def _verify(self) -> bool:
        context = self._context
        self._reporting.enter(PlanPhase.VERIFYING)
        verification = await self._waiting.run(
            PlanActivities.verify_plan,
            lambda: VerifyPlanRequest(
                scope=context.scope,
                expected_tree=context.progress.tree,
                failed_before=context.progress.failed_before,
            ),
            context.on_host("check the definition of done", CHECKS_TIMEOUT),
        )
        context.log_drift(verification.drift)
        context.log_drift(verification.touched)
        progress = context.progress
        context.progress = progress.evolve(
            failed_before=tuple(dict.fromkeys((*progress.failed_before, *verification.keys))),
            flaky=tuple(dict.fromkeys((*progress.flaky, *verification.flaky))),
        )
        context.log(
            "verified", f"{verification.total - len(verification.failed)} of {verification.total} checks passed"
        )
        # If people changed or paused the plan meanwhile, it is verified again later.
        if not verification.passed and self._context.is_nothing_left:
            failed, policy = "; ".join(verification.failed) or "no check passed", context.failure_policy
            if policy is not OnPlanFailure.ASK:
                reason = f"the definition of done is not met: {failed}"
                raise PlanEnd(reason, compensate=policy is OnPlanFailure.COMPENSATE)
            self._questions.ask_about_unmet(failed)
        return verification.passed

    async def _prove(self) -> bool:
        context = self._context
        self._reporting.enter(PlanPhase.PROVING)
        # A plan that had no definition of done at first may have got one by a revision.
        if context.progress.beginning is None:
            await self.begin(base_tree=context.progress.base_tree)
        tree = context.progress.tree
        proved = await self._waiting.run(
            ProofActivities.prove,
            lambda: ProveRequest(
                scope=context.scope,
                expected_tree=context.progress.tree,
                beginning=context.progress.beginning,
                plan=context.progress.plan,
                goal=context.request.goal,
                allow=context.request.allow,
                approvals=context.progress.approvals,
                earlier=context.progress.proof_within,
                failed_before=context.progress.failed_before,
                worked=context.progress.worked,
                flaky=context.progress.flaky,
                scenarios=context.request.scenarios,
            ),
            # The checks run twice: as delivered, and with the original tests put back.
            context.on_host("prove the result in a fresh checkout", 2 * CHECKS_TIMEOUT),
        )
        context.log_drift(proved.drift)
        context.progress = context.progress.evolve(proof=proved.proof, evidence=proved.facts)
        is_proven = proved.verdict is not ProofVerdict.DOUBTED
        if proved.verdict is ProofVerdict.NOT_PROVEN:
            context.log("verified", f"the checks also pass in a fresh checkout of tree {tree[:12]}")
        else:
            also = and_scenarios(proved.facts.scenarios)
            detail = f"in a fresh checkout of tree {tree[:12]}{also}" if is_proven else proved.title
            context.log("proven" if is_proven else "doubted", detail)
        if not is_proven and self._context.is_nothing_left:
            context.progress = context.progress.evolve(doubted=Doubt(tree=tree, title=proved.title))
            self._questions.ask_about_proof(proved.title, proved.evidence, proved.change)
        return is_proven

    async def _accept(self, doubted: Doubt) -> bool:
        context, proof = self._context, self._context.progress.proof
        assert proof is not None
        accepted = await self._waiting.run(
            ProofActivities.accept_proof,
            lambda: AcceptRequest(
                scope=context.scope, proof=proof, by=doubted.accepted_by, asked_for=doubted.asked_for
            ),
            context.on_host("record who accepted the proof", HAND_OFF_TIMEOUT),
        )
        context.progress = context.progress.evolve(proof=accepted.proof, evidence=accepted.facts)
        return True
