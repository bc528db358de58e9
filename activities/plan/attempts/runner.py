"""Execution of one step attempt."""

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.exceptions import CancelledError

from activities.attempt import is_cancelled_by_workflow
from activities.plan.attempts.context import AttemptPorts, hash_inputs, is_cacheable, is_fresh
from activities.plan.outputs import References, collect_outputs, count_items, find_unfit, pack
from activities.plan.port import RunnerResult, Work
from activities.plan.records import record_digest
from activities.plan.requests import RunStepRequest
from activities.workspace.folders import store_folder_of
from activities.workspace.scope import TreeDiff
from tightloop.errors import ExpressionError, InvalidRequestError, ReferenceMissingError, WorkspaceError
from tightloop.host.identity import host_identity
from tightloop.plan.action import Option
from tightloop.plan.child import REASON_CHARACTERS, StepFailure, StepRecord, StepResult, StepStatus
from tightloop.plan.document import DRY_RUN, Plan, file_name
from tightloop.plan.engine.graph import choices as graph_choices
from tightloop.plan.engine.state import choices, collect_evidence, count_votes
from tightloop.plan.expression import parse_expression
from tightloop.plan.failing import FailureClass, FailureMode
from tightloop.plan.guard import enclosing_policies, find_effects, judge, judge_changes, judge_deletions
from tightloop.plan.reference import is_one_reference, resolve
from tightloop.plan.step import Access, Capability, Prose, Step
from tightloop.run.question import Question, QuestionKind, evidence_of
from tightloop.safety.change.reading import GENERATED
from tightloop.safety.commands.effects import written_paths
from tightloop.safety.commands.shell import plain
from tightloop.safety.drift import Drift, DriftCause, DriftError
from tightloop.safety.rubric import Ruling, Verdict
from tightloop.value import abridge, format_count, shorten
from tightloop.value.scrub import scrub

if TYPE_CHECKING:
    from activities.plan.attempts.trees import Trees
    from activities.workspace.differ import Differ
    from activities.workspace.working_tree import WorkingTree


def make_failure(reason: str, failure_class: FailureClass = FailureClass.LOGIC) -> StepFailure:
    """Create a failure whose reason is scrubbed and short enough for the workflow history."""
    # Scrub before truncating: a truncated secret no longer matches any pattern.
    return StepFailure(failure_class=failure_class, reason=abridge(scrub(reason), REASON_CHARACTERS))


def fail_step(reason: str, failure_class: FailureClass = FailureClass.LOGIC, **found: Any) -> RunnerResult:
    """Create the result of a failed step. `found` sets further fields such as outputs."""
    return RunnerResult(failure=make_failure(reason, failure_class), **found)


def find_unmet(rules: Iterable[str | Prose], lookup: References, what: str) -> str:
    """Return a sentence about the first expression that is not satisfied, or "" if all are.

    The sentence starts with `what`. Expressions that are prose are skipped.
    """
    for rule in rules:
        # Nobody can evaluate prose; the step's summary counts these conditions as unchecked.
        if isinstance(rule, Prose):
            continue
        try:
            if not parse_expression(rule).holds(lookup):
                values = ", ".join(f"{name} = {shorten(repr(value), 80)}" for name, value in lookup.used(rule).items())
                return f"{what} is not met: {rule}" + (f" ({values})" if values else "")
        except (ExpressionError, ReferenceMissingError) as error:
            return f"{what} cannot be evaluated: {rule}: {error.message}"
    return ""


def classify_failure(step: Step, failure: StepFailure | None, lookup: References) -> StepFailure | None:
    """Apply the first matching failure mode. If no mode matches, return the failure unchanged."""
    mode = next((mode for mode in step.failure_modes if _is_matching(mode, failure, lookup)), None)
    if mode is None:
        return failure
    reason = failure.reason if failure is not None else f"the failure condition is met: {mode.detect}"
    # A mode without `detect` matches any failure; it must not reclassify a timeout or a policy denial as a wrong
    # result.
    keeps = failure is not None and not mode.detect and failure.failure_class is not FailureClass.LOGIC
    kind = failure.failure_class if failure is not None and keeps else mode.failure_class
    text = f"{mode.name}: {reason}" + (f" ({mode.advice})" if mode.advice else "")
    return make_failure(text, kind).evolve(mode=mode.name, recover=mode.recover)


def _is_matching(mode: FailureMode, failure: StepFailure | None, lookup: References) -> bool:
    if not mode.detect:
        return failure is not None
    try:
        return parse_expression(mode.detect).holds(lookup)
    except (ExpressionError, ReferenceMissingError):
        # The results that the mode refers to are missing, so it does not apply.
        return False


def own_paths(step: Step, outputs: Mapping[str, Any], command: str) -> frozenset[str]:
    """Return the paths that a step is known to write.

    These are the files that the step edits, or the files that its shell command is certain to write.
    """
    if step.edit is not None:
        return frozenset(map(str, outputs.get("paths", ())))
    if step.shell is not None:
        return frozenset(written_paths(plain(command), step.shell.folder).certain)
    return frozenset()


def drop_own_drift(
    drift: Drift | None, after: str, changed: Collection[str], own_files: frozenset[str]
) -> Drift | None:
    """Return the drift to report, or None if the step itself caused all of it.

    Args:
        drift: the changes that were undone.
        after: the tree after the step.
        changed: paths that differ between the trees before and after the step.
        own_files: paths written by the step; see `own_paths`.
    """
    return None if drift is not None and drift.tree == after and own_files.issuperset(changed) else drift


def replace_files(
    tree: "WorkingTree", trees: "Trees", store: Path, before: str, after: str, *, undone_step: str = ""
) -> Drift | None:
    """Replace the files of tree `before` on disk with the files of tree `after`.

    Other people's changes stay on disk, and the next writing step asks about them. They are only undone if
    they overlap the lines that the step changed.

    Returns:
        The undone changes that the caller did not make. With `undone_step`, they include changes by unknown
        authors that were made while the step was running.
    """
    drift, target = None, after
    try:
        drift = tree.expect(before)
    except DriftError:
        # Undoing the way from `after` back to `before` applies the change, next to the others' edits.
        merged = trees.undo(store, after, before, tree.snapshot())
        if merged.conflicts:
            return tree.ensure(after)
        target = merged.tree
    if undone_step:
        return tree.ensure(target, DriftCause.DURING_STEP, step=undone_step) or drift
    if before != after:
        tree.restore(target)
    return drift


# A separate option: approving a command before it ran does not cover the deletions it made.
KEEP = Option(name="keep", pros=("the step runs again, and its deletions are kept",))


def check_step(work: Work) -> RunnerResult | None:
    """Return a denial or an approval request if the policy requires one, or None if the step may run.

    Raises:
        ReferenceMissingError: the action refers to a missing value.
    """
    acts = find_effects(work.step, _action(work))
    ruling = judge(work.plan.policy, work.step, acts)
    evidence = evidence_of(scrub("\n".join((*acts.commands, *acts.urls, *acts.paths))))
    return _enforce_ruling(work, ruling, f"May '{work.step.title or work.step.id}' run?", (), evidence=evidence)


def _enforce_ruling(
    work: Work, ruling: Ruling, question: str, options: tuple[Option, ...], *, evidence: tuple[str, ...] = ()
) -> RunnerResult | None:
    """Enforce a ruling of the policy on an action.

    Return a denial or a question that still needs approval, or None if the action is allowed.
    """
    if ruling.verdict is Verdict.ALLOW:
        return None
    if ruling.verdict is Verdict.DENY:
        return fail_step(ruling.reason, FailureClass.POLICY)
    votes = count_votes(work.request.answers, 1, options)
    if votes.rejection is not None:
        rejection = votes.rejection
        why = f": {rejection.text}" if rejection.text else ""
        return fail_step(f"{rejection.by} rejected the step{why}", FailureClass.POLICY)
    if votes.approved:
        return None
    title = f"{question} {ruling.reason}"
    approval_question = Question(
        id="", kind=QuestionKind.POLICY, title=title, evidence=evidence, options=choices(options), step=work.step.id
    )
    return RunnerResult(question=approval_question, summary=f"waiting for approval: {ruling.reason}")


def check_command(work: Work) -> str:
    """Return the reason why the policy denies a compensation command, or "" if it allows the command.

    This never asks for approval.
    """
    ruling = judge(work.plan.policy, work.step, find_effects(work.step, {"run": work.command.inlined_text}))
    return ruling.reason if ruling.verdict is Verdict.DENY else ""


def check_deletions(work: Work, differ: "Differ", base: str, before: str, after: str) -> RunnerResult | None:
    """Return a denial or a question if the step deleted too much, or None otherwise.

    Args:
        work: the attempt. The files on disk match the tree `after`.
        differ: used to compare the trees.
        base: the plan's initial tree.
        before: the tree before the step.
        after: the tree after the step.
    """
    bounded = any(policy.deletions is not None for policy in enclosing_policies(work.plan.policy))
    store = store_folder_of(work.scope)
    # A step that deletes nothing is not asked about the deletions of earlier ones.
    if not bounded or _find_deletions(work.root, differ.compare(store, before, after)) == ((), 0):
        return None
    # Measured from the plan's beginning, since many small deletions add up.
    deleted, lines = _find_deletions(work.root, differ.compare(store, base, after))
    ruling = judge_deletions(work.plan.policy, deleted, lines, differ.lines(store, base))
    return _enforce_ruling(work, ruling, "Keep these deletions?", (KEEP,))


def _find_deletions(root: Path, diff: TreeDiff) -> tuple[tuple[str, ...], int]:
    """Return the deleted files, and the net number of deleted lines across all files."""
    # Regenerating a lock file loses thousands of lines and is no loss.
    files = [file for file in diff.files if not GENERATED.search(file.path)]
    # lexists: a link whose target is missing still exists.
    deleted = tuple(file.path for file in files if not os.path.lexists(root / file.path))
    # Within one file, added lines offset removed ones; lines of other files do not.
    return deleted, sum(max(file.removed - file.added, 0) for file in files)


def check_changes(plan: Plan, paths: tuple[str, ...]) -> str:
    """Return the reason why the policy forbids changing these paths, or "" if it allows the changes."""
    ruling = judge_changes(plan.policy, paths)
    return "" if ruling.verdict is Verdict.ALLOW else ruling.reason


def _action(work: Work) -> dict[str, Any]:
    capability = work.step.capability
    if capability in (Capability.NONE, Capability.SUBPLAN, Capability.BRANCH, Capability.GATE):
        # Steps and checks inside are judged when they start.
        return {}
    written = getattr(work.step, capability.value).model_dump(by_alias=True, exclude_defaults=True)
    action: dict[str, Any] = {
        name: resolve(value, work.lookup)
        for name, value in written.items()
        if name not in ("commit", "run") and not (name == "diff" and not is_one_reference(value))
    }
    if capability is Capability.SHELL:
        action["run"] = work.command.inlined_text
    # Commit messages have their own placeholders and diffs are literal; resolving either adds no information.
    return {**written, **action}


SUMMARY_CHARACTERS = 200
COMMAND_CHARACTERS = 4_000


def write_record(
    work: Work,
    run_result: RunnerResult,
    status: StepStatus | None = None,
    *,
    tree: str = "",
    tree_after: str = "",
) -> StepResult:
    """Record an attempt and return its result for the workflow."""
    outputs = dict(run_result.outputs)
    if run_result.failure is not None and not run_result.failure.mode:
        # Also classify failures raised before the action ran or found in its changes.
        run_result = replace(run_result, failure=classify_failure(work.step, run_result.failure, work.lookup))
    result = StepResult(
        status=status or _status(run_result),
        tree=tree,
        failure=run_result.failure,
        chosen=run_result.chosen,
        counts=count_items(outputs),
        evidence=run_result.evidence,
        question=run_result.question,
        usage=run_result.usage,
        unpriced_calls=run_result.unpriced_calls,
        api_calls=run_result.api_calls,
        drift=work.drift,
        note=run_result.note,
        qualifier=run_result.qualifier,
        summary=shorten(scrub(_summary(work.step, run_result)), SUMMARY_CHARACTERS),
    )
    request = work.request
    record = StepRecord(
        plan_id=request.scope.episode_id,
        revision=request.scope.revision,
        step=work.step.id,
        attempt=request.attempt,
        run=work.run,
        inputs_sha256=work.inputs_sha256,
        inputs=pack(_scrub_inputs(work.lookup.inputs), work.store),
        command=shorten(scrub(run_result.command), COMMAND_CHARACTERS),
        result=result,
        outputs=pack(outputs, work.store),
        artifacts=run_result.artifacts,
        tree_before=work.before or request.expected_tree,
        tree_after=tree_after or request.expected_tree,
        answers=request.answers,
        started=work.started_at,
        ended=datetime.now(UTC),
        host=host_identity().name,
        seed=work.plan.seed,
    )
    return result.evolve(record=work.records.put(record))


def _status(run_result: RunnerResult) -> StepStatus:
    if run_result.question is not None:
        return StepStatus.WAITING
    return StepStatus.FAILED if run_result.failure is not None else StepStatus.COMPLETED


def _summary(step: Step, run_result: RunnerResult) -> str:
    text = run_result.summary or (run_result.failure.reason if run_result.failure is not None else "")
    prose = sum(isinstance(rule, Prose) for rule in (*step.preconditions, *step.expect))
    if run_result.failure is None and prose:
        return f"{shorten(text, 150)}{'; ' if text else ''}{format_count(prose, 'condition')} in prose not checked"
    return text


def _scrub_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    text = scrub(json.dumps(dict(inputs), ensure_ascii=False, default=str))
    try:
        scrubbed: dict[str, Any] = json.loads(text)
    except ValueError:
        # A placeholder may have replaced a quote, so that the text is no longer JSON.
        return {"scrubbed": text}
    return scrubbed


# Errors of the plan's author: they fail the step. Any other error is the worker's, and Temporal retries it.
_STEP_ERRORS = (ExpressionError, ReferenceMissingError, InvalidRequestError)
Act = Callable[[Work], RunnerResult]


class AttemptRunner:
    """Runs one attempt of a plan step and records it."""

    def __init__(self, ports: AttemptPorts) -> None:
        self._ports = ports

    def prepare(self, request: RunStepRequest, preview: Callable[[Work], str]) -> Work | StepResult:
        """Return an attempt that is ready to run, or a result if there is nothing to run.

        Idempotent: if the attempt already ran, its recorded result is returned.
        """
        work = self._ports.begin(request, self._ports.plans.load(request.scope))
        if (earlier := _find_earlier_result(work)) is not None:
            return earlier
        if request.dry_run:
            return self._preview(work, preview)
        try:
            return self._admit(work)
        except _STEP_ERRORS as error:
            return write_record(work, fail_step(error.message))

    def carry_out(self, work: Work, act: Act, *, left: str | None = None) -> StepResult:
        """Run an attempt that `prepare` has returned.

        `left` is the tree that child workflows produced. If it is set, other people's changes are kept without
        asking. The next writing step asks about them.

        Raises:
            CancelledError: the activity was cancelled.
            DriftError: somebody else changed files, so nothing was done. Not retryable.
            WorkspaceLockedError: another attempt has locked the tree. Retryable.
        """
        if not work.step.tree_access.changes_tree:
            return write_record(work, _act(work, act))
        with self._ports.workspaces.hold(work.scope) as tree:
            # The same attempt on a worker presumed dead may have held the lock until now, and finished.
            if (earlier := _find_earlier_result(work)) is not None:
                return earlier
            before = work.request.expected_tree or tree.snapshot()
            work.drift = tree.expect(before) if left is None else None
            work.before, work.tree = before, tree
            try:
                run_result = _act(work, act)
            except CancelledError:
                # Leftovers of an attempt that was cut off otherwise are undone and reported by the next holder of the
                # tree.
                if left is not None or not is_cancelled_by_workflow():
                    raise
                undone = tree.ensure(before, DriftCause.DURING_STEP, step=work.step.id)
                stopped = make_failure("the step was stopped", FailureClass.TRANSIENT)
                # Without a record, which would be returned as the result if the attempt is started again.
                return StepResult(status=StepStatus.FAILED, tree=before, failure=stopped, drift=undone)
            if left is None:
                return self._settle_tree(work, run_result, tree, tree.snapshot())
            return self._settle_tree(work, run_result, tree, run_result.tree or left, has_other_changes=True)

    def _admit(self, work: Work) -> Work | StepResult:
        step, lookup = work.step, work.lookup
        lookup.inputs = resolve(step.inputs, lookup)
        if step.when and not parse_expression(step.when).holds(lookup):
            return write_record(work, RunnerResult(summary=f"skipped: {step.when}"), StepStatus.SKIPPED)
        if why := find_unmet(step.preconditions, lookup, "precondition"):
            return write_record(work, fail_step(why))
        work.inputs_sha256 = hash_inputs(work)
        # Before the policy: it is part of the hash, so whoever approved this result is not asked twice.
        if (old := self._reuse_result(work)) is not None:
            return old
        stopped = check_step(work)
        return work if stopped is None else write_record(work, stopped)

    def _reuse_result(self, work: Work) -> StepResult | None:
        """Restore the tree of an earlier run with the same inputs and return its result, or None."""
        request, step = work.request, work.step
        if not is_cacheable(step):
            return None
        old = work.records.find_equal_result(request.scope.episode_id, step.id, work.inputs_sha256)
        # A later attempt in the same run was requested explicitly, so do not reuse.
        if old is None or old.attempt < request.attempt or not is_fresh(step, old, work.store):
            return None
        if step.tree_access is not Access.WRITES:
            return _record_reuse(work, old, None)
        try:
            with self._ports.workspaces.hold(request.scope) as tree:
                drift = tree.expect(request.expected_tree)
                # The hash covers the tree before the step, so this changes exactly what the step changed then.
                tree.restore(old.tree_after)
                return _record_reuse(work, old, drift)
        except WorkspaceError:
            # Its tree is no longer in the repository.
            return None

    def _preview(self, work: Work, preview: Callable[[Work], str]) -> StepResult:
        try:
            work.lookup.inputs = resolve(work.step.inputs, work.lookup)
            text = preview(work)
        except _STEP_ERRORS as error:
            text = f"cannot be shown until the required steps have run: {error.message}"
        work.inputs_sha256 = DRY_RUN
        # Show all paths: the choice is not known yet.
        paths = graph_choices(work.step) or None
        return write_record(
            work, RunnerResult(outputs={"preview": scrub(text)}, summary=text.partition("\n")[0], chosen=paths)
        )

    def _settle_tree(
        self, work: Work, run_result: RunnerResult, tree: "WorkingTree", after: str, *, has_other_changes: bool = False
    ) -> StepResult:
        """Keep or undo the changes that a step made.

        Changes are undone if the step failed or if a person must first approve its deletions. With
        `has_other_changes`, the disk may contain other people's changes in addition to the tree `after`.
        """
        before, store = work.before, store_folder_of(work.scope)
        paths = self._ports.trees.changed_paths(store, before, after) if after != before else ()
        if run_result.failure is None and (refusal := check_changes(work.plan, paths)):
            run_result = replace(run_result, failure=make_failure(refusal, FailureClass.POLICY))
        if run_result.failure is None and run_result.question is None and paths:
            base = work.scope.base_tree or before
            stopped = check_deletions(work, self._ports.differ, base, before, after)
            run_result = run_result if stopped is None else stopped
        if paths:
            patch = self._ports.trees.patch(store, before, after)
            # Stored for failed steps too, which are undone below.
            ref = work.store.put(patch, name="patch", media_type="text/x-diff")
            run_result = replace(run_result, artifacts={**run_result.artifacts, "patch": ref})
        # Kept by a ref, as git may prune an unreferenced tree. Checkpoint names have no dots, so these cannot collide.
        name = f"step.{file_name(work.step.id)}.{work.request.attempt}"
        if run_result.failure is None and run_result.question is None:
            tree.keep(name, after)
            return write_record(work, run_result, tree=after, tree_after=after)
        if after != before:
            # Saved before it is undone: people look into failed changes, and the record refers to this tree.
            tree.keep(f"{name}.failed", after)
            step = work.step.id
            if has_other_changes:
                work.drift = replace_files(tree, self._ports.trees, store, after, before, undone_step=step)
            else:
                own_files = own_paths(work.step, run_result.outputs, run_result.command)
                undone = tree.ensure(before, DriftCause.DURING_STEP, step=step)
                work.drift = drop_own_drift(undone, after, paths, own_files) or work.drift
        return write_record(work, run_result, tree=before, tree_after=after)


def _record_reuse(work: Work, old: StepRecord, drift: Drift | None) -> StepResult:
    """Record that this attempt reuses the result of an earlier run."""
    # The earlier run paid for it; the budget must not be charged again.
    result = old.result.evolve(reused=True, drift=drift, usage=None, unpriced_calls=0, api_calls=0)
    now = datetime.now(UTC)
    # Recorded under this attempt's number as well, which compensation looks up.
    again = old.evolve(result=result, attempt=work.request.attempt, run=work.run, started=now, ended=now)
    return result.evolve(record=work.records.put(again))


def _find_earlier_result(work: Work) -> StepResult | None:
    """Return the recorded result if this attempt has already been run."""
    request = work.request
    record = work.records.find_attempt(request.scope.episode_id, work.step.id, request.attempt)
    if record is None or record.undone or request.dry_run or record.inputs_sha256 == DRY_RUN:
        return None
    # A record of another run, or from before an answer, does not count.
    same = record.run == work.run and record.answers == request.answers
    return record.result.evolve(record=record_digest(record)) if same else None


def _act(work: Work, act: Act) -> RunnerResult:
    """Run the step's action and check its contract. Return the result, including the outputs."""
    try:
        run_result = act(work)
    except _STEP_ERRORS as error:
        run_result = fail_step(error.message)
    # A runner that is stopped returns a partial result, which must not be judged.
    if work.cancelled():
        raise CancelledError(f"step {work.step.id!r} was stopped")
    if run_result.question is not None:
        return run_result
    step, lookup = work.step, work.lookup
    problem: StepFailure | None = run_result.failure
    if why := find_unfit(run_result.outputs):
        run_result, problem = replace(run_result, outputs={}), problem or make_failure(why)
    lookup.results = run_result.outputs
    # Declared outputs first: the criteria may refer to them.
    if problem is None:
        try:
            run_result = replace(run_result, outputs=collect_outputs(step, run_result.outputs, work.root))
            lookup.results = run_result.outputs
        except InvalidRequestError as error:
            problem = make_failure(error.message)
    lookup.status = (StepStatus.FAILED if problem else StepStatus.COMPLETED).value
    if problem is None and (why := find_unmet(step.expect, lookup, "criterion")):
        problem = make_failure(f"{why}; output: {run_result.output_tail}" if run_result.output_tail else why)
    # A failure mode may detect a failure in a step that seems to have completed.
    problem = classify_failure(step, problem, lookup)
    lookup.status = (StepStatus.FAILED if problem else StepStatus.COMPLETED).value
    notes = collect_evidence(step, lookup, completed=problem is None)
    return replace(run_result, failure=problem, evidence=(*run_result.evidence, *notes))
