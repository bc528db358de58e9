"""The episode on a real Temporal server, with a scripted planner and a scripted executor."""

from datetime import timedelta
from pathlib import Path

import pytest

from activities.workspace.working_tree import Workspaces
from tests.support.doubles import QuotaExecutor, ScriptedPlanner, claims_done, gives_up, malformed, planned
from tests.support.episodes import APPEND, TRIES, Git, Working, eventually, scripted
from tests.support.git_sample import stored
from tightloop.client import TightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome, EpisodeStatus
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import LimitHit, Usage
from tightloop.host import state_folder
from tightloop.run.question import QuestionKind
from tightloop.settings import WorkspaceSettings


async def paused(client: TightloopClient, episode_id: str) -> EpisodeStatus:
    async def is_paused() -> EpisodeStatus | None:
        status = await client.status(episode_id)
        return status if status.questions else None

    found: EpisodeStatus = await eventually(is_paused)
    return found


async def test_episode_runs_until_the_checks_are_green(client, working: Working, request_for, workspace: Path) -> None:
    async with working():
        episode_id = await client.start(request_for())
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "log.txt").read_text() == "1\n2\n3\n"
    assert result.iterations == 3
    assert result.checks == "1/1"


async def test_every_iteration_leaves_a_checkpoint(client, working: Working, request_for) -> None:
    async with working():
        episode_id = await client.start(request_for())
        await client.result(episode_id)
        checkpoints = await client.checkpoints(episode_id)
    assert [record.id for record in checkpoints] == ["ckpt-0", "ckpt-1", "ckpt-2", "ckpt-3"]
    assert [record.parent for record in checkpoints] == [None, "ckpt-0", "ckpt-1", "ckpt-2"]
    assert len({record.tree for record in checkpoints}) == 4
    assert all(record.event_id for record in checkpoints)


async def test_green_checks_at_the_start_need_a_claim(client, working: Working, request_for, workspace: Path) -> None:
    """A goal whose checks pass from the start is not met before the planner says so."""
    planner = ScriptedPlanner(lambda briefing: planned("once") if briefing.iteration == 1 else claims_done())
    async with working(planner):
        episode_id = await client.start(request_for(definition_of_done=["true"]))
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert result.iterations == 2
    assert (workspace / "log.txt").read_text() == "1\n"


async def test_a_claim_without_green_checks_never_counts(client, working: Working, request_for) -> None:
    async with working(ScriptedPlanner(lambda _briefing: claims_done())):
        episode_id = await client.start(request_for())
        status = await paused(client, episode_id)
        await client.cancel(episode_id)
        result = await client.result(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.REPEATED_ERROR
    assert result.outcome is EpisodeOutcome.CANCELLED


async def test_checks_do_not_change_the_delivered_tree(client, working: Working, request_for, workspace: Path) -> None:
    async with working():
        episode_id = await client.start(
            request_for(definition_of_done=["echo junk > junk.txt; test $(cat log.txt | wc -l) -ge 1"])
        )
        result = await client.result(episode_id)
        last = (await client.checkpoints(episode_id))[-1]
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert not (workspace / "junk.txt").exists()
    assert last.tree == result.tree


async def test_a_definition_of_done_that_never_passes_pauses_for_a_person(client, working, request_for) -> None:
    async with working():
        episode_id = await client.start(request_for(definition_of_done=["echo nope; false"], executor=scripted(TRIES)))
        status = await paused(client, episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.REPEATED_ERROR
    # As many as the limit.
    assert "4 times without progress" in status.questions[0].title
    assert status.questions[0].options


async def test_the_budget_pauses_and_a_top_up_goes_on(client, working: Working, request_for) -> None:
    async with working():
        episode_id = await client.start(request_for(budget=Budget(max_iterations=2)))
        status = await paused(client, episode_id)
        answer = await client.top_up(episode_id, iterations=3)
        result = await client.result(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.BUDGET
    assert "iterations 2 of 2" in status.questions[0].title
    assert "raised" in answer
    assert result.outcome is EpisodeOutcome.SUCCEEDED


async def test_the_circuit_breaker_asks_the_planner_to_converge(client, working: Working, request_for) -> None:
    planner = ScriptedPlanner()
    async with working(planner):
        episode_id = await client.start(request_for(budget=Budget(max_iterations=5, warn_at_iteration=2)))
        await client.result(episode_id)
    warned = [any("Wrap up" in note for note in briefing.notes) for briefing in planner.briefings]
    assert warned == [False, True, True]


async def test_a_planner_that_gives_up_is_asked_again_after_a_response(client, working: Working, request_for) -> None:
    planner = ScriptedPlanner(lambda briefing: planned() if any("append" in n for n in briefing.notes) else gives_up())
    async with working(planner):
        episode_id = await client.start(request_for(definition_of_done=["test -f log.txt"]))
        status = await paused(client, episode_id)
        answer = await client.respond(episode_id, "append a line")
        result = await client.result(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.PLANNER_GAVE_UP
    assert status.questions[0].title == "I do not know how"
    assert "continues" in answer
    assert result.outcome is EpisodeOutcome.SUCCEEDED


async def test_what_a_person_fixes_in_a_pause_is_checked_before_anyone_plans(
    client, working: Working, request_for, workspace: Path
) -> None:
    async with working(ScriptedPlanner(lambda _briefing: gives_up())):
        episode_id = await client.start(request_for(definition_of_done=["test -f fixed.txt"]))
        await paused(client, episode_id)
        (workspace / "fixed.txt").write_text("by hand\n")
        await client.resume(episode_id)
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "fixed.txt").read_text() == "by hand\n"


async def test_four_unusable_answers_of_the_planner_pause(client, working: Working, request_for) -> None:
    async with working(ScriptedPlanner(lambda _briefing: malformed())):
        episode_id = await client.start(request_for())
        status = await paused(client, episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.REPEATED_ERROR
    assert status.iteration == 4


async def test_a_limit_backs_off_and_continues_the_same_iteration(client, working, request_for, workspace) -> None:
    async with working():
        step = {**APPEND, "limit_tries": 2, "retry_after_s": 0.1, "evidence": "429"}
        episode_id = await client.start(request_for(executor=scripted(step)))
        result = await client.result(episode_id)
        kinds = [entry.kind for entry in await client.timeline(episode_id)]
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert result.iterations == 3
    assert kinds.count("limit") == 6
    assert (workspace / "log.txt").read_text() == "1\n2\n3\n"


async def test_as_many_limits_in_a_row_as_are_allowed_pause_and_resume_delivers_again(
    client, working, request_for
) -> None:
    async with working():
        step = {**APPEND, "limit_tries": 3, "retry_after_s": 0.05, "evidence": "429 Too Many Requests"}
        executor = scripted(step).evolve(retries=3)
        episode_id = await client.start(request_for(executor=executor, definition_of_done=["test -f log.txt"]))
        status = await paused(client, episode_id)
        await client.resume(episode_id)
        result = await client.result(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.LIMIT
    assert "429 Too Many Requests" in status.questions[0].title
    assert result.outcome is EpisodeOutcome.SUCCEEDED


async def test_a_fatal_executor_error_pauses(client, working: Working, request_for) -> None:
    async with working():
        step = {"status": "fatal", "error": "nobody has a key"}
        episode_id = await client.start(request_for(executor=scripted(step)))
        status = await paused(client, episode_id)
        await client.cancel(episode_id, "no executor")
        result = await client.result(episode_id)
    assert status.questions
    assert status.questions[0].kind is QuestionKind.FATAL
    assert "nobody" in status.questions[0].title
    assert result.reason == "no executor"


async def test_usage_is_added_up_and_unknown_is_not_zero(client, working: Working, request_for) -> None:
    usages = [Usage(input_tokens=100, output_tokens=10), Usage(), Usage(input_tokens=50, output_tokens=5)]
    planner = ScriptedPlanner(lambda briefing: planned(usage=usages[briefing.iteration - 1]))
    async with working(planner):
        episode_id = await client.start(request_for())
        result = await client.result(episode_id)
    assert result.spent.tokens == 165
    assert result.spent.unreported_calls == 1


async def test_edits_during_a_pause_survive(client, working: Working, request_for, workspace: Path) -> None:
    async with working():
        episode_id = await client.start(request_for(budget=Budget(max_iterations=1)))
        await paused(client, episode_id)
        (workspace / "mine.txt").write_text("by a person\n")
        await client.top_up(episode_id, iterations=5)
        result = await client.result(episode_id)
        timeline = await client.timeline(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "mine.txt").read_text() == "by a person\n"
    assert any("edits to 1 file during the pause were kept" in entry.text for entry in timeline)


async def test_edits_outside_a_pause_are_undone_where_settings_say_so(client, working, request_for, workspace) -> None:
    def meddle(briefing):
        if briefing.iteration == 2:
            (workspace / "stray.txt").write_text("stray\n")
        return planned()

    async with working(ScriptedPlanner(meddle), workspaces=Workspaces(settings=WorkspaceSettings(drift="undo"))):
        episode_id = await client.start(request_for())
        await client.result(episode_id)
        timeline = await client.timeline(episode_id)
        [drift] = (await client.status(episode_id)).drifts
    assert not (workspace / "stray.txt").exists()
    assert any(entry.kind == "drift" and "stray.txt" in entry.text for entry in timeline)
    assert stored(workspace, "show", f"refs/tightloop/{episode_id}/drift-{drift.tree[:12]}:stray.txt") == b"stray\n"


async def test_an_amended_definition_of_done_is_used(client, working: Working, request_for) -> None:
    async with working():
        episode_id = await client.start(request_for(budget=Budget(max_iterations=1)))
        await paused(client, episode_id)
        await client.amend(episode_id, goal="one line is enough", definition_of_done=["test -f log.txt"])
        await client.top_up(episode_id, iterations=5)
        result = await client.result(episode_id)
        request = await client.request(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert result.iterations == 2
    assert request.goal == "one line is enough"


async def test_nobody_answering_ends_the_episode_as_failed(client, working: Working, request_for) -> None:
    async with working():
        episode_id = await client.start(
            request_for(budget=Budget(max_iterations=1), pause_timeout=timedelta(seconds=1))
        )
        result = await client.result(episode_id)
        status = await client.status(episode_id)
    assert result.outcome is EpisodeOutcome.FAILED
    assert "nobody answered" in result.reason
    assert status.status == "failed"


async def test_cancel_stops_a_running_executor(client, working: Working, request_for, workspace: Path) -> None:
    async with working():
        episode_id = await client.start(request_for(executor=scripted({**APPEND, "hang": True})))

        async def executing() -> bool:
            return (await client.status(episode_id)).phase.value == "EXECUTING" and (workspace / "log.txt").exists()

        await eventually(executing)
        await client.cancel(episode_id, "enough")
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.CANCELLED
    assert result.reason == "enough"


async def test_two_episodes_do_not_share_a_working_tree(client, working: Working, request_for) -> None:
    async with working():
        first = await client.start(request_for(budget=Budget(max_iterations=1)))
        await paused(client, first)
        second = await client.start(request_for())
        refused = await client.result(second)
        await client.cancel(first)
        await client.result(first)
        third = await client.start(request_for())
        accepted = await client.result(third)
    assert refused.outcome is EpisodeOutcome.FAILED
    assert first in refused.reason
    assert accepted.outcome is EpisodeOutcome.SUCCEEDED


async def test_a_worktree_leaves_the_workspace_alone(client, working: Working, request_for, workspace: Path) -> None:
    async with working():
        episode_id = await client.start(request_for(worktree=True))
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert not (workspace / "log.txt").exists()
    assert (state_folder(workspace) / "worktrees" / episode_id / "log.txt").read_text() == "1\n2\n3\n"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"goal": "  "}, "the goal is empty"),
        ({"definition_of_done": [" "]}, "a check has no command"),
        ({"workspace": "relative/path"}, "not an absolute path"),
    ],
)
async def test_a_bad_request_is_refused_with_a_sentence(client, request_for, change, sentence) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        await client.start(request_for(**change))


async def test_a_bad_request_from_the_web_ui_fails_instead_of_hanging(
    client, temporal_client, settings, working: Working
) -> None:
    async with working():
        handle = await temporal_client.start_workflow(
            "EpisodeWorkflow",
            {"goal": 5},
            id=f"bad-{settings.temporal.task_queue}",
            task_queue=settings.temporal.task_queue,
        )
        result = await client.result(handle.id)
    assert result.outcome is EpisodeOutcome.FAILED
    assert "goal" in result.reason
    assert "input: {" in result.reason


async def test_a_workspace_that_is_no_repository_fails_with_what_to_do(client, working, request_for, tmp_path) -> None:
    (tmp_path / "plain").mkdir()
    async with working():
        episode_id = await client.start(request_for(workspace=str(tmp_path / "plain")))
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.FAILED
    assert "git init" in result.reason


async def test_a_start_without_checks_uses_those_of_the_project_and_says_so(
    client, request_for, working: Working, workspace: Path, git: Git
) -> None:
    (workspace / "Makefile").write_text("test:\n\ttest ! -e log.txt || test -s log.txt\n")
    (workspace / ".github" / "workflows").mkdir(parents=True)
    ci = "on: push\njobs: {t: {runs-on: ubuntu-latest, steps: [{run: make test}, {run: twine upload dist/*}]}}"
    (workspace / ".github" / "workflows" / "ci.yml").write_text(ci)
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "Test")
    async with working(ScriptedPlanner(lambda briefing: planned() if briefing.iteration == 1 else claims_done())):
        episode_id = await client.start(request_for(definition_of_done=[]))
        result = await client.result(episode_id)
        status = await client.status(episode_id)
        events = await client.timeline(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "log.txt").exists()
    assert status.chosen_checks[0].startswith("Checks from .github/workflows/ci.yml: make test (under 1 s, passes).")
    sentences = [event.text for event in events if event.kind == "checks"]
    assert sentences == list(status.chosen_checks)
    assert "twine upload dist/* (.github/workflows/ci.yml): it publishes." in sentences[1]


async def test_the_checks_of_a_folder_are_found_there_and_given_ones_start_there(
    client, request_for, working: Working, workspace: Path, git: Git
) -> None:
    (workspace / "Makefile").write_text("test:\n\tfalse\n")
    (workspace / "svc").mkdir()
    (workspace / "svc/Makefile").write_text("test:\n\ttest ! -e ../log.txt || test -s ../log.txt\n")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "Add a service")
    async with working(ScriptedPlanner(lambda briefing: planned() if briefing.iteration % 2 else claims_done())):
        for checks, expected in ([], "cd svc && make test"), (["test -e Makefile"], "cd svc && test -e Makefile"):
            episode_id = await client.start(request_for(definition_of_done=checks, folder="svc"))
            assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
            assert [check.run for check in (await client.request(episode_id)).definition_of_done] == [expected]
            (workspace / "log.txt").unlink()
        absent = await client.result(await client.start(request_for(folder="sv")))
    assert (absent.outcome, "the folder 'sv' in " in absent.reason) == (EpisodeOutcome.FAILED, True)
    with pytest.raises(InvalidRequestError, match="is not a path below the root of the working tree"):
        await client.start(request_for(folder="../svc"))


async def test_a_project_without_a_check_fails_and_says_what_to_do(client, request_for, working: Working) -> None:
    async with working():
        episode_id = await client.start(request_for(definition_of_done=[]))
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.FAILED
    assert "Specify one: --done" in result.reason


async def test_a_delivery_that_fails_at_once_is_repeated_and_is_no_iteration(client, working, request_for) -> None:
    async with working():
        broken = scripted({"status": "failed", "error": "first line\nno such model: gpt-9"})
        episode_id = await client.start(request_for(executor=broken.evolve(retries=2)))
        status = await paused(client, episode_id)
        timeline = [entry.text for entry in await client.timeline(episode_id) if entry.kind == "limit"]
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert [text.split(".")[0] for text in timeline] == ["delivery failure 1: next attempt in 10 s"]
    [question] = status.questions
    assert question.kind is QuestionKind.LIMIT
    assert question.title.startswith("2 attempts in a row ended in an error and changed no file: no such model")
    assert question.evidence == ("first line", "no such model: gpt-9")
    assert (status.iteration, status.spent.executor_failures) == (1, 0)
    assert status.spent.wall_time < timedelta(seconds=10), "a wait is no working time"


async def test_failure_with_a_change_and_an_end_without_an_error_count_as_iterations(
    client, working, request_for
) -> None:
    steps = ({**APPEND, "status": "failed", "error": "half done"}, {}, APPEND, APPEND, APPEND)
    async with working():
        episode_id = await client.start(request_for(executor=scripted(*steps, repeat=False)))
        result = await client.result(episode_id)
        kinds = [entry.kind for entry in await client.timeline(episode_id)]
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert kinds.count("limit") == 0
    assert result.iterations == 4


async def test_question_about_a_quota_that_nobody_answers_is_tried_again(client, working, request_for) -> None:
    quota = LimitHit(kind="usage_exhausted", monthly=True, retry_after=timedelta(seconds=2), evidence="monthly quota")
    executor = QuotaExecutor(quota)
    async with working(executors=lambda _name: executor):
        episode_id = await client.start(request_for(executor="quota", definition_of_done=["test -f log.txt"]))
        result = await client.result(episode_id)
        timeline = [(entry.kind, entry.text) for entry in await client.timeline(episode_id)]
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 1)
    assert [kind for kind, _ in timeline if kind in ("paused", "limit")] == ["paused", "limit"]
    assert ("limit", "nobody answered q1, so the run will try again") in timeline
