"""A unified diff applied strictly to the files on disk: every hunk fits exactly, or nothing is changed."""

from dataclasses import dataclass

from activities.plan.files import resolve_path
from activities.workspace.folders import root_of, store_folder_of
from activities.workspace.git_command import Git, Outcome, split_z
from activities.workspace.plain_git import store_git
from activities.workspace.scope import EpisodeScope
from tightloop.errors import InvalidRequestError

PATCH_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Patch:
    """A diff for one working tree."""

    git: Git
    text: bytes
    paths: tuple[str, ...]
    applied: bool
    """The files are already as the diff makes them."""

    @property
    def changed(self) -> tuple[str, ...]:
        """Paths that applying it changes."""
        return () if self.applied else self.paths

    def check(self) -> None:
        """Raise if it cannot be applied.

        Raises:
            InvalidRequestError: it does not fit; the message names the first place.
        """
        if not self.applied:
            _refuse(_apply(self.git, self.text, "--check"))

    def apply(self) -> None:
        """Apply it; raises as `check` does, and then has changed nothing."""
        if not self.applied:
            _refuse(_apply(self.git, self.text))


def patch_of(scope: EpisodeScope, text: bytes) -> Patch:
    """Read a diff.

    Raises:
        InvalidRequestError: it is not a diff, too large, or changes a path that no step may touch.
    """
    if len(text) > PATCH_BYTES:
        raise InvalidRequestError(f"the diff has {len(text)} bytes, more than {PATCH_BYTES}. Split it")
    # Without the last line end git calls the diff corrupt.
    text = text if text.endswith(b"\n") else text + b"\n"
    git = store_git(store_folder_of(scope), root_of(scope))
    found: set[bytes] = set()
    # A rename is listed under its new name, and in reverse under its old one.
    for direction in ((), ("--reverse",)):
        listed = _apply(git, text, "--numstat", "-z", *direction)
        if listed.code != 0:
            raise InvalidRequestError(f"the diff cannot be read: {listed.error}. Write it as 'git diff' does")
        found |= {line.split(b"\t", 2)[2] for line in split_z(listed.out)}
    paths = tuple(sorted(path.decode("utf-8", "surrogateescape") for path in found))
    for path in paths:
        resolve_path(root_of(scope), path)
    # What fits backwards and not forwards is there already.
    fits = _apply(git, text, "--check").code == 0
    return Patch(git, text, paths, not fits and _apply(git, text, "--check", "--reverse").code == 0)


def _apply(git: Git, text: bytes, *options: str) -> Outcome:
    return git.attempt("apply", "--whitespace=nowarn", *options, "-", stdin=text)


def _refuse(outcome: Outcome) -> None:
    if outcome.code != 0:
        raise InvalidRequestError(
            f"the diff does not fit the files, nothing was changed: {outcome.error}. Make it again from these files"
        )
