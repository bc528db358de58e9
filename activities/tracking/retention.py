"""Frees what closed episodes and plans left on this host, one project at a time.

Nothing newer than the first start of a workflow that is kept is touched, nor what such a workflow names, directly or
through an artifact. Rows go last, so that a collection that was ended in the middle is finished by the next one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from activities.tracking.leftovers import Leftovers
from tightloop.errors import WorkspaceLockedError

GRACE = timedelta(hours=1)
"""What is younger stays in any case: of a workflow that began while Temporal was asked, nobody knows yet."""


@dataclass(frozen=True)
class Known:
    """What Temporal knows of a workflow, over all its runs."""

    id: str
    started: datetime
    closed: datetime | None
    """None: it is open."""


@dataclass(frozen=True)
class Freed:
    """What was freed, or would be."""

    project: str
    episodes: tuple[str, ...] = ()
    """Plans, too."""
    artifacts: int = 0
    references: int = 0
    rows: int = 0
    files: tuple[Path, ...] = ()
    """Homes and records of agents, records of plans, worktrees of alternatives, cached documents."""
    size_bytes: int = 0
    """Of all but the rows."""
    marked: int = 0
    """How many a person keeps."""
    busy: str = ""
    """Why trees, rows and plans were left as they are."""


def collect(
    folder: Path,
    known: Mapping[str, Known],
    *,
    older_than: timedelta,
    dry_run: bool,
    asked: datetime | None = None,
    forget: Callable[[str], object] | None = None,
) -> Freed:
    """Free what no open or kept workflow of a project needs, beside running workers.

    Args:
        folder: state folder of the project.
        known: everything that Temporal knows, by id, also of other projects.
        older_than: what closed later than this ago is kept.
        dry_run: only say what would be freed.
        asked: when Temporal was asked; default: now.
        forget: removes what a workflow has elsewhere, such as its copies in the remote store. Idempotent.
    """
    left = Leftovers(folder)
    cutoff = (asked or datetime.now(UTC)) - max(older_than, GRACE)
    gone, horizon = _unneeded(left, known, cutoff)
    artifacts, files = left.artifacts(gone, horizon), left.files(gone, horizon)
    size = sum(artifacts.values()) + sum(files.values())
    freed = Freed(
        folder.name,
        artifacts=len(artifacts),
        files=tuple(sorted(files)),
        size_bytes=size,
        marked=len(left.marked()),
    )
    if dry_run:
        return _with_workflows(freed, left, gone)
    left.free_artifacts(artifacts, horizon)
    left.free_files(files)
    # Before the rows, as all of it; and not while working trees are held: it asks over the network.
    if forget is not None:
        for key in sorted(gone):
            forget(key)
    try:
        with left.held() as locks:
            # Nobody begins or ends anything from here on; meanwhile somebody may have.
            gone &= _unneeded(left, known, cutoff)[0]
            freed = _with_workflows(freed, left, gone)
            left.free_trees(left.references(gone), horizon, locks)
            left.free_folders(left.folders(gone))
            left.free_rows(gone)
    except WorkspaceLockedError:
        return replace(freed, busy="a working tree is in use; its trees are freed by a later run")
    return freed


def _unneeded(left: Leftovers, known: Mapping[str, Known], cutoff: datetime) -> tuple[frozenset[str], datetime]:
    active, claimed = left.last_activity(known), left.claimed()
    here = {key: each for key, each in known.items() if key in active or key in claimed}
    return choose(active, here, claimed, cutoff, left.marked())


def _with_workflows(freed: Freed, left: Leftovers, gone: frozenset[str]) -> Freed:
    references, folders = left.references(gone), left.folders(gone)
    return replace(
        freed,
        episodes=tuple(sorted(gone)),
        references=len(references),
        rows=left.rows(gone),
        files=tuple(sorted((*freed.files, *folders))),
        size_bytes=freed.size_bytes + left.tree_bytes(references) + sum(folders.values()),
    )


def choose(
    active: Mapping[str, datetime],
    known: Mapping[str, Known],
    claimed: frozenset[str],
    cutoff: datetime,
    marked: frozenset[str] = frozenset(),
) -> tuple[frozenset[str], datetime]:
    """Return which episodes of a project nobody needs, and the time before which their leftovers go.

    Args:
        active: when each episode of the project last did something on this host.
        known: what Temporal knows; an id that it does not know was closed, and its history is gone.
        claimed: episodes that hold a workspace: without Temporal's word they count as open.
        cutoff: what closed later is kept.
        marked: what a person keeps, with all that it started.
    """

    def ended(key: str) -> datetime | None:
        # See `child_id` for the ids of what a plan started.
        if any(key == mark or key.startswith(f"{mark}.") for mark in marked):
            return None
        found = known.get(key)
        if found is not None:
            return None if found.closed is None else max(found.closed, active.get(key, found.closed))
        return None if key in claimed else active[key]

    ends = {key: ended(key) for key in {*active, *known}}
    horizon = cutoff
    while True:
        kept = [key for key, end in ends.items() if end is None or end >= horizon]
        starts = [known[key].started for key in kept if key in known]
        earliest = min([horizon, *starts])
        if earliest == horizon:
            return frozenset(active.keys() - set(kept)), horizon
        horizon = earliest
