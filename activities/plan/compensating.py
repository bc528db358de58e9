"""Taking a step back: its files exactly, or by the command or the step that the plan names for it."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from activities.plan.entered import Call, Parts
from activities.plan.policing import Policing
from activities.plan.port import Done, Records, Work
from activities.plan.records import record_digest
from activities.plan.references import References, unpacked
from activities.plan.requests import Compensated, CompensateRequest, RunStepRequest
from activities.plan.stored import LoadedPlan
from activities.workspace.port import WorkingTree
from tightloop.errors import ExpressionError, InvalidRequestError
from tightloop.plan.action import ShellAction
from tightloop.plan.language.reference import resolve
from tightloop.plan.model import Compensation, Step
from tightloop.plan.result import StepRecord, StepResult, StepStatus
from tightloop.scrub import scrub
from tightloop.value import Value, shorten

CONFLICTS_SHOWN = 10
REASON_CHARACTERS = 500
Runs = Callable[[Work, ShellAction], Done]
RunsStep = Callable[[RunStepRequest], StepResult]


class CompensationFact(Value):
    """That an attempt was taken back, and what the tree was then."""

    result: Compensated


class Compensating:
    """Takes steps back. Idempotent: what was taken back is only told again."""

    def __init__(self, parts: Parts, run_command: Runs) -> None:
        """Take the ports, and what runs a command of the plan."""
        self._parts = parts
        self._run_command = run_command
        self._policing = Policing(parts.guard)

    def compensate(self, request: CompensateRequest, call: Call, run_step: RunsStep) -> Compensated:
        """Take one attempt back; nothing is changed where that fails.

        Raises:
            WorkspaceLockedError: another attempt holds the tree. Retryable.
        """
        request = self._as_it_was(request)
        scope = request.scope
        loaded, records = self._parts.plans.load(scope), self._parts.records(Path(scope.workspace))
        step = loaded.step(request.step, request.template)
        record = records.attempt(scope.episode_id, step.id, request.attempt)
        if record is None:
            return _failed(request, f"there is no record of attempt {request.attempt} of step {step.id!r}")
        fact = f"compensated-{record_digest(record)[:16]}"
        how = step.compensate or Compensation()
        by_step = self._by_step(request, how, loaded, run_step) if how.step and not record.undone else None
        with self._parts.workspaces.hold(scope) as tree:
            known = records.kept(scope.episode_id, fact, CompensationFact)
            # Read again: who held the tree until now may have done it.
            record = records.attempt(scope.episode_id, step.id, request.attempt) or record
            if known is not None and record.undone:
                tree.ensure(known.result.tree)
                return known.result
            drift = tree.ensure(by_step.tree if by_step is not None else request.expected_tree)
            found = by_step or self._taken_back(request, record, (loaded, step, how), call, tree)
            found = found.model_copy(update={"drift": drift})
            if not found.failure:
                tree.keep(f"undone-{record_digest(record)[:12]}", found.tree)
                records.keep(scope.episode_id, fact, CompensationFact(result=found))
                records.mark_undone(scope.episode_id, step.id, request.attempt)
            return found

    def _as_it_was(self, request: CompensateRequest) -> CompensateRequest:
        """Return the request for the newest revision that has the step: a later one may have left it out."""
        scope = request.scope
        loaded = self._parts.plans.load(scope)
        while (request.template or request.step) not in loaded.steps and loaded.stored.previous is not None:
            scope = scope.model_copy(update={"plan": loaded.stored.previous, "revision": loaded.stored.revision - 1})
            loaded = self._parts.plans.load(scope)
        return request.model_copy(update={"scope": scope})

    def _by_step(
        self, request: CompensateRequest, how: Compensation, loaded: LoadedPlan, run_step: RunsStep
    ) -> Compensated:
        """Run the step that takes back; its record stands under `undo-<step>`."""
        if how.step not in loaded.steps:
            return _failed(
                request, f"step {request.step!r} is taken back by step {how.step!r}, which is not in the plan"
            )
        result = run_step(
            RunStepRequest(
                scope=request.scope,
                step=f"undo-{request.step}",
                template=how.step,
                attempt=request.attempt,
                expected_tree=request.expected_tree,
            )
        )
        if result.status is not StepStatus.COMPLETED:
            why = result.failure.reason if result.failure is not None else result.status.value
            return _failed(request, f"step {how.step!r}, which takes {request.step!r} back, did not complete: {why}")
        return Compensated(tree=result.tree or request.expected_tree)

    def _taken_back(
        self,
        request: CompensateRequest,
        record: StepRecord,
        written: tuple[LoadedPlan, Step, Compensation],
        call: Call,
        tree: WorkingTree,
    ) -> Compensated:
        _, _, how = written
        started = datetime.now(UTC)
        if how.run:
            found, done = self._by_command(request, record, written, call, tree)
        elif how.none or record.tree_before == record.tree_after:
            found, done = Compensated(tree=request.expected_tree), Done(command="nothing to take back")
        else:
            found, done = self._undone(request, record, tree), Done(command=f"undo the files of {record.step}")
        self._note(request, record, found, done, started)
        return found

    def _undone(self, request: CompensateRequest, record: StepRecord, tree: WorkingTree) -> Compensated:
        trees, expected = self._parts.trees, request.expected_tree
        undone = trees.undo(tree.root, record.tree_before, record.tree_after, expected)
        if undone.conflicts:
            shown = ", ".join(undone.conflicts[:CONFLICTS_SHOWN])
            more = len(undone.conflicts) - CONFLICTS_SHOWN
            return _failed(
                request,
                f"step {record.step!r} cannot be taken back: later steps changed the same places of {shown}"
                f"{f' and {more} more' if more > 0 else ''}. Nothing was changed. Take those steps back first",
            )
        tree.restore(undone.tree)
        return Compensated(tree=undone.tree, files_changed=undone.files)

    def _by_command(
        self,
        request: CompensateRequest,
        record: StepRecord,
        written: tuple[LoadedPlan, Step, Compensation],
        call: Call,
        tree: WorkingTree,
    ) -> tuple[Compensated, Done]:
        work = self._work(request, record, written, call)
        work = replace(work, tree=tree, started=tree.own_process)
        try:
            if forbidden := self._policing.forbidden(work, written[2].run):
                return _failed(request, f"step {record.step!r} cannot be taken back: {forbidden}"), Done()
            done = self._run_command(work, ShellAction(run=written[2].run))
        except (InvalidRequestError, ExpressionError) as error:
            return _failed(request, f"step {record.step!r} cannot be taken back: {error.message}"), Done()
        after = tree.snapshot()
        code = done.outputs.get("exit_code")
        if done.failure is not None or code != 0:
            tree.restore(request.expected_tree)
            why = done.failure.reason if done.failure is not None else f"exit code {code}"
            return _failed(request, f"the command that takes step {record.step!r} back failed: {why}"), done
        paths = self._parts.trees.changed(tree.root, request.expected_tree, after)
        if refusal := self._policing.refused(work.plan, paths):
            tree.restore(request.expected_tree)
            return _failed(request, f"step {record.step!r} cannot be taken back: {refusal}"), done
        return Compensated(tree=after, files_changed=len(paths)), done

    def _work(
        self,
        request: CompensateRequest,
        record: StepRecord,
        written: tuple[LoadedPlan, Step, Compensation],
        call: Call,
    ) -> Work:
        loaded, step, _ = written
        workspace = Path(request.scope.workspace)
        store, records = self._parts.stores(workspace), self._parts.records(workspace)
        lookup = References(
            loaded=loaded,
            step=step,
            request=RunStepRequest(
                scope=request.scope, step=request.step, template=request.template, item=request.item
            ),
            store=store,
            records=records,
            results=_unpacked(record.outputs, store),
            status=record.result.status.value,
        )
        lookup.inputs = resolve(step.inputs, lookup)
        return Work(
            scope=request.scope,
            plan=loaded.plan,
            step=step,
            attempt=request.attempt,
            inputs=lookup.inputs,
            resolve=lambda value: resolve(value, lookup),
            lookup=lookup,
            store=store,
            cancelled=call.cancelled,
        )

    def _note(
        self, request: CompensateRequest, record: StepRecord, found: Compensated, done: Done, started: datetime
    ) -> None:
        """Record the act for the account of the plan."""
        records: Records = self._parts.records(Path(request.scope.workspace))
        status = StepStatus.FAILED if found.failure else StepStatus.COMPLETED
        records.put(
            StepRecord(
                plan_id=request.scope.episode_id,
                revision=request.scope.revision,
                step=f"undo-{record.step}",
                attempt=record.attempt,
                run=record.run,
                inputs_sha256=record_digest(record),
                command=scrub(done.command),
                result=StepResult(status=status, tree=found.tree, summary=shorten(found.failure, 200)),
                artifacts=done.artifacts,
                tree_before=request.expected_tree,
                tree_after=found.tree,
                started=started,
                ended=datetime.now(UTC),
                host=socket.gethostname(),
            )
        )


def _unpacked(outputs: Mapping[str, Any], store: Any) -> dict[str, Any]:
    return {name: unpacked(value, store) for name, value in outputs.items()}


def _failed(request: CompensateRequest, reason: str) -> Compensated:
    return Compensated(tree=request.expected_tree, failure=shorten(scrub(reason), REASON_CHARACTERS))
