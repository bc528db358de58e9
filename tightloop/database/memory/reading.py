"""Memory queries and memory search."""

from array import array
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    LargeBinary,
    Select,
    Table,
    case,
    cast,
    func,
    select,
    text,
    type_coerce,
)

from tightloop.database.memory.schema import (
    INDEXED,
    PostgresVector,
    as_text,
    corpora,
    facts,
    failures,
    memory_words,
    patterns,
    read_pattern,
    uses,
)
from tightloop.memory import (
    Details,
    Entry,
    Evidence,
    Kind,
    Match,
    MemoryStats,
    Pattern,
    Posting,
    Recollection,
    SearchHit,
    bm25,
    self_score,
)


class SolutionIndex:
    """An index of the solutions to failures, with the evidence for each solution."""

    def __init__(self, connection: Connection, project: str, signatures: Collection[str]) -> None:
        self.patterns: dict[str, Pattern] = {}
        self.evidence: dict[str, dict[str, Evidence]] = {}
        query = _evidence(project, uses.c.signature, uses.c.pattern).where(uses.c.signature.in_(signatures))
        rows: Any = connection.execute(query)
        for signature, pattern, tried, worked in rows:
            self.evidence.setdefault(signature, {})[pattern] = Evidence(tried=tried, worked=worked)
        ids = {pattern for by_pattern in self.evidence.values() for pattern in by_pattern}
        pattern_query = select(patterns).where(patterns.c.project == project, patterns.c.id.in_(ids))
        self.patterns = {row["id"]: read_pattern(row) for row in connection.execute(pattern_query).mappings()}

    def best(self, signature: str) -> list[tuple[str, Evidence]]:
        """Return the usable patterns for a failure, highest success rate first."""
        candidates = self.evidence.get(signature, {}).items()
        usable = [
            (name, evidence)
            for name, evidence in candidates
            if evidence.worked and not evidence.retired and name in self.patterns
        ]
        return sorted(usable, key=lambda each: (-each[1].rate, each[0]))


def recollections(
    connection: Connection, project: str, matches: list[tuple[SearchHit, Match]], *, limit: int, solved: bool
) -> tuple[Recollection, ...]:
    """Return failures with their solutions. Each pattern appears only once.

    Args:
        connection: connection that is in a transaction.
        project: id of the project.
        matches: failures, best match first.
        limit: maximum number of results.
        solved: True to omit failures that were never solved.
    """
    names = [failure.id for failure, _ in matches]
    columns = (failures.c.signature, failures.c.type, failures.c.line)
    query = select(*columns).where(failures.c.project == project, failures.c.signature.in_(names))
    rows = {row["signature"]: row for row in connection.execute(query).mappings()}
    solutions = SolutionIndex(connection, project, names)
    result: list[Recollection] = []
    used_patterns: set[str] = set()
    for failure, match in matches:
        if failure.id not in rows:
            continue
        row = rows[failure.id]
        base = Recollection(failure=failure.id, type=row["type"], line=row["line"], match=match, score=failure.score)
        usable = [candidate for candidate in solutions.best(failure.id) if candidate[0] not in used_patterns]
        for name, evidence in usable:
            used_patterns.add(name)
            result.append(base.evolve(pattern=solutions.patterns[name], evidence=evidence))
        if not usable and not solved:
            result.append(base)
    return tuple(result[:limit])


def entries(connection: Connection, project: str, kind: Kind | None, limit: int) -> tuple[Entry, ...]:
    """Return the entries, newest first. If `kind` is None, return entries of all kinds."""
    result: list[Entry] = []
    columns = {Kind.FAILURE: failures.c.last, Kind.PATTERN: patterns.c.at, Kind.FACT: facts.c.at}
    for entry_kind in (kind,) if kind else tuple(Kind):
        table = columns[entry_kind].table
        query = select(table).where(table.c.project == project).order_by(columns[entry_kind].desc()).limit(limit)
        result += _entries(connection, project, entry_kind, query)
    return tuple(sorted(result, key=lambda entry: entry.at.timestamp() if entry.at else 0.0, reverse=True)[:limit])


def details(connection: Connection, project: str, entry_id: str) -> Details | None:
    """Return the details of a failure, pattern or fact, or None if the id is unknown."""
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
        related = _load_related_entries(connection, project, kind, entry_id)
        if kind is Kind.PATTERN:
            return Details(entry=entry, pattern=read_pattern(row), related=related, **vector)
        return Details(entry=entry, check=row["check"], context=row["context"], related=related, **vector)
    return None


def stats(connection: Connection, project: str) -> MemoryStats:
    """Return statistics about a project's entries, and about how often its patterns are used and succeed."""

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


def export_rows(connection: Connection, project: str) -> Iterator[dict[str, Any]]:
    """Yield each row without its vector. Vectors can be computed again."""
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
    evidence_query = _evidence(project, column).where(column.in_([row[name] for row in rows]))
    counted: Any = connection.execute(evidence_query)
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


def _load_related_entries(connection: Connection, project: str, kind: Kind, entry_id: str) -> tuple[Entry, ...]:
    if kind is Kind.FAILURE:
        related_ids = select(uses.c.pattern).where(uses.c.project == project, uses.c.signature == entry_id)
        query = select(patterns).where(patterns.c.project == project, patterns.c.id.in_(related_ids))
        return tuple(_entries(connection, project, Kind.PATTERN, query))
    related_ids = select(uses.c.signature).where(uses.c.project == project, uses.c.pattern == entry_id)
    query = select(failures).where(failures.c.project == project, failures.c.signature.in_(related_ids))
    return tuple(_entries(connection, project, Kind.FAILURE, query))


EXACT_BELOW = 5_000
"""Number of vectors per project below which PostgreSQL scans them.

The index covers all projects and visits other projects' vectors first. In a small project with two rows, it returned
neither of them.
"""
SCANNED_LIMIT = 200_000
"""Maximum number of vectors that an index search visits. pgvector's default is 20 000."""
CANDIDATES = 50
"""Number of candidates per search method, before the results are combined."""
POSTINGS_LIMIT = 10_000
"""Maximum number of postings per search. Beyond it, the most frequent words are skipped."""
AT_ONCE = 4_096
"""Maximum number of vectors in memory at the same time."""


class VectorSpace(NamedTuple):
    """A set of vectors that can be compared. They belong to one model and one project."""

    project: str
    model: str
    dimension: int
    table: Table
    solved: bool = False
    """Include only failures that were solved."""

    @property
    def owner(self) -> "ColumnElement[str]":
        return self.table.c["signature" if self.table is failures else "id"]

    @property
    def condition(self) -> "list[ColumnElement[bool]]":
        conditions = [self.table.c.project == self.project, self.table.c.model == self.model]
        # A literal, because PostgreSQL uses a partial index only if the query contains the constant.
        conditions.append(self.table.c.dimension == text(str(int(self.dimension))))
        return [*conditions, failures.c.solved] if self.solved and self.table is failures else conditions


def find_nearest(
    connection: Connection, space: VectorSpace, vector: "array[float]", limit: int = CANDIDATES
) -> dict[str, float]:
    """Return the cosine similarities of the rows whose vectors are nearest to a vector."""
    if connection.dialect.name == "postgresql":
        kind = Kind.FAILURE if space.table is failures else Kind.PATTERN
        corpus_condition = (corpora.c.project == space.project, corpora.c.kind == kind.value)
        many = connection.execute(select(corpora.c.documents).where(*corpus_condition)).scalar() or 0
        sized = PostgresVector(space.dimension)
        distance = cast(space.table.c.embedding, sized).op("<=>", return_type=Float())(cast(as_text(vector), sized))
        if space.dimension not in INDEXED or many <= EXACT_BELOW:
            # The expression disables the index, which only serves the plain distance.
            order: Any = distance + 0
        else:
            order = distance
            # Set per transaction. By default a filtered search ends with the first vectors the index visits.
            settings = {"hnsw.iterative_scan": "strict_order", "hnsw.max_scan_tuples": str(SCANNED_LIMIT)}
            # A search returns at most this many rows; 40 is pgvector's default.
            settings |= {"hnsw.ef_search": str(max(limit, 40))}
            for name, value in settings.items():
                connection.execute(select(func.set_config(name, value, True)))
        query = select(space.owner, (1 - distance).label("cosine")).where(*space.condition).order_by(order).limit(limit)
        return {owner: float(cosine) for owner, cosine in connection.execute(query)}
    return _near_by_scan(connection, space, vector, limit)


def cosines(
    connection: Connection, space: VectorSpace, vector: "array[float]", owners: Collection[str]
) -> dict[str, float]:
    """Return the cosine similarity of each given row. Rows without a vector from this model are omitted."""
    # By key only: otherwise SQLite would scan all vectors of the model.
    columns = (space.owner, space.table.c.model, space.table.c.embedding)
    query = select(*columns).where(space.table.c.project == space.project, space.owner.in_(owners))
    return {
        owner: sum(component * other for component, other in zip(vector, embedding, strict=True))
        for owner, model, embedding in connection.execute(query)
        if model == space.model and len(embedding) == space.dimension
    }


def _near_by_scan(connection: Connection, space: VectorSpace, vector: "array[float]", limit: int) -> dict[str, float]:
    # Lazy import: a worker with an empty memory does not load numpy.
    import numpy as np

    query_vector = np.frombuffer(vector, dtype=np.float32)
    best: dict[str, float] = {}
    query = select(space.owner, type_coerce(space.table.c.embedding, LargeBinary)).where(*space.condition)
    # In batches with a running best list, so that memory does not grow with the project.
    for rows in connection.execution_options(yield_per=AT_ONCE).execute(query).partitions():
        owners, blobs = zip(*rows, strict=True)
        matrix = np.frombuffer(b"".join(blobs), dtype=np.float32).reshape(len(blobs), space.dimension)
        scores = matrix @ query_vector
        top = np.argpartition(-scores, limit)[:limit] if len(scores) > limit else np.arange(len(scores))
        best |= {owners[index]: float(scores[index]) for index in map(int, top)}
        best = dict(sorted(best.items(), key=lambda one: -one[1])[:limit])
    return best


class WordMatches(NamedTuple):
    """The rows that share words with a query."""

    scores: dict[str, float]
    highest: float
    """Score that the query reaches when compared with itself, which is the highest possible score."""


def score_by_words(connection: Connection, project: str, kind: Kind, query: Mapping[str, int]) -> WordMatches:
    """Return the BM25 scores of the rows that share words with the query.

    Words so frequent that they exceed `POSTINGS_LIMIT` are skipped.
    """
    word_condition = (memory_words.c.project == project, memory_words.c.kind == kind.value)
    size = select(corpora.c.documents, corpora.c.words).where(
        corpora.c.project == project, corpora.c.kind == kind.value
    )
    row = connection.execute(size).first()
    if row is None or not row.documents or not query:
        return WordMatches({}, 0.0)
    average = row.words / row.documents
    counted = (
        select(memory_words.c.word, func.count())
        .where(*word_condition, memory_words.c.word.in_(list(query)))
        .group_by(memory_words.c.word)
    )
    frequencies: dict[str, int] = dict(connection.execute(counted).all())
    used = _affordable(frequencies)
    columns = select(memory_words.c.word, memory_words.c.owner, memory_words.c.count, memory_words.c.length).where(
        *word_condition, memory_words.c.word.in_(used)
    )
    postings: dict[str, list[Posting]] = {term: [] for term in used}
    # A single word alone may exceed the limit.
    for term, owner, count, length in connection.execute(columns.limit(POSTINGS_LIMIT)):
        postings[term].append(Posting(owner, count, length))
    scores = bm25(postings, frequencies, documents=row.documents, average=average)
    # Skipped words must not lower the similarity of the results.
    scored_terms = {term: count for term, count in query.items() if term in postings or term not in frequencies}
    highest = self_score(scored_terms, frequencies, documents=row.documents, average=average)
    best = sorted(scores.items(), key=lambda one: (-one[1], one[0]))[: 4 * CANDIDATES]
    return WordMatches(dict(best), highest)


def _affordable(frequencies: Mapping[str, int]) -> list[str]:
    """Return the rarest words whose postings fit into the limit. Return at least one word."""
    affordable: list[str] = []
    total = 0
    for term, count in sorted(frequencies.items(), key=lambda one: (one[1], one[0])):
        total += count
        if affordable and total > POSTINGS_LIMIT:
            break
        affordable.append(term)
    return affordable
