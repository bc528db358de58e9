"""The end of a plan that has a definition of done: run in the working tree, then proven apart from it."""

from collections.abc import Callable
from datetime import timedelta

from activities.plan.activity import PlanActivities
from activities.plan.requests import VerifyPlanRequest
from activities.proof.activity import ProofActivities
from activities.proof.requests import AcceptRequest, BeginRequest, ProveRequest
from tightloop.episode.proof import ProofVerdict
from tightloop.plan.document.plan import OnPlanFailure
from tightloop.plan.progress import Doubt
from tightloop.plan.request import PlanPhase
from workflows.plan.context import PlanContext, PlanEnd
from workflows.plan.questions import PlanQuestions
from workflows.plan.reporting import PlanReporting
from workflows.plan.waiting import Waiting
from workflows.shared.activities import HAND_OFF_TIMEOUT

CHECKS_TIMEOUT = timedelta(hours=6)
"""The commands of the definition of done have limits of their own."""


class PlanProof:
    """Keeps what the delivered tree is compared with, and decides whether a plan is completed."""

    def __init__(
        self,
        context: PlanContext,
        waiting: Waiting,
        questions: PlanQuestions,
        reporting: PlanReporting,
        is_nothing_left: Callable[[], bool],
    ) -> None:
        """Begin with nothing proven; `is_nothing_left` tells whether people changed or paused the plan meanwhile."""
        self._context, self._waiting, self._questions = context, waiting, questions
        self._reporting, self._is_nothing_left = reporting, is_nothing_left

    @property
    def is_needed(self) -> bool:
        """Whether there is a definition of done, and files were changed at all."""
        return bool(self._context.schedule.graph.head.checks) and not self._context.request.dry_run

    async def begin(self, *, base_tree: str = "") -> None:
        """Run the definition of done for a baseline, and keep what lies beside the tree.

        With a `base_tree`, that of a plan which had no definition of done when it was opened, no check is run.
        """
        context, progress = self._context, self._context.progress
        begun = await self._waiting.run(
            ProofActivities.begin,
            lambda: BeginRequest(
                scope=context.scope(), expected_tree=progress.tree, plan=progress.plan, base_tree=base_tree
            ),
            context.on_host("checks before the first step", CHECKS_TIMEOUT),
        )
        context.log_drift(begun.verification.drift)
        context.log_drift(begun.verification.touched)
        progress.beginning = begun.beginning

    async def holds(self) -> bool:
        """Return whether the definition of done holds on the tree that the plan leaves, and that is proven.

        Raises:
            PlanEnd: it does not hold, and nobody is asked about it.
        """
        progress = self._context.progress
        if not self.is_needed:
            return True
        if progress.doubted is not None and progress.doubted.accepted_by and progress.doubted.tree == progress.tree:
            return await self._accept(progress.doubted)
        progress.doubted = None
        try:
            return await self._verify() and self._is_nothing_left() and await self._prove()
        finally:
            if progress.phase in (PlanPhase.VERIFYING, PlanPhase.PROVING):
                self._reporting.enter(PlanPhase.RUNNING)

    @property
    def summary(self) -> str:
        """What a completed plan says of its proof."""
        context, doubted = self._context, self._context.progress.doubted
        if self.is_needed and doubted is not None:
            return f"all steps are done; accepted by {doubted.accepted_by}: {doubted.title}"
        if self.is_needed:
            return "all steps are done, and the definition of done is proven"
        # What a plan within a plan leaves is proven with the plan around it.
        if context.request.dry_run or context.request.depth > 1:
            return "all steps are done"
        return "all steps are done; there was nothing to prove: the plan has no definition of done"

    async def _verify(self) -> bool:
        context = self._context
        self._reporting.enter(PlanPhase.VERIFYING)
        found = await self._waiting.run(
            PlanActivities.verify_plan,
            lambda: VerifyPlanRequest(scope=context.scope(), expected_tree=context.progress.tree),
            context.on_host("run the definition of done", CHECKS_TIMEOUT),
        )
        context.log_drift(found.drift)
        context.log_drift(found.touched)
        context.log("verified", detail=f"{found.total - len(found.failed)} of {found.total} checks pass")
        # Where people changed or paused the plan meanwhile, it is verified again later.
        if not found.passed and self._is_nothing_left():
            failed, policy = "; ".join(found.failed) or "no check passed", context.failure_policy
            if policy is not OnPlanFailure.ASK:
                reason = f"the definition of done does not hold: {failed}"
                raise PlanEnd(reason, compensate=policy is OnPlanFailure.COMPENSATE)
            self._questions.ask_about_unmet(failed)
        return found.passed

    async def _prove(self) -> bool:
        context, progress = self._context, self._context.progress
        self._reporting.enter(PlanPhase.PROVING)
        if progress.beginning is None:
            await self.begin(base_tree=progress.base_tree)
        tree = progress.tree
        proved = await self._waiting.run(
            ProofActivities.prove,
            lambda: ProveRequest(
                scope=context.scope(),
                expected_tree=progress.tree,
                beginning=progress.beginning,
                plan=progress.plan,
                goal=context.request.goal,
                allow=context.request.allow,
                earlier=progress.proof_within,
            ),
            context.on_host("prove it in a fresh checkout", 2 * CHECKS_TIMEOUT),
        )
        context.log_drift(proved.drift)
        progress.proof = proved.proof
        is_proven = proved.verdict is not ProofVerdict.DOUBTED
        said = f"in a fresh checkout of tree {tree[:12]}" if is_proven else proved.title
        context.log("proven" if is_proven else "doubted", detail=said)
        if not is_proven and self._is_nothing_left():
            progress.doubted = Doubt(tree=tree, title=proved.title)
            self._questions.ask_about_proof(proved.title, proved.evidence)
        return is_proven

    async def _accept(self, doubted: Doubt) -> bool:
        context, progress = self._context, self._context.progress
        proof = progress.proof
        assert proof is not None
        progress.proof = await self._waiting.run(
            ProofActivities.accept_proof,
            lambda: AcceptRequest(scope=context.scope(), proof=proof, by=doubted.accepted_by),
            context.on_host("store who accepted it", HAND_OFF_TIMEOUT),
        )
        return True
