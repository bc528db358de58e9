"""What the activities of plans leave in the ledger; see `Call`."""

from activities.plan.requests import (
    ClosePlanRequest,
    CompensationResult,
    OpenedPlan,
    OpenPlanRequest,
    PlanScope,
    RevisedPlan,
    RevisePlanRequest,
    RunStepRequest,
    StepRun,
)
from activities.workspace.trail import Call, Ledger
from tightloop.ledger.model import StepRow, TrailEvent
from tightloop.plan.child import child_id
from tightloop.plan.engine.graph import Graph
from tightloop.plan.result import StepResult, StepStatus
from tightloop.value import counted, shorten

LINE_CHARACTERS = 400


def note_opened(ledger: Ledger, request: OpenPlanRequest, opened: OpenedPlan, call: Call) -> None:
    """Enter a plan that was opened, with its steps."""
    _note(ledger, request.scope, call, "plan-opened", opened.plan.sha256[:12], key=f"opened/{request.opening}")
    if request.snapshot is not None:
        title = Graph.unpack(opened.graph).head.title
        ledger.record(request.snapshot.evolve(goal=request.snapshot.goal or title))
    ledger.add_steps(_steps(request.scope, opened.graph, call))


def note_revised(ledger: Ledger, request: RevisePlanRequest, revised: RevisedPlan, call: Call) -> None:
    """Enter a revision of a plan, with the steps that are new; a text that was refused leaves nothing."""
    if revised.plan is None:
        return
    line = f"revision {request.scope.revision + 1}: {revised.diff}"
    _note(ledger, request.scope, call, "plan-revised", line, key=f"revised/{revised.plan.sha256}")
    ledger.add_steps(_steps(request.scope, revised.graph, call))


def note_begun(ledger: Ledger, request: RunStepRequest, call: Call, child: str = "") -> None:
    """Enter that an attempt of a step begins."""
    if not request.dry_run:
        row = _row(request, StepStatus.RUNNING, call).evolve(at=call.scheduled, child_id=child)
        ledger.record_steps([row])


def note_prepared(ledger: Ledger, request: RunStepRequest, prepared: StepRun, call: Call) -> None:
    """Enter that an attempt starts workflows, or its result where it starts none."""
    if prepared.result is not None:
        note_ended(ledger, request, prepared.result, call)
        return
    first = prepared.names[0] if prepared.names else ""
    note_begun(ledger, request, call, child_id(request.scope.episode_id, request.step, request.attempt, first))


def note_ended(ledger: Ledger, request: RunStepRequest, result: StepResult, call: Call) -> None:
    """Enter what became of an attempt."""
    if not request.dry_run:
        ledger.record_steps([_row(request, result.status, call)])


def note_compensated(ledger: Ledger, request: RunStepRequest, found: CompensationResult, call: Call) -> None:
    """Enter that an attempt was taken back, or why it could not be."""
    said = found.failure or counted(found.files_changed, "file")
    key = f"compensated/{request.step}/{request.attempt}/{call.run}"
    _note(ledger, request.scope, call, "plan-compensated", f"{request.step}: {said}", key=key)
    if not found.failure:
        ledger.record_steps([_row(request, StepStatus.COMPENSATED, call)])


def note_closed(ledger: Ledger, request: ClosePlanRequest, call: Call) -> None:
    """Enter how a plan ended, and where its steps that are not completed stand."""
    scope = request.scope
    line = f"{request.outcome.value}: {request.reason}"
    _note(ledger, scope, call, "plan-closed", line, key=f"closed/{call.run}")
    ledger.close_steps(scope.episode_id, request.statuses, at=call.scheduled)
    if request.snapshot is not None:
        ledger.record(request.snapshot)


def _steps(scope: PlanScope, packed: str, call: Call) -> list[StepRow]:
    nodes = Graph.unpack(packed).nodes
    return [
        StepRow(
            plan_id=scope.episode_id,
            step=node.id,
            status=StepStatus.PENDING.value,
            needs=tuple(nodes[need].id for need in node.needs),
            title=node.title,
            order=number,
            at=call.scheduled,
        )
        for number, node in enumerate(nodes)
    ]


def _row(request: RunStepRequest, status: StepStatus, call: Call) -> StepRow:
    plan = request.scope.episode_id
    return StepRow(plan_id=plan, step=request.step, status=status.value, attempt=request.attempt, at=call.started)


def _note(ledger: Ledger, scope: PlanScope, call: Call, kind: str, text: str, *, key: str) -> None:
    line = shorten(text, LINE_CHARACTERS)
    ledger.add_event(TrailEvent(episode_id=scope.episode_id, kind=kind, text=line, key=key, at=call.scheduled))
