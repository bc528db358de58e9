"""Plans from their text to a stored revision that may run."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from activities.artifacts.port import ArtifactStores
from activities.plan.files import READ_BYTES
from activities.plan.left import LEFT_FACT, LeftFact, made_by_steps
from activities.plan.port import PlanWriter, ProjectRecords, WrittenPlan
from activities.plan.records import BEGUN, Begun
from activities.plan.requests import (
    LoadPlanRequest,
    OpenedPlan,
    OpenPlanRequest,
    PlanScope,
    RevisedPlan,
    RevisePlanRequest,
)
from activities.plan.stored import PlanMemory
from activities.workspace.port import OpenEpisodes, WorkingTree, Workspaces
from tightloop.artifact import ArtifactRef
from tightloop.errors import InvalidRequestError, PlanError, WorkspaceError
from tightloop.plan.budgeting import stated
from tightloop.plan.engine.revision import diff, refusals
from tightloop.plan.model import Plan
from tightloop.plan.request import PlanRequest
from tightloop.plan.result import StepStatus
from tightloop.plan.rules.bounds import narrowest
from tightloop.plan.stored import StoredPlan
from tightloop.plan.text.reading import ReadPlan, read_plan
from tightloop.plan.validation.validate import validate
from tightloop.value import Value, shorten

NOTES_LIMIT = 20
PROBLEMS_LIMIT = 50
PROBLEM_CHARACTERS = 8_000
_BUSY = frozenset({StepStatus.RUNNING.value, StepStatus.WAITING.value})


class RevisionFact(Value):
    """Where a revision is stored."""

    plan: ArtifactRef


class OpenPorts(Protocol):
    """What opening needs."""

    @property
    def workspaces(self) -> Workspaces:
        """The working trees."""
        ...

    @property
    def stores(self) -> ArtifactStores:
        """Where plans are stored."""
        ...

    @property
    def records(self) -> ProjectRecords:
        """Where it is noted what was opened."""
        ...

    @property
    def plans(self) -> PlanMemory:
        """Plans that were stored."""
        ...


class Opening:
    """Opens, loads and revises plans."""

    def __init__(
        self, ports: OpenPorts, has_ended: OpenEpisodes, writer: PlanWriter, capabilities: frozenset[str]
    ) -> None:
        """Take the ports; `writer` is asked where there is no text, and a plan may use `capabilities`."""
        self._capabilities = capabilities
        self._ports = ports
        self._has_ended = has_ended
        self._writer = writer

    def open(self, request: OpenPlanRequest) -> OpenedPlan:
        """Claim the workspace, read and check the plan, store it, and keep the tree that it begins with.

        Raises:
            WorkspaceError: the workspace cannot be used. Not retryable.
            PlanError: the plan is wrong; all problems with line and column. Not retryable.
            InvalidRequestError: there is no plan. Not retryable.
        """
        scope = request.scope
        notes = self._ports.workspaces.prepare(scope, take_over=self._has_ended)
        records = self._ports.records(Path(scope.workspace))
        fact = f"opened-{request.opening}"
        known = records.kept(scope.episode_id, fact, OpenedPlan)
        if known is not None:
            return known
        try:
            opened = self._opened(request, notes)
        except InvalidRequestError:
            self._ports.workspaces.release(scope)
            raise
        records.keep(scope.episode_id, revision_fact(1), RevisionFact(plan=opened.plan))
        # Before the fact below: what it opens must not read what a run before left.
        records.keep(scope.episode_id, BEGUN, Begun(at=datetime.now(UTC)))
        if not scope.within:
            # Where the plan is ended by force, nothing else tells the next run where this one began.
            records.keep(scope.episode_id, LEFT_FACT, LeftFact(base_tree=opened.tree, tree=opened.tree))
        records.keep(scope.episode_id, fact, opened)
        return opened

    def load(self, request: LoadPlanRequest) -> OpenedPlan:
        """Return the graph of a stored revision.

        Raises:
            ArtifactMissingError: it is not in the store. Not retryable.
        """
        loaded = self._ports.plans.load(request.scope)
        plan = request.scope.plan
        assert plan is not None
        return OpenedPlan(plan=plan, graph=loaded.graph, planner=self._writer.available)

    def revise(self, request: RevisePlanRequest) -> RevisedPlan:
        """Return the next revision, or why the text is refused. Idempotent for a text; a planner is asked anew."""
        scope = request.scope
        old = self._ports.plans.load(scope)
        try:
            written = WrittenPlan(text=request.source) if request.source else self._writer.revise(request, old.plan)
            if written.problem:
                problem = shorten(written.problem, PROBLEM_CHARACTERS)
                return RevisedPlan(problem=problem, usage=written.usage, api_calls=written.calls)
            read, _ = checked(written.text, "the new revision", self._capabilities)
        except InvalidRequestError as error:
            return RevisedPlan(problem=shorten(error.message, PROBLEM_CHARACTERS))
        budget = stated(read.plan.budget, old.plan.budget)
        if not request.source:
            budget = narrowest(budget, old.plan.budget)
        kept = {"id": old.plan.id, "max_parallel": old.plan.max_parallel, "budget": budget}
        plan = read.plan.model_copy(update=kept)
        found = diff(old.plan, plan)
        busy = [step for step in request.fixed if request.statuses.get(step) in _BUSY]
        problems = refusals(found, fixed=request.fixed, running=busy)
        if found.empty or problems:
            text = "\n".join(problems) or "nothing is different: the plan stays as it is. Change it, or resume"
            return RevisedPlan(problem=shorten(text, PROBLEM_CHARACTERS))
        stored = StoredPlan(
            plan_id=scope.episode_id,
            revision=scope.revision + 1,
            plan=plan,
            inputs={**plan.inputs, **_given(old.stored)},
            source=written.text,
            rationale=written.rationale or request.rationale or request.trouble,
            by=request.by if request.source else _author(written),
            diff=found.words(),
            previous=scope.plan,
            exchange=self._exchange(scope, written),
            prompts_sha256=written.prompts_sha256,
        )
        ref, loaded = self._ports.plans.put(scope.workspace, stored)
        records = self._ports.records(Path(scope.workspace))
        records.keep(scope.episode_id, revision_fact(stored.revision), RevisionFact(plan=ref))
        return RevisedPlan(
            plan=ref,
            graph=loaded.graph,
            diff=stored.diff,
            changed=(*found.added, *found.redone),
            usage=written.usage,
            api_calls=written.calls,
        )

    def _opened(self, request: OpenPlanRequest, notes: Iterable[str]) -> OpenedPlan:
        scope, asked = request.scope, request.request
        written, file = self._text(scope, asked)
        read, warnings = checked(written.text, file, self._capabilities)
        plan = read.plan
        if asked.max_parallel is not None:
            plan = plan.model_copy(update={"max_parallel": asked.max_parallel})
        unknown = sorted(set(asked.inputs) - set(plan.inputs))
        said = [f"input {name!r} is none that the plan names" for name in unknown if plan.inputs]
        stored = StoredPlan(
            plan_id=scope.episode_id,
            plan=plan,
            inputs={**plan.inputs, **asked.inputs},
            source=written.text,
            file=file,
            rationale=written.rationale,
            by=_author(written),
            exchange=self._exchange(scope, written),
            prompts_sha256=written.prompts_sha256,
        )
        ref, loaded = self._ports.plans.put(scope.workspace, stored)
        with self._ports.workspaces.hold(scope) as tree:
            if asked.base_tree:
                tree.ensure(asked.base_tree)
            base, put_back = self._base(scope, tree)
            tree.keep("plan.base", base)
        told = (*notes, *put_back, *said, *warnings)
        return OpenedPlan(
            plan=ref,
            graph=loaded.graph,
            tree=base,
            notes=tuple(told[:NOTES_LIMIT]),
            planner=self._writer.available,
            usage=written.usage,
            api_calls=written.calls,
        )

    def _exchange(self, scope: PlanScope, written: WrittenPlan) -> ArtifactRef | None:
        if not written.transcript:
            return None
        store = self._ports.stores(Path(scope.workspace))
        return store.put(written.transcript, name="planning", media_type="text/markdown")

    def _base(self, scope: PlanScope, tree: WorkingTree) -> tuple[str, tuple[str, ...]]:
        """Return the tree that the run begins with, and what is to be told of it.

        Files that stand as the last run left them are put back to where that run began: from there every step that is
        done is known by its hash, and none is done on top of itself. Files that somebody changed since stay.
        """
        found = tree.snapshot()
        records = self._ports.records(Path(scope.workspace))
        left = records.kept(scope.episode_id, LEFT_FACT, LeftFact)
        if scope.within or left is None or left.base_tree in ("", found):
            return found, ()
        never_closed = left.tree == left.base_tree
        ours = never_closed and made_by_steps(left.base_tree, records.of_this_run(scope.episode_id), found)
        if left.tree != found and not ours:
            return found, ()
        tree.keep("plan.left", found)
        try:
            tree.restore(left.base_tree)
        except WorkspaceError:
            # The tree is not in the repository any more.
            return found, ()
        said = f"the files are put back to where it began, tree {left.base_tree[:12]}; what is done is taken over"
        return left.base_tree, (f"it runs again: {said}",)

    def _text(self, scope: PlanScope, asked: PlanRequest) -> tuple[WrittenPlan, str]:
        """Return the text of the plan and its file's name."""
        if asked.source:
            return WrittenPlan(text=asked.source), ""
        if not asked.file:
            written = self._writer.write(scope, asked)
            if written.problem:
                raise InvalidRequestError(f"no plan for the goal: {written.problem}")
            return written, ""
        places = [scope.root / asked.file, Path(scope.workspace) / asked.file]
        place = next((place for place in places if place.is_file()), None)
        if place is None:
            raise InvalidRequestError(
                f"there is no plan file {asked.file!r} in {scope.workspace}. Name one that is there"
            )
        if place.stat().st_size > READ_BYTES:
            raise InvalidRequestError(
                f"the plan file {place} is larger than {READ_BYTES} bytes. Split it into subplans"
            )
        try:
            return WrittenPlan(text=place.read_text("utf-8")), asked.file
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"the plan file {place} is no UTF-8 text (byte {error.start})") from error


def _author(written: WrittenPlan) -> str:
    return f"planner ({written.model})" if written.model else ""


def _given(stored: StoredPlan) -> dict[str, Any]:
    """Return the inputs that did not come from the plan itself."""
    own = stored.plan.inputs
    return {name: value for name, value in stored.inputs.items() if name not in own or own[name] != value}


def checked(source: str, name: str, capabilities: frozenset[str]) -> tuple[ReadPlan, tuple[str, ...]]:
    """Read and check a plan; return it with its warnings.

    Raises:
        PlanError: it is wrong.
    """
    try:
        read = read_plan(source, name=name)
    except PlanError as error:
        raise PlanError(error.problems[:PROBLEMS_LIMIT]) from error
    problems = validate(read, capabilities=capabilities)
    if wrong := tuple(problem for problem in problems if problem.is_error):
        raise PlanError(wrong[:PROBLEMS_LIMIT])
    return read, tuple(str(problem) for problem in (*read.warnings, *problems))


def revision_fact(number: int) -> str:
    """Return the name under which a revision's place is kept."""
    return f"revision-{number:04d}"


class NoPlanWriter:
    """Stands where no planner may write plans."""

    available = False

    def write(self, scope: PlanScope, request: PlanRequest) -> WrittenPlan:  # noqa: ARG002 - the port has it
        """Refuse.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError(
            f"plan {scope.episode_id} has neither a text nor a file. Give one; plans written by a model from a goal "
            "need the setting plans.agent_planning"
        )

    def revise(self, request: RevisePlanRequest, plan: Plan) -> WrittenPlan:  # noqa: ARG002 - the port has it
        """Refuse.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError(
            "no new plan was given. Plans written by a model need the setting plans.agent_planning"
        )
