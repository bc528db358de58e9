"""Activities that choose and run the gates of a project plan."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from temporalio import activity

from activities.artifacts.port import ArtifactStores
from activities.attempt import should_stop
from activities.checks.activity import CheckRunner, run_check
from activities.workspace.port import OpenEpisodes, WorkingTree, Workspaces
from activities.workspace.scope import EpisodeScope
from tightloop.episode.budget import check_work
from tightloop.episode.check import Check
from tightloop.loop.gates import READ_FILES, detect_gates, read_gate, report_file
from tightloop.loop.model import GateCheck
from tightloop.safety.drift import DriftCause
from tightloop.value import Value

READ_BYTES = 1_000_000
"""A larger file decides nothing."""


def choose_gates(
    tree: WorkingTree, snapshot: str, *chosen: tuple[Check, ...], before: tuple[Check, ...] = ()
) -> tuple[Check, ...]:
    """Return the first of `chosen` that names gates; else those that the files of a snapshot show.

    Args:
        tree: holds the snapshot.
        snapshot: id of the tree.
        chosen: gates that people named, the most specific first.
        before: what the files showed when the work began: nobody gets rid of a gate by removing its configuration.
    """
    if named := next(filter(None, chosen), ()):
        return named
    entries = tree.entries(snapshot)
    known = {name: entries[name.encode()] for name in READ_FILES if name.encode() in entries}
    texts = {
        name: tree.content(entry.id).decode("utf-8", "replace")
        for name, entry in known.items()
        if tree.size(entry.id) <= READ_BYTES
    }
    shown = detect_gates([path.decode("utf-8", "replace") for path in entries], texts)
    runs = {gate.run for gate in before}
    return (*before, *(gate for gate in shown if gate.run not in runs))


class FindGatesRequest(Value):
    """A project whose gates are to be run."""

    scope: EpisodeScope
    asked: tuple[Check, ...] = ()
    planned: tuple[Check, ...] = ()
    """Those that were found when the plan was made."""


class FoundGates(Value):
    """The gates, and the tree that they are about."""

    gates: tuple[Check, ...] = ()
    tree: str = ""


class RunGateRequest(Value):
    """One gate of several."""

    scope: EpisodeScope
    gate: Check
    number: int
    """From 1."""
    total: int
    expected_tree: str


class GateRun(Value):
    """What a gate found: itself, then the checks within it."""

    checks: tuple[GateCheck, ...]


class LeaveProjectRequest(Value):
    """A project whose gates have run."""

    scope: EpisodeScope


# `no_thread_cancel_exception`: as for the activities of the workspace.
@dataclass(frozen=True)
class GateActivities:
    """Runs gates in the sandbox. All methods are idempotent."""

    workspaces: Workspaces
    stores: ArtifactStores
    runner: CheckRunner
    has_ended: OpenEpisodes
    settings: Callable[[str], tuple[Check, ...]] = lambda _workspace: ()
    """Returns the gates that the settings name for a workspace."""

    @activity.defn(no_thread_cancel_exception=True)
    def find_gates(self, request: FindGatesRequest) -> FoundGates:
        """Claim the workspace, and return its gates and its tree.

        Raises:
            WorkspaceBusyError: an episode or a plan works in it. Not retryable.
            WorkspaceError: it cannot be used; the message says what to do. Not retryable.
        """
        scope = request.scope
        self.workspaces.prepare(scope, take_over=self.has_ended)
        with self.workspaces.hold(scope) as tree:
            found = tree.snapshot()
            tree.keep("verified", found)
            named = (request.asked, self.settings(scope.workspace))
            return FoundGates(gates=choose_gates(tree, found, *named, before=request.planned), tree=found)

    @activity.defn(no_thread_cancel_exception=True)
    def run_project_gate(self, request: RunGateRequest) -> GateRun:
        """Run a gate on exactly the expected tree; what it writes into that is undone.

        Raises:
            DriftError: somebody changed files since the gates were found. Not retryable.
        """
        scope, gate = request.scope, request.gate
        store = self.stores(Path(scope.workspace))
        with store.together() as together, self.workspaces.hold(scope) as tree:
            tree.expect(request.expected_tree)
            activity.heartbeat(check_work(gate, request.number, request.total, datetime.now(UTC)))
            try:
                result = run_check(
                    self.runner,
                    gate,
                    tree,
                    together,
                    expected_tree=request.expected_tree,
                    cancelled=should_stop,
                )
                report = read_report(tree, gate)
            finally:
                tree.ensure(request.expected_tree, DriftCause.DURING_CHECKS)
        output = store.get(result.output).decode("utf-8", "replace") if result.output is not None else ""
        return GateRun(checks=read_gate(gate, result, output, report))

    @activity.defn(no_thread_cancel_exception=True)
    def leave_project(self, request: LeaveProjectRequest) -> None:
        """Give the workspace back."""
        self.workspaces.release(request.scope)


def read_report(tree: WorkingTree, gate: Check) -> str:
    """Return the JUnit XML that a gate wrote into the tree; empty where there is none."""
    name = report_file(gate)
    if not name:
        return ""
    root = tree.root.resolve()
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root) or not path.is_file() or path.stat().st_size > READ_BYTES:
            return ""
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""
