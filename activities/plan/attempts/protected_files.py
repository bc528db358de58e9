"""Files that the policy protects and no snapshot covers, because git ignores them: `.env` above all."""

import os
from datetime import timedelta
from pathlib import Path

from activities.plan.files import CLOSED
from activities.plan.port import Work
from activities.workspace.git_command import split_z
from activities.workspace.snapshot_repository import SnapshotRepository
from tightloop.plan.rules.guard import enclosing_policies
from tightloop.safety.glob import fits

LISTING_BYTES = 4 * 1024 * 1024
LISTING_TIME = timedelta(seconds=20)


def find_protected_paths(work: Work) -> frozenset[Path]:
    """Return ignored files and folders that exist and that no step may change.

    What lies in an ignored folder that is not protected itself (`node_modules`) is not looked at: it may be huge.
    """
    git = SnapshotRepository(work.scope.state_folder, work.root).private
    options = ("--others", "--ignored", "--exclude-standard", "--directory", "-z")
    listed, _ = git.head("ls-files", *options, limit_bytes=LISTING_BYTES, timeout=LISTING_TIME)
    # The last name may be cut off at the limit.
    names = (os.fsdecode(name) for name in split_z(listed[: listed.rfind(b"\0") + 1]))
    rules = [policy.protect for policy in enclosing_policies(work.plan.policy)]
    # A folder is covered where all that could be in it is.
    paths = {name: f"{name}any" if name.endswith("/") else name for name in names if name.rstrip("/") not in CLOSED}
    found = (work.root / name for name, path in paths.items() if any(fits(rule, path, folded=True) for rule in rules))
    return frozenset(place for place in found if not place.is_symlink())
