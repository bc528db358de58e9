"""A person edits files while a step that writes or a check runs: what is undone with it can be brought back."""

import subprocess
from pathlib import Path

import pytest

from tests.support.episodes import Working, eventually
from tests.workflow.test_drift import asked, ended
from tightloop.cli.views import end_lines
from tightloop.client import RunStatus, TightloopClient
from tightloop.episode.check import Check
from tightloop.episode.model import EpisodeRequest
from tightloop.executor.model import ExecutorChoice
from tightloop.plan.request import PlanRequest
from tightloop.run.question import QuestionKind

PICTURE = bytes(range(256)) * 8
NOTES = b"mine\r\nno line break at the end"
FAILS = 'id: p\non_failure: fail\nsteps:\n  - {id: write, shell: {run: "echo half > log.txt; sleep 3; exit 7"}}\n'


async def edit_while(workspace: Path, file: str) -> None:
    """Edit once a step has left its first trace."""

    async def is_there() -> bool:
        return (workspace / file).exists()

    await eventually(is_there)
    with (workspace / "app.py").open("a") as app:
        app.write("# by a person\n")
    (workspace / "docs").mkdir(exist_ok=True)
    (workspace / "docs" / "my notes.txt").write_bytes(NOTES)
    (workspace / "picture.bin").write_bytes(PICTURE)
    (workspace / "picture.bin").chmod(0o755)


def bring_back(told: list[str], workspace: Path, *, whole: bool = True) -> None:
    """Run the last command that was printed, from somewhere else, and look at every byte of the person's files."""
    command = [line for line in told if "restore the changes" in line][-1].partition("restore the changes: ")[2]
    assert not (workspace / "picture.bin").exists()
    subprocess.run(command, shell=True, check=whole, timeout=60, cwd="/")
    assert (workspace / "app.py").read_text().endswith("# by a person\n")
    assert (workspace / "docs" / "my notes.txt").read_bytes() == NOTES
    assert (workspace / "picture.bin").read_bytes() == PICTURE
    assert (workspace / "picture.bin").stat().st_mode & 0o100


def names_all(status: RunStatus, step: str) -> None:
    told = "\n".join(end_lines(status))
    assert f"changes made while {step} was running were undone together with it (" in told
    assert all(name in told for name in ("app.py", "docs/my notes.txt", "picture.bin", "log.txt")), told


async def test_edits_during_a_step_that_fails_are_named_with_the_command_that_brings_them_back(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=FAILS))
        await edit_while(workspace, "log.txt")
        status = await ended(client, plan_id)
        timeline = [event.text for event in await client.timeline(plan_id)]
    assert status.status == "failed"
    assert not (workspace / "log.txt").exists(), "what the failed step wrote is undone"
    names_all(status, "write")
    bring_back(timeline, workspace)
    assert (workspace / "log.txt").read_text() == "half\n"


async def test_edits_come_back_where_the_next_attempt_has_changed_the_same_file_as_the_first(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    source = FAILS.replace("on_failure: fail\n", "").replace("exit 7", "test -e again || exit 7")
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        await edit_while(workspace, "log.txt")
        await asked(client, plan_id, QuestionKind.FAILED_STEP)
        (workspace / "again").touch()
        await client.answer(plan_id, "retry")
        status = await ended(client, plan_id)
    assert status.status == "completed"
    names_all(status, "write")
    bring_back(end_lines(status), workspace, whole=False)
    assert (workspace / "log.txt").read_text() == "half\n"


async def test_edits_during_a_step_that_is_cancelled_are_named(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    async with working():
        source = FAILS.replace("sleep 3", "sleep 60")
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        await edit_while(workspace, "log.txt")
        await client.cancel(plan_id)
        status = await ended(client, plan_id)
    assert status.status == "cancelled"
    names_all(status, "write")
    bring_back(end_lines(status), workspace)


async def test_edits_during_a_step_that_its_watchdog_ends_are_named(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    dog = "watchdog: {after_s: 3, escalate: cancel}, retry: {attempts: 1}"
    async with working():
        source = FAILS.replace("sleep 3", "sleep 60").replace("id: write,", f"id: write, {dog},")
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        await edit_while(workspace, "log.txt")
        status = await ended(client, plan_id)
    assert "the watchdog stopped the attempt after 3 s" in status.reason
    names_all(status, "write")
    bring_back(end_lines(status), workspace)


async def test_edits_during_a_step_that_is_taken_back_later_are_named(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    source = (
        'id: p\non_failure: compensate\nsteps:\n  - {id: write, shell: {run: "echo half > log.txt; sleep 3"}}\n'
        '  - {id: fails, needs: [write], shell: {run: "exit 3"}, access: reads}\n'
    )
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        await edit_while(workspace, "log.txt")
        status = await ended(client, plan_id)
    assert status.status == "compensated"
    names_all(status, "write")
    bring_back(end_lines(status), workspace)


async def test_edits_during_a_step_that_completes_stay(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    async with working():
        source = FAILS.replace("; exit 7", "")
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        await edit_while(workspace, "log.txt")
        status = await ended(client, plan_id)
    assert status.status == "completed"
    assert (workspace / "picture.bin").read_bytes() == PICTURE
    assert not status.drifts


async def test_edits_of_the_same_files_during_two_runs_of_the_checks_can_both_be_brought_back(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    source = (
        'id: p\nsteps:\n  - {id: one, shell: {run: "echo one > log.txt"}}\n'
        'definition_of_done: ["test -e log.txt && date +%N > trace.txt && sleep 3 && test -e go"]\n'
    )
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        for version in ("first", "second"):

            async def is_checking() -> bool:
                return (workspace / "trace.txt").exists()

            await eventually(is_checking)
            (workspace / "mine.txt").write_text(version)
            await asked(client, plan_id, QuestionKind.UNMET)
            (drift,) = (await client.status(plan_id)).drifts
            assert drift.paths == ("mine.txt", "trace.txt")
            assert not (workspace / "mine.txt").exists()
            subprocess.run(drift.bring_back, shell=True, check=True, timeout=60)
            assert (workspace / "mine.txt").read_text() == version
            (workspace / "mine.txt").unlink()
            (workspace / "trace.txt").unlink()
            if version == "first":
                await client.answer(plan_id, "retry")
        timeline = [event.text for event in await client.timeline(plan_id)]
        await client.cancel(plan_id)
        await ended(client, plan_id)
    assert sum("changes made while checks were running" in line for line in timeline) == 1


async def test_what_each_attempt_of_a_step_leaves_alike_is_told_once(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    source = (
        "id: p\non_failure: fail\nsteps:\n  - id: write\n    run: python3 -c \"open('log.txt', 'w')\"; exit 75\n"
        "    failure_modes: [{name: busy, failure_class: transient, recover: retry}]\n"
        "    retry: {attempts: 3, initial_s: 0}\n"
    )
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        status = await ended(client, plan_id)
        timeline = [event.text for event in await client.timeline(plan_id)]
    assert status.status == "failed"
    assert timeline.count("write: transient: busy: exit code 75") == 3, timeline
    assert sum("changes made while write was running" in line for line in timeline) == 1, timeline
    assert [drift.paths for drift in status.drifts] == [("log.txt",)]


@pytest.mark.parametrize(
    "act",
    [
        "edit: {files: [{path: log.txt, content: made}]}, expect: ['${outputs.changed} == 9']",
        "shell: {run: 'echo half > log.txt; exit 7'}",
        "edit: {files: [{path: log.txt, content: made}]}",
    ],
)
async def test_files_that_a_step_is_known_to_have_written_itself_are_nobody_elses_edits(
    client: TightloopClient, working: Working, workspace: Path, act: str
) -> None:
    source = f"id: p\non_failure: compensate\nsteps:\n  - {{id: write, {act}}}\n"
    source += "  - {id: end, needs: [write], run: exit 1}\n"
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        status = await ended(client, plan_id)
        timeline = [event.text for event in await client.timeline(plan_id)]
    assert status.status in ("failed", "compensated")
    assert not (workspace / "log.txt").exists()
    told = "\n".join([*end_lines(status), *timeline])
    assert "undone together with it" not in told


async def test_question_about_a_proof_names_the_edit_that_only_the_checks_have_seen(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    check = "test -f made.txt && touch checking.txt && sleep 4 && grep -q 'by a person' app.py"
    request = EpisodeRequest(
        goal="Make it",
        workspace=str(workspace),
        definition_of_done=(Check(run=check),),
        executor=ExecutorChoice(name="command", options={"argv": ["sh", "-c", "echo made > made.txt"]}),
    )
    async with working():
        episode_id = await client.start(request)
        await edit_while(workspace, "checking.txt")
        question = await asked(client, episode_id, QuestionKind.PROOF)
    assert "fails in a fresh checkout" in question.title
    assert any("undone" in line and "app.py" in line for line in question.evidence), question.evidence
