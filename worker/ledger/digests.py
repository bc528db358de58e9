"""Daily digests of this host's projects, sent through the alert channels."""

import asyncio
import json
import logging
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from activities.alerts.activity import AlertDelivery, Channel, NotDeliveredError
from activities.workspace.ownership import hold_lock
from tightloop.database.ledger import local_ledger
from tightloop.errors import TightloopError, WorkspaceLockedError
from tightloop.host import state_home
from tightloop.host.access import write_private
from tightloop.ledger.alert import AlertKind
from tightloop.loop.digest import digest_notice, is_worth_telling, newest_day, owed_days

logger = logging.getLogger("tightloop")

FILE = "digests.json"
LOOK = timedelta(minutes=10)
LONGEST_WAIT = timedelta(hours=1)
"""Maximum interval between two tries if a channel rejects a digest."""

Sent = dict[str, dict[str, date]]
"""Start day of the last digest that was sent, by project and channel."""


async def send_digests(post: AlertDelivery, at: time, every: timedelta = LOOK) -> None:
    """Send due digests at regular intervals until cancelled."""
    wait = every
    while True:
        try:
            is_complete = await send_due(post, at, datetime.now(UTC))
        except WorkspaceLockedError:
            is_complete = True  # another process of this host sends them
        except (TightloopError, OSError) as error:
            logger.warning("cannot send digests: %s", error)
            is_complete = False
        wait = every if is_complete else min(wait * 2, LONGEST_WAIT)
        now = datetime.now(UTC)
        due_at = datetime.combine(now.date(), at, UTC)
        await asyncio.sleep(min(wait, (due_at if due_at > now else due_at + timedelta(days=1)) - now).total_seconds())


async def send_due(post: AlertDelivery, at: time, now: datetime) -> bool:
    """Send every due digest that has not been sent yet, oldest first.

    If the process dies after sending a digest but before recording it, the digest is sent again with the
    same id.

    Returns:
        True if no channel needs another attempt.

    Raises:
        WorkspaceLockedError: another process on this host is sending digests.
        TightloopError: the ledger cannot be read.
    """
    channels = [
        digest_channel
        for digest_channel in post.channels
        if not digest_channel.kinds or AlertKind.DIGEST in digest_channel.kinds
    ]
    newest, is_complete = newest_day(now, at), True
    path = state_home() / FILE
    # The lock keeps two processes of a host from sending the same digest.
    with hold_lock(path.with_suffix(".lock"), wait=timedelta(), what="the record of sent digests"):
        memory = _Memory(path, await asyncio.to_thread(_read, path))
        for project in await asyncio.to_thread(local_ledger().projects):
            for channel in channels:
                sending = _DigestDelivery(memory, project.id, channel, post.full, at, now)
                is_complete = await sending.send(newest) and is_complete
    return is_complete


@dataclass(frozen=True)
class _Memory:
    """The last day for which each digest was sent, by project and channel. Stored in a file."""

    path: Path
    last_days: Sent

    async def note(self, project: str, channel: str, day: date) -> None:
        self.last_days.setdefault(project, {})[channel] = day
        await asyncio.to_thread(
            write_private, self.path, json.dumps(self.last_days, default=date.isoformat, indent=1), replace=True
        )


def _read(path: Path) -> Sent:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {
            project: {channel: date.fromisoformat(day) for channel, day in days.items()}
            for project, days in stored.items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        logger.warning("%s is damaged (%s): yesterday's digests may be sent twice", path, error)
        return {}


@dataclass(frozen=True)
class _DigestDelivery:
    memory: _Memory
    project: str
    channel: Channel
    full: bool
    at: time
    now: datetime

    async def send(self, newest: date) -> bool:
        """Send the digests that are due on one channel. Return False if a digest must be sent again later."""
        last = self.memory.last_days.get(self.project, {}).get(self.channel.name)
        for day in owed_days(last, newest):
            begin = datetime.combine(day, self.at, UTC)
            end = begin + timedelta(days=1)
            digest = await asyncio.to_thread(local_ledger().digest, self.project, begin, end, is_newest=day == newest)
            if not is_worth_telling(digest):
                continue
            try:
                await self.channel.deliver(digest_notice(digest, at=self.now, full=self.full))
            except NotDeliveredError as error:
                logger.warning(
                    "cannot deliver the digest of %s for %s to %s: %s", self.project, day, self.channel.name, error
                )
                # A permanent rejection counts as sent, or the channel would be stuck on this day.
                if error.retryable:
                    return False
            await self.memory.note(self.project, self.channel.name, day)
        return True
