"""Figures that nothing else keeps."""

import sqlalchemy as sa
from alembic import op

revision = "v0002_metrics"
down_revision = "v0001_memory"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "memory_metrics",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("workflow_id", sa.String(), server_default="", nullable=False),
        sa.Column("type", sa.String(), server_default="", nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("details", sa.Text(), server_default="", nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project", "key", name=op.f("pk_memory_metrics")),
    )
    op.create_index(op.f("ix_memory_metrics_project_type_at"), "memory_metrics", ["project", "type", "at"])
