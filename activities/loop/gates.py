"""Choice and execution of the gates of a project."""

from collections.abc import Callable
from datetime import UTC, datetime

from temporalio import activity

from activities.artifacts.port import ArtifactStore
from activities.checks.activity import CheckRunner, run_check
from activities.workspace.port import WorkingTree
from tightloop.episode.budget import check_work
from tightloop.episode.check import Check
from tightloop.loop.gates import READ_FILES, detect_gates, read_gate, report_file
from tightloop.loop.model import GateCheck
from tightloop.safety.drift import DriftCause

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


def run_gate(
    runner: CheckRunner,
    gate: Check,
    tree: WorkingTree,
    store: ArtifactStore,
    *,
    expected_tree: str,
    cancelled: Callable[[], bool],
) -> tuple[GateCheck, ...]:
    """Run a gate in the sandbox, on exactly the expected tree; what it writes into that is undone.

    Returns:
        The gate, then the checks within it.
    """
    activity.heartbeat(check_work(gate, 1, 1, datetime.now(UTC)))
    with store.together() as together:
        try:
            result = run_check(runner, gate, tree, together, expected_tree=expected_tree, cancelled=cancelled)
            report = _read_report(tree, gate)
        finally:
            tree.ensure(expected_tree, DriftCause.DURING_CHECKS)
    output = store.get(result.output).decode("utf-8", "replace") if result.output is not None else ""
    return read_gate(gate, result, output, report)


def _read_report(tree: WorkingTree, gate: Check) -> str:
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
