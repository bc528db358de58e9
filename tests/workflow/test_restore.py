"""State and files go back together: by our update, by a reset in Temporal, and into a fork."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.support.doubles import ScriptedPlanner, planned
from tests.support.episodes import APPEND, Working, eventually, scripted
from tests.support.git_sample import stored
from tightloop.client import TightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.model import EpisodeOutcome
from tightloop.errors import InvalidRequestError
from tightloop.host import state_folder
from tightloop.run.question import QuestionKind
from worker.server import temporal_binary

TWO_LINES = "test $(cat log.txt | wc -l) -ge 2"
SHELL_EDIT = {"run": ["sh", "-c", "printf 'edited %s\\n' {n} > shell.txt; rm -f gone-{n}.txt; touch new-{n}.txt"]}


def files_of(folder: Path) -> dict[str, bytes]:
    """All files that a snapshot covers, byte for byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


async def paused_after(client: TightloopClient, episode_id: str, iterations: int) -> None:
    async def waits() -> bool:
        status = await client.status(episode_id)
        return status.questions and status.iteration >= iterations

    await eventually(waits)


async def reset_to(temporal: WorkflowEnvironment, episode_id: str, checkpoint: CheckpointRecord) -> None:
    """A plain reset with the Temporal CLI, as an engineer does it."""
    where = ["--address", temporal.client.service_client.config.target_host, "-w", episode_id, "-r", checkpoint.run_id]
    what = ["-e", str(checkpoint.event_id), "--reason", "look again", "--reapply-exclude", "All"]
    command = [str(temporal_binary()), "workflow", "reset", *where, *what]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=60)


@pytest.fixture
def seen(workspace: Path) -> dict[int, dict[str, bytes]]:
    """What the files were when the planner was asked for iteration n, hence at checkpoint n-1."""
    return {}


@pytest.fixture
def planner(workspace: Path, seen) -> ScriptedPlanner:
    def look(briefing):
        seen.setdefault(briefing.iteration, files_of(workspace))
        return planned(f"step {briefing.iteration}")

    return ScriptedPlanner(look)


def five_iterations(request_for):
    return request_for(
        definition_of_done=["test -f never"],
        executor=scripted({**APPEND, **SHELL_EDIT}),
        budget=Budget(max_iterations=5),
        pause_after=50,
    )


async def test_restore_brings_state_and_files_back(
    client, working: Working, request_for, workspace, planner, seen
) -> None:
    async with working(planner):
        episode_id = await client.start(five_iterations(request_for))
        await paused_after(client, episode_id, 5)
        assert files_of(workspace) != seen[3]
        answer = await client.restore(episode_id, "ckpt-2", reason="wrong turn")

        async def is_back() -> bool:
            status = await client.status(episode_id)
            return status.branch == 2 and status.questions

        await eventually(is_back)
        assert files_of(workspace) == seen[3]
        status = await client.status(episode_id)
        checkpoints = await client.checkpoints(episode_id)
        timeline = await client.timeline(episode_id)
        await client.top_up(episode_id, iterations=1)
        await paused_after(client, episode_id, 6)
        after = await client.checkpoints(episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert "ckpt-2" in answer
    assert status.questions
    assert status.questions[0].kind is QuestionKind.BUDGET
    assert [record.id for record in checkpoints if record.discarded] == ["ckpt-3", "ckpt-4", "ckpt-5"]
    assert any("wrong turn" in entry.text for entry in timeline if entry.kind == "restored")
    assert planner.briefings[-1].reflection is not None
    assert "wrong turn" in planner.briefings[-1].reflection.diagnosis
    assert after[-1].id == "ckpt-6"
    assert after[-1].parent == "ckpt-2"
    assert after[-1].branch == 2
    assert (workspace / "log.txt").read_text() == "1\n2\n6\n"


async def test_a_reset_in_temporal_brings_the_files_back_too(
    client, temporal, working: Working, request_for, workspace, planner, seen
) -> None:
    async with working(planner):
        episode_id = await client.start(five_iterations(request_for))
        await paused_after(client, episode_id, 5)
        second = (await client.checkpoints(episode_id))[2]
        await reset_to(temporal, episode_id, second)

        async def has_gone_on() -> bool:
            status = await client.status(episode_id)
            return status.branch == 2 and status.questions and status.iteration == 5

        await eventually(has_gone_on)
        checkpoints = await client.checkpoints(episode_id)
        timeline = await client.timeline(episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    reset = next(entry for entry in timeline if entry.kind == "reset")
    assert "3 checkpoints discarded" in reset.text
    assert (workspace / "log.txt").read_text() == "1\n2\n3\n4\n5\n"
    assert [record.id for record in checkpoints if record.discarded] == ["ckpt-3", "ckpt-4", "ckpt-5"]
    assert [record.id for record in checkpoints if not record.discarded] == [
        "ckpt-0", "ckpt-1", "ckpt-2", "ckpt-6", "ckpt-7", "ckpt-8",
    ]  # fmt: skip
    at_reset = [briefing for briefing in planner.briefings if briefing.iteration == 3][1]
    assert at_reset.reflection is not None
    assert "reset in Temporal" in at_reset.reflection.diagnosis


async def test_a_reset_restores_the_tree_before_anything_else(
    client, temporal, working: Working, request_for, workspace, seen
) -> None:
    """The planner of the reset run sees the files of the checkpoint, byte for byte."""
    looks: list[dict[str, bytes]] = []

    def look(briefing):
        if briefing.iteration == 3:
            looks.append(files_of(workspace))
        return planned()

    async with working(ScriptedPlanner(look)):
        episode_id = await client.start(five_iterations(request_for))
        await paused_after(client, episode_id, 5)
        second = (await client.checkpoints(episode_id))[2]
        await reset_to(temporal, episode_id, second)

        async def again() -> bool:
            return len(looks) == 2

        await eventually(again)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert looks[0] == looks[1]


async def test_an_unknown_checkpoint_is_refused_with_the_known_ones(client, working: Working, request_for) -> None:
    async with working():
        episode_id = await client.start(request_for(budget=Budget(max_iterations=1)))
        await paused_after(client, episode_id, 1)
        with pytest.raises(InvalidRequestError, match=r"no checkpoint 'ckpt-9'. Known checkpoints: ckpt-0, ckpt-1"):
            await client.restore(episode_id, "ckpt-9")
        await client.cancel(episode_id)
        await client.result(episode_id)


async def test_a_closed_episode_is_restored_as_a_new_run(client, working: Working, request_for, workspace) -> None:
    async with working():
        episode_id = await client.start(request_for())
        await client.result(episode_id)
        await client.restore(episode_id, "ckpt-1", reason="do it differently")
        result = await client.result(episode_id)
        checkpoints = await client.checkpoints(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "log.txt").read_text().startswith("1\n")
    assert len((workspace / "log.txt").read_text().splitlines()) == 3
    assert checkpoints[-1].branch == 2
    assert result.iterations == 5, "what was spent before the restore still counts"
    assert [record.id for record in checkpoints if record.discarded] == ["ckpt-2", "ckpt-3", "ckpt-4"]


async def test_the_very_first_checkpoint_can_be_restored(client, working: Working, request_for, workspace) -> None:
    planner = ScriptedPlanner()
    async with working(planner):
        episode_id = await client.start(request_for())
        await client.result(episode_id)
        await client.restore(episode_id, "ckpt-0")
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert planner.briefings[3].checks is not None, "a checkpoint without results is checked first"
    assert (workspace / "log.txt").read_text() == "4\n5\n6\n"


async def test_a_fork_starts_from_a_checkpoint_in_its_own_worktree(client, working, request_for, workspace) -> None:
    async with working():
        episode_id = await client.start(request_for())
        await client.result(episode_id)
        fork_id = await client.fork(episode_id, "ckpt-1")
        result = await client.result(fork_id)
    folder = state_folder(workspace) / "worktrees" / fork_id
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (folder / "log.txt").read_text().startswith("1\n")
    assert (workspace / "log.txt").read_text() == "1\n2\n3\n"


async def test_resume_with_a_checkpoint_goes_back_on_the_way_out_of_a_pause(
    client, working: Working, request_for, workspace
) -> None:
    async with working():
        episode_id = await client.start(request_for(budget=Budget(max_iterations=2)))
        await paused_after(client, episode_id, 2)
        await client.resume(episode_id, checkpoint_id="ckpt-1")

        async def is_back() -> bool:
            return (await client.status(episode_id)).branch == 2 and (workspace / "log.txt").read_text() == "1\n"

        await eventually(is_back)
        checkpoints = await client.checkpoints(episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert [record.id for record in checkpoints if record.discarded] == ["ckpt-2"]


async def test_restore_stops_a_running_executor_first(client, working: Working, request_for, workspace) -> None:
    steps = (APPEND, {**APPEND, "hang": True}, APPEND, APPEND)
    async with working():
        episode_id = await client.start(request_for(executor=scripted(*steps, repeat=False)))

        async def hangs() -> bool:
            status = await client.status(episode_id)
            return status.iteration == 2 and status.phase.value == "EXECUTING"

        await eventually(hangs)
        await client.restore(episode_id, "ckpt-1")
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "log.txt").read_text() == "1\n3\n4\n"


async def reset_and_paused(client: TightloopClient, temporal: WorkflowEnvironment, working: Working, request) -> str:
    """Return an episode that was reset to its first checkpoint, and paused, before any worker saw either."""
    async with working():
        episode_id = await client.start(request)
        await client.result(episode_id)
        first = (await client.checkpoints(episode_id))[1]
    await reset_to(temporal, episode_id, first)
    await client.pause(episode_id)
    return episode_id


async def test_a_reset_of_a_closed_episode_holds_the_workspace_again(client, temporal, working, request_for) -> None:
    episode_id = await reset_and_paused(client, temporal, working, request_for())
    async with working():
        await paused_after(client, episode_id, 1)
        other = await client.result(await client.start(request_for()))
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert other.outcome is EpisodeOutcome.FAILED
    assert episode_id in other.reason


async def test_a_pause_that_comes_with_a_reset_waits_for_the_files_to_be_put_back(
    client, temporal, working, request_for, workspace
) -> None:
    episode_id = await reset_and_paused(client, temporal, working, request_for())
    async with working():
        await paused_after(client, episode_id, 1)
        at_pause = (workspace / "log.txt").read_text()
        (workspace / "mine.txt").write_text("by a person\n")
        await client.resume(episode_id)
        result = await client.result(episode_id)
        timeline = await client.timeline(episode_id)
    assert at_pause == "1\n"
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "log.txt").read_text() == "1\n2\n3\n"
    assert (workspace / "mine.txt").read_text() == "by a person\n"
    assert [entry.text for entry in timeline if entry.kind == "resumed"] == [
        "edits to 1 file during the pause were kept"
    ]


async def test_a_reset_that_finds_the_workspace_taken_puts_its_files_back_once_it_is_free(
    client, temporal, working: Working, request_for, workspace
) -> None:
    async with working():
        episode_id = await client.start(request_for())
        await client.result(episode_id)
        first = (await client.checkpoints(episode_id))[1]
        other = await client.start(request_for(definition_of_done=["false"], budget=Budget(max_iterations=1)))
        await paused_after(client, other, 1)
        await reset_to(temporal, episode_id, first)
        await paused_after(client, episode_id, 1)
        reason = (await client.status(episode_id)).questions[0].title
        await client.cancel(other)
        await client.result(other)
        left_behind = (workspace / "log.txt").read_text()
        await client.resume(episode_id)
        result = await client.result(episode_id)
    assert other in reason
    assert left_behind == "1\n2\n3\n1\n"
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "log.txt").read_text() == "1\n2\n3\n"


async def test_an_amendment_made_in_a_pause_survives_a_restore(client, working: Working, request_for) -> None:
    planner = ScriptedPlanner()
    async with working(planner):
        episode_id = await client.start(request_for(budget=Budget(max_iterations=2), definition_of_done=["false"]))
        await paused_after(client, episode_id, 2)
        await client.amend(episode_id, goal="something else", definition_of_done=[TWO_LINES])
        await client.top_up(episode_id, iterations=3)
        await client.restore(episode_id, "ckpt-1")
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert planner.briefings[-1].goal == "something else"


async def test_a_fork_has_numbers_of_its_own(client, working: Working, request_for) -> None:
    async with working():
        episode_id = await client.start(request_for())
        await client.result(episode_id)
        fork_id = await client.fork(episode_id, "ckpt-2")
        await client.result(fork_id)
        checkpoints = await client.checkpoints(fork_id)
        original = await client.checkpoints(episode_id)
    assert [record.id for record in checkpoints] == ["ckpt-0", "ckpt-1", "ckpt-2"]
    assert checkpoints[1].tree == original[2].tree
    assert checkpoints[2].parent == "ckpt-1"


async def test_a_raised_budget_survives_the_end_of_the_episode(client, working: Working, request_for) -> None:
    async with working():
        episode_id = await client.start(request_for(budget=Budget(max_iterations=2), definition_of_done=["false"]))
        await paused_after(client, episode_id, 2)
        await client.pause(episode_id)
        await client.top_up(episode_id, iterations=1)
        await client.cancel(episode_id)
        await client.result(episode_id)
        await client.restore(episode_id, "ckpt-1")
        await paused_after(client, episode_id, 3)
        status = await client.status(episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert status.budget.max_iterations == 3
    assert status.spent.iterations == 3


async def test_edits_of_a_pause_are_kept_aside_when_it_ends_with_a_restore(client, working, request_for, workspace):
    async with working():
        episode_id = await client.start(request_for(budget=Budget(max_iterations=2)))
        await paused_after(client, episode_id, 2)
        (workspace / "mine.txt").write_text("by a person\n")
        await client.restore(episode_id, "ckpt-1")

        async def is_back() -> bool:
            status = await client.status(episode_id)
            return status.branch == 2 and status.questions

        await eventually(is_back)
        timeline = await client.timeline(episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    saved = next(entry.text for entry in timeline if entry.kind == "saved")
    tree = saved.rsplit(" ", 1)[1]
    assert stored(workspace, "show", f"refs/tightloop/{episode_id}/drift-{tree}:mine.txt") == b"by a person\n"


@pytest.mark.parametrize("activity", ["next_plan", "hand_off", "execute", "verify", "track_iteration"])
async def test_a_reset_before_any_step_blames_nobody_for_what_the_discarded_future_left(
    client, temporal, temporal_client, working: Working, request_for, workspace, activity
) -> None:
    async with working():
        episode_id = await client.start(five_iterations(request_for))
        await paused_after(client, episode_id, 5)
        events = (await temporal_client.get_workflow_handle(episode_id).fetch_history()).events
        scheduled = [
            event.activity_task_scheduled_event_attributes
            for event in events
            if event.HasField("activity_task_scheduled_event_attributes")
        ]
        third = [each for each in scheduled if each.activity_type.name == activity][2]
        run = (await client.checkpoints(episode_id))[2].run_id
        event = third.workflow_task_completed_event_id
        at = CheckpointRecord(id="ckpt-x", iteration=0, tree="", event_id=event, run_id=run)
        await reset_to(temporal, episode_id, at)

        async def has_gone_on() -> bool:
            status = await client.status(episode_id)
            return status.branch == 2 and status.questions

        await eventually(has_gone_on)
        timeline = await client.timeline(episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert not [entry for entry in timeline if entry.kind == "drift"]
    assert (workspace / "log.txt").read_text() == "1\n2\n3\n4\n5\n"
