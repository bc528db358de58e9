"""Channels of alerts against real HTTP and real programs, and the activity's memory in a real ledger."""

import json
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.alerts.activity import AlertActivities, AlertDelivery, AlertsSent, NotDeliveredError, SendAlertsRequest
from activities.alerts.channels import Desktop, SentAlerts, Webhook, make_alert_delivery
from activities.workspace.folders import state_folder_of
from activities.workspace.scope import EpisodeScope
from tests.support.alert_receiver import SECRET, Answer, Receiver, receiving
from tightloop.database.ledger import open_project
from tightloop.host import state_folder
from tightloop.ledger.alert import Alert, AlertKind, notice_of
from tightloop.settings import Settings, parse_settings

ALERT = Alert(
    key="0123456789abcdef" * 2,
    kind=AlertKind.FATAL,
    episode_id="episode-1",
    at=datetime.now(UTC),
    iteration=2,
    checks="1/3",
    reason="the executor cannot work: no key",
    goal="secret plans",
    options=("retry", "cancel"),
)
NOTICE = notice_of(ALERT)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def hook(receiver: Receiver, **options: Any) -> Webhook:
    return Webhook("ops", receiver.url, SECRET, **options)


async def refusal(channel: Webhook | Desktop) -> NotDeliveredError:
    with pytest.raises(NotDeliveredError) as refused:
        await channel.deliver(NOTICE)
    return refused.value


# -- the webhook --------------------------------------------------------------------------------


async def test_a_webhook_gets_signed_json_with_an_id_that_stays(receiver: Receiver) -> None:
    await hook(receiver).deliver(NOTICE)
    await hook(receiver).deliver(NOTICE)
    assert all(came.genuine for came in receiver.came)
    assert [came.headers["webhook-id"] for came in receiver.came] == [ALERT.key, ALERT.key]
    assert receiver.came[0].headers["content-type"] == "application/json"
    assert receiver.came[0].told["commands"][0] == "tightloop answer episode-1 retry"
    assert b"secret plans" not in receiver.came[0].body
    assert b"no key" not in receiver.came[0].body


async def test_a_changed_body_does_not_pass_for_a_genuine_one(receiver: Receiver) -> None:
    await hook(receiver).deliver(NOTICE)
    await Webhook("ops", receiver.url, "another secret").deliver(NOTICE)
    came, other = receiver.came
    assert came.genuine
    assert not type(came)(came.path, came.headers, came.body + b" ", came.at).genuine
    assert not other.genuine


async def test_a_webhook_without_a_secret_is_not_signed(receiver: Receiver) -> None:
    await Webhook("chat", receiver.url, "").deliver(NOTICE)
    assert "webhook-signature" not in receiver.came[0].headers
    assert "Episode episode-1 cannot continue and is waiting" in receiver.came[0].told["text"]


async def test_a_receiver_that_is_down_may_be_tried_again() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        error = await refusal(Webhook("ops", f"http://127.0.0.1:{port}/hook/T0PSECRET", SECRET))
    assert error.retryable
    assert error.reason == "cannot be reached (ConnectError)"


async def test_a_slow_receiver_is_left_after_the_time_for_a_try(receiver: Receiver) -> None:
    receiver.answers = [Answer(hang_s=20)]
    error = await refusal(hook(receiver, timeout_s=0.3))
    assert error.retryable
    assert error.reason == "no response within 0.3 s"


@pytest.mark.parametrize("status", [500, 502, 503, 408, 429])
async def test_a_receiver_in_trouble_may_be_tried_again(receiver: Receiver, status: int) -> None:
    receiver.answers = [Answer(status)]
    error = await refusal(hook(receiver))
    assert (error.retryable, error.retry_delay, error.reason) == (True, None, f"the receiver returned {status}")


@pytest.mark.parametrize("status", [400, 401, 404, 410])
async def test_a_receiver_that_refuses_is_not_asked_again(receiver: Receiver, status: int) -> None:
    receiver.answers = [Answer(status, {"retry-after": "5"})]
    error = await refusal(hook(receiver))
    assert (error.retryable, error.retry_delay) == (False, None)


@pytest.mark.parametrize(
    ("said", "wait"),
    [
        ("7", timedelta(seconds=7)),
        ("86400", timedelta(minutes=5)),
        ("0", timedelta()),
        ("9" * 400, None),
        ("-5", None),
        ("soon", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", timedelta()),
    ],
)
async def test_the_wait_that_a_receiver_asks_for_is_kept_within_bounds(
    receiver: Receiver, said: str, wait: timedelta | None
) -> None:
    receiver.answers = [Answer(429, {"retry-after": said})]
    assert (await refusal(hook(receiver))).retry_delay == wait


async def test_a_wait_until_a_date_is_understood(receiver: Receiver) -> None:
    date = datetime.now(UTC) + timedelta(seconds=240)
    receiver.answers = [Answer(503, {"retry-after": format_datetime(date, usegmt=True)})]
    after = (await refusal(hook(receiver))).retry_delay
    assert after is not None
    assert timedelta(seconds=180) < after <= timedelta(seconds=240)


async def test_an_alert_never_follows_a_redirect_to_another_host(receiver: Receiver) -> None:
    with receiving() as elsewhere:
        for status in (301, 302, 303, 307, 308):
            receiver.answers = [Answer(status, {"location": elsewhere.url})]
            error = await refusal(hook(receiver))
            assert not error.retryable
            assert f"the receiver returned {status}, but redirects are not followed" in error.reason
        assert elsewhere.came == []


async def test_a_redirect_on_the_same_host_keeps_method_and_signature(receiver: Receiver) -> None:
    receiver.answers = [Answer(308, {"location": "/v2/alerts"}), Answer()]
    await hook(receiver).deliver(NOTICE)
    assert [came.path for came in receiver.came] == ["/alerts", "/v2/alerts"]
    assert receiver.came[1].genuine


async def test_a_receiver_that_sends_in_circles_is_left(receiver: Receiver) -> None:
    receiver.answers = [Answer(307, {"location": "/alerts"})]
    error = await refusal(hook(receiver))
    assert (error.retryable, error.reason) == (False, "more than 3 redirects")
    assert len(receiver.came) == 4


# -- the desktop --------------------------------------------------------------------------------


def program(folder: Path, name: str, *, code: int = 0) -> dict[str, str]:
    """A program of this name that leaves its arguments, and an environment with a session that finds it."""
    path = folder / name
    path.write_text(
        f'#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done > {folder}/said\necho no bus >&2\nexit {code}\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:/usr/bin:/bin", "DISPLAY": ":0"}


async def test_the_linux_desktop_gets_title_and_text_as_plain_text(tmp_path: Path) -> None:
    environ = program(tmp_path, "notify-send")
    odd = notice_of(ALERT.evolve(episode_id="<b>-x & y"))
    await Desktop("desk", environ, platform="linux").deliver(odd)
    *options, mark, title, text = (tmp_path / "said").read_text().split("\0")[:-1]
    assert "--urgency=critical" in options
    assert (mark, title) == ("--", "tightloop: fatal")
    assert text.startswith("Episode &lt;b&gt;-x &amp; y cannot continue and is waiting")


async def test_the_mac_desktop_gets_texts_as_arguments_and_not_as_script(tmp_path: Path) -> None:
    environ = program(tmp_path, "osascript")
    odd = notice_of(ALERT.evolve(episode_id='" & (do shell script "id") & "'))
    await Desktop("desk", environ, platform="darwin").deliver(odd)
    words = (tmp_path / "said").read_text().split("\0")[:-1]
    script = words[: words.index("tightloop: fatal")]
    assert not any("shell script" in line for line in script)
    assert "do shell script" in words[-1]


async def test_a_host_without_a_desktop_says_what_is_missing(tmp_path: Path) -> None:
    absent = Desktop("desk", {"PATH": str(tmp_path / "empty"), "DISPLAY": ":0"}, platform="linux")
    headless = Desktop("desk", {**program(tmp_path, "notify-send"), "DISPLAY": ""}, platform="linux")
    assert "Install the package libnotify-bin" in absent.probe()
    assert "not running in a desktop session" in headless.probe()
    error = await refusal(headless)
    assert (error.retryable, error.reason) == (False, headless.probe())


async def test_a_desktop_program_that_fails_is_told_with_its_words(tmp_path: Path) -> None:
    error = await refusal(Desktop("desk", program(tmp_path, "notify-send", code=3), platform="linux"))
    assert error.reason == "notify-send failed (3): no bus"


# -- the activity, its retries and its memory -----------------------------------------------------


@pytest.fixture
def scope(workspace: Path) -> EpisodeScope:
    state_folder(workspace).mkdir(parents=True)
    return EpisodeScope(episode_id="episode-1", workspace=str(workspace))


def settings_with(receiver: Receiver, channels: str = "") -> Settings:
    one = f"ops: {{type: webhook, url: '{receiver.url}', secret_env: HOOK_SECRET}}"
    return parse_settings(f"alerts: {{channels: {{{channels or one}}}}}", {})


async def send(
    post: AlertDelivery, scope: EpisodeScope, alert: Alert = ALERT, *, beats: list[Any] | None = None, **info: Any
) -> AlertsSent:
    """Run the activity once, as a worker does; a new object each time, as after a restart."""
    activities = AlertActivities(post, SentAlerts(open_project))
    environment = ActivityEnvironment()
    now = datetime.now(UTC)
    environment.info = replace(
        environment.info, **{"scheduled_time": now, "schedule_to_close_timeout": timedelta(minutes=15), **info}
    )
    environment.on_heartbeat = lambda *details: (beats if beats is not None else []).append(details)
    sent: AlertsSent = await environment.run(activities.send_alerts, SendAlertsRequest(scope=scope, alert=alert))
    return sent


async def test_a_cause_is_told_once_and_a_new_cause_again(receiver: Receiver, scope: EpisodeScope) -> None:
    post = make_alert_delivery(settings_with(receiver), {"HOOK_SECRET": SECRET})
    first = await send(post, scope)
    again = await send(post, scope, workflow_run_id="the run after it")
    assert len(receiver.came) == 1
    assert (first.deliveries[0].known, again.deliveries[0].known) == (False, True)
    await send(post, scope, ALERT.evolve(key="f" * 32))
    assert [came.told["id"] for came in receiver.came] == [ALERT.key, "f" * 32]


async def test_the_trail_tells_when_it_was_delivered(receiver: Receiver, scope: EpisodeScope) -> None:
    post = make_alert_delivery(settings_with(receiver), {"HOOK_SECRET": SECRET})
    late = ALERT.evolve(at=datetime.now(UTC) - timedelta(seconds=3))
    sent = await send(post, scope, late)
    (event,) = open_project(Path(scope.workspace)).events("episode-1")
    assert event.kind == "alert"
    assert event.at == sent.deliveries[0].at
    seconds = sent.deliveries[0].seconds
    assert 3 <= seconds < 60
    assert event.text.startswith(f"fatal alert sent to channel ops after {seconds:.2f} s")


async def test_another_try_leaves_out_what_was_delivered_or_refused_for_good(
    receiver: Receiver, scope: EpisodeScope
) -> None:
    with receiving() as busy, receiving() as gone:
        busy.answers = [Answer(429, {"retry-after": "9"}), Answer()]
        gone.answers = [Answer(410)]
        channels = ", ".join(
            f"{name}: {{type: webhook, url: '{one.url}'}}" for name, one in (("a", receiver), ("b", busy), ("c", gone))
        )
        post = make_alert_delivery(settings_with(receiver, channels), {})
        beats: list[Any] = []
        with pytest.raises(ApplicationError) as later:
            await send(post, scope, beats=beats)
        assert later.value.next_retry_delay == timedelta(seconds=9)
        assert not later.value.non_retryable
        details = json.loads(json.dumps(beats[-1]))
        sent = await send(post, scope, attempt=2, heartbeat_details=details)
        counts = [len(one.came) for one in (receiver, busy, gone)]
    assert counts == [1, 2, 1]
    assert [(one.channel, one.at is not None, one.tries) for one in sent.deliveries] == [
        ("a", True, 1),
        ("b", True, 2),
        ("c", False, 1),
    ]
    assert {event.kind for event in open_project(Path(scope.workspace)).events("episode-1")} == {
        "alert",
        "alert_failed",
    }


@pytest.mark.parametrize(
    "info",
    [
        {"attempt": 8, "retry_policy": RetryPolicy(maximum_attempts=8)},
        {"scheduled_time": datetime.now(UTC) - timedelta(minutes=15)},
    ],
)
async def test_the_last_try_tells_that_it_failed_in_place_of_asking_for_another(
    receiver: Receiver, scope: EpisodeScope, info: dict[str, Any]
) -> None:
    receiver.answers = [Answer(503)]
    sent = await send(make_alert_delivery(settings_with(receiver), {"HOOK_SECRET": SECRET}), scope, **info)
    assert (sent.deliveries[0].at, sent.deliveries[0].error) == (None, "the receiver returned 503")
    (event,) = open_project(Path(scope.workspace)).events("episode-1")
    assert event.kind == "alert_failed"


async def test_a_channel_gets_only_the_kinds_it_is_for(receiver: Receiver, scope: EpisodeScope) -> None:
    post = make_alert_delivery(
        settings_with(receiver, f"a: {{type: webhook, url: '{receiver.url}', kinds: [deviation]}}"), {}
    )
    sent = await send(post, scope)
    assert (receiver.came, sent.deliveries) == ([], ())
    await send(post, scope, ALERT.evolve(kind=AlertKind.DEVIATION))
    assert len(receiver.came) == 1


async def test_a_missing_secret_is_told_and_nothing_goes_out_unsigned(receiver: Receiver, scope: EpisodeScope) -> None:
    sent = await send(make_alert_delivery(settings_with(receiver), {}), scope)
    assert receiver.came == []
    assert "the environment variable HOOK_SECRET is not set" in sent.deliveries[0].error


async def test_a_full_alert_holds_the_reason_only_where_the_settings_say_so(
    receiver: Receiver, scope: EpisodeScope
) -> None:
    settings = settings_with(receiver)
    full = settings.evolve(privacy=settings.privacy.evolve(alerts="full"))
    await send(make_alert_delivery(full, {"HOOK_SECRET": SECRET}), scope)
    assert receiver.came[0].told["reason"] == "the executor cannot work: no key"
    assert receiver.came[0].told["goal"] == "secret plans"


async def test_a_damaged_ledger_keeps_no_alert_back(
    receiver: Receiver, scope: EpisodeScope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "state"))
    state_folder_of(scope).mkdir(parents=True)
    (tmp_path / "state" / "ledger.db").write_bytes(b"not a database, but long enough to be taken for one" * 100)
    sent = await send(make_alert_delivery(settings_with(receiver), {"HOOK_SECRET": SECRET}), scope)
    assert len(receiver.came) == 1
    assert sent.deliveries[0].at is not None


async def test_a_workspace_that_was_never_opened_is_left_alone(receiver: Receiver, tmp_path: Path) -> None:
    nowhere = EpisodeScope(episode_id="episode-1", workspace=str(tmp_path / "nowhere"))
    await send(make_alert_delivery(settings_with(receiver), {"HOOK_SECRET": SECRET}), nowhere)
    assert len(receiver.came) == 1
    assert not (tmp_path / "nowhere").exists()
