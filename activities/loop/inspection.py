"""Project inspection and gates."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from temporalio import activity

from activities.artifacts.port import ArtifactStore, ArtifactStores, get_model
from activities.attempt import should_stop
from activities.checks.activity import run_check
from activities.proof.finding import CheckFinder
from activities.workspace.folders import store_folder_of
from activities.workspace.scope import EpisodeScope, Ledgers
from tightloop.checks.choice import ChosenChecks, TriedCheck, choose_checks
from tightloop.checks.finding import family_of_command
from tightloop.episode.budget import check_work
from tightloop.episode.check import Check, CheckResult
from tightloop.episode.exit_status import refuse_masked
from tightloop.episode.model import CheckpointFile, EpisodeRequest
from tightloop.errors import InvalidRequestError
from tightloop.loop.gates import read_gate, report_file
from tightloop.loop.model import CheckState, GateCheck, Packet, sealed_packet, structure_of
from tightloop.safety.drift import DriftCause
from tightloop.value import Value, clip

if TYPE_CHECKING:
    from activities.checks.runner import CheckRunner
    from activities.loop.project import Packets
    from activities.proof.checkouts import LocalCheckouts
    from activities.workspace.differ import Differ
    from activities.workspace.working_tree import WorkingTree, Workspaces

READ_BYTES = 1_000_000
"""Maximum size of a report in bytes. Larger reports are ignored."""


def run_gate(
    runner: "CheckRunner",
    gate: Check,
    tree: "WorkingTree",
    store: ArtifactStore,
    *,
    expected_tree: str,
    cancelled: Callable[[], bool],
) -> tuple[GateCheck, ...]:
    """Run a gate in the sandbox on exactly the expected tree, and revert any changes that the gate made.

    Returns:
        The gate's result, followed by the results of its individual checks.
    """
    activity.heartbeat(check_work(gate, 1, 1, datetime.now(UTC)))
    with store.open_batch() as together:
        try:
            result = run_check(runner, gate, tree, together, expected_tree=expected_tree, cancelled=cancelled)
            # Before the files are restored, which removes the report.
            report = _read_report(tree, gate)
        finally:
            tree.ensure(expected_tree, DriftCause.DURING_CHECKS)
    output = store.get(result.output).decode("utf-8", "replace") if result.output is not None else ""
    return read_gate(gate, result, output, report)


def _read_report(tree: "WorkingTree", gate: Check) -> str:
    """Return the JUnit XML that a gate wrote into the tree, or "" if there is none."""
    name = report_file(gate)
    if not name:
        return ""
    root = tree.root.resolve()
    try:
        path = (root / name).resolve()
        # The gate may have left a link there.
        if not path.is_relative_to(root) or not path.is_file() or path.stat().st_size > READ_BYTES:
            return ""
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""


History = Callable[[Path], tuple[str, ...]]
"""Function that returns a repository's latest commits as `<id> <subject>`, newest first. It blocks and never raises."""


PacketStores = Callable[[Path], "Packets"]
"""Returns the packets of a workspace's project."""


CHECK_LIMIT_S = 300.0
"""Time limit per check. A check that exceeds it counts as not run."""
ALL_CHECKS_S = 1_200.0
"""Time limit for all checks together. Any remaining checks are not run."""
TAIL_CHARACTERS = 1_000


class InspectRequest(Value):
    """A request to inspect a project or one of its episodes."""

    scope: EpisodeScope
    goal: str = ""
    folder: str = ""
    """Folder of the project, relative to the top of the working tree. Empty for the top itself."""
    episode: str = ""
    packet_id: str = ""
    """Id of an existing packet."""
    gates: tuple[Check, ...] = ()


@dataclass(frozen=True)
class _Source:
    """The goal, checks and failures of the episode that a packet is based on."""

    goal: str = ""
    checks: tuple[Check, ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class InspectionActivities:
    """Inspects projects. Idempotent, because changes that checks make to the tree are reverted."""

    workspaces: "Workspaces"
    stores: ArtifactStores
    ledgers: Ledgers
    differ: "Differ"
    runner: "CheckRunner"
    checkouts: "LocalCheckouts"
    history: History
    packets: PacketStores
    project: Callable[[Path], str] = lambda workspace: workspace.name
    """Returns the id of a workspace's project."""
    settings: Callable[[str], tuple[Check, ...]] = lambda _workspace: ()
    """Returns the gates defined for a workspace in the settings."""

    def inspect(self, request: InspectRequest, store: ArtifactStore) -> tuple[Packet, ChosenChecks]:
        """Inspect a project and store its packet. Return the packet and the project's gates.

        The workspace must be claimed.

        Raises:
            InvalidRequestError: the packet or the episode does not belong to this project, or the episode has
                not ended.
            WorkspaceLockedError: another attempt holds the workspace. Retryable.
        """
        scope = request.scope
        with self.workspaces.hold(scope) as tree:
            source = self._source(store, request)
            snapshot = tree.snapshot()
            named = next(filter(None, (request.gates, source.checks, self.settings(scope.workspace))), ())
            refuse_masked(named)
            goal = request.goal or source.goal
            tried = () if named else self.finder(store).try_checks(tree, snapshot, goal, folder=request.folder)
            chosen = ChosenChecks(checks=named) if named else choose_checks(tried, goal)
            gates = chosen.checks
            packet = self._find_packet(request)
            if packet is None:
                states, failures = _of_trials(tried, gates) if tried else self._run(tree, snapshot, gates, store)
                packet = self._make_packet(request, source, tree, snapshot, states, failures)
        self.packets(Path(scope.workspace)).keep(packet)
        return packet, chosen

    def find_gates(
        self,
        tree: "WorkingTree",
        snapshot: str,
        store: ArtifactStore,
        *named: tuple[Check, ...],
        folder: str,
        before: tuple[Check, ...],
        base: str,
    ) -> tuple[Check, ...]:
        """Return the gates chosen by people. If there are none, return the gates found in the snapshot.

        Args:
            tree: working tree whose store contains the snapshot.
            snapshot: tree id of the snapshot.
            store: store for the output of trial runs.
            named: gates chosen by people, most specific first.
            folder: the project's folder, relative to the top of the tree; "" for the top itself.
            before: gates found when the work began. They are kept even if their configuration is removed.
            base: tree id of the files when the work began. Checks of this tree that are missing from `before`
                could not be run.
        """
        if chosen := next(filter(None, named), ()):
            return chosen
        # Only new kinds of gates: the others must not get worse, which a run on the finished work alone cannot show.
        covered = {family_of_command(gate.run) for gate in before}
        tried = self.finder(store).try_checks(
            tree, snapshot, folder=folder, covered=covered, before=base if before else ""
        )
        return (*before, *(gate for gate in choose_checks(tried, "").checks if gate.run not in {g.run for g in before}))

    def finder(self, store: ArtifactStore) -> CheckFinder:
        """Return the object that finds the project's own checks."""
        return CheckFinder(self.runner, self.checkouts, store)

    def _find_packet(self, request: InspectRequest) -> Packet | None:
        if not request.packet_id:
            return None
        packet = self.packets(Path(request.scope.workspace)).find(request.packet_id)
        if packet is None:
            raise InvalidRequestError(
                f"no such packet in this project: {request.packet_id!r}. Omit the id to create a packet"
            )
        return packet if request.goal in ("", packet.goal) else sealed_packet(packet.evolve(goal=request.goal))

    def _source(self, store: ArtifactStore, request: InspectRequest) -> _Source:
        """Return the goal, checks and failures of the requested episode."""
        name = request.episode
        if not name:
            return _Source()
        ledger = self.ledgers(Path(request.scope.workspace))
        records = [record for record in ledger.checkpoints(name) if record.state is not None]
        if not records:
            raise InvalidRequestError(f"no such episode in this project: {name!r}. List episodes with: tightloop list")
        ends = [event.text for event in ledger.events(name) if event.kind == "closed"]
        if not ends:
            raise InvalidRequestError(f"{name} has not ended yet. Wait for it to end, or inspect the project instead")
        state = get_model(store, records[-1].state, CheckpointFile).state if records[-1].state is not None else None
        episode_request = (
            get_model(store, state.request, EpisodeRequest) if state is not None and state.request else None
        )
        titles = tuple(f"{record.id}: {record.title}" for record in records[-5:])
        return _Source(
            goal=episode_request.goal if episode_request is not None else "",
            checks=episode_request.definition_of_done if episode_request is not None else (),
            failures=(f"{name} ended {ends[-1]}", *titles),
        )

    def _make_packet(
        self,
        request: InspectRequest,
        source: _Source,
        tree: "WorkingTree",
        snapshot: str,
        states: tuple[CheckState, ...],
        failures: tuple[str, ...],
    ) -> Packet:
        scope = request.scope
        sizes = {
            path.decode("utf-8", "backslashreplace"): tree.size(entry.id)
            for path, entry in tree.entries(snapshot).items()
        }
        return sealed_packet(
            Packet(
                project=self.project(Path(scope.workspace)),
                source=request.episode,
                goal=request.goal or source.goal,
                structure=structure_of(sizes),
                checks=states,
                history=self.history(Path(scope.workspace)),
                failures=(*source.failures, *failures),
                files=len(sizes),
                lines=self.differ.lines(store_folder_of(scope), snapshot),
                tree=snapshot,
                at=datetime.now(UTC),
            )
        )

    def _run(
        self, tree: "WorkingTree", snapshot: str, gates: tuple[Check, ...], store: ArtifactStore
    ) -> tuple[tuple[CheckState, ...], tuple[str, ...]]:
        """Run the gates. Return their states, and the last output of each gate that does not pass."""
        try:
            results = dict(self._results(tree, snapshot, gates, store))
        finally:
            tree.ensure(snapshot, DriftCause.DURING_CHECKS)
        failed = [result for result in results.values() if not result.passed]
        return (
            tuple(_state(gate, results.get(gate.run)) for gate in gates),
            tuple(f"{result.run}:\n{clip(result.tail, TAIL_CHARACTERS)}" for result in failed),
        )

    def _results(
        self, tree: "WorkingTree", snapshot: str, gates: tuple[Check, ...], store: ArtifactStore
    ) -> Iterator[tuple[str, CheckResult]]:
        """Run checks and yield their results until the total time limit is reached."""
        until = time.monotonic() + ALL_CHECKS_S
        for number, gate in enumerate(gates, start=1):
            left = until - time.monotonic()
            # The remaining checks count as not run, which the packet says.
            if left <= 0:
                return
            check = gate.evolve(timeout_s=min(gate.timeout_s, CHECK_LIMIT_S, left))
            activity.heartbeat(check_work(check, number, len(gates), datetime.now(UTC)))
            result = run_check(self.runner, check, tree, store, expected_tree=snapshot, cancelled=should_stop)
            yield gate.run, result


def _of_trials(
    tried: tuple[TriedCheck, ...], gates: tuple[Check, ...]
) -> tuple[tuple[CheckState, ...], tuple[str, ...]]:
    """Return the state of each gate according to its trial run, and the last output of each failing gate."""
    trials = {trial.check.run: trial for trial in tried}
    runs = [(gate, trials[gate.run]) for gate in gates]
    states = []
    for gate, trial in runs:
        count = len(trial.failed_tests)
        failed = f"{count} failed" if count else f"exit code {trial.exit_code}"
        # Known failures are not work: without a goal, each failed gate becomes a task.
        known = set(gate.known_failures)
        passed = trial.passed or (bool(known) and known >= set(trial.failed_tests))
        states.append(CheckState(run=gate.run, passed=passed, summary=failed, duration_s=trial.duration_s))
    red = [trial for _, trial in runs if not trial.passed]
    return tuple(states), tuple(f"{trial.check.run}:\n{clip(trial.tail, TAIL_CHARACTERS)}" for trial in red)


def _state(gate: Check, result: CheckResult | None) -> CheckState:
    if result is None or result.exit_code is None:
        return CheckState(run=gate.run, summary="timed out" if result is not None else "not run")
    counts = result.counts
    parts = [f"{number} {label}" for label, number in (("failed", counts.failed), ("passed", counts.passed)) if number]
    return CheckState(
        run=gate.run,
        passed=result.passed,
        summary=", ".join(parts) or f"exit code {result.exit_code}",
        duration_s=result.duration_s,
    )
