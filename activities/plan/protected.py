"""Files that the policy protects and no snapshot covers, because git ignores them: `.env` above all."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from activities.plan.files import CLOSED
from activities.plan.port import Work
from activities.workspace.git_command import split_z
from activities.workspace.snapshot_repository import SnapshotRepository
from tightloop.plan.policy import Policy
from tightloop.plan.rules.glob import fits

LISTING_BYTES = 4 * 1024 * 1024
LISTING_TIME = timedelta(seconds=20)


def protected_paths(work: Work) -> frozenset[Path]:
    """Return ignored files and folders that no step may change, as far as they are there.

    What lies in an ignored folder that is not protected itself (`node_modules`) is not looked at: it may be huge.
    """
    git = SnapshotRepository(work.scope.state_folder, work.root).private
    options = ("--others", "--ignored", "--exclude-standard", "--directory", "-z")
    listed, _ = git.head("ls-files", *options, limit_bytes=LISTING_BYTES, timeout=LISTING_TIME)
    # The last name may be cut off.
    names = (os.fsdecode(name) for name in split_z(listed[: listed.rfind(b"\0") + 1]))
    found = (work.root / name for name in names if name.rstrip("/") not in CLOSED and _covered(work.plan.policy, name))
    return frozenset(place for place in found if not place.is_symlink())


def _covered(policy: Policy, name: str) -> bool:
    # A folder is covered where all that could be in it is.
    path = f"{name}any" if name.endswith("/") else name
    return any(fits(one.protect, path, folded=True) for one in _around(policy))


def _around(policy: Policy | None) -> Iterator[Policy]:
    while policy is not None:
        yield policy
        policy = policy.within
