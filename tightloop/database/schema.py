"""Table definitions. Every row belongs to a project. Forwarded tables also have a `changed` column."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.types import TypeDecorator


class Moment(TypeDecorator[datetime]):
    """Column type for UTC times, because SQLite does not store time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        # `astimezone` would read a time without a zone as local time.
        utc = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Prose(TypeDecorator[str]):
    """Column type for text from any source. Characters that the database rejects are replaced.

    PostgreSQL rejects NUL characters, and both databases reject lone surrogates.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


# Named constraints, because a migration of SQLite copies the table and must find each constraint by name.
METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)


def key_column(name: str, kind: Any = String) -> Column[Any]:
    return Column(name, kind, primary_key=True)


def text_column(name: str, kind: Any = Prose) -> Column[Any]:
    """Return a text column whose default is empty."""
    return Column(name, kind, nullable=False, server_default="")


def _changed_column() -> Column[int]:
    return Column("changed", BigInteger, nullable=False, index=True)


clock = Table(
    "clock",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("tick", BigInteger, nullable=False),
    Column("origin", String, nullable=False),
)
"""A single row with the number of the last change, and a unique name for this database."""

spools = Table(
    "spools",
    METADATA,
    key_column("origin"),
    Column("changed", BigInteger, nullable=False),
    Column("at", Moment, nullable=False),
)
"""For each worker, the position up to which changes in its ledger have been forwarded to this database."""

projects = Table(
    "projects",
    METADATA,
    key_column("project"),
    text_column("name"),
    text_column("workspace"),
    text_column("host"),
    _changed_column(),
)

workflows = Table(
    "workflows",
    METADATA,
    key_column("project"),
    key_column("id"),
    Column("kind", String, nullable=False),
    Column("status", String, nullable=False),
    text_column("qualifier"),
    Column("files_changed", Integer),
    text_column("parent", String),
    text_column("goal"),
    text_column("executor"),
    text_column("phase"),
    Column("iteration", Integer, nullable=False),
    text_column("checks"),
    text_column("model"),
    Column("cost_usd", Float, nullable=False),
    Column("cost_known", Boolean, nullable=False, server_default=false()),
    Column("tokens", BigInteger),
    Column("worked_s", Float),
    Column("interventions", Integer),
    Column("run", Integer, nullable=False),
    Column("at", Moment, nullable=False),
    Column("placed", Moment, nullable=False),
    Column("started", Moment),
    Column("closed", Moment),
    Column("waiting_since", Moment),
    text_column("questions", Text),
    text_column("details", Text),
    _changed_column(),
    # In the sort orders of the lists, filtered or not; otherwise each page would sort all rows.
    Index(None, "project", "placed", "id"),
    Index(None, "project", "status", "placed", "id"),
    Index(None, "placed", "id", "project"),
    Index(None, "status", "placed", "id", "project"),
    Index(None, "id"),
    Index(None, "parent"),
    Index(None, "waiting_since"),
    Index(None, "project", "closed", "waiting_since"),
    Index(None, "kind", "closed"),
)
"""Last known state of episodes, plans and loops.

`placed` is the sort key of lists, which is the start time or the time of the first snapshot.
"""

checkpoints = Table(
    "checkpoints",
    METADATA,
    key_column("project"),
    key_column("workflow_id"),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("key", Prose, nullable=False),
    Column("record", Text, nullable=False),
    _changed_column(),
    UniqueConstraint("project", "workflow_id", "key"),
)

steps = Table(
    "steps",
    METADATA,
    key_column("project"),
    key_column("plan_id"),
    key_column("step"),
    Column("status", String, nullable=False),
    Column("attempt", Integer, nullable=False),
    text_column("child_id", String),
    text_column("needs", Text),
    text_column("title"),
    Column("order", Integer, nullable=False),
    Column("at", Moment),
    _changed_column(),
    Index(None, "child_id"),
)

events = Table(
    "events",
    METADATA,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("project", String, nullable=False),
    Column("workflow_id", String, nullable=False),
    Column("kind", String, nullable=False),
    text_column("text"),
    Column("key", Prose, nullable=False),
    Column("at", Moment, nullable=False),
    _changed_column(),
    UniqueConstraint("project", "workflow_id", "key"),
    Index(None, "project", "seq"),
    Index(None, "project", "workflow_id", "seq"),
    Index(None, "workflow_id", "seq"),
    Index(None, "project", "kind", "at"),
    # Never reuse a number after a deletion: `seq` is the cursor of live events.
    sqlite_autoincrement=True,
)
"""Events of workflows.

Writes to a database are serialised, so `seq` increases in commit order.
"""

spending = Table(
    "spending",
    METADATA,
    key_column("project"),
    key_column("workflow_id"),
    Column("hour", Moment, primary_key=True),
    Column("cost_usd", Float, nullable=False),
    _changed_column(),
)
"""Cost of each workflow per hour."""

metrics = Table(
    "metrics",
    METADATA,
    key_column("project"),
    key_column("workflow_id"),
    key_column("kind"),
    key_column("key"),
    Column("value", Float, nullable=False),
    Column("at", Moment, nullable=False),
    text_column("metadata", Text),
    _changed_column(),
)
"""Values measured while workflows ran; see `tightloop.ledger.metrics`."""

freed = Table("freed", METADATA, key_column("project"), key_column("workflow_id"), _changed_column())
"""Workflows whose rows were deleted.

These rows are forwarded so that other databases delete the same workflows.
"""

tokens = Table(
    "tokens",
    METADATA,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False, index=True),
    Column("role", String, nullable=False),
    Column("projects", Text, nullable=False),
    Column("episode", String, nullable=False, server_default=""),
    Column("digest", String, nullable=False),
    Column("created", Moment, nullable=False),
    Column("expires", Moment),
    Column("revoked", Moment),
)
"""Bearer tokens of the gateway. They are not forwarded and cannot be recreated."""

idempotency_keys = Table(
    "idempotency_keys",
    METADATA,
    Column("principal", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("request", String, nullable=False),
    Column("status", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("created", Moment, nullable=False, index=True),
)
"""Responses to requests that had an idempotency key."""
