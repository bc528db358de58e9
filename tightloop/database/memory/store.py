"""Memory store: writes, cleanup and search."""

import contextlib
import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, delete, func, select, update

from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.forwarding import shared_id
from tightloop.database.memory.reading import (
    VectorSpace,
    cosines,
    details,
    entries,
    export_rows,
    find_nearest,
    recollections,
    score_by_words,
    stats,
)
from tightloop.database.memory.schema import (
    MEMORY,
    EmbeddedText,
    clean_fact,
    clean_failure,
    clean_pattern,
    corpora,
    facts,
    failures,
    memory_words,
    pattern_row,
    patterns,
    projects,
    uses,
)
from tightloop.database.rows import insert_missing, upsert
from tightloop.episode.failure import normalize_explaining_line
from tightloop.errors import InvalidRequestError, TightloopError
from tightloop.host import state_home
from tightloop.host.identity import host_identity
from tightloop.memory import (
    Details,
    Embedder,
    Entry,
    Fact,
    Kind,
    Match,
    MemoryStats,
    Outcome,
    Pattern,
    Profile,
    Query,
    Recollection,
    SearchHit,
    SeenFailure,
    fuse_scores,
    in_order,
    terms,
)
from tightloop.settings import MemorySettings, Settings
from tightloop.value.scrub import scrub

REMOVED_AT_ONCE = 500
"""Number of rows to remove at once. It is below SQLite's limit for values per statement."""


def write_failure(connection: Connection, project: str, failure: SeenFailure, vectored: EmbeddedText) -> bool:
    """Store a failure and return whether it is new.

    If the failure is already known, it is counted at most once per iteration.
    """
    condition = (failures.c.project == project, failures.c.signature == failure.signature)
    stored_row = connection.execute(select(failures).where(*condition)).mappings().first()
    if stored_row is None:
        fields = failure.model_dump(exclude={"at"})
        row = {**fields, "project": project, "seen": 1, "solved": False, "first": failure.at, "last": failure.at}
        connection.execute(failures.insert(), {**row, **vectored.columns})
        write_words(connection, project, Kind.FAILURE, failure.signature, failure.line)
        return True
    # Retries, and several checks of one iteration, count once.
    same = stored_row["workflow_id"] == failure.workflow_id and stored_row["iteration"] >= failure.iteration
    values: dict[str, Any] = {"last": max(failure.at, stored_row["last"])}
    if not same:
        values |= {"seen": stored_row["seen"] + 1, "context": failure.context}
        values |= {"workflow_id": failure.workflow_id, "iteration": failure.iteration}
    # The embedder was changed since.
    if vectored.vector is not None and vectored.model != stored_row["model"]:
        values |= vectored.columns
    connection.execute(update(failures).where(*condition).values(**values))
    return False


def write_pattern(connection: Connection, project: str, pattern: Pattern, vectored: EmbeddedText, at: datetime) -> None:
    """Store a pattern unless it already exists."""
    condition = (patterns.c.project == project, patterns.c.id == pattern.id)
    if connection.execute(select(patterns.c.id).where(*condition)).first() is None:
        connection.execute(patterns.insert(), {**pattern_row(project, pattern, vectored), "at": at})
        write_words(connection, project, Kind.PATTERN, pattern.id, vectored.text)


def write_outcome(connection: Connection, project: str, outcome: Outcome) -> bool:
    """Record one use of a pattern, once per key. Return whether the use was recorded.

    The failure and the pattern must exist. A failed use counts only if the pattern has already been used for the same
    failure, because patterns that have never helped are not kept.
    """
    both = (uses.c.project == project, uses.c.signature == outcome.signature, uses.c.pattern == outcome.pattern)
    if not outcome.worked and connection.execute(select(uses.c.key).where(*both).limit(1)).first() is None:
        return False
    for table, column, value in ((failures, "signature", outcome.signature), (patterns, "id", outcome.pattern)):
        query = select(table.c.project).where(table.c.project == project, table.c[column] == value)
        if connection.execute(query).first() is None:
            return False
    insert_missing(connection, uses, [{**outcome.model_dump(), "project": project}])
    if outcome.worked:
        condition = (failures.c.project == project, failures.c.signature == outcome.signature)
        connection.execute(update(failures).where(*condition).values(solved=True))
    return True


def write_words(connection: Connection, project: str, kind: Kind, owner: str, text: str) -> None:
    """Add the words of a document to the inverted index."""
    term_counts = terms(text)
    length = sum(term_counts.values())
    fixed = {"project": project, "kind": kind.value, "owner": owner, "length": length}
    rows = [{**fixed, "word": term, "count": count} for term, count in term_counts.items()]
    if rows:
        connection.execute(memory_words.insert(), rows)
        _count(connection, project, kind, documents=1, length=length)


def drop_rows(connection: Connection, project: str, kind: Kind, owners: Collection[str]) -> int:
    """Delete rows and everything that depends on them. Return the number of deleted entries."""
    table, column = _TABLES[kind]
    removed = 0
    sorted_owners = sorted(owners)
    for start in range(0, len(sorted_owners), REMOVED_AT_ONCE):
        some = sorted_owners[start : start + REMOVED_AT_ONCE]
        statement = delete(table).where(table.c.project == project, table.c[column].in_(some))
        removed += connection.execute(statement).rowcount
        _drop_words(connection, project, kind, some)
        if kind is not Kind.FACT:
            used = uses.c.signature if kind is Kind.FAILURE else uses.c.pattern
            connection.execute(delete(uses).where(uses.c.project == project, used.in_(some)))
    if removed:
        _settle(connection, project)
    return removed


def drop_project(connection: Connection, project: str) -> int:
    """Delete all of a project's data. Return the number of deleted failures, patterns and facts."""
    removed = 0
    for table in (failures, patterns, facts, uses, memory_words, corpora, projects):
        count = connection.execute(delete(table).where(table.c.project == project)).rowcount
        removed += count if table in (failures, patterns, facts) else 0
    return removed


def trim(connection: Connection, project: str, kind: Kind, limit: int) -> None:
    """Delete the entries that exceed the limit.

    Unsolved failures are deleted first, followed by the entries that were least recently seen.
    """
    condition = (corpora.c.project == project, corpora.c.kind == kind.value)
    beyond = (connection.execute(select(corpora.c.documents).where(*condition)).scalar() or 0) - limit
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
    """Delete patterns that no failure uses, and update the solved flags."""
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
    condition = (memory_words.c.project == project, memory_words.c.kind == kind.value, memory_words.c.owner.in_(owners))
    # Each row of a document repeats its length.
    lengths = (
        select(memory_words.c.owner, func.max(memory_words.c.length)).where(*condition).group_by(memory_words.c.owner)
    )
    owner_lengths: dict[str, int] = dict(connection.execute(lengths).all())
    connection.execute(delete(memory_words).where(*condition))
    _count(connection, project, kind, documents=-len(owner_lengths), length=-sum(owner_lengths.values()))


def _count(connection: Connection, project: str, kind: Kind, *, documents: int, length: int) -> None:
    condition = (corpora.c.project == project, corpora.c.kind == kind.value)
    totals = connection.execute(select(corpora.c.documents, corpora.c.words).where(*condition)).first() or (0, 0)
    row = {"documents": max(totals[0] + documents, 0), "words": max(totals[1] + length, 0)}
    upsert(connection, corpora, [{"project": project, "kind": kind.value, **row}])


logger = logging.getLogger("tightloop")


class _PreparedQuery(NamedTuple):
    """A search query with its vector and thresholds. Secrets are removed."""

    line: str
    vectored: EmbeddedText
    profile: Profile | None
    solved: bool


class MemoryStore:
    """Store of failures, patterns and facts. Its methods block.

    A project's data is never returned for another project. Texts are scrubbed before they are written.
    Writes are idempotent.

    Args:
        database: database with the tables of `MEMORY`.
        embedder: embedder to use. If None, texts are compared by words, and no vectors are stored.
        settings: settings with the limits and thresholds.
        hosts: names of the host that the project ids belong to, with its own name first. Used with a
            database that several hosts share. If empty, the project ids are those of the database.
    """

    def __init__(
        self, database: Database, embedder: Embedder | None, settings: MemorySettings, *, hosts: tuple[str, ...] = ()
    ) -> None:
        self._database, self._embedder, self._settings, self._hosts = database, embedder, settings, hosts

    @property
    def database(self) -> Database:
        """Database that contains the rows."""
        return self._database

    def record_failures(self, project: str, seen_failures: Sequence[SeenFailure]) -> None:
        """Store failures. Each failure counts once per iteration.

        Raises:
            StorageFullError: the disk is full.
            ServiceUnavailableError: the database does not respond. Retryable.
            WorkspaceError: the database is damaged or does not have the expected revision.
        """
        clean = [clean_failure(failure) for failure in seen_failures]
        # Before the transaction: a remote embedder takes seconds, and other writers would wait for it.
        vectors = self._embed_texts([failure.line for failure in clean])
        if not clean:
            return
        with self._writing(project) as (connection, name):
            new = [
                write_failure(connection, name, failure, vectored)
                for failure, vectored in zip(clean, vectors, strict=True)
            ]
            if any(new):
                trim(connection, name, Kind.FAILURE, self._settings.max_failures)

    def record_solution(self, project: str, pattern: Pattern, outcomes: Sequence[Outcome]) -> None:
        """Store a pattern that fixed checks, together with the failures it solved.

        Raises the same errors as `record_failures`.
        """
        clean = clean_pattern(pattern)
        [vectored] = self._embed_texts([f"{clean.problem_type} {clean.title} {' '.join(clean.steps)}"])
        if not outcomes:
            return
        with self._writing(project) as (connection, name):
            write_pattern(connection, name, clean, vectored, outcomes[0].at)
            for outcome in outcomes:
                # Scrubbing can change the id.
                write_outcome(connection, name, outcome.evolve(pattern=clean.id))

    def record_outcomes(self, project: str, outcomes: Sequence[Outcome]) -> None:
        """Store the results of reused patterns. Raises the same errors as `record_failures`."""
        if not outcomes:
            return
        with self._writing(project) as (connection, name):
            for outcome in outcomes:
                write_outcome(connection, name, outcome)

    def recall(self, project: str, query: Query) -> tuple[Recollection, ...]:
        """Return similar failures and their solutions. Raises the same errors as `record_failures`.

        A failure with the same signature comes first, followed by matches on words and vectors.
        """
        prepared_query = self._prepare_query(
            normalize_explaining_line(query.text), in_words=query.in_words, solved=query.solved
        )
        with self._reading(project) as (connection, name):
            similar = self._alike(connection, name, Kind.FAILURE, prepared_query)
            ranked = [(failure, Match.SIMILAR) for failure in similar if failure.id != query.signature]
            if query.signature:
                ranked.insert(0, (SearchHit(query.signature, 1.0), Match.SIGNATURE))
            return recollections(connection, name, ranked, limit=query.limit, solved=query.solved)

    def search(self, project: str, text: str, *, kind: Kind, limit: int = 5) -> tuple[Entry, ...]:
        """Search failures, patterns or facts by free text. The best match comes first."""
        prepared_query = self._prepare_query(text, in_words=True)
        with self._reading(project) as (connection, name):
            similar = self._alike(connection, name, kind, prepared_query)
            results = (details(connection, name, match.id) for match in similar[:limit])
            return tuple(result.entry for result in results if result is not None)

    def remember(self, project: str, fact: Fact) -> None:
        """Store a fact. An earlier fact with the same key is replaced.

        In addition to the error below, this raises the same errors as `record_failures`.

        Raises:
            InvalidRequestError: the key or the text is empty.
        """
        clean = clean_fact(fact)
        if not clean.key or not clean.text.strip():
            raise InvalidRequestError(f"the fact {fact.key[:60]} has no key or no text. Provide both a key and a text")
        with self._writing(project) as (connection, name):
            drop_rows(connection, name, Kind.FACT, [clean.key])
            row = {**clean.model_dump(), "project": name, "at": clean.at or datetime.now(UTC)}
            connection.execute(facts.insert(), row)
            write_words(connection, name, Kind.FACT, clean.key, f"{clean.key} {clean.text}")
            trim(connection, name, Kind.FACT, self._settings.max_facts)

    def facts(self, project: str) -> tuple[Fact, ...]:
        """Return all facts, ordered by key."""
        with self._reading(project) as (connection, name):
            query = select(facts).where(facts.c.project == name).order_by(facts.c.key)
            fields = Fact.model_fields
            return tuple(
                Fact(**{field: row[field] for field in fields}) for row in connection.execute(query).mappings()
            )

    def entries(self, project: str, kind: Kind | None = None, limit: int = 50) -> tuple[Entry, ...]:
        """Return the entries, newest first. If `kind` is None, return entries of all kinds."""
        with self._reading(project) as (connection, name):
            return entries(connection, name, kind, limit)

    def show(self, project: str, entry_id: str) -> Details:
        """Return the full details of an entry.

        Raises:
            InvalidRequestError: there is no entry with this id.
        """
        with self._reading(project) as (connection, name):
            entry_details = details(connection, name, entry_id)
        if entry_details is None:
            raise InvalidRequestError(
                f"the memory of {project} has no entry {entry_id[:60]!r}. List the entries: tightloop memory list"
            )
        return entry_details

    def forget(self, project: str, ids: Collection[str] | None = None) -> int:
        """Delete entries and everything that depends on them. Return the number of deleted entries.

        If no ids are given, all data of the project is deleted.
        """
        with self._writing(project) as (connection, name):
            if ids is None:
                return drop_project(connection, name)
            return sum(drop_rows(connection, name, kind, ids) for kind in Kind)

    def forget_unseen(self, project: str, before: datetime) -> int:
        """Delete failures last seen before a time. Return the number of deleted failures.

        Patterns that solved only these failures are also deleted.
        """
        with self._writing(project) as (connection, name):
            query = select(failures.c.signature).where(failures.c.project == name, failures.c.last < before)
            return drop_rows(connection, name, Kind.FAILURE, list(connection.scalars(query)))

    def export(self, project: str) -> Iterator[dict[str, Any]]:
        """Yield all rows without their vectors."""
        with self._reading(project) as (connection, name):
            yield from export_rows(connection, name)

    def stats(self, project: str) -> MemoryStats:
        """Return statistics about a project's entries, and about the use and success of its patterns."""
        with self._reading(project) as (connection, name):
            return stats(connection, name).evolve(project=project)

    def projects(self) -> tuple[str, ...]:
        """Return the ids of all projects that have data."""
        with self._database.reading() as connection:
            return tuple(connection.scalars(select(projects.c.project).order_by(projects.c.project)))

    def _alike(
        self, connection: Connection, project: str, kind: Kind, prepared_query: _PreparedQuery
    ) -> list[SearchHit]:
        spoken = score_by_words(connection, project, kind, terms(prepared_query.line))
        if kind is Kind.FACT:
            # Facts are few and short: the best one is worth showing even if it shares little.
            return in_order(SearchHit(name, round(score, 4)) for name, score in spoken.scores.items())
        vector = prepared_query.vectored.vector
        if vector is None:
            return fuse_scores({}, spoken.scores, None, highest=spoken.highest)
        space = VectorSpace(
            project,
            prepared_query.vectored.model,
            len(vector),
            failures if kind is Kind.FAILURE else patterns,
            prepared_query.solved,
        )
        vectors = find_nearest(connection, space, vector)
        missing = spoken.scores.keys() - vectors.keys()
        if missing:
            # Matches on words outside the nearest vectors need their cosine, too, or they would rank too low.
            vectors |= cosines(connection, space, vector, missing)
        return fuse_scores(vectors, spoken.scores, prepared_query.profile, highest=spoken.highest)

    def _prepare_query(self, text: str, *, in_words: bool, solved: bool = False) -> _PreparedQuery:
        line = scrub(text)
        [vectored] = self._embed_texts([line])
        profile, threshold = self._embedder.profile if self._embedder else None, self._settings.threshold
        if profile is not None and threshold is not None:
            profile = profile._replace(threshold=threshold)
        return _PreparedQuery(line, vectored, profile.in_words() if profile and in_words else profile, solved)

    def _embed_texts(self, texts: Sequence[str]) -> list[EmbeddedText]:
        """Embed texts. If the embedder fails, return the texts without vectors."""
        if self._embedder is None or not texts:
            return [EmbeddedText(text) for text in texts]
        try:
            vectors = self._embedder.embed(texts)
        except TightloopError as error:
            # No error: a briefing from words alone is better than none.
            logger.warning(
                "%s. Until the problem is fixed, memory searches fall back to keyword matching", error.message
            )
            return [EmbeddedText(text) for text in texts]
        name = self._embedder.name
        return [EmbeddedText(text, vector, name) for text, vector in zip(texts, vectors, strict=True)]

    @contextlib.contextmanager
    def _writing(self, project: str) -> Iterator[tuple[Connection, str]]:
        with self._database.writing() as connection:
            name = self._name(connection, project)
            insert_missing(connection, projects, [{"project": name, "host": self._hosts[0] if self._hosts else ""}])
            yield connection, name

    @contextlib.contextmanager
    def _reading(self, project: str) -> Iterator[tuple[Connection, str]]:
        with self._database.reading() as connection:
            yield connection, self._name(connection, project)

    def _name(self, connection: Connection, project: str) -> str:
        """Return the id of a project in this database.

        The same path on two hosts belongs to two different projects.
        """
        return shared_id(connection, projects, project, self._hosts) if self._hosts else project


FILE = "memory.db"
_OPENING = threading.Lock()
_OPEN: dict[str, Database] = {}
"""Databases by URL or path. Each process has one per URL or path."""


def memory_database(settings: Settings) -> Database:
    """Return the memory database at `database.url`, or the file in the state home by default.

    Raises:
        SettingsError: `database.url` cannot be parsed.
    """
    url = settings.database.url.get_secret_value() if settings.memory.store == "auto" else ""
    path: Path = state_home() / FILE
    key = url or str(path)
    with _OPENING:
        if key not in _OPEN:
            _OPEN[key] = postgres_database(url, MEMORY) if url else sqlite_database(path, MEMORY)
        return _OPEN[key]


def open_memory(settings: Settings, embedder: Embedder | None) -> MemoryStore:
    """Open the memory. Projects are identified by their ids on this host.

    Raises:
        SettingsError: `database.url` cannot be parsed.
    """
    database = memory_database(settings)
    hosts = () if database.is_file else host_identity(settings).names
    return MemoryStore(database, embedder, settings.memory, hosts=hosts)
