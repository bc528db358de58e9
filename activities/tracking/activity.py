"""Activities that record an iteration's changes."""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from temporalio import activity

from activities.artifacts.port import ArtifactStore, ArtifactStores, find_model, put_model
from activities.memory.port import Memories, no_memories
from activities.safety.gate import AlignmentChecker, AlignmentResult, JudgeBriefing
from activities.tracking.learning import Lesson, Moment, earlier, record_lesson, report_problem_once
from activities.workspace.folders import root_of, state_folder_of, store_folder_of
from activities.workspace.scope import Call, EpisodeScope, Ledgers, TreeDiff, this_call
from tightloop.episode.check import CheckReport, Verification
from tightloop.episode.checkpoint import CheckpointRecord, Tracked
from tightloop.episode.failure import goes_round
from tightloop.episode.messages import make_delta, plan_request_of
from tightloop.episode.model import CheckpointFile, EpisodeRequest, EpisodeState
from tightloop.episode.planning import PlanRecord, PlanVerdict
from tightloop.episode.progress.classification import RULES, classify
from tightloop.episode.progress.course import ChangedFile, Iteration, observe
from tightloop.episode.progress.tracking import TrackerMemory, Tracking, find_new_work, similarity
from tightloop.executor.message import PlanRequestMessage, Reflection, render_plan
from tightloop.executor.model import ExecutorReport
from tightloop.host import diff_command
from tightloop.ledger.metrics import Metric, MetricKind
from tightloop.ledger.model import TrailEvent, WorkflowSnapshot
from tightloop.safety.announcement import find_requested_changes
from tightloop.safety.approval import ShownChange, find_approval
from tightloop.safety.change.patch import Change, FilePatch, Unread, read_patch, show_change
from tightloop.safety.change.reading import Deadline, is_data
from tightloop.safety.change.rules import WHOLE_CHANGE, review_change, still_stands
from tightloop.safety.rubric import Finding, Topic, limit_findings, unanswered_findings
from tightloop.safety.scope import list_scope_paths
from tightloop.value import ArtifactRef, Value, format_count, shorten

if TYPE_CHECKING:
    from activities.workspace.differ import Differ
    from activities.workspace.working_tree import Workspaces
    from tightloop.database.project import ProjectLedger

NO_PATCH = "no patch"


def read_diff(diff: TreeDiff, tree: str) -> tuple[tuple[FilePatch, ...], Unread]:
    """Split a patch into files. Also return the parts of the diff that are missing from the patch.

    Binary files and generated data are never reported as missing, because line-based rules do not read them.
    """
    files = read_patch(diff.patch.decode("utf-8", "replace"))
    if not diff.note and (diff.patch or not diff.files_changed):
        return files, Unread()
    patch_paths = {file.path for file in files}
    missing = [file for file in diff.files if not (file.binary or file.path in patch_paths or is_data(file.path))]
    unlisted = max(diff.files_changed - max(len(diff.files), len(files)), 0)
    lines = sum(file.added + file.removed for file in missing)
    if unlisted:
        lines += diff.lines_added + diff.lines_removed - sum(file.added + file.removed for file in diff.files)
    return files, Unread(
        paths=tuple(file.path for file in missing),
        files=len(missing) + unlisted,
        lines=lines,
        why=diff.note or NO_PATCH,
        mark=tree,
    )


MATERIAL_CHARACTERS = 100_000
"""Maximum length of the diff for a judge. The prompt limits it further."""
READING_BOUND = timedelta(seconds=0.4)
"""CPU time limit of the rules per change. Unread parts are left to a judge or a person."""
RENAMES_NAMED = 10
RENAME_CHARACTERS = 160
NOTE_CHARACTERS = 300


class TrackRequest(Value):
    """Request to record one iteration. Large data is passed by reference."""

    scope: EpisodeScope
    state: EpisodeState
    """State to store in the checkpoint, except for its lists of checkpoints and events."""
    base_tree: str
    """Tree before the iteration."""
    base_lines: int | None = None
    """Number of text lines in `base_tree`, if known."""
    previous_plan: ArtifactRef | None = None
    checks_before: str = ""
    """Number of passed checks and of all checks before the iteration, such as `1/3`."""
    parent: str | None = None
    """Previous checkpoint."""
    report: ExecutorReport | None = None
    verification: Verification | None = None
    worked: timedelta = timedelta()
    """The iteration's working time so far."""


@dataclass(frozen=True)
class TrackingActivities:
    """Activities that record an episode's iterations."""

    workspaces: "Workspaces"
    stores: ArtifactStores
    ledgers: Ledgers
    differ: "Differ"
    gate: AlignmentChecker = field(default_factory=AlignmentChecker)
    """Checks the alignment of changes."""
    memories: Memories = no_memories

    # A cancellation must not hit between the checkpoint in the ledger and the ref that keeps its tree.
    @activity.defn(no_thread_cancel_exception=True)
    def track_iteration(self, request: TrackRequest) -> Tracked:
        """Record an iteration's diff, classification, plan request, checkpoint and timeline entries.

        Idempotent, because the checkpoint's key is derived from the run and the iteration.
        """
        workspace = Path(request.scope.workspace)
        store, moment = self.stores(workspace), moment_of(request, this_call())
        episode = find_model(store, request.scope.request, EpisodeRequest) or EpisodeRequest()
        with self.workspaces.hold(request.scope) as tree:
            # The tree may have changed since the checks, for example by a person; the record says so.
            drift = tree.expect(request.state.tree)
            diff = self.differ.compare(store_folder_of(request.scope), request.base_tree, request.state.tree)
            before = request.base_lines
            if before is None:
                # Counted only once per episode; each record then carries the number on.
                before = self.differ.lines(store_folder_of(request.scope), request.base_tree)
            tracking = tracking_of(
                request,
                diff,
                gather(store, request, diff, tree.root),
                lines_before=before,
            )
            # Stored together, before the ledger refers to it.
            with store.open_batch() as together:
                file = self._file(together, request, diff, episode)
                stored = put_model(together, file, name="checkpoint")
            record = self.ledgers(workspace).record_checkpoint(
                request.scope.episode_id,
                moment.key,
                _draft(request, tracking, lines=before + diff.lines_added - diff.lines_removed).evolve(state=stored),
            )
            # While the tree is held: a collection by `tightloop gc` needs the same lock.
            tree.keep(str(record.number), record.tree)
        # Outside the lock: the rest reads only what is stored, and may wait for a judge.
        note_iteration(self.ledgers(workspace), request, tracking, record, moment)
        weighed = self._check_alignment(store, request, diff, episode, before)
        planned = request.state.plan_verdict in (PlanVerdict.PLANNED, PlanVerdict.CLAIMS_DONE)
        plan = find_model(store, request.state.plan, PlanRecord) if planned else None
        is_asked = bool(unanswered_findings(weighed.findings, request.state.overruled))
        tracked = Tracked(
            tracking=tracking,
            checkpoint=record,
            plan_request=file.state.plan_request,
            findings=weighed.findings,
            change=_shown(request, diff, weighed.findings) if is_asked else None,
            alignment=weighed.store(store),
            usage=weighed.usage,
            drift=drift,
            recalled=plan.recalled if plan else None,
            memory_problem=self._record_lesson(store, request, plan, diff, weighed.findings, moment),
            attempt=activity.info().attempt,
        )
        note_metrics(self.ledgers(workspace), request, tracked, moment)
        return tracked

    def _record_lesson(
        self,
        store: ArtifactStore,
        request: TrackRequest,
        plan: PlanRecord | None,
        diff: TreeDiff,
        findings: tuple[Finding, ...],
        moment: Moment,
    ) -> str:
        """Update the memory with the lesson from an iteration.

        Return a problem with the memory if it has not been reported yet.
        """
        workspace, state = Path(request.scope.workspace), request.state
        memory = self.memories(workspace)
        if not memory.is_enabled:
            return ""
        ledger, verified = self.ledgers(workspace), request.verification is not None
        lesson = Lesson(
            plan=plan if request.report is not None and verified else None,
            before=find_model(store, plan.checks, CheckReport) if plan else None,
            after=find_model(store, state.checks, CheckReport) if verified else None,
            diff=diff,
            findings=findings,
            earlier=earlier(store, ledger.checkpoints(moment.episode_id), request.parent),
        )
        record_lesson(memory, lesson, moment)
        return report_problem_once(ledger, memory.problem, moment)

    def _check_alignment(
        self, store: ArtifactStore, request: TrackRequest, diff: TreeDiff, episode: EpisodeRequest, lines_before: int
    ) -> AlignmentResult:
        """Check the change against the rubric. A retry may ask a judge again, which costs money."""
        plan = find_model(store, request.state.plan, PlanRecord)
        message = plan.message if plan and request.report else None
        # CPU time of this thread: a busy machine reads as much as an idle one.
        watch = Deadline(time.thread_time, READING_BOUND.total_seconds())
        files, unread = read_diff(diff, request.state.tree)
        measured = [part.cpu_s for part in (request.report, request.verification) if part and part.cpu_s is not None]
        change = Change(
            files=files,
            goal="\n".join((episode.goal, *(step.title for step in message.steps))) if message else episode.goal,
            # Only people announce changes to tests; the titles of steps are a planner's.
            requested=find_requested_changes(episode.goal),
            scope=list_scope_paths(message.scope, (str(root_of(request.scope)), request.scope.workspace))
            if message
            else (),
            lines_before=lines_before,
            cpu_s=sum(measured) if measured else None,
            wall_s=request.worked.total_seconds(),
            unread=unread,
        )
        findings = _without_answered(review_change(change, self.gate.rubric, watch=watch), change, request.state)
        prompt_privacy = self.gate.prompt_privacy(str(Path(request.scope.workspace).resolve()))
        # Four bytes are the longest UTF-8 character; decoding the whole patch would waste time.
        material = diff.patch[: 4 * MATERIAL_CHARACTERS].decode("utf-8", "replace")[:MATERIAL_CHARACTERS]
        briefing = JudgeBriefing(goal=episode.goal, about="a change", material=material, prompt_privacy=prompt_privacy)
        # A threaded activity has no event loop.
        weighed = (
            asyncio.run(
                self.gate.check_alignment(
                    findings, briefing, planner=episode.planner, overruled=request.state.overruled
                )
            )
            if findings
            else AlignmentResult()
        )
        refused = tuple(item for item in request.state.findings if item.refused and still_stands(item, change))
        return weighed._replace(findings=limit_findings((*weighed.findings, *refused), self.gate.rubric))

    def _file(
        self, store: ArtifactStore, request: TrackRequest, diff: TreeDiff, episode: EpisodeRequest
    ) -> CheckpointFile:
        state = request.state
        plan = find_model(store, state.plan, PlanRecord)
        new = plan.message if plan else None
        plan_request = plan_request_of(
            episode,
            state,
            plan=new,
            report=request.report,
            checks=find_model(store, state.checks, CheckReport),
            changes=tuple(f"{file.path} (+{file.added} -{file.removed})" for file in diff.files),
            before=find_model(store, state.plan_request, PlanRequestMessage),
            checks_before=request.checks_before,
        )
        reference = put_model(store, plan_request, name="plan request")
        old, delta = find_model(store, request.previous_plan, PlanRecord), None
        if old is not None and old.message is not None and new is not None:
            delta = make_delta(render_plan(old.message), render_plan(new), request.previous_plan)
        return CheckpointFile(
            state=state.evolve(plan_request=reference),
            patch=store.put(diff.patch, name="patch", media_type="text/x-diff") if diff.patch else None,
            plan_delta=put_model(store, delta, name="plan delta") if delta else None,
        )


def _shown(request: TrackRequest, diff: TreeDiff, findings: tuple[Finding, ...]) -> ShownChange:
    """Return the part of the change that the findings refer to."""
    command = diff_command(Path(request.scope.workspace), request.base_tree, request.state.tree)
    paths = [finding.path for finding in findings]
    # Findings about the change as a whole name no file.
    paths = [] if WHOLE_CHANGE in paths else paths
    return show_change(diff.patch.decode("utf-8", "replace"), paths, command)


def _without_answered(findings: tuple[Finding, ...], change: Change, state: EpisodeState) -> tuple[Finding, ...]:
    """Drop findings about checks if a person has already allowed or requested the change."""
    answered = {
        version.path
        for file in change.files
        for version in file.versions
        if find_approval(state.approvals, version) is not None
    }
    return tuple(finding for finding in findings if finding.topic is not Topic.CHECKS or finding.path not in answered)


def moment_of(request: TrackRequest, call: Call) -> Moment:
    """Return the identity of the iteration that is being recorded."""
    return Moment(request.scope.episode_id, request.state.iteration, call.run, call.scheduled)


def note_iteration(
    ledger: "ProjectLedger", request: TrackRequest, tracking: Tracking, record: CheckpointRecord, moment: Moment
) -> None:
    """Record an iteration's result in the ledger."""
    status = request.report.status.value if request.report else "nothing delivered"
    verdict = record.probability_class.value if record.probability_class else ""
    note = f"; {tracking.note}" if tracking.note else ""
    episode, at = moment.episode_id, moment.at
    text = (
        f"{record.id}: iteration {record.iteration}, {status}, checks {record.checks}, {verdict}, "
        f"{format_count(tracking.files_changed, 'file')}{note}"
    )
    ledger.add_event(TrailEvent(episode_id=episode, kind="iteration", key=f"iteration/{moment.key}", text=text, at=at))
    spent = request.state.spent.cost_usd
    ledger.progress(episode, iteration=moment.iteration, checks=record.checks, cost_usd=spent, at=at)


def note_metrics(ledger: "ProjectLedger", request: TrackRequest, tracked: Tracked, moment: Moment) -> None:
    """Record the number of alignment findings, the number of memory hits and the coverage of changed lines.

    Findings that a person rejected earlier are not counted again.
    """
    finding_count, key = sum(not finding.refused for finding in tracked.findings), f"change/{moment.key}"
    episode, at = moment.episode_id, moment.at
    measured = [Metric(workflow_id=episode, kind=MetricKind.SAFETY_FINDINGS, value=finding_count, at=at, key=key)]
    if tracked.recalled is not None:
        hit, key = float(tracked.recalled > 0), f"plan/{moment.key}"
        measured.append(Metric(workflow_id=episode, kind=MetricKind.MEMORY_HIT, value=hit, at=at, key=key))
    if (report := request.report) is not None:
        of_change = {
            MetricKind.CHANGED_LINE_COVERAGE: report.coverage,
            MetricKind.BANDIT_FINDINGS: report.bandit_findings,
        }
        measured += [
            Metric(workflow_id=episode, kind=kind, value=value, at=at)
            for kind, value in of_change.items()
            if value is not None
        ]
    ledger.add_metrics(measured)


def gather(store: ArtifactStore, request: TrackRequest, diff: TreeDiff, root: Path) -> Iteration:
    """Collect the facts about an iteration from its state, its reports and its artifacts."""
    state, report = request.state, request.report
    planned = state.plan_verdict in (PlanVerdict.PLANNED, PlanVerdict.CLAIMS_DONE)
    plan = find_model(store, state.plan, PlanRecord) if planned else None
    reflection = find_model(store, state.reflection, Reflection)
    checks = find_model(store, state.checks, CheckReport) if request.verification else None
    files, _ = read_diff(diff, state.tree)
    new_work, touched = find_new_work(files, (state.memory or TrackerMemory()).known)
    return Iteration(
        spent=state.spent,
        roots=(str(root), request.scope.workspace),
        changed=tuple(
            ChangedFile(path=file.path, was=file.renamed_from, lines=file.added + file.removed) for file in diff.files
        ),
        files_changed=diff.files_changed,
        # A change that could not be read completely gets the benefit of the doubt.
        new_work=new_work or (bool(diff.files_changed) and not files),
        touched=touched,
        tree_seen_before=state.tree in state.trees[:-1],
        plan=plan.message if plan else None,
        items=reflection.action_items if reflection else (),
        claimed_done=state.plan_final,
        report=report,
        obeyed=any(not grant.allowed for grant in state.grants),
        verification=request.verification,
        checks=checks,
    )


def tracking_of(request: TrackRequest, diff: TreeDiff, iteration: Iteration, *, lines_before: int) -> Tracking:
    """Measure and classify an iteration."""
    state = request.state
    ratio = similarity(lines_before, added=diff.lines_added, removed=diff.lines_removed)
    observed, memory = observe(state.memory, iteration)
    facts = observed.evolve(
        ratio=round(ratio, 4),
        lines_kept=round(max(1 - diff.lines_removed / lines_before, 0.0), 4) if lines_before > 0 else 1.0,
        alternates=goes_round((*state.trees, state.tree)),
    )
    renames = [(file.renamed_from, file.path) for file in diff.files if file.renamed_from]
    probability_class, reasons = classify(facts)
    return Tracking(
        probability_class=probability_class,
        ratio=facts.ratio,
        rules=RULES,
        reasons=reasons,
        files_changed=diff.files_changed,
        lines_added=diff.lines_added,
        lines_removed=diff.lines_removed,
        approximate=diff.approximate,
        note=shorten(diff.note, NOTE_CHARACTERS),
        renames=tuple(shorten(f"{old} => {new}", RENAME_CHARACTERS) for old, new in renames[:RENAMES_NAMED]),
        files_renamed=len(renames),
        memory=memory,
        progress=facts.progress,
        circles=facts.alternates or facts.errors_alternate,
    )


def _draft(request: TrackRequest, tracking: Tracking, *, lines: int) -> CheckpointRecord:
    state = request.state
    return CheckpointRecord(
        id="",
        iteration=state.iteration,
        branch=state.branch,
        tree=state.tree,
        parent=request.parent,
        probability_class=tracking.probability_class,
        checks=state.checks_text,
        title=shorten(state.plan_title, 80),
        run_id=activity.info().workflow_run_id or "",
        lines=lines,
    )


class RecordRequest(Value):
    """Request to record a workflow's state in the ledger."""

    scope: EpisodeScope
    snapshot: WorkflowSnapshot
    events: tuple[TrailEvent, ...] = ()
    """Timeline entries in addition to status changes and questions."""
    metrics: tuple[Metric, ...] = ()
    """Metrics collected since the last request."""


class Recorded(Value):
    """The result of recording a state. Shows whether the state is in the ledger."""

    kept: bool = True


@dataclass(frozen=True)
class RecordActivities:
    """Keeps the project's ledger up to date."""

    ledgers: Ledgers

    @activity.defn(no_thread_cancel_exception=True)
    def record(self, request: RecordRequest) -> Recorded:
        """Store a workflow's snapshot in the ledger unless a newer one is known. Idempotent.

        Projects that were never opened are skipped.
        """
        # Recording must not create a state folder for a project that only failed to start.
        if not state_folder_of(request.scope).is_dir():
            return Recorded(kept=False)
        keep_record(self.ledgers(Path(request.scope.workspace)), request)
        return Recorded()


def keep_record(ledger: "ProjectLedger", request: RecordRequest) -> None:
    """Record a workflow's snapshot, timeline entries and metrics."""
    for event in request.events:
        ledger.add_event(event)
    if request.metrics:
        ledger.add_metrics(request.metrics)
    ledger.record(request.snapshot)
