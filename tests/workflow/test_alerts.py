"""Alerts of real episodes: a real Temporal server, workers, ledgers and HTTP."""

import asyncio
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from activities.alerts.activity import AlertActivities, AlertDelivery
from activities.alerts.channels import SentAlerts, make_alert_delivery
from tests.support.alert_receiver import SECRET, Answer, Came, Receiver, receiving
from tests.support.doubles import AskingExecutor, ScriptedPlanner, gives_up
from tests.support.episodes import APPEND, Working, eventually, scripted
from tests.support.extent import part
from tests.support.impatient_workflow import Impatient
from tests.support.plan.doubles import impatient_staffing
from tightloop.client import TightloopClient
from tightloop.database.ledger import open_project
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.run.core import Queues
from tightloop.run.question import QuestionKind
from tightloop.settings import Settings, parse_settings
from worker.build import workflow_runner
from workflows.run.kernel import LAST_ALERT_TIMEOUT

EACH = part(6, of=50)
"""Episodes of each cause; 50 gave the figures of `docs/reference/figures.md`."""
AT_ONCE = 6
NEVER = ["echo nope; false"]
FATAL = scripted({"status": "fatal", "error": "nobody has a key"})
CIRCLING = scripted(*({"write": [{"path": "app.py", "text": f"{word} = 0\n"}]} for word in ("one", "two")))
IDLE = scripted({})
CAUSES: dict[str, dict[str, Any]] = {
    "deviation": {"definition_of_done": NEVER, "executor": CIRCLING},
    "repeated_error": {"definition_of_done": NEVER, "executor": IDLE},
    "fatal": {"executor": FATAL},
}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def post_to(receiver: Receiver, **channel: Any) -> AlertDelivery:
    options = "".join(f", {name}: {value}" for name, value in channel.items())
    settings = parse_settings(
        f"alerts: {{channels: {{ops: {{type: webhook, url: '{receiver.url}', secret_env: S{options}}}}}}}", {}
    )
    return make_alert_delivery(settings, {"S": SECRET})


async def told(receiver: Receiver, episode_id: str, count: int = 1) -> list[Came]:
    async def came() -> list[Came] | None:
        found = receiver.of(episode_id)
        return found if len(found) >= count else None

    found: list[Came] = await eventually(came)
    return found


async def lines(client: TightloopClient, episode_id: str, count: int = 1) -> list[str]:
    """Wait for so many lines about alerts in the timeline."""

    async def there() -> list[str] | None:
        found = [entry.text for entry in await client.timeline(episode_id) if entry.kind == "alert"]
        return found if len(found) >= count else None

    found: list[str] = await eventually(there)
    return found


async def waits(client: TightloopClient, episode_id: str, kind: QuestionKind) -> None:
    async def paused() -> bool:
        return any(question.kind is kind for question in (await client.status(episode_id)).questions)

    await eventually(paused)


async def leaves_with_the_pause(temporal_client: Client, episode_id: str) -> bool:
    """Return whether the workflow task that shows the pause also schedules the alert: nothing lies between them."""
    paused, sent = set(), set()
    async for event in temporal_client.get_workflow_handle(episode_id).fetch_history_events():
        if event.HasField("upsert_workflow_search_attributes_event_attributes"):
            shown = event.upsert_workflow_search_attributes_event_attributes
            if b'"paused"' in shown.search_attributes.indexed_fields["TightloopStatus"].data:
                paused.add(shown.workflow_task_completed_event_id)
        if event.HasField("activity_task_scheduled_event_attributes"):
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name == "send_alerts":
                sent.add(scheduled.workflow_task_completed_event_id)
    return len(paused) == 1 and paused <= sent


async def test_an_alert_leaves_in_the_workflow_task_of_its_pause_and_is_told_once(
    client: TightloopClient, temporal_client, working: Working, request_for, workspace: Path, tmp_path: Path, receiver
) -> None:
    """Episodes of each of the three pause conditions, mixed; how long the alerts took is printed."""
    free = asyncio.Semaphore(AT_ONCE)

    async def episode(number: int, cause: str) -> tuple[str, float]:
        async with free:
            folder = tmp_path / f"project-{number}"
            await asyncio.to_thread(shutil.copytree, workspace, folder)
            episode_id = await client.start(request_for(workspace=str(folder), **CAUSES[cause]))
            [came] = await told(receiver, episode_id, 1)
            [question] = (await client.status(episode_id)).questions
            assert question.since is not None
            assert (question.kind.value, came.told["kind"], came.genuine) == (cause, cause, True)
            assert await leaves_with_the_pause(temporal_client, episode_id), episode_id
            await client.cancel(episode_id)
            await client.result(episode_id)
            return cause, came.at - question.since.timestamp()

    async with working(post=post_to(receiver)):
        mixed = [cause for _ in range(EACH) for cause in CAUSES]
        took = await asyncio.gather(*(episode(number, cause) for number, cause in enumerate(mixed)))
    seconds = sorted(second for _, second in took)
    p95 = seconds[math.ceil(0.95 * len(seconds)) - 1]
    print(f"\nalert at the webhook after the pause, {len(seconds)} episodes: p50 {seconds[len(seconds) // 2]:.3f} s, "
          f"p95 {p95:.3f} s, most {seconds[-1]:.3f} s")  # fmt: skip
    for cause in CAUSES:
        print(f"  {cause}: most {max(second for name, second in took if name == cause):.3f} s")
    assert len(receiver.came) == len(mixed), "each cause sends one alert"


@pytest.mark.parametrize(
    ("kind", "command", "changes", "planner"),
    [
        ("budget", "top-up {} --iterations 5", {"budget": Budget(max_iterations=1)}, None),
        ("planner_gave_up", "answer {} retry", {}, ScriptedPlanner(lambda _: gives_up())),
        ("already_green", "answer {} continue", {"definition_of_done": ["test -f app.py"], "attended": True}, None),
        (
            "limit",
            "answer {} retry",
            {"executor": scripted({"limit_tries": 3, "retry_after_s": 0.01}).evolve(retries=3)},
            None,
        ),
        ("fatal", "answer {} retry", {"executor": FATAL}, None),
    ],
)
async def test_every_pause_that_nobody_asked_for_alerts_with_the_command_that_answers_it(
    client, working: Working, request_for, receiver: Receiver, kind: str, command: str, changes, planner
) -> None:
    async with working(planner, post=post_to(receiver)):
        episode_id = await client.start(request_for(**changes))
        (came,) = await told(receiver, episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert came.genuine
    assert came.told["kind"] == kind
    assert came.told["commands"][0] == "tightloop " + command.format(episode_id)
    assert came.told["link"].endswith(f"/workflows/{episode_id}")


async def test_a_question_alerts_for_each_question_and_an_operators_pause_for_none(
    client, working: Working, request_for, receiver: Receiver
) -> None:
    asking = AskingExecutor()
    episode_id = await client.start(request_for(definition_of_done=["test $(cat log.txt | wc -l) -ge 2"]))
    await client.pause(episode_id, "lunch")
    async with working(post=post_to(receiver), executors=lambda _name: asking):
        await waits(client, episode_id, QuestionKind.OPERATOR)
        await client.resume(episode_id)
        for count in (1, 2):
            await told(receiver, episode_id, count)
            await waits(client, episode_id, QuestionKind.PERMISSION)
            await client.answer(episode_id, "allow")
        result = await client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert [came.told["kind"] for came in receiver.came] == ["permission"] * 2
    assert receiver.came[0].told["commands"][:2] == [
        f"tightloop answer {episode_id} allow",
        f"tightloop answer {episode_id} deny",
    ]


async def test_the_timeline_and_the_trail_tell_when_it_was_delivered(
    client, working: Working, request_for, workspace: Path, receiver: Receiver
) -> None:
    async with working(post=post_to(receiver)):
        episode_id = await client.start(request_for(executor=FATAL))
        (line,) = await lines(client, episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    (event,) = [event for event in open_project(workspace).events(episode_id) if event.kind == "alert"]
    assert line == event.text
    assert re.fullmatch(r"fatal alert sent to channel ops after \d+\.\d\d s", line)
    assert event.at is not None
    assert receiver.came[0].at - 1 < event.at.timestamp() <= time.time()


async def test_a_new_cause_alerts_again_and_a_new_run_alone_does_not(
    client, working: Working, request_for, receiver: Receiver
) -> None:
    """Every iteration is a run of its own: what was told must not be told again by the runs that follow."""
    async with working(post=post_to(receiver)):
        episode_id = await client.start(
            request_for(definition_of_done=NEVER, budget=Budget(max_iterations=2), iterations_per_run=1,
                        pause_after=9)
        )  # fmt: skip
        await told(receiver, episode_id)
        await client.top_up(episode_id, iterations=2)
        first, second = await told(receiver, episode_id, 2)
        status = await client.status(episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert status.runs >= 3
    assert len(receiver.came) == 2
    assert first.told["id"] != second.told["id"]
    assert (first.told["iteration"], second.told["iteration"]) == (2, 4)


async def test_a_restarted_worker_tells_what_is_not_told_and_nothing_twice(
    client, working: Working, request_for, receiver: Receiver
) -> None:
    receiver.answers = [Answer(503, {"retry-after": "5"})]
    async with working(post=post_to(receiver)):
        episode_id = await client.start(request_for(executor=FATAL))
        await told(receiver, episode_id)
    refused = len(receiver.came)
    receiver.answers = [Answer()]
    for _ in range(2):
        async with working(post=post_to(receiver)):
            (line,) = await lines(client, episode_id)
    async with working(post=post_to(receiver)):
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert len(receiver.came) == refused + 1
    assert len({came.headers["webhook-id"] for came in receiver.came}) == 1
    assert f"on attempt {refused + 1}" in line


async def test_a_receiver_that_fails_first_gets_the_same_alert_again(
    client, working: Working, request_for, receiver: Receiver
) -> None:
    receiver.answers = [Answer(500), Answer(200)]
    async with working(post=post_to(receiver)):
        episode_id = await client.start(request_for(executor=FATAL))
        (line,) = await lines(client, episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert line.endswith("on attempt 2")
    one, other = receiver.came
    assert one.headers["webhook-id"] == other.headers["webhook-id"]
    assert one.body == other.body
    assert one.genuine
    assert other.genuine


async def test_the_wait_that_a_receiver_asks_for_is_kept(
    client, working: Working, request_for, receiver: Receiver
) -> None:
    receiver.answers = [Answer(429, {"retry-after": "3"}), Answer(200)]
    async with working(post=post_to(receiver)):
        episode_id = await client.start(request_for(executor=FATAL))
        await lines(client, episode_id)
        await client.cancel(episode_id)
        await client.result(episode_id)
    one, other = receiver.came
    assert other.at - one.at >= 2.9


async def test_a_receiver_that_points_elsewhere_is_told_of_in_the_timeline_and_not_followed(
    client, working: Working, request_for, receiver: Receiver
) -> None:
    with receiving() as elsewhere:
        receiver.answers = [Answer(307, {"location": elsewhere.url})]
        async with working(post=post_to(receiver)):
            episode_id = await client.start(request_for(executor=FATAL))
            (line,) = await lines(client, episode_id)
            await client.cancel(episode_id)
            await client.result(episode_id)
        assert elsewhere.came == []
    assert line.startswith(
        "fatal alert could not be sent to channel ops: the receiver returned 307, but redirects are not followed"
    )


@pytest.mark.parametrize("answer", [Answer(hang_s=600), None], ids=["slow", "down"])
async def test_a_receiver_that_is_slow_or_down_holds_nothing_up(
    client, working: Working, request_for, receiver: Receiver, answer: Answer | None
) -> None:
    post = post_to(receiver, timeout_s=30)
    if answer is None:
        with receiving() as gone:
            post = post_to(gone)
    else:
        receiver.answers = [answer]
    async with working(post=post):
        episode_id = await client.start(request_for(budget=Budget(max_iterations=1)))
        await waits(client, episode_id, QuestionKind.BUDGET)
        await client.top_up(episode_id, iterations=5)
        result = await client.result(episode_id)
        kinds = [entry.kind for entry in await client.timeline(episode_id)]
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert "alert" not in kinds, "it ended while the alert was neither sent nor given up"


async def test_an_episode_that_fails_alerts_before_it_ends(
    client, working: Working, request_for, receiver: Receiver
) -> None:
    async with working(post=post_to(receiver)):
        episode_id = await client.start(request_for(executor=FATAL, pause_timeout=timedelta(seconds=3)))
        result = await client.result(episode_id)
        kinds = [came.told["kind"] for came in receiver.of(episode_id)]
    assert result.outcome is EpisodeOutcome.FAILED
    assert kinds == ["fatal", "failed"]


async def test_an_episode_that_cannot_even_begin_alerts_too(
    client, working: Working, request_for, receiver: Receiver, tmp_path: Path
) -> None:
    async with working(post=post_to(receiver)):
        episode_id = await client.start(request_for(workspace=str(tmp_path / "nowhere")))
        (came,) = await told(receiver, episode_id)
    assert came.told["kind"] == "failed"
    assert str(tmp_path) not in came.body.decode()
    assert not (tmp_path / "nowhere").exists()


async def test_a_failing_episode_waits_only_a_little_for_its_alert(
    client, temporal_client, working: Working, request_for, receiver: Receiver
) -> None:
    receiver.answers = [Answer(503)]
    async with working(post=post_to(receiver, kinds="[failed]")):
        episode_id = await client.start(request_for(executor=FATAL, pause_timeout=timedelta(seconds=1)))
        await told(receiver, episode_id)
        result = await client.result(episode_id)
        history = (await temporal_client.get_workflow_handle(episode_id).fetch_history()).events
    waits = {
        event.event_id: event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
        for event in history
        if event.HasField("timer_started_event_attributes")
    }
    fired = [event for event in history if event.HasField("timer_fired_event_attributes")]
    assert result.outcome is EpisodeOutcome.FAILED
    assert waits[fired[-1].timer_fired_event_attributes.started_event_id] == LAST_ALERT_TIMEOUT


async def test_a_queue_without_a_worker_alerts_that_no_executor_is_connected(
    client: TightloopClient,
    temporal_client: Client,
    settings: Settings,
    working: Working,
    request_for: Callable[..., EpisodeRequest],
    receiver: Receiver,
) -> None:
    queue = f"{settings.temporal.task_queue}-patient"
    impatient = Worker(
        temporal_client, task_queue=queue, workflows=[Impatient], workflow_runner=workflow_runner(),
        activities=[
            AlertActivities(post_to(receiver), SentAlerts(open_project)).send_alerts,
            *impatient_staffing(temporal_client, queue),
        ],
    )  # fmt: skip
    mine = settings.evolve(temporal=settings.temporal.evolve(task_queue=queue))
    everything, nobody = settings.temporal.task_queue, f"{queue}-nobody"
    async with working(post=post_to(receiver)), impatient:
        served = Queues(workspace=everything, llm=everything, executor=nobody)
        choice = scripted(APPEND)
        patient = TightloopClient(temporal_client, mine)
        episode_id = await patient.start(request_for(queues=served, executor=choice))
        at_once, *_ = await told(receiver, episode_id)

        async def paused() -> bool:
            return bool((await patient.status(episode_id)).questions)

        await eventually(paused)
        status = await patient.status(episode_id)
        _, at_the_pause = await told(receiver, episode_id, 2)
        await patient.cancel(episode_id)
        await patient.result(episode_id)
    assert [came.told["kind"] for came in (at_once, at_the_pause)] == ["no_executor"] * 2
    assert nobody not in at_once.body.decode() + at_the_pause.body.decode()
    assert f"no worker on task queue '{nobody}'" in status.questions[0].title


async def test_work_whose_checks_say_the_same_goes_on_and_people_and_planner_are_told_once(
    client: TightloopClient, working: Working, request_for, receiver: Receiver
) -> None:
    work = [{"write": [{"path": f"part_{n}.py", "text": f"def part_{n}():\n    return {n}\n"}]} for n in range(1, 9)]
    planner = ScriptedPlanner()
    async with working(planner, post=post_to(receiver)):
        request = request_for(
            definition_of_done=["echo not yet; test -f part_8.py"], executor=scripted(*work, repeat=False)
        )
        episode_id = await client.start(request)
        assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
        [came] = await told(receiver, episode_id)
        timeline = await client.timeline(episode_id)
    assert (came.told["kind"], came.told["iteration"]) == ("unmoved", 5)
    assert came.told["commands"][0] == f'tightloop respond {episode_id} "message for the planner"'
    assert "paused" not in {line.kind for line in timeline}
    warned = [brief.iteration for brief in planner.briefings if any("no progress" in n for n in brief.notes)]
    assert warned == [6]
