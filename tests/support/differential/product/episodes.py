"""The activities of an episode over files in memory: what they do follows the script, how they answer the product."""

import hashlib
import json
from datetime import timedelta
from typing import Any

from temporalio import activity

from activities.checks.activity import VerifyRequest
from activities.executor.activity import ConcludeRequest, Delivery, ExecuteRequest, HandOffRequest
from activities.planner.activity import NextPlanRequest
from activities.planner.reflection import ReflectRequest
from activities.proof.port import AcceptRequest, AcceptResult, BeginRequest, BeginResult, ProveRequest, ProveResult
from activities.tracking.activity import TrackRequest
from activities.workspace.port import (
    AdoptRequest,
    AdoptResult,
    AmendRequest,
    CloseRequest,
    CloseResult,
    OpenRequest,
    OpenResult,
    ReconcileRequest,
    ReconcileResult,
    RestoredCheckpoint,
    RestoreRequest,
)
from tests.support.differential.product.world import Files, Step, World, reference
from tests.support.differential.schedule import Act
from tightloop.episode.check import Check, FailedCheck, Verification
from tightloop.episode.checkpoint import CheckpointRecord, Tracked
from tightloop.episode.model import EpisodeOutcome, EpisodeState
from tightloop.episode.planning import PlanningOutcome, PlanVerdict, ReflectionOutcome
from tightloop.episode.progress.tracking import ProbabilityClass, Reason, ReasonKind, Tracking
from tightloop.episode.proof import ProofVerdict
from tightloop.executor.asking import clarifying_question, hand_off_question, permission_question, work_question
from tightloop.executor.model import ExecutorReport, ExecutorStatus, LimitHit, Usage
from tightloop.run.core import Evidence
from tightloop.safety.drift import Drift, DriftError
from tightloop.safety.rubric import Topic, Verdict, Violation, make_finding
from tightloop.value import ArtifactRef

ASKS = {
    "permission": lambda key: permission_question("run it", "run", f"run {key}"),
    "clarification": lambda key: clarifying_question("which one?", "it is open", f"which {key}"),
    "work": lambda _key: work_question("do it by hand"),
    "crash": lambda key: hand_off_question("it was interrupted", "the plan", key),
}
_HARM = Violation("deletes_files", Topic.DAMAGE, Verdict.ASK, "keep them")


def id_of(files: Files) -> str:
    """Return the id of a tree."""
    return hashlib.sha1(json.dumps(files, sort_keys=True).encode(), usedforsecurity=False).hexdigest()


def usage_of(step: Step) -> Usage | None:
    """Return what a call says it used; a third of them says nothing."""
    tokens = step.get("tokens")
    return None if tokens is None else Usage(input_tokens=tokens, output_tokens=tokens // 10, cost_usd=tokens / 1e5)


def accepted(request: AcceptRequest) -> AcceptResult:
    """Return a proof that a person has accepted."""
    facts = Evidence(files_changed=1, accepted_by=request.by, finding="a test is gone")
    return AcceptResult(proof=request.proof.evolve(name="accepted"), facts=facts)


class EpisodeFolder:
    """The workspace of one episode."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.files: Files = {"log.txt": ""}
        self.trees: dict[str, Files] = {}
        self.records: dict[str, tuple[CheckpointRecord, EpisodeState]] = {}
        self.opened: ArtifactRef | None = None
        self.checks: tuple[Check, ...] = ()
        self.failing: dict[str, frozenset[str]] = {}
        self.reports: dict[str, ExecutorReport] = {}
        self.proven_tree = ""
        self.notes: list[str] = []
        """What each plan was told: messages, and those of them that ask for work."""

    @property
    def tree(self) -> str:
        """Keep the files of now and return their id."""
        found = id_of(self.files)
        self.trees[found] = dict(self.files)
        return found

    def edit(self, act: Act) -> None:
        """Change a file as a person does."""
        self.files[act.name or "mine.txt"] = str(act.value)

    def expect(self, tree: str) -> None:
        """Refuse to work on files that the work has not left.

        Raises:
            DriftError: somebody else has changed some.
        """
        if tree and self.tree != tree and tree in self.trees:
            raise DriftError(self._drift(tree))

    def _drift(self, tree: str) -> Drift:
        before = self.trees[tree]
        paths = tuple(sorted(p for p in {*before, *self.files} if before.get(p) != self.files.get(p)))
        return Drift(tree=self.tree, expected=tree, paths=paths, count=len(paths), lines=paths)

    # -- what activities do -----------------------------------------------------------------------------

    def open(self, request: OpenRequest, attempt: int) -> OpenResult:
        """Open the workspace, once."""
        self.checks = request.episode.definition_of_done
        self.opened = reference(f"request {self.name} {request.episode.goal} {self.checks}", "request")
        record = self._checkpoint(EpisodeState(budget=request.episode.budget), 0)
        return OpenResult(request=self.opened, tree=self.tree, checkpoint=record, attempt=attempt)

    def _checkpoint(self, state: EpisodeState, iteration: int) -> CheckpointRecord:
        identity = f"ckpt-{len(self.records)}"
        record = CheckpointRecord(
            id=identity, iteration=iteration, branch=state.branch, tree=self.tree, state=reference(identity, "state"),
            parent=state.checkpoints[-1].id if state.checkpoints else None,
        )  # fmt: skip
        self.records[identity] = (record, state)
        return record

    def adopt(self, request: AdoptRequest, attempt: int) -> AdoptResult:
        """Keep what a person edited, or undo it where that was decided."""
        before = self.trees.get(request.expected_tree, self.files)
        undone = None
        if request.drift is not None and not request.drift.keep and self.tree != request.expected_tree:
            undone = self._drift(request.expected_tree).evolve(bring_back="bring it back")
            self.files = dict(before)
        changed = {path for path in {*before, *self.files} if before.get(path) != self.files.get(path)}
        return AdoptResult(tree=self.tree, files_changed=len(changed), drift=undone, attempt=attempt)

    def amend(self, request: AmendRequest) -> ArtifactRef:
        """Store a changed request."""
        self.checks = request.definition_of_done or self.checks
        self.opened = reference(f"request {self.name} {request.goal} {self.checks}", "request")
        return self.opened

    def restore(self, request: RestoreRequest, attempt: int) -> RestoredCheckpoint:
        """Put the files of a checkpoint back."""
        record, state = self.records[request.target.checkpoint_id]
        saved = self.tree
        if attempt == 1:
            # Deliveries after a restore have keys of another run.
            self.reports = {}
        self.files = dict(self.trees[record.tree])
        # Opening it again has made a checkpoint of its own.
        newest = max((each for _, each in self.records.values()), key=lambda each: each.iteration)
        known = tuple(each for each, _ in self.records.values()) if request.closed else ()
        return RestoredCheckpoint(
            record=request.record or record,
            state=state,
            saved_tree=saved,
            newest=newest if request.closed else None,
            known=known,
            attempt=attempt,
        )

    def reconcile(self, request: ReconcileRequest, attempt: int) -> ReconcileResult:
        """Put the files of the expected tree back."""
        self.files = dict(self.trees.get(request.expected_tree, self.files))
        return ReconcileResult(attempt=attempt)

    def close(self, request: CloseRequest) -> CloseResult:
        """Give the workspace back."""
        drift = None
        if request.expected_tree and request.expected_tree != self.tree and request.expected_tree in self.trees:
            drift = self._drift(request.expected_tree)
        if request.outcome is EpisodeOutcome.SUCCEEDED and self.proven_tree != (request.expected_tree or self.tree):
            self.world.broken.append("success without a proof of the tree")
        return CloseResult(drift=drift)

    def _failing(self, step: Step, files: Files) -> frozenset[str]:
        failing = {check.run for check in self.checks if not _holds(check.run, files)}
        if step.get("flaky") and self.checks:
            failing.add(self.checks[0].run)
        return frozenset(failing)

    def verify(self, step: Step, tree: str, previous: ArtifactRef | None, attempt: int) -> Verification:
        """Run the checks on the files of now."""
        self.expect(tree)
        failing = self._failing(step, self.files)
        report = reference(f"report {self.tree} {sorted(failing)}", "report")
        self.failing[report.sha256] = failing
        before = self.failing.get(previous.sha256) if previous else None
        return Verification(
            tree=self.tree,
            total=len(self.checks),
            failed=tuple(FailedCheck(name=name, signature=name) for name in sorted(failing)),
            failed_count=len(failing),
            signature=" ".join(sorted(failing)),
            report=report,
            progress=before is not None and failing < before,
            regress=before is not None and bool(failing - before),
            same=before is not None and failing == before and bool(failing),
            newly_failing=tuple(sorted(failing - before)) if before is not None else (),
            attempt=attempt,
        )

    def begin(self, step: Step, request: BeginRequest, attempt: int) -> BeginResult:
        """Run the checks for a baseline."""
        verification = self.verify(step, request.expected_tree, request.compare_with, attempt)
        return BeginResult(verification=verification, beginning=reference(f"beginning {self.tree}", "beginning"))

    def prove(self, step: Step, request: ProveRequest, attempt: int) -> ProveResult:
        """Prove the tree, or doubt it."""
        self.expect(request.expected_tree)
        proof = reference(f"proof {self.tree}", "proof")
        if step.get("doubted"):
            return ProveResult(
                proof=proof, verdict=ProofVerdict.DOUBTED, title="a test is gone", evidence=("a.py",), attempt=attempt
            )
        self.proven_tree = request.expected_tree
        return ProveResult(proof=proof, verdict=ProofVerdict.PROVEN, attempt=attempt)

    def accept(self, request: AcceptRequest) -> AcceptResult:
        """Store who accepted the tree."""
        self.proven_tree = self.tree
        return accepted(request)

    def plan(self, step: Step, request: NextPlanRequest, attempt: int) -> PlanningOutcome:
        """Plan as the script says."""
        verdict = PlanVerdict(step.get("verdict", "planned"))
        if attempt == 1:
            self.notes.append(f"{len(request.notes)}/{len(request.asked_for)}")
        findings = ()
        if finding := step.get("finding"):
            findings = (make_finding(_HARM, at=("a.py", finding), evidence=finding),)
        return PlanningOutcome(
            verdict=verdict,
            plan=reference(f"plan {request.iteration} {len(request.notes)}", "plan"),
            title=f"step {request.iteration}",
            reason="" if verdict is PlanVerdict.PLANNED else "a reason",
            final=bool(step.get("final")),
            findings=findings,
            usage=usage_of(step),
            attempt=attempt,
        )

    def hand_off(self, request: HandOffRequest, attempt: int) -> Delivery:
        """Queue a delivery under a key of its own."""
        if request.scope.request not in (None, self.opened):
            self.world.broken.append("a delivery of a request from before an amendment")
        return Delivery(key=f"{self.name}/{request.iteration}.{request.delivery}", attempt=attempt)

    def execute(self, step: Step, request: ExecuteRequest, attempt: int) -> ExecutorReport:
        """Work once under each key; what was interrupted is not repeated."""
        key, order = request.key, request.key.rpartition("/")[2]
        if key in self.reports:
            if attempt == 1 and self.name not in self.world.cancelled:
                self.world.broken.append(f"delivered twice: {order}")
            if step.get("crash") == "after":
                return self.reports[key].evolve(status=ExecutorStatus.OUTCOME_UNKNOWN, attempt=attempt)
            return self.reports[key].evolve(attempt=attempt)
        self.expect(request.expected_tree)
        asks = step.get("asks")
        status = ExecutorStatus(step.get("status", "needs_person" if asks else "completed"))
        if status in (ExecutorStatus.COMPLETED, ExecutorStatus.FAILED, ExecutorStatus.TIMED_OUT):
            place = self.world.place(self.name)
            self.world.deliveries.append(f"{place}:{order}" if place else order)
        self._work(step, order, status)
        limit = None
        if status is ExecutorStatus.LIMIT_HIT:
            wait = step.get("retry_after_s")
            limit = LimitHit(evidence="429", retry_after=None if wait is None else timedelta(seconds=wait))
        report = ExecutorReport(
            status=status,
            key=key,
            new_tree=self.tree,
            usage=usage_of(step),
            error="" if status is ExecutorStatus.COMPLETED else str(step.get("error", "it broke")),
            limit=limit,
            question=ASKS[asks](key) if asks else None,
            attempt=attempt,
        )
        self.reports[key] = report
        return report

    def _work(self, step: Step, order: str, status: ExecutorStatus) -> None:
        if status is ExecutorStatus.COMPLETED and not step.get("idle"):
            self.files["log.txt"] = self.files.get("log.txt", "") + f"{order}\n"
        for path, text in step.get("files", {}).items():
            if text is None:
                self.files.pop(path, None)
            else:
                self.files[path] = text

    def conclude(self, request: ConcludeRequest, attempt: int) -> ExecutorReport:
        """Turn what the coder did into a report."""
        result = request.result
        if result.status is ExecutorStatus.COMPLETED:
            order = request.begun.key.rpartition("/")[2]
            self.world.deliveries.append(order)
            self._work({}, order, result.status)
        return ExecutorReport(
            status=result.status,
            key=request.begun.key,
            new_tree=self.tree,
            usage=result.progress.usage,
            error=result.error,
            question=result.question,
            attempt=attempt,
        )

    def track(self, step: Step, request: TrackRequest, attempt: int) -> Tracked:
        """Record a checkpoint and classify the iteration: by what changed, unless the script knows better."""
        self.expect(request.state.tree)
        before, after = self.trees.get(request.base_tree, {}), self.files
        changed = sum(before.get(path) != after.get(path) for path in {*before, *after})
        verification = request.verification
        found = ProbabilityClass(step["class"]) if "class" in step else _class_of(changed, verification)
        reasons = () if found is ProbabilityClass.HIGH else (
            Reason(kind=ReasonKind.NO_CHANGE, implies=found, detail="little changed"),
        )  # fmt: skip
        tracking = Tracking(
            probability_class=found,
            reasons=reasons,
            files_changed=changed,
            progress=bool(step.get("progress", verification is not None and verification.progress)),
        )
        findings = ()
        if finding := step.get("finding"):
            findings = (make_finding(_HARM, at=("b.py", finding), evidence=finding),)
        record = self._checkpoint(request.state, request.state.iteration)
        return Tracked(
            tracking=tracking,
            checkpoint=record.evolve(parent=request.parent),
            plan_request=reference(f"plan request {record.id}", "plan-request"),
            findings=findings,
            usage=usage_of(step),
            attempt=attempt,
        )

    def reflect(self, step: Step, request: ReflectRequest, attempt: int) -> ReflectionOutcome:
        """Reflect."""
        return ReflectionOutcome(
            reflection=reference(f"reflection {request.cause}", "reflection"),
            diagnosis="it went wrong",
            usage=usage_of(step),
            attempt=attempt,
        )


def _holds(check: str, files: Files) -> bool:
    word, _, argument = check.partition(" ")
    if word == "lines":
        return len(files.get("log.txt", "").splitlines()) >= int(argument)
    return argument in files if word == "have" else argument not in files


def _class_of(changed: int, verification: Verification | None) -> ProbabilityClass:
    if not changed or (verification is not None and verification.regress):
        return ProbabilityClass.LOW
    return ProbabilityClass.HIGH


class EpisodeActivities:
    """What a worker registers for episodes. Those that plans have, too, are in `side`."""

    world: World

    def __init__(self) -> None:
        self.folders: dict[str, EpisodeFolder] = {}

    def folder(self) -> EpisodeFolder:
        """Return the folder of the episode that asks."""
        name = activity.info().workflow_id or ""
        if name not in self.folders:
            self.folders[name] = EpisodeFolder(self.world, name)
        return self.folders[name]

    def all(self) -> list[Any]:
        """Return the definitions."""
        return [
            self.open_workspace, self.restore_checkpoint, self.reconcile_reset, self.amend_request,
            self.close_workspace, self.verify, self.track_iteration, self.hand_off, self.execute, self.conclude,
            self.next_plan, self.reflect,
        ]  # fmt: skip

    @activity.defn
    async def open_workspace(self, request: OpenRequest) -> OpenResult:
        return await self.world.call("open", lambda _step, attempt: self.folder().open(request, attempt))

    @activity.defn
    async def restore_checkpoint(self, request: RestoreRequest) -> RestoredCheckpoint:
        return await self.world.call("restore", lambda _step, attempt: self.folder().restore(request, attempt))

    @activity.defn
    async def reconcile_reset(self, request: ReconcileRequest) -> ReconcileResult:
        return await self.world.call("reconcile", lambda _step, attempt: self.folder().reconcile(request, attempt))

    @activity.defn
    async def amend_request(self, request: AmendRequest) -> ArtifactRef:
        return await self.world.call("amend", lambda _step, _attempt: self.folder().amend(request))

    @activity.defn
    async def close_workspace(self, request: CloseRequest) -> CloseResult:
        return await self.world.call("close", lambda _step, _attempt: self.folder().close(request))

    @activity.defn
    async def verify(self, request: VerifyRequest) -> Verification:
        return await self.world.call(
            "check",
            lambda step, attempt: self.folder().verify(step, request.expected_tree, request.previous, attempt),
        )

    @activity.defn
    async def track_iteration(self, request: TrackRequest) -> Tracked:
        return await self.world.call("track", lambda step, attempt: self.folder().track(step, request, attempt))

    @activity.defn
    async def hand_off(self, request: HandOffRequest) -> Delivery:
        return await self.world.call("handoff", lambda _step, attempt: self.folder().hand_off(request, attempt))

    @activity.defn
    async def execute(self, request: ExecuteRequest) -> ExecutorReport:
        return await self.world.call("work", lambda step, attempt: self.folder().execute(step, request, attempt))

    @activity.defn
    async def conclude(self, request: ConcludeRequest) -> ExecutorReport:
        return await self.world.call("conclude", lambda _step, attempt: self.folder().conclude(request, attempt))

    @activity.defn
    async def next_plan(self, request: NextPlanRequest) -> PlanningOutcome:
        return await self.world.call("plan", lambda step, attempt: self.folder().plan(step, request, attempt))

    @activity.defn
    async def reflect(self, request: ReflectRequest) -> ReflectionOutcome:
        return await self.world.call("reflect", lambda step, attempt: self.folder().reflect(step, request, attempt))
