"""The tables of the memory. Every key begins with the project: no row is reached without it."""

from pathlib import Path
from typing import Any

from sqlalchemy import Boolean, Column, Index, Integer, MetaData, String, Table, Text, text

from tightloop.database.memory.vector import Embedding
from tightloop.database.schema import METADATA, Moment, Prose
from tightloop.database.upgrading import Migrations

INDEXED = frozenset({384, 768, 1024, 1536})
"""Dimensions of the vectors that PostgreSQL has an index for; others are compared one by one."""
TABLES = MetaData(naming_convention=METADATA.naming_convention)


def _key(name: str, kind: Any = String) -> Column[Any]:
    return Column(name, kind, primary_key=True)


def _text(name: str, kind: Any = Prose) -> Column[Any]:
    return Column(name, kind, nullable=False, server_default="")


def _number(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default="0")


def _vector() -> tuple[Column[Any], ...]:
    """Return the vector of a row with the model that made it: vectors of two models are never compared."""
    return Column("embedding", Embedding), _text("model", String), _number("dimension")


projects = Table(
    "memory_projects",
    TABLES,
    _key("project"),
    _text("host", String),
)
"""The host that a project is on."""

corpora = Table("memory_corpora", TABLES, _key("project"), _key("kind"), _number("documents"), _number("words"))
"""How many failures, patterns and facts there are, and how many words they have together."""

failures = Table(
    "memory_failures",
    TABLES,
    _key("project"),
    _key("signature"),
    _text("type"),
    _text("check"),
    _text("line"),
    _text("context"),
    _text("workflow_id", String),
    _number("iteration"),
    _number("seen"),
    Column("solved", Boolean, nullable=False, server_default=text("false")),
    Column("first", Moment, nullable=False),
    Column("last", Moment, nullable=False),
    *_vector(),
    Index(None, "project", "solved", "last"),
    Index(None, "project", "model"),
)
"""`solved`: at least one pattern worked."""

words = Table(
    "memory_words",
    TABLES,
    _key("project"),
    _key("kind"),
    _key("word"),
    _key("owner", Prose),
    Column("count", Integer, nullable=False),
    Column("length", Integer, nullable=False),
    Index(None, "project", "kind", "owner"),
    sqlite_with_rowid=False,
)
"""The words by which failures, patterns and facts are found."""

patterns = Table(
    "memory_patterns",
    TABLES,
    _key("project"),
    _key("id"),
    _text("problem_type"),
    _text("title"),
    _text("steps", Text),
    _text("commands", Text),
    _text("code_template"),
    _text("test_template"),
    _text("workflow_id", String),
    _number("iteration"),
    Column("at", Moment, nullable=False),
    *_vector(),
    Index(None, "project", "model"),
)

uses = Table(
    "memory_uses",
    TABLES,
    _key("project"),
    _key("signature"),
    _key("pattern"),
    _key("key"),
    Column("worked", Boolean, nullable=False),
    Column("at", Moment, nullable=False),
    Index(None, "project", "pattern"),
)
"""Each time that a pattern was used against a failure."""

facts = Table(
    "memory_facts",
    TABLES,
    _key("project"),
    _key("key", Prose),
    _text("text"),
    _text("source"),
    Column("at", Moment, nullable=False),
)

MEMORY = Migrations(
    name="memory",
    versions=Path(__file__).with_name("versions"),
    table="memory_version",
    metadata=TABLES,
    when_damaged="Move it away: the memory then starts empty, and nothing else is lost",
)
