"""How many tasks a worker runs at the same time."""

from temporalio.worker import (
    FixedSizeSlotSupplier,
    ResourceBasedSlotConfig,
    ResourceBasedSlotSupplier,
    ResourceBasedTunerConfig,
    WorkerTuner,
)

from tightloop.settings import WorkerSettings

TASKS = 100
"""Slots of local activities and Nexus: the SDK's own number."""
WORKFLOW_TASKS = 5
"""Slots of workflow tasks, of which Python runs one at a time. With the SDK's 100, tasks of 500 open workflows slowed
each other down beyond the 10 s that Temporal allows for one, and were done again. A local activity keeps its slot."""


def tuner_of(settings: WorkerSettings, slots: int) -> WorkerTuner:
    """Return the slots of one task queue: fixed, or for activities as memory and processors allow.

    Args:
        settings: `target_memory` and `target_cpu` are the shares of this host up to which activities are taken.
        slots: of activities; with targets the most. One slot, as at a screen, stays one.
    """
    fixed, workflows = FixedSizeSlotSupplier(TASKS), FixedSizeSlotSupplier(WORKFLOW_TASKS)
    activities: FixedSizeSlotSupplier | ResourceBasedSlotSupplier = FixedSizeSlotSupplier(slots)
    if settings.is_tuned and slots > 1:
        activities = ResourceBasedSlotSupplier(
            ResourceBasedSlotConfig(minimum_slots=1, maximum_slots=slots),
            ResourceBasedTunerConfig(
                target_memory_usage=settings.target_memory or 1.0, target_cpu_usage=settings.target_cpu or 1.0
            ),
        )
    return WorkerTuner.create_composite(
        workflow_supplier=workflows, activity_supplier=activities, local_activity_supplier=fixed, nexus_supplier=fixed
    )
