"""Checkpoints of a plan: the tree under a name that keeps it alive."""

import re

from activities.plan.contract import failure
from activities.plan.port import Done, Work

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class CheckpointRunner:
    """Keeps the tree as `refs/tightloop/<plan>/<name>`."""

    def preview(self, work: Work) -> str:
        """Name the reference."""
        return f"keep the tree as refs/tightloop/{work.scope.episode_id}/{_name(work)}"

    def run(self, work: Work) -> Done:
        """Snapshot the tree and keep it; again under the same name moves the name."""
        name = _name(work)
        if not _NAME.fullmatch(name):
            return Done(
                failure=failure(
                    f"{name!r} is no name for a checkpoint: write letters, digits, '-' and '_', at most 100"
                )
            )
        if work.tree is None:
            return Done(failure=failure("a checkpoint needs the tree: leave out 'access', or set it to 'writes'"))
        tree = work.tree.snapshot()
        work.tree.keep(name, tree)
        reference = f"refs/tightloop/{work.scope.episode_id}/{name}"
        return Done(
            outputs={"name": name, "tree": tree, "reference": reference},
            command=f"keep {tree} as {reference}",
            summary=f"kept {tree[:12]} as {name}",
        )


def _name(work: Work) -> str:
    action = work.step.checkpoint
    asked = str(work.resolve(action.name)) if action is not None else ""
    return asked or re.sub(r"[^A-Za-z0-9_-]", "-", work.step.id)
