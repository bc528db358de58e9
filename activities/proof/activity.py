"""The activities of the proof: what is kept of the beginning, the proof itself, and a person's word on it."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from temporalio import activity

from activities.artifacts.port import ArtifactStore, ArtifactStores, find_model, get_model, put_model
from activities.checks.activity import run_check, verification_of
from activities.checks.port import CheckRunner, CheckView
from activities.proof.port import Bench, Files, Moved, Room, TreeFile, Trees
from activities.proof.trees import HeldTrees
from activities.workspace.port import WorkingTree, Workspaces
from activities.workspace.scope import EpisodeScope
from tightloop.artifact import ArtifactRef
from tightloop.episode.check import Check, CheckReport, CheckResult, Verification
from tightloop.episode.model import EpisodeRequest
from tightloop.episode.proof import (
    ChangedFile,
    CheckRun,
    ConfigurationFile,
    FileChange,
    FileKind,
    Proof,
    ProofRule,
    ProofRun,
    ProofVerdict,
    TestsFrom,
)
from tightloop.episode.proof.beginning import Beginning, CheckBaseline
from tightloop.episode.proof.files import (
    Guards,
    announcement_of,
    data_named_in,
    is_cache,
    is_environment,
    is_same_setup,
    programs_of,
    suspicious_lines,
)
from tightloop.episode.proof.model import FILES_LIMIT, NAMES_LIMIT, TestReport
from tightloop.episode.proof.report import Observation, missing, names_text
from tightloop.episode.proof.verdict import (
    Changes,
    Measured,
    evidence_lines,
    findings_of,
    had_no_tests,
    is_kept,
    verdict_of,
)
from tightloop.question import EVIDENCE_LINES
from tightloop.safety.scope import files_in
from tightloop.value import Value, clip, counted, shorten
from tightloop.value.scrub import scrub

TAIL_CHARACTERS = 1_200
READ_FILES = 400
"""Files that are read to find what they name, or new lines in them."""
READ_BYTES = 1_000_000
"""A larger file is not read for that."""
LINE_CHARACTERS = 200
SHARED_PROCESS = (
    "pytest and unittest tell of tests from the process that also runs the code under test: "
    "code that is written to deceive them is not excluded"
)

NO_TESTS = "there were no tests at the beginning: those that pass came with the work"


class BeginRequest(Value):
    """The tree before the first plan."""

    scope: EpisodeScope
    expected_tree: str
    inherited: ArtifactRef | None = None
    """The beginning of the episode that this one was forked from: its tests count."""
    compare_with: ArtifactRef | None = None
    """The report before this one."""


class Begun(Value):
    """What the checks say, and what is kept to compare with."""

    verification: Verification
    beginning: ArtifactRef


class ProveRequest(Value):
    """A tree on which all checks passed."""

    scope: EpisodeScope
    expected_tree: str
    beginning: ArtifactRef | None = None


class Proved(Value):
    """A stored proof, and what a person has to know of it."""

    proof: ArtifactRef
    verdict: ProofVerdict
    title: str = ""
    """What speaks against it, in a sentence; empty where nothing does."""
    evidence: tuple[str, ...] = ()
    """At most as many lines as a question has."""
    drift: str | None = None
    attempt: int = 1


class AcceptRequest(Value):
    """A person's word on a doubted proof."""

    scope: EpisodeScope
    proof: ArtifactRef
    by: str = "operator"


class ProofActivities:
    """Proves that checks pass apart from the working tree, and with the tests of the beginning."""

    def __init__(self, workspaces: Workspaces, stores: ArtifactStores, runner: CheckRunner, bench: Bench) -> None:
        self._workspaces, self._stores, self._runner, self._bench = workspaces, stores, runner, bench

    @activity.defn(no_thread_cancel_exception=True)
    def begin(self, request: BeginRequest) -> Begun:
        """Run every check for a baseline, as `verify` does, and keep what lies beside the tree. Idempotent by that."""
        store = self._stores(Path(request.scope.workspace))
        checks = get_model(store, request.scope.stored_request, EpisodeRequest).definition_of_done
        inherited = find_model(store, request.inherited, Beginning)
        with self._workspaces.hold(request.scope) as tree, self._bench.room(tree.root) as room:
            drift = tree.ensure(request.expected_tree)
            # Before the checks run: what they leave beside the tree is theirs.
            tracked = HeldTrees(tree).files(request.expected_tree)
            manifest = self._bench.survey(tree.root, tracked)
            results, seen = [], []
            for check in checks:
                activity.heartbeat(check.title)
                result, observation = _observed(
                    self._runner, check, tree, store, room, CheckView(), activity.is_cancelled
                )
                results.append(result.evolve(tree=request.expected_tree))
                seen.append(observation)
            touched = tree.ensure(request.expected_tree)
        report = CheckReport(tree=request.expected_tree, results=tuple(results))
        baselines = tuple(
            CheckBaseline(run=result.run, passed=result.passed, exit_code=result.exit_code, observation=observation)
            for result, observation in zip(results, seen, strict=True)
        )
        beginning = Beginning(
            tree=inherited.tree if inherited else request.expected_tree,
            root=str(request.scope.root),
            checks=inherited.checks if inherited else baselines,
            ignored=store.put(manifest, name="beside the tree", media_type="application/zlib"),
        )
        verification = verification_of(store, report, find_model(store, request.compare_with, CheckReport))
        return Begun(
            verification=verification.evolve(
                drift=drift, checks_touched_tree=touched is not None, attempt=activity.info().attempt
            ),
            beginning=put_model(store, beginning, name="beginning"),
        )

    @activity.defn(no_thread_cancel_exception=True)
    def prove(self, request: ProveRequest) -> Proved:
        """Run the definition of done in fresh checkouts of the delivered tree and store what came of it. Idempotent."""
        store = self._stores(Path(request.scope.workspace))
        episode = get_model(store, request.scope.stored_request, EpisodeRequest)
        with self._workspaces.hold(request.scope) as tree:
            drift = tree.ensure(request.expected_tree)
            proof = prove_tree(
                Proving(tree, store, self._runner, self._bench, activity.is_cancelled, activity.heartbeat),
                episode_id=request.scope.episode_id,
                goal=episode.goal,
                checks=episode.definition_of_done,
                delivered=request.expected_tree,
                beginning=find_model(store, request.beginning, Beginning),
                allowed=episode.allow,
            )
        return proved(store, proof).evolve(drift=drift, attempt=activity.info().attempt)

    @activity.defn(no_thread_cancel_exception=True)
    def accept_proof(self, request: AcceptRequest) -> ArtifactRef:
        """Store that a person accepted a tree in spite of what was found. Idempotent."""
        store = self._stores(Path(request.scope.workspace))
        proof = get_model(store, request.proof, Proof)
        return put_model(store, proof.evolve(verdict=ProofVerdict.ACCEPTED, accepted_by=request.by), name="proof")


class Proving:
    """What a proof is made with."""

    def __init__(
        self,
        tree: WorkingTree,
        store: ArtifactStore,
        runner: CheckRunner,
        bench: Bench,
        cancelled: Callable[[], bool],
        heartbeat: Callable[[str], None],
    ) -> None:
        self.tree, self.store, self.runner, self.bench = tree, store, runner, bench
        self.cancelled, self.heartbeat = cancelled, heartbeat
        self.trees = HeldTrees(tree)


def proved(store: ArtifactStore, proof: Proof) -> Proved:
    """Store a proof and return what of it travels through Temporal."""
    found = list(proof.open_findings)
    title = ""
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        title = f"the checks are green, but: {found[0].text}{more}"
    lines = [*evidence_lines(proof), *(f"changed: {file.change.value} {file.path}" for file in proof.changed)]
    shown = tuple(shorten(scrub(line), LINE_CHARACTERS) for line in lines[:EVIDENCE_LINES])
    return Proved(proof=put_model(store, proof, name="proof"), verdict=proof.verdict, title=title, evidence=shown)


def prove_tree(
    use: Proving,
    *,
    episode_id: str,
    goal: str,
    checks: tuple[Check, ...],
    delivered: str,
    beginning: Beginning | None,
    allowed: tuple[ProofRule, ...] = (),
) -> Proof:
    """Return the proof of a tree that is on disk and held.

    Raises:
        CancelledError: the activity was cancelled meanwhile.
    """
    started = datetime.now(UTC)
    beginning = beginning or Beginning(tree=delivered, root=str(use.tree.root))
    commands = [check.run for check in checks]
    change = _Difference(use.trees, beginning.tree, delivered, goal, commands)
    announcement = announcement_of(goal)
    if ProofRule.TESTS_CHANGED in allowed:
        announcement = announcement._replace(everything=True, files=(*announcement.files, "conftest.py"))
    moved = _moved(use, beginning, change.after)
    own = tuple(file for file in change.guarded if not is_kept(file, commands))
    asked = tuple(file for file in own if not announcement.covers(file))
    # Where everything was announced, the second run is evidence; otherwise it is about what was not.
    restored = asked or own
    installed = tuple(f"{file.change.value} {file.path}" for file in own if file.kind is FileKind.ENVIRONMENT)
    changes = Changes(
        restored=restored,
        environment=(*moved.changed, *installed),
        suspicious=change.suspicious(),
        left_out=moved.left_out,
    )
    measured = [_run(use, checks, TestsFrom.DELIVERED, change.after, moved, beginning)]
    if restored:
        earlier = change.with_earlier(restored)
        measured.append(_run(use, checks, TestsFrom.BEGINNING, earlier, moved, beginning))
    without_tests = [one for one in measured if had_no_tests(one, beginning, changes)]
    measured = [one for one in measured if one not in without_tests]
    findings = findings_of(measured, beginning, changes, announcement, allowed)
    return Proof(
        episode_id=episode_id,
        goal=shorten(goal, 2_000),
        base_tree=beginning.tree,
        delivered_tree=delivered,
        runs=tuple(one.run for one in measured),
        changed=change.guarded[:FILES_LIMIT],
        changed_count=len(change.guarded),
        configuration=change.configuration(),
        verdict=verdict_of(findings),
        findings=tuple(_scrubbed(findings)),
        not_held=(*_not_held(measured, beginning, moved, checks), *(NO_TESTS for _ in without_tests)),
        started=started,
        ended=datetime.now(UTC),
    )


def _scrubbed(findings: Iterable) -> Iterable:  # type: ignore[type-arg]
    for finding in findings:
        yield finding.evolve(evidence=tuple(shorten(scrub(line), LINE_CHARACTERS) for line in finding.evidence))


class _Difference:
    """What changed between two trees, and what of it decides what checks say."""

    def __init__(self, trees: Trees, base: str, delivered: str, goal: str, commands: list[str]) -> None:
        self._trees, self._commands = trees, commands
        self.before, self.after = trees.files(base), trees.files(delivered)
        paths = sorted({*self.before, *self.after})
        self._changed = {
            path: kind for path in paths if not is_cache(path) and (kind := self._change(path)) is not None
        }
        self._guards = Guards(programs=self._programs(commands), goal_files=frozenset(files_in(goal)))
        self._guards = self._guards._replace(named_data=self._named_data())
        self.guarded = tuple(self._guarded())

    def with_earlier(self, restored: Iterable[ChangedFile]) -> dict[str, TreeFile]:
        """Return the delivered tree with some files as they were at the beginning."""
        files = dict(self.after)
        for file in restored:
            files.pop(file.path, None)
            if (old := self.before.get(file.path)) is None:
                continue
            # A folder in the place of the file, or a file in the place of a folder above it, gives way.
            for path in [
                path for path in files if path.startswith(f"{file.path}/") or file.path.startswith(f"{path}/")
            ]:
                del files[path]
            files[file.path] = old
        return files

    def configuration(self) -> tuple[ConfigurationFile, ...]:
        """Return the digests of the delivered files that configure checkers."""
        kinds = (FileKind.CONFIGURATION, FileKind.START_UP)
        paths = [path for path in sorted(self.after) if not is_cache(path) and self._guards.kind_of(path) in kinds]
        paths = [path for path in paths if not is_environment(path)][:FILES_LIMIT]
        contents = self._trees.read(self.after[path].blob for path in paths)
        return tuple(
            ConfigurationFile(path=shown(path), sha256=hashlib.sha256(contents[self.after[path].blob]).hexdigest())
            for path in paths
        )

    def suspicious(self) -> tuple[str, ...]:
        """Return new lines of sources that can make any check pass."""
        guarded = {file.path for file in self.guarded}
        paths = [path for path, kind in self._changed.items() if kind is not FileChange.DELETED and path not in guarded]
        old, new = self._texts(self.before, paths), self._texts(self.after, paths)
        return tuple(line for path in new for line in suspicious_lines(shown(path), old.get(path, ""), new[path]))

    def _change(self, path: str) -> FileChange | None:
        old, new = self.before.get(path), self.after.get(path)
        if old == new:
            return None
        return FileChange.ADDED if old is None else FileChange.DELETED if new is None else FileChange.MODIFIED

    def _programs(self, commands: list[str]) -> frozenset[str]:
        """Return the files of the beginning that the definition of done names, and those that they name in turn."""
        found = frozenset[str]()
        while more := programs_of(commands, self.before) - found:
            found |= more
            commands = list(self._texts(self.before, sorted(more)).values())
        return found

    def _named_data(self) -> frozenset[str]:
        """Return changed data files that tests, or programs of the definition of done, name."""
        candidates = [path for path, kind in self._changed.items() if kind is not FileChange.ADDED]
        candidates = [path for path in candidates if self._guards.kind_of(path) is None]
        if not candidates:
            return frozenset()
        naming = [path for path in self.before if self._guards.kind_of(path) in (FileKind.TEST, FileKind.CONFIGURATION)]
        return data_named_in([*self._commands, *self._texts(self.before, naming).values()], candidates)

    def _guarded(self) -> Iterable[ChangedFile]:
        for path, change in self._changed.items():
            kind = self._guards.kind_of(path, change)
            if kind is None:
                continue
            if kind is FileKind.CONFIGURATION and change is FileChange.MODIFIED and path not in self._guards.programs:
                old, new = self.before[path], self.after[path]
                contents = self._trees.read((old.blob, new.blob))
                if is_same_setup(path, contents[old.blob], contents[new.blob]):
                    continue
            yield ChangedFile(path=path, kind=kind, change=change)

    def _texts(self, files: Files, paths: Iterable[str]) -> dict[str, str]:
        wanted = [path for path in paths if path in files and files[path].mode != 0o120000][:READ_FILES]
        contents = self._trees.read(files[path].blob for path in wanted)
        small = {path: contents[files[path].blob] for path in wanted}
        return {path: text.decode("utf-8", "replace") for path, text in small.items() if len(text) <= READ_BYTES}


def shown(path: str) -> str:
    """Return a path as it can be written as text."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _moved(use: Proving, beginning: Beginning, delivered: Mapping[str, TreeFile]) -> Moved:
    if beginning.ignored is None or beginning.root != str(use.tree.root):
        return Moved()
    return use.bench.compare(use.tree.root, use.store.get(beginning.ignored), delivered)


def _run(
    use: Proving, checks: tuple[Check, ...], tests: TestsFrom, files: Files, moved: Moved, beginning: Beginning
) -> Measured:
    """Run every check in a fresh checkout of its own."""
    started = datetime.now(UTC)
    runs: list[CheckRun] = []
    seen: list[Observation] = []
    with use.bench.room(use.tree.root) as room:
        view = room.checkout(use.trees, files, moved)
        for check in checks:
            use.heartbeat(f"proof, tests as {tests.value}: {check.title}")
            result, observation = _observed(use.runner, check, use.tree, use.store, room, view, use.cancelled)
            before = beginning.check(check.run)
            runs.append(_check_run(use.store, check, result, observation, before))
            seen.append(observation)
    return Measured(ProofRun(tests=tests, checks=tuple(runs), started=started, ended=datetime.now(UTC)), tuple(seen))


def _observed(
    runner: CheckRunner,
    check: Check,
    tree: WorkingTree,
    store: ArtifactStore,
    room: Room,
    view: CheckView,
    cancelled: Callable[[], bool],
) -> tuple[CheckResult, Observation]:
    watched = room.watch(check, view)
    result = run_check(runner, watched.check, tree, store, expected_tree="", cancelled=cancelled, view=watched.view)
    # Known by the command that the definition of done has, not by the one that was watched.
    return result.evolve(run=check.run, name=check.title), watched.observation()


def _check_run(
    store: ArtifactStore, check: Check, result: CheckResult, seen: Observation, before: CheckBaseline | None
) -> CheckRun:
    reports: list[TestReport] = []
    for report in seen.reports:
        results = seen.results[report.checker]
        gone = missing(before.observation.results.get(report.checker, {}), results) if before else ()
        names = store.put(names_text(results).encode("utf-8", "replace"), name="tests", media_type="text/plain")
        shown_names = tuple(shorten(name, 200) for name in gone[:NAMES_LIMIT])
        reports.append(report.evolve(missing_names=shown_names, missing_count=len(gone), names=names))
    return CheckRun(
        name=shorten(check.title, 200),
        run=check.run,
        argv=("/bin/sh", "-c", check.run),
        status=result.status,
        exit_code=result.exit_code,
        duration_s=result.duration_s,
        tail=clip(scrub(result.tail), TAIL_CHARACTERS),
        output=result.output,
        reports=tuple(reports),
        sandbox=result.sandbox,
        not_enforced=result.not_enforced,
    )


def _not_held(
    measured: list[Measured], beginning: Beginning, moved: Moved, checks: tuple[Check, ...]
) -> tuple[str, ...]:
    """Return what a proof does not show, a sentence each."""
    lines: list[str] = []
    runs = [check for one in measured for check in one.run.checks]
    for sandbox in dict.fromkeys(check.sandbox for check in runs if check.not_enforced):
        limits = dict.fromkeys(limit for check in runs if check.sandbox == sandbox for limit in check.not_enforced)
        lines.append(f"the sandbox {sandbox} did not hold: {', '.join(limits)}")
    for sandbox in dict.fromkeys(check.sandbox for check in runs):
        if sandbox in ("sandbox-exec", "unsafe-local"):
            lines.append(
                f"{sandbox} has no mounts: installed programs can be written, and know the place of the workspace"
            )
    silent = dict.fromkeys(check.run for check in runs if not check.reports)
    lines += [f"{shorten(run, 100)}: its exit status is all that is known of it" for run in silent]
    if any(report.checker != "node" for check in runs for report in check.reports):
        lines.append(SHARED_PROCESS)
    lines += [
        f"{shorten(check.run, 100)}: added later, so nothing is known of it at the beginning"
        for check in checks
        if beginning.check(check.run) is None
    ]
    if moved.left_out:
        lines.append(
            f"without {counted(len(moved.left_out), 'ignored path')} that came or changed since, "
            f"such as {moved.left_out[0]}"
        )
    return tuple(lines)
