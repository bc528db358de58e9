"""Plan activities, including checks and compensations."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from temporalio import activity

from activities.artifacts.port import put_model
from activities.attempt import should_stop
from activities.checks.activity import run_check_with_retry
from activities.plan.attempts.context import AttemptPorts
from activities.plan.attempts.runner import (
    AttemptRunner,
    check_changes,
    check_command,
    drop_own_drift,
    fail_step,
    make_failure,
    own_paths,
    replace_files,
    write_record,
)
from activities.plan.opening import Grow, PlanOpener, save_rerun_base
from activities.plan.outputs import unpack
from activities.plan.port import (
    Runner,
    RunnerResult,
    Work,
    note_closing,
    note_compensation,
    note_opening,
    note_preparation,
    note_revision,
    note_step_end,
    note_step_start,
)
from activities.plan.records import (
    CHECKS_FACT,
    ChecksFact,
    FileRecords,
    LoadedPlan,
    open_file_records,
    record_digest,
    store_account,
)
from activities.plan.requests import (
    ClosePlanRequest,
    CompensationResult,
    LoadPlanRequest,
    OpenedPlan,
    OpenPlanRequest,
    PlanClosed,
    PlanScope,
    PlanVerification,
    RevisedPlan,
    RevisePlanRequest,
    RunStepRequest,
    SettleRequest,
    StepRun,
    VerifyPlanRequest,
)
from activities.workspace.activity import restore_expected_tree
from activities.workspace.folders import store_folder_of
from activities.workspace.port import BASE, RESULT, OpenEpisodes, ResultPart, Setups, closing_message
from activities.workspace.scope import Ledgers, this_call
from tightloop.episode.check import FAILING_LIMIT, CheckReport, CheckResult, check_key, check_name
from tightloop.errors import ExpressionError, InvalidRequestError
from tightloop.plan.action import ShellAction
from tightloop.plan.child import StepRecord, StepResult, StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.engine.graph import is_plain
from tightloop.plan.failing import Compensation
from tightloop.plan.guard import find_effects, judge
from tightloop.plan.reference import resolve
from tightloop.plan.request import PlanOutcome
from tightloop.plan.step import CHILDREN, Access, Capability, Step
from tightloop.safety.drift import DriftCause
from tightloop.safety.rubric import Verdict
from tightloop.value import Value, abridge, clip, format_count, shorten
from tightloop.value.scrub import scrub

if TYPE_CHECKING:
    from activities.checks.runner import CheckRunner
    from activities.plan.children import StepChildren
    from activities.plan.plan_writer import PlanWriter
    from activities.workspace.working_tree import WorkingTree
    from tightloop.database.project import ProjectLedger

CONFLICTS_SHOWN = 10
REASON_CHARACTERS = 500
RunCommand = Callable[[Work], RunnerResult]
RunStep = Callable[[RunStepRequest], StepResult]


SUMMARY_COMMAND_CHARACTERS = 120


class CompensationFact(Value):
    """Records the compensation of an attempt and the resulting tree."""

    result: CompensationResult


class Compensator:
    """Compensates steps. Idempotent: a second call for the same attempt returns the recorded result."""

    def __init__(self, ports: AttemptPorts, run_command: RunCommand) -> None:
        self._ports = ports
        self._run_command = run_command

    def compensate(self, request: RunStepRequest, run_step: RunStep) -> CompensationResult:
        """Compensate one attempt. If this fails, the files remain unchanged.

        Raises:
            WorkspaceLockedError: another attempt has locked the tree. Retryable.
        """
        scope, plans = request.scope, self._ports.plans
        loaded = plans.load(scope)
        # A later revision may have dropped the step, so use the newest revision that still has it.
        while (request.template or request.step) not in loaded.steps and loaded.stored.previous is not None:
            scope = scope.evolve(plan=loaded.stored.previous, revision=loaded.stored.revision - 1)
            loaded = plans.load(scope)
        work = self._ports.begin(request.evolve(scope=scope), loaded)
        step, records = work.step, work.records
        record = records.find_attempt(scope.episode_id, step.id, request.attempt)
        if record is None:
            return _fail_compensation(work.request, f"step {step.id!r} has no record of attempt {request.attempt}")
        # Named after the record, not the attempt, whose number a re-run of the plan uses again.
        fact = f"compensated-{record_digest(record)[:16]}"
        # Before the tree is locked: the compensation step takes the lock itself.
        by_step = None if record.undone else self._run_compensation_step(work, run_step)
        with self._ports.workspaces.hold(scope) as tree:
            stored = records.read_fact(scope.episode_id, fact, CompensationFact)
            # Read again: the previous lock holder may have compensated it in the meantime.
            record = records.find_attempt(scope.episode_id, step.id, request.attempt) or record
            if stored is not None and record.undone:
                restore_expected_tree(tree, stored.result.tree)
                return stored.result
            drift = restore_expected_tree(tree, by_step.tree if by_step is not None else request.expected_tree)
            result = by_step or self._take_back(work, record, tree)
            result = result.evolve(drift=result.drift or drift)
            if not result.failure:
                tree.keep(f"undone-{record_digest(record)[:12]}", result.tree)
                records.write_fact(scope.episode_id, fact, CompensationFact(result=result))
                # The mark comes last: the fact counts only together with it, so a crash in between repeats the work.
                records.mark_undone(scope.episode_id, step.id, request.attempt)
            return result

    def _take_back(self, work: Work, record: StepRecord, tree: "WorkingTree") -> CompensationResult:
        how = work.step.compensate or Compensation()
        if how.run:
            result, run_result = self._run_compensation_command(work, record, how.run, tree)
        elif how.none or record.tree_before == record.tree_after:
            expected = work.request.expected_tree
            result = CompensationResult(tree=expected, summary="nothing to undo")
            run_result = RunnerResult(command="nothing to undo")
        else:
            result = self._undo_files(work, record, tree)
            run_result = RunnerResult(command=f"undo the file changes of {record.step}")
        failure = make_failure(result.failure) if result.failure else None
        # The command's log is stored as an artifact; its outputs are not readable by references.
        run_result = replace(run_result, outputs={}, failure=failure, summary="")
        undo = replace(work, step=Step(id=f"undo-{record.step}"), inputs_sha256=record_digest(record))
        write_record(undo, run_result, tree=result.tree, tree_after=result.tree)
        return result

    def _undo_files(self, work: Work, record: StepRecord, tree: "WorkingTree") -> CompensationResult:
        request = work.request
        store = store_folder_of(request.scope)
        undone = self._ports.trees.undo(store, record.tree_before, record.tree_after, request.expected_tree)
        if undone.conflicts:
            paths = ", ".join(undone.conflicts[:CONFLICTS_SHOWN])
            more = len(undone.conflicts) - CONFLICTS_SHOWN
            return _fail_compensation(
                request,
                f"step {record.step!r} cannot be undone: later steps changed the same parts of "
                f"{paths}{f' and {more} more' if more > 0 else ''}. No files were changed. Undo the later steps "
                "first",
            )
        trees, before = self._ports.trees, request.expected_tree
        drift = replace_files(tree, trees, store, before, undone.tree, undone_step=record.step)
        own_files = own_paths(work.step, record.outputs, record.command)
        drift = drop_own_drift(
            drift, before, trees.changed_paths(store, record.tree_before, record.tree_after), own_files
        )
        summary = f"{format_count(undone.files, 'file')} restored"
        return CompensationResult(tree=undone.tree, files_changed=undone.files, summary=summary, drift=drift)

    def _run_compensation_command(
        self, work: Work, record: StepRecord, command: str, tree: "WorkingTree"
    ) -> tuple[CompensationResult, RunnerResult]:
        request, lookup = work.request, work.lookup
        # The command reads the outputs of the step that it compensates as if they were its own.
        lookup.results = {name: unpack(value, work.store) for name, value in record.outputs.items()}
        lookup.status = record.result.status.value
        lookup.inputs = resolve(work.step.inputs, lookup)
        step = Step(
            id=record.step, shell=ShellAction(run=command), timeout_s=work.step.timeout_s, expect=work.step.expect
        )
        work = replace(work, step=step, tree=tree)
        # Not the expected tree: edits of a person stay on disk, and must survive a failed command.
        before = tree.snapshot()
        try:
            if forbidden := check_command(work):
                return _fail_compensation(
                    request, f"step {record.step!r} cannot be undone: {forbidden}"
                ), RunnerResult()
            run_result = self._run_command(work)
        except (InvalidRequestError, ExpressionError) as error:
            return _fail_compensation(
                request, f"step {record.step!r} cannot be undone: {error.message}"
            ), RunnerResult()
        after = tree.snapshot()
        paths = self._ports.trees.changed_paths(store_folder_of(request.scope), before, after)
        code = run_result.outputs.get("exit_code")
        if run_result.failure is not None or code != 0:
            why = run_result.failure.reason if run_result.failure is not None else f"exit code {code}"
            result = _fail_compensation(request, f"the command that undoes step {record.step!r} failed: {why}")
        # A compensation obeys the policy too; only its result shows which files the command wrote.
        elif refusal := check_changes(work.plan, paths):
            result = _fail_compensation(request, f"step {record.step!r} cannot be undone: {refusal}")
        else:
            summary = _summary(work.command.inlined_text, run_result.summary, len(paths))
            return CompensationResult(tree=after, files_changed=len(paths), summary=summary), run_result
        undone = tree.ensure(before, DriftCause.DURING_STEP, step=f"undo-{record.step}")
        return result.evolve(drift=undone), run_result

    def _run_compensation_step(self, work: Work, run_step: RunStep) -> CompensationResult | None:
        """Run the step that compensates another step. Return None if there is no such step.

        The record of the compensation step is named `undo-<step>`.
        """
        request, name = work.request, (work.step.compensate or Compensation()).step
        if not name:
            return None
        if name not in work.loaded.steps:
            return _fail_compensation(
                request, f"step {request.step!r} must be undone by step {name!r}, but the plan has no such step"
            )
        undo, before = f"undo-{request.step}", request.expected_tree
        result = run_step(
            RunStepRequest(scope=request.scope, step=undo, template=name, attempt=request.attempt, expected_tree=before)
        )
        if result.status is not StepStatus.COMPLETED:
            why = result.failure.reason if result.failure is not None else result.status.value
            failed = _fail_compensation(
                request, f"step {name!r}, which undoes step {request.step!r}, did not complete: {why}"
            )
            return failed.evolve(step=name)
        after = result.tree or before
        store = store_folder_of(request.scope)
        files = len(self._ports.trees.changed_paths(store, before, after)) if after != before else 0
        record = work.records.find_attempt(request.scope.episode_id, undo, request.attempt)
        summary = f"step {name}: {_summary(record.command if record else '', result.summary, files)}"
        return CompensationResult(tree=after, files_changed=files, summary=summary, step=name)


def _summary(command: str, result: str, files: int) -> str:
    parts = [shorten(" ".join(scrub(command).split()), SUMMARY_COMMAND_CHARACTERS), scrub(result)]
    return ": ".join(filter(None, parts)) + f", {format_count(files, 'file')} changed"


def _fail_compensation(request: RunStepRequest, reason: str) -> CompensationResult:
    return CompensationResult(tree=request.expected_tree, failure=abridge(scrub(reason), REASON_CHARACTERS))


TAIL_CHARACTERS = 240


def run_definition_of_done(ports: AttemptPorts, runner: "CheckRunner", request: VerifyPlanRequest) -> PlanVerification:
    """Run every check on exactly the expected tree. Idempotent, because the tree is restored afterwards.

    Raises:
        CancelledError: the activity was cancelled.
        WorkspaceLockedError: another attempt has locked the tree. Retryable.
    """
    scope = request.scope
    workspace = Path(scope.workspace)
    store, plan = ports.stores(workspace), ports.plans.load(scope).plan
    with ports.workspaces.hold(scope) as tree:
        drift = tree.expect(request.expected_tree)
        outcomes = [
            run_check_with_retry(
                runner,
                check,
                tree,
                store,
                expected_tree=request.expected_tree,
                cancelled=should_stop,
                failed_before=request.failed_before,
            )
            for check in plan.definition_of_done
        ]
        # Caches and reports that the checks leave behind must not become part of the plan's result.
        touched = tree.ensure(request.expected_tree, DriftCause.DURING_CHECKS)
    report = CheckReport(tree=request.expected_tree, results=tuple(result for result, _ in outcomes))
    flaky = [check_name(result.name) for result, is_flaky in outcomes if is_flaky]
    fact = ChecksFact(report=put_model(store, report, name="checks"))
    open_file_records(workspace).write_fact(scope.episode_id, CHECKS_FACT, fact)
    return PlanVerification(
        passed=not report.failed,
        total=len(outcomes),
        failed=tuple(_line(result) for result in report.failed[:FAILING_LIMIT]),
        keys=tuple(check_key(result.run) for result in report.failed[:FAILING_LIMIT]),
        flaky=tuple(flaky[:FAILING_LIMIT]),
        tree=request.expected_tree,
        drift=drift,
        touched=touched,
    )


def _line(result: CheckResult) -> str:
    # Scrub before clipping: a truncated secret no longer matches any pattern.
    tail = " ".join(clip(scrub(result.tail), TAIL_CHARACTERS).split())
    return f"{check_name(result.name)}: {result.status.value.replace('_', ' ')}" + (f": {tail}" if tail else "")


@dataclass(frozen=True, kw_only=True)
class PlanPorts(AttemptPorts):
    """Dependencies of the plan activities."""

    ledgers: Ledgers
    checks: "CheckRunner"
    runners: Mapping[Capability, Runner]
    children: "StepChildren"
    writer: "PlanWriter | None"
    run_command: RunCommand
    """Runs the shell command that compensates a step."""
    has_ended: OpenEpisodes
    grow: Grow | None = None
    """Creates the revisions that a plan derives from its own results."""
    setups: Setups | None = None


def _runs(capability: Capability, name: str) -> Callable[["PlanActivities", RunStepRequest], StepResult]:
    """Build the activity that runs one attempt of a step with this capability."""

    def run(self: "PlanActivities", request: RunStepRequest) -> StepResult:
        return self._run(capability, request)

    # Workflow histories refer to the activity by name, and test doubles look it up by `__name__`.
    run.__name__ = name
    # With an annotation, the SDK would take `self` for the activity's argument.
    del run.__annotations__["self"]
    return activity.defn(name=name, no_thread_cancel_exception=True)(run)


STEP_ACTIVITIES = {
    capability: _runs(capability, name)
    for capability, name in (
        (Capability.SHELL, "run_shell"),
        (Capability.EDIT, "run_edit"),
        (Capability.GIT, "run_git"),
        (Capability.HTTP, "run_http"),
        (Capability.SEARCH, "run_search"),
        (Capability.MODEL, "run_model"),
        (Capability.GATE, "run_gate"),
        (Capability.DECISION, "run_decision"),
        (Capability.CHECKPOINT, "take_checkpoint"),
        (Capability.PROJECT, "run_project"),
    )
}
"""Activities by capability. Milestones have their own activity, and some capabilities start child workflows instead."""


# no_thread_cancel_exception: otherwise the SDK raises in the thread between any two lines, for example after a file was
# changed but before it was recorded. Long operations poll `is_cancelled` where stopping is safe.
class PlanActivities:
    """The activities for plans. All are idempotent and registered under their method names."""

    def __init__(self, ports: PlanPorts) -> None:
        self._ports = ports
        self._attempts = AttemptRunner(ports)
        capabilities = frozenset(capability.value for capability in (*ports.runners, *CHILDREN))
        self._opener = PlanOpener(ports, ports.has_ended, ports.writer, capabilities, ports.grow)
        self._compensator = Compensator(ports, ports.run_command)

    @activity.defn(no_thread_cancel_exception=True)
    def open_plan(self, request: OpenPlanRequest) -> OpenedPlan:
        """Claim the workspace and open the plan.

        The plan is parsed, validated and stored, and the initial tree is saved.

        Raises:
            WorkspaceError: the workspace cannot be used. The message says what to do. Not retryable.
            PlanError: the plan is invalid. The error lists all problems with their lines and columns. Not retryable.
            IdTakenError: another plan in this project has already used the id. Not retryable.
        """
        opened = self._opener.open(request)
        note_opening(self._ledger(request.scope), request, opened, this_call())
        if self._ports.setups is not None and not request.request.dry_run:
            # In a plan that runs again, an agent may have changed the lock files since the command was named.
            named = request.request.setup if request.request.depth == 1 and request.is_new else ""
            with self._ports.workspaces.hold(request.scope) as tree:
                setup, missing = self._ports.setups.examine(request.scope, tree, opened.tree, named)
            opened = opened.evolve(setup=setup, notes=(*missing, *opened.notes))
        # Set after the plan was recorded: a retry returns the recorded plan with its own attempt number.
        return opened.evolve(attempt=activity.info().attempt)

    @activity.defn(no_thread_cancel_exception=True)
    def leave_workspace(self, request: LoadPlanRequest) -> None:
        """Release the claim while the plan waits for a person. Another run can then use the workspace."""
        self._ports.workspaces.release(request.scope)

    @activity.defn(no_thread_cancel_exception=True)
    def enter_workspace(self, request: LoadPlanRequest) -> str:
        """Claim the workspace again. Return the tree of a snapshot of its current files.

        Raises:
            WorkspaceBusyError: an episode or another plan is using the workspace. Not retryable.
        """
        # While the plan waited, another run may have changed the files: the plan continues with what is there now.
        self._ports.workspaces.prepare(request.scope, take_over=self._ports.has_ended)
        with self._ports.workspaces.hold(request.scope) as tree:
            snapshot = tree.snapshot()
            tree.keep("plan.entered", snapshot)
            return snapshot

    @activity.defn(no_thread_cancel_exception=True)
    def load_plan(self, request: LoadPlanRequest) -> OpenedPlan:
        """Return the graph of a stored revision."""
        return self._opener.load(request)

    @activity.defn(no_thread_cancel_exception=True)
    def revise_plan(self, request: RevisePlanRequest) -> RevisedPlan:
        """Return the next revision, or the reason why the text was rejected.

        Each retry makes another paid request to the planner.
        """
        revised = self._opener.revise(request)
        if revised.plan is not None:
            note_revision(self._ledger(request.scope), request, revised, this_call())
        return revised

    # A coroutine, so that it does not occupy one of the worker's threads, which steps hold until they end.
    @activity.defn
    async def pass_milestone(self, request: RunStepRequest) -> StepResult:
        """Evaluate a milestone's conditions.

        A milestone without conditions passes immediately.
        """
        loaded = self._ports.plans.find_cached_plan(request.scope)
        if loaded is None:
            loaded = await asyncio.to_thread(self._ports.plans.load, request.scope)
        if self._passes(loaded, request):
            return StepResult(status=StepStatus.COMPLETED)
        return await asyncio.to_thread(self._run, Capability.NONE, request)

    @activity.defn(no_thread_cancel_exception=True)
    def prepare_children(self, request: RunStepRequest) -> StepRun:
        """Return the child workflows that a step needs. If it needs none, return the step's result."""
        prepared = self._prepare(request)
        note_preparation(self._ledger(request.scope), request, prepared, this_call())
        return prepared

    @activity.defn(no_thread_cancel_exception=True)
    def settle_children(self, request: SettleRequest) -> StepResult:
        """Evaluate the results of a step's child workflows and record the attempt."""
        result = self._settle(request)
        note_step_end(self._ledger(request.scope), request.run, result, this_call())
        return result

    def _prepare(self, request: RunStepRequest) -> StepRun:
        work = self._attempts.prepare(request, self._ports.children.preview)
        if isinstance(work, StepResult):
            return StepRun(result=work)
        try:
            return self._ports.children.prepare(work)
        except InvalidRequestError as error:
            # A mistake of the plan's author: it fails this step, and not the activity.
            return StepRun(result=write_record(work, fail_step(error.message)))

    def _settle(self, request: SettleRequest) -> StepResult:
        work = self._attempts.prepare(request.run, self._ports.children.preview)
        if isinstance(work, StepResult):
            return work
        # Steps of these kinds apply their children's trees themselves.
        takes_over = work.step.capability is Capability.BRANCH or work.step.tree_access is Access.MERGES
        left = request.trees[0] if request.trees and not takes_over else ""

        def act(work: Work) -> RunnerResult:
            return self._ports.children.settle(work, request)

        return self._attempts.carry_out(work, act, left=left or request.run.expected_tree)

    @activity.defn(no_thread_cancel_exception=True)
    def compensate_step(self, request: RunStepRequest) -> CompensationResult:
        """Compensate one attempt at a step. If this fails, the files remain unchanged."""
        result = self._compensator.compensate(request, self._run_as_written)
        note_compensation(self._ledger(request.scope), request, result, this_call())
        return result

    @activity.defn(no_thread_cancel_exception=True)
    def verify_plan(self, request: VerifyPlanRequest) -> PlanVerification:
        """Run the definition of done on exactly the expected tree."""
        return run_definition_of_done(self._ports, self._ports.checks, request)

    @activity.defn(no_thread_cancel_exception=True)
    def close_plan(self, request: ClosePlanRequest) -> PlanClosed:
        """Restore the expected tree, store the plan's archive and release the claim."""
        scope = request.scope
        if scope.plan is None:
            # The plan was never opened, so the workspace may not exist.
            return PlanClosed()
        drift = None
        if request.expected_tree:
            with self._ports.workspaces.hold(scope) as tree:
                drift = restore_expected_tree(tree, request.expected_tree)
                if scope.base_tree:
                    tree.keep(BASE, scope.base_tree)
                    tree.keep(RESULT, request.expected_tree)
        workspace = Path(scope.workspace)
        records = open_file_records(workspace)
        delivered = ""
        if request.expected_tree and request.result != "tree" and request.outcome is PlanOutcome.COMPLETED:
            parts = _result_parts(request, self._ports.plans.load(scope).plan, records)
            delivered = self._ports.workspaces.deliver(scope, parts)
        save_rerun_base(records, scope, request.expected_tree)
        archive = store_account(request, self._ports.plans.load(scope), records, self._ports.stores(workspace))
        self._ports.children.remove_leftovers(scope)
        # Last: once released, another plan may change the files that the archive describes.
        self._ports.workspaces.release(scope)
        result = PlanClosed(archive=archive, drift=drift, delivered=delivered)
        note_closing(self._ledger(scope), request, this_call(), result)
        return result

    def _passes(self, loaded: LoadedPlan, request: RunStepRequest) -> bool:
        """Return whether the step is a plain milestone that the policy allows.

        Such a step can be decided without I/O.
        """
        step = loaded.step(request.step, request.template)
        return is_plain(step) and judge(loaded.plan.policy, step, find_effects(step, {})).verdict is Verdict.ALLOW

    def _run(self, capability: Capability, request: RunStepRequest) -> StepResult:
        runner = self._ports.runners.get(capability)
        if runner is None:
            raise InvalidRequestError(f"this worker has no runner for steps that use {capability.value!r}")
        # Before the work begins, so that a page shows the step as running while the policy and the cache are consulted.
        note_step_start(self._ledger(request.scope), request, this_call())
        work = self._attempts.prepare(request, runner.preview)
        result = work if isinstance(work, StepResult) else self._attempts.carry_out(work, runner.run)
        note_step_end(self._ledger(request.scope), request, result, this_call())
        return result

    # A compensation step may have any capability, whatever capability the compensated step has.
    def _run_as_written(self, request: RunStepRequest) -> StepResult:
        step = self._ports.plans.load(request.scope).step(request.step, request.template)
        return self._run(step.capability, request)

    def _ledger(self, scope: PlanScope) -> "ProjectLedger":
        return self._ports.ledgers(Path(scope.workspace))


def _result_parts(request: ClosePlanRequest, plan: Plan, records: FileRecords) -> tuple[ResultPart, ...]:
    """Return the changes of a plan, either as a whole or for each step in the order they were made."""
    scope, message = request.scope, closing_message(request.title or plan.title, request.snapshot, request.reason)
    if request.result != "commits":
        return (ResultPart(scope.base_tree, request.expected_tree, message),)
    titles = {step.id: step.title for step in plan.steps}
    parts, tree = list[ResultPart](), scope.base_tree
    for record in records.find_run_records(scope.episode_id):
        if record.tree_after and record.tree_after not in (record.tree_before, tree) and not record.undone:
            title = titles.get(record.step) or record.result.summary or record.step
            text = closing_message(title, request.snapshot, request.reason)
            parts.append(ResultPart(tree, record.tree_after, text))
            tree = record.tree_after
    if tree != request.expected_tree:
        parts.append(ResultPart(tree, request.expected_tree, message))
    return tuple(parts)
