"""Store the cost per hour instead of per day. Databases created with the current `schema.py` have this table."""

import sqlalchemy as sa
from alembic import op

from tightloop.database.schema import spending

revision = "v0006_spending"
down_revision = "v0005_outcome"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table if it is missing, and drop the per-day table."""
    existing = sa.inspect(op.get_bind()).get_table_names()
    if spending.name not in existing:
        spending.create(op.get_bind())
    if "days" in existing:
        op.drop_table("days")
