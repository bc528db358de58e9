"""Files that are not as the work left them: which of them are somebody's, and how they are put back."""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from activities.workspace.store.entry import Entry, TreeChange
from tightloop.episode.proof.files import is_cache
from tightloop.safety.drift import LINES_LISTED, PATHS_LISTED, PATHS_SHOWN, Drift, DriftAnswer, DriftCause

DIGITS = 16
"""Of the trees in a command."""


def describe_drift(
    root: Path,
    expected: str,
    found: str,
    changes: Iterable[TreeChange],
    cause: DriftCause,
    *,
    store: Path | None = None,
    step: str = "",
) -> Drift:
    """Return what a person is told of changes, before they are undone; caches of tools are left out.

    With a `store` they are about to be undone, and the drift has the command that brings them back.
    """
    listed = [change for change in changes if not is_cache(_shown(change.path))]
    # What checks leave behind travels with each of their results, and that of failed steps with every attempt.
    is_short = cause in (DriftCause.DURING_CHECKS, DriftCause.DURING_STEP)
    seen = [(change, _changed_at(root, change)) for change in listed[:PATHS_LISTED]]
    times = [moment for _, moment in seen if moment is not None]
    return Drift(
        tree=found,
        expected=expected,
        paths=tuple(_shown(change.path) for change, _ in seen[: PATHS_SHOWN if is_short else PATHS_LISTED]),
        count=len(listed),
        lines=() if is_short else tuple(_line(change, moment) for change, moment in seen[:LINES_LISTED]),
        since=min(times, default=None),
        cause=cause,
        step=step,
        bring_back="" if store is None else _command(store, root, expected, found),
    )


def undone_changes(
    changes: Sequence[TreeChange], present: Mapping[bytes, Entry], asked: set[bytes], answer: DriftAnswer
) -> tuple[list[TreeChange], dict[bytes, Entry | None]]:
    """Return which changes a person wants undone, and what is to be at which path then.

    Args:
        changes: from the tree that the work left to what is on disk.
        present: the files on disk.
        asked: paths that the person was asked about; all others were changed since, and stay.
        answer: what they said.
    """
    undone = [
        change
        for change in changes
        if is_cache(_shown(change.path)) or (change.path in asked and answer.undoes(_shown(change.path)))
    ]
    wanted = {change.path: change.before for change in undone}
    back = {path for path, entry in wanted.items() if entry is not None}
    folders = {folder for path in back for folder in _folders(path)}
    # A file cannot come back beside a folder of its name, nor below a file.
    for path in present:
        if path not in wanted and (path in folders or not back.isdisjoint(_folders(path))):
            wanted[path] = None
    return undone, wanted


def _folders(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:length]) for length in range(1, len(parts))]


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def _changed_at(root: Path, change: TreeChange) -> datetime | None:
    if change.after is None:
        return None
    try:
        return datetime.fromtimestamp(os.lstat(root / os.fsdecode(change.path)).st_mtime, UTC).replace(microsecond=0)
    except (OSError, ValueError, OverflowError):
        return None


def _line(change: TreeChange, moment: datetime | None) -> str:
    how = "removed" if change.after is None else "added" if change.before is None else "changed"
    return f"{_shown(change.path)}: {how}" + (f" at {moment:%Y-%m-%d %H:%M:%S} UTC" if moment is not None else "")


def _command(store: Path, root: Path, expected: str, found: str) -> str:
    # `diff-tree` obeys no setting of the user that changes the form of a patch.
    trees = f"{expected[:DIGITS]} {found[:DIGITS]}"
    source = f"git --git-dir={shlex.quote(str(store))} diff-tree -p --binary {trees}"
    # File by file: what cannot be applied, as it was changed since, is left beside it as `.rej`.
    return f"{source} | git -C {shlex.quote(str(root))} apply --reject --whitespace=nowarn"
