"""The first tables: failures, patterns, their uses, facts, and the words by which they are found."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from tightloop.database.memory.schema import Embedding
from tightloop.errors import WorkspaceError

revision = "v0001_memory"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    if op.get_bind().dialect.name == "postgresql":
        _make_vector_type()
    _make("projects", ("project",), _text("host", sa.String()))
    _make("corpora", ("project", "kind"), _number("documents"), _number("words"))
    _make_failures()
    _make_patterns()
    _make(
        "words",
        ("project", "kind", "word", "owner"),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        owner=sa.Text(),
        sqlite_with_rowid=False,
    )
    _index("words", "project", "kind", "owner")
    _make("facts", ("project", "key"), _text("text"), _text("source"), _moment("at"), key=sa.Text())


def _make_vector_type() -> None:
    known = op.get_bind().execute(sa.text("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")).scalar()
    if known is None:
        raise WorkspaceError(
            "the PostgreSQL of database.url lacks the extension vector, which the memory needs. Install pgvector "
            "there, or keep the memory on each host: memory.store: local"
        )
    op.execute("CREATE EXTENSION IF NOT EXISTS vector")


def _make_failures() -> None:
    _make(
        "failures",
        ("project", "signature"),
        *(_text(name) for name in ("type", "check", "line", "context")),
        _text("workflow_id", sa.String()),
        _number("iteration"),
        _number("seen"),
        sa.Column("solved", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        _moment("first"),
        _moment("last"),
        *_vector(),
    )
    _index("failures", "project", "solved", "last")
    _index("failures", "project", "model")


def _make_patterns() -> None:
    _make(
        "patterns",
        ("project", "id"),
        *(_text(name) for name in ("problem_type", "title", "steps", "commands", "code_template", "test_template")),
        _text("workflow_id", sa.String()),
        _number("iteration"),
        _moment("at"),
        *_vector(),
    )
    _index("patterns", "project", "model")
    _make(
        "uses",
        ("project", "signature", "pattern", "key"),
        sa.Column("worked", sa.Boolean(), nullable=False),
        _moment("at"),
    )
    _index("uses", "project", "pattern")


def _make(name: str, keys: tuple[str, ...], *columns: "sa.Column[Any]", **options: Any) -> None:
    """Make a table.

    Args:
        name: without the prefix that all have.
        keys: of the primary key.
        columns: the others.
        options: the type of a key, by its name, where it is not a String; else for the table.
    """
    kinds = {key: options.pop(key, sa.String()) for key in keys}
    found = [sa.Column(key, kind, nullable=False) for key, kind in kinds.items()]
    table = f"memory_{name}"
    op.create_table(table, *found, *columns, sa.PrimaryKeyConstraint(*keys, name=op.f(f"pk_{table}")), **options)


def _index(name: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_memory_{name}_{'_'.join(columns)}"), f"memory_{name}", list(columns))


def _text(name: str, kind: Any = None) -> "sa.Column[Any]":
    return sa.Column(name, kind or sa.Text(), server_default="", nullable=False)


def _number(name: str) -> "sa.Column[int]":
    return sa.Column(name, sa.Integer(), server_default="0", nullable=False)


def _moment(name: str) -> "sa.Column[Any]":
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)


def _vector() -> "tuple[sa.Column[Any], ...]":
    return sa.Column("embedding", Embedding(), nullable=True), _text("model", sa.String()), _number("dimension")
