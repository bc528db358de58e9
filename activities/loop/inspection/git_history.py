"""The last commits of a repository, by the one door to git."""

from pathlib import Path

from activities.workspace.plain_git import user_git
from activities.workspace.user_repository import UserRepository
from tightloop.errors import TightloopError
from tightloop.loop.packet import HISTORY_LIMIT


def last_commits(root: Path) -> tuple[str, ...]:
    """Return the last commits, the newest first; none where there is none, or git cannot read them."""
    try:
        with user_git(UserRepository(root)) as git:
            done = git.attempt("log", f"--max-count={HISTORY_LIMIT}", "--no-decorate", "--format=%h %s")
    except (TightloopError, OSError):
        return ()
    return tuple(done.out.decode("utf-8", "replace").splitlines()) if done.code == 0 else ()
