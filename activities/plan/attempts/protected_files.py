"""Files that the policy protects, above all those that no snapshot covers because git ignores them, such as `.env`."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from activities.plan.files import CLOSED
from activities.workspace.store.walk import Walk
from activities.workspace.user_repository import IndexMemory, UserRepository
from tightloop.plan.document.policy import Policy
from tightloop.plan.rules.guard import enclosing_policies
from tightloop.safety.glob import fits

LISTING_TIME = timedelta(seconds=20)


def protect_lists(policy: Policy) -> tuple[tuple[str, ...], ...]:
    """Return what a policy and those around it protect."""
    return tuple(one.protect for one in enclosing_policies(policy))


def find_protected_paths(root: Path, rules: Sequence[Sequence[str]], *, covered: bool = False) -> frozenset[Path]:
    """Return ignored files and folders that exist and that no step may change.

    What lies in an ignored folder that is not protected itself (`node_modules`) is not looked at: it may be huge.

    Args:
        root: of the tree.
        rules: lists of patterns.
        covered: return those that snapshots cover as well.
    """
    names: list[str] = []
    coverage = UserRepository(root).coverage(IndexMemory())
    walk = Walk(coverage, None, seconds=LISTING_TIME.total_seconds(), ignored=names.append)
    found = walk.run(str(root), None)
    names += found.paths() if covered else ()
    # A folder is covered where all that could be in it is.
    paths = {name: f"{name}any" if name.endswith("/") else name for name in names if name.rstrip("/") not in CLOSED}
    places = (root / name for name, path in paths.items() if any(fits(rule, path, folded=True) for rule in rules))
    return frozenset(place for place in places if not place.is_symlink())
