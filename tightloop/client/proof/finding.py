"""Finds the proof of what succeeded: its reference in the result, its content on the workspace's host."""

import asyncio
from pathlib import Path

from tightloop.client.execution import CLOSED_STATUSES
from tightloop.client.following.viewer import Viewer
from tightloop.client.records.store import Store
from tightloop.episode.proof import Proof
from tightloop.errors import ProofError, ServiceUnavailableError
from tightloop.loop.model import LoopResult
from tightloop.plan.request import PlanOutcome
from tightloop.value.artifact import ArtifactRef

RESULT_SECONDS = 15.0
_NO_PROOF = "{} is a project's plan: its runs are proven, each by itself. Name one of them; see: tightloop loop show"


async def find_proof(client: Viewer, workflow_id: str, of_run: str = "") -> Proof:
    """Return the proof of an episode or a plan, or of one of its earlier runs.

    Raises:
        ProofError: it has none; the message says why.
        WorkspaceError: it is only on the host of the workspace.
        ServiceUnavailableError: the result is not there in time (retryable).
    """
    summary = await client.summary(workflow_id)
    if of_run:
        earlier = await client.earlier_result(workflow_id, of_run)
        if isinstance(earlier, LoopResult):
            raise ProofError(_NO_PROOF.format(workflow_id))
        if earlier.proof is None:
            raise ProofError(f"run {of_run} of {workflow_id} ended {earlier.outcome} and has no proof")
        return _stored(summary.workspace, workflow_id, earlier.proof)
    if summary.status not in CLOSED_STATUSES:
        raise ProofError(f"{workflow_id} is {summary.status}: it is proven at its end")
    try:
        async with asyncio.timeout(RESULT_SECONDS):
            result = await client.result(workflow_id)
    except TimeoutError:
        raise ServiceUnavailableError(f"the result of {workflow_id} did not come in time. Try again") from None
    if isinstance(result, LoopResult):
        raise ProofError(_NO_PROOF.format(workflow_id))
    if result.proof is None:
        nothing = result.outcome is PlanOutcome.COMPLETED
        why = "there was no definition of done" if nothing else "only what succeeds is proven"
        raise ProofError(f"{workflow_id} is {summary.status} and has no proof: {why}")
    return _stored(summary.workspace, workflow_id, result.proof)


def _stored(workspace: str, workflow_id: str, ref: ArtifactRef) -> Proof:
    return Store(Path(workspace), workflow_id).stored(ref, Proof)
