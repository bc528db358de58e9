"""Checkpoints of a plan: the tree under a name that keeps it alive."""

import re

from activities.plan.attempts.contract import fail_step
from activities.plan.port import RunnerResult, Work
from tightloop.plan.document.action import CheckpointAction

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class CheckpointRunner:
    """Keeps the tree as `refs/tightloop/<plan>/<name>`."""

    def preview(self, work: Work) -> str:
        """Name the reference."""
        return f"keep the tree as refs/tightloop/{work.scope.episode_id}/{_name(work)}"

    def run(self, work: Work) -> RunnerResult:
        """Snapshot the tree and keep it; again under the same name moves the name."""
        name = _name(work)
        if not _NAME.fullmatch(name):
            return fail_step(
                f"{name!r} is not a valid checkpoint name: use letters, digits, '-' and '_', 100 characters or fewer"
            )
        if work.tree is None:
            return fail_step("a checkpoint needs the tree: leave out 'access', or set it to 'writes'")
        tree = work.tree.snapshot()
        work.tree.keep(name, tree)
        reference = f"refs/tightloop/{work.scope.episode_id}/{name}"
        return RunnerResult(
            outputs={"name": name, "tree": tree, "reference": reference},
            command=f"keep {tree} as {reference}",
            summary=f"kept {tree[:12]} as {name}",
        )


def _name(work: Work) -> str:
    asked = str(work.resolve(work.action(CheckpointAction).name))
    return asked or re.sub(r"[^A-Za-z0-9_-]", "-", work.step.id)
