"""Writes rows of one project. Whatever is written again is there once."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, delete, func, select, update

from tightloop.database.memory.rows import Vectored, pattern_row
from tightloop.database.memory.schema import corpora, facts, failures, patterns, projects, uses, words
from tightloop.database.rows import insert_missing, upsert
from tightloop.memory.lexical import terms
from tightloop.memory.model import Kind, Outcome, Pattern, SeenFailure

REMOVED_AT_ONCE = 500
"""Below the bound of SQLite for values of one statement."""


def write_failure(connection: Connection, project: str, failure: SeenFailure, vectored: Vectored) -> bool:
    """Add a failure, or count it once more where another iteration saw it; return whether it is new."""
    here = (failures.c.project == project, failures.c.signature == failure.signature)
    known = connection.execute(select(failures).where(*here)).mappings().first()
    if known is None:
        fields = failure.model_dump(exclude={"at"})
        row = {**fields, "project": project, "seen": 1, "solved": False, "first": failure.at, "last": failure.at}
        connection.execute(failures.insert(), {**row, **vectored.columns})
        write_words(connection, project, Kind.FAILURE, failure.signature, failure.line)
        return True
    same = known["workflow_id"] == failure.workflow_id and known["iteration"] >= failure.iteration
    values: dict[str, Any] = {"last": max(failure.at, known["last"])}
    if not same:
        values |= {"seen": known["seen"] + 1, "context": failure.context}
        values |= {"workflow_id": failure.workflow_id, "iteration": failure.iteration}
    # Another embedder was chosen since.
    if vectored.vector is not None and vectored.model != known["model"]:
        values |= vectored.columns
    connection.execute(update(failures).where(*here).values(**values))
    return False


def write_pattern(connection: Connection, project: str, pattern: Pattern, vectored: Vectored, at: datetime) -> None:
    """Add a pattern, unless it is known."""
    here = (patterns.c.project == project, patterns.c.id == pattern.id)
    if connection.execute(select(patterns.c.id).where(*here)).first() is None:
        connection.execute(patterns.insert(), {**pattern_row(project, pattern, vectored), "at": at})
        write_words(connection, project, Kind.PATTERN, pattern.id, vectored.text)


def write_outcome(connection: Connection, project: str, outcome: Outcome) -> bool:
    """Note a use of a pattern, once for its key; return whether failure and pattern are known, without which it is not.

    A failed use counts only where the pattern worked against the failure before: what never helped is not kept.
    """
    both = (uses.c.project == project, uses.c.signature == outcome.signature, uses.c.pattern == outcome.pattern)
    if not outcome.worked and connection.execute(select(uses.c.key).where(*both).limit(1)).first() is None:
        return False
    for table, column, value in ((failures, "signature", outcome.signature), (patterns, "id", outcome.pattern)):
        found = select(table.c.project).where(table.c.project == project, table.c[column] == value)
        if connection.execute(found).first() is None:
            return False
    insert_missing(connection, uses, [{**outcome.model_dump(), "project": project}])
    if outcome.worked:
        here = (failures.c.project == project, failures.c.signature == outcome.signature)
        connection.execute(update(failures).where(*here).values(solved=True))
    return True


def write_words(connection: Connection, project: str, kind: Kind, owner: str, text: str) -> None:
    """Enter the words by which a row is found."""
    found = terms(text)
    length = sum(found.values())
    fixed = {"project": project, "kind": kind.value, "owner": owner, "length": length}
    rows = [{**fixed, "word": word, "count": count} for word, count in found.items()]
    if rows:
        connection.execute(words.insert(), rows)
        _count(connection, project, kind, documents=1, length=length)


def drop_rows(connection: Connection, project: str, kind: Kind, owners: Collection[str]) -> int:
    """Remove rows with all that belongs to them; return how many there were."""
    table, column = _TABLES[kind]
    removed = 0
    wanted = sorted(owners)
    for start in range(0, len(wanted), REMOVED_AT_ONCE):
        some = wanted[start : start + REMOVED_AT_ONCE]
        found = delete(table).where(table.c.project == project, table.c[column].in_(some))
        removed += connection.execute(found).rowcount
        _drop_words(connection, project, kind, some)
        if kind is not Kind.FACT:
            used = uses.c.signature if kind is Kind.FAILURE else uses.c.pattern
            connection.execute(delete(uses).where(uses.c.project == project, used.in_(some)))
    if removed:
        _settle(connection, project)
    return removed


def drop_project(connection: Connection, project: str) -> int:
    """Remove all that is kept of a project; return how many failures, patterns and facts that were."""
    removed = 0
    for table in (failures, patterns, facts, uses, words, corpora, projects):
        count = connection.execute(delete(table).where(table.c.project == project)).rowcount
        removed += count if table in (failures, patterns, facts) else 0
    return removed


def trim(connection: Connection, project: str, kind: Kind, limit: int) -> None:
    """Remove what is beyond the bound: unsolved failures first, and what was not seen for longest."""
    here = (corpora.c.project == project, corpora.c.kind == kind.value)
    beyond = (connection.execute(select(corpora.c.documents).where(*here)).scalar() or 0) - limit
    if beyond <= 0:
        return
    if kind is Kind.FAILURE:
        query = select(failures.c.signature).where(failures.c.project == project)
        query = query.order_by(failures.c.solved, failures.c.last)
    else:
        query = select(facts.c.key).where(facts.c.project == project).order_by(facts.c.at)
    drop_rows(connection, project, kind, list(connection.scalars(query.limit(beyond))))


_TABLES: Mapping[Kind, tuple[Table, str]] = {
    Kind.FAILURE: (failures, "signature"),
    Kind.PATTERN: (patterns, "id"),
    Kind.FACT: (facts, "key"),
}


def _settle(connection: Connection, project: str) -> None:
    """Remove patterns that no failure uses any more, and see which failures are still solved."""
    used = select(uses.c.pattern).where(uses.c.project == project)
    orphans = select(patterns.c.id).where(patterns.c.project == project, patterns.c.id.not_in(used))
    lost = list(connection.scalars(orphans))
    for start in range(0, len(lost), REMOVED_AT_ONCE):
        some = lost[start : start + REMOVED_AT_ONCE]
        connection.execute(delete(patterns).where(patterns.c.project == project, patterns.c.id.in_(some)))
        _drop_words(connection, project, Kind.PATTERN, some)
    solved = select(uses.c.signature).where(uses.c.project == project, uses.c.worked)
    open_again = (failures.c.project == project, failures.c.solved, failures.c.signature.not_in(solved))
    connection.execute(update(failures).where(*open_again).values(solved=False))


def _drop_words(connection: Connection, project: str, kind: Kind, owners: Sequence[str]) -> None:
    here = (words.c.project == project, words.c.kind == kind.value, words.c.owner.in_(owners))
    lengths = select(words.c.owner, func.max(words.c.length)).where(*here).group_by(words.c.owner)
    found: dict[str, int] = dict(connection.execute(lengths).all())
    connection.execute(delete(words).where(*here))
    _count(connection, project, kind, documents=-len(found), length=-sum(found.values()))


def _count(connection: Connection, project: str, kind: Kind, *, documents: int, length: int) -> None:
    here = (corpora.c.project == project, corpora.c.kind == kind.value)
    known = connection.execute(select(corpora.c.documents, corpora.c.words).where(*here)).first() or (0, 0)
    row = {"documents": max(known[0] + documents, 0), "words": max(known[1] + length, 0)}
    upsert(connection, corpora, [{"project": project, "kind": kind.value, **row}])
