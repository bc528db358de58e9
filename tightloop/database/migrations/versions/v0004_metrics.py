"""What episodes used in full, and what is measured of them."""

import json
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from alembic import op
from pydantic import TypeAdapter, ValidationError

revision = "v0004_metrics"
down_revision = "v0003_agent_tokens"
branch_labels = None
depends_on = None

_ROWS_AT_ONCE = 500
_DURATION = TypeAdapter(timedelta)


def upgrade() -> None:
    """Make the table and the columns, and fill these from what is recorded."""
    op.create_table(
        "metrics",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("workflow_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("metadata", sa.Text(), server_default="", nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "workflow_id", "kind", "key", name=op.f("pk_metrics")),
    )
    op.create_index(op.f("ix_metrics_changed"), "metrics", ["changed"], unique=False)
    for column in (
        sa.Column("model", sa.Text(), nullable=False, server_default=""),
        sa.Column("cost_known", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("tokens", sa.BigInteger()),
        sa.Column("worked_s", sa.Float()),
        sa.Column("interventions", sa.Integer()),
    ):
        op.add_column("workflows", column)
    op.create_index(op.f("ix_workflows_kind_closed"), "workflows", ["kind", "closed"], unique=False)
    _fill()


def _fill() -> None:
    """Take what episodes have used from their recorded status; one that was terminated did not tell all of it."""
    workflows = sa.table(
        "workflows",
        *map(sa.column, ("project", "id", "kind", "status", "details", "cost_known", "tokens", "worked_s")),
    )
    here = (workflows.c.project == sa.bindparam("of_project"), workflows.c.id == sa.bindparam("of_id"))
    values: dict[str, Any] = {name: sa.bindparam(name) for name in ("cost_known", "tokens", "worked_s")}
    change = sa.update(workflows).where(*here).values(values)
    connection = op.get_bind()
    ids = connection.execute(
        sa.select(workflows.c.project, workflows.c.id).where(
            workflows.c.kind == "episode",
            workflows.c.details != "",
            sa.func.lower(workflows.c.status).in_(("succeeded", "failed", "cancelled")),
        )
    ).all()
    for start in range(0, len(ids), _ROWS_AT_ONCE):
        rows = []
        for project, workflow_id in ids[start : start + _ROWS_AT_ONCE]:
            query = sa.select(workflows.c.details).where(workflows.c.project == project, workflows.c.id == workflow_id)
            used = _used(connection.execute(query).scalar_one())
            if used is not None:
                rows.append({"of_project": project, "of_id": workflow_id, **used})
        if rows:
            connection.execute(change, rows)


def _used(details: str) -> dict[str, Any] | None:
    try:
        spent = json.loads(details)["spent"]
        worked = _DURATION.validate_python(spent["wall_time"]).total_seconds()
        tokens = spent["input_tokens"] + spent["output_tokens"]
        unpriced, unreported = spent["unpriced_calls"], spent["unreported_calls"]
    except (ValueError, KeyError, TypeError, ValidationError):
        return None
    return {"cost_known": not unpriced, "tokens": None if unreported else tokens, "worked_s": worked}
