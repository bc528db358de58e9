"""Which gates a project has: those that were asked for, those of the settings, or those that its files show."""

from activities.workspace.port import WorkingTree
from tightloop.episode.check import Check
from tightloop.loop.detection import READ_FILES, detect_gates

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
