"""The way of one attempt of one step, the same for every capability.

Marker, references, condition, policy, a result from before, the work itself, outputs, criteria, record.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from temporalio.exceptions import CancelledError

from activities.plan.contract import broken, failure, judged, wanted
from activities.plan.digest import inputs_digest
from activities.plan.entered import Attempt, Call, Parts
from activities.plan.lasting import is_fresh, lasts
from activities.plan.outputs import outputs_of, unfit
from activities.plan.policing import Policing
from activities.plan.port import Done, Records, Work
from activities.plan.recording import is_this, settled
from activities.plan.records import DRY_RUN, file_name, record_digest
from activities.plan.references import References
from activities.plan.requests import RunStepRequest
from activities.workspace.port import WorkingTree
from tightloop.errors import ExpressionError, InvalidRequestError, ReferenceMissingError, WorkspaceError
from tightloop.plan.engine.graph import choices
from tightloop.plan.hypothesis import notes_of
from tightloop.plan.language.reference import resolve
from tightloop.plan.model import Access, FailureClass
from tightloop.plan.result import StepFailure, StepResult, StepStatus
from tightloop.scrub import scrub

_WRONG = (ExpressionError, ReferenceMissingError, InvalidRequestError)
Act = Callable[[Work], Done]


class Attempts:
    """Makes attempts."""

    def __init__(self, parts: Parts) -> None:
        """Take the ports."""
        self._parts = parts
        self._policing = Policing(parts.guard)

    def run(self, request: RunStepRequest, call: Call, act: Act, preview: Callable[[Work], str]) -> StepResult:
        """Make an attempt from its beginning to its end. Idempotent: an attempt that was made is only told again.

        Raises:
            CancelledError: the activity was cancelled; what was written is undone.
            WorkspaceLockedError: another attempt holds the tree. Retryable.
        """
        entered = self.enter(request, call, preview)
        return entered if isinstance(entered, StepResult) else self.carry_out(entered, act)

    def enter(self, request: RunStepRequest, call: Call, preview: Callable[[Work], str]) -> Attempt | StepResult:
        """Return the attempt, ready to be carried out, or its result where nothing is to be done."""
        workspace = Path(request.scope.workspace)
        loaded, records = self._parts.plans.load(request.scope), self._parts.records(workspace)
        step, store = loaded.step(request.step, request.template), self._parts.stores(workspace)
        if (made := _made(records, step.id, request, call)) is not None:
            return made
        lookup = References(loaded=loaded, step=step, request=request, store=store, records=records)
        attempt = Attempt(
            request=request,
            call=call,
            loaded=loaded,
            step=step,
            lookup=lookup,
            store=store,
            records=records,
            started=datetime.now(UTC),
        )
        if request.dry_run:
            return self._preview(attempt, preview)
        try:
            return self._let_in(attempt)
        except _WRONG as error:
            return settled(attempt, Done(failure=failure(error.message)))

    def refuse(self, attempt: Attempt, error: InvalidRequestError) -> StepResult:
        """Record that an attempt cannot be carried out as it is written."""
        return settled(attempt, Done(failure=failure(error.message)))

    def carry_out(self, attempt: Attempt, act: Act, *, expected_tree: str | None = None) -> StepResult:
        """Do the work of an attempt that was let in.

        Args:
            attempt: from `enter`.
            act: does it.
            expected_tree: to start from instead of the request's; child workflows have changed it.
        """
        if attempt.step.tree_access is not Access.WRITES:
            return settled(attempt, self._acted(attempt, act, attempt.work))
        with self._parts.workspaces.hold(attempt.request.scope) as tree:
            # Held until now by the same attempt of a worker that was thought dead: it may have come to its end.
            made = _made(attempt.records, attempt.step.id, attempt.request, attempt.call)
            if made is not None:
                return made
            before = attempt.request.expected_tree or tree.snapshot()
            attempt.drift = tree.ensure(before if expected_tree is None else expected_tree)
            attempt.before = before
            try:
                done = self._acted(attempt, act, replace(attempt.work, tree=tree, started=tree.own_process))
            except CancelledError:
                tree.restore(before)
                raise
            return self._settle_tree(attempt, done, tree)

    def _let_in(self, attempt: Attempt) -> Attempt | StepResult:
        step, lookup = attempt.step, attempt.lookup
        lookup.inputs = resolve(step.inputs, lookup)
        if not wanted(step, lookup):
            return settled(attempt, Done(summary=f"skipped: {step.when}"), StepStatus.SKIPPED)
        if why := broken(step.preconditions, lookup, "precondition"):
            return settled(attempt, Done(failure=failure(why)))
        attempt.inputs_sha256 = inputs_digest(attempt)
        if (old := self._result_from_before(attempt)) is not None:
            return old
        stopped = self._policing.stopped(attempt.work)
        if stopped is not None:
            return settled(attempt, stopped)
        return attempt

    def _result_from_before(self, attempt: Attempt) -> StepResult | None:
        """Return the result that another run of the plan had with the same inputs, with its tree on disk again."""
        request, step = attempt.request, attempt.step
        old = attempt.records.same(request.scope.episode_id, step.id, attempt.inputs_sha256) if lasts(step) else None
        # A later attempt in the same run is wanted by somebody: it is made.
        if old is None or old.attempt < request.attempt or not is_fresh(step, old, attempt.store):
            return None
        drift = None
        if step.tree_access is Access.WRITES:
            try:
                with self._parts.workspaces.hold(request.scope) as tree:
                    drift = tree.ensure(request.expected_tree)
                    tree.restore(old.tree_after)
            except WorkspaceError:
                # Its tree is not in the repository any more.
                return None
        result = old.result.model_copy(update={"reused": True, "drift": drift, "usage": None, "api_calls": 0})
        now = datetime.now(UTC)
        update = {"result": result, "attempt": request.attempt, "run": attempt.call.run, "started": now, "ended": now}
        # Under the number of this attempt too, which is what it is taken back by.
        return result.model_copy(update={"record": attempt.records.put(old.model_copy(update=update))})

    def _preview(self, attempt: Attempt, preview: Callable[[Work], str]) -> StepResult:
        try:
            attempt.lookup.inputs = resolve(attempt.step.inputs, attempt.lookup)
            text = preview(attempt.work)
        except _WRONG as error:
            text = f"cannot be shown before the steps it needs have run: {error.message}"
        attempt.inputs_sha256 = DRY_RUN
        # All paths are shown: which one is taken is not known before.
        paths = choices(attempt.step) or None
        return settled(attempt, Done(outputs={"preview": scrub(text)}, summary=text.partition("\n")[0], chosen=paths))

    def _acted(self, attempt: Attempt, act: Act, work: Work) -> Done:
        """Return what was done, with the step's outputs and its contract judged."""
        try:
            done = act(work)
        except _WRONG as error:
            done = Done(failure=failure(error.message))
        if attempt.call.cancelled():
            raise CancelledError(f"step {attempt.step.id!r} was stopped")
        if done.question is not None:
            return done
        return _judged(attempt, done, work.root)

    def _settle_tree(self, attempt: Attempt, done: Done, tree: WorkingTree) -> StepResult:
        """Keep what a step wrote, or undo it where the step failed."""
        before, after = attempt.before, tree.snapshot()
        paths = self._parts.trees.changed(tree.root, before, after) if after != before else ()
        if done.failure is None and (refusal := self._policing.refused(attempt.loaded.plan, paths)):
            done = replace(done, failure=failure(refusal, FailureClass.POLICY))
        if paths:
            patch = self._parts.trees.patch(tree.root, before, after)
            ref = attempt.store.put(patch, name="patch", media_type="text/x-diff")
            done = replace(done, artifacts={**done.artifacts, "patch": ref})
        # With dots, which names of checkpoints do not have.
        name = f"step.{file_name(attempt.step.id)}.{attempt.request.attempt}"
        if done.failure is None:
            tree.keep(name, after)
            return settled(attempt, done, tree=after, tree_after=after)
        if after != before:
            tree.keep(f"{name}.failed", after)
            tree.restore(before)
        return settled(attempt, done, tree=before, tree_after=after)


def _made(records: Records, step: str, request: RunStepRequest, call: Call) -> StepResult | None:
    """Return the result of this very attempt if it has been made."""
    made = records.attempt(request.scope.episode_id, step, request.attempt)
    if made is None or not is_this(made, request, call):
        return None
    return made.result.model_copy(update={"record": record_digest(made)})


def _judged(attempt: Attempt, done: Done, root: Path) -> Done:
    step, lookup = attempt.step, attempt.lookup
    problem: StepFailure | None = done.failure
    if why := unfit(done.outputs):
        done, problem = replace(done, outputs={}), problem or failure(why)
    lookup.results = done.outputs
    if problem is None:
        try:
            done = replace(done, outputs=outputs_of(step, done.outputs, root))
            lookup.results = done.outputs
        except InvalidRequestError as error:
            problem = failure(error.message)
    lookup.status = (StepStatus.FAILED if problem else StepStatus.COMPLETED).value
    if problem is None and (why := broken(step.expect, lookup, "criterion")):
        problem = failure(why)
    problem = judged(step, problem, lookup)
    lookup.status = (StepStatus.FAILED if problem else StepStatus.COMPLETED).value
    notes = notes_of(step, lookup, completed=problem is None)
    return replace(done, failure=problem, evidence=(*done.evidence, *notes))
