"""The digest of a project's day: as text, as a notice for the alert channels, and on which days one is owed."""

import hashlib
import shlex
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta

from tightloop.ledger.alert import AlertKind, Notice, Subject
from tightloop.ledger.model import Digest
from tightloop.value import counted, shorten
from tightloop.value.scrub import scrub

DAYS_LIMIT = 7
"""Older digests that were missed are not sent any more."""
NOTICE_LINES = 50
LINE_CHARACTERS = 300


def digest_lines(digest: Digest) -> list[str]:
    return [_counts(digest), *(f"  {line}" for line in _details(digest, full=True))]


def is_worth_telling(digest: Digest) -> bool:
    """Return whether anything happened, or waits."""
    return bool(digest.done or digest.blocked or digest.waiting or digest.iterations or digest.cost_usd)


def newest_day(now: datetime, at: time) -> date:
    """Return the newest day whose digest is due: yesterday from `at` on, before that the day before yesterday."""
    return (now - timedelta(hours=at.hour, minutes=at.minute)).date() - timedelta(days=1)


def owed_days(last: date | None, newest: date) -> tuple[date, ...]:
    """Return the days whose digests are to be sent, oldest first.

    Args:
        last: the day of the last digest that was sent; None: there was none, and only the newest day is owed.
        newest: the newest day whose digest is due.
    """
    missed = 1 if last is None else min((newest - last).days, DAYS_LIMIT)
    return tuple(newest - timedelta(days=back) for back in reversed(range(missed)))


def digest_notice(digest: Digest, *, at: datetime, full: bool = False) -> Notice:
    """Return the digest as a notice.

    Args:
        digest: of a day that is over.
        at: the time of the notice.
        full: with goals, reasons and what is asked, scrubbed; else with ids, kinds and counts alone.
    """
    details = list(_details(digest, full=full))
    shown = [shorten(scrub(line), LINE_CHARACTERS) for line in details[:NOTICE_LINES]]
    if len(details) > len(shown):
        shown.append(f"and {len(details) - len(shown)} more")
    command = f"tightloop digest --project {shlex.quote(digest.project)} --day {digest.day}"
    return Notice(
        key=hashlib.sha256(f"digest\n{digest.project}\n{digest.day}".encode()).hexdigest()[:32],
        kind=AlertKind.DIGEST,
        subject=Subject.PROJECT,
        episode_id=digest.project,
        phase="",
        at=at,
        title=f"Digest of {digest.project}, {digest.day}",
        text="\n".join((_counts(digest), *shown, f"More: {command}")),
        commands=(command, "tightloop inbox"),
    )


def _counts(digest: Digest) -> str:
    return (
        f"{digest.project}, {digest.day}: {len(digest.done)} done, {len(digest.blocked)} not, "
        f"{counted(len(digest.waiting), 'question')} open; {counted(digest.iterations, 'iteration')}, "
        f"${digest.cost_usd:.2f}"
    )


def _details(digest: Digest, *, full: bool) -> Iterator[str]:
    yield from (f"done     {line}" for line in _worded(digest.done, full))
    yield from (f"blocked  {line}" for line in _worded(digest.blocked, full))
    for item in digest.waiting:
        yield f"waits    {item.workflow_id}: {item.question.title if full else item.question.kind.value}"


def _worded(lines: Iterable[str], full: bool) -> Iterator[str]:
    for line in lines:
        yield line if full else line.partition(": ")[0]
