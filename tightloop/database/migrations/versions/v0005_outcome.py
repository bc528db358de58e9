"""Columns for the outcome of a run. A database that was created with the current `schema.py` already has them."""

import sqlalchemy as sa
from alembic import op

from tightloop.database.schema import text_column, workflows

revision = "v0005_outcome"
down_revision = "v0004_metrics"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the missing columns."""
    existing = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(workflows.name)}
    for column in (text_column("qualifier"), sa.Column("files_changed", sa.Integer)):
        if column.name not in existing:
            op.add_column(workflows.name, column)
