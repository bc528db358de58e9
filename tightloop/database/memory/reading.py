"""Reads what is kept of one project."""

from collections.abc import Collection, Iterator
from typing import Any

from sqlalchemy import Connection, Select, Table, case, func, select

from tightloop.database.memory.rows import read_pattern
from tightloop.database.memory.schema import facts, failures, patterns, uses
from tightloop.memory.evidence import Evidence
from tightloop.memory.model import (
    Details,
    Entry,
    Kind,
    Match,
    MemoryStats,
    Pattern,
    Recollection,
)
from tightloop.memory.ranking import Found


class Solved:
    """What solved certain failures, and how often."""

    def __init__(self, connection: Connection, project: str, signatures: Collection[str]) -> None:
        """Read the patterns that were used against them."""
        self.patterns: dict[str, Pattern] = {}
        self.evidence: dict[str, dict[str, Evidence]] = {}
        query = _evidence(project, uses.c.signature, uses.c.pattern).where(uses.c.signature.in_(signatures))
        rows: Any = connection.execute(query)
        for signature, pattern, tried, worked in rows:
            self.evidence.setdefault(signature, {})[pattern] = Evidence(tried=tried, worked=worked)
        ids = {pattern for found in self.evidence.values() for pattern in found}
        known = select(patterns).where(patterns.c.project == project, patterns.c.id.in_(ids))
        self.patterns = {row["id"]: read_pattern(row) for row in connection.execute(known).mappings()}

    def best(self, signature: str) -> list[tuple[str, Evidence]]:
        """Return the patterns that may be tried against a failure, the surest first."""
        found = self.evidence.get(signature, {}).items()
        usable = [(name, one) for name, one in found if one.worked and not one.retired and name in self.patterns]
        return sorted(usable, key=lambda each: (-each[1].rate, each[0]))


def recollections(
    connection: Connection, project: str, found: list[tuple[Found, Match]], *, limit: int, solved: bool
) -> tuple[Recollection, ...]:
    """Return failures with what solved them; each pattern comes once.

    Args:
        connection: of a transaction.
        project: whose they are.
        found: failures, those that fit best first.
        limit: how many are returned.
        solved: leave out what was never solved.
    """
    names = [one.id for one, _ in found]
    columns = (failures.c.signature, failures.c.type, failures.c.line)
    query = select(*columns).where(failures.c.project == project, failures.c.signature.in_(names))
    rows = {row["signature"]: row for row in connection.execute(query).mappings()}
    solutions = Solved(connection, project, names)
    result: list[Recollection] = []
    shown: set[str] = set()
    for one, match in found:
        if one.id not in rows:
            continue
        row = rows[one.id]
        base = Recollection(failure=one.id, type=row["type"], line=row["line"], match=match, score=one.score)
        usable = [each for each in solutions.best(one.id) if each[0] not in shown]
        for name, evidence in usable:
            shown.add(name)
            result.append(base.evolve(pattern=solutions.patterns[name], evidence=evidence))
        if not usable and not solved:
            result.append(base)
    return tuple(result[:limit])


def entries(connection: Connection, project: str, kind: Kind | None, limit: int) -> tuple[Entry, ...]:
    """Return what is kept, the newest first."""
    found: list[Entry] = []
    for one in (kind,) if kind else tuple(Kind):
        table, column = {Kind.FAILURE: (failures, "last"), Kind.PATTERN: (patterns, "at"), Kind.FACT: (facts, "at")}[
            one
        ]
        query = select(table).where(table.c.project == project).order_by(table.c[column].desc()).limit(limit)
        found += _entries(connection, project, one, query)
    return tuple(sorted(found, key=lambda entry: entry.at.timestamp() if entry.at else 0.0, reverse=True)[:limit])


def details(connection: Connection, project: str, entry_id: str) -> Details | None:
    """Return everything about a failure, a pattern or a fact; None: there is no such one."""
    for kind, table, column in (
        (Kind.FAILURE, failures, "signature"), (Kind.PATTERN, patterns, "id"), (Kind.FACT, facts, "key")
    ):  # fmt: skip
        query = select(table).where(table.c.project == project, table.c[column] == entry_id)
        row = connection.execute(query).mappings().first()
        if row is None:
            continue
        [entry] = _entries(connection, project, kind, query)
        if kind is Kind.FACT:
            return Details(entry=entry)
        vector = {"embedder": row["model"], "dimension": row["dimension"]}
        related = _related(connection, project, kind, entry_id)
        if kind is Kind.PATTERN:
            return Details(entry=entry, pattern=read_pattern(row), related=related, **vector)
        return Details(entry=entry, check=row["check"], context=row["context"], related=related, **vector)
    return None


def stats(connection: Connection, project: str) -> MemoryStats:
    """Return how much is kept, and how useful it was."""

    def count(table: Table, *conditions: Any) -> int:
        query = select(func.count()).select_from(table).where(table.c.project == project, *conditions)
        return int(connection.execute(query).scalar_one())

    models = select(failures.c.model, func.count()).where(failures.c.project == project).group_by(failures.c.model)
    return MemoryStats(
        project=project,
        failures=count(failures),
        solved=count(failures, failures.c.solved),
        patterns=count(patterns),
        facts=count(facts),
        tried=count(uses),
        worked=count(uses, uses.c.worked),
        embedders={model or "none": number for model, number in connection.execute(models)},
    )


def exported(connection: Connection, project: str) -> Iterator[dict[str, Any]]:
    """Yield each row without its vector, which can be made again."""
    for name, table in (
        ("failure", failures), ("pattern", patterns), ("use", uses), ("fact", facts)
    ):  # fmt: skip
        columns = [column for column in table.c if column.name not in ("embedding", "project")]
        query = select(*columns).where(table.c.project == project).order_by(*table.primary_key.columns)
        for row in connection.execute(query).mappings():
            if table is patterns:
                yield {"kind": name, **row, **read_pattern(row).model_dump(mode="json")}
            else:
                yield {"kind": name, **row}


def _evidence(project: str, *columns: Any) -> Any:
    worked = func.sum(case((uses.c.worked, 1), else_=0))
    return select(*columns, func.count(), worked).where(uses.c.project == project).group_by(*columns)


def _entries(connection: Connection, project: str, kind: Kind, query: Select[Any]) -> list[Entry]:
    rows = connection.execute(query).mappings().all()
    if kind is Kind.FACT:
        return [Entry(id=row["key"], kind=kind, text=row["text"], at=row["at"]) for row in rows]
    name, column = ("signature", uses.c.signature) if kind is Kind.FAILURE else ("id", uses.c.pattern)
    found = _evidence(project, column).where(column.in_([row[name] for row in rows]))
    counted: Any = connection.execute(found)
    evidence = {key: Evidence(tried=tried, worked=worked) for key, tried, worked in counted}
    none = Evidence()
    if kind is Kind.FAILURE:
        return [
            Entry(
                id=row["signature"], kind=kind, type=row["type"], text=row["line"], times=row["seen"],
                evidence=evidence.get(row["signature"], none), at=row["last"],
            )
            for row in rows
        ]  # fmt: skip
    return [
        Entry(
            id=row["id"], kind=kind, type=row["problem_type"], text=row["title"],
            times=evidence.get(row["id"], none).tried, evidence=evidence.get(row["id"], none), at=row["at"],
        )
        for row in rows
    ]  # fmt: skip


def _related(connection: Connection, project: str, kind: Kind, entry_id: str) -> tuple[Entry, ...]:
    if kind is Kind.FAILURE:
        wanted = select(uses.c.pattern).where(uses.c.project == project, uses.c.signature == entry_id)
        query = select(patterns).where(patterns.c.project == project, patterns.c.id.in_(wanted))
        return tuple(_entries(connection, project, Kind.PATTERN, query))
    wanted = select(uses.c.signature).where(uses.c.project == project, uses.c.pattern == entry_id)
    query = select(failures).where(failures.c.project == project, failures.c.signature.in_(wanted))
    return tuple(_entries(connection, project, Kind.FAILURE, query))
