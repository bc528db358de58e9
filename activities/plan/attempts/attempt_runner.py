"""How an attempt of a step runs, the same for every capability.

Marker, references, condition, policy, a result from before, the work itself, outputs, criteria, record.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from temporalio.exceptions import CancelledError

from activities.plan.attempts.beside import move, own_paths, without_own
from activities.plan.attempts.context import ActivityRun, AttemptContext, AttemptPorts
from activities.plan.attempts.contract import classify_failure, fail_step, find_unmet, make_failure
from activities.plan.attempts.outputs import collect_outputs, find_unfit
from activities.plan.attempts.policy_check import check_changes, check_deletions, check_step
from activities.plan.attempts.recording import write_record
from activities.plan.attempts.reuse import hash_inputs, is_cacheable, is_fresh
from activities.plan.port import RunnerResult, Work
from activities.plan.records.file_records import record_digest
from activities.plan.requests import RunStepRequest
from activities.workspace.folders import store_folder_of
from activities.workspace.port import WorkingTree
from tightloop.errors import ExpressionError, InvalidRequestError, ReferenceMissingError, WorkspaceError
from tightloop.plan.document.failing import FailureClass
from tightloop.plan.document.step import Access
from tightloop.plan.engine.graph import choices
from tightloop.plan.engine.hypothesis import collect_evidence
from tightloop.plan.language.expression import parse_expression
from tightloop.plan.language.reference import resolve
from tightloop.plan.result import StepFailure, StepRecord, StepResult, StepStatus
from tightloop.plan.stored import DRY_RUN, file_name
from tightloop.safety.drift import Drift, DriftCause
from tightloop.value.scrub import scrub

# What the plan's author wrote is wrong: a failure of the step. Other errors are the worker's, and Temporal tries again.
_WRONG = (ExpressionError, ReferenceMissingError, InvalidRequestError)
Act = Callable[[Work], RunnerResult]


class AttemptRunner:
    """Makes attempts."""

    def __init__(self, ports: AttemptPorts) -> None:
        """Take the ports."""
        self._ports = ports

    def run(self, request: RunStepRequest, call: ActivityRun, act: Act, preview: Callable[[Work], str]) -> StepResult:
        """Make an attempt from its beginning to its end. Idempotent: the result of one that was made is returned again.

        Raises:
            CancelledError: the activity was cut off.
            WorkspaceLockedError: another attempt holds the tree. Retryable.
        """
        attempt = self.prepare(request, call, preview)
        return attempt if isinstance(attempt, StepResult) else self.carry_out(attempt, act)

    def prepare(
        self, request: RunStepRequest, call: ActivityRun, preview: Callable[[Work], str]
    ) -> AttemptContext | StepResult:
        """Return the attempt, ready to be carried out, or its result where nothing is to be done."""
        attempt = AttemptContext.begin(self._ports, request, call, self._ports.plans.load(request.scope))
        if (made := _made(attempt)) is not None:
            return made
        if request.dry_run:
            return self._preview(attempt, preview)
        try:
            return self._admit(attempt)
        except _WRONG as error:
            return write_record(attempt, fail_step(error.message))

    def refuse(self, attempt: AttemptContext, error: InvalidRequestError) -> StepResult:
        """Record that an attempt cannot be carried out as it is written."""
        return write_record(attempt, fail_step(error.message))

    def carry_out(self, attempt: AttemptContext, act: Act, *, left: str | None = None) -> StepResult:
        """Do the work of an attempt that `prepare` returned.

        Child workflows have done it where there is a tree that they `left`. Then nobody is asked about what somebody
        else changed: it stays, and the next step that writes asks.

        Raises:
            DriftError: somebody else changed files; nothing was done. Not retryable.
        """
        if not attempt.step.tree_access.changes_tree:
            return write_record(attempt, self._acted(attempt, act, attempt.work))
        with self._ports.workspaces.hold(attempt.request.scope) as tree:
            # Held until now by the same attempt of a worker that was thought dead: it may have come to its end.
            if (made := _made(attempt)) is not None:
                return made
            before = attempt.request.expected_tree or tree.snapshot()
            attempt.drift = tree.expect(before) if left is None else None
            attempt.before = before
            try:
                done = self._acted(attempt, act, replace(attempt.work, tree=tree, started=tree.own_process))
            except CancelledError:
                # What is left by one that was cut off otherwise is undone, and told, by whoever holds the tree next.
                if left is not None or not attempt.call.is_unwanted():
                    raise
                undone = tree.ensure(before, DriftCause.DURING_STEP, step=attempt.step.id)
                stopped = make_failure("it was stopped", FailureClass.TRANSIENT)
                return StepResult(status=StepStatus.FAILED, tree=before, failure=stopped, drift=undone)
            if left is None:
                return self._settle_tree(attempt, done, tree, tree.snapshot())
            return self._settle_tree(attempt, done, tree, done.tree or left, beside=True)

    def _admit(self, attempt: AttemptContext) -> AttemptContext | StepResult:
        step, lookup = attempt.step, attempt.lookup
        lookup.inputs = resolve(step.inputs, lookup)
        if step.when and not parse_expression(step.when).holds(lookup):
            return write_record(attempt, RunnerResult(summary=f"skipped: {step.when}"), StepStatus.SKIPPED)
        if why := find_unmet(step.preconditions, lookup, "precondition"):
            return write_record(attempt, fail_step(why))
        attempt.inputs_sha256 = hash_inputs(attempt)
        if (old := self._result_from_before(attempt)) is not None:
            return old
        stopped = check_step(attempt.work)
        return attempt if stopped is None else write_record(attempt, stopped)

    def _result_from_before(self, attempt: AttemptContext) -> StepResult | None:
        """Return the result that another run of the plan had with the same inputs, with its tree on disk again."""
        request, step = attempt.request, attempt.step
        if not is_cacheable(step):
            return None
        old = attempt.records.same(request.scope.episode_id, step.id, attempt.inputs_sha256)
        # A later attempt in the same run is wanted by somebody: it is made.
        if old is None or old.attempt < request.attempt or not is_fresh(step, old, attempt.store):
            return None
        if step.tree_access is not Access.WRITES:
            return _taken_over(attempt, old, None)
        try:
            with self._ports.workspaces.hold(request.scope) as tree:
                drift = tree.expect(request.expected_tree)
                tree.restore(old.tree_after)
                return _taken_over(attempt, old, drift)
        except WorkspaceError:
            # Its tree is not in the repository any more.
            return None

    def _preview(self, attempt: AttemptContext, preview: Callable[[Work], str]) -> StepResult:
        try:
            attempt.lookup.inputs = resolve(attempt.step.inputs, attempt.lookup)
            text = preview(attempt.work)
        except _WRONG as error:
            text = f"cannot be shown before the steps it needs have run: {error.message}"
        attempt.inputs_sha256 = DRY_RUN
        # All paths are shown: which one is taken is not known before.
        paths = choices(attempt.step) or None
        return write_record(
            attempt, RunnerResult(outputs={"preview": scrub(text)}, summary=text.partition("\n")[0], chosen=paths)
        )

    def _acted(self, attempt: AttemptContext, act: Act, work: Work) -> RunnerResult:
        """Return what was done, with the step's outputs and its contract judged."""
        try:
            done = act(work)
        except _WRONG as error:
            done = fail_step(error.message)
        if attempt.call.cancelled():
            raise CancelledError(f"step {attempt.step.id!r} was stopped")
        if done.question is not None:
            return done
        return _judged(attempt, done, work.root)

    def _settle_tree(
        self, attempt: AttemptContext, done: RunnerResult, tree: WorkingTree, after: str, *, beside: bool = False
    ) -> StepResult:
        """Keep what a step wrote, or undo it where the step failed or a person has to see first what it removed.

        With `beside` there may be more on disk than the step's tree `after`: what somebody else changed.
        """
        before, store = attempt.before, store_folder_of(attempt.request.scope)
        paths = self._ports.trees.changed(store, before, after) if after != before else ()
        if done.failure is None and (refusal := check_changes(attempt.loaded.plan, paths)):
            done = replace(done, failure=make_failure(refusal, FailureClass.POLICY))
        if done.failure is None and done.question is None and paths:
            base = attempt.request.scope.base_tree or before
            stopped = check_deletions(attempt.work, self._ports.differ, base, before, after)
            done = done if stopped is None else stopped
        if paths:
            patch = self._ports.trees.patch(store, before, after)
            ref = attempt.store.put(patch, name="patch", media_type="text/x-diff")
            done = replace(done, artifacts={**done.artifacts, "patch": ref})
        # Kept by a reference, as git may prune a tree that has none. With dots, which names of checkpoints do not have.
        name = f"step.{file_name(attempt.step.id)}.{attempt.request.attempt}"
        if done.failure is None and done.question is None:
            tree.keep(name, after)
            return write_record(attempt, done, tree=after, tree_after=after)
        if after != before:
            tree.keep(f"{name}.failed", after)
            step = attempt.step.id
            if beside:
                attempt.drift = move(tree, self._ports.trees, store, after, before, undone_step=step)
            else:
                own = own_paths(attempt.step, done.outputs, done.command)
                undone = tree.ensure(before, DriftCause.DURING_STEP, step=step)
                attempt.drift = without_own(undone, after, paths, own) or attempt.drift
        return write_record(attempt, done, tree=before, tree_after=after)


def _taken_over(attempt: AttemptContext, old: StepRecord, drift: Drift | None) -> StepResult:
    """Record the result of another run for this attempt."""
    result = old.result.evolve(reused=True, drift=drift, usage=None, api_calls=0)
    now = datetime.now(UTC)
    # Under the number of this attempt too, which is what it is taken back by.
    again = old.evolve(result=result, attempt=attempt.request.attempt, run=attempt.call.run, started=now, ended=now)
    return result.evolve(record=attempt.records.put(again))


def _made(attempt: AttemptContext) -> StepResult | None:
    """Return the result of this very attempt if it has been made."""
    request, call = attempt.request, attempt.call
    made = attempt.records.attempt(request.scope.episode_id, attempt.step.id, request.attempt)
    if made is None or made.undone or request.dry_run or made.inputs_sha256 == DRY_RUN:
        return None
    # A record of another run, or of before an answer, does not stand for this one.
    same = made.run == call.run and made.answers == request.answers
    return made.result.evolve(record=record_digest(made)) if same else None


def _judged(attempt: AttemptContext, done: RunnerResult, root: Path) -> RunnerResult:
    step, lookup = attempt.step, attempt.lookup
    problem: StepFailure | None = done.failure
    if why := find_unfit(done.outputs):
        done, problem = replace(done, outputs={}), problem or make_failure(why)
    lookup.results = done.outputs
    # Declared outputs come before the criteria, which may read them.
    if problem is None:
        try:
            done = replace(done, outputs=collect_outputs(step, done.outputs, root))
            lookup.results = done.outputs
        except InvalidRequestError as error:
            problem = make_failure(error.message)
    lookup.status = (StepStatus.FAILED if problem else StepStatus.COMPLETED).value
    if problem is None and (why := find_unmet(step.expect, lookup, "criterion")):
        problem = make_failure(f"{why}; it printed: {done.said}" if done.said else why)
    # A failure mode may find a failure in a step that seems to have completed.
    problem = classify_failure(step, problem, lookup)
    lookup.status = (StepStatus.FAILED if problem else StepStatus.COMPLETED).value
    notes = collect_evidence(step, lookup, completed=problem is None)
    return replace(done, failure=problem, evidence=(*done.evidence, *notes))
