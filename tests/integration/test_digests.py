"""The daily digest through real channels: a real ledger, real HTTP, real processes beside each other."""

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest

from activities.alerts.activity import AlertDelivery
from activities.alerts.channels import make_alert_delivery
from activities.workspace.ownership import hold_lock
from tests.support.alert_receiver import SECRET, Answer, Receiver, receiving
from tightloop.database.ledger import open_project
from tightloop.errors import SettingsError, WorkspaceLockedError
from tightloop.host import state_folder, state_home
from tightloop.ledger.model import WorkflowSnapshot
from tightloop.loop.digest import newest_day, owed_days
from tightloop.settings import parse_settings
from worker.ledger.digests import send_digests, send_due

AT = time(7, 30)
NOW = datetime(2026, 11, 25, 8, 0, tzinfo=UTC)
YESTERDAY = date(2026, 11, 24)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    return tmp_path / "shop"


def post(receiver: Receiver, *, privacy: str = "minimal", log: bool = False) -> AlertDelivery:
    channels = f"ops: {{type: webhook, url: '{receiver.url}', secret_env: S}}" + (", log: {type: log}" if log else "")
    text = f"alerts: {{digest: '07:30', channels: {{{channels}}}}}\nprivacy: {{alerts: {privacy}}}"
    return make_alert_delivery(parse_settings(text, {}), {"S": SECRET})


def ended(workspace: Path, episode_id: str, *, days: int = 1, status: str = "succeeded") -> None:
    at = NOW - timedelta(days=days)
    open_project(workspace).record(
        WorkflowSnapshot(
            id=episode_id,
            kind="episode",
            run=1,
            status=status,
            goal="raise the prices",
            started=at,
            at=at,
            closed=at,
            details={"reason": "no key"},
        )
    )


async def test_digest_of_the_day_before_is_sent_once_and_signed(workspace: Path, receiver: Receiver) -> None:
    ended(workspace, "ep-1")
    ended(workspace, "ep-2", status="failed")
    early = await send_due(post(receiver), AT, NOW.replace(hour=7, minute=29))
    before = len(receiver.came)
    for _ in range(3):
        assert await send_due(post(receiver), AT, NOW)
    assert (early, before) == (True, 0), "before the time of day only older days are due"
    [came] = receiver.came
    project = state_folder(workspace).name
    assert came.genuine
    assert (came.told["kind"], came.told["subject"], came.told["project"]) == ("digest", "project", project)
    assert came.told["text"].splitlines() == [
        f"{project}, 2026-11-24 07:30 to 2026-11-25 07:30 UTC",
        "1 to merge, 1 failed; 0 iterations; cost at least $0.00 (not fully reported by ep-1, ep-2)",
        "  merge    ep-1: succeeded",
        "  failed   ep-2: failed",
        f"More: tightloop digest --project {project} --since 2026-11-24T07:30 --until 2026-11-25T07:30",
    ]
    assert "episode_id" not in came.told


async def test_words_are_in_it_only_where_alerts_are_full(
    workspace: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    ended(workspace, "ep-1")
    caplog.set_level(logging.INFO)
    await send_due(post(receiver, privacy="full", log=True), AT, NOW)
    assert '  merge    ep-1 "raise the prices": proven' in receiver.came[0].told["text"]
    assert any("1 to merge" in record.message and record.levelno == logging.INFO for record in caplog.records)


async def test_missed_days_are_sent_oldest_first_and_idle_days_are_not(workspace: Path, receiver: Receiver) -> None:
    ended(workspace, "ep-0", days=5)
    await send_due(post(receiver), AT, NOW - timedelta(days=4))
    ended(workspace, "ep-1", days=3)
    ended(workspace, "ep-2", days=1)
    await send_due(post(receiver), AT, NOW)
    days = [came.told["title"].split()[3] for came in receiver.came]
    assert days == ["2026-11-20", "2026-11-22", "2026-11-24"]
    assert len({came.told["id"] for came in receiver.came}) == 3


async def test_channel_that_is_down_gets_it_later_and_the_other_not_twice(
    workspace: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    ended(workspace, "ep-1")
    caplog.set_level(logging.INFO)
    receiver.answers = [Answer(503), Answer(200)]
    both = post(receiver, log=True)
    assert not await send_due(both, AT, NOW)
    assert await send_due(both, AT, NOW)
    assert [came.told["id"] for came in receiver.came] == [receiver.came[0].told["id"]] * 2
    assert sum("1 to merge" in record.message for record in caplog.records) == 1


async def test_two_workers_of_a_host_send_it_once(workspace: Path, receiver: Receiver) -> None:
    ended(workspace, "ep-1")
    receiver.answers = [Answer(200, hang_s=0.5)]
    first = asyncio.create_task(send_due(post(receiver), AT, NOW))
    while not receiver.came:
        await asyncio.sleep(0.02)
    with pytest.raises(WorkspaceLockedError):
        await send_due(post(receiver), AT, NOW)
    await first
    assert len(receiver.came) == 1


async def test_loop_goes_on_after_a_busy_or_damaged_memory(workspace: Path, receiver: Receiver) -> None:
    at = datetime.now(UTC) - timedelta(days=1)
    open_project(workspace).record(
        WorkflowSnapshot(id="ep-1", kind="episode", run=1, status="succeeded", at=at, started=at, closed=at)
    )
    (state_home() / "digests.json").write_text("{broken")
    with hold_lock(state_home() / "digests.lock", wait=timedelta(), what="it"):
        task = asyncio.create_task(send_digests(post(receiver), time(0, 0), timedelta(milliseconds=50)))
        await asyncio.sleep(0.2)
        assert receiver.came == []
    async with asyncio.timeout(10):
        while not receiver.came:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    task.cancel()
    kept = json.loads((state_home() / "digests.json").read_text())
    assert kept == {state_folder(workspace).name: {"ops": at.date().isoformat()}}
    assert len(receiver.came) == 1


def test_days_that_are_owed() -> None:
    assert newest_day(NOW, AT) == YESTERDAY
    assert newest_day(NOW.replace(hour=0), AT) == YESTERDAY - timedelta(days=1)
    assert owed_days(None, YESTERDAY) == (YESTERDAY,)
    assert owed_days(YESTERDAY, YESTERDAY) == ()
    assert owed_days(YESTERDAY + timedelta(days=3), YESTERDAY) == (), "a clock that was set back"
    assert len(owed_days(date(2020, 1, 1), YESTERDAY)) == 7


def test_digest_is_off_by_default_and_a_time_without_quotes_is_refused() -> None:
    assert parse_settings("", {}).alerts.digest_at is None
    assert parse_settings("alerts: {digest: '07:30'}", {}).alerts.digest_at == AT
    for wrong in ("7:30", "'25:00'", "true"):
        with pytest.raises(SettingsError, match='must be like "07:30", in quotes'):
            parse_settings(f"alerts: {{digest: {wrong}}}", {})
