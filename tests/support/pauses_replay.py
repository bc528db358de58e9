"""Replays the entries of `tests/data/pauses` outside of Temporal: real trees, diffs and checks, and the rules.

    python -m tests.support.pauses_replay [PART ...]

prints the figures of each part, by default of all. It has the counts of the product without the time for Temporal; what
people and workers do in between is left out, which no entry is about.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from activities.artifacts.port import ArtifactStore, get_model, put_model
from activities.checks.activity import verification_of
from activities.planner.reflectors import rule_reflection
from activities.tracking.activity import TrackRequest, gather, read_diff, tracking_of
from activities.workspace.differ import Differ
from activities.workspace.folders import store_folder_of
from activities.workspace.scope import EpisodeScope, TreeDiff
from activities.workspace.working_tree import Workspaces
from tests.data.pauses import Entry, entries
from tests.support.doubles import planned
from tests.support.pauses import NOTICED, Course, Figures, Pause, selected, workspace_of
from tightloop.episode import decisions, state_changes
from tightloop.episode.check import Check, CheckReport, CheckResult, judge
from tightloop.episode.checkpoint import CheckpointRecord, Tracked
from tightloop.episode.model import EpisodeRequest, EpisodeState
from tightloop.episode.planning import (
    PlannerAnswer,
    PlanningOutcome,
    PlanRecord,
    PlanVerdict,
    ReflectionBriefing,
    ReflectionOutcome,
    ReflectionRecord,
)
from tightloop.executor.model import ExecutorReport, ExecutorStatus
from tightloop.run.question import Answer
from tightloop.safety.change.patch import Change
from tightloop.safety.change.rules import review_change
from tightloop.safety.drift import DriftCause
from tightloop.safety.rubric import Finding, Rubric, limit_findings
from tightloop.value import ArtifactRef, reference

PARTS = ("development", *(f"once_held_back{letter}" for letter in ("", "_b", "_c", "_d", "_e", "_f")))


class Seen(NamedTuple):
    """What an iteration left behind."""

    answer: PlannerAnswer
    report: ExecutorReport | None
    base: str
    tree: str
    diff: TreeDiff
    lines: int
    """Of the tree before."""
    findings: tuple[Finding, ...]
    checks: CheckReport | None


class _Store:
    """Artifacts in memory."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}

    def put(
        self, content: bytes, *, name: str, media_type: str = "application/json", as_file: bool = False
    ) -> ArtifactRef:
        """Keep bytes."""
        del as_file
        ref = reference(content, name=name, media_type=media_type)
        self._held[ref.sha256] = content
        return ref

    def get(self, ref: ArtifactRef) -> bytes:
        """Return them."""
        return self._held[ref.sha256]

    def path(self, ref: ArtifactRef) -> Path:
        """Nothing lies in a file."""
        raise NotImplementedError(ref.name)

    def open_batch(self) -> AbstractContextManager[ArtifactStore]:
        """Return this store."""
        return nullcontext(self)


def watch(entry: Entry) -> tuple[Seen, ...]:
    """Do what the script of an entry says, and return what was there to see, first before the first iteration."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        # In a process of its own: the trees of the entries are not kept.
        os.environ["TIGHTLOOP_HOME"] = f"{name}/home"
        root = workspace_of(Path(name) / "project", entry, _git)
        scope = EpisodeScope(episode_id="replay", workspace=str(root))
        workspaces = Workspaces()
        workspaces.prepare(scope, take_over=lambda _episode: True)
        return tuple(_watched(entry, root, scope, workspaces))


def _watched(entry: Entry, root: Path, scope: EpisodeScope, workspaces: Workspaces) -> Iterator[Seen]:
    store, differ = store_folder_of(scope), Differ()
    tree = ""
    for n in range(entry.iterations + 1):
        plan = entry.plan(n) if n else ""
        answer = planned(plan) if isinstance(plan, str) else plan
        report = None
        if n and answer.verdict is PlanVerdict.PLANNED:
            report = _deliver(entry, n, root)
        with workspaces.hold(scope) as held:
            base, tree = tree, held.snapshot()
            base = base or tree
            checked = answer.verdict is not PlanVerdict.MALFORMED
            checks = CheckReport(tree=tree, results=tuple(_run(check, root, tree) for check in _checks(entry)))
            held.ensure(tree, DriftCause.DURING_CHECKS)
        diff = differ.compare(store, base, tree)
        lines = differ.lines(store, base)
        files, unread = read_diff(diff, tree)
        change = Change(files=files, goal=entry.name, scope=(), lines_before=lines, unread=unread)
        found = limit_findings(review_change(change, Rubric()), Rubric()) if n else ()
        yield Seen(answer, report, base, tree, diff, lines, found, checks if checked else None)


def _deliver(entry: Entry, n: int, root: Path) -> ExecutorReport:
    for path, text in entry.work(n).items():
        place = root / path
        if text is None:
            place.unlink(missing_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    ending = dict(entry.ending(n))
    status = ExecutorStatus(ending.get("status", ExecutorStatus.COMPLETED))
    return ExecutorReport(key=f"run/{n}/1", status=status, error=ending.get("error", ""))


def _checks(entry: Entry) -> tuple[Check, ...]:
    return EpisodeRequest(definition_of_done=entry.checks).definition_of_done  # type: ignore[arg-type]


def _run(check: Check, root: Path, tree: str) -> CheckResult:
    try:
        done = subprocess.run(
            ("/bin/sh", "-c", check.run),
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=check.timeout_s,
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        code, output = None, error.stdout or b""
    return judge(
        check,
        tree=tree,
        exit_code=code,
        timed_out=code is None,
        duration_s=0.1,
        output=output.decode("utf-8", "replace"),
    )


def course_of(entry: Entry, seen: tuple[Seen, ...]) -> Course:
    """Let the rules decide about what was seen."""
    replayed = _Replay(entry, seen[0])
    for number, one in enumerate(seen[1:], start=1):
        if replayed.after(one):
            return replayed.course(number)
    return replayed.course(len(seen) - 1)


class _Replay:
    """An episode as the rules see it."""

    def __init__(self, entry: Entry, first: Seen) -> None:
        self._entry, self._store = entry, _Store()
        self._pauses: list[Pause] = []
        self._told: list[int] = []
        self._request = EpisodeRequest(goal=entry.name, workspace="/w", definition_of_done=_checks(entry))
        ref = put_model(self._store, self._request, name="request")
        self._scope = EpisodeScope(episode_id="replay", workspace="/w", request=ref)
        self._state = EpisodeState(tree=first.tree, request=ref, trees=(first.tree,))
        if first.checks is not None:
            begun = verification_of(self._store, first.checks)
            self._state = state_changes.with_verification(self._state, begun, baseline=True)

    def after(self, seen: Seen) -> bool:
        """Take in one iteration; return whether the episode ends with it."""
        self._reflect()
        before = self._state
        self._plan(seen.answer)
        if self._follow(decisions.after_planning(_outcome(seen.answer))):
            return True
        if seen.report is not None:
            report = seen.report.evolve(new_tree=seen.tree)
            if report.status is ExecutorStatus.COMPLETED and not seen.diff.files_changed:
                report = report.evolve(status=ExecutorStatus.NO_CHANGE)
            self._state = state_changes.with_report(self._state, report)
        self._track(seen, before)
        decision = decisions.after_tracking(self._state, self._request)
        if decision.action is decisions.NextAction.SUCCEED:
            return True
        if decision.action is decisions.NextAction.TELL:
            self._told.append(self._state.iteration)
            return False
        return self._follow(decision)

    def course(self, iterations: int) -> Course:
        """Return how it went."""
        return Course(entry=self._entry, iterations=iterations, pauses=tuple(self._pauses), told=tuple(self._told))

    def _reflect(self) -> None:
        if self._state.reflect_next is None:
            return
        checks = get_model(self._store, self._state.checks, CheckReport) if self._state.checks else None
        briefing = ReflectionBriefing(cause=self._state.reflect_next, detail=self._state.reflect_detail, checks=checks)
        made = rule_reflection(briefing)
        record = ReflectionRecord(diagnosis=made.diagnosis, action_items=made.action_items)
        outcome = ReflectionOutcome(reflection=put_model(self._store, record, name="reflection"))
        self._state = state_changes.with_reflection(self._state, outcome)

    def _plan(self, answer: PlannerAnswer) -> None:
        plan = put_model(self._store, PlanRecord(message=answer.message), name="plan") if answer.message else None
        outcome = _outcome(answer).evolve(plan=plan)
        self._state = state_changes.with_plan(state_changes.begin_iteration(self._state), outcome)

    def _track(self, seen: Seen, before: EpisodeState) -> None:
        checks, verification = seen.checks, None
        if checks is not None:
            previous = get_model(self._store, before.checks, CheckReport) if before.checks else None
            verification = verification_of(self._store, checks, previous)
            self._state = state_changes.with_verification(self._state, verification)
        request = TrackRequest(
            scope=self._scope,
            state=self._state,
            base_tree=seen.base,
            report=seen.report,
            verification=verification,
        )
        iteration = gather(self._store, request, seen.diff, Path("/w"))
        tracking = tracking_of(request, seen.diff, iteration, lines_before=seen.lines)
        number = self._state.iteration
        tracked = Tracked(
            tracking=tracking,
            checkpoint=CheckpointRecord(id=f"ckpt-{number}", iteration=number, tree=seen.tree),
            findings=seen.findings,
        )
        self._state = state_changes.with_tracking(self._state, tracked, verification)

    def _follow(self, decision: decisions.Decision) -> bool:
        """Answer as the trials do; return whether the entry ends there."""
        question, since = decision.question, self._entry.since
        if question is None:
            return False
        self._pauses.append(Pause(self._state.iteration, question.kind, question.title))
        if since is not None and self._state.iteration >= since and question.kind in NOTICED:
            return True
        answer = Answer(question="q", option=question.options[0].name, by="operator")
        self._state = state_changes.with_ended_wait(self._state, question, answer)
        self._state = state_changes.with_answer(self._state, question, answer, first=self._request.budget)
        return False


def _outcome(answer: PlannerAnswer) -> PlanningOutcome:
    message = answer.message
    return PlanningOutcome(
        verdict=answer.verdict,
        title=message.steps[0].title if message and message.steps else "",
        reason=answer.reason,
        final=message.final if message else False,
    )


def _git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(("git", *who, *arguments), cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def _seen_of(part: str, name: str) -> tuple[Seen, ...]:
    return watch(next(entry for entry in entries(part) if entry.name == name))


def main(parts: tuple[str, ...]) -> None:
    """Print the figures of each part."""
    with ProcessPoolExecutor() as pool:
        for part in parts:
            found = selected(part)
            seen = pool.map(_seen_of, [part] * len(found), [entry.name for entry in found])
            print(f"{part}: {Figures(tuple(map(course_of, found, seen)))}", flush=True)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or PARTS)
