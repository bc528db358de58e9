"""Changes of files that leave alone what somebody else has changed meanwhile."""

from pathlib import Path

from activities.plan.port import Trees
from activities.workspace.port import WorkingTree
from tightloop.safety.drift import Drift, DriftError


def move(tree: WorkingTree, trees: Trees, store: Path, before: str, after: str) -> Drift | None:
    """Turn the files of `before`, which should be on disk, into those of `after`.

    What somebody else changed stays on disk, and whoever writes next asks about it. Only where both changed the same
    lines it is undone.

    Returns:
        What was undone.
    """
    try:
        drift = tree.expect(before)
    except DriftError:
        merged = trees.undo(store, after, before, tree.snapshot())
        if merged.conflicts:
            return tree.ensure(after)
        tree.restore(merged.tree)
        return None
    if before != after:
        tree.restore(after)
    return drift
