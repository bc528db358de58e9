"""Puts lines of the trail that were written one workflow after the other into the order in which things happened."""

from collections.abc import Iterable

from sqlalchemy import bindparam, select, update

from tightloop.database.engine import Database
from tightloop.database.schema import events


def put_in_order(database: Database, written: Iterable[tuple[int, int, float]]) -> None:
    """Number lines again.

    Args:
        database: the ledger.
        written: first and last number of lines that were written together, and the time by which they are ordered.
    """
    at = {seq: (moment, seq) for first, last, moment in written for seq in range(first, last + 1)}
    with database.writing(durable=True) as connection:
        there = [seq for seq in connection.scalars(select(events.c.seq).order_by(events.c.seq)) if seq in at]
        moves = [
            {"old": old, "new": new}
            for old, new in zip(sorted(there, key=lambda seq: at[seq]), there, strict=True)
            if old != new
        ]
        if moves:
            # By way of numbers that no line has: each number is unique at any moment.
            away = update(events).where(events.c.seq == bindparam("old")).values(seq=-bindparam("new"))
            connection.execute(away, moves)
            connection.execute(update(events).where(events.c.seq < 0).values(seq=-events.c.seq))
