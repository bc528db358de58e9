"""The files of a working tree that are not ignored, without reading them."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from activities.workspace.store.walk import Walk
from activities.workspace.user_repository import IndexMemory, UserRepository

LISTING_TIMEOUT = timedelta(seconds=30)


def list_files(root: Path) -> Iterator[str]:
    """Return the paths of files and links below `root`; ignored ones only where git tracks them.

    Raises:
        NotARepositoryError: `root` is not the top of a git working tree.
        GitError: the files could not be listed in time. Retryable.
    """
    coverage = UserRepository(root).coverage(IndexMemory())
    return Walk(coverage, None, seconds=LISTING_TIMEOUT.total_seconds()).run(str(root), None).paths()
