"""Taking a step back: its files exactly, or by the command or the step that the plan names for it."""

from collections.abc import Callable
from dataclasses import replace

from activities.plan.attempts.context import AttemptPorts
from activities.plan.attempts.runner import (
    check_changes,
    check_command,
    make_failure,
    move,
    own_paths,
    without_own,
    write_record,
)
from activities.plan.outputs import unpack
from activities.plan.port import RunnerResult, Work
from activities.plan.records import record_digest
from activities.plan.requests import CompensationResult, RunStepRequest
from activities.workspace.activity import leave
from activities.workspace.folders import store_folder_of
from activities.workspace.port import WorkingTree
from tightloop.errors import ExpressionError, InvalidRequestError
from tightloop.plan.child import StepRecord, StepResult, StepStatus
from tightloop.plan.document.action import ShellAction
from tightloop.plan.document.failing import Compensation
from tightloop.plan.document.step import Step
from tightloop.plan.language.reference import resolve
from tightloop.safety.drift import DriftCause
from tightloop.value import Value, abridge
from tightloop.value.scrub import scrub

CONFLICTS_SHOWN = 10
REASON_CHARACTERS = 500
RunCommand = Callable[[Work], RunnerResult]
RunStep = Callable[[RunStepRequest], StepResult]


class CompensationFact(Value):
    """That an attempt was taken back, and what the tree was then."""

    result: CompensationResult


class Compensator:
    """Takes steps back. Idempotent: the result of what was taken back is returned again."""

    def __init__(self, ports: AttemptPorts, run_command: RunCommand) -> None:
        """Take the ports, and what runs a command of the plan."""
        self._ports = ports
        self._run_command = run_command

    def compensate(self, request: RunStepRequest, run_step: RunStep) -> CompensationResult:
        """Take one attempt back; nothing is changed where that fails.

        Raises:
            WorkspaceLockedError: another attempt holds the tree. Retryable.
        """
        scope, plans = request.scope, self._ports.plans
        loaded = plans.load(scope)
        # A later revision may have left the step out: the newest that has it counts.
        while (request.template or request.step) not in loaded.steps and loaded.stored.previous is not None:
            scope = scope.evolve(plan=loaded.stored.previous, revision=loaded.stored.revision - 1)
            loaded = plans.load(scope)
        work = self._ports.begin(request.evolve(scope=scope), loaded)
        step, records = work.step, work.records
        record = records.attempt(scope.episode_id, step.id, request.attempt)
        if record is None:
            return _failed(work.request, f"step {step.id!r} has no record of attempt {request.attempt}")
        fact = f"compensated-{record_digest(record)[:16]}"
        # Before the tree is held: the step holds it itself.
        by_step = None if record.undone else _run_compensation_step(work, run_step)
        with self._ports.workspaces.hold(scope) as tree:
            known = records.kept(scope.episode_id, fact, CompensationFact)
            # Read again: who held the tree until now may have done it.
            record = records.attempt(scope.episode_id, step.id, request.attempt) or record
            if known is not None and record.undone:
                leave(tree, known.result.tree)
                return known.result
            drift = leave(tree, by_step.tree if by_step is not None else request.expected_tree)
            found = by_step or self._take_back(work, record, tree)
            found = found.evolve(drift=found.drift or drift)
            if not found.failure:
                tree.keep(f"undone-{record_digest(record)[:12]}", found.tree)
                records.keep(scope.episode_id, fact, CompensationFact(result=found))
                records.mark_undone(scope.episode_id, step.id, request.attempt)
            return found

    def _take_back(self, work: Work, record: StepRecord, tree: WorkingTree) -> CompensationResult:
        how = work.step.compensate or Compensation()
        if how.run:
            found, done = self._run_compensation_command(work, record, how.run, tree)
        elif how.none or record.tree_before == record.tree_after:
            expected = work.request.expected_tree
            found, done = CompensationResult(tree=expected), RunnerResult(command="nothing to take back")
        else:
            found = self._undo_files(work, record, tree)
            done = RunnerResult(command=f"undo the files of {record.step}")
        failure = make_failure(found.failure) if found.failure else None
        # The log of a command is among its artifacts; its outputs are not for references to read.
        done = replace(done, outputs={}, failure=failure, summary="")
        undo = replace(work, step=Step(id=f"undo-{record.step}"), inputs_sha256=record_digest(record))
        write_record(undo, done, tree=found.tree, tree_after=found.tree)
        return found

    def _undo_files(self, work: Work, record: StepRecord, tree: WorkingTree) -> CompensationResult:
        request = work.request
        store = store_folder_of(request.scope)
        undone = self._ports.trees.undo(store, record.tree_before, record.tree_after, request.expected_tree)
        if undone.conflicts:
            shown = ", ".join(undone.conflicts[:CONFLICTS_SHOWN])
            more = len(undone.conflicts) - CONFLICTS_SHOWN
            return _failed(
                request,
                f"step {record.step!r} cannot be taken back: later steps changed the same places of {shown}"
                f"{f' and {more} more' if more > 0 else ''}. Nothing was changed. Take those steps back first",
            )
        trees, before = self._ports.trees, request.expected_tree
        drift = move(tree, trees, store, before, undone.tree, undone_step=record.step)
        own = own_paths(work.step, record.outputs, record.command)
        drift = without_own(drift, before, trees.changed(store, record.tree_before, record.tree_after), own)
        return CompensationResult(tree=undone.tree, files_changed=undone.files, drift=drift)

    def _run_compensation_command(
        self, work: Work, record: StepRecord, command: str, tree: WorkingTree
    ) -> tuple[CompensationResult, RunnerResult]:
        request, lookup = work.request, work.lookup
        lookup.results = {name: unpack(value, work.store) for name, value in record.outputs.items()}
        lookup.status = record.result.status.value
        lookup.inputs = resolve(work.step.inputs, lookup)
        step = Step(
            id=record.step, shell=ShellAction(run=command), timeout_s=work.step.timeout_s, expect=work.step.expect
        )
        work = replace(work, step=step, tree=tree)
        before = tree.snapshot()
        try:
            if forbidden := check_command(work):
                return _failed(request, f"step {record.step!r} cannot be taken back: {forbidden}"), RunnerResult()
            done = self._run_command(work)
        except (InvalidRequestError, ExpressionError) as error:
            return _failed(request, f"step {record.step!r} cannot be taken back: {error.message}"), RunnerResult()
        after = tree.snapshot()
        paths = self._ports.trees.changed(store_folder_of(request.scope), before, after)
        code = done.outputs.get("exit_code")
        if done.failure is not None or code != 0:
            why = done.failure.reason if done.failure is not None else f"exit code {code}"
            found = _failed(request, f"the command that takes step {record.step!r} back failed: {why}")
        elif refusal := check_changes(work.plan, paths):
            found = _failed(request, f"step {record.step!r} cannot be taken back: {refusal}")
        else:
            return CompensationResult(tree=after, files_changed=len(paths)), done
        undone = tree.ensure(before, DriftCause.DURING_STEP, step=f"undo-{record.step}")
        return found.evolve(drift=undone), done


def _run_compensation_step(work: Work, run_step: RunStep) -> CompensationResult | None:
    """Run the step that takes the attempt back, if there is one; its record stands under `undo-<step>`."""
    request, name = work.request, (work.step.compensate or Compensation()).step
    if not name:
        return None
    if name not in work.loaded.steps:
        return _failed(request, f"step {request.step!r} is taken back by step {name!r}, which is not in the plan")
    result = run_step(
        RunStepRequest(
            scope=request.scope,
            step=f"undo-{request.step}",
            template=name,
            attempt=request.attempt,
            expected_tree=request.expected_tree,
        )
    )
    if result.status is not StepStatus.COMPLETED:
        why = result.failure.reason if result.failure is not None else result.status.value
        return _failed(request, f"step {name!r}, which takes {request.step!r} back, did not complete: {why}")
    return CompensationResult(tree=result.tree or request.expected_tree)


def _failed(request: RunStepRequest, reason: str) -> CompensationResult:
    return CompensationResult(tree=request.expected_tree, failure=abridge(scrub(reason), REASON_CHARACTERS))
