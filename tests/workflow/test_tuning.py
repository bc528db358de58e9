"""A worker whose activities are bounded by the resources of its host."""

from temporalio.worker import FixedSizeSlotSupplier, ResourceBasedSlotSupplier

from tests.support.episodes import Working
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome
from tightloop.settings import Settings, WorkerSettings
from worker.hosting.startup import tuner_of


async def test_an_episode_ends_on_a_worker_that_watches_its_resources(
    working: Working, settings: Settings, client: TightloopClient, request_for
) -> None:
    # The memory of the host is fuller than that: one activity at a time is taken all the same.
    tuned = settings.evolve(worker=settings.worker.evolve(target_memory=0.01, target_cpu=0.9))
    async with working(under=tuned):
        episode_id = await client.start(request_for())
        assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED


def test_a_screen_keeps_its_one_slot_and_slots_are_fixed_without_a_target() -> None:
    tuned, plain = WorkerSettings(target_cpu=0.5), WorkerSettings()
    fixed, most = tuner_of(tuned, 1), tuner_of(tuned, 20)
    assert fixed._get_activity_task_slot_supplier() == FixedSizeSlotSupplier(1)
    assert tuner_of(plain, 20)._get_activity_task_slot_supplier() == FixedSizeSlotSupplier(20)
    supplier = most._get_activity_task_slot_supplier()
    assert isinstance(supplier, ResourceBasedSlotSupplier)
    assert supplier.slot_config.maximum_slots == 20
    assert supplier.tuner_config.target_cpu_usage == 0.5
