"""Where a run of a plan began and what it left: what the next run of the same plan goes back to."""

from collections.abc import Iterable

from activities.plan.records.file_records import FileRecords
from activities.plan.requests import PlanScope
from tightloop.plan.result import StepRecord
from tightloop.value import Value

RERUN_BASE = "rerun-base"


class RerunBase(Value):
    """What a run of a plan began with and left; empty where it never looked, or where a person edited between."""

    base_tree: str
    tree: str


def save_rerun_base(records: FileRecords, scope: PlanScope, tree: str) -> None:
    """Note what a run leaves, if its own steps alone made that: nobody's edits are taken back by a re-run."""
    alone = is_made_by_steps(scope.base_tree, records.of_this_run(scope.episode_id), tree)
    left = RerunBase(base_tree=scope.base_tree, tree=tree) if alone else RerunBase(base_tree="", tree="")
    records.keep(scope.episode_id, RERUN_BASE, left)


def is_made_by_steps(base: str, records: Iterable[StepRecord], tree: str) -> bool:
    """Return whether every tree that a step found was the first one or one that a step had left."""
    known = {base}
    for record in records:
        if record.tree_before and record.tree_before not in known:
            return False
        if record.tree_after:
            known.add(record.tree_after)
    return tree in known
