"""File and plan differences between two checkpoints of an episode. Runs on the workspace's host."""

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
from tightloop.host.programs import find_trusted_program, trusted_path
from tightloop.value import Value

GIT_TIMEOUT_S = 60
# The user's git configuration may name external diff programs; disable them.
_DIFF = ("diff", "--no-ext-diff", "--no-textconv")


class FileDelta(Value):
    """Number of lines that were added to and removed from a file."""

    path: str
    added: int | None = None
    """Number of added lines. None for a binary file."""
    removed: int | None = None


class TreeChange:
    """File differences between two checkpoints.

    Args:
        workspace: workspace of the episode.
        episode_id: workflow id of the episode.
        numbers: numbers of the two checkpoints.
        records: known checkpoints. A fork also has its source's checkpoints.

    Raises:
        InvalidRequestError: a checkpoint does not exist.
        WorkspaceError: the snapshots are not on this host.
    """

    def __init__(
        self, workspace: Path, episode_id: str, numbers: Sequence[int], records: Sequence[CheckpointRecord]
    ) -> None:
        self._folder = store_folder(workspace)
        self._trees = [_find_tree(workspace, episode_id, number, records) for number in numbers]

    def files(self) -> tuple[FileDelta, ...]:
        """Return the changed files. A rename counts as a deletion and an addition."""
        # With rename detection, `-z` would write both paths as separate fields.
        lines = _git(self._folder, *_DIFF, "--no-renames", "--numstat", "-z", *self._trees).split("\0")
        return tuple(_file_delta(line) for line in lines if line)

    def text(self, *options: str) -> str:
        """Return the output of `git diff` for this change, with options such as `--stat`."""
        return _git(self._folder, *_DIFF, *options, *self._trees)


def result_patch(workspace: Path, run: str) -> str:
    """Return the changes of a successful run as a patch for `git apply`.

    Raises:
        InvalidRequestError: the run has no result on this host.
    """
    folder, names = store_folder(workspace), [f"refs/tightloop/{run}/{name}" for name in ("base", "result")]
    if not folder.is_dir() or any(_run_git(folder, "rev-parse", "--verify", "-q", name).returncode for name in names):
        raise InvalidRequestError(f"{run} has no result on this host. Only a run that succeeded has one")
    return _git(folder, *_DIFF, "--binary", *names)


def plan_change(store: Store, numbers: Sequence[int], records: Sequence[CheckpointRecord]) -> str:
    """Return the difference between the plans of two checkpoints, or "" if there is none.

    Raises:
        InvalidRequestError: a checkpoint does not exist.
        ArtifactMissingError: a stored plan is not on this host.
        ArtifactCorruptError: a stored plan is damaged.
    """
    files = [checkpoint_file(store, records, number) for number in numbers]
    old, new = (_plan_text(store, file) for file in files)
    if files[1].plan_delta is None:
        return show_change(old, new)
    try:
        return show_delta(old, store.load_model(files[1].plan_delta, PlanDelta))
    except ValueError:
        # A delta only applies to the plan of the preceding checkpoint; compare other pairs in full.
        return show_change(old, new)


def checkpoint_file(store: Store, records: Sequence[CheckpointRecord], number: int) -> CheckpointFile:
    """Load the content that is stored for a checkpoint.

    Raises:
        InvalidRequestError: the checkpoint does not exist.
        ArtifactMissingError: the content is not on this host.
        ArtifactCorruptError: the content is damaged.
    """
    record = next((candidate for candidate in records if candidate.number == number), None)
    if record is None or record.state is None:
        ids = ", ".join(candidate.id for candidate in records) or "none yet"
        raise InvalidRequestError(f"{store.workflow_id} has no checkpoint ckpt-{number}. Known checkpoints: {ids}")
    return store.load_model(record.state, CheckpointFile)


def read_number(episode_id: str, name: str) -> int:
    """Parse a checkpoint name, `ckpt-<n>` or `<n>`, into its number.

    Raises:
        InvalidRequestError: the text has neither form.
    """
    number = checkpoint_number(name)
    if number is None:
        raise InvalidRequestError(
            f"{name!r} is not a valid checkpoint: expected a value like ckpt-2 or 2. List checkpoints with: "
            f"tightloop checkpoints {episode_id}"
        )
    return number


def _plan_text(store: Store, file: CheckpointFile) -> str:
    """Return the text of a checkpoint's plan, or "" before the first plan."""
    message = store.load_model(file.state.plan, PlanRecord).message if file.state.plan else None
    return render_plan(message) if message is not None else ""


def _file_delta(line: str) -> FileDelta:
    # Split twice only: with `-z` git does not quote a path, which may contain tabs.
    added, removed, path = line.split("\t", 2)
    # numstat writes `-` as both counts of a binary file.
    return FileDelta(path=path) if added == "-" else FileDelta(path=path, added=int(added), removed=int(removed))


def _find_tree(workspace: Path, episode_id: str, number: int, records: Sequence[CheckpointRecord]) -> str:
    folder = store_folder(workspace)
    if folder.is_dir():
        # A fork has checkpoints of its source episode, whose refs have another name.
        listed = [record.tree for record in records if record.number == number and record.tree]
        for candidate in (f"refs/tightloop/{episode_id}/{number}", *listed):
            result = _run_git(folder, "rev-parse", "--verify", "--quiet", f"{candidate}^{{tree}}")
            if result.returncode == 0:
                return result.stdout.strip()
        # If other snapshots of the episode are here, only this one is missing, and another host does not help.
        if _run_git(folder, "for-each-ref", "--count=1", f"refs/tightloop/{episode_id}").stdout.strip():
            raise InvalidRequestError(
                f"{episode_id} has no checkpoint ckpt-{number} in {folder}. "
                f"List checkpoints with: tightloop checkpoints {episode_id} --all"
            )
    raise WorkspaceError(
        f"cannot find the snapshots of {episode_id} for {workspace} in {folder} on this host "
        f"({socket.gethostname()}). Run this command on the workspace's host, as the user who runs the worker"
    )


def _git(folder: Path, *arguments: str) -> str:
    result = _run_git(folder, *arguments)
    if result.returncode != 0:
        raise GitError(f"git {arguments[0]} failed in {folder}: {result.stderr.strip()}")
    return result.stdout


def _run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # An inherited GIT_DIR or GIT_INDEX_FILE would redirect git to another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    program = find_trusted_program("git")
    if program is None:
        raise GitError("git is not installed. Install it, for example: apt install git")
    # PATH may lead into a workspace, where a run could have replaced git.
    program.refuse_within()
    try:
        return subprocess.run(
            program.command("--no-pager", f"--git-dir={folder}", *arguments),
            cwd=folder,
            env={**environment, "PATH": trusted_path()},
            capture_output=True,
            text=True,
            # File contents need not be UTF-8.
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} took longer than {GIT_TIMEOUT_S} s in {folder}") from error
