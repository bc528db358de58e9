"""What changed between two checkpoints of an episode: the files, and the plan. Read on the workspace's host."""

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tightloop.client.store import Store
from tightloop.episode.checkpoint import CheckpointRecord, checkpoint_number
from tightloop.episode.messages import PlanDelta, show_change, show_delta
from tightloop.episode.model import CheckpointFile
from tightloop.episode.planning import PlanRecord
from tightloop.errors import GitError, InvalidRequestError, WorkspaceError
from tightloop.executor.message import render_plan
from tightloop.host import store_folder
from tightloop.host.programs import find_trusted, trusted_path
from tightloop.value import Value

GIT_TIMEOUT_S = 60
# The user's own settings may name programs for differences: the output is ours to show.
_DIFF = ("diff", "--no-ext-diff", "--no-textconv")


class FileDelta(Value):
    """How many lines of one file changed."""

    path: str
    added: int | None = None
    """None: the file is binary."""
    removed: int | None = None


class TreeChange:
    """The difference of the files of two checkpoints."""

    def __init__(
        self, workspace: Path, episode_id: str, numbers: Sequence[int], records: Sequence[CheckpointRecord]
    ) -> None:
        """Find both trees in the project's store.

        Args:
            workspace: of the episode.
            episode_id: whose checkpoints are meant.
            numbers: of the two checkpoints.
            records: the checkpoints as far as they are known; a fork has some of another episode.

        Raises:
            InvalidRequestError: there is no such checkpoint.
            WorkspaceError: the snapshots are not on this host.
        """
        self._folder = store_folder(workspace)
        self._trees = [_find_tree(workspace, episode_id, number, records) for number in numbers]

    def files(self) -> tuple[FileDelta, ...]:
        """Return the changed files; a renamed one counts as removed and added."""
        # With renames, `-z` writes the two paths as fields of their own.
        lines = _git(self._folder, *_DIFF, "--no-renames", "--numstat", "-z", *self._trees).split("\0")
        return tuple(_file_delta(line) for line in lines if line)

    def text(self, *options: str) -> str:
        """Return what git prints for the difference with these options, such as `--stat`."""
        return _git(self._folder, *_DIFF, *options, *self._trees)


def plan_change(store: Store, numbers: Sequence[int], records: Sequence[CheckpointRecord]) -> str:
    """Return how the plan changed between two checkpoints; empty: not at all.

    Raises:
        InvalidRequestError: there is no such checkpoint.
        ArtifactMissingError: what was stored is not here.
        ArtifactCorruptError: it is damaged.
    """
    files = [checkpoint_file(store, records, number) for number in numbers]
    old, new = (_plan_text(store, file) for file in files)
    if files[1].plan_delta is None:
        return show_change(old, new)
    try:
        return show_delta(old, store.stored(files[1].plan_delta, PlanDelta))
    except ValueError:
        # A delta leads from the plan of the checkpoint before it; other pairs are compared here.
        return show_change(old, new)


def checkpoint_file(store: Store, records: Sequence[CheckpointRecord], number: int) -> CheckpointFile:
    """Return what is stored of a checkpoint.

    Raises:
        InvalidRequestError: it is not one of the records.
        ArtifactMissingError: it is not here.
        ArtifactCorruptError: it is damaged.
    """
    record = next((one for one in records if one.number == number), None)
    if record is None or record.state is None:
        known = ", ".join(one.id for one in records) or "none yet"
        raise InvalidRequestError(f"{store.workflow_id} has no checkpoint ckpt-{number}. Known: {known}")
    return store.stored(record.state, CheckpointFile)


def read_number(episode_id: str, name: str) -> int:
    """Return n of `ckpt-<n>` or `<n>`.

    Raises:
        InvalidRequestError: it is neither.
    """
    number = checkpoint_number(name)
    if number is None:
        raise InvalidRequestError(
            f"{name!r} is not a checkpoint. Write it like ckpt-2 or 2; see: tightloop checkpoints {episode_id}"
        )
    return number


def _plan_text(store: Store, file: CheckpointFile) -> str:
    """Return the plan that a checkpoint has; empty before the first plan."""
    message = store.stored(file.state.plan, PlanRecord).message if file.state.plan else None
    return render_plan(message) if message is not None else ""


def _file_delta(line: str) -> FileDelta:
    added, removed, path = line.split("\t", 2)
    return FileDelta(path=path) if added == "-" else FileDelta(path=path, added=int(added), removed=int(removed))


def _find_tree(workspace: Path, episode_id: str, number: int, records: Sequence[CheckpointRecord]) -> str:
    folder = store_folder(workspace)
    if folder.is_dir():
        # A fork has checkpoints of the episode that it was made from: their refs have another name.
        listed = [record.tree for record in records if record.number == number and record.tree]
        for candidate in (f"refs/tightloop/{episode_id}/{number}", *listed):
            found = _run_git(folder, "rev-parse", "--verify", "--quiet", f"{candidate}^{{tree}}")
            if found.returncode == 0:
                return found.stdout.strip()
        if _run_git(folder, "for-each-ref", "--count=1", f"refs/tightloop/{episode_id}").stdout.strip():
            raise InvalidRequestError(
                f"{episode_id} has no checkpoint ckpt-{number} in {folder}. "
                f"See: tightloop checkpoints {episode_id} --all"
            )
    raise WorkspaceError(
        f"{episode_id} works in {workspace}, and its snapshots are not in {folder} on this host "
        f"({socket.gethostname()}). Run this command on the host of its workspace, as the user of its worker"
    )


def _git(folder: Path, *arguments: str) -> str:
    done = _run_git(folder, *arguments)
    if done.returncode != 0:
        raise GitError(f"git {arguments[0]} failed in {folder}: {done.stderr.strip()}")
    return done.stdout


def _run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # An inherited GIT_DIR or GIT_INDEX_FILE would point git at another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    program = find_trusted("git")
    if program is None:
        raise GitError("git is not installed. Install it, for example: apt install git")
    program.refuse_within()
    try:
        return subprocess.run(
            program.command("--no-pager", f"--git-dir={folder}", *arguments),
            cwd=folder,
            env={**environment, "PATH": trusted_path()},
            capture_output=True,
            text=True,
            # Files need not be UTF-8.
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} took longer than {GIT_TIMEOUT_S} s in {folder}") from error
