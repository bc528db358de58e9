"""The definition of done of a plan, executed."""

from pathlib import Path

from temporalio.exceptions import CancelledError

from activities.artifacts.port import ArtifactStore, put_model
from activities.plan.account import CHECKS_FACT, ChecksFact
from activities.plan.entered import Call, Parts
from activities.plan.requests import PlanVerification, VerifyPlanRequest
from activities.verification.port import CheckRunner
from activities.workspace.port import WorkingTree
from tightloop.check import FAILING_LIMIT, Check, CheckReport, CheckResult, judge
from tightloop.scrub import scrub
from tightloop.value import clip, shorten

TAIL_CHARACTERS = 240


def verified(parts: Parts, runner: CheckRunner, request: VerifyPlanRequest, call: Call) -> PlanVerification:
    """Run every check on exactly the expected tree, and leave that tree behind. Idempotent by that.

    Raises:
        CancelledError: the activity was cancelled.
        WorkspaceLockedError: another attempt holds the tree. Retryable.
    """
    scope = request.scope
    workspace = Path(scope.workspace)
    store, plan = parts.stores(workspace), parts.plans.load(scope).plan
    with parts.workspaces.hold(scope) as tree:
        drift = tree.ensure(request.expected_tree)
        results = tuple(_run(check, tree, store, (runner, request, call)) for check in plan.definition_of_done)
        tree.ensure(request.expected_tree)
    report = CheckReport(tree=request.expected_tree, results=results)
    fact = ChecksFact(report=put_model(store, report, name="checks"))
    parts.records(workspace).keep(scope.episode_id, CHECKS_FACT, fact)
    return PlanVerification(
        passed=not report.failed,
        total=len(results),
        failed=tuple(_line(result) for result in report.failed[:FAILING_LIMIT]),
        tree=request.expected_tree,
        drift=drift,
    )


def _run(
    check: Check, tree: WorkingTree, store: ArtifactStore, around: tuple[CheckRunner, VerifyPlanRequest, Call]
) -> CheckResult:
    runner, request, call = around
    result = runner.run(check, tree.root, cancelled=call.cancelled, started=tree.own_process)
    if call.cancelled():
        raise CancelledError(f"verification was stopped during {check.title!r}")
    return judge(
        check,
        tree=request.expected_tree,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        duration_s=result.duration_s,
        output=result.output.decode("utf-8", "replace"),
        artifact=store.put(result.output, name="check output", media_type="text/plain"),
    )


def _line(result: CheckResult) -> str:
    # Scrubbed before it is cut: what is left of a cut secret has no form to know it by.
    tail = " ".join(clip(scrub(result.tail), TAIL_CHARACTERS).split())
    return f"{shorten(result.name, 80)}: {result.status.value.replace('_', ' ')}" + (f": {tail}" if tail else "")
