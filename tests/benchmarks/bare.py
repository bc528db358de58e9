"""Bare Temporal workflows to compare with: a loop of activity calls, no state, no handlers, no safe points."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

from activities.checks.activity import VerificationActivities, VerifyRequest
from activities.executor.activity import ExecuteRequest, ExecutionActivities, HandOffRequest
from activities.planner.activity import NextPlanRequest, PlanningActivities
from activities.tracking.activity import TrackingActivities, TrackRequest
from activities.workspace.activity import WorkspaceActivities
from activities.workspace.port import CloseRequest, OpenRequest
from activities.workspace.scope import EpisodeScope
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeState
from workflows.run.activities import new_activity_id

TIMEOUT = timedelta(minutes=1)


@activity.defn
async def think() -> None:
    """Do nothing, on the event loop as the planner does."""


@activity.defn
def act() -> None:
    """Do nothing, in a thread as the other activities do."""


@workflow.defn
class BareEmpty:
    """As many activity calls as an iteration has, with nothing in them."""

    @workflow.run
    async def run(self, iterations: int) -> None:
        """Loop."""
        for _ in range(iterations):
            await workflow.execute_activity(think, start_to_close_timeout=TIMEOUT)
            for _ in range(4):
                await workflow.execute_activity(act, start_to_close_timeout=TIMEOUT)


@workflow.defn
class BareWork:
    """The activities of an episode, called one after another with the least that they need."""

    @workflow.run
    async def run(self, request: EpisodeRequest, iterations: int) -> None:
        """Open, iterate, close."""
        info = workflow.info()
        scope = EpisodeScope(episode_id=info.workflow_id, workspace=request.workspace)
        opened = await _call(
            WorkspaceActivities.open_workspace, OpenRequest(scope=scope, episode=request, opening=info.run_id)
        )
        scope = scope.evolve(request=opened.request)
        baseline = await _call(VerificationActivities.verify, VerifyRequest(scope=scope, expected_tree=opened.tree))
        state = EpisodeState(request=opened.request, tree=opened.tree, checks=baseline.report)
        last = opened.checkpoint
        for iteration in range(1, iterations + 1):
            state, last = await self._iterate(scope, state.evolve(iteration=iteration), last)
        await _call(WorkspaceActivities.close_workspace, CloseRequest(scope=scope, outcome=EpisodeOutcome.SUCCEEDED))

    async def _iterate(self, scope: EpisodeScope, before: EpisodeState, last: Any) -> tuple[EpisodeState, Any]:
        plan = await _call(
            PlanningActivities.next_plan,
            NextPlanRequest(
                scope=scope, iteration=before.iteration, plan_request=before.plan_request, checks=before.checks
            ),
        )
        handed = await _call(
            ExecutionActivities.hand_off, HandOffRequest(scope=scope, iteration=before.iteration, plan=plan.plan)
        )
        report = await _call(
            ExecutionActivities.execute, ExecuteRequest(scope=scope, key=handed.key, expected_tree=before.tree)
        )
        verification = await _call(
            VerificationActivities.verify,
            VerifyRequest(scope=scope, expected_tree=report.new_tree, previous=before.checks),
        )
        state = before.evolve(
            tree=report.new_tree,
            plan=plan.plan,
            plan_title=plan.title,
            checks=verification.report,
            checks_text=verification.passed_of_all,
        )
        tracked = await _call(
            TrackingActivities.track_iteration,
            TrackRequest(
                scope=scope,
                state=state,
                base_tree=before.tree,
                base_lines=last.lines,
                previous_plan=before.plan,
                checks_before=before.checks_text,
                parent=last.id,
                report=report,
                verification=verification,
            ),
        )
        return state.evolve(plan_request=tracked.plan_request), tracked.checkpoint


@workflow.defn
class BareIdle:
    """Waits for a signal that does not come."""

    @workflow.run
    async def run(self) -> None:
        """Wait."""
        await workflow.wait_condition(lambda: False)


async def _call(method: Callable[[Any, Any], Any], request: Any) -> Any:
    # With an id: what an activity is given is sealed for it, and a workflow knows no other id than its own.
    return await workflow.execute_activity_method(
        method, request, start_to_close_timeout=TIMEOUT, activity_id=new_activity_id()
    )
