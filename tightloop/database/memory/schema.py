"""The memory's tables."""

import json
from array import array
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from tightloop.database.engine import Migrations
from tightloop.database.schema import METADATA, Moment, Prose, key_column, text_column
from tightloop.memory import (
    CONTEXT_CHARACTERS,
    FACT_CHARACTERS,
    KEY_CHARACTERS,
    LINE_CHARACTERS,
    STEPS_LIMIT,
    TEMPLATE_CHARACTERS,
    TITLE_CHARACTERS,
    Fact,
    Pattern,
    SeenFailure,
)
from tightloop.value import clip, shorten
from tightloop.value.scrub import scrub


class PostgresVector(UserDefinedType[str]):
    """Column type `vector` of pgvector.

    Args:
        dimension: dimension of the vectors. None means any dimension.
    """

    cache_ok = True

    def __init__(self, dimension: int | None = None) -> None:
        self.dimension = dimension

    def get_col_spec(self, **_: Any) -> str:
        """Return the name of the column's SQL type."""
        return f"vector({self.dimension})" if self.dimension else "vector"


class Embedding(TypeDecorator["array[float]"]):
    """Column type for a vector of any dimension."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the column type that the database supports."""
        return dialect.type_descriptor(PostgresVector() if dialect.name == "postgresql" else LargeBinary())

    def process_bind_param(self, value: "array[float] | None", dialect: Dialect) -> str | bytes | None:
        """Encode a vector for the database."""
        if value is None:
            return None
        return as_text(value) if dialect.name == "postgresql" else value.tobytes()

    def process_result_value(self, value: Any, dialect: Dialect) -> "array[float] | None":
        """Decode a vector."""
        if value is None:
            return None
        if dialect.name == "postgresql":
            return array("f", map(float, str(value).strip("[]").split(",")))
        vector = array("f")
        vector.frombytes(value)
        return vector


def as_text(vector: "array[float]") -> str:
    return "[" + ",".join(map(repr, vector)) + "]"


INDEXED = frozenset({384, 768, 1024, 1536})
"""Dimensions that have an index in PostgreSQL. Vectors with other dimensions are scanned."""
TABLES = MetaData(naming_convention=METADATA.naming_convention)


def _number(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default="0")


def _vector() -> tuple[Column[Any], ...]:
    """Return the columns for a vector and its model. Vectors from different models are never compared."""
    return Column("embedding", Embedding), text_column("model", String), _number("dimension")


projects = Table(
    "memory_projects",
    TABLES,
    key_column("project"),
    text_column("host", String),
)
"""Projects and their hosts."""

corpora = Table(
    "memory_corpora", TABLES, key_column("project"), key_column("kind"), _number("documents"), _number("words")
)
"""Number of documents and words by project and kind, for BM25."""

failures = Table(
    "memory_failures",
    TABLES,
    key_column("project"),
    key_column("signature"),
    text_column("type"),
    text_column("check"),
    text_column("line"),
    text_column("context"),
    text_column("workflow_id", String),
    _number("iteration"),
    _number("seen"),
    Column("solved", Boolean, nullable=False, server_default=text("false")),
    Column("first", Moment, nullable=False),
    Column("last", Moment, nullable=False),
    *_vector(),
    Index(None, "project", "solved", "last"),
    Index(None, "project", "model"),
)
"""Failures. `solved` is set if at least one pattern worked."""

memory_words = Table(
    "memory_words",
    TABLES,
    key_column("project"),
    key_column("kind"),
    key_column("word"),
    key_column("owner", Prose),
    Column("count", Integer, nullable=False),
    Column("length", Integer, nullable=False),
    Index(None, "project", "kind", "owner"),
    # The primary key covers each lookup: without a rowid, SQLite stores the rows once instead of twice.
    sqlite_with_rowid=False,
)
"""Inverted index of failures, patterns and facts."""

patterns = Table(
    "memory_patterns",
    TABLES,
    key_column("project"),
    key_column("id"),
    text_column("problem_type"),
    text_column("title"),
    text_column("steps", Text),
    text_column("commands", Text),
    text_column("code_template"),
    text_column("test_template"),
    text_column("workflow_id", String),
    _number("iteration"),
    Column("at", Moment, nullable=False),
    *_vector(),
    Index(None, "project", "model"),
)

uses = Table(
    "memory_uses",
    TABLES,
    key_column("project"),
    key_column("signature"),
    key_column("pattern"),
    key_column("key"),
    Column("worked", Boolean, nullable=False),
    Column("at", Moment, nullable=False),
    Index(None, "project", "pattern"),
)
"""Uses of patterns to fix failures."""

facts = Table(
    "memory_facts",
    TABLES,
    key_column("project"),
    key_column("key", Prose),
    text_column("text"),
    text_column("source"),
    Column("at", Moment, nullable=False),
)

MEMORY = Migrations(
    name="memory",
    versions=Path(__file__).with_name("versions"),
    table="memory_version",
    metadata=TABLES,
    when_damaged="Move the file out of the way. The memory will then start empty, but nothing else will be lost",
)


COMMAND_WORDS = 60


class EmbeddedText:
    """A text with an optional vector.

    Args:
        text: the text.
        vector: unit vector.
        model: model of the vector.
    """

    def __init__(self, text: str, vector: "array[float] | None" = None, model: str = "") -> None:
        self.text, self.vector, self.model = text, vector, model

    @property
    def columns(self) -> dict[str, Any]:
        """Column values for the vector."""
        if self.vector is None:
            return {"embedding": None, "model": "", "dimension": 0}
        return {"embedding": self.vector, "model": self.model, "dimension": len(self.vector)}


def clean_failure(failure: SeenFailure) -> SeenFailure:
    """Remove secrets and personal data from a failure and limit its size."""
    return failure.evolve(
        type=shorten(scrub(failure.type), TITLE_CHARACTERS),
        check=shorten(scrub(failure.check), LINE_CHARACTERS),
        line=shorten(scrub(failure.line), LINE_CHARACTERS),
        context=clip(scrub(failure.context), CONTEXT_CHARACTERS),
    )


def clean_pattern(pattern: Pattern) -> Pattern:
    """Remove secrets and personal data from a pattern and limit its size.

    If a command contains a secret, all commands are dropped. Without the secret, the command would do something else.
    """
    safe_commands = tuple(
        command
        for command in pattern.commands
        if scrub(" ".join(command)) == " ".join(command) and len(command) <= COMMAND_WORDS
    )
    return pattern.evolve(
        problem_type=shorten(scrub(pattern.problem_type), TITLE_CHARACTERS),
        title=shorten(scrub(pattern.title), TITLE_CHARACTERS),
        steps=tuple(shorten(scrub(step), LINE_CHARACTERS) for step in pattern.steps[:STEPS_LIMIT]),
        # Some of the commands are not the solution.
        commands=safe_commands if len(safe_commands) == len(pattern.commands) <= STEPS_LIMIT else (),
        code_template=shorten(scrub(pattern.code_template), TEMPLATE_CHARACTERS),
        test_template=shorten(scrub(pattern.test_template), TEMPLATE_CHARACTERS),
    )


def clean_fact(fact: Fact) -> Fact:
    """Remove secrets and personal data from a fact and limit its size."""
    return fact.evolve(
        key=shorten(" ".join(scrub(fact.key).split()), KEY_CHARACTERS),
        text=shorten(scrub(fact.text), FACT_CHARACTERS),
        source=shorten(scrub(fact.source), KEY_CHARACTERS),
    )


def pattern_row(project: str, pattern: Pattern, vectored: EmbeddedText) -> dict[str, Any]:
    """Return the row of a pattern without its time."""
    fields = pattern.model_dump(exclude={"steps", "commands"})
    lists = {"steps": json.dumps(pattern.steps), "commands": json.dumps(pattern.commands)}
    return {"project": project, "id": pattern.id, **fields, **lists, **vectored.columns}


def read_pattern(row: RowMapping) -> Pattern:
    fields = {name: row[name] for name in Pattern.model_fields if name not in ("steps", "commands")}
    return Pattern(
        **fields, steps=tuple(json.loads(row["steps"])), commands=tuple(map(tuple, json.loads(row["commands"])))
    )
