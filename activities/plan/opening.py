"""Opens, loads and revises plans."""

import contextlib
import itertools
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from activities.artifacts.port import get_model
from activities.plan.attempts.context import AttemptPorts
from activities.plan.files import READ_BYTES
from activities.plan.port import WrittenPlan
from activities.plan.records import (
    RUN_START,
    FileRecords,
    RevisionFact,
    RunStart,
    open_file_records,
    revision_fact_name,
)
from activities.plan.requests import (
    LoadPlanRequest,
    OpenedPlan,
    OpenPlanRequest,
    PlanScope,
    RevisedPlan,
    RevisePlanRequest,
)
from activities.workspace.activity import restore_expected_tree
from activities.workspace.folders import root_of
from activities.workspace.port import OpenEpisodes
from tightloop.errors import ArtifactMissingError, IdTakenError, InvalidRequestError, PlanError, WorkspaceError
from tightloop.loop.model import LoopTask
from tightloop.plan.child import StepRecord
from tightloop.plan.document import Plan, StoredPlan
from tightloop.plan.engine.revision import diff_plans, find_refusals
from tightloop.plan.guard import merge_stated_limits, narrowest
from tightloop.plan.request import PlanRequest
from tightloop.plan.text.reading import ReadPlan, decode
from tightloop.plan.validation import check_inputs, check_text
from tightloop.value import ArtifactRef, Value, shorten

if TYPE_CHECKING:
    from activities.plan.plan_writer import PlanWriter
    from activities.workspace.working_tree import WorkingTree

RERUN_BASE = "rerun-base"
Grow = Callable[[RevisePlanRequest, Plan], tuple[Plan, tuple[LoopTask, ...]]]
"""Returns the plan extended with a step's findings, and the new tasks. Raises `InvalidRequestError`."""


class RerunBase(Value):
    """The first and last tree of a plan run.

    Both are empty if the run did not read any files, or if a person edited files during the run.
    """

    base_tree: str
    tree: str


def save_rerun_base(records: FileRecords, scope: PlanScope, tree: str) -> None:
    """Record the final tree of a run, unless somebody else has edited files.

    A re-run must not revert other people's edits.
    """
    alone = is_made_by_steps(scope.base_tree, records.find_run_records(scope.episode_id), tree)
    left = RerunBase(base_tree=scope.base_tree, tree=tree) if alone else RerunBase(base_tree="", tree="")
    records.write_fact(scope.episode_id, RERUN_BASE, left)


def is_made_by_steps(base: str, records: Iterable[StepRecord], tree: str) -> bool:
    """Return whether `tree` was produced from the initial tree by the steps alone."""
    trees = {base}
    for record in records:
        if record.tree_before and record.tree_before not in trees:
            return False
        if record.tree_after:
            trees.add(record.tree_after)
    return tree in trees


NOTES_LIMIT = 20
PROBLEMS_LIMIT = 50
PROBLEM_CHARACTERS = 8_000


class PlanOpener:
    """Opens, loads and revises plans."""

    def __init__(
        self,
        ports: AttemptPorts,
        has_ended: OpenEpisodes,
        writer: "PlanWriter | None",
        capabilities: frozenset[str],
        grow: Grow | None = None,
    ) -> None:
        self._capabilities = capabilities
        self._ports = ports
        self._grow = grow
        self._has_ended = has_ended
        self._writer = writer

    def open(self, request: OpenPlanRequest) -> OpenedPlan:
        """Claim the workspace and open the plan.

        The plan is parsed, validated and stored, and the initial tree is kept. Raises the same errors as
        `open_plan`.
        """
        scope = request.scope
        records = open_file_records(Path(scope.workspace))
        fact = f"opened-{request.opening}"
        earlier = records.read_fact(scope.episode_id, fact, OpenedPlan)
        if earlier is None and request.is_new and records.read_fact(scope.episode_id, RUN_START, RunStart) is not None:
            raise IdTakenError(
                f"plan {scope.episode_id} already exists in {scope.workspace}. Choose another id, or run the plan "
                f"again and reuse its completed steps: tightloop plan run --again {scope.episode_id}"
            )
        # Also if it was opened before: a reset run starts again after the claim was released.
        notes = self._ports.workspaces.prepare(scope, take_over=self._has_ended)
        if earlier is not None:
            return earlier
        try:
            opened = self._store_plan(request, notes)
        except InvalidRequestError:
            # A plan that failed to open must not keep the workspace claimed.
            self._ports.workspaces.release(scope)
            raise
        records.write_fact(scope.episode_id, revision_fact_name(1), RevisionFact(plan=opened.plan))
        # Before the fact below: steps of this run must not read results of a previous run.
        records.write_fact(scope.episode_id, RUN_START, RunStart(at=datetime.now(UTC)))
        if not scope.within:
            # If the plan is terminated, this is the only record of the tree where the run began.
            records.write_fact(scope.episode_id, RERUN_BASE, RerunBase(base_tree=opened.tree, tree=opened.tree))
        # Last: a retry that finds this fact skips all of the above.
        records.write_fact(scope.episode_id, fact, opened)
        return opened

    def load(self, request: LoadPlanRequest) -> OpenedPlan:
        """Return the graph of a stored revision.

        Raises:
            ArtifactMissingError: the store does not contain it. Not retryable.
        """
        loaded = self._ports.plans.load(request.scope)
        plan = request.scope.plan
        assert plan is not None
        return OpenedPlan(plan=plan, graph=loaded.graph, planner=self._writer is not None and self._writer.available)

    def revise(self, request: RevisePlanRequest) -> RevisedPlan:
        """Create the next revision of a plan. If its text is invalid, return the reason.

        Idempotent if a text is given. Otherwise, each retry asks the planner again.
        """
        scope = request.scope
        old = self._ports.plans.load(scope)
        try:
            tasks: tuple[LoopTask, ...] = ()
            if request.after:
                assert self._grow is not None
                grown, tasks = self._grow(request, old.plan)
                written = WrittenPlan(text=grown.model_dump_json(by_alias=True, exclude_defaults=True))
            else:
                written = WrittenPlan(text=request.source) if request.source else self._ask().revise(request, old.plan)
            if written.problem:
                problem = shorten(written.problem, PROBLEM_CHARACTERS)
                return RevisedPlan(problem=problem, usage=written.usage, api_calls=written.calls)
            read, _ = check_plan(written.text, "the new revision", self._capabilities)
        except InvalidRequestError as error:
            return RevisedPlan(problem=shorten(error.message, PROBLEM_CHARACTERS))
        budget = merge_stated_limits(read.plan.budget, old.plan.budget)
        if not request.source and not request.after:
            # A person may widen the budget; a planner may not.
            budget = narrowest(budget, old.plan.budget)
        # Records are filed under the id, and `max_parallel` may have been set at the start instead of in the text.
        plan = read.plan.evolve(id=old.plan.id, max_parallel=old.plan.max_parallel, budget=budget)
        diff = diff_plans(old.plan, plan)
        problems = find_refusals(diff, fixed=request.fixed, running=request.busy)
        if diff.empty or problems:
            text = "\n".join(problems) or "the plan is identical to the current revision. Change the plan, or resume"
            return RevisedPlan(problem=shorten(text, PROBLEM_CHARACTERS))
        # Only values given at the start stay: for the others, a default that the revision changes must take effect.
        defaults = old.plan.inputs
        overrides = {
            name: value for name, value in old.stored.inputs.items() if name not in defaults or defaults[name] != value
        }
        stored = StoredPlan(
            plan_id=scope.episode_id,
            revision=scope.revision + 1,
            plan=plan,
            inputs={**plan.inputs, **overrides},
            source=written.text,
            rationale=written.rationale or request.rationale or request.trouble,
            by=request.by if request.source or request.after else _author(written),
            diff=diff.words(),
            previous=scope.plan,
            exchange=self._exchange(scope, written),
            prompts_sha256=written.prompts_sha256,
        )
        ref, loaded = self._ports.plans.put(scope.workspace, stored)
        records = open_file_records(Path(scope.workspace))
        records.write_fact(scope.episode_id, revision_fact_name(stored.revision), RevisionFact(plan=ref))
        return RevisedPlan(
            plan=ref,
            graph=loaded.graph,
            diff=stored.diff,
            changed=(*diff.added, *diff.redone),
            tasks=tasks,
            usage=written.usage,
            api_calls=written.calls,
        )

    def _ask(self) -> "PlanWriter":
        if self._writer is None:
            raise InvalidRequestError(
                "no plan was provided. Pass a plan or a plan file, or set plans.agent_planning to let a model write "
                "the plan"
            )
        return self._writer

    def _store_plan(self, request: OpenPlanRequest, notes: Iterable[str]) -> OpenedPlan:
        scope, plan_request = request.scope, request.request
        written, file = self._text(scope, plan_request)
        read, warnings = check_plan(written.text, file, self._capabilities)
        plan = read.plan
        if plan_request.max_parallel is not None:
            plan = plan.evolve(max_parallel=plan_request.max_parallel)
        if plan_request.scenarios is not None and plan_request.scenarios.count and not plan.definition_of_done:
            raise InvalidRequestError(
                "hidden scenarios run as part of the proof, and a plan without a definition_of_done has no proof. "
                "Add at least one command to the plan's definition_of_done"
            )
        # A planner may omit inputs, and a previous run may have had them.
        if request.is_new and not plan_request.goal:
            check_inputs(plan_request.inputs, plan.inputs)
        unknown = sorted(set(plan_request.inputs) - set(plan.inputs))
        input_notes = [f"the plan has no input {name!r}" for name in unknown if plan.inputs]
        stored = StoredPlan(
            plan_id=scope.episode_id,
            plan=plan,
            inputs={**plan.inputs, **plan_request.inputs},
            source=written.text,
            file=file,
            rationale=written.rationale,
            by=_author(written),
            exchange=self._exchange(scope, written),
            prompts_sha256=written.prompts_sha256,
        )
        ref, loaded = self._ports.plans.put(scope.workspace, stored)
        with self._ports.workspaces.hold(scope) as tree:
            if plan_request.base_tree and not scope.within:
                # A worktree of the plan's own, so nobody else's edits can be lost.
                tree.ensure(plan_request.base_tree)
            elif plan_request.base_tree:
                # Changes by others since then are asked about before the first step that writes.
                restore_expected_tree(tree, plan_request.base_tree)
            base, put_back = (
                (plan_request.base_tree, ()) if scope.within and plan_request.base_tree else self._base(scope, tree)
            )
            tree.keep("plan.base", base)
        all_notes = (*notes, *put_back, *input_notes, *warnings)
        return OpenedPlan(
            plan=ref,
            graph=loaded.graph,
            tree=base,
            notes=tuple(all_notes[:NOTES_LIMIT]),
            worktree=str(root_of(scope)) if scope.worktree and not scope.within else "",
            planner=self._writer is not None and self._writer.available,
            usage=written.usage,
            api_calls=written.calls,
        )

    def _exchange(self, scope: PlanScope, written: WrittenPlan) -> ArtifactRef | None:
        if not written.transcript:
            return None
        store = self._ports.stores(Path(scope.workspace))
        return store.put(written.transcript, name="planning", media_type="text/markdown")

    def _base(self, scope: PlanScope, tree: "WorkingTree") -> tuple[str, tuple[str, ...]]:
        """Return the initial tree of the run, and notes for the operator.

        If the files are exactly as the last run left them, they are reset to the initial tree of that run.
        The completed steps are then reused, so no step is applied twice. If somebody has changed the files since
        then, they are kept.
        """
        snapshot = tree.snapshot()
        records = open_file_records(Path(scope.workspace))
        left = records.read_fact(scope.episode_id, RERUN_BASE, RerunBase)
        if scope.within or left is None or left.base_tree in ("", snapshot):
            return snapshot, ()
        # `open` writes the same tree twice; only `close_plan` replaces the second one.
        never_closed = left.tree == left.base_tree
        ours = never_closed and is_made_by_steps(left.base_tree, records.find_run_records(scope.episode_id), snapshot)
        if left.tree != snapshot and not ours:
            return snapshot, ()
        # First: the files of the last run must stay reachable after they are overwritten.
        tree.keep("plan.left", snapshot)
        try:
            tree.restore(left.base_tree)
        except WorkspaceError:
            # The tree is no longer in the repository.
            return snapshot, ()
        note = f"the files were reset to the initial tree {left.base_tree[:12]}, and completed steps are reused"
        return left.base_tree, (f"re-run: {note}",)

    def _text(self, scope: PlanScope, plan_request: PlanRequest) -> tuple[WrittenPlan, str]:
        """Return the text of the plan and its file name."""
        if plan_request.source:
            return WrittenPlan(
                text=plan_request.source, prompts_sha256=self._prompts_of(scope, plan_request.source)
            ), ""
        if not plan_request.file:
            # Under the claim already: a busy workspace must be rejected before a model call costs money.
            written = self._ask().write(scope, plan_request)
            if written.problem:
                raise InvalidRequestError(f"cannot write a plan for the goal: {written.problem}")
            return written, ""
        # A new worktree lacks uncommitted files, and the plan file is often one of them.
        places = [root_of(scope) / plan_request.file, Path(scope.workspace) / plan_request.file]
        file = next((path for path in places if path.is_file()), None)
        if file is None:
            raise InvalidRequestError(
                f"plan file {plan_request.file!r} not found in {scope.workspace}. Check the file name"
            )
        if file.stat().st_size > READ_BYTES:
            raise InvalidRequestError(
                f"the plan file {file} is larger than {READ_BYTES} bytes. Split the plan into subplans"
            )
        return WrittenPlan(text=decode(file.read_bytes(), name=plan_request.file)), plan_request.file

    def _prompts_of(self, scope: PlanScope, text: str) -> str:
        """Return the version of the prompts if a model wrote this text for an earlier run, or "".

        This preserves the attribution of the plan.
        """
        workspace = Path(scope.workspace)
        records, store = open_file_records(workspace), self._ports.stores(workspace)
        for number in itertools.count(1):
            fact = records.read_fact(scope.episode_id, revision_fact_name(number), RevisionFact)
            if fact is None:
                break
            with contextlib.suppress(ArtifactMissingError):
                stored = get_model(store, fact.plan, StoredPlan)
                if stored.prompts_sha256 and stored.source == text:
                    return stored.prompts_sha256
        return ""


def _author(written: WrittenPlan) -> str:
    return f"planner ({written.model})" if written.model else ""


def check_plan(source: str, name: str, capabilities: frozenset[str]) -> tuple[ReadPlan, tuple[str, ...]]:
    """Parse and validate a plan. Return the plan with any warnings.

    Raises:
        PlanError: the plan is invalid.
    """
    read, problems = check_text(source, name=name, capabilities=capabilities)
    wrong = tuple(problem for problem in problems if problem.is_error)
    if read is None or wrong:
        raise PlanError(wrong[:PROBLEMS_LIMIT])
    return read, tuple(str(problem) for problem in problems)
