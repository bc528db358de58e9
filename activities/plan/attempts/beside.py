"""Changes of files that leave alone what somebody else has changed meanwhile."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from activities.plan.port import Trees
from activities.workspace.port import WorkingTree
from tightloop.plan.document.step import Step
from tightloop.safety.commands.effects import written_paths
from tightloop.safety.commands.shell import plain
from tightloop.safety.drift import Drift, DriftCause, DriftError


def own_paths(step: Step, outputs: Mapping[str, Any], command: str) -> frozenset[str]:
    """Return the files that are known to be written by a step itself: those that it edits, or names as its output."""
    if step.edit is not None:
        return frozenset(map(str, outputs.get("paths", ())))
    if step.shell is not None:
        return frozenset(written_paths(plain(command), step.shell.folder).certain)
    return frozenset()


def without_own(drift: Drift | None, found: str, changed: Collection[str], own: frozenset[str]) -> Drift | None:
    """Return what people are told of what was undone with a step: nothing where all of it is the step's own.

    Args:
        drift: what was undone.
        found: the tree that the step left.
        changed: what differs in it from the tree before the step.
        own: of the step; see `own_paths`.
    """
    return None if drift is not None and drift.tree == found and own.issuperset(changed) else drift


def move(
    tree: WorkingTree, trees: Trees, store: Path, before: str, after: str, *, undone_step: str = ""
) -> Drift | None:
    """Turn the files of `before`, which should be on disk, into those of `after`.

    What somebody else changed stays on disk, and whoever writes next asks about it. Only where both changed the same
    lines it is undone.

    Returns:
        What was undone that is not the caller's own; with `undone_step` also what changed while that step ran, as
        nobody knows who changed it.
    """
    drift, target = None, after
    try:
        drift = tree.expect(before)
    except DriftError:
        merged = trees.undo(store, after, before, tree.snapshot())
        if merged.conflicts:
            return tree.ensure(after)
        target = merged.tree
    if undone_step:
        return tree.ensure(target, DriftCause.DURING_STEP, step=undone_step) or drift
    if before != after:
        tree.restore(target)
    return drift
