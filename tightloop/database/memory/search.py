"""Finds rows of one project: by the words of their lines, and by vectors."""

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Float, LargeBinary, Table, cast, func, select, text, type_coerce

from tightloop.database.memory.schema import INDEXED, corpora, failures, patterns, words
from tightloop.database.memory.vector import PostgresVector, as_text
from tightloop.memory.lexical import Posting, bm25, self_score
from tightloop.memory.model import Kind

EXACT_BELOW = 5_000
"""Vectors of a project that PostgreSQL compares one by one: an index that all projects share looks at those of others
first, and found none of the two rows of a small project."""
SCANNED_LIMIT = 200_000
"""Vectors that an index looks at before it gives up; pgvector's default is 20 000."""
CANDIDATES = 50
"""Of each kind of search, before they become one list."""
POSTINGS_LIMIT = 10_000
"""Bounds the time of a search by words: the most frequent words are left out."""
AT_ONCE = 4_096
"""Vectors in memory at a time."""


class Space(NamedTuple):
    """Vectors that can be compared: those of one model, in one project."""

    project: str
    model: str
    dimension: int
    table: Table
    solved: bool = False
    """Only failures that something solved."""

    @property
    def owner(self) -> "ColumnElement[str]":
        """The column that names a row."""
        return self.table.c["signature" if self.table is failures else "id"]

    @property
    def condition(self) -> "list[ColumnElement[bool]]":
        """Which rows these are."""
        found = [self.table.c.project == self.project, self.table.c.model == self.model]
        # Written out: PostgreSQL uses an index for one dimension only where it sees the number.
        found.append(self.table.c.dimension == text(str(int(self.dimension))))
        return [*found, failures.c.solved] if self.solved and self.table is failures else found


def table_of(kind: Kind) -> Table:
    """Return the table of failures or patterns."""
    return failures if kind is Kind.FAILURE else patterns


def near(connection: Connection, space: Space, vector: "array[float]", limit: int = CANDIDATES) -> dict[str, float]:
    """Return the rows whose vectors are nearest, with their cosines."""
    if connection.dialect.name == "postgresql":
        return _near_in_postgresql(connection, space, vector, limit)
    return _near_by_scan(connection, space, vector, limit)


def cosines(connection: Connection, space: Space, vector: "array[float]", owners: Collection[str]) -> dict[str, float]:
    """Return the cosines of certain rows, as far as they have a vector of this model."""
    # By key alone: SQLite would otherwise go through all vectors of the model.
    columns = (space.owner, space.table.c.model, space.table.c.embedding)
    query = select(*columns).where(space.table.c.project == space.project, space.owner.in_(owners))
    return {
        owner: sum(one * other for one, other in zip(vector, found, strict=True))
        for owner, model, found in connection.execute(query)
        if model == space.model and len(found) == space.dimension
    }


def _near_in_postgresql(connection: Connection, space: Space, vector: "array[float]", limit: int) -> dict[str, float]:
    kind = Kind.FAILURE if space.table is failures else Kind.PATTERN
    here = (corpora.c.project == space.project, corpora.c.kind == kind.value)
    many = connection.execute(select(corpora.c.documents).where(*here)).scalar() or 0
    sized = PostgresVector(space.dimension)
    distance = cast(space.table.c.embedding, sized).op("<=>", return_type=Float())(cast(as_text(vector), sized))
    if space.dimension not in INDEXED or many <= EXACT_BELOW:
        # An index serves the bare distance only.
        order: Any = distance + 0
    else:
        order = distance
        # Within this transaction. By default a search that filters ends with what the index came upon first.
        settings = {"hnsw.iterative_scan": "strict_order", "hnsw.max_scan_tuples": str(SCANNED_LIMIT)}
        settings |= {"hnsw.ef_search": str(max(limit, 40))}
        for name, value in settings.items():
            connection.execute(select(func.set_config(name, value, True)))
    query = select(space.owner, (1 - distance).label("cosine")).where(*space.condition).order_by(order).limit(limit)
    return {owner: float(cosine) for owner, cosine in connection.execute(query)}


def _near_by_scan(connection: Connection, space: Space, vector: "array[float]", limit: int) -> dict[str, float]:
    # A worker that remembers nothing never pays for the import.
    import numpy as np

    wanted = np.frombuffer(vector, dtype=np.float32)
    best: dict[str, float] = {}
    query = select(space.owner, type_coerce(space.table.c.embedding, LargeBinary)).where(*space.condition)
    for owners, blobs in _chunks(connection, query):
        matrix = np.frombuffer(b"".join(blobs), dtype=np.float32).reshape(len(blobs), space.dimension)
        scores = matrix @ wanted
        top = np.argpartition(-scores, limit)[:limit] if len(scores) > limit else np.arange(len(scores))
        best |= {owners[place]: float(scores[place]) for place in map(int, top)}
        best = dict(sorted(best.items(), key=lambda one: -one[1])[:limit])
    return best


def _chunks(connection: Connection, query: Any) -> Iterator[tuple[Sequence[str], Sequence[bytes]]]:
    found = connection.execution_options(yield_per=AT_ONCE).execute(query)
    for rows in found.partitions():
        owners, blobs = zip(*rows, strict=True)
        yield owners, blobs


class Spoken(NamedTuple):
    """Rows that share words with a query."""

    scores: dict[str, float]
    highest: float
    """The score of the query itself."""


def by_words(connection: Connection, project: str, kind: Kind, query: Mapping[str, int]) -> Spoken:
    """Return the rows that share words with the query, with their BM25 scores; rare words first, and not all."""
    here = (words.c.project == project, words.c.kind == kind.value)
    size = select(corpora.c.documents, corpora.c.words).where(
        corpora.c.project == project, corpora.c.kind == kind.value
    )
    row = connection.execute(size).first()
    if row is None or not row.documents or not query:
        return Spoken({}, 0.0)
    average = row.words / row.documents
    counted = select(words.c.word, func.count()).where(*here, words.c.word.in_(list(query))).group_by(words.c.word)
    frequencies: dict[str, int] = dict(connection.execute(counted).all())
    used = _affordable(frequencies)
    columns = select(words.c.word, words.c.owner, words.c.count, words.c.length).where(*here, words.c.word.in_(used))
    postings: dict[str, list[Posting]] = {word: [] for word in used}
    for word, owner, count, length in connection.execute(columns.limit(POSTINGS_LIMIT)):
        postings[word].append(Posting(owner, count, length))
    scores = bm25(postings, frequencies, documents=row.documents, average=average)
    # What was left out is no reason to call what was found less alike.
    heard = {word: count for word, count in query.items() if word in postings or word not in frequencies}
    highest = self_score(heard, frequencies, documents=row.documents, average=average)
    best = sorted(scores.items(), key=lambda one: (-one[1], one[0]))[: 4 * CANDIDATES]
    return Spoken(dict(best), highest)


def _affordable(frequencies: Mapping[str, int]) -> list[str]:
    """Return the rarest words whose postings can be read within the bound; at least one."""
    found: list[str] = []
    total = 0
    for word, count in sorted(frequencies.items(), key=lambda one: (one[1], one[0])):
        total += count
        if found and total > POSTINGS_LIMIT:
            break
        found.append(word)
    return found
