"""What can be taken back, and in which order: the latest first."""

from collections.abc import Collection, Iterable

from tightloop.plan.engine.graph import Node
from tightloop.plan.engine.state import UndoEntry


def may_be_undone(node: Node, *, completed: bool, tree_before: str, tree_after: str) -> bool:
    """Return whether an attempt left something that can be taken back.

    An attempt that failed can have changed files too; a compensation of the step's own is for completed ones.
    """
    if not node.compensates:
        return False
    # A step that never looked at the tree has no tree after it.
    moved = bool(tree_after) and tree_after != tree_before
    return moved or (completed and node.own_compensation)


def select_undo(undo: Iterable[UndoEntry], only: Collection[str] | None = None) -> tuple[UndoEntry, ...]:
    """Return what is taken back, the latest first.

    Args:
        undo: attempts in the order of their ends.
        only: ids of steps, or of templates for all that was made from them; None: everything.
    """
    wanted = [entry for entry in undo if only is None or {entry.step, entry.template}.intersection(only)]
    return tuple(reversed(wanted))
