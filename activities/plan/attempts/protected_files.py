"""Files that the policy protects and no snapshot covers, because git ignores them: `.env` above all."""

from datetime import timedelta
from pathlib import Path

from activities.plan.files import CLOSED
from activities.plan.port import Work
from activities.workspace.store.walk import Walk
from activities.workspace.user_repository import IndexMemory, UserRepository
from tightloop.plan.rules.guard import enclosing_policies
from tightloop.safety.glob import fits

LISTING_TIME = timedelta(seconds=20)


def find_protected_paths(work: Work) -> frozenset[Path]:
    """Return ignored files and folders that exist and that no step may change.

    What lies in an ignored folder that is not protected itself (`node_modules`) is not looked at: it may be huge.
    """
    names: list[str] = []
    coverage = UserRepository(work.root).coverage(IndexMemory())
    Walk(coverage, None, seconds=LISTING_TIME.total_seconds(), ignored=names.append).run(str(work.root), None)
    rules = [policy.protect for policy in enclosing_policies(work.plan.policy)]
    # A folder is covered where all that could be in it is.
    paths = {name: f"{name}any" if name.endswith("/") else name for name in names if name.rstrip("/") not in CLOSED}
    found = (work.root / name for name, path in paths.items() if any(fits(rule, path, folded=True) for rule in rules))
    return frozenset(place for place in found if not place.is_symlink())
