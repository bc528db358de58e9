"""What an episode costs in Temporal: events, bytes, runs."""

from itertools import pairwise

from temporalio.api.enums.v1 import TaskQueueKind
from temporalio.client import WorkflowHistory

from tests.support.doubles import ScriptedPlanner, planned
from tests.support.episodes import APPEND, Working, scripted
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.errors import PlannerUnavailableError

EVENTS_PER_ITERATION = 32
BYTES_PER_ITERATION = 14_500


def lost_tasks(history: WorkflowHistory) -> set[int]:
    """Return the events of workflow tasks that nobody took in time: a busy machine has more of them."""
    found: set[int] = set()
    for event in history.events:
        if event.HasField("workflow_task_timed_out_event_attributes"):
            lost = event.workflow_task_timed_out_event_attributes
            found |= {event.event_id, lost.scheduled_event_id, lost.started_event_id}
    return found


async def test_an_iteration_fits_its_share_of_the_history(client, temporal_client, working: Working, request_for):
    lines = 12
    async with working():
        episode_id = await client.start(
            request_for(
                # Failures that get fewer are progress, so that no reflection comes between.
                definition_of_done=[
                    f"n=$(cat log.txt | wc -l); echo $(({lines} - n)) failed in 0.1s; test $n -ge {lines}"
                ],
            )
        )
        result = await client.result(episode_id)
        history = await temporal_client.get_workflow_handle(episode_id).fetch_history()
    assert result.iterations == lines
    starts = [
        index
        for index, event in enumerate(history.events)
        if event.activity_task_scheduled_event_attributes.activity_type.name == "next_plan"
    ]
    # From one plan to the next is one iteration; the last ones are the longest, as lists have filled.
    again = lost_tasks(history)
    spans = [[event for event in history.events[a:b] if event.event_id not in again] for a, b in pairwise(starts)]
    events = [len(span) for span in spans]
    sizes = [sum(event.ByteSize() for event in span) for span in spans]
    print(
        f"\nper iteration: at most {max(events)} events and {max(sizes)} bytes, {sum(sizes) // len(sizes)} on average"
    )
    assert max(events) <= EVENTS_PER_ITERATION
    assert max(sizes) <= BYTES_PER_ITERATION


async def test_long_episodes_continue_as_new_and_forget_nothing(
    client, temporal_client, working, request_for, workspace
):
    async with working():
        episode_id = await client.start(
            request_for(
                definition_of_done=["test $(cat log.txt | wc -l) -ge 12"],
                pause_after=50,
                iterations_per_run=5,
                executor=scripted(APPEND),
                budget=Budget(max_iterations=20, warn_at_iteration=None),
            )
        )
        result = await client.result(episode_id)
        status = await client.status(episode_id)
        checkpoints = await client.checkpoints(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert result.iterations == 12
    assert status.runs == 3
    assert [record.id for record in checkpoints] == [f"ckpt-{n}" for n in range(13)]
    assert len({record.run_id for record in checkpoints}) == 3
    assert (workspace / "log.txt").read_text() == "".join(f"{n}\n" for n in range(1, 13))


async def test_any_worker_may_go_on_after_an_activity_that_was_tried_again(
    client, temporal_client, working: Working, request_for
):
    asked: list[int] = []

    def busy_at_first(briefing: Briefing) -> PlannerAnswer:
        asked.append(briefing.iteration)
        if len(asked) == 1:
            raise PlannerUnavailableError("busy")
        return planned()

    async with working(ScriptedPlanner(busy_at_first)):
        episode_id = await client.start(request_for())
        await client.result(episode_id)
        events = (await temporal_client.get_workflow_handle(episode_id).fetch_history()).events
    [again] = [event.event_id for event in events if event.activity_task_started_event_attributes.attempt == 2]
    tasks = [event for event in events if event.HasField("workflow_task_scheduled_event_attributes")]
    kinds = [
        event.workflow_task_scheduled_event_attributes.task_queue.kind for event in tasks if event.event_id > again
    ]
    assert kinds[0] == TaskQueueKind.TASK_QUEUE_KIND_NORMAL
    assert TaskQueueKind.TASK_QUEUE_KIND_STICKY in kinds, "the others go to the cache of a worker"
