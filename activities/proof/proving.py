"""Proves a tree, using its subject, check runs and differences."""

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from temporalio.exceptions import CancelledError

from activities.artifacts.port import ArtifactStore, find_model, get_model, put_model
from activities.checks.activity import CheckRunner, CheckView, run_check
from activities.proof import untracked
from activities.proof.port import DeliveredFile, Files, LockedTrees, ProveResult, TreeFile, UntrackedChanges
from activities.workspace.port import WorkingTree
from activities.workspace.scope import EpisodeScope
from tightloop.episode.budget import check_work
from tightloop.episode.check import Check, CheckResult, CheckStatus, ProofRule
from tightloop.episode.exit_status import check_argv
from tightloop.episode.model import EpisodeRequest
from tightloop.episode.proof import (
    FILES_LIMIT,
    NAMES_LIMIT,
    ChangedFile,
    CheckRun,
    ConfigurationFile,
    FileChange,
    FileKind,
    Proof,
    ProofRun,
    ProofVerdict,
    TestReport,
    TestsFrom,
)
from tightloop.episode.proof.files import (
    ENVIRONMENTS,
    Guards,
    data_named_in,
    is_cache,
    is_environment,
    is_same_setup,
    programs_of,
    suspicious_lines,
)
from tightloop.episode.proof.kept_tests import KeptTests, Sources, compare_tests
from tightloop.episode.proof.loaded import LoadedFiles, lost_inner_tests
from tightloop.episode.proof.report import PASSED, CheckBaseline, InitialState, Observation, missing, names_text
from tightloop.episode.proof.same_code import is_same_code
from tightloop.episode.proof.verdict import (
    NO_TESTS,
    Changes,
    ObservedRun,
    SourceChanges,
    evidence_lines,
    findings_of,
    had_no_tests,
    is_kept,
    not_held,
    verdict_of,
)
from tightloop.episode.proof.weakening import Suppressions, find_empty_tests, find_suppressions, find_weakening
from tightloop.host.worktree import path_inside
from tightloop.plan.document import StoredPlan
from tightloop.run.core import Evidence, Work
from tightloop.run.outcome import Facts, doubts
from tightloop.run.question import EVIDENCE_LINES
from tightloop.safety.announcement import RequestedChanges, find_requested_changes
from tightloop.safety.approval import Approval, FileVersion, find_approval
from tightloop.safety.scope import files_in
from tightloop.value import ArtifactRef, Value, clip, shorten
from tightloop.value.scrub import scrub

if TYPE_CHECKING:
    from activities.proof.checkouts import LocalCheckouts, ProofFolder

TAIL_CHARACTERS = 1_200


class CheckedTwice(NamedTuple):
    """Result of a check that was repeated if it failed."""

    result: CheckResult
    observation: Observation
    is_flaky: bool


class FirstRun(Value):
    """Run of a found check in a throwaway checkout of the original tree."""

    result: CheckResult
    observation: Observation


class FirstRuns(Value):
    """First runs of a project's own checks on one tree."""

    tree: str
    runs: tuple[FirstRun, ...] = ()


class Runs:
    """Runs checks on a locked tree on disk."""

    def __init__(
        self,
        tree: WorkingTree,
        store: ArtifactStore,
        runner: CheckRunner,
        checkouts: "LocalCheckouts",
        cancelled: Callable[[], bool],
        heartbeat: Callable[[Work], None],
    ) -> None:
        self.tree, self.store, self.checkouts = tree, store, checkouts
        self._runner, self._cancelled, self._heartbeat = runner, cancelled, heartbeat

    def run_in_place(
        self, checks: tuple[Check, ...], expected_tree: str, earlier: Mapping[str, FirstRun] = MappingProxyType({})
    ) -> list[CheckedTwice]:
        """Run every check in the working tree, and repeat the ones that fail.

        A check that passes the second time fails at random, so its failure says nothing about the work.

        Args:
            checks: the checks.
            expected_tree: the tree on disk.
            earlier: runs in a checkout of this tree, by command. A check that passed there is not run, and one that
                failed there is not repeated.

        Raises:
            CancelledError: the activity was cancelled meanwhile.
        """
        results = []
        paths = LockedTrees(self.tree).files(expected_tree)
        with self.checkouts.proof_folder(self.tree.root) as room:
            for number, check in enumerate(checks, start=1):
                first = earlier.get(check.run)
                if first is not None and first.result.passed:
                    results.append(CheckedTwice(first.result.evolve(tree=expected_tree), first.observation, False))
                    continue
                self._heartbeat(check_work(check, number, len(checks), datetime.now(UTC)))
                result, observation = self.run_observed_check(check, room, CheckView(), paths)
                is_flaky = False
                # A missing program stays missing, and a check that ran out of time would cost as much time again.
                if result.status is CheckStatus.FAILED and first is None:
                    self._heartbeat(check_work(check, number, len(checks), datetime.now(UTC), "repeated check"))
                    second, second_observation = self.run_observed_check(check, room, CheckView(), paths)
                    if is_flaky := second.passed:
                        result, observation = second, second_observation
                results.append(CheckedTwice(result.evolve(tree=expected_tree), observation, is_flaky))
        return results

    def run_in_checkout(
        self,
        rooms: ExitStack,
        checks: tuple[Check, ...],
        tests: TestsFrom,
        files: Files,
        moved: UntrackedChanges,
        beginning: InitialState,
    ) -> ObservedRun:
        """Run every check in a fresh checkout of `files`. The checkout is deleted when `rooms` closes.

        A check that fails is repeated once, in another checkout.

        Raises:
            CancelledError: the activity was cancelled meanwhile.
        """
        started = datetime.now(UTC)
        runs: list[CheckRun] = []
        observations: list[Observation] = []
        flaky: list[str] = []
        room = rooms.enter_context(self.checkouts.proof_folder(self.tree.root))
        view = room.checkout(LockedTrees(self.tree), files, moved)
        for number, check in enumerate(checks, start=1):
            kind = f"proof with the tests as {tests.value}, check"
            self._heartbeat(check_work(check, number, len(checks), datetime.now(UTC), kind))
            result, observation = self.run_observed_check(check, room, view, files)
            if result.status is CheckStatus.FAILED:
                # In another checkout, so that what the first run left behind cannot make the second one pass.
                again = rooms.enter_context(self.checkouts.proof_folder(self.tree.root))
                second_view = again.checkout(LockedTrees(self.tree), files, moved)
                second, second_observation = self.run_observed_check(check, again, second_view, files)
                if second.passed:
                    flaky.append(check.title)
                    result, observation = second, second_observation
            runs.append(_check_run(self.store, check, result, observation, beginning.check(check.run)))
            observations.append(observation)
        run = ProofRun(tests=tests, checks=tuple(runs), started=started, ended=datetime.now(UTC))
        return ObservedRun(run, tuple(observations), tuple(flaky))

    def run_variant(
        self,
        rooms: ExitStack,
        checks: Sequence[CheckRun],
        files: Files,
        moved: UntrackedChanges,
        edits: Mapping[str, str | None],
        hollow: Mapping[str, object] | None = None,
    ) -> list[tuple[CheckRun, CheckResult, Observation]]:
        """Run checks that passed in a checkout with other contents of some files. Raises as `run_in_checkout`.

        Args:
            rooms: keeps the checkout until it closes.
            checks: runs that passed on the delivered tree. Each variant gets twice their time, and half a minute.
            files: the delivered tree.
            moved: changes to untracked files.
            edits: texts of files, or None for those that the variant lacks.
            hollow: instructions for the observer that lets the product's functions do nothing.
        """
        room = rooms.enter_context(self.checkouts.proof_folder(self.tree.root))
        variant = {path: file for path, file in files.items() if path not in edits}
        view = room.checkout(LockedTrees(self.tree), variant, moved)
        if view.content is not None:
            for path, text in edits.items():
                if text is not None:
                    (view.content / path).parent.mkdir(parents=True, exist_ok=True)
                    (view.content / path).write_text(text, "utf-8", newline="")
                    (view.content / path).chmod(files[path].mode & 0o777)
        if hollow is not None:
            folder = room.folder("hollow")
            (folder / "instructions.json").write_text(json.dumps({"root": str(self.tree.root), **hollow}), "utf-8")
            environment = {**view.environment, "TIGHTLOOP_HOLLOW": str(folder / "instructions.json")}
            view = replace(view, readable=(*view.readable, folder), environment=environment)
        outcomes = []
        for number, run in enumerate(checks, start=1):
            check = Check(run=run.run, name=run.name, timeout_s=2 * run.duration_s + 30)
            self._heartbeat(check_work(check, number, len(checks), datetime.now(UTC), "proof of what it shows, check"))
            outcomes.append((run, *self.run_observed_check(check, room, view, ())))
        return outcomes

    def run_unrecorded(
        self, check: Check, room: "ProofFolder", view: CheckView, work: Work
    ) -> tuple[bool, Observation]:
        """Run a hidden check. Return whether it exited with 0, and its observation. Its output is dropped.

        Raises:
            CancelledError: the activity was cancelled meanwhile.
        """
        self._heartbeat(work)
        watched, root, started = room.watch(check, view), self.tree.root, self.tree.own_process
        seen_root = root
        try:
            result = self._runner.run(
                watched.check, root, cancelled=self._cancelled, started=started, view=watched.view
            )
            seen_root = path_inside(result.sandbox, root)
        finally:
            observation = watched.observation(seen_root)
        if self._cancelled():
            raise CancelledError(f"stopped during the {work.what}")
        return result.exit_code == 0, observation

    def run_observed_check(
        self, check: Check, room: "ProofFolder", view: CheckView, paths: Iterable[str]
    ) -> tuple[CheckResult, Observation]:
        """Run one check with its observers. Raises as `run_in_place`."""
        watched, seen_root = room.watch(check, view, paths), self.tree.root
        try:
            result = run_check(
                self._runner,
                watched.check,
                self.tree,
                self.store,
                expected_tree="",
                cancelled=self._cancelled,
                view=watched.view,
            )
            seen_root = path_inside(result.sandbox, self.tree.root)
        finally:
            observation = watched.observation(seen_root)
        # A container may run in another kernel, such as that of a virtual machine.
        if result.sandbox == "docker" and not observation.opened:
            observation = observation.evolve(is_watched=False)
        # Recorded under the command of the definition of done, not the observed variant.
        return result.evolve(run=check.run, name=check.title), observation


def _check_run(
    store: ArtifactStore, check: Check, result: CheckResult, observation: Observation, before: CheckBaseline | None
) -> CheckRun:
    reports: list[TestReport] = []
    for report in observation.reports:
        results = observation.results[report.checker]
        tests_before = before.observation.results.get(report.checker, {}) if before else {}
        may_stay = result.passed and bool(result.exit_code)
        missing_names = missing(tests_before, results, failures_may_stay=may_stay)
        names = store.put(names_text(results).encode("utf-8", "replace"), name="tests", media_type="text/plain")
        shown_names = tuple(shorten(name, 200) for name in missing_names[:NAMES_LIMIT])
        reports.append(report.evolve(missing_names=shown_names, missing_count=len(missing_names), names=names))
    return CheckRun(
        name=shorten(check.title, 200),
        run=check.run,
        argv=check_argv(check.run),
        status=result.status,
        exit_code=result.exit_code,
        duration_s=result.duration_s,
        tail=clip(scrub(result.tail), TAIL_CHARACTERS),
        output=result.output,
        reports=tuple(reports),
        sandbox=result.sandbox,
        not_enforced=result.not_enforced,
        watched=observation.is_watched,
    )


READ_FILES = 400
"""Maximum number of files to read when looking for referenced data files or new lines."""
READ_BYTES = 1_000_000
"""Larger files are not read for this purpose."""


class Difference:
    """Changes between two trees."""

    def __init__(self, trees: LockedTrees, base: str, delivered: str, goal: str, commands: list[str]) -> None:
        self._trees, self._commands = trees, commands
        self.before, self.after = trees.files(base), trees.files(delivered)
        self._changed: dict[str, FileChange] = {}
        for path in sorted({*self.before, *self.after}):
            old, new = self.before.get(path), self.after.get(path)
            if old != new and not is_cache(path):
                kind = FileChange.ADDED if old is None else FileChange.DELETED if new is None else FileChange.MODIFIED
                self._changed[path] = kind
        # Initial files that the definition of done refers to, and the files that these refer to.
        programs, texts = frozenset[str](), commands
        # Until nothing new is found: a Makefile may call a script that calls another one.
        while more := programs_of(texts, self.before) - programs:
            programs |= more
            texts = list(self._texts(self.before, sorted(more)).values())
        self._guards = Guards(programs=programs, goal_files=frozenset(files_in(goal)))
        self._guards = self._guards._replace(named_data=self._named_data())
        self._rewritten = frozenset(self._same_code(self._is_tested_by_name))
        self.guarded = tuple(self._find_guarded_files())
        self.sources = SourceChanges()
        """Observations about the changed sources. Empty before `observe`."""

    def observe(self, before: Iterable[Observation], now: Iterable[Observation]) -> None:
        """Let the files that the checks loaded, at the start and on the delivered tree, decide what is guarded."""
        kinds = self._guards.kind_of
        loaded = LoadedFiles(
            tuple(before),
            tuple(now),
            lambda path: kinds(path, self._changed.get(path, FileChange.MODIFIED)),
            functools.cache(lambda path: self._texts(self.before, [path]).get(path, "")),
            frozenset(self.before),
            tuple(self._commands),
        )
        deciding = loaded.find_deciding(self._changed)
        self._rewritten |= frozenset(self._same_code(deciding.__contains__))
        by_name = [file for file in self.guarded if not loaded.is_complete or loaded.keeps(file.path, file.kind)]
        by_load = [
            ChangedFile(path=path, kind=kind, change=self._changed[path])
            for path, kind in deciding.items()
            if path not in self._rewritten
        ]
        self.guarded = tuple(sorted((*by_name, *by_load), key=lambda file: file.path))
        guarded = {file.path for file in self.guarded}
        sources = frozenset(path for path in self._changed if kinds(path, self._changed[path]) is None) - guarded
        self.sources = SourceChanges(
            files=sources,
            peeks=loaded.find_peeks(self._changed, deciding),
            inner_tests=self._lost_inner_tests(loaded, sources),
        )

    def add_earlier(self, restored: Iterable[ChangedFile]) -> dict[str, TreeFile]:
        """Return the delivered tree, with some files restored to their initial state."""
        files = dict(self.after)
        for file in restored:
            files.pop(file.path, None)
            if (old := self.before.get(file.path)) is None:
                continue
            # A tree cannot have a file and a folder of the same name, so anything in the old file's way is dropped.
            for path in [
                path for path in files if path.startswith(f"{file.path}/") or file.path.startswith(f"{path}/")
            ]:
                del files[path]
            files[file.path] = old
        return files

    @property
    def count(self) -> int:
        """Number of changed files, excluding caches."""
        return len(self._changed)

    def configuration(self) -> tuple[ConfigurationFile, ...]:
        """Return the digests of delivered files that contain checker configuration."""
        kinds = (FileKind.CONFIGURATION, FileKind.START_UP)
        paths = [path for path in sorted(self.after) if not is_cache(path) and self._guards.kind_of(path) in kinds]
        paths = [path for path in paths if not is_environment(path)][:FILES_LIMIT]
        contents = self._trees.read(self.after[path].blob for path in paths)
        return tuple(
            ConfigurationFile(
                path=escape_path(path), sha256=hashlib.sha256(contents[self.after[path].blob]).hexdigest()
            )
            for path in paths
        )

    def _lost_inner_tests(self, loaded: LoadedFiles, sources: Iterable[str]) -> dict[str, tuple[str, ...]]:
        paths = [path for path in sources if path in self.before and loaded.has_inner_tests(path)]
        old, new = self._texts(self.before, paths), self._texts(self.after, paths)
        lost = {path: lost_inner_tests(path, text, new.get(path, "")) for path, text in old.items()}
        return {path: tests for path, tests in lost.items() if tests}

    def versions(self, paths: Iterable[str]) -> tuple[FileVersion, ...]:
        """Return the content of changed files before and after the change."""
        sides = ((path, self.before.get(path), self.after.get(path)) for path in paths if path in self._changed)
        return tuple(
            FileVersion(path=path, before=old.blob if old else "", after=new.blob if new else "")
            for path, old, new in sides
        )

    def answered(self, approvals: tuple[Approval, ...]) -> dict[str, Approval]:
        """Return the answers of people who were asked about exactly these changes, by path."""
        found = ((file.path, find_approval(approvals, file)) for file in self.versions(self._changed))
        return {path: approval for path, approval in found if approval is not None}

    def contains(self, approval: Approval) -> bool:
        """Return whether a file that an approval is about still differs from its initial content."""
        return any(file.path in self._changed for file in approval.files)

    def suspicious(self) -> tuple[str, ...]:
        """Return new source lines that could make any check pass."""
        guarded = {file.path for file in self.guarded} | self._rewritten
        paths = [path for path, kind in self._changed.items() if kind is not FileChange.DELETED and path not in guarded]
        old, new = self._texts(self.before, paths), self._texts(self.after, paths)
        return tuple(line for path in new for line in suspicious_lines(escape_path(path), old.get(path, ""), new[path]))

    def compare_tests(self, requested: RequestedChanges, beginning: InitialState) -> KeptTests:
        """Compare the tests by what they assert, and with the requested changes."""
        kinds = (FileKind.TEST, FileKind.TEST_DATA, FileKind.CONFIGURATION)
        tests = [file.path for file in self.guarded if file.kind in kinds]
        guarded = {file.path for file in self.guarded} | self._rewritten
        product = [path for path in self._changed if path.endswith(".py") and path not in guarded]

        @cache
        def others() -> dict[str, str]:
            paths = (path for path in self.after if path.endswith(".py") and path not in self._changed)
            return self._texts(self.after, [path for path in paths if self._guards.kind_of(path) is FileKind.TEST])

        before, after = (
            Sources(self._texts(files, tests), self._texts(files, product), others, files.keys())
            for files in (self.before, self.after)
        )
        return compare_tests(before, after, self.guarded, requested, beginning)

    def delivered_files(self) -> dict[str, DeliveredFile]:
        """Return the changed files that the tree has now."""
        paths = [path for path in self._changed if path in self.after]
        old, new = self._contents(self.before, paths), self._contents(self.after, paths)
        return {
            escape_path(path): DeliveredFile(self.after[path].blob, content, old.get(path, b""))
            for path, content in new.items()
        }

    def source_texts(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the texts of changed files that do not decide what the checks say, before and after."""
        guarded = {file.path for file in self.guarded} | self._rewritten
        paths = [path for path in self._changed if path not in guarded]
        return self._texts(self.before, paths), self._texts(self.after, paths)

    def hollow(self, names: Iterable[str], *, is_none: bool) -> dict[str, object]:
        """Return the instructions to run these tests while the functions of all other files do nothing."""
        kept = [path for path in self.after if path.endswith(".py") and self._guards.kind_of(path) is not None]
        kept += [file.path for file in self.guarded]
        return {"kept": kept, "tests": sorted(names), "none": is_none, "environments": sorted(ENVIRONMENTS)}

    def new_test_texts(self) -> dict[str, str]:
        """Return the texts of the changed Python tests as delivered."""
        paths = [file.path for file in self.guarded if file.kind is FileKind.TEST and file.path.endswith(".py")]
        return self._texts(self.after, paths)

    def modules(self) -> frozenset[str]:
        """Return the names under which modules of the delivered tree are imported."""
        parts = (path.removesuffix(".py").split("/") for path in self.after if path.endswith(".py"))
        return frozenset(part[1] if part[0] in ("src", "lib", "python") and part[1:] else part[0] for part in parts)

    def _named_data(self) -> frozenset[str]:
        """Return changed data files that are referenced by tests or by programs in the definition of done."""
        candidates = [path for path, kind in self._changed.items() if kind is not FileChange.ADDED]
        candidates = [path for path in candidates if self._guards.kind_of(path) is None]
        if not candidates:
            return frozenset()
        naming = [path for path in self.before if self._guards.kind_of(path) in (FileKind.TEST, FileKind.CONFIGURATION)]
        return data_named_in([*self._commands, *self._texts(self.before, naming).values()], candidates)

    def _is_tested_by_name(self, path: str) -> bool:
        kind = self._guards.kind_of(path, self._changed[path])
        return path in self._guards.programs or kind is FileKind.TEST

    def _same_code(self, selects: Callable[[str], bool]) -> Iterable[str]:
        """Return the selected Python files in which only the formatting changed."""
        paths = [
            path
            for path, change in self._changed.items()
            if path.endswith(".py")
            and change is FileChange.MODIFIED
            and self.before[path].mode == self.after[path].mode
            and selects(path)
        ]
        old, new = self._contents(self.before, paths), self._contents(self.after, paths)
        return (path for path in old.keys() & new.keys() if is_same_code(old[path], new[path]))

    def _find_guarded_files(self) -> Iterable[ChangedFile]:
        for path, change in self._changed.items():
            kind = self._guards.kind_of(path, change)
            if kind is None or path in self._rewritten:
                continue
            if kind is FileKind.CONFIGURATION and change is FileChange.MODIFIED:
                old, new = self.before[path], self.after[path]
                contents = self._trees.read((old.blob, new.blob))
                if is_same_setup(path, contents[old.blob], contents[new.blob]):
                    continue
            yield ChangedFile(path=path, kind=kind, change=change)

    def _texts(self, files: Files, paths: Iterable[str]) -> dict[str, str]:
        return {path: text.decode("utf-8", "replace") for path, text in self._contents(files, paths).items()}

    def _contents(self, files: Files, paths: Iterable[str]) -> dict[str, bytes]:
        # The content of a link is a path and no text.
        regular_paths = [path for path in paths if path in files and files[path].mode != 0o120000][:READ_FILES]
        contents = self._trees.read((files[path].blob for path in regular_paths), READ_BYTES)
        return {path: contents[blob] for path in regular_paths if (blob := files[path].blob) in contents}


def escape_path(path: str) -> str:
    """Return a path as text, escaping invalid UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class Subject(NamedTuple):
    """A definition of done and people's descriptions of the work."""

    title: str
    goal: str
    """Goal, which may announce test changes. Written only by people."""
    checks: tuple[Check, ...]


def subject_of(store: ArtifactStore, scope: EpisodeScope, plan: ArtifactRef | None, goal: str = "") -> Subject:
    """Return the subject of the proof, which is the plan or, without a plan, the scope's episode.

    Raises:
        ArtifactMissingError: the store does not contain it. Not retryable.
    """
    if plan is None:
        episode = get_model(store, scope.stored_request, EpisodeRequest)
        return Subject(episode.goal, episode.goal, episode.definition_of_done)
    stored = get_model(store, plan, StoredPlan)
    texts, revision = [goal, stored.words], stored
    # People announced changes of tests in earlier revisions too.
    while (earlier := find_model(store, revision.previous, StoredPlan)) is not None:
        texts.append(earlier.words)
        revision = earlier
    title = stored.plan.title or goal or stored.plan.id
    return Subject(title, "\n".join(filter(None, texts)), stored.plan.definition_of_done)


GOAL_CHARACTERS = 2_000
LINE_CHARACTERS = 200


def store_proof(store: ArtifactStore, proof: Proof) -> ProveResult:
    """Store a proof and return its summary for Temporal."""
    findings = list(proof.open_findings)
    title = ""
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        title = f"the checks pass, but {findings[0].rule.value}: {findings[0].text}{more}"
    # The first line is the title.
    lines = [*evidence_lines(proof)[1:], *(f"changed: {file.change.value} {file.path}" for file in proof.changed)]
    is_hidden = all(finding.rule is ProofRule.SCENARIOS_FAILED for finding in findings)
    evidence = tuple(shorten(scrub(line), LINE_CHARACTERS) for line in lines[:EVIDENCE_LINES])
    return ProveResult(
        proof=put_model(store, proof, name="proof"),
        verdict=proof.verdict,
        facts=proof.evidence,
        title=title,
        evidence=evidence,
        only_scenarios=bool(findings) and is_hidden,
    )


def prove_tree(
    use: Runs,
    subject: Subject,
    *,
    workflow_id: str,
    delivered: str,
    beginning: InitialState | None,
    allowed: tuple[ProofRule, ...] = (),
    approvals: tuple[Approval, ...] = (),
    earlier: Proof | None = None,
    evidence: Evidence = Evidence(),
) -> Proof:
    """Return the proof of a locked tree on disk. `earlier` is reused if its inputs are identical.

    `evidence` gets the number of changed files, and the answers in `approvals` that decide something.

    Raises:
        CancelledError: the activity was cancelled meanwhile.
    """
    started = datetime.now(UTC)
    beginning = beginning or InitialState(tree=delivered, root=str(use.tree.root))
    checks, commands = subject.checks, [check.run for check in subject.checks]
    change = Difference(LockedTrees(use.tree), beginning.tree, delivered, subject.goal, commands)
    announcement = find_requested_changes(subject.goal)
    if ProofRule.TESTS_CHANGED in allowed:
        announcement = announcement._replace(everything=True, files=(*announcement.files, "conftest.py"))
    moved = compare_untracked_files(use, beginning, change.after)
    manifest = beginning.ignored.sha256 if beginning.ignored else ""
    beside_digest = hashlib.sha256(json.dumps([manifest, *moved]).encode()).hexdigest()
    same = earlier is not None and (earlier.base_tree, earlier.beside) == (beginning.tree, beside_digest)
    # A guarded change needs a second run with the original tests, which the earlier proof may lack.
    if earlier is not None and same and not change.guarded and earlier.proves(checks, delivered):
        return earlier.evolve(episode_id=workflow_id, goal=shorten(subject.title, GOAL_CHARACTERS))
    # Both checkouts stay until the end: file systems are slow at creating many files right after many deletions (ext4:
    # 25 to 900 ms for 3 000).
    with contextlib.ExitStack() as rooms:
        measured = [use.run_in_checkout(rooms, checks, TestsFrom.DELIVERED, change.after, moved, beginning)]
        change.observe((check.observation for check in beginning.checks), measured[0].observations)
        guarded_files = tuple(file for file in change.guarded if not is_kept(file, commands))
        tests = change.compare_tests(announcement, beginning)
        answered = change.answered(approvals)
        moved_files = tuple(file for file in guarded_files if file.path not in tests.kept)
        unannounced_files = tuple(file for file in moved_files if not _is_announced(file, announcement, tests))
        open_files = tuple(file for file in unannounced_files if file.path not in answered)
        # If everything was announced or answered, the second run is only evidence; otherwise it covers the rest.
        if restored := open_files or moved_files:
            old_tests = change.add_earlier(restored)
            measured.append(use.run_in_checkout(rooms, checks, TestsFrom.BEGINNING, old_tests, moved, beginning))
        before, after = change.source_texts()
        variants = _Variants(use, rooms, change, moved, beginning, measured[0], tests)
        weakening = find_weakening(before, after)
        suppressed = variants.find_needed_suppressions(find_suppressions(before, after, change.after))
        empty = variants.find_empty_tests()
    installed = tuple(f"{file.change.value} {file.path}" for file in guarded_files if file.kind is FileKind.ENVIRONMENT)
    changes = Changes(
        restored=restored,
        unannounced=tuple(file.path for file in restored if file in unannounced_files),
        requested=announcement,
        tests=tests,
        environment=(*moved.changed, *installed),
        suspicious=(*change.suspicious(), *weakening.operators),
        swallowed=weakening.swallowed,
        broken=weakening.broken,
        suppressed=suppressed,
        copied=use.checkouts.find_copies(
            use.tree.root, beginning.later_commits, moved.environments, change.delivered_files()
        ),
        empty_tests=empty,
        left_out=moved.left_out,
        sources=change.sources,
        answered=answered,
    )
    asked = (approval for approval in approvals if approval.asked and change.contains(approval))
    evidence = evidence.evolve(files_changed=change.count, asked=tuple(approval.sentence for approval in asked))
    without_tests = [measurement for measurement in measured if had_no_tests(measurement, beginning, changes)]
    measured = [measurement for measurement in measured if measurement not in without_tests]
    findings = findings_of(measured, beginning, changes, allowed)
    verdict = verdict_of(findings, proves=not doubts(Facts(**dict(evidence))))
    if verdict is ProofVerdict.ACCEPTED:
        passed = next(finding for finding in findings if finding.is_accepted)
        evidence = evidence.evolve(accepted_by=passed.answered.by if passed.answered else "", finding=passed.text)
    return Proof(
        episode_id=workflow_id,
        goal=shorten(subject.title, GOAL_CHARACTERS),
        base_tree=beginning.tree,
        delivered_tree=delivered,
        beside=beside_digest,
        runs=tuple(measurement.run for measurement in measured),
        changed=change.guarded[:FILES_LIMIT],
        changed_count=len(change.guarded),
        configuration=change.configuration(),
        evidence=evidence,
        verdict=verdict,
        accepted_by=evidence.accepted_by,
        findings=tuple(
            finding.evolve(evidence=tuple(shorten(scrub(line), LINE_CHARACTERS) for line in finding.evidence))
            for finding in findings
        ),
        not_held=(*not_held(measured, beginning, moved.left_out, checks), *(NO_TESTS for _ in without_tests)),
        started=started,
        ended=datetime.now(UTC),
    )


class _Variants:
    """Runs of the checks on variants of the delivered tree, which show what a passing check is worth."""

    def __init__(
        self,
        use: Runs,
        rooms: ExitStack,
        change: Difference,
        moved: UntrackedChanges,
        beginning: InitialState,
        delivered: ObservedRun,
        tests: KeptTests,
    ) -> None:
        self._use, self._rooms, self._change, self._moved = use, rooms, change, moved
        self._beginning, self._delivered, self._tests = beginning, delivered, tests

    def find_needed_suppressions(self, added: Suppressions) -> tuple[str, ...]:
        """Return the added suppressions if a check fails without them.

        Where a check passed from the start, suppressions of single rules are ordinary work.
        """
        if not added.lines:
            return ()
        for lines, was_green in ((added.lines, False), (added.blanket, True)):
            runs = [
                run
                for run in self._delivered.run.checks
                if run.passed
                and lines
                and (added.of_tests or not run.reports)
                and ((before := self._beginning.check(run.run)) is not None and before.passed) is was_green
            ]
            edits = added.files
            if runs and any(
                result.status is CheckStatus.FAILED
                for _, result, _ in self._use.run_variant(self._rooms, runs, self._change.after, self._moved, edits)
            ):
                return lines
        return ()

    def find_empty_tests(self) -> tuple[str, ...]:
        """Return the new tests that pass while the product does nothing, if they are half of the new ones."""
        texts = self._change.new_test_texts()
        new: set[str] = set()
        runs: list[CheckRun] = []
        for run, observation in zip(self._delivered.run.checks, self._delivered.observations, strict=True):
            before = self._beginning.check(run.run)
            for checker in {"pytest", "unittest"} & observation.results.keys() if texts else ():
                old = before.observation.results.get(checker, {}) if before else {}
                names = self._tests.find_new(old, observation.results[checker], texts)
                new |= names
                runs += [run] if names and run not in runs else []
        survivors = set(new)
        for is_none in (True, False):
            if not survivors:
                return ()
            hollow = self._change.hollow(survivors, is_none=is_none)
            outcomes = self._use.run_variant(self._rooms, runs, self._change.after, self._moved, {}, hollow)
            passed = {
                name
                for _, _, observation in outcomes
                for results in observation.results.values()
                for name, result in results.items()
                if result == PASSED
            }
            survivors &= passed
        empty = find_empty_tests(texts, survivors, self._change.modules())
        return empty if 2 * len(empty) >= len(new) else ()


def _is_announced(file: ChangedFile, announcement: RequestedChanges, tests: KeptTests) -> bool:
    if file.path in tests.announced:
        return True
    if file.kind is FileKind.ENVIRONMENT:
        return False
    named = announcement._replace(everything=announcement.everything and file.path not in tests.contested)
    is_test, is_new = file.kind in (FileKind.TEST, FileKind.TEST_DATA), file.change is FileChange.ADDED
    return named.covers(file.path, is_test=is_test, is_new=is_new)


def compare_untracked_files(use: Runs, beginning: InitialState, delivered: Mapping[str, TreeFile]) -> UntrackedChanges:
    """Return the changes to untracked files since the beginning. In another working tree, none of them are known."""
    # In another folder, times and inodes say nothing about the files recorded at the beginning.
    if beginning.ignored is None or beginning.root != str(use.tree.root):
        return UntrackedChanges()
    survey = untracked.read_survey(use.store.get(beginning.ignored))
    return untracked.compare(use.tree.root, survey, delivered)
