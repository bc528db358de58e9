"""Success: proven apart from the working tree, or a person's decision."""

from datetime import timedelta

from activities.proof.activity import ProofActivities
from activities.proof.port import AcceptRequest, BeginRequest, ProveRequest
from tightloop.episode import state_changes
from tightloop.episode.budget import PROOF, checks_work
from tightloop.episode.check import Verification
from tightloop.episode.decisions import ACCEPT, make_question
from tightloop.episode.model import EpisodeOutcome, EpisodePhase
from tightloop.episode.proof import ProofVerdict
from tightloop.run.question import QuestionKind
from tightloop.safety.drift import DriftCause
from tightloop.value.artifact import ArtifactRef
from workflows.episode.record import EpisodeRecord
from workflows.episode.safe_points import EpisodeOver, SafePoints
from workflows.run.activities import GRACE, HAND_OFF_TIMEOUT, OPEN_TIMEOUT, ActivityOptions


class Proof:
    """Keeps what success is compared with, and ends the episode where success is proven or accepted."""

    def __init__(self, record: EpisodeRecord, points: SafePoints) -> None:
        self._record, self._points = record, points

    async def begin(self) -> tuple[ArtifactRef, Verification]:
        """Run the checks for a baseline, and keep what lies beside the tree."""
        record = self._record
        self._points.enter(EpisodePhase.VERIFYING)
        begun = await self._points.do(
            ProofActivities.begin,
            lambda: BeginRequest(
                scope=record.scope,
                expected_tree=record.state.tree,
                inherited=record.state.inherited,
                compare_with=record.state.checks if record.state.checked_tree else None,
            ),
            ActivityOptions(
                "checks before the first plan",
                self._limit + OPEN_TIMEOUT,
                record.request.queues.workspace,
                work=checks_work(record.request.definition_of_done),
            ),
        )
        record.log_drift(begun.verification.drift)
        record.log_drift(begun.verification.touched)
        return begun.beginning, begun.verification

    async def succeed(self) -> None:
        """Prove the present tree. Returns where work goes on.

        Raises:
            EpisodeOver: success is proven, or a person accepted the tree.
        """
        record = self._record
        self._points.enter(EpisodePhase.PROVING)
        proved = await self._points.do(
            ProofActivities.prove,
            lambda: ProveRequest(
                scope=record.scope,
                expected_tree=record.state.tree,
                beginning=record.state.beginning,
                allow=record.request.allow,
            ),
            ActivityOptions(
                "prove it in a fresh checkout",
                2 * self._limit + OPEN_TIMEOUT,
                record.request.queues.workspace,
                work=checks_work(record.request.definition_of_done, PROOF),
            ),
        )
        record.log_drift(proved.drift)
        record.apply(state_changes.with_retries, proved.attempt)
        if record.state.checked_tree != record.state.tree or record.state.asked_for:
            return  # A person edited files, amended the request or asked for more in a pause before the proof.
        record.replace(record.state.evolve(proof=proved.proof))
        if proved.verdict is not ProofVerdict.DOUBTED:
            raise EpisodeOver(EpisodeOutcome.SUCCEEDED, f"all checks pass: {record.state.checks_text}")
        tree = record.state.tree
        # Checks may have seen what was undone after them; the fresh checkout never does.
        undone = (drift for drift in record.core.drifts if drift.cause is DriftCause.DURING_CHECKS)
        evidence = (*(drift.sentence for drift in undone if drift.expected == tree), *proved.evidence)
        answer = await self._points.ask(make_question(QuestionKind.PROOF, proved.title, evidence=evidence))
        if record.state.checked_tree != record.state.tree or record.state.tree != tree:
            return
        if answer is None or answer.option != ACCEPT:
            record.apply(state_changes.with_refused_proof, proved.title, proved.evidence)
            return
        accepted = await self._points.do(
            ProofActivities.accept_proof,
            lambda: AcceptRequest(scope=record.scope, proof=proved.proof, by=answer.by),
            ActivityOptions("store who accepted it", HAND_OFF_TIMEOUT, record.request.queues.workspace),
        )
        if record.state.tree == tree:
            record.replace(record.state.evolve(proof=accepted))
            reason = f"all checks pass: {record.state.checks_text}; accepted by {answer.by}: {proved.title}"
            raise EpisodeOver(EpisodeOutcome.SUCCEEDED, reason)

    @property
    def _limit(self) -> timedelta:
        return GRACE + timedelta(seconds=sum(check.timeout_s for check in self._record.request.definition_of_done))
