"""`tightloop gc`: what closed episodes left on this host goes, what an open or kept one needs stays."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.artifacts.stores import open_local_store
from activities.tracking.retention import KnownWorkflow, choose, collect
from activities.workspace.ownership import tree_lock
from tests.support.episodes import Working, eventually
from tests.support.leftovers import aged, last_active, trees
from tests.support.temporal_server import own_client, own_server
from tightloop.cli.host.commands import read_days
from tightloop.client import TightloopClient
from tightloop.database.ledger import open_project
from tightloop.episode.budget import Budget
from tightloop.episode.model import CheckpointFile, EpisodeOutcome
from tightloop.errors import InvalidRequestError
from tightloop.host import state_folder
from tightloop.run.question import QuestionKind
from worker.connect import known_workflows
from worker.retention import merged_runs

temporal, temporal_client = own_server, own_client

NOW = datetime(2026, 11, 1, tzinfo=UTC)
DAY = timedelta(days=1)


async def test_a_closed_episode_is_freed_and_an_open_one_keeps_all_it_needs(
    client: TightloopClient, temporal_client, working: Working, request_for, workspace
) -> None:
    folder = state_folder(workspace)

    async def waits(key: str) -> bool:
        return bool((await client.status(key)).questions)

    async with working():
        old = await client.start(request_for())
        assert (await client.result(old)).outcome is EpisodeOutcome.SUCCEEDED
        kept = await client.start(
            request_for(definition_of_done=["test -f never"], budget=Budget(max_iterations=2), pause_after=9)
        )
        await eventually(lambda: waits(kept))
        known = merged_runs(await known_workflows(temporal_client))
        # As if the first had ended 40 days ago, and the second had begun right after.
        ended = datetime.now(UTC) - 40 * DAY
        known |= {old: KnownWorkflow(old, ended - DAY, ended)}
        known |= {kept: KnownWorkflow(kept, datetime.now(UTC) - DAY, None)}
        last_active(folder, old, ended)
        aged(folder, 50)
        planned = collect(folder, known, older_than=30 * DAY, dry_run=True)
        assert trees(folder) == {old, kept}
        freed = collect(folder, known, older_than=30 * DAY, dry_run=False)
        again = collect(folder, known, older_than=30 * DAY, dry_run=False)
        with pytest.raises(InvalidRequestError, match="no checkpoint 'ckpt-9'"):
            await client.restore(kept, "ckpt-9")
        assert [q.kind for q in (await client.status(kept)).questions] == [QuestionKind.BUDGET]
        await client.restore(kept, "ckpt-1")

        async def went_back() -> bool:
            return (await client.status(kept)).branch == 2 and await waits(kept)

        await eventually(went_back)
        await client.cancel(kept)
        await client.result(kept)
        # The one that was freed says so.
        await client.restore(old, "ckpt-1")
        await eventually(lambda: waits(old))
        told = (await client.status(old)).questions[0].title
        await client.cancel(old)
        await client.result(old)
    assert planned.episodes == (old,)
    assert freed == planned
    assert freed.artifacts > 5
    assert freed.references > 2
    assert freed.rows > 3
    assert freed.size_bytes > 0
    assert (again.episodes, again.artifacts, again.references) == ((), 0, 0)
    assert f"tightloop gc deleted the checkpoints of {old} at " in told
    store = open_local_store(workspace)
    for record in open_project(workspace).checkpoints(kept):
        assert record.state is not None
        state = CheckpointFile.model_validate_json(store.get(record.state)).state
        for reference in (state.request, state.plan, state.plan_request, state.checks, state.beginning):
            if reference is not None:
                store.get(reference)


async def test_trees_that_somebody_holds_are_left_for_a_later_run(
    client: TightloopClient, working: Working, request_for, workspace
) -> None:
    folder = state_folder(workspace)
    async with working():
        episode_id = await client.start(request_for())
        await client.result(episode_id)
    known = {episode_id: KnownWorkflow(episode_id, NOW - 500 * DAY, NOW - 400 * DAY)}
    last_active(folder, episode_id, NOW - 400 * DAY)
    with tree_lock(folder, workspace):
        busy = collect(folder, known, older_than=30 * DAY, dry_run=False)
        assert trees(folder) == {episode_id}
    free = collect(folder, known, older_than=30 * DAY, dry_run=False)
    assert busy.busy == "a working tree is in use. A later run will free it"
    assert busy.rows == 0
    assert (free.episodes, free.busy, trees(folder)) == ((episode_id,), "", set())


ENDS = st.none() | st.integers(0, 100)


@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 100), ENDS)))
def test_nothing_is_freed_that_ended_after_a_kept_one_began(days: dict[str, tuple[int, int | None]]) -> None:
    known = {
        key: KnownWorkflow(key, NOW - max(start, end or 0) * DAY, None if end is None else NOW - end * DAY)
        for key, (start, end) in days.items()
    }
    active = {key: each.closed or NOW for key, each in known.items()}
    gone, horizon = choose(active, known, frozenset(), NOW - 30 * DAY)
    assert horizon <= NOW - 30 * DAY
    for key, each in known.items():
        if key in gone:
            assert each.closed is not None
            assert each.closed < horizon
        else:
            assert each.started >= horizon


def test_an_episode_that_temporal_forgot_is_open_while_it_holds_a_workspace() -> None:
    active = {"held": NOW - 90 * DAY, "left": NOW - 90 * DAY, "young": NOW - DAY}
    gone, _ = choose(active, {}, frozenset({"held"}), NOW - 30 * DAY)
    assert gone == {"left"}


def test_what_a_person_keeps_stays_with_what_it_started() -> None:
    active = dict.fromkeys(("plan", "plan.step.1", "plan-2", "other"), NOW - 90 * DAY)
    gone, _ = choose(active, {}, frozenset(), NOW - 30 * DAY, frozenset({"plan"}))
    assert gone == {"plan-2", "other"}


def test_a_time_that_is_none_is_refused() -> None:
    assert (read_days("30d"), read_days("12h")) == (30, 0.5)
    with pytest.raises(
        InvalidRequestError, match=r"--older-than 'a month' is not a valid duration\. Use days or hours"
    ):
        read_days("a month")
