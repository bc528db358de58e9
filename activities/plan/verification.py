"""The definition of done of a plan, executed."""

from pathlib import Path

from activities.artifacts.port import put_model
from activities.checks.activity import run_check
from activities.checks.port import CheckRunner
from activities.plan.attempts.context import ActivityRun, AttemptPorts
from activities.plan.records.account import CHECKS_FACT, ChecksFact
from activities.plan.records.file_records import open_file_records
from activities.plan.requests import PlanVerification, VerifyPlanRequest
from tightloop.episode.check import FAILING_LIMIT, CheckReport, CheckResult
from tightloop.safety.drift import DriftCause
from tightloop.value import clip, shorten
from tightloop.value.scrub import scrub

TAIL_CHARACTERS = 240


def run_definition_of_done(
    ports: AttemptPorts, runner: CheckRunner, request: VerifyPlanRequest, call: ActivityRun
) -> PlanVerification:
    """Run every check on exactly the expected tree, and leave that tree behind. Idempotent by that.

    Raises:
        CancelledError: the activity was cancelled.
        WorkspaceLockedError: another attempt holds the tree. Retryable.
    """
    scope = request.scope
    workspace = Path(scope.workspace)
    store, plan = ports.stores(workspace), ports.plans.load(scope).plan
    with ports.workspaces.hold(scope) as tree:
        drift = tree.expect(request.expected_tree)
        expected = request.expected_tree
        results = tuple(
            run_check(runner, check, tree, store, expected_tree=expected, cancelled=call.cancelled)
            for check in plan.definition_of_done
        )
        touched = tree.ensure(request.expected_tree, DriftCause.DURING_CHECKS)
    report = CheckReport(tree=request.expected_tree, results=results)
    fact = ChecksFact(report=put_model(store, report, name="checks"))
    open_file_records(workspace).keep(scope.episode_id, CHECKS_FACT, fact)
    return PlanVerification(
        passed=not report.failed,
        total=len(results),
        failed=tuple(_line(result) for result in report.failed[:FAILING_LIMIT]),
        tree=request.expected_tree,
        drift=drift,
        touched=touched,
    )


def _line(result: CheckResult) -> str:
    # Scrubbed before it is cut: what is left of a cut secret has no form to know it by.
    tail = " ".join(clip(scrub(result.tail), TAIL_CHARACTERS).split())
    return f"{shorten(result.name, 80)}: {result.status.value.replace('_', ' ')}" + (f": {tail}" if tail else "")
