"""Compares two checkpoints of an episode: the patch, and how probable it is that the work is on course."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from tightloop.client.records.changes import TreeChange, read_number
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.progress.classification import class_of_ratio
from tightloop.episode.progress.tracking import ProbabilityClass, similarity
from tightloop.value import Value

PATCH_CHARACTERS = 200_000
"""A model has to read it."""


class Comparison(Value):
    """What changed between two checkpoints."""

    patch: str = Field(description="Unified diff of the files.")
    probability_class: ProbabilityClass = Field(
        description="HIGH, MEDIUM or LOW: of consecutive checkpoints as the tracker classified the iteration, of "
        "others by the share of the lines that is unchanged, from 0.6 and from 0.4."
    )
    cut: bool = Field(default=False, description="Whether the patch is longer than what is returned.")


def compare(workspace: str, episode_id: str, names: tuple[str, str], records: Sequence[CheckpointRecord]) -> Comparison:
    """Compare two checkpoints.

    Raises:
        InvalidRequestError: there is no such checkpoint.
        WorkspaceError: the snapshots are not on this host.
    """
    numbers = [read_number(episode_id, name) for name in names]
    change = TreeChange(Path(workspace), episode_id, numbers, records)
    by_number = {record.number: record for record in records}
    before, after = (by_number.get(number) for number in numbers)
    found = after.probability_class if after is not None and before is not None and after.parent == before.id else None
    if found is None:
        files = change.files()
        added, removed = sum(one.added or 0 for one in files), sum(one.removed or 0 for one in files)
        # An older checkpoint may not be in the list; what was removed was there at least.
        lines = before.lines if before is not None else removed
        found = class_of_ratio(similarity(lines, added=added, removed=removed))
    patch = change.text()
    return Comparison(patch=patch[:PATCH_CHARACTERS], probability_class=found, cut=len(patch) > PATCH_CHARACTERS)
