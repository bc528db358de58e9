"""Moves workflows to another build of the workers: pinned to one while they run, they change as a new run follows."""

from typing import Any, NoReturn

from temporalio import workflow
from temporalio.workflow import ContinueAsNewVersioningBehavior


def is_other_build_wanted() -> bool:
    """Return whether new workflows start on another build than that of this run; never on unversioned workers."""
    return workflow.info().is_target_worker_deployment_version_changed()


def continue_as_new(request: Any) -> NoReturn:
    """Let a new run follow, on the build on which new workflows start."""
    # Without it the new run of a pinned workflow stays on the build of the old one for ever.
    behavior = ContinueAsNewVersioningBehavior.AUTO_UPGRADE if is_other_build_wanted() else None
    workflow.continue_as_new(request, initial_versioning_behavior=behavior)
